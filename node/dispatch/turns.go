package dispatch

import (
	"bytes"
	"container/heap"
	"maps"
	"math/bits"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Whose turn is next is decided by start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996), at each
// of four levels: among the queues, among a queue's priorities, among a priority's tenants, and among a tenant's fairness keys.
// Each party has an account, which all shards of the node share.

// account is one party's. Its pass is the virtual time at which its next turn begins: the party with the least goes next, and
// each turn puts it back by turnCost over its weight. One that comes anew begins at the turn that is being served, so that
// nobody saves turns up by having nothing to do, and one that left and comes again still has its pass.
type account struct {
	parent *account
	name   string
	// pass only grows. served is the pass of the children's last turn.
	pass, served uint64
	step         uint64
	// active counts the places, one a shard, that offer something of it; refs those that know it.
	active, refs int
	// children by name: those with refs, and some that still are ahead of the last turn. sweepAt is when to look for others.
	children map[string]*account
	sweepAt  int
}

const (
	// turnCost is how far one turn puts a party of weight 1 back. Among tenants and keys, passes within the same closeTurns
	// turns count as equal, and the older goes first.
	turnCost   = 1 << 20
	closeTurns = 4
	// maxWeight bounds weights, so that turnCost over it is precise enough.
	maxWeight = 1000
	// sweepFrom is how many children an account has at least before it looks for needless ones.
	sweepFrom = 64
)

func stepOf(weight uint32) uint64 { return turnCost / uint64(min(max(weight, 1), maxWeight)) }

// child returns the child of that name with one more reference; a new one has the weight.
func (a *account) child(name string, weight uint32) *account {
	c := a.children[name]
	if c == nil {
		a.sweep()
		c = &account{parent: a, name: name, step: stepOf(weight)}
		if a.children == nil {
			a.children = map[string]*account{}
		}
		a.children[name] = c
	}
	c.refs++
	return c
}

// sweep drops children that nobody knows and that owe nothing.
func (a *account) sweep() {
	if len(a.children) < max(a.sweepAt, sweepFrom) {
		return
	}
	for name, c := range a.children {
		if c.refs == 0 && c.pass <= a.served {
			delete(a.children, name)
		}
	}
	a.sweepAt = 2 * len(a.children)
}

// unrefer gives a reference back.
func (a *account) unrefer() {
	if a.refs--; a.refs == 0 && a.pass <= a.parent.served {
		delete(a.parent.children, a.name)
	}
}

// enter notes one more place that offers something.
func (a *account) enter() {
	if a.active++; a.active == 1 {
		a.pass = max(a.pass, a.parent.served)
	}
}

// leave notes one place less. With the last one nobody is ahead of anybody.
func (a *account) leave() {
	if a.active--; a.active == 0 {
		for name, c := range a.children {
			if c.refs == 0 {
				delete(a.children, name)
			}
		}
	}
}

// lap is the pass in steps of closeTurns.
func (a *account) lap() uint64 { return a.pass / (closeTurns * turnCost) }

// charge takes a turn.
func (a *account) charge() {
	a.parent.served = max(a.parent.served, a.pass)
	a.pass += a.step
}

// Shares is how a queue's priorities share its turns.
type Shares struct {
	// Weights are those of priorities 0 to 9, each 1 to 1,000.
	Weights [priorities]uint32
	// Strict: the most urgent goes first, whatever its weight, but each other one that waits has one turn in FloorEvery.
	Strict     bool
	FloorEvery uint32
}

// DefaultShares gives each priority about one and a half times the share of the one below.
func DefaultShares() Shares {
	return Shares{Weights: [priorities]uint32{2, 3, 5, 7, 10, 15, 22, 33, 50, 75}}
}

// class is one priority's account in a queue, and the number of the queue's turn that it last had, or at which it came.
type class struct {
	account
	lastTurn uint64
}

// sharesFrom reads a queue's settings.
func sharesFrom(s *storagev1.PriorityShares) (Shares, bool) {
	shares := DefaultShares()
	switch {
	case s == nil:
		return shares, false
	case s.Strict:
		shares.Strict, shares.FloorEvery = true, 100/min(max(s.FloorPercent, 1), 100)
	default:
		copy(shares.Weights[:], s.Weights)
	}
	return shares, true
}

// setShares puts new shares into force. Locked.
func (q *queue) setShares(s Shares) {
	q.shares = s
	for rank := range q.classes {
		q.classes[rank].step = stepOf(s.Weights[priorities-1-rank])
	}
}

// sharesOf are a queue's. Locked.
func (d *Dispatcher) sharesOf(name string) Shares {
	if s, ok := d.shares[name]; ok {
		return s
	}
	return DefaultShares()
}

