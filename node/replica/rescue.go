package replica

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// rescueTerms is by how much a rescue raises a group's term: what replicas send that were taken for lost is of an older one,
// whatever elections they hold among themselves meanwhile.
const rescueTerms = 1000

// Sole is a replica that is to be its group's only one.
type Sole struct {
	State ReplicaState
	// Store is the one it stands on, Gen the generation under which it is wanted as the only one.
	Store string
	Gen   uint64
	// Epoch is the highest one of the shard that the control plane has heard of.
	Epoch uint64
}

// LogEnd is the index of the log's last entry, Commit the highest one that is known here to be committed.
func (s *ReplicaState) LogEnd() uint64 { return s.log.last }
func (s *ReplicaState) Commit() uint64 { return s.hard.commit }

// Gen is as Status has it.
func (s *ReplicaState) Gen() uint64 { return s.gen }

// LastID is the highest replica id of the group that is known here.
func (s *ReplicaState) LastID() uint64 {
	ids := slices.Concat(s.conf.GetVoters(), s.conf.GetLearners(), s.conf.GetVotersOutgoing(), slices.Collect(maps.Keys(s.Stores)))
	return max(s.ID, slices.Max(append(ids, 0)))
}

// CanBeSole says why a replica cannot stand for its whole group. Only a voter can: what the group has acknowledged was on a
// majority of those, so that it has as much of it as a single disk can have.
func (s *ReplicaState) CanBeSole() error {
	switch {
	case len(s.conf.GetVoters()) == 0:
		return errors.New("its replica here was never filled")
	case slices.Contains(s.conf.GetLearners(), s.ID):
		return errors.New("its replica here is a learner")
	case !slices.Contains(s.conf.GetVoters(), s.ID) && !slices.Contains(s.conf.GetVotersOutgoing(), s.ID):
		return errors.New("its replica here is out of the group")
	}
	return nil
}

// MakeSole makes replicas the only voters of their groups, all of them at once, and returns when that is durable. What their
// logs hold counts as committed from then on, but for changes of the configuration that have not been applied: those name
// replicas that are lost. Nothing may run on the store, and nothing of it can be undone: what other replicas of the groups
// have beyond these logs is lost. Repeated, it raises the terms once more and changes nothing else.
func MakeSole(engine store.Engine, soles []Sole) error {
	b := engine.NewBatch()
	for _, s := range soles {
		if err := makeSole(b, s); err != nil {
			return fmt.Errorf("make replica %d the only one of shard %d: %w", s.State.ID, s.State.Shard, err)
		}
	}
	wait, err := engine.Commit(b, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return fmt.Errorf("make replicas the only ones of their shards: %w", err)
	}
	return nil
}

// BeginAnew gives up what stands of a shard and makes a group of one replica in its place, whose id none had before and whose
// state is the rows that state writes; for MakeSole. It returns when that is durable. Nothing may run on the store.
func BeginAnew(engine store.Engine, shard uint32, id uint64, state func(store.Batch)) error {
	next, err := loadTombstone(engine, shard)
	if err == nil && id < next {
		err = ErrReplicaGone
	}
	if err != nil {
		return fmt.Errorf("begin shard %d anew: %w", shard, err)
	}
	b := engine.NewBatch()
	b.DeleteRange(store.Span(shard))
	b.Set(tombstoneKey(shard), encodeTombstone(id))
	Seed{Shard: shard, ID: id, Voters: []uint64{id}}.write(b)
	state(b)
	wait, err := engine.Commit(b, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return fmt.Errorf("begin shard %d anew: %w", shard, err)
	}
	return nil
}

func makeSole(b store.Batch, s Sole) error {
	self := s.State
	if err := self.CanBeSole(); err != nil {
		return err
	}
	if s.Gen < self.gen {
		return fmt.Errorf("generation %d is older than its own, %d", s.Gen, self.gen)
	}
	hard := self.hard
	hard.term, hard.vote = max(hard.term, s.Epoch)+rescueTerms, 0
	b.Set(rowKey(self.Shard, fsm.KindHardState), encodeHardState(hard))
	b.Set(rowKey(self.Shard, fsm.KindConfState), encodeIdentity(identity{
		id: self.ID, gen: s.Gen, stores: map[uint64]string{self.ID: s.Store},
		conf: &raftpb.ConfState{Voters: []uint64{self.ID}},
	}))
	return self.voidChanges(b)
}

// voidChanges puts empty entries in the place of the changes of the configuration that are still to be applied.
func (s *ReplicaState) voidChanges(b store.Batch) error {
	for next := s.applied.index + 1; next <= s.log.last; {
		entries, err := s.log.Entries(next, s.log.last+1, maxMessageBytes)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.GetType() != raftpb.EntryNormal {
				void := newEntry(raftpb.EntryNormal, e.GetTerm(), e.GetIndex(), nil)
				b.Set(logKey(s.Shard, e.GetIndex()), encodeLogRow(void))
			}
		}
		next += uint64(len(entries))
	}
	return nil
}
