package replica

import (
	"encoding/binary"

	"go.etcd.io/raft/v3/raftpb"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// flight is the entry of this leadership that is proposed and not yet applied; there is at most one. It keeps the
// commands decoded, so that the leader need not decode its own entry.
type flight struct {
	term uint64
	// index is 0 until raft has placed the entry in the log.
	index       uint64
	entry       *storagev1.Entry
	proposals   []Proposal
	leaderStart bool
	// relaxed: all of the proposals are.
	relaxed bool
}

// proposeNext proposes the shard's next entry, unless one is in flight: first the leadership's own, then, once it is
// established, what waits in the queue.
func (c *Core) proposeNext(r *replica, stampMS int64) {
	r.queue.fresh.stamp(stampMS)
	if r.flight != nil || r.transferTicks > 0 || c.stopping {
		return
	}
	if !r.lead.startProposed {
		c.proposeLeaderStart(r, stampMS)
		return
	}
	if !r.lead.established {
		return
	}
	cut := r.queue.next(c.freshShare)
	if cut.commands() == 0 {
		return
	}
	batch := r.queue.proposals(cut)
	f := &flight{term: r.lead.term, proposals: batch}
	f.entry = &storagev1.Entry{
		Term: f.term, StampMs: stampMS, Commands: make([]*storagev1.Command, len(batch)), Everywhere: r.matched(),
	}
	data := appendEntryHead(make([]byte, 0, cut.bytes()+len(batch)*4+32), f.term, stampMS)
	f.relaxed = r.onlyVoter() && len(r.conf.Learners) == 0
	for i, p := range batch {
		f.entry.Commands[i] = p.Command
		f.relaxed = f.relaxed && p.Relaxed
		data = appendEntryCommand(data, p.Encoded)
	}
	data = appendEntryTail(data, f.entry.Everywhere)
	if !r.propose(f, data) {
		return
	}
	for i := range batch {
		batch[i].Encoded = nil
	}
	r.queue.drop(cut)
	c.queuedBytes -= cut.bytes()
	c.freshRoom -= cut.freshBytes
	c.countEntry(len(batch), len(data))
}

func (c *Core) proposeLeaderStart(r *replica, stampMS int64) {
	start := &storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: r.lead.term, Store: c.cfg.Store}}
	f := &flight{term: r.lead.term, leaderStart: true}
	f.entry = &storagev1.Entry{Term: f.term, StampMs: stampMS, Commands: []*storagev1.Command{start}}
	data, err := f.entry.MarshalVT()
	if err != nil {
		panic(err) // our own message
	}
	r.lead.startProposed = r.propose(f, data)
}

func (c *Core) countEntry(commands, bytes int) {
	c.counters.EntriesProposed++
	c.counters.CommandsProposed += uint64(commands)
	c.counters.BytesProposed += uint64(bytes)
	if c.cfg.Hooks.Entry != nil {
		c.cfg.Hooks.Entry(commands, bytes)
	}
}

// propose is false if raft does not take it: it has stepped down, which the next Ready tells, or hands over leadership.
func (r *replica) propose(f *flight, data []byte) bool {
	if err := r.node.Propose(data); err != nil {
		return false
	}
	r.flight = f
	return true
}

// placeFlight finds the index of the flight among entries that are appended. Entries of this term that carry commands
// are this leadership's, in the order they were proposed.
func (r *replica) placeFlight(entries []*raftpb.Entry) {
	f := r.flight
	if f == nil || f.index != 0 {
		return
	}
	for _, e := range entries {
		if e.GetTerm() == f.term && e.GetType() == raftpb.EntryNormal && len(e.Data) > 0 {
			f.index = e.GetIndex()
			return
		}
	}
}

// appendsRelaxed says whether entries are the flight, and that need not wait for the disk.
func (r *replica) appendsRelaxed(entries []*raftpb.Entry) bool {
	return r.flight != nil && r.flight.relaxed && len(entries) == 1 && r.flight.index == entries[0].GetIndex()
}

// takeFlight returns the flight if e is its entry.
func (r *replica) takeFlight(e *raftpb.Entry) *flight {
	f := r.flight
	if f == nil || f.index != e.GetIndex() || f.term != e.GetTerm() {
		return nil
	}
	r.flight = nil
	return f
}

// failFlight answers the callers of an entry whose fate is not known.
func (c *Core) failFlight(r *replica) {
	if r.flight == nil {
		return
	}
	for _, p := range r.flight.proposals {
		c.counters.Ambiguous++
		c.out.Results = append(c.out.Results, Delivery{done: p.Done, err: ErrAmbiguous})
	}
	r.flight = nil
}

// refuseQueue answers the callers of commands that were never proposed.
func (c *Core) refuseQueue(r *replica, err error) {
	for _, l := range []lane{r.queue.accepted, r.queue.fresh} {
		for _, p := range l.waiting {
			c.refuse(p.Proposal, err)
		}
		c.queuedBytes -= l.bytes
	}
	r.queue = queue{}
}

// appendEntryHead, appendEntryCommand and appendEntryTail write a storagev1.Entry around commands that are encoded already;
// the bytes are those MarshalVT would make.
func appendEntryHead(b []byte, term uint64, stampMS int64) []byte {
	b = binary.AppendUvarint(append(b, 1<<3), term)
	if stampMS == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, 2<<3), uint64(stampMS))
}

func appendEntryCommand(b, command []byte) []byte {
	b = binary.AppendUvarint(append(b, 3<<3|2), uint64(len(command)))
	return append(b, command...)
}

func appendEntryTail(b []byte, everywhere uint64) []byte {
	if everywhere == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, 4<<3), everywhere)
}
