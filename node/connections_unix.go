//go:build unix

package node

import (
	"fmt"
	"syscall"
)

// maxConnections is how many connections leave the node enough files. A store that cannot open one of its own has failed.
func maxConnections() (int, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("read limit of open files: %w", err)
	}
	return connectionsWithin(uint64(files.Cur)), nil
}
