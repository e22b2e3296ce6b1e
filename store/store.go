// Package store keeps the rows of all shards of one node: on Pebble, or in memory for tests and simulation.
//
// It knows spans, batches and syncs; what the rows mean is fsm's and node/replica's business. A write error is final: the
// engine stays failed, and its owner stops the process (a node never serves what it cannot vouch for).
//
// A store's loop writes: per turn one Batch, filled by its shards' views (Shard, which is fsm's State) and by the log. Others
// read: through a Reader on a Snapshot, from any goroutine. Engines are safe for concurrent use; a Shard, its Cache, a
// Reader, a Batch and an Iterator belong to one goroutine at a time. Only Pebble's own goroutines run here.
package store

import "errors"

// ErrClosed is what an engine answers after Close.
var ErrClosed = errors.New("store is closed")

// Source is what can be read: an Engine as it stands now, or a Snapshot.
type Source interface {
	// Get returns a copy of key's value.
	Get(key []byte) (value []byte, ok bool, err error)
	// NewIter walks [start, end) as it stands now; a nil end is the end of all rows. The caller closes it.
	NewIter(start, end []byte) (Iterator, error)
}

// Snapshot is a Source that does not change. It holds back compaction: close it soon. Rows of a span that is installed after
// the snapshot was made are lost to it: it answers ErrReplaced for them. Iterators that were opened before keep theirs.
type Snapshot interface {
	Source
	Close() error
}

// Engine is an ordered key space with atomic, ordered batches. Two implementations: Pebble (OpenPebble) and memory (OpenMemory).
// After a crash the rows are those of a prefix of the committed batches that contains at least every synced one.
type Engine interface {
	Source
	// NewSnapshot returns the rows as they stand now: reads of more than one row that have to fit together need one.
	NewSnapshot() (Snapshot, error)
	NewBatch() Batch
	// Commit applies b; it is visible when Commit returns and, with sync, durable when wait returns nil. wait is nil
	// without sync. It is called once, from any goroutine; the waits for one goroutine's commits are called in their order,
	// those of different goroutines in any. b must not be used afterwards.
	Commit(b Batch, sync bool) (wait func() error, err error)
	// NewImport begins to collect the rows that are to replace those in [start, end), both of which must be given.
	NewImport(start, end []byte) (Import, error)
	// Install replaces all rows of the import's span by the import's, in one step that is visible and durable when it
	// returns, as is all that was committed before the call. The import may be empty. Commits of other goroutines may
	// write other spans meanwhile and wait some milliseconds; nothing may write this one. An error of the import's own
	// files leaves the engine as it is and the import to be aborted; any other one is final.
	Install(Import) error
	// Metrics returns sizes and counters, for metrics and bench.
	Metrics() Metrics
	Close() error
}

// Batch collects writes, which apply in their order. Keys and values are copied. Len is the number of writes. DeleteRange
// removes [start, end); an empty range removes nothing.
type Batch interface {
	Set(key, value []byte)
	Delete(key []byte)
	DeleteRange(start, end []byte)
	Len() int
}

// Iterator walks rows in key order. It stands nowhere until First. Key and Value are valid until the next move.
type Iterator interface {
	First() bool
	Next() bool
	Valid() bool
	Key() []byte
	Value() []byte
	Error() error
	Close() error
}

// Metrics are the engine's own figures.
type Metrics struct {
	DiskBytes      uint64
	WALBytes       uint64
	Gets           uint64
	Iters          uint64
	L0Sublevels    int
	CompactionDebt uint64
	MemTableBytes  uint64
	CacheBytes     int64
	// Pressure says, in percent, how much of the new work should be held back so that flushes and compactions keep up with
	// writes: none at 0, all of it at 100. Beyond that the engine holds all writes back by itself.
	Pressure int
	// WriteStalls is how often writes were held back because flushes or compactions could not keep up.
	WriteStalls uint64
	// Imports that were begun, Installs that were done.
	Imports, Installs uint64
}
