package dispatch

import (
	"container/heap"
	"container/list"
	"slices"
)

// claims gives ready executions to the hungry polls of hot queues, first come first served.
func (pl *plan) claims() {
	heads := pl.heads()
	for p := heads.next(pl.number); p != nil; p = heads.next(pl.number) {
		pl.fill(p)
		if p.lacks() == 0 {
			continue
		}
		if !slices.ContainsFunc(pl.d.led, pl.mayOpen) {
			return
		}
		for _, q := range p.queues {
			q.exhausted = pl.number
		}
	}
}

// head is the first poll of a hot queue that has not been looked at in this plan.
type head struct {
	queue *queue
	seat  *list.Element
	seq   uint64
}

// heads is a heap of them: the poll that came first is at the top, once for each of its queues.
type heads []head

// heads are those of the queues that have something in a shard that takes part in this plan. Queues that are not hot any
// more are dropped.
func (pl *plan) heads() heads {
	d := pl.d
	var h heads
	kept := d.hot[:0]
	for _, q := range d.hot {
		if q.hot = len(q.offers) > 0 && q.hungry.Len() > 0; !q.hot {
			continue
		}
		kept = append(kept, q)
		if slices.ContainsFunc(q.offers, func(sq *shardQueue) bool { return pl.mayOpen(sq.shard) }) {
			seat := q.hungry.Front()
			h = append(h, head{q, seat, seat.Value.(*poll).seq})
		}
	}
	clear(d.hot[len(kept):])
	d.hot = kept
	heap.Init(&h)
	return h
}

// next takes the poll that came first from the heads of all its queues; nil if there is none. Queues that are exhausted in
// this plan are left out.
func (h *heads) next(plan uint64) (first *poll) {
	for len(*h) > 0 {
		top := &(*h)[0]
		p := top.seat.Value.(*poll)
		if first != nil && p != first {
			break
		}
		if top.queue.exhausted == plan {
			heap.Pop(h)
			continue
		}
		first = p
		if top.seat = top.seat.Next(); top.seat == nil {
			heap.Pop(h)
			continue
		}
		top.seq = top.seat.Value.(*poll).seq
		heap.Fix(h, 0)
	}
	return first
}

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].seq < h[j].seq }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(head)) }
func (h *heads) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = head{}
	*h = (*h)[:last]
	return x
}

// fill picks for one poll until it lacks nothing or there is nothing to pick.
func (pl *plan) fill(p *poll) {
	for p.lacks() > 0 {
		s := pl.slice(p)
		if s == nil {
			return
		}
		r := pl.open(s.sq.shard)
		c := r.claim(p)
		had := len(c.taken)
		for n := min(p.lacks(), sliceLimit, roundLimit-r.rows); n > 0 && s.goesOn(); n-- {
			c.taken = append(c.taken, pl.d.takeFirst(s.sq.bands[s.rank]))
		}
		n := len(c.taken) - had
		r.rows += n
		pl.d.reserve(p, n)
	}
}

// slice is what a poll takes from one shard's queue before the other shards are looked at: in turn among what all of them
// offer, but a little more of one shard than exact turns would, as each costs a command.
type slice struct {
	pl *plan
	sq *shardQueue
	// open are the bands with something to offer of the queue in all shards that take part in this plan; rank is whose turn it is.
	open  uint16
	rank  int
	taken int
}

// sliceLeast is after how many turns it is looked at whether another shard's tenant would be sooner.
const sliceLeast = 16

// slice returns where the next turns are to be taken for a poll, nil if there is nothing for it.
func (pl *plan) slice(p *poll) *slice {
	var first *queue
	var open uint16
	for _, q := range p.queues {
		if q.exhausted == pl.number || first != nil && first.turn.pass <= q.turn.pass {
			continue
		}
		if mask := pl.offered(q); mask != 0 {
			first, open = q, mask
		}
	}
	if first == nil {
		return nil
	}
	s := &slice{pl: pl, open: open, rank: first.next(open)}
	var next *tenantStreams
	for _, sq := range first.offers {
		if sq.mask&(1<<s.rank) == 0 || !pl.mayOpen(sq.shard) {
			continue
		}
		if t := sq.bands[s.rank].offers.first(); next == nil || t.sooner(next) {
			s.sq, next = sq, t
		}
	}
	return s
}

// offered are the bands with something of a queue in the shards that take part in this plan.
func (pl *plan) offered(q *queue) (mask uint16) {
	for _, sq := range q.offers {
		if pl.mayOpen(sq.shard) {
			mask |= sq.mask
		}
	}
	return mask
}

// goesOn says whether the next turn is taken here too, and of which rank. The first one always is.
func (s *slice) goesOn() bool {
	if s.taken++; s.taken == 1 {
		return true
	}
	if s.sq.mask == 0 {
		return false
	}
	if s.rank = s.sq.queue.next(s.open | s.sq.mask); s.sq.mask&(1<<s.rank) == 0 {
		return false
	}
	return s.taken%sliceLeast != 1 || !s.overtaken()
}

// overtaken says whether another shard's next tenant is behind. That it is older only does not matter here: a slice of one
// tenant goes on to its limit.
func (s *slice) overtaken() bool {
	next := s.sq.bands[s.rank].offers.first().turns.lap()
	return slices.ContainsFunc(s.sq.queue.offers, func(sq *shardQueue) bool {
		return sq != s.sq && sq.mask&(1<<s.rank) != 0 && s.pl.mayOpen(sq.shard) && sq.bands[s.rank].offers.first().turns.lap() < next
	})
}

// sooner says whether t's turn comes before other's.
func (t *tenantStreams) sooner(other *tenantStreams) bool {
	if a, b := t.turns.lap(), other.turns.lap(); a != b {
		return a < b
	}
	return t.offers.first().oldest().before(other.offers.first().oldest())
}
