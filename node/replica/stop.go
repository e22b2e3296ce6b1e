package replica

import (
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
)

// Stop refuses what is queued and everything that comes: what is in flight goes on. See Idle.
func (c *Core) Stop() {
	c.stopping = true
	for _, r := range c.all {
		c.refuseQueue(r, ErrStopped)
		c.failReads(r, ErrStopped)
	}
}

// Idle says that no command is in flight, no sync awaited and nothing left to hand out.
func (c *Core) Idle() bool {
	return len(c.unsynced) == 0 && len(c.out.Results) == 0 &&
		!slices.ContainsFunc(c.all, func(r *replica) bool { return r.flight != nil })
}

// Abandon gives up: it returns an answer for everybody who still waits for one. It may be called after a failed Turn, and is
// the last call.
func (c *Core) Abandon() []Delivery {
	// Results of a turn that failed are not known to be on disk.
	for i := range c.out.Results {
		if d := &c.out.Results[i]; d.err == nil {
			d.result, d.err = fsm.Result{}, ErrAmbiguous
		}
	}
	c.Stop()
	for _, r := range c.all {
		c.failFlight(r)
	}
	for _, done := range c.drained {
		c.answerRead(done, ErrStopped)
	}
	for _, gone := range c.removals {
		for _, done := range gone.done {
			c.answerRead(done, ErrStopped)
		}
	}
	c.drained, c.removals = nil, nil
	return c.out.Results
}