// shareTurns has queues and tenants share as they say. Locked.
func (d *Dispatcher) shareTurns(shares map[string]Shares, weights map[string]uint32) {
	if maps.Equal(d.shares, shares) && maps.Equal(d.weights, weights) {
		return
	}
	d.shares, d.weights = shares, weights
	for _, q := range d.queues {
		q.setShares(d.sharesOf(q.name))
		for rank := range q.classes {
			for name, tenant := range q.classes[rank].children {
				tenant.step = stepOf(weights[name])
			}
		}
	}
}

// next is the rank whose turn it is among those in mask, which is not empty.
func (q *queue) next(mask uint16) int {
	best := bits.TrailingZeros16(mask)
	if q.shares.Strict {
		return q.nextStrict(mask, best)
	}
	for rest := mask & (mask - 1); rest != 0; rest &= rest - 1 {
		if rank := bits.TrailingZeros16(rest); q.classes[rank].pass < q.classes[best].pass {
			best = rank
		}
	}
	return best
}

// nextStrict is the most urgent rank unless another one has waited for its floor, the longest first.
func (q *queue) nextStrict(mask uint16, best int) int {
	first, longest := best, uint64(max(q.shares.FloorEvery, 1))
	for rest := mask & (mask - 1); rest != 0; rest &= rest - 1 {
		rank := bits.TrailingZeros16(rest)
		if waited := q.turns - q.classes[rank].lastTurn; waited >= longest {
			first, longest = rank, waited+1
		}
	}
	return first
}

// setMask notes which bands of a shard's queue have something to offer. Locked.
func (d *Dispatcher) setMask(sq *shardQueue, mask uint16) {
	q := sq.queue
	for changed := mask ^ sq.mask; changed != 0; changed &= changed - 1 {
		c := &q.classes[bits.TrailingZeros16(changed)]
		if mask&changed&-changed == 0 {
			c.leave()
			continue
		}
		if c.active == 0 {
			c.lastTurn = q.turns
		}
		c.enter()
	}
	sq.mask = mask
	d.offer(sq)
}

// charge takes a turn of the stream's key, tenant, priority and queue. Locked.
func (b *band) charge(s *stream) {
	q := b.sq.queue
	q.turns++
	q.classes[b.rank].lastTurn = q.turns
	s.key.charge()
	s.tenant.turns.charge()
	q.classes[b.rank].charge()
	q.turn.charge()
}

// tenantStreams is a band's streams of one tenant.
type tenantStreams struct {
	name  string
	turns *account
	// streams counts them; offers is a heap of those with a key.
	streams int
	offers  turnHeap[*stream]
	// place is its own among the band's offers.
	place
}

// place is where something stands in a turnHeap: its lap as the heap knows it, which may be behind the account's.
type place struct {
	lap uint64
	at  int
}

func (p *place) seat() *place { return p }

// waiting is what stands in a turnHeap.
type waiting interface {
	comparable
	seat() *place
	// turn is its account.
	turn() *account
	// oldest is its first key.
	oldest() *item
}

// settle puts e where it belongs in the heap after its keys or its pass changed; empty: it has none.
func (h *turnHeap[T]) settle(e T, empty bool) {
	p := e.seat()
	switch {
	case empty && p.at >= 0:
		heap.Remove(h, p.at)
		e.turn().leave()
	case !empty && p.at < 0:
		e.turn().enter()
		p.lap = e.turn().lap()
		heap.Push(h, e)
	case !empty:
		p.lap = e.turn().lap()
		heap.Fix(h, p.at)
	}
}

// first is whose turn it is; there must be one.
func (h turnHeap[T]) first() T {
	for {
		e := h[0]
		p := e.seat()
		if lap := e.turn().lap(); p.lap != lap {
			p.lap = lap
			heap.Fix(&h, 0)
			continue
		}
		return e
	}
}

func (i *item) before(other *item) bool {
	return i.nominal < other.nominal || i.nominal == other.nominal && bytes.Compare(i.key, other.key) < 0
}

func (t *tenantStreams) turn() *account { return t.turns }
func (t *tenantStreams) oldest() *item  { return t.offers[0].oldest() }
func (s *stream) turn() *account        { return s.key }
func (s *stream) oldest() *item         { return &s.items[0] }

// turnHeap orders by lap, then by the nominal time of what is first. As other shards move the laps, always up, the top is to
// be asked for by first.
type turnHeap[T waiting] []T

func (h turnHeap[T]) Len() int { return len(h) }
func (h turnHeap[T]) Less(i, j int) bool {
	a, b := h[i].seat(), h[j].seat()
	if a.lap != b.lap {
		return a.lap < b.lap
	}
	return h[i].oldest().before(h[j].oldest())
}
func (h turnHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].seat().at, h[j].seat().at = i, j
}
func (h *turnHeap[T]) Push(x any) {
	e := x.(T)
	e.seat().at = len(*h)
	*h = append(*h, e)
}
func (h *turnHeap[T]) Pop() any {
	var none T
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = none
	*h = old[:len(old)-1]
	e.seat().at = -1
	return e
}
