package replica

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// raftLog is one shard's log: rows in the engine, the youngest of them in memory too. It is the raft.Storage of its
// group, used by the goroutine that runs the turns only.
//
// Entries that were appended in a turn are visible here at once, before the batch that carries them is committed; raft
// reads them from here only after it was told that they are durable.
type raftLog struct {
	engine store.Engine
	shard  uint32
	// start is handed to raft once, when its group is opened.
	start struct {
		hard hardState
		conf *raftpb.ConfState
	}

	// sending and state are for raft's request of a snapshot.
	sending *sendGate
	state   func() (position, *raftpb.ConfState)
	// keepsTail is the fault TruncateByIndexAlone.
	keepsTail bool

	// truncated is the last entry whose row is gone; rows stand from the next index to last.
	truncated position
	last      uint64
	// terms are the runs of equal terms, ascending; the first one begins at or below truncated.
	terms []position
	// sizes of the rows, from truncated+1 on; their sum is bytes.
	sizes []uint32
	bytes uint64

	// recent are the entries from last-len(recent)+1 to last.
	recent      []*raftpb.Entry
	recentBytes uint64
}

// storageError marks a fault of the engine on its way through raft, which can only panic with it.
type storageError struct{ err error }

func (e *storageError) Error() string { return e.err.Error() }
func (e *storageError) Unwrap() error { return e.err }

func (l *raftLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	h := l.start.hard
	return &raftpb.HardState{Term: &h.term, Vote: &h.vote, Commit: &h.commit}, l.start.conf, nil
}

func (l *raftLog) FirstIndex() (uint64, error) { return l.truncated.index + 1, nil }
func (l *raftLog) LastIndex() (uint64, error)  { return l.last, nil }

// Term is answered from memory for every entry of the log.
func (l *raftLog) Term(index uint64) (uint64, error) {
	switch {
	case index < l.truncated.index:
		return 0, raft.ErrCompacted
	case index > l.last:
		return 0, raft.ErrUnavailable
	}
	return l.termAt(index), nil
}

func (l *raftLog) termAt(index uint64) uint64 {
	at, found := slices.BinarySearchFunc(l.terms, index, func(run position, index uint64) int {
		switch {
		case run.index < index:
			return -1
		case run.index > index:
			return 1
		}
		return 0
	})
	if !found {
		at--
	}
	return l.terms[at].term
}

// Entries returns the entries [lo, hi), from memory if lo is there, else from their rows. It may return fewer than fit
// maxSize, but at least one.
func (l *raftLog) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	switch {
	case lo <= l.truncated.index:
		return nil, raft.ErrCompacted
	case hi > l.last+1:
		return nil, raft.ErrUnavailable
	}
	if first := l.firstRecent(); lo >= first {
		return limitSize(slices.Clone(l.recent[lo-first:hi-first]), maxSize), nil
	}
	return l.readRows(lo, hi, maxSize)
}

func (l *raftLog) firstRecent() uint64 { return l.last + 1 - uint64(len(l.recent)) }

func (l *raftLog) readRows(lo, hi, maxSize uint64) (entries []*raftpb.Entry, err error) {
	defer func() {
		if err != nil {
			entries, err = nil, &storageError{fmt.Errorf("read log of shard %d: %w", l.shard, err)}
		}
	}()
	iter, err := l.engine.NewIter(logKey(l.shard, lo), logKey(l.shard, hi))
	if err != nil {
		return nil, err
	}
	size := uint64(0)
	for ok := iter.First(); ok && (size < maxSize || len(entries) == 0); ok = iter.Next() {
		e, err := decodeLogPair(iter.Key(), slices.Clone(iter.Value()))
		if err == nil && e.GetIndex() != lo+uint64(len(entries)) {
			err = fmt.Errorf("row %d is missing", lo+uint64(len(entries)))
		}
		if err != nil {
			return nil, closeAfter(iter, err)
		}
		size += entrySize(e)
		entries = append(entries, e)
	}
	if err := closeAfter(iter, iter.Error()); err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("row %d is missing", lo)
	}
	return limitSize(entries, maxSize), nil
}

// closeAfter closes iter and returns err, or if that is nil the error of closing.
func closeAfter(iter store.Iterator, err error) error {
	if closeErr := iter.Close(); err == nil {
		return closeErr
	}
	return err
}

