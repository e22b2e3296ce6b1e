package replica

import (
	"encoding/binary"
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/cespare/xxhash/v2"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// applyWaiting applies committed entries, which are durable in the own log already, in their order. Behind one that every
// replica is to verify its rows at it stops until they are committed: the next turn goes on.
func (c *Core) applyWaiting(r *replica) error {
	if len(r.applies) == 0 {
		return nil
	}
	for len(r.applies) > 0 && !r.verifying {
		if err := c.applyEntries(r, r.applies[0]); err != nil {
			return err
		}
		if len(r.applies[0].Entries) == 0 {
			r.applies = r.applies[1:]
		}
	}
	if len(r.applies) == 0 {
		r.applies = nil
		r.log.evict(r.applied.index, c.keepInMemory(r))
	}
	return nil
}

// applyEntries applies what is left of the entries of m, and drops them from it.
func (c *Core) applyEntries(r *replica, m *raftpb.Message) error {
	for len(m.Entries) > 0 && !r.verifying {
		e := m.Entries[0]
		m.Entries = m.Entries[1:]
		if e.GetIndex() != r.applied.index+1 {
			panic(fmt.Sprintf("replica: shard %d: entry %d handed out after %d", r.shard, e.GetIndex(), r.applied.index))
		}
		r.state.begin(r.applied.chain, e)
		verifies, err := c.applyEntry(r, e)
		if err != nil {
			return fmt.Errorf("apply entry %d: %w", e.GetIndex(), err)
		}
		r.applied = appliedState{position: position{index: e.GetIndex(), term: e.GetTerm()}, chain: r.state.sum()}
		r.appliedMoved = true
		c.requestVerifies(r, verifies)
	}
	if len(m.Entries) > 0 {
		return nil
	}
	for _, resp := range m.GetResponses() {
		r.stepLocal(resp)
	}
	return nil
}

// applyEntry applies e and returns the verifications that it asks for.
func (c *Core) applyEntry(r *replica, e *raftpb.Entry) (verifies []string, err error) {
	switch e.GetType() {
	case raftpb.EntryConfChange, raftpb.EntryConfChangeV2:
		return nil, c.applyConfChange(r, e)
	}
	if len(e.Data) == 0 {
		return nil, nil
	}
	mine := r.takeFlight(e)
	entry, err := decodeEntry(mine, e)
	if err != nil {
		return nil, err
	}
	r.everywhere = max(r.everywhere, entry.GetEverywhere())
	var results []fsm.Result
	var effects fsm.Effects
	err = guard(r.rows, func() { results, effects = r.machine.Apply(&r.state, e.GetIndex(), entry) })
	if err != nil {
		r.flight = mine // its callers are still to be answered
		return nil, err
	}
	if len(results) != len(entry.Commands) {
		panic(fmt.Sprintf("replica: shard %d: %d results of %d commands", r.shard, len(results), len(entry.Commands)))
	}
	c.counters.EntriesApplied++
	c.counters.CommandsApplied += uint64(len(results))
	if r.lead != nil && r.lead.established {
		c.tell(Event{Kind: Applied, Shard: r.shard, Term: r.lead.term, Effects: &effects})
	}
	if mine == nil {
		return effects.Verifies, nil
	}
	for i, p := range mine.proposals {
		c.out.Results = append(c.out.Results, Delivery{done: p.Done, result: results[i]})
	}
	// They share the queue's memory, which may live on.
	clear(mine.proposals)
	if mine.leaderStart {
		r.lead.started = true
		c.establish(r)
	}
	return effects.Verifies, nil
}

// guard runs a piece of a state machine and returns as an error what stops the shard without being our own mistake: rows
// that could not be read, are corrupt, or are a newer binary's. What a machine computes after a failed read means nothing,
// a panic included.
func guard(rows *store.Shard, fn func()) (err error) {
	defer func() {
		p := recover()
		if ioErr := rows.Err(); ioErr != nil {
			err = ioErr
			return
		}
		switch p := p.(type) {
		case nil:
		case fsm.CorruptRow:
			err = p
		case fsm.UnsupportedLevel:
			err = p
		default:
			panic(p)
		}
	}()
	fn()
	return nil
}

// decodeEntry spares the leader the decoding of what it has just encoded.
func decodeEntry(mine *flight, e *raftpb.Entry) (*storagev1.Entry, error) {
	if mine != nil {
		return mine.entry, nil
	}
	entry := &storagev1.Entry{}
	if err := entry.UnmarshalVTUnsafe(e.Data); err != nil {
		return nil, fmt.Errorf("decode commands: %w", err)
	}
	return entry, nil
}

func (c *Core) applyConfChange(r *replica, e *raftpb.Entry) error {
	var change raftpb.ConfChangeI
	var err error
	if e.GetType() == raftpb.EntryConfChange {
		cc := &raftpb.ConfChange{}
		change, err = cc, proto.Unmarshal(e.Data, cc)
	} else {
		cc := &raftpb.ConfChangeV2{}
		change, err = cc, proto.Unmarshal(e.Data, cc)
	}
	if err != nil {
		return fmt.Errorf("decode configuration change: %w", err)
	}
	r.noteConf(r.node.ApplyConfChange(change), change.AsV2().GetContext())
	r.identityMoved = true
	return nil
}

// keepInMemory is how many bytes of applied entries stay in memory for peers that catch up.
func (c *Core) keepInMemory(r *replica) uint64 {
	if r.onlyVoter() && len(r.conf.Learners) == 0 {
		return 0
	}
	return c.cfg.LogCacheBytes / uint64(len(c.all))
}

// recorder is the state as a machine sees it while an entry is applied. It takes what is written into the hash chain.
type recorder struct {
	rows *store.Shard
	hash xxhash.Digest
}

var _ fsm.State = (*recorder)(nil)

// begin starts the link of entry e.
func (s *recorder) begin(chain uint64, e *raftpb.Entry) {
	s.hash.Reset()
	s.number(chain)
	s.number(e.GetIndex())
	s.number(e.GetTerm())
	s.bytes(e.Data)
}

func (s *recorder) sum() uint64 { return s.hash.Sum64() }

func (s *recorder) Get(key []byte) ([]byte, bool) { return s.rows.Get(key) }

func (s *recorder) Scan(start, end []byte, fn func(key, value []byte) bool) {
	s.rows.Scan(start, end, fn)
}

func (s *recorder) Set(key, value []byte) {
	s.bytes(key)
	s.bytes(value)
	s.rows.Set(key, value)
}

func (s *recorder) Delete(key []byte) {
	s.bytes(key)
	s.number(1)
	s.rows.Delete(key)
}

func (s *recorder) DeleteRange(start, end []byte) {
	s.bytes(start)
	s.bytes(end)
	s.number(2)
	s.rows.DeleteRange(start, end)
}

func (s *recorder) number(v uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	_, _ = s.hash.Write(b[:]) // never fails
}

func (s *recorder) bytes(v []byte) {
	s.number(uint64(len(v)))
	_, _ = s.hash.Write(v) // never fails
}
