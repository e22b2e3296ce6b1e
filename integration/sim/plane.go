package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
)

const (
	clusterID = "sim"
	// patience is by how much faster than in production a controller loses its patience with silent stores.
	patience = 60
)

// plane is the control plane as the nodes find it: control.Memory, which is away at times, loses answers, and lets leases
// lapse early and late.
type plane struct {
	mem *control.Memory
	// audit reads what stands; it is no store's.
	audit *control.MemoryPlane
	// away: nobody reaches it; cut are the stores that do not.
	away bool
	cut  map[string]bool

	stores int
	// seats are the stores' own views of it, in a start of theirs; renewed when their leases were last kept alive.
	seats map[string]*seat
	// view is what stands, version counts its changes.
	view    control.View
	version uint64
	// since is when each store became as it is, live or not.
	since map[string]standing
	// officer is the store that is the controller.
	officer string
	// ids remembers which replica ids were on a store, for the fault ReusedReplicaID.
	ids map[string]uint64
}

type seat struct {
	plane      *control.MemoryPlane
	registered bool
	renewed    int64
	ttl        int64
}

type standing struct {
	live bool
	at   int64
}

func newPlane() plane {
	mem := control.NewMemory()
	return plane{
		mem: mem, audit: mem.Plane(), cut: map[string]bool{}, seats: map[string]*seat{}, since: map[string]standing{},
		ids: map[string]uint64{},
	}
}

// newStore is a uuid that no store had.
func (p *plane) newStore(name string) string {
	p.stores++
	return fmt.Sprintf("%s-disk%d", name, p.stores)
}

func (p *plane) bootstrap(seed control.Seed) error {
	if err := p.audit.Bootstrap(context.Background(), seed); err != nil {
		return err
	}
	view, err := p.audit.Placement(context.Background())
	p.view = view
	return err
}

func (p *plane) start(c *cluster) {
	c.after(100*millisecond, func() { p.heartbeat(c) })
	c.after(500*millisecond, func() { p.govern(c) })
}

// reach is a node's way to the control plane; nil if it has none just now.
func (p *plane) reach(n *node) *seat {
	s := p.seats[n.store]
	if p.away || p.cut[n.name] || s == nil {
		return nil
	}
	if n.c.chance(50) {
		n.c.count(AnswerLost)
		p.mem.LoseAnswers(1)
	}
	return s
}

// done is called after whatever may have changed something: a lost answer is no longer lost for the next one.
func (p *plane) done(c *cluster) {
	p.mem.LoseAnswers(0)
	p.spread(c)
}

// joined is a node that has started and wants to register.
func (p *plane) joined(n *node) {
	if old := p.seats[n.store]; old != nil {
		// The lease of its earlier start lapses by itself.
		n.c.after(n.c.leaseTTL(), func() {
			old.plane.Lapse()
			p.spread(n.c)
		})
	}
	p.seats[n.store] = &seat{plane: p.mem.Plane(), ttl: 2 * second}
	p.register(n)
	p.tell(n, p.version, p.view)
}

func (p *plane) register(n *node) {
	again := func() { n.after(n.c.between(100*millisecond, second), func() { p.register(n) }) }
	s := p.reach(n)
	if s == nil {
		again()
		return
	}
	_, err := s.plane.Register(context.Background(), control.Store{
		ClusterID: clusterID, UUID: n.store, Name: n.name, Addr: n.name, Boots: n.boots, BootID: fmt.Sprint(n.boots),
	})
	p.done(n.c)
	switch {
	case errors.Is(err, control.ErrUnavailable):
		again()
	case errors.Is(err, control.ErrStoreGone):
		n.c.logf("%s may not come back: it gets an empty disk", n)
		n.lose()
	case err != nil:
		n.c.fail("%s: %w", n, err)
	default:
		s.registered, s.renewed = true, n.c.now
	}
}

// heartbeat keeps the leases of those alive who can reach it, and ends those of the others in their time.
func (p *plane) heartbeat(c *cluster) {
	c.after(100*millisecond, func() { p.heartbeat(c) })
	if p.away {
		return
	}
	for _, store := range slices.Sorted(maps.Keys(p.seats)) {
		s := p.seats[store]
		n := c.byStore(store)
		switch {
		case s.registered && n != nil && n.live() && !p.cut[n.name]:
			s.plane.Beat()
			s.renewed = c.now
		case c.now-s.renewed > s.ttl: // also of one that does not know that it got one, because the answer was lost
			if s.registered && s.ttl > 3*second {
				c.count(LapsedLate)
			}
			s.plane.Lapse()
			s.renewed, s.ttl = c.now, c.leaseTTL()
		}
	}
	p.spread(c)
}

// leaseTTL is how long a lease outlives its last renewal: three times as long at times.
func (c *cluster) leaseTTL() int64 {
	if c.chance(4) {
		return c.between(4*second, 8*second)
	}
	return c.between(second, 3*second)
}

func (p *plane) acquire(n *node, claim control.LeaderClaim) (control.LeaderGrant, error) {
	s := p.reach(n)
	if s == nil {
		return control.LeaderGrant{}, control.ErrUnavailable
	}
	s.plane.Beat()
	grants, err := s.plane.AcquireLeaders(context.Background(), []control.LeaderClaim{claim})
	p.done(n.c)
	if err != nil {
		return control.LeaderGrant{}, err
	}
	return grants[0], nil
}