func decodeLogPair(key, value []byte) (*raftpb.Entry, error) {
	if len(key) != logKeyLen {
		return nil, fmt.Errorf("log key %x has %d bytes", key, len(key))
	}
	index := binary.BigEndian.Uint64(key[5:])
	e, err := decodeLogRow(index, value)
	if err != nil {
		return nil, fmt.Errorf("row %d: %w", index, err)
	}
	return e, nil
}

// append puts consecutive entries at the end of the log, replacing from the first one's index on what stood there.
func (l *raftLog) append(b store.Batch, entries []*raftpb.Entry) {
	first := entries[0].GetIndex()
	if first <= l.truncated.index || first > l.last+1 {
		panic(fmt.Sprintf("replica: shard %d: append at %d to a log of (%d, %d]", l.shard, first, l.truncated.index, l.last))
	}
	oldLast := l.last
	if l.keepsTail {
		entries = entries[min(uint64(len(entries)), oldLast+1-min(first, oldLast+1)):]
		if len(entries) == 0 {
			return
		}
		first = entries[0].GetIndex()
	}
	if first <= oldLast {
		l.cut(first - 1)
	}
	for _, e := range entries {
		l.push(b, e)
	}
	if l.last < oldLast {
		b.DeleteRange(logKey(l.shard, l.last+1), logKey(l.shard, oldLast+1))
	}
}

func (l *raftLog) push(b store.Batch, e *raftpb.Entry) {
	row := encodeLogRow(e)
	b.Set(logKey(l.shard, e.GetIndex()), row)
	l.note(e.GetIndex(), e.GetTerm(), len(row))
	l.recent = append(l.recent, e)
	l.recentBytes += entrySize(e)
}

// note accounts for the row at index, which is the next one.
func (l *raftLog) note(index, term uint64, size int) {
	l.last = index
	l.sizes = append(l.sizes, uint32(size))
	l.bytes += uint64(size)
	if run := l.terms[len(l.terms)-1]; run.term != term {
		l.terms = append(l.terms, position{index: index, term: term})
	}
}

// cut forgets the entries above last; their rows are overwritten or deleted by the caller.
func (l *raftLog) cut(last uint64) {
	for keep := int(last - l.truncated.index); len(l.sizes) > keep; {
		l.bytes -= uint64(l.sizes[len(l.sizes)-1])
		l.sizes = l.sizes[:len(l.sizes)-1]
	}
	for n := l.last - last; n > 0 && len(l.recent) > 0; n-- {
		gone := len(l.recent) - 1
		l.recentBytes -= entrySize(l.recent[gone])
		l.recent[gone] = nil
		l.recent = l.recent[:gone]
	}
	for l.terms[len(l.terms)-1].index > last {
		l.terms = l.terms[:len(l.terms)-1]
	}
	l.last = last
}

// truncate removes the rows up to index, which must be applied.
func (l *raftLog) truncate(b store.Batch, index uint64) {
	b.DeleteRange(logKey(l.shard, l.truncated.index+1), logKey(l.shard, index+1))
	gone := index - l.truncated.index
	for _, size := range l.sizes[:gone] {
		l.bytes -= uint64(size)
	}
	l.sizes = slices.Clone(l.sizes[gone:])
	l.evict(index, 0)
	l.truncated = position{index: index, term: l.termAt(index)}
	for len(l.terms) > 1 && l.terms[1].index <= index {
		l.terms = l.terms[1:]
	}
	b.Set(rowKey(l.shard, fsm.KindTruncated), encodePosition(l.truncated))
}

// evict drops entries up to index from memory while those in memory take more than keepBytes.
func (l *raftLog) evict(index, keepBytes uint64) {
	drop := 0
	for drop < len(l.recent) && l.recentBytes > keepBytes && l.recent[drop].GetIndex() <= index {
		l.recentBytes -= entrySize(l.recent[drop])
		l.recent[drop] = nil
		drop++
	}
	l.recent = l.recent[drop:]
}

// entrySize is about what an entry takes in a message.
func entrySize(e *raftpb.Entry) uint64 { return uint64(len(e.Data)) + 24 }

// limitSize shortens entries to maxSize, but not below one.
func limitSize(entries []*raftpb.Entry, maxSize uint64) []*raftpb.Entry {
	size := uint64(0)
	for i, e := range entries {
		if size += entrySize(e); size > maxSize && i > 0 {
			return entries[:i:i]
		}
	}
	return entries
}
