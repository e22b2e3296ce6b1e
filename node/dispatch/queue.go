package dispatch

import (
	"container/list"
	"time"
)

// queue is a queue as the whole node sees it. It lives while something refers to it. Guarded by Dispatcher.mu.
type queue struct {
	name string
	// turn is its account among the queues; classes are those of its priorities, by urgency; turns counts all that were taken.
	turn    account
	classes [priorities]class
	shares  Shares
	turns   uint64
	// refs counts polls, timers in wheels, shards' queues and other nodes' interests that refer to it.
	refs int
	// hungry are the waiting polls that may take more, first come first.
	hungry list.List
	// lastPoll is when a poll last came or left.
	lastPoll time.Time
	// offers are the shards' queues that have something to offer.
	offers []*shardQueue
	// heads counts ready keys in memory, due timers that are due and not yet fired: what a poll could get.
	heads, due int
	// promised is how many of the due are on their way into polls' hands.
	promised int
	// waiting counts the hungry polls that wait here: those that ask without a wait are left out.
	waiting int
	// interests are those of other nodes. warm: stands in outbox.warm.
	interests []*interest
	warm      bool
	// hot: stands in Dispatcher.hot.
	hot bool
	// exhausted is the number of the plan that found nothing more to offer here.
	exhausted uint64
}

// refer returns the queue of that name, with one more reference. Locked.
func (d *Dispatcher) refer(name string) *queue {
	q := d.queues[name]
	if q == nil {
		q = &queue{name: name, turn: account{parent: &d.turns, step: turnCost}}
		for rank := range q.classes {
			q.classes[rank].parent = &q.turn
		}
		q.setShares(d.sharesOf(name))
		d.queues[name] = q
	}
	q.refs++
	return q
}

// unrefer takes n references back; q may be nil. Locked.
func (d *Dispatcher) unrefer(q *queue, n int) {
	if q == nil || n == 0 {
		return
	}
	if q.refs -= n; q.refs == 0 {
		delete(d.queues, q.name)
	}
}

// heat notes that q may have something for a poll. The planner drops what is not so. Locked.
func (d *Dispatcher) heat(q *queue) {
	if !q.hot && len(q.offers) > 0 && q.hungry.Len() > 0 {
		q.hot = true
		d.hot = append(d.hot, q)
	}
}

// offer puts a shard's queue among those that have something, or takes it away. Locked.
func (d *Dispatcher) offer(sq *shardQueue) {
	q := sq.queue
	has := sq.mask != 0
	switch {
	case has && sq.offeredAt < 0:
		sq.offeredAt = len(q.offers)
		q.offers = append(q.offers, sq)
		q.turn.enter()
		d.heat(q)
	case !has && sq.offeredAt >= 0:
		last := q.offers[len(q.offers)-1]
		q.offers[sq.offeredAt] = last
		last.offeredAt = sq.offeredAt
		q.offers[len(q.offers)-1] = nil
		q.offers = q.offers[:len(q.offers)-1]
		sq.offeredAt = -1
		q.turn.leave()
	}
}

// livedIn says whether workers of q seem to be about, here or at another node, though none may be waiting at this moment.
func (q *queue) livedIn(now time.Time) bool {
	return len(q.interests) > 0 || now.Sub(q.lastPoll) < pollMemory
}
