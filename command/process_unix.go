//go:build unix

package command

import (
	"os/exec"
	"syscall"
)

// terminateGroup asks the program and all of its group to end, also what is stopped.
func terminateGroup(cmd *exec.Cmd) {
	signalGroup(cmd, syscall.SIGTERM)
	signalGroup(cmd, syscall.SIGCONT)
}

// killGroup ends the program and all of its group.
func killGroup(cmd *exec.Cmd) { signalGroup(cmd, syscall.SIGKILL) }

// signalGroup fails only when there is nobody left to signal.
func signalGroup(cmd *exec.Cmd, s syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, s) }
