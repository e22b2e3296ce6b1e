package dispatch

import (
	"maps"
	"slices"
	"time"
)

const (
	// MaxInterest bounds the queues of one node's interest, maxPeers the other nodes that may have any.
	MaxInterest = 10_000
	maxPeers    = 64

	// hintEvery is the least time between two hints of a queue to a node.
	hintEvery = 5 * time.Millisecond
	// hintAgain is when a hint is repeated although nothing has changed: it may have been lost, and so may the poll that it
	// caused.
	hintAgain = 200 * time.Millisecond
	// interestEvery is the least time between two calls of Config.InterestChanged.
	interestEvery = 5 * time.Millisecond
)

// peer is another node, as far as polls wait there. Guarded by Dispatcher.mu.
type peer struct {
	name   string
	queues map[string]*interest
	// list is what SetInterest was last given.
	list []string
}

// interest is a node's in one queue. It refers to the queue. Guarded by Dispatcher.mu.
type interest struct {
	peer  *peer
	queue *queue
	// news: something came that the node has not been told of; hintedAt is when it was last told.
	news     bool
	hintedAt time.Time
}

// hint is what one node is to be told.
type hint struct {
	node   string
	queues []string
}

// outbox is what is to be told to others, gathered by the planner. Guarded by Dispatcher.mu.
type outbox struct {
	// warm are queues that may have something for other nodes' polls.
	warm  []*queue
	hints []hint
	// wanted are the queues with a hungry poll that waits here; told is what Interest last said of them.
	wanted, told map[string]struct{}
	// unsaid: something is wanted that is not told; changed: InterestChanged is to be called. changedAt is when it last was.
	unsaid, changed bool
	changedAt       time.Time
}

// SetInterest says in which queues polls wait at another node: the whole list each time, none if the node is gone. What is
// beyond MaxInterest queues, or beyond 64 nodes, is left out: those polls find work by asking. Config.Hint is called for a
// queue that has something, once when interest in it arrives and then whenever it gets more, as long as no poll here
// takes it.
func (d *Dispatcher) SetInterest(node string, queues []string) {
	queues = queues[:min(len(queues), MaxInterest)]
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[node]
	switch {
	case p == nil && (len(queues) == 0 || len(d.peers) == maxPeers):
		return
	case p == nil:
		p = &peer{name: node, queues: map[string]*interest{}}
		d.peers[node] = p
	case slices.Equal(p.list, queues):
		return
	}
	p.list = slices.Clone(queues)
	wanted := make(map[string]bool, len(queues))
	for _, name := range queues {
		wanted[name] = true
		if p.queues[name] == nil {
			d.interested(p, name)
		}
	}
	for name, in := range p.queues {
		if !wanted[name] {
			d.uninterested(in)
		}
	}
	if len(p.queues) == 0 {
		delete(d.peers, node)
	}
	signal(d.wakePlanner)
}

// interested adds a node's interest in a queue. Locked.
func (d *Dispatcher) interested(p *peer, name string) {
	q := d.refer(name)
	in := &interest{peer: p, queue: q, news: true}
	p.queues[name] = in
	q.interests = append(q.interests, in)
	d.warmUp(q)
}

// uninterested ends it. Locked.
func (d *Dispatcher) uninterested(in *interest) {
	q := in.queue
	delete(in.peer.queues, q.name)
	q.interests = slices.DeleteFunc(q.interests, func(other *interest) bool { return other == in })
	d.unrefer(q, 1)
}

// Interest returns the queues for which polls wait here that lack something, sorted, at most MaxInterest. Polls without a
// wait are not counted: so a node that asks here does not pass for one that wants to be told.
func (d *Dispatcher) Interest() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := &d.outbox
	o.told, o.unsaid = maps.Clone(o.wanted), false
	list := slices.Sorted(maps.Keys(o.wanted))
	return list[:min(len(list), MaxInterest)]
}

// something is how much a poll of the queue might get at once: what is promised to other polls is not counted. Locked.
func (q *queue) something() int { return q.heads + max(0, q.due-q.promised) }

