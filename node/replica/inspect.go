package replica

import (
	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// What stands in this file is for whoever checks a whole cluster's invariants from outside: simulations call it, nothing else
// does.

// Inspection is how a shard's replica stands.
type Inspection struct {
	Status
	// AppliedTerm and Chain belong to Status.Applied: equal indexes have equal terms and chains on all replicas.
	AppliedTerm uint64
	Chain       uint64
}

// Inspect says how the shard's replica stands; ok is false if there is none here.
func (c *Core) Inspect(shard uint32) (at Inspection, ok bool) {
	r := c.byID[shard]
	if r == nil {
		return Inspection{}, false
	}
	return Inspection{Status: c.statusOf(r), AppliedTerm: r.applied.term, Chain: r.applied.chain}, true
}

// LogTerm is the term of the entry at index; ok is false if the shard's log here does not know it, or not any more.
func (c *Core) LogTerm(shard uint32, index uint64) (term uint64, ok bool) {
	r := c.byID[shard]
	if r == nil || index < r.log.truncated.index || index > r.log.last {
		return 0, false
	}
	return r.log.termAt(index), true
}

// CreateLearner is the function of that name, on this Core's engine and with its faults.
func (c *Core) CreateLearner(shard uint32, id, gen uint64) error {
	return createLearner(c.engine, shard, id, gen, c.cfg.Faults)
}

// Chain is the hash chain at Applied.
func (s *ReplicaState) Chain() uint64 { return s.applied.chain }

// Term is the highest term the replica has seen.
func (s *ReplicaState) Term() uint64 { return s.hard.term }

// Vote is whom the replica voted for at Term; 0: nobody.
func (s *ReplicaState) Vote() uint64 { return s.hard.vote }

// Holds says whether rows hold the entry at index of a shard: in the log, with the given term unless that is 0, or applied.
func Holds(rows store.Source, shard uint32, index, term uint64) (bool, error) {
	row, ok, err := rows.Get(logKey(shard, index))
	if err != nil {
		return false, err
	}
	if ok {
		e, err := decodeLogRow(index, row)
		return err == nil && (term == 0 || e.GetTerm() == term), err
	}
	row, ok, err = rows.Get(rowKey(shard, fsm.KindApplied))
	if err != nil || !ok {
		return false, err
	}
	applied, err := decodeApplied(row)
	return err == nil && applied.index >= index, err
}

// Promise is what a message between replicas binds its sender to. Appended: the entry at Index is on its disk. Voted: it has
// voted for the addressee at Term.
type Promise struct {
	From, To, Term, Index uint64
	Appended, Voted       bool
}

// Promise says what m promises; ok is false for messages that may be of any term.
func (m PeerMessage) Promise() (p Promise, ok bool) {
	p = Promise{From: m.Message.GetFrom(), To: m.Message.GetTo(), Term: m.Message.GetTerm(), Index: m.Message.GetIndex()}
	accepted := !m.Message.GetReject()
	switch m.Message.GetType() {
	case raftpb.MsgVote, raftpb.MsgApp, raftpb.MsgHeartbeat:
		return p, true
	case raftpb.MsgAppResp:
		p.Appended = accepted
		return p, true
	case raftpb.MsgVoteResp:
		p.Voted = accepted
		return p, true
	}
	return Promise{}, false
}

// Kept says whether synced rows of the sender's shard are as an acknowledgement or a vote on its way says.
//
// Those of a later term are: what a replica does in one term comes before what it does in a later one, and the disk keeps that
// order. The entry may be gone by then, as a later leader has overwritten it; and when the appends of both came in one turn, it
// never was on the disk by itself. Nobody can tell this from an entry that was synced, acknowledged slowly, and overwritten
// meanwhile.
func (p Promise) Kept(rows store.Source, shard uint32) (bool, error) {
	hard, err := loadRow(rows, shard, fsm.KindHardState, decodeHardState)
	switch {
	case err != nil || hard.term < p.Term:
		return false, err
	case hard.term > p.Term:
		return true, nil
	case p.Voted && hard.vote != p.To:
		return false, nil
	case p.Appended:
		return Holds(rows, shard, p.Index, 0)
	}
	return true, nil
}
