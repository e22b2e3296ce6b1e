package store

import (
	"bytes"
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
)

var _ fsm.Reader = (*Reader)(nil)

// Reader reads one shard's committed rows: fsm.Reader for calls that only read. Use it on a Snapshot when the answers of
// several reads have to fit together: executions move from key space to key space. Keys and values it hands out are
// copies that stay valid. It belongs to one goroutine at a time; after an error reads find nothing, and Err tells.
type Reader struct {
	source     Source
	start, end []byte
	keyBuf     []byte
	endBuf     []byte
	copies     arena
	err        error
	// gets, scans and rows count what reached the source.
	gets, scans, rows uint64
}

// NewReader returns a reader of a shard's rows in source, which stays the caller's.
func NewReader(source Source, shard uint32) *Reader {
	start, end := Span(shard)
	return &Reader{source: source, start: start, end: end}
}

// Get returns the value of a row.
func (r *Reader) Get(key []byte) (value []byte, ok bool) {
	if r.err != nil {
		return nil, false
	}
	r.gets++
	value, ok, err := r.source.Get(r.fullKey(key))
	if err != nil {
		r.err = fmt.Errorf("read shard's row: %w", err)
		return nil, false
	}
	return value, ok
}

// Scan calls fn for the rows in [start, end) in key order until it returns false; a nil end is the end of the shard.
func (r *Reader) Scan(start, end []byte, fn func(key, value []byte) bool) {
	it := r.iterator(start, end)
	if it == nil {
		return
	}
	// Also when fn panics over a row it cannot read: a caller that recovers must not hold back compaction for ever.
	defer r.closeIterator(it)
	for ok := it.First(); ok; ok = it.Next() {
		key, value := r.row(it)
		if !fn(key, value) {
			return
		}
	}
}

// Err returns the first I/O error, for good.
func (r *Reader) Err() error { return r.err }

// iterator opens an iterator over a shard's rows, or returns nil after an error and for an empty range.
func (r *Reader) iterator(start, end []byte) Iterator {
	if r.err != nil || (end != nil && bytes.Compare(start, end) >= 0) {
		return nil
	}
	r.scans++
	it, err := r.source.NewIter(r.bounds(start, end))
	if err != nil {
		r.err = fmt.Errorf("scan shard's rows: %w", err)
		return nil
	}
	return it
}

// fullKey returns the engine's key of a row, valid until the next call.
func (r *Reader) fullKey(key []byte) []byte {
	r.keyBuf = append(append(r.keyBuf[:0], r.start...), key...)
	return r.keyBuf
}

// bounds returns the engine's bounds of a range of rows, valid until the next call.
func (r *Reader) bounds(start, end []byte) (from, to []byte) {
	r.endBuf = append(r.endBuf[:0], r.end...)
	if end != nil {
		r.endBuf = append(append(r.endBuf[:0], r.start...), end...)
	}
	return r.fullKey(start), r.endBuf
}

// row returns copies of the current row, its key relative to the shard.
func (r *Reader) row(it Iterator) (key, value []byte) {
	r.rows++
	return r.copies.pair(it.Key()[prefixLen:], it.Value())
}

func (r *Reader) closeIterator(it Iterator) {
	err := it.Error()
	if closeErr := it.Close(); err == nil {
		err = closeErr
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("scan shard's rows: %w", err)
	}
}

// arena hands out copies that are never reused, many to an allocation.
type arena struct{ free []byte }

// arenaChunk is the bytes allocated at once; what is larger than an eighth of it is allocated alone, so that little is
// wasted and a row that somebody keeps holds on to little else.
const arenaChunk = 8 << 10

func (a *arena) pair(key, value []byte) (keyCopy, valueCopy []byte) {
	n := len(key) + len(value)
	var buf []byte
	switch {
	case n > arenaChunk/8:
		buf = make([]byte, n)
	case n > len(a.free):
		a.free = make([]byte, arenaChunk)
		fallthrough
	default:
		buf, a.free = a.free[:n:n], a.free[n:]
	}
	copy(buf, key)
	copy(buf[len(key):], value)
	return buf[:len(key):len(key)], buf[len(key):]
}
