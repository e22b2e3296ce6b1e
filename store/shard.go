package store

import (
	"bytes"
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
)

var _ fsm.State = (*Shard)(nil)

// Shard is one shard's rows as its state machine sees them: the engine's, under the rows written lately (the cache), under
// this turn's writes (the overlay). A turn goes: entries are applied; Flush moves the writes into the turn's batch; the
// engine commits it; Committed. Values and keys it hands out stay valid and must not be changed. It belongs to the
// loop's goroutine.
type Shard struct {
	committed *Reader
	cache     *Cache
	cached    map[string]*cached
	overlay   overlay
	flushed   bool
	scratch   []pending
	counters  Counters
}

// Counters are what a shard's state machine cost since it was opened.
type Counters struct {
	// Gets is reads of single rows that reached the engine; OverlayHits and CacheHits those that did not.
	Gets, OverlayHits, CacheHits uint64
	// Scans and ScannedRows are iterators opened on the engine and committed rows they handed out.
	Scans, ScannedRows uint64
	// KeyWrites is rows set and deleted in flushed batches, RangeDeletes their range deletes.
	KeyWrites, RangeDeletes uint64
}

// NewShard returns a shard's view. The cache is shared by the shards of one loop.
func NewShard(engine Engine, shard uint32, cache *Cache) *Shard {
	return &Shard{committed: NewReader(engine, shard), cache: cache, cached: make(map[string]*cached)}
}

// Get returns the value of a row.
func (s *Shard) Get(key []byte) (value []byte, ok bool) {
	if !s.overlay.empty() {
		if value, state := s.overlay.get(key); state != absent {
			s.counters.OverlayHits++
			return value, state == present
		}
	}
	if value, ok := s.cache.get(s.cached, key); ok {
		s.counters.CacheHits++
		return value, true
	}
	return s.committed.Get(key)
}

// Scan calls fn for the rows in [start, end) in key order until it returns false; a nil end is the end of the shard. It
// walks the rows as they stood when it began: fn may write.
func (s *Shard) Scan(start, end []byte, fn func(key, value []byte) bool) {
	if s.overlay.empty() {
		s.committed.Scan(start, end, fn)
		return
	}
	it := s.committed.iterator(start, end)
	if it == nil {
		return
	}
	defer s.committed.closeIterator(it) // as in Reader.Scan
	// A scan inside fn finds scratch taken and makes its own.
	scratch := s.scratch
	s.scratch = nil
	written := s.overlay.appendRows(scratch[:0], span{start, end})
	s.merge(it, written, s.overlay.spans, fn)
	clear(written)
	s.scratch = written[:0]
}

// merge walks the committed rows and the written ones, which replace them, side by side.
func (s *Shard) merge(it Iterator, written []pending, spans []span, fn func(key, value []byte) bool) {
	valid := it.First()
	for valid || len(written) > 0 {
		order := 1
		switch {
		case len(written) == 0:
			order = -1
		case valid:
			order = bytes.Compare(it.Key()[prefixLen:], written[0].key)
		}
		more := true
		if order < 0 {
			if !shadowed(spans, it.Key()[prefixLen:]) {
				more = fn(s.committed.row(it))
			}
		} else if written[0].state == present {
			more = fn(written[0].key, written[0].value)
		}
		if !more {
			return
		}
		if order <= 0 {
			valid = it.Next()
		}
		if order >= 0 {
			written = written[1:]
		}
	}
}

// Set writes a row and takes ownership of key and value.
func (s *Shard) Set(key, value []byte) {
	s.mustNotBeFlushed()
	s.overlay.write(key, value, present)
}

// Delete removes a row.
func (s *Shard) Delete(key []byte) {
	s.mustNotBeFlushed()
	key, _ = s.committed.copies.pair(key, nil)
	s.overlay.write(key, nil, deleted)
}

// DeleteRange removes the rows in [start, end), those written this turn included; a nil end is the end of the
// shard.
func (s *Shard) DeleteRange(start, end []byte) {
	s.mustNotBeFlushed()
	if end != nil && bytes.Compare(start, end) >= 0 {
		return
	}
	s.overlay.deleteRange(span{bytes.Clone(start), bytes.Clone(end)})
}

// Flush puts this turn's writes into b, in key order, range deletes first. They stay readable, and nothing may be
// written until Committed. It returns the read error, if any, that makes the turn void.
func (s *Shard) Flush(b Batch) error {
	s.mustNotBeFlushed()
	if err := s.Err(); err != nil {
		return err
	}
	s.flushed = true
	r := s.committed
	for _, removed := range s.overlay.spans {
		b.DeleteRange(r.bounds(removed.start, removed.end))
		s.counters.RangeDeletes++
	}
	s.overlay.sort()
	for _, i := range s.overlay.order {
		row := &s.overlay.rows[i]
		key := r.fullKey(row.key)
		switch row.state {
		case absent:
			continue
		case present:
			b.Set(key, row.value)
		case deleted:
			b.Delete(key)
		}
		s.counters.KeyWrites++
	}
	return nil
}

// Committed says that the batch of the last Flush has been committed: the writes are the engine's now.
func (s *Shard) Committed() {
	if !s.flushed {
		panic("store: committed without a flush")
	}
	for _, removed := range s.overlay.spans {
		s.cache.dropRange(s.cached, removed)
	}
	for i := range s.overlay.rows {
		row := &s.overlay.rows[i]
		if row.state == present {
			s.cache.put(s.cached, row.key, row.value)
		} else {
			s.cache.drop(s.cached, row.key)
		}
	}
	s.overlay.reset()
	s.flushed = false
}

// Forget drops all that is known of the shard's rows, writes that were not flushed included: an install has replaced them.
func (s *Shard) Forget() {
	s.mustNotBeFlushed()
	s.overlay.reset()
	s.cache.forget(s.cached)
}

// Release gives back what the shard takes of the cache it shares: it is not used any more.
func (s *Shard) Release() { s.cache.forget(s.cached) }

// Err returns the first I/O error, for good: what was computed after it must be thrown away.
func (s *Shard) Err() error {
	if err := s.committed.Err(); err != nil {
		return fmt.Errorf("apply to shard: %w", err)
	}
	return nil
}

// Counters returns what the shard cost so far.
func (s *Shard) Counters() Counters {
	c := s.counters
	c.Gets, c.Scans, c.ScannedRows = s.committed.gets, s.committed.scans, s.committed.rows
	return c
}

func (s *Shard) mustNotBeFlushed() {
	if s.flushed {
		panic("store: flushed writes are not committed yet")
	}
}
