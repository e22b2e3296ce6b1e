//go:build linux || darwin || freebsd

package node

import (
	"fmt"
	"syscall"
)

// diskSpace is what is free for this process, and what there is, in bytes, where a path is.
func diskSpace(path string) (free, total uint64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, 0, fmt.Errorf("read free space of %s: %w", path, err)
	}
	return uint64(s.Bavail) * uint64(s.Bsize), uint64(s.Blocks) * uint64(s.Bsize), nil
}
