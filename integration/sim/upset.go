package sim

import (
	"context"
	"errors"
	"slices"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
)

// upset does one thing to the cluster, and comes back. A single run sees a few of everything; what it sees most of changes
// from seed to seed.
func (c *cluster) upset() {
	if !c.trouble {
		return
	}
	c.after(c.between(20*millisecond, 800*millisecond), c.upset)
	n := c.nodes[c.rng.IntN(len(c.nodes))]
	other := c.nodes[c.rng.IntN(len(c.nodes))]
	switch c.rng.IntN(16) {
	case 0:
		if n.up() {
			n.crash(c.downtime())
		}
	case 1:
		c.failDisk(n)
	case 2:
		if n.up() {
			c.count(DiskSlow)
			n.syncDelay = c.between(10*millisecond, second)
			n.after(c.between(second, 5*second), func() { n.syncDelay = 2 * millisecond })
		}
	case 3:
		c.wipe(n)
	case 4:
		c.pause(n)
	case 5, 6:
		c.count(ClockStepped)
		n.offset = c.between(-clockLimit, clockLimit)
	case 7, 8:
		c.cutOff(n, other)
	case 9:
		c.planeAway()
	case 10:
		c.count(PlaneCut)
		c.plane.cut[n.name] = true
		c.after(c.between(100*millisecond, 6*second), func() { delete(c.plane.cut, n.name) })
	case 11:
		if s := c.plane.seats[n.store]; s != nil && s.registered {
			c.count(LapsedEarly)
			s.plane.Lapse()
			c.plane.spread(c)
		}
	case 12:
		c.drain(n)
	case 13, 14:
		c.transfer(1+uint32(c.rng.IntN(int(c.shards))), other.store)
	case 15:
		c.loseNode(n)
	}
}

// failDisk lets a node's disk answer nothing but errors: the node stops, and comes back with what was synced, and perhaps
// more. A full one keeps it down for a while.
func (c *cluster) failDisk(n *node) {
	if !n.up() {
		return
	}
	if c.rng.IntN(3) == 0 {
		c.count(DiskFull)
		n.full = true
		c.after(c.between(second, 8*second), func() { n.full = false })
	}
	c.count(DiskFailed)
	n.failed = true
	n.engine.Fail(errDisk)
	// Whether it has something to write or not: the next thing that it does finds out.
	n.after(n.c.between(millisecond, 300*millisecond), func() { n.stopped(errDisk) })
}

// pause lets a node stand still.
func (c *cluster) pause(n *node) {
	if !n.live() {
		return
	}
	c.count(Paused)
	length := c.between(10*millisecond, second)
	if c.rng.IntN(3) == 0 {
		length = c.between(second, 8*second)
	}
	n.pausedUntil = c.now + length
	c.after(length, n.thaw)
}

// cutOff cuts a node off from one other or from all, in one direction or both, and heals it after a while.
func (c *cluster) cutOff(n, other *node) {
	peers := []*node{other}
	if c.rng.IntN(2) == 0 {
		peers = c.nodes
	}
	oneWay := c.rng.IntN(2) == 0
	var cuts [][2]string
	for _, p := range peers {
		if p == n {
			continue
		}
		cuts = append(cuts, [2]string{n.name, p.name})
		if !oneWay {
			cuts = append(cuts, [2]string{p.name, n.name})
		}
	}
	c.count(Cut)
	if oneWay {
		c.count(CutOneWay)
	}
	for _, cut := range cuts {
		c.net.cut[cut] = true
	}
	c.after(c.between(100*millisecond, 6*second), func() {
		for _, cut := range cuts {
			delete(c.net.cut, cut)
		}
	})
}

// planeAway takes the control plane away from everybody.
func (c *cluster) planeAway() {
	if c.plane.away {
		return
	}
	c.count(PlaneAway)
	c.plane.away = true
	c.plane.mem.SetUnavailable(true)
	length := c.between(100*millisecond, 3*second)
	if c.rng.IntN(4) == 0 {
		length = c.between(5*second, 20*second)
	}
	c.after(length, c.planeBack)
}

func (c *cluster) planeBack() {
	if !c.plane.away {
		return
	}
	c.plane.away = false
	c.plane.mem.SetUnavailable(false)
	c.plane.spread(c)
}

