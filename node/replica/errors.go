package replica

import (
	"errors"
	"fmt"
)

// What a caller may be told instead of a result.
var (
	// ErrAmbiguous: the command was proposed, and leadership or process ended before its result was known. It may have
	// been applied or not; the caller retries with the same identity.
	ErrAmbiguous = errors.New("outcome unknown: leadership ended while the command was in flight")
	// ErrOverloaded: the shard's queue is full, or too long for new work of this priority. Nothing happened.
	ErrOverloaded = errors.New("shard is overloaded: its queue is full, or too long for new work of this priority")
	// ErrTooLarge: the command is above MaxCommandBytes. Nothing happened.
	ErrTooLarge = errors.New("command is too large")
	// ErrNoReplica: this store has no replica of the shard. Nothing happened.
	ErrNoReplica = errors.New("no replica of the shard on this store")
	// ErrStopped: the host is stopping or has stopped. Nothing happened.
	ErrStopped = errors.New("replica host has stopped")
)

// NotLeaderError says that this replica does not lead the shard, so that nothing happened. Store is the leader's store as
// far as this one knows, else empty.
type NotLeaderError struct {
	Shard uint32
	Term  uint64
	Store string
}

// Error names the leader's store, if it is known.
func (e *NotLeaderError) Error() string {
	if e.Store == "" {
		return fmt.Sprintf("shard %d has no leader known here at term %d", e.Shard, e.Term)
	}
	return fmt.Sprintf("shard %d is led by store %s at term %d", e.Shard, e.Store, e.Term)
}
