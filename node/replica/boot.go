package replica

import (
	"errors"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// A new group's log begins behind this position, so that no replica ever mistakes an empty disk for an empty group.
var groupStart = position{index: 10, term: 5}

// Seed describes a replica to be written by Bootstrap. Every store of a group writes the same Voters and its own ID.
type Seed struct {
	Shard  uint32
	ID     uint64
	Voters []uint64
}

// ReplicaState is a replica as it stands on disk, checked for consistency. It comes from Load and goes to New.
type ReplicaState struct {
	Shard uint32
	// ID is the replica's own id in its group, never reused.
	ID uint64
	// Stores names the stores of the group's replicas by their ids, as far as they were known when it ran last; see Core.Want.
	Stores map[uint64]string

	conf    *raftpb.ConfState
	gen     uint64
	hard    hardState
	applied appliedState
	log     *raftLog
}

// Applied is the index up to which the rows of the shard's state stand.
func (s *ReplicaState) Applied() uint64 { return s.applied.index }

// Conf is the group's configuration as applied; empty: the replica waits for a snapshot.
func (s *ReplicaState) Conf() Conf { return confOf(s.conf) }

// Bootstrap writes the initial rows of new replicas and returns when they are durable. A shard that already stands on this
// store is an error, and then nothing is written.
func Bootstrap(engine store.Engine, seeds []Seed) error {
	b := engine.NewBatch()
	for _, s := range seeds {
		if !slices.Contains(s.Voters, s.ID) || s.ID == 0 {
			return fmt.Errorf("bootstrap shard %d: replica %d is not among voters %v", s.Shard, s.ID, s.Voters)
		}
		_, exists, err := engine.Get(rowKey(s.Shard, fsm.KindConfState))
		if err != nil {
			return fmt.Errorf("bootstrap shard %d: %w", s.Shard, err)
		}
		if exists {
			return fmt.Errorf("bootstrap shard %d: it already stands on this store", s.Shard)
		}
		s.write(b)
	}
	wait, err := engine.Commit(b, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return fmt.Errorf("bootstrap shards: %w", err)
	}
	return nil
}

func (s Seed) write(b store.Batch) {
	conf := &raftpb.ConfState{Voters: slices.Clone(s.Voters)}
	b.Set(rowKey(s.Shard, fsm.KindConfState), encodeIdentity(identity{id: s.ID, conf: conf, gen: 1}))
	b.Set(rowKey(s.Shard, fsm.KindHardState), encodeHardState(hardState{term: groupStart.term}))
	b.Set(rowKey(s.Shard, fsm.KindApplied), encodeApplied(appliedState{position: groupStart}))
	b.Set(rowKey(s.Shard, fsm.KindTruncated), encodePosition(groupStart))
}

// Load reads a shard's replica; ok is false if none stands on this store. Of one whose removal a crash interrupted it deletes
// the rest. An error names the row that is missing, cannot be read or contradicts another one.
func Load(engine store.Engine, shard uint32) (s ReplicaState, ok bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("load replica of shard %d: %w", shard, err)
		}
	}()
	row, ok, err := engine.Get(rowKey(shard, fsm.KindConfState))
	if err != nil || !ok {
		return ReplicaState{}, false, err
	}
	self, err := decodeIdentity(row)
	if err != nil {
		return ReplicaState{}, false, fmt.Errorf("configuration: %w", err)
	}
	next, err := loadTombstone(engine, shard)
	if err != nil {
		return ReplicaState{}, false, fmt.Errorf("tombstone: %w", err)
	}
	if self.id < next {
		return ReplicaState{}, false, sweep(engine, shard)
	}
	s = ReplicaState{Shard: shard, ID: self.id, conf: self.conf, gen: self.gen, Stores: self.stores}
	if s.hard, err = loadRow(engine, shard, fsm.KindHardState, decodeHardState); err != nil {
		return ReplicaState{}, false, fmt.Errorf("hard state: %w", err)
	}
	if s.applied, err = loadRow(engine, shard, fsm.KindApplied, decodeApplied); err != nil {
		return ReplicaState{}, false, fmt.Errorf("applied index: %w", err)
	}
	truncated, err := loadRow(engine, shard, fsm.KindTruncated, decodePosition)
	if err != nil {
		return ReplicaState{}, false, fmt.Errorf("truncated index: %w", err)
	}
	if s.log, err = loadLog(engine, shard, truncated); err != nil {
		return ReplicaState{}, false, err
	}
	s.hard.commit = max(s.applied.index, s.hard.commit)
	if err := s.check(); err != nil {
		return ReplicaState{}, false, err
	}
	s.log.start.hard, s.log.start.conf = s.hard, s.conf
	return s, true, nil
}

func loadRow[T any](source store.Source, shard uint32, kind byte, decode func([]byte) (T, error)) (T, error) {
	row, ok, err := source.Get(rowKey(shard, kind))
	if err == nil && !ok {
		err = errors.New("row is missing")
	}
	if err != nil {
		var none T
		return none, err
	}
	return decode(row)
}

// loadLog reads what the log holds above truncated. The entries themselves stay on disk until raft asks for them.
func loadLog(engine store.Engine, shard uint32, truncated position) (*raftLog, error) {
	l := &raftLog{engine: engine, shard: shard, truncated: truncated, last: truncated.index, terms: []position{truncated}}
	iter, err := engine.NewIter(logKey(shard, truncated.index+1), logKeyEnd(shard))
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	for ok := iter.First(); ok; ok = iter.Next() {
		e, err := decodeLogPair(iter.Key(), iter.Value())
		switch {
		case err != nil:
		case e.GetIndex() != l.last+1:
			err = fmt.Errorf("row %d is missing, the next one is %d", l.last+1, e.GetIndex())
		case e.GetTerm() < l.termAt(l.last):
			err = fmt.Errorf("row %d has term %d, the one before it %d", e.GetIndex(), e.GetTerm(), l.termAt(l.last))
		}
		if err != nil {
			return nil, fmt.Errorf("log: %w", closeAfter(iter, err))
		}
		l.note(e.GetIndex(), e.GetTerm(), len(iter.Value()))
	}
	if err := closeAfter(iter, iter.Error()); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return l, nil
}

// check compares the rows with each other.
func (s *ReplicaState) check() error {
	l := s.log
	switch {
	case s.ID == 0:
		return errors.New("replica id is 0")
	case len(s.conf.Voters) == 0 && s.applied.index > 0:
		return errors.New("configuration has no voters")
	case s.applied.index < l.truncated.index:
		return fmt.Errorf("log is truncated at %d, above the applied index %d", l.truncated.index, s.applied.index)
	case s.applied.index > l.last:
		return fmt.Errorf("applied index is %d, but the log ends at %d", s.applied.index, l.last)
	case s.applied.term != l.termAt(s.applied.index):
		return fmt.Errorf("applied index %d has term %d, in the log %d", s.applied.index, s.applied.term, l.termAt(s.applied.index))
	case s.hard.commit > l.last:
		return fmt.Errorf("hard state has commit index %d, but the log ends at %d", s.hard.commit, l.last)
	case s.hard.term < l.termAt(l.last):
		return fmt.Errorf("hard state has term %d, the last log row %d has %d", s.hard.term, l.last, l.termAt(l.last))
	}
	return nil
}
