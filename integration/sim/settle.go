package sim

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Bounds of L1: how long after the end of the trouble every shard is served, nothing is due for longer than dueWithin, and
// everything has come to its end. L1 wants shards served within 3 s, which nearly all are: raft's own timeout, up to 2 s, the
// votes, and the pause of a node that has lost its disk just before, one after the other, may take a little longer.
const (
	ledWithin   = 6 * second
	dueWithin   = 5 * second
	endedWithin = 240 * second
)

// settle ends the trouble and lets the cluster come to its end: every shard led, every job done, every replica where it is
// wanted, and all of them alike.
func (c *cluster) settle() {
	c.logf("the trouble ends")
	c.trouble, c.busy = false, false
	clear(c.net.cut)
	clear(c.plane.cut)
	for _, n := range c.nodes {
		n.pausedUntil, n.syncDelay, n.full = 0, 2*millisecond, false
		if n.failed && n.core != nil {
			n.stopped(errDisk) // it would notice later, and be down when the trouble is over
		}
		n.start()
		n.thaw()
	}
	// L2: the shards do not need the control plane to go on. What they need it for is counted from when it is back.
	if c.cfg.Seed%4 != 0 || c.cfg.Quiet {
		c.planeBack()
	}
	c.undrain()
	began := c.now
	finished := false
	for next := began; c.err == nil; next += 100 * millisecond {
		for c.err == nil && len(c.agenda) > 0 && c.agenda[0].at <= next {
			c.step()
		}
		passed := c.now - began
		led := c.led()
		if led && c.report.LedMS == 0 {
			c.report.LedMS = passed/millisecond + 1
		}
		if led && !finished && c.crew.pausing == 0 {
			finished = true
			c.crew.finish()
		}
		if c.report.LedMS == 0 && passed > ledWithin {
			c.fail("L1: not every shard is served after %d ms%s", passed/millisecond, c.describe())
		}
		if passed > ledWithin+dueWithin {
			c.planeBack()
			c.punctual()
			c.model.overdue(c.trueMS() - dueWithin/millisecond)
			if led && finished && c.ended() {
				c.report.EndedMS = passed / millisecond
				break
			}
		}
		if passed > endedWithin {
			c.fail("L1: not at its end after %d ms: %s%s", passed/millisecond, c.left(), c.describe())
		}
	}
	if c.err == nil {
		c.final()
	}
}

// finish has operators resume what is paused.
func (w *crew) finish() {
	for _, j := range w.jobs {
		if w.paused[j.id] {
			w.pause(j, storagev1.JobState_JOB_STATE_ACTIVE, func(fsm.Result) {})
		}
	}
	for _, shard := range w.c.shardIDs() {
		for what := range frozen {
			w.freeze(shard, what, false, func(fsm.Result) {})
		}
	}
}

func (c *cluster) undrain() {
	was := c.plane.away
	c.plane.away = false
	c.plane.mem.SetUnavailable(false)
	for _, s := range c.plane.view.Stores {
		if s.State == control.StoreDraining {
			if n := c.byStore(s.UUID); n != nil {
				c.drain(n)
			}
		}
	}
	if c.plane.away = was; was {
		c.plane.mem.SetUnavailable(true)
	}
}

// leader is the node that serves a shard; nil if none does.
func (c *cluster) leader(shard uint32) *node {
	for _, n := range c.nodes {
		if n.live() && n.leads(shard) {
			return n
		}
	}
	return nil
}

func (c *cluster) led() bool {
	for _, shard := range c.shardIDs() {
		if c.leader(shard) == nil {
			return false
		}
	}
	return true
}

// punctual: L1, nothing is due and not fired for long.
func (c *cluster) punctual() {
	for _, shard := range c.shardIDs() {
		n := c.leader(shard)
		if n == nil {
			continue
		}
		fsm.ScanTimers(n.rows(shard), 0, c.trueMS()-dueWithin/millisecond, func(t fsm.TimerRef) bool {
			c.fail("L1: shard %d: a timer of kind %d is due since %d ms", shard, t.Kind, c.trueMS()-t.AtMS)
			return false
		})
	}
}

