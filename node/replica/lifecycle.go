package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// kindTombstone is the store's own row, under shard 0, that says below which id its replicas of a shard are gone for good.
const kindTombstone = 'X'

var (
	// ErrReplicaStands: a replica of the shard stands on this store, or is still being removed.
	ErrReplicaStands = errors.New("a replica of the shard stands on this store")
	// ErrReplicaGone: a replica of this id, or of a higher one, was on this store and has been removed. Ids are not reused.
	ErrReplicaGone = errors.New("the replica has been removed from this store")
)

func tombstoneKey(shard uint32) []byte {
	return store.AppendKey(nil, 0, binary.BigEndian.AppendUint32([]byte{kindTombstone}, shard))
}

func encodeTombstone(next uint64) []byte { return binary.AppendUvarint([]byte{codecVersion}, next) }

// loadTombstone returns the lowest id a replica of the shard may have on this store; 0: any.
func loadTombstone(source store.Source, shard uint32) (next uint64, err error) {
	row, ok, err := source.Get(tombstoneKey(shard))
	if err != nil || !ok {
		return 0, err
	}
	r := openRow(row)
	next = r.uvarint()
	return next, r.finish()
}

// CreateLearner writes an empty replica that knows nothing of its group, and returns when it is durable. It is to be made
// from a record of the control plane that lists it, of generation gen, never from a message. Its group's leader fills it by
// a snapshot. It may be removed again when a configuration of at least that generation (Status.Gen) has been published
// that is without it. ErrReplicaStands and ErrReplicaGone say why it may not be made.
func CreateLearner(engine store.Engine, shard uint32, id, gen uint64) error {
	if err := createLearner(engine, shard, id, gen, Faults{}); err != nil {
		return fmt.Errorf("create replica %d of shard %d: %w", id, shard, err)
	}
	return nil
}

func createLearner(engine store.Engine, shard uint32, id, gen uint64, faults Faults) error {
	next, err := loadTombstone(engine, shard)
	switch {
	case err != nil:
		return err
	case id == 0:
		return errors.New("replica id is 0")
	case id < next && !faults.ReusedReplicaID:
		return ErrReplicaGone
	}
	_, stands, err := engine.Get(rowKey(shard, fsm.KindConfState))
	switch {
	case err != nil:
		return err
	case stands:
		return ErrReplicaStands
	}
	b := engine.NewBatch()
	if faults.ReusedReplicaID {
		b.Delete(tombstoneKey(shard))
	}
	b.Set(rowKey(shard, fsm.KindConfState), encodeIdentity(identity{id: id, conf: &raftpb.ConfState{}, gen: gen}))
	b.Set(rowKey(shard, fsm.KindHardState), encodeHardState(hardState{}))
	b.Set(rowKey(shard, fsm.KindApplied), encodeApplied(appliedState{}))
	b.Set(rowKey(shard, fsm.KindTruncated), encodePosition(position{}))
	wait, err := engine.Commit(b, true)
	if err != nil {
		return err
	}
	return wait()
}

// LoadAll loads every replica that stands on the store, in order of shards.
func LoadAll(engine store.Engine) ([]ReplicaState, error) {
	var states []ReplicaState
	for next := uint32(1); next <= store.MaxShard; next++ {
		shard, ok, err := nextShard(engine, next)
		if err != nil {
			return nil, fmt.Errorf("load replicas: %w", err)
		}
		if !ok {
			break
		}
		next = shard
		s, stands, err := Load(engine, shard)
		if err != nil {
			return nil, err
		}
		if stands {
			states = append(states, s)
		}
	}
	return states, nil
}

// nextShard is the first shard from from on that has rows.
func nextShard(engine store.Engine, from uint32) (shard uint32, ok bool, err error) {
	start, _ := store.Span(from)
	iter, err := engine.NewIter(start, nil)
	if err != nil {
		return 0, false, err
	}
	if iter.First() {
		shard, _, ok = store.SplitKey(iter.Key())
	}
	return shard, ok, closeAfter(iter, iter.Error())
}

// sweep deletes what a removal left behind when a crash came between its tombstone and its end.
func sweep(engine store.Engine, shard uint32) error {
	b := engine.NewBatch()
	b.DeleteRange(store.Span(shard))
	if _, err := engine.Commit(b, false); err != nil {
		return fmt.Errorf("sweep removed replica: %w", err)
	}
	return nil
}

