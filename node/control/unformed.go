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
	has, err := findMember(dir)
	if err != nil || has != unformedMember {
		return err
	}
	logger.Info("the first start was interrupted; etcd starts anew", "directory", dir)
	if err := os.RemoveAll(filepath.Join(dir, "member")); err != nil {
		return fmt.Errorf("remove interrupted start: %w", err)
	}
	return nil
}

// What a directory holds of a member.
type memberState int

const (
	noMember memberState = iota
	unformedMember
	formedMember
)

// HoldsMember says whether etcd's directory is that of a member: a start goes on as that member, whatever it is told. A
// directory without one, also one whose first start was interrupted before anything was committed, has to pass the start
// gate.
func HoldsMember(dir string) (bool, error) {
	has, err := findMember(dir)
	return has == formedMember, err
}

// SetAside moves what a member that was removed from its cluster has left in etcd's directory out of the way, in the place of
// an earlier one's. The node may then ask to be admitted anew.
func SetAside(dir string) error {
	aside := filepath.Join(dir, "removed")
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("set removed member aside: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, "member"), aside); err != nil {
		return fmt.Errorf("set removed member aside: %w", err)
	}
	return nil
}

func findMember(dir string) (memberState, error) {
	segments, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil {
		return noMember, fmt.Errorf("look for etcd's log: %w", err)
	}
	switch len(segments) {
	case 0:
		return noMember, nil
	case 1:
	default:
		return formedMember, nil // more than a first start writes
	}
	unformed, err := isUnformed(segments[0])
	if err != nil {
		return noMember, fmt.Errorf("read etcd's log: %w", err)
	}
	if unformed {
		return unformedMember, nil
	}
	return formedMember, nil
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
