package replica

import (
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// StaggerInterval is how often Stagger is due while Staggered: the distance between the candidacies of a lost leader's
// followers, so that the first one has most likely won before the next one stands.
const StaggerInterval = 50 * time.Millisecond

// standTries is how often a replica stands for election after its leader's store became suspect, before it leaves that to
// raft's own timeouts. Once would not do: nodes become suspicious at slightly different moments, and one that is not yet
// does not vote.
const standTries = 8

// timeoutTries is how often it stands again after raft's own timeout; without a majority that comes every one to two seconds.
const timeoutTries = 3

// votePatience is how many StaggerIntervals a candidate waits for votes before it stands again: they take a sync on either
// side.
const votePatience = 4

// Suspect says that a store is taken for dead or stuck, or no longer so. The groups it leads forget it as their leader, so
// that they vote, and their replicas stand for election one after the other, by their ids: the first with the next turn,
// each next one a StaggerInterval later, and in the same order again while nobody has won.
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
		c.touch(r)
		if !r.votes() || r.standIn > 0 {
			continue
		}
		r.standTries = standTries
		if place := c.placeInLine(r); place > 0 {
			c.standLater(r, place)
		} else {
			c.stand(r)
		}
	}
}

// standAgain is called when raft's own timeout has made a replica a candidate: should it not win, because another one stood
// in the same moment or has a longer log, the next tries follow soon and one after the other, instead of after another timeout.
func (c *Core) standAgain(r *replica) {
	if r.standIn > 0 {
		return
	}
	r.standTries, r.voteWait = timeoutTries, votePatience
	c.standLater(r, votePatience+2*c.placeInLine(r))
}

// placeInLine is how many of the group's voters stand for election before this one.
func (c *Core) placeInLine(r *replica) int {
	place := 0
	for _, id := range r.conf.GetVoters() {
		if id < r.id && !c.suspects[r.stores[id]] {
			place++
		}
	}
	return place
}

// stand makes a replica a candidate with the next turn, and plans the next try.
func (c *Core) stand(r *replica) {
	r.campaignIn, r.voteWait = 0, 0
	if r.standTries--; r.standTries > 0 {
		c.standLater(r, max(2, len(r.conf.GetVoters())))
	}
	c.touch(r)
}

func (c *Core) standLater(r *replica, intervals int) {
	r.standIn = intervals
	c.standing++
}

// stopStanding is called when there is a leader, or the replica goes.
func (c *Core) stopStanding(r *replica) {
	if r.standIn > 0 {
		r.standIn = 0
		c.standing--
	}
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
		switch {
		case r.soft.Lead != raft.None:
		case r.soft.RaftState == raft.StateCandidate && r.voteWait < votePatience:
			r.voteWait++
			c.standLater(r, 1) // votes are on their way
		default:
			c.stand(r)
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
	case raftpb.MsgApp, raftpb.MsgHeartbeat:
	default:
		if !r.inGroup(m.GetFrom()) {
			return false
		}
	}
	r.learnStores([]Placed{{ID: m.GetFrom(), Store: from}})
	return true
}
