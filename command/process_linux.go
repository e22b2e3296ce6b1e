package command

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup makes the program lead a process group, so that all of it can be told to stop, and die with this process, however
// that ends. (The kernel counts from the thread that started it; Go's threads end with the process.)
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reaped is how a program is waited for: first without taking it off the kernel's list, so that its number, which is its
// group's as well, can be no other's while the group is signalled.
type reaped struct{}

// awaitExit returns when the program has ended. Should it not be this process's to wait for, wait says so.
func (reaped) awaitExit(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (reaped) wait(cmd *exec.Cmd) error { return cmd.Wait() }
