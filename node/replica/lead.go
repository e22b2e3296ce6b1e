package replica

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// leaseState is what the control plane has said of a leadership.
type leaseState uint8

const (
	// leaseWaiting: it has been asked; establishment waits for the answer.
	leaseWaiting leaseState = iota
	leaseHeld
	// leaseNone: it did not answer in time; the leader goes on under raft alone and asks again.
	leaseNone
)

// maxFloor is the highest epoch a leadership can be raised above. Nothing but a mistake gets there; such a shard stays
// without an established leader.
const maxFloor = 1 << 62

// leadership is one term in which raft made this replica the leader.
type leadership struct {
	term  uint64
	lease leaseState
	// ticks since it began, and when the control plane was last asked.
	ticks, askedAt int
	// heard is for each replica the last of the ticks at which raft had heard of it. raft forgets that with each election timeout.
	heard map[uint64]int
	// startProposed and started: its first entry is in the log, is applied.
	startProposed, started bool
	// established: it serves.
	established bool
}

// noteSoftState follows raft's elections.
func (c *Core) noteSoftState(r *replica, s raft.SoftState) {
	r.soft = s
	switch {
	case s.Lead != raft.None:
		c.stopStanding(r)
	case !r.campaigned && (s.RaftState == raft.StatePreCandidate || s.RaftState == raft.StateCandidate):
		c.standAgain(r)
	}
	r.campaigned = false
	leads := s.RaftState == raft.StateLeader
	if r.lead != nil && (!leads || r.lead.term != r.hard.term) {
		c.stepDown(r)
	}
	if leads && r.lead == nil {
		c.takeLead(r)
	}
}

func (c *Core) takeLead(r *replica) {
	r.lead = &leadership{term: r.hard.term, heard: map[uint64]int{}}
	r.members.told, r.members.changeIn, r.members.caughtUp, r.members.seals = 0, 0, nil, 0
	r.campaignIn = -1
	r.skipTicks = (heartbeatTicks - c.ticks%heartbeatTicks) % heartbeatTicks
	c.counters.LeadershipsGained++
	if r.lead.term <= r.floor {
		c.giveUp(r)
		return
	}
	c.tell(Event{Kind: LeaseWanted, Shard: r.shard, Term: r.lead.term})
}

// stepDown ends this replica's leadership: what was proposed is ambiguous, what was not is refused.
func (c *Core) stepDown(r *replica) {
	was := r.lead
	r.lead = nil
	r.transferTicks = 0
	c.failFlight(r)
	c.refuseQueue(r, r.notLeader())
	c.failReads(r, r.notLeader())
	c.tell(Event{Kind: SteppedDown, Shard: r.shard, Term: was.term, WasEstablished: was.established})
	if r.onlyVoter() && r.floor < maxFloor {
		r.campaignIn = campaignTicks
	}
}

// giveUp makes raft drop a leadership that a higher epoch has overtaken. The term is raised to that epoch, so that the
// next leadership stands above it. raft has no call for it; the message is what a peer of that term would answer.
func (c *Core) giveUp(r *replica) {
	term := max(min(r.floor, maxFloor), r.hard.term+1)
	// An error means that this replica is no longer in its group, and so does not lead.
	_ = r.node.Step(&raftpb.Message{Type: raftpb.MsgAppResp.Enum(), From: &r.id, To: &r.id, Term: &term})
	c.touch(r)
}

// HigherEpoch says that the control plane shows epoch for the shard, recorded by somebody else. A leadership at or below
// it ends with the next turn; a group's only voter then stands for election above it, after campaignTicks.
func (c *Core) HigherEpoch(shard uint32, epoch uint64) {
	r := c.byID[shard]
	if r == nil || epoch <= r.floor {
		return
	}
	r.floor = epoch
	if r.lead != nil && r.lead.term <= epoch {
		c.giveUp(r)
	}
}

// LeaseHeld says that the control plane has recorded term as the shard's epoch.
func (c *Core) LeaseHeld(shard uint32, term uint64) {
	r := c.byID[shard]
	if r == nil || r.lead == nil || r.lead.term != term {
		return
	}
	r.lead.lease = leaseHeld
	c.establish(r)
	c.touch(r)
}

// pursueLease ends the wait for the control plane in time, and asks again while there was no answer.
func (c *Core) pursueLease(r *replica) {
	l := r.lead
	if l.lease == leaseWaiting && l.ticks >= leaseWaitTicks {
		l.lease = leaseNone
		c.establish(r)
	}
	if l.lease == leaseNone && l.ticks-l.askedAt >= leaseRetryTicks {
		l.askedAt = l.ticks
		c.tell(Event{Kind: LeaseWanted, Shard: r.shard, Term: l.term})
	}
}

// establish lets the leadership serve once it may.
func (c *Core) establish(r *replica) {
	l := r.lead
	if l.established || !l.started || l.lease == leaseWaiting || l.term <= r.floor {
		return
	}
	l.established = true
	c.tell(Event{Kind: Established, Shard: r.shard, Term: l.term})
}

func (c *Core) tell(e Event) { c.out.Events = append(c.out.Events, e) }
