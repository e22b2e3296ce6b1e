package dispatch

import (
	"container/heap"
	"container/list"
	"math/bits"
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
		sq := pl.best(p)
		if sq == nil {
			return
		}
		r := pl.open(sq.shard)
		c := r.claim(p)
		had := len(c.taken)
		n := min(p.lacks(), sliceLimit, roundLimit-r.rows)
		c.taken = pl.d.take(sq.bands[sq.rank()], n, c.taken)
		n = len(c.taken) - had
		r.rows += n
		pl.d.reserve(p, n)
	}
}

// best returns the shard's queue with the most urgent and then oldest head that the poll accepts, among the shards that
// take part in this plan; nil if there is none.
func (pl *plan) best(p *poll) (best *shardQueue) {
	for _, q := range p.queues {
		if q.exhausted == pl.number {
			continue
		}
		for _, sq := range q.offers {
			if (best == nil || sq.before(best)) && pl.mayOpen(sq.shard) {
				best = sq
			}
		}
	}
	return best
}

// rank is the most urgent band that has something to offer.
func (sq *shardQueue) rank() int { return bits.TrailingZeros16(sq.mask) }

// before says whether sq's head comes before other's.
func (sq *shardQueue) before(other *shardQueue) bool {
	a, b := sq.rank(), other.rank()
	if a != b {
		return a < b
	}
	x, y := sq.bands[a].offers[0].items[0].nominal, other.bands[b].offers[0].items[0].nominal
	return x < y || x == y && sq.shard.id < other.shard.id
}
