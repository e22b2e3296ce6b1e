//go:build unix

package cli

import "syscall"

// ownGroup keeps a child out of the terminal's foreground group: a Ctrl-C must not end it before those who use it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