// abandonImports returns the received snapshots that nobody will install any more, after the last turn.
func (c *Core) abandonImports() []store.Import {
	rows := c.out.Aborts
	for _, in := range c.out.Installs {
		rows = append(rows, in.Rows)
	}
	for _, turn := range c.unsynced {
		for _, r := range turn.installs {
			rows = append(rows, r.installing.got.rows)
		}
	}
	for _, r := range c.all {
		if r.incoming != nil {
			rows = append(rows, r.incoming.rows)
		}
	}
	return rows
}

// removal is a replica on its way out: its tombstone is written and synced, then its rows are deleted.
type removal struct {
	shard uint32
	next  uint64
	// written and durable say how far the tombstone is.
	written, durable bool
	done             []func(error)
}

// Add takes in a replica that has been created at run time, as Load returned it.
func (c *Core) Add(s ReplicaState) error {
	if c.byID[s.Shard] != nil || c.removalOf(s.Shard) != nil {
		return fmt.Errorf("add replica of shard %d: %w", s.Shard, ErrReplicaStands)
	}
	if c.stopping {
		return fmt.Errorf("add replica of shard %d: %w", s.Shard, ErrStopped)
	}
	r, err := openReplica(c, s)
	if err != nil {
		return fmt.Errorf("add replica of shard %d: %w", s.Shard, err)
	}
	c.byID[s.Shard] = r
	c.all = append(c.all, r)
	slices.SortFunc(c.all, byShard)
	c.shape++
	c.touch(r)
	return nil
}

// Remove destroys the shard's replica: its tombstone is synced, then its rows are deleted. Callers that wait for it are
// answered; done is told when the rows are gone.
func (c *Core) Remove(shard uint32, done func(error)) {
	if gone := c.removalOf(shard); gone != nil {
		gone.done = append(gone.done, done)
		return
	}
	r := c.byID[shard]
	if r == nil {
		c.answerRead(done, ErrNoReplica)
		return
	}
	gone := &removal{shard: shard, next: r.id + 1, done: []func(error){done}}
	c.removals = append(c.removals, gone)
	r.gone = true
	r.rows.Release()
	delete(c.byID, shard)
	c.all = slices.DeleteFunc(c.all, func(other *replica) bool { return other == r })
	c.dirty = slices.DeleteFunc(c.dirty, func(other *replica) bool { return other == r })
	c.shape++
	c.stopStanding(r)
	c.failFlight(r)
	c.refuseQueue(r, ErrNoReplica)
	c.failReads(r, ErrNoReplica)
	if r.lead != nil {
		c.tell(Event{Kind: SteppedDown, Shard: shard, Term: r.lead.term, WasEstablished: r.lead.established})
		r.lead = nil
	}
	c.dropTransfers(r)
}

func (c *Core) removalOf(shard uint32) *removal {
	for _, gone := range c.removals {
		if gone.shard == shard {
			return gone
		}
	}
	return nil
}

// driveRemovals writes the tombstones of replicas that go, and deletes the rows of those whose tombstones are durable and
// whose rows nobody writes any more.
func (c *Core) driveRemovals(w *write) error {
	c.removals = slices.DeleteFunc(c.removals, func(gone *removal) bool {
		if !gone.durable || c.installs[gone.shard] {
			return false
		}
		w.batch.DeleteRange(store.Span(gone.shard))
		for _, done := range gone.done {
			c.answerRead(done, nil)
		}
		return true
	})
	for _, gone := range c.removals {
		if gone.written {
			continue
		}
		gone.written = true
		next, err := loadTombstone(c.engine, gone.shard)
		if err != nil {
			return fmt.Errorf("read tombstone of shard %d: %w", gone.shard, err)
		}
		w.batch.Set(tombstoneKey(gone.shard), encodeTombstone(max(next, gone.next)))
		w.tombstones = append(w.tombstones, gone)
	}
	return nil
}

// removalsWait says that a turn has something to do for them.
func (c *Core) removalsWait() bool {
	return slices.ContainsFunc(c.removals, func(gone *removal) bool {
		return !gone.written || gone.durable && !c.installs[gone.shard]
	})
}