// drain is an operator who empties a store, and thinks better of it.
func (c *cluster) drain(n *node) {
	if c.plane.away {
		return
	}
	for _, s := range c.plane.view.Stores {
		if s.UUID != n.store || s.State == control.StoreGone {
			continue
		}
		state := control.StoreDraining
		if s.State == control.StoreDraining {
			state = control.StoreUp
		} else {
			c.count(Drained)
		}
		c.plane.mem.LoseAnswers(0) // none of this operator's
		err := c.plane.audit.SetStoreState(context.Background(), nil, n.store, state)
		if err != nil && !errors.Is(err, control.ErrStoreGone) {
			c.fail("drain %s: %w", n, err)
		}
		c.plane.spread(c)
	}
}

// wipe loses a node's disk, if every shard is whole: more than one lost disk at a time loses majorities, which nothing can
// survive. The node comes back with an empty disk under its old name.
func (c *cluster) wipe(n *node) {
	if !c.whole() {
		return
	}
	c.count(DiskWiped)
	c.logf("%s loses its disk", n)
	n.lose()
}

func (n *node) lose() {
	c := n.c
	c.checks.lost[n.store] = n.engine
	if n.up() {
		n.end(0)
	} else {
		n.life++
	}
	if c.cfg.Faults.Replica.AmnesiacVoter {
		n.forget()
		return
	}
	n.newDisk(c.plane.newStore(n.name))
	c.after(c.downtime(), n.start)
}

// loseNode takes a node away for good where three are left, most often while it takes over a replica.
func (c *cluster) loseNode(n *node) {
	if len(c.nodes) <= 3 || !c.mayLose(n) || !c.takesOver(n) && c.rng.IntN(8) > 0 {
		return
	}
	c.count(NodeLost)
	c.logf("%s is lost for good", n)
	c.checks.lost[n.store] = n.engine
	if n.up() {
		n.end(0)
	}
	n.life++
	n.lost = true
	c.nodes = slices.DeleteFunc(c.nodes, func(other *node) bool { return other == n })
}

// mayLose says that no shard lacks another disk than n's, in any configuration that its group may have.
func (c *cluster) mayLose(n *node) bool {
	for _, s := range c.plane.view.Wanted {
		members := s.Replicas
		if a := c.plane.view.Actual[s.ID]; a.Gen != s.Gen {
			members = slices.Concat(s.Replicas, s.Dropped, a.Voters)
		}
		for _, r := range members {
			if r.Store != n.store && c.byStore(r.Store) == nil {
				return false
			}
		}
	}
	return true
}

// takesOver says that a shard is on its way to n.
func (c *cluster) takesOver(n *node) bool {
	for _, s := range c.plane.view.Wanted {
		on := func(r control.Replica) bool { return r.Store == n.store }
		a, told := c.plane.view.Actual[s.ID]
		if told && a.Gen != s.Gen && slices.ContainsFunc(s.Replicas, on) && !slices.ContainsFunc(a.Voters, on) {
			return true
		}
	}
	return false
}

// forget is the fault AmnesiacVoter: the disk comes back empty, and the node goes on as the replicas it had.
func (n *node) forget() {
	boots := n.boots
	n.newDisk(n.store)
	n.boots = boots
	var seeds []replica.Seed
	for _, s := range seedsOf(n.c.plane.view.Wanted, n.store) {
		if s.ID <= 3 {
			s.Voters = []uint64{1, 2, 3}
			seeds = append(seeds, s)
		}
	}
	if err := replica.Bootstrap(n.engine, seeds); err != nil {
		n.c.fail("%s: %w", n, err)
	}
	n.c.after(n.c.downtime(), n.start)
}

// whole says that every shard has come to what is wanted of it and lacks none of its disks.
func (c *cluster) whole() bool {
	for _, s := range c.plane.view.Wanted {
		a, ok := c.plane.view.Actual[s.ID]
		if !ok || a.Gen != s.Gen {
			return false
		}
		for _, r := range s.Replicas {
			n := c.byStore(r.Store)
			if n == nil {
				return false
			}
			if !n.up() {
				return false
			}
			// One that is just being filled has nothing to lose, but does not count either.
			if at, ok := n.core.Inspect(s.ID); !ok || at.ReplicaID != r.RID || at.Applied == 0 || at.Installing {
				return false
			}
		}
	}
	return len(c.plane.view.Actual) == int(c.shards)
}
