//go:build !unix

package command

import (
	"os/exec"
	"syscall"
)

// There are no process groups: only the program itself is ended.
func ownGroup() *syscall.SysProcAttr { return nil }

// reaped is how a program that was waited for ended.
type reaped struct{ err error }

// awaitExit returns when the program has ended.
func (r *reaped) awaitExit(cmd *exec.Cmd) { r.err = cmd.Wait() }

func (r *reaped) wait(*exec.Cmd) error { return r.err }

// terminateGroup and killGroup end the program, which may have ended already.
func terminateGroup(cmd *exec.Cmd) { killGroup(cmd) }
func killGroup(cmd *exec.Cmd)      { _ = cmd.Process.Kill() }
