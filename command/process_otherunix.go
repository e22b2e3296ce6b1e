//go:build unix && !linux

package command

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the program lead a process group, so that all of it can be told to stop.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// reaped is how a program that was waited for ended.
type reaped struct{ err error }

// awaitExit returns when the program has ended.
func (r *reaped) awaitExit(cmd *exec.Cmd) { r.err = cmd.Wait() }

func (r *reaped) wait(*exec.Cmd) error { return r.err }
