// Package store keeps the rows of all shards of one node: on Pebble, or in memory for tests and simulation.
//
// It knows spans, batches and syncs; what the rows mean is fsm's and node/replica's business. A write error is final: the
// engine stays failed, and its owner stops the process (a node never serves what it cannot vouch for).
package store

// Engine is an ordered key space with atomic, ordered batches. Two implementations: Pebble (OpenPebble) and memory (OpenMemory).
// After a crash the rows are those of a prefix of the committed batches that contains at least every synced one.
type Engine interface {
	// Get returns a copy of key's value.
	Get(key []byte) (value []byte, ok bool, err error)
	// NewIter walks [start, end) as it stands now. The caller closes it.
	NewIter(start, end []byte) (Iterator, error)
	NewBatch() Batch
	// Commit applies b; it is visible when Commit returns and, with sync, durable when wait returns nil. wait is nil
	// without sync. Waits must be called in commit order, from any one goroutine. b must not be used afterwards.
	Commit(b Batch, sync bool) (wait func() error, err error)
	// Flushed sizes and counters, for metrics and bench.
	Metrics() Metrics
	Close() error
}

// Batch collects writes. Keys and values are copied.
type Batch interface {
	Set(key, value []byte)
	Delete(key []byte)
	DeleteRange(start, end []byte)
	Len() int
}

// Iterator walks rows in key order. Key and Value are valid until the next move.
type Iterator interface {
	First() bool
	SeekGE(key []byte) bool
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
	// SyncNanos and TurnNanos histograms belong to node/replica.
}
