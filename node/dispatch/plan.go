package dispatch

import (
	"context"
	"math"
	"slices"
	"time"
)

// longSleep is from when on a sleep ends a little early, so that a clock that is slewed meanwhile makes nothing late.
const longSleep = 100 * time.Millisecond

// runPlanner makes plans whenever something asks for one or time has come, at most one per quantum.
func (d *Dispatcher) runPlanner(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		began := time.Now()
		proposals, sleep := d.plan(began)
		if len(proposals) > 0 {
			d.host.ProposeAll(proposals)
		}
		d.tell()
		d.cfg.Planned()
		timer.Reset(sleep)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.wakePlanner:
		case <-timer.C:
		}
		if rest := d.cfg.Quantum - time.Since(began); rest > 0 {
			timer.Reset(rest)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-timer.C:
			}
		}
	}
}

// plan is one look at everything that is due, ready and waiting. It holds the lock.
type plan struct {
	d      *Dispatcher
	number uint64
	nowMS  int64
	now    time.Time
	rounds []*round
	// sleep is how long nothing will be to do, unless something happens.
	sleep time.Duration
}

// plan decides what to propose now, and how long to sleep then.
func (d *Dispatcher) plan(now time.Time) ([]Proposal, time.Duration) {
	nowMS, mayFire := d.host.Now(), d.host.MayFire()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.Plans++
	pl := &plan{d: d, number: d.counts.Plans, nowMS: nowMS, now: now, sleep: math.MaxInt64}
	pl.endLingering()
	pl.interest()
	if !mayFire {
		pl.within(heldRecheck)
		return nil, pl.sleep
	}
	d.pace.refill(now)
	for _, sh := range d.led {
		pl.look(sh)
	}
	if !d.stopped {
		pl.claims()
		pl.advances()
		pl.hints()
	}
	var proposals []Proposal
	for _, r := range pl.rounds {
		proposals = append(proposals, d.proposals(r)...)
	}
	return proposals, pl.sleep
}

// within makes the planner look again after at most t.
func (pl *plan) within(t time.Duration) { pl.sleep = min(pl.sleep, max(t, 0)) }

// withinMS is within for an instant of the disciplined clock.
func (pl *plan) withinMS(at int64) {
	if pl.d.cfg.ClockStands {
		return
	}
	if at == math.MaxInt64 || at-pl.nowMS > int64(time.Hour/time.Millisecond) {
		pl.within(time.Hour)
		return
	}
	t := time.Duration(at-pl.nowMS) * time.Millisecond
	if t > longSleep {
		t -= t / 50
	}
	pl.within(t)
}

// endLingering closes the polls that waited long enough for more.
func (pl *plan) endLingering() {
	d := pl.d
	for len(d.lingering) > 0 {
		p := d.lingering[0]
		if rest := p.lingerUntil.Sub(pl.now); rest > 0 && !p.settled {
			pl.within(rest)
			return
		}
		shift(&d.lingering)
		if !p.settled {
			d.close(p)
		}
	}
}

// look brings a shard's due counts up to date, has timers loaded, and begins a round for leases to give back.
func (pl *plan) look(sh *shard) {
	d := pl.d
	if !sh.ready {
		return
	}
	d.tick(sh, pl.nowMS, pl.now)
	t := &sh.timers
	switch {
	case d.wantsTimers(sh, pl.nowMS):
		t.loading = true
		d.jobs.timers = append(d.jobs.timers, sh)
		signal(d.wakeLoader)
	case !t.loading && !t.cut:
		pl.withinMS(t.reloadAt)
	}
	pl.withinMS(t.next)
	if len(sh.releases) > 0 {
		if r := pl.open(sh); r != nil {
			n := min(len(sh.releases), roundLimit)
			r.releases, sh.releases = sh.releases[:n:n], sh.releases[n:]
			r.rows += n
		}
	}
}

