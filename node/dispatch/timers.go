package dispatch

import (
	"math"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/wheel"
)

// maxTimersPerShard keeps what one critical section may have to move small.
const maxTimersPerShard = 65_536

// timers are a shard's timers inside the horizon. They say when to propose an advance and how much demand may meet what
// it fires. They may hold timers that are gone from the rows, or hold one twice: that costs an advance that fires nothing.
// What must not happen is that a due timer has nothing in here at or before its instant. Guarded by Dispatcher.mu.
type timers struct {
	// wheel holds the queue of each timer, nil for those that make nothing ready.
	wheel *wheel.Wheel[*queue]
	// next is no later than the wheel's first instant, math.MaxInt64 if it is empty.
	next int64
	// loadedUntil: every timer up to here is in the wheel, or was due already. cut: the wheel was full before the horizon.
	loadedUntil int64
	cut         bool
	// reloadAt is when the next half horizon is to be loaded, if not cut.
	reloadAt int64
	// loading: the loader is reading timers of this shard, or will.
	loading bool

	// due counts by queue what the wheel fired and no advance has taken yet, dueAt says where a queue's count is among them;
	// other counts what makes nothing ready.
	due   []dueCount
	dueAt map[*queue]int
	other int
	total int
	// since is when the oldest of the due was noticed, at the latest.
	since time.Time
	// moreDue: the last advance left due timers that are not counted here.
	moreDue bool
	// doubted: an advance fired less than was counted; the rest is dropped if the next one finds nothing either.
	doubted bool
}

type dueCount struct {
	queue *queue
	n     int
}

// timerLimit is how many timers each shard may hold. Locked.
func (d *Dispatcher) timerLimit() int {
	return max(64, min(d.cfg.MaxTimers/max(1, len(d.led)), maxTimersPerShard))
}

// addTimers takes in new timers inside the horizon and returns whether one comes before all others. Locked.
func (d *Dispatcher) addTimers(sh *shard, refs []fsm.TimerRef) (earlier bool) {
	t := &sh.timers
	for i := range refs {
		at := refs[i].AtMS
		if at > t.loadedUntil {
			continue
		}
		var q *queue
		if refs[i].Queue != "" {
			q = d.refer(refs[i].Queue)
		}
		t.wheel.Add(at, q)
		if at < t.next {
			t.next, earlier = at, true
		}
		if t.wheel.Len() > d.timerLimit() {
			d.shrinkTimers(sh)
		}
	}
	return earlier
}

// shrinkTimers drops the later half of a full wheel: it will be loaded again as the wheel empties. Each call is paid for
// by the additions that filled the half. Locked.
func (d *Dispatcher) shrinkTimers(sh *shard) {
	t := &sh.timers
	full, keep, last := t.wheel, d.timerLimit()/2, t.loadedUntil
	t.wheel = wheel.New[*queue](t.next)
	full.Advance(math.MaxInt64, func(at int64, q *queue) {
		if t.wheel.Len() == keep {
			d.unrefer(q, 1)
			return
		}
		t.wheel.Add(at, q)
		last = at
	})
	t.loadedUntil, t.cut = min(t.loadedUntil, last), true
}

// tick moves what is due at nowMS from the wheel to the due counts. Locked.
func (d *Dispatcher) tick(sh *shard, nowMS int64, now time.Time) {
	t := &sh.timers
	if t.next > nowMS {
		return
	}
	if t.total == 0 {
		t.since = now
	}
	t.wheel.Advance(nowMS, func(_ int64, q *queue) {
		t.count(q)
		if q != nil {
			d.news(q)
		}
	})
	t.next = math.MaxInt64
	if at, ok := t.wheel.Next(); ok {
		t.next = at
	}
}

// count adds a due timer; its reference to the queue moves along. Locked.
func (t *timers) count(q *queue) {
	t.total++
	if q == nil {
		t.other++
		return
	}
	q.due++
	at, ok := t.dueAt[q]
	if !ok {
		at = len(t.due)
		t.due, t.dueAt[q] = append(t.due, dueCount{queue: q}), at
	}
	t.due[at].n++
}

// settleDue takes n timers off the counts: first those of the queues that leases came from, then of whatever is left, as
// nothing says where the others went. Locked.
func (d *Dispatcher) settleDue(t *timers, n int, leased map[string]int) {
	for i := range t.due {
		taken := min(n, t.due[i].n, leased[t.due[i].queue.name])
		d.uncount(t, i, taken)
		n -= taken
	}
	for i := range t.due {
		taken := min(n, t.due[i].n)
		d.uncount(t, i, taken)
		n -= taken
	}
	taken := min(n, t.other)
	t.other -= taken
	t.total -= taken
	kept := t.due[:0]
	for _, c := range t.due {
		if c.n == 0 {
			delete(t.dueAt, c.queue)
			continue
		}
		t.dueAt[c.queue] = len(kept)
		kept = append(kept, c)
	}
	clear(t.due[len(kept):])
	t.due = kept
}

func (d *Dispatcher) uncount(t *timers, i, n int) {
	c := &t.due[i]
	c.n -= n
	t.total -= n
	c.queue.due -= n
	d.unrefer(c.queue, n)
}

// forgetTimers gives back what a shard's timers refer to. Locked.
func (d *Dispatcher) forgetTimers(sh *shard) {
	t := &sh.timers
	d.settleDue(t, t.total, nil)
	t.wheel.Advance(math.MaxInt64, func(_ int64, q *queue) { d.unrefer(q, 1) })
	t.next = math.MaxInt64
}

// wantsTimers says whether more timers are to be loaded now. Locked.
func (d *Dispatcher) wantsTimers(sh *shard, nowMS int64) bool {
	t := &sh.timers
	if t.loading || !sh.ready {
		return false
	}
	if t.cut {
		return t.wheel.Len()+t.total <= d.timerLimit()/4
	}
	return nowMS >= t.reloadAt
}

// advanced updates the counts by the result of an advance that was proposed at proposed, when before timers were counted
// as due. Locked.
func (d *Dispatcher) advanced(sh *shard, result *fsm.Result, before int, proposed time.Time) {
	t := &sh.timers
	leased := make(map[string]int, 4)
	for _, e := range result.Leases {
		leased[e.GetTemplate().GetQueue()]++
	}
	d.settleDue(t, min(before, result.Fired), leased)
	if result.Fired >= before {
		t.since = proposed
	}
	switch {
	case result.MoreDue:
		t.moreDue, t.doubted = true, false
	case result.Fired >= before:
		t.moreDue, t.doubted = false, false
	case t.doubted || d.cfg.ClockStands:
		// Nothing is due in the rows: what is left of the counts stood for timers that are gone.
		d.settleDue(t, before-result.Fired, nil)
		t.moreDue, t.doubted = false, false
	default:
		// Gone, or the entry's stamp was a little behind the clock that this was counted by. Ask once more.
		t.moreDue, t.doubted = false, true
		sh.restUntil = time.Now().Add(2 * time.Millisecond)
	}
}