// spread tells the nodes what has changed, late and more than once.
func (p *plane) spread(c *cluster) {
	view, err := p.audit.Placement(context.Background())
	if err != nil {
		return // it is away; whatever changes until it is back is told then
	}
	if c.cfg.Faults.Replica.ReusedReplicaID {
		p.reuse(view.Wanted)
	}
	if sameView(view, p.view) {
		return
	}
	p.view = view
	p.version++
	for _, n := range c.nodes {
		p.tell(n, p.version, view)
	}
}

// tell has a node learn of a version of what stands.
func (p *plane) tell(n *node, version uint64, view control.View) {
	delay := n.c.between(millisecond, 20*millisecond)
	if n.c.chance(10) {
		n.c.count(EventLate)
		delay = n.c.between(second, 4*second)
	}
	n.c.after(delay, func() {
		switch {
		case n.lost:
		case !n.live() || p.away || p.cut[n.name]:
			p.tell(n, version, view)
		case version >= n.placement.version:
			if version == n.placement.version {
				n.c.count(EventRepeated)
			}
			n.learn(version, view)
		}
	})
	if n.c.chance(10) {
		n.c.after(delay+n.c.between(1, second), func() {
			if n.live() && version == n.placement.version {
				n.c.count(EventRepeated)
				n.learn(version, view)
			}
		})
	}
}

// govern is the controller: one node at a time holds the office and carries out what Place and BalanceLeaders decide.
func (p *plane) govern(c *cluster) {
	c.after(500*millisecond, func() { p.govern(c) })
	for _, i := range c.rng.Perm(len(c.nodes)) {
		n := c.nodes[i]
		if !n.live() {
			continue
		}
		s := p.reach(n)
		if s == nil || !s.registered {
			p.mem.LoseAnswers(0)
			continue
		}
		term, err := s.plane.TryCampaign(context.Background())
		p.done(c)
		if err != nil || term == nil {
			continue
		}
		if p.officer != n.store {
			p.officer = n.store
			c.count(ControllerChanged)
		}
		view, err := s.plane.Placement(context.Background())
		if err != nil {
			continue
		}
		p.age(c, view)
		plan, transfers := control.Place(view), control.BalanceLeaders(view)
		// What was decided is done a while later, whoever is the controller by then.
		delay := c.between(millisecond, 200*millisecond)
		if c.chance(5) {
			delay = c.between(millisecond, 3*second)
		}
		n.after(delay, func() { p.carryOut(n, term, view, plan, transfers) })
		return
	}
}

// age fills in for how long stores have been as they are.
func (p *plane) age(c *cluster, view control.View) {
	for i := range view.Stores {
		s := &view.Stores[i]
		was, known := p.since[s.UUID]
		if !known || was.live != s.Live {
			was = standing{s.Live, c.now}
			p.since[s.UUID] = was
		}
		s.For = patience * time.Duration(c.now-was.at) * time.Microsecond
	}
}

func (p *plane) carryOut(n *node, term *control.Term, view control.View, plan control.Plan, transfers []control.Transfer) {
	s := p.reach(n)
	if s == nil {
		return
	}
	for _, store := range plan.Gone {
		if err := s.plane.SetStoreState(context.Background(), term, store, control.StoreGone); p.odd(err) {
			n.c.fail("controller %s: %w", n.name, err)
		}
	}
	for _, next := range plan.Changes {
		err := s.plane.ChangeShard(context.Background(), term, next, view.BasisOf(next))
		var gen *control.GenError
		if p.odd(err) && !errors.As(err, &gen) && !errors.Is(err, control.ErrMoved) {
			n.c.fail("controller %s: %w", n.name, err)
		}
		if err == nil {
			n.c.count(ShardMoved)
			n.c.countAgain(view.Wanted[next.ID-1], next)
			n.c.logf("controller %s wants shard %d: %+v", n.name, next.ID, next)
		}
	}
	p.done(n.c)
	for _, t := range transfers {
		n.c.transfer(t.Shard, t.To)
	}
}

// countAgain counts the replicas of next that were given up before standing, on which it follows.
func (c *cluster) countAgain(standing, next control.Shard) {
	for _, r := range next.Replicas {
		if r.RID < standing.NextRID && !slices.Contains(standing.Replicas, r) {
			c.count(ReplicaWantedAgain)
		}
	}
}

// odd says that an error is none that a controller has to expect.
func (p *plane) odd(err error) bool {
	return err != nil && !errors.Is(err, control.ErrUnavailable) && !errors.Is(err, control.ErrDeposed)
}

// transfer hands a shard's leadership to the replica on a store.
func (c *cluster) transfer(shard uint32, to string) {
	for _, n := range c.nodes {
		if !n.live() || !n.leads(shard) {
			continue
		}
		for _, r := range n.placement.wanted[shard].Replicas {
			if r.Store == to {
				c.count(LeaderTransferred)
				n.core.TransferLeader(shard, r.RID)
				n.poke()
			}
		}
	}
}

// reuse is the fault ReusedReplicaID: a replica that comes back to a store gets the id it had there first.
func (p *plane) reuse(wanted []control.Shard) {
	for _, s := range wanted {
		for i := range s.Replicas {
			at := fmt.Sprint(s.ID, s.Replicas[i].Store)
			if first, ok := p.ids[at]; ok {
				s.Replicas[i].RID = first
			} else {
				p.ids[at] = s.Replicas[i].RID
			}
		}
	}
}