// mayOpen says whether the shard takes part in this plan: nothing is under way there, it is not resting, and there is a
// token for its round or it has one in this plan already.
func (pl *plan) mayOpen(sh *shard) bool {
	if !sh.ready {
		return false
	}
	if sh.round != nil {
		return sh.round.plan == pl.number && sh.round.rows < roundLimit && sh.round.commands < commandLimit
	}
	if rest := sh.restUntil.Sub(pl.now); rest > 0 {
		pl.within(rest)
		return false
	}
	if pl.d.pace.tokens < 1 {
		pl.within(pl.d.pace.wait())
		return false
	}
	return true
}

// open returns the shard's round in this plan, a new one if need be, nil if it may have none.
func (pl *plan) open(sh *shard) *round {
	if !pl.mayOpen(sh) {
		return nil
	}
	if sh.round == nil {
		pl.d.pace.take()
		pl.d.counts.Rounds++
		sh.round = &round{shard: sh, plan: pl.number, began: pl.now}
		pl.rounds = append(pl.rounds, sh.round)
	}
	return sh.round
}

// advances goes through the shards with due timers, those that have waited longest first: there may be neither rounds nor
// polls for all.
func (pl *plan) advances() {
	var due []*shard
	for _, sh := range pl.d.led {
		if sh.ready && (sh.timers.total > 0 || sh.timers.moreDue) {
			due = append(due, sh)
		}
	}
	slices.SortStableFunc(due, func(a, b *shard) int { return a.timers.since.Compare(b.timers.since) })
	for _, sh := range due {
		pl.advance(sh)
	}
}

// advance plans to fire what is due in a shard: into the hands of hungry polls if it can, else to ready. While no poll
// can take what is due but workers seem to be about, it waits for them up to the grace.
func (pl *plan) advance(sh *shard) {
	t := &sh.timers
	if !pl.mayOpen(sh) {
		return
	}
	limit := roundLimit
	if sh.round != nil {
		limit -= sh.round.rows
	}
	adv := &advance{before: t.total, shareOf: map[*poll]int{}}
	waiting := 0
	for _, c := range t.due {
		sq := sh.queues[c.queue.name]
		if sq != nil && (sq.paused || !sq.empty()) || sh.settings.queues[c.queue.name] {
			continue
		}
		left := adv.demand(c, limit-adv.total)
		if left < c.n {
			adv.promises = append(adv.promises, promise{queue: c.queue, n: c.n - left})
		}
		if left > 0 && c.queue.livedIn(pl.now) {
			waiting += left
		}
	}
	if grace := pl.d.cfg.Grace - pl.now.Sub(t.since); grace > 0 && waiting > 0 {
		pl.within(grace)
		if t.total == waiting {
			return
		}
		limit = min(limit, t.total-waiting)
	}
	if adv.total > 0 {
		// What falls due before the entry is stamped would find no demand left.
		limit = min(limit, t.total)
	}
	adv.limit = limit
	r := pl.open(sh)
	r.advance = adv
	adv.promise()
	r.commands++
	for i := range adv.shares {
		pl.d.reserve(adv.shares[i].poll, adv.shares[i].n)
	}
}

// demand shares a queue's due timers among its hungry polls, at most limit in all. It returns how many nobody takes.
func (a *advance) demand(c dueCount, limit int) (left int) {
	left = c.n
	for el := c.queue.hungry.Front(); el != nil && left > 0 && limit > 0; el = el.Next() {
		p := el.Value.(*poll)
		s := a.share(p)
		if s == nil {
			break
		}
		n := min(left, limit, p.lacks()-s.n)
		if n <= 0 {
			continue
		}
		if len(s.queues) == 0 || s.queues[len(s.queues)-1] != c.queue.name {
			s.queues = append(s.queues, c.queue.name)
		}
		s.n += n
		a.total += n
		left -= n
		limit -= n
	}
	return left
}

// share returns the poll's share of the advance, nil if there are too many.
func (a *advance) share(p *poll) *share {
	at, ok := a.shareOf[p]
	if !ok {
		if len(a.shares) == commandLimit {
			return nil
		}
		at = len(a.shares)
		a.shares, a.shareOf[p] = append(a.shares, share{poll: p}), at
	}
	return &a.shares[at]
}
