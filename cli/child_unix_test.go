//go:build unix

package cli

import (
	"syscall"
	"testing"
)

// A Ctrl-C at the demo's terminal must not end its server while the worker still gives back what it holds.
func TestTheTerminalsSignalsDoNotReachAChild(t *testing.T) {
	server, err := startChild(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	group, err := syscall.Getpgid(server.cmd.Process.Pid)
	if err != nil || group == syscall.Getpgrp() {
		t.Errorf("the server is in group %d, the program in %d (%v)", group, syscall.Getpgrp(), err)
	}
	if err := server.stop(); err != nil {
		t.Error(err)
	}
}