// news notes that the queue may have more than it had. Locked.
func (d *Dispatcher) news(q *queue) {
	for _, in := range q.interests {
		in.news = true
	}
	d.warmUp(q)
}

// warmUp has the planner see whether other nodes are to be told of the queue. Locked.
func (d *Dispatcher) warmUp(q *queue) {
	if !q.warm && len(q.interests) > 0 && q.something() > 0 {
		q.warm = true
		d.outbox.warm = append(d.outbox.warm, q)
	}
}

// seated counts the hungry polls of a queue that wait here: by 1 or -1 as one comes or goes. Locked.
func (d *Dispatcher) seated(q *queue, by int) {
	o := &d.outbox
	q.waiting += by
	switch {
	case q.waiting == 0:
		delete(o.wanted, q.name)
	case q.waiting == 1 && by > 0:
		o.wanted[q.name] = struct{}{}
		if _, told := o.told[q.name]; !told {
			o.unsaid = true
		}
	}
}

// left notes that a poll no longer takes part in a queue: what it leaves is for others. A poll that took nothing shows that
// there may be nothing to take: what it leaves is told of again, but not as news. Locked.
func (d *Dispatcher) left(q *queue, p *poll) {
	if q.hungry.Len() > 0 || len(q.interests) == 0 || q.something() == 0 {
		return
	}
	if p.waits || len(p.got)+p.reserved > 0 {
		d.news(q)
	}
	d.warmUp(q)
	signal(d.wakePlanner)
}

// promise is how many due timers of a queue an advance is to put into the hands of polls.
type promise struct {
	queue *queue
	n     int
}

// promise counts them out of what there is for others. Locked.
func (a *advance) promise() {
	for _, p := range a.promises {
		p.queue.promised += p.n
	}
}

// endPromises makes what was promised and not delivered available to others. Locked.
func (d *Dispatcher) endPromises(a *advance) {
	for _, p := range a.promises {
		p.queue.promised -= p.n
		d.warmUp(p.queue)
	}
}

// interest has others told of what is wanted here and not told yet.
func (pl *plan) interest() {
	o := &pl.d.outbox
	if !o.unsaid {
		return
	}
	if rest := interestEvery - pl.now.Sub(o.changedAt); rest > 0 {
		pl.within(rest)
		return
	}
	o.unsaid, o.changed, o.changedAt = false, true, pl.now
}

// hints gathers what other nodes are to be told: of the queues that have something that no poll here takes.
func (pl *plan) hints() {
	o := &pl.d.outbox
	if len(o.warm) == 0 {
		return
	}
	kept := o.warm[:0]
	at := map[*peer]int{}
	for _, q := range o.warm {
		if q.warm = len(q.interests) > 0 && q.something() > 0 && q.hungry.Len() == 0; !q.warm {
			continue
		}
		kept = append(kept, q)
		for _, in := range q.interests {
			every := hintAgain
			if in.news {
				every = hintEvery
			}
			if rest := every - pl.now.Sub(in.hintedAt); rest > 0 {
				pl.within(rest)
				continue
			}
			in.news, in.hintedAt = false, pl.now
			pl.within(hintAgain)
			i, ok := at[in.peer]
			if !ok {
				i = len(o.hints)
				at[in.peer] = i
				o.hints = append(o.hints, hint{node: in.peer.name})
			}
			o.hints[i].queues = append(o.hints[i].queues, q.name)
		}
	}
	clear(o.warm[len(kept):])
	o.warm = kept
}

// tell makes the calls that a plan has gathered, without the lock.
func (d *Dispatcher) tell() {
	d.mu.Lock()
	o := &d.outbox
	hints, changed := o.hints, o.changed
	o.hints, o.changed = nil, false
	for _, h := range hints {
		d.counts.Hints += uint64(len(h.queues))
	}
	d.mu.Unlock()
	for _, h := range hints {
		d.cfg.Hint(h.node, h.queues)
	}
	if changed {
		d.cfg.InterestChanged()
	}
}
