package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// discardUnformed removes what a first start has left that ended before the member had its cluster in its log. etcd takes
// such a directory for that of a member, and then waits for ever for others whom it does not know. As nothing was committed
// there, nothing is lost.
func discardUnformed(dir string, logger *slog.Logger) error {
	segments, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil {
		return fmt.Errorf("look for etcd's log: %w", err)
	}
	if len(segments) != 1 {
		return nil // none yet, or more than a first start writes
	}
	unformed, err := isUnformed(segments[0])
	if err != nil {
		return fmt.Errorf("read etcd's log: %w", err)
	}
	if !unformed {
		return nil
	}
	logger.Info("the first start was interrupted; etcd starts anew", "directory", dir)
	if err := os.RemoveAll(filepath.Join(dir, "member")); err != nil {
		return fmt.Errorf("remove interrupted start: %w", err)
	}
	return nil
}

// isUnformed says that a segment of the log is whole, commits nothing and was never written beyond that. What is damaged
// or torn is not: that is for etcd to judge.
func isUnformed(path string) (bool, error) {
	segment, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer segment.Close()
	decoder := wal.NewDecoder(fileutil.NewFileReader(segment))
	for {
		record := &walpb.Record{}
		err := decoder.Decode(record)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, nil
		}
		switch record.GetType() {
		case wal.CrcType:
			decoder.UpdateCRC(record.GetCrc())
		case wal.StateType:
			if wal.MustUnmarshalState(record.Data).GetCommit() > 0 {
				return false, nil
			}
		}
	}
	rest, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	written := decoder.LastOffset()
	return int64(len(rest)) >= walSegmentBytes && written > 0 && len(bytes.Trim(rest[written:], "\x00")) == 0, nil
}
