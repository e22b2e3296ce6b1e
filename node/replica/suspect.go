package replica

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// StaggerInterval is how often Stagger is due while Staggered: the distance between the candidacies of a lost leader's
// followers, so that the first one has most likely won before the next one stands.
const StaggerInterval = 50 * time.Millisecond

// Suspect says that a store is taken for dead or stuck, or no longer so. The groups it leads forget it as their leader, so
// that they vote, and their replicas stand for election one after the other, by their ids: the first with the next turn,
// each next one a StaggerInterval later.
func (c *Core) Suspect(store string, suspect bool) {
	if !suspect {
		delete(c.suspects, store)
		return
	}
	c.suspects[store] = true
	for _, r := range c.all {
		if r.lead != nil || r.soft.Lead == raft.None || r.stores[r.soft.Lead] != store {
			continue
		}
		// An error is impossible: raft forgets, or had forgotten already.
		_ = r.node.ForgetLeader()
		if place := c.placeInLine(r); place == 0 {
			r.campaignIn = 0
		} else if place > 0 {
			r.standIn = place
			c.standing++
		}
		c.touch(r)
	}
}

// placeInLine is how many of the group's voters stand for election before this one; below zero: it does not vote.
func (c *Core) placeInLine(r *replica) int {
	if !slices.Contains(r.conf.GetVoters(), r.id) || r.standIn > 0 {
		return -1
	}
	place := 0
	for _, id := range r.conf.GetVoters() {
		if id < r.id && !c.suspects[r.stores[id]] {
			place++
		}
	}
	return place
}

// Staggered says that replicas wait for their turn to stand for election.
func (c *Core) Staggered() bool { return c.standing > 0 }

// Stagger lets StaggerInterval pass for them.
func (c *Core) Stagger() {
	if c.standing == 0 {
		return
	}
	for _, r := range c.all {
		if r.standIn == 0 {
			continue
		}
		if r.standIn--; r.standIn > 0 {
			continue
		}
		c.standing--
		if r.soft.Lead == raft.None && r.soft.RaftState == raft.StateFollower {
			r.campaignIn = 0
			c.touch(r)
		}
	}
}

// ReportUnreachable says that frames to a store were lost: what leaders here sent it is sent again from where it is known to
// be.
func (c *Core) ReportUnreachable(store string) {
	for _, r := range c.all {
		if r.lead == nil {
			continue
		}
		for id, at := range r.stores {
			if at == store && r.inGroup(id) {
				r.node.ReportUnreachable(id)
				c.touch(r)
			}
		}
	}
}

// knows says whether a message may come from the store it came from. A replica id belongs to one store for ever: what
// another one sends under it comes from a disk that was wiped or copied, and counts for nothing. Of ids that are not known
// yet, members and leaders are believed: this store may hear of its group before it hears of what is wanted.
func (c *Core) knows(r *replica, from string, m *raftpb.Message) bool {
	if c.cfg.Faults.AmnesiacVoter {
		return true
	}
	at, known := r.stores[m.GetFrom()]
	if known {
		return at == from
	}
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
	default:
		if !r.inGroup(m.GetFrom()) {
			return false
		}
	}
	r.learnStores([]Placed{{ID: m.GetFrom(), Store: from}})
	return true
}
