package replica

import (
	"slices"

	"go.etcd.io/raft/v3"
)

// DrainLeaders hands every leadership of this store to the most caught-up voter that is not suspect, and those it gets later
// too; done is told with a turn's Results when there is none left that could be handed over to another voter.
func (c *Core) DrainLeaders(done func(error)) {
	c.draining = true
	c.drained = append(c.drained, done)
	for _, r := range c.all {
		c.touch(r)
	}
}

// pursueDrain hands a leadership over, again if the last attempt came to nothing.
func (c *Core) pursueDrain(r *replica) {
	if !c.draining || r.transferTicks > 0 || !r.lead.established || len(r.conf.GetVoters()) < 2 {
		return
	}
	if to := c.successor(r, func(uint64) bool { return true }); to != raft.None {
		c.transfer(r, to)
	}
}

// finishDrain answers those who wait for the store to lead nothing.
func (c *Core) finishDrain() {
	stays := func(r *replica) bool { return r.lead != nil && len(r.conf.GetVoters()) > 1 }
	if len(c.drained) == 0 || slices.ContainsFunc(c.all, stays) {
		return
	}
	for _, done := range c.drained {
		c.answerRead(done, nil)
	}
	c.drained = nil
}

// transfer hands the leadership to replica id; proposals wait meanwhile.
func (c *Core) transfer(r *replica, to uint64) {
	r.transferTicks = electionTicks
	r.node.TransferLeader(to)
	c.touch(r)
}