// left says what keeps a run from its end; empty: nothing.
func (c *cluster) left() string {
	if c.crew.waiting > 0 {
		return fmt.Sprintf("%d requests have no answer", c.crew.waiting)
	}
	if left := c.model.unfinished(); left != "" {
		return left
	}
	for _, shard := range c.shardIDs() {
		n := c.leader(shard)
		if n == nil {
			return fmt.Sprintf("shard %d is not led", shard)
		}
		meta := fsm.ReadMeta(n.rows(shard))
		if alive := meta.Waiting + meta.Ready + meta.Leased + meta.Retrying + meta.Held + meta.Parked; alive > 0 {
			return fmt.Sprintf("shard %d: %d executions are alive: %v", shard, alive, meta)
		}
		if left := c.misplaced(n, shard); left != "" {
			return left
		}
	}
	return ""
}

func (c *cluster) ended() bool { return c.left() == "" }

// misplaced says what is not as it is wanted in a shard, whose leader is given.
func (c *cluster) misplaced(leader *node, shard uint32) string {
	lead, _ := leader.core.Inspect(shard)
	want := c.plane.view.Wanted[shard-1]
	actual, ok := c.plane.view.Actual[shard]
	if !ok || actual.Gen != want.Gen || len(lead.Conf.Learners)+len(lead.Conf.Outgoing) > 0 {
		return fmt.Sprintf("shard %d is wanted as %+v and is %+v", shard, want, actual)
	}
	for _, r := range want.Replicas {
		if c.byStore(r.Store) == nil {
			return fmt.Sprintf("shard %d is wanted on %s, which is gone", shard, r.Store)
		}
	}
	for _, n := range c.nodes {
		id := uint64(0)
		for _, r := range want.Replicas {
			if r.Store == n.store {
				id = r.RID
			}
		}
		at, _ := n.core.Inspect(shard)
		if at.ReplicaID != id || id != 0 && (at.Applied != lead.Applied || at.LogLast != lead.LogLast || at.Installing) {
			return fmt.Sprintf("shard %d on %s: replica %d at %d, wanted %d at %d", shard, n, at.ReplicaID, at.Applied, id, lead.Applied)
		}
	}
	return ""
}

// final: every acknowledged job is there, with the incarnation that was acknowledged or a later one, all replicas are alike,
// and nothing of them is against the rules.
func (c *cluster) final() {
	for _, shard := range c.shardIDs() {
		first := uint64(0)
		for _, r := range c.plane.view.Wanted[shard-1].Replicas {
			n := c.byStore(r.Store)
			c.accepted(n.rows(shard), n, shard)
			sum, err := sumRows(n.engine, shard)
			if err != nil {
				c.fail("%s: %w", n, err)
			}
			if first == 0 {
				c.recount(n, shard, n.rows(shard))
			} else if sum != first {
				c.fail("R4: shard %d: %s differs from another store at the end", shard, n)
			}
			first = sum
		}
		c.note(uint64(shard), first)
	}
}

func (c *cluster) accepted(rows *store.Reader, n *node, shard uint32) {
	for _, a := range c.model.accepted {
		if a.shard != shard {
			continue
		}
		if j, ok := fsm.GetJob(rows, tenant, a.id); !ok || j.Job.Incarnation < a.incarnation {
			c.fail("S1: job %s, incarnation %d, was acknowledged and is not in shard %d on %s", a.id, a.incarnation, shard, n)
		}
	}
}

// describe says how every replica stands.
func (c *cluster) describe() string {
	text := ""
	for _, n := range c.nodes {
		if !n.up() {
			text += fmt.Sprintf("\n%s is down", n)
			continue
		}
		for _, shard := range c.shardIDs() {
			if at, ok := n.core.Inspect(shard); ok {
				text += fmt.Sprintf("\n%s: shard %d, replica %d, leader %v of %d (known: %s), established %v, applied %d of (%d, %d], %+v, generation %d, "+
					"told %d, installing %v", n, shard, at.ReplicaID, at.Leader, at.Term, at.LeaderStore, at.Established, at.Applied, at.LogFirst,
					at.LogLast, at.Conf, at.Gen, n.placement.told[shard], at.Installing)
			}
		}
	}
	return text
}
