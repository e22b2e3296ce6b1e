package expand

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
)

const (
	// slice is for how long the jobs of one batch are evaluated; those that are left go with the next one, after the other
	// shards'.
	slice = 20 * time.Millisecond
	// heldRecheck is how often the clock guard is asked while it holds firing, idleFor how long Run sleeps at most.
	heldRecheck = 100 * time.Millisecond
	idleFor     = time.Hour
	// warnEvery is how often a shard's jobs that cannot be evaluated are logged; they ask each second.
	warnEvery = time.Minute
)

// at is the clock that paces, in milliseconds and never 0. It is not the disciplined one, which may stand still.
func (x *Expander) at() int64 { return time.Since(x.began).Milliseconds() + 1 }

// round gives each shard its turn and returns how long to sleep then.
func (x *Expander) round() (sleep time.Duration, err error) {
	began := time.Now()
	led, inboxes := x.collect()
	x.rounds++
	mayFire := x.host.MayFire()
	next := x.at() + idleFor.Milliseconds()
	if len(led) > 0 && !mayFire {
		next = x.at() + heldRecheck.Milliseconds()
	}
	for i, sh := range led {
		for _, end := range inboxes[i].ends {
			end(x.at())
		}
		sh.queue.Add(x.at(), inboxes[i].hints...)
		if !mayFire {
			continue
		}
		for _, step := range []func(*shard) (int64, error){x.turn, x.stepZones} {
			again, err := step(sh)
			if err != nil {
				return 0, err
			}
			if again != 0 {
				next = min(next, again)
			}
		}
	}
	x.publish(led, time.Since(began))
	return time.Duration(next-x.at()) * time.Millisecond, nil
}

// collect returns the shards, in an order that turns from round to round, and empties their inboxes.
func (x *Expander) collect() (led []*shard, inboxes []inbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, sh := range x.shards {
		led = append(led, sh)
	}
	slices.SortFunc(led, func(a, b *shard) int { return cmp.Compare(a.id, b.id) })
	if n := len(led); n > 0 {
		turn := int(x.rounds % uint64(n))
		led = append(led[turn:], led[:turn]...)
	}
	x.working = true
	for _, sh := range led {
		inboxes = append(inboxes, sh.inbox)
		sh.inbox = inbox{}
	}
	return led, inboxes
}

// turn proposes a shard's next batch, if there is one. It returns when the shard wants its next turn, 0: when it is told
// something.
func (x *Expander) turn(sh *shard) (again int64, err error) {
	jobs, again := sh.queue.Take(x.at())
	if len(jobs) == 0 {
		return again, nil
	}
	until := time.Now().Add(slice)
	rows := x.host.Rows(sh.id)
	b := x.cfg.Evaluator.Evaluate(rows, jobs, x.host.Now(), func() bool { return time.Now().After(until) })
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("read cron jobs of shard %d: %w", sh.id, err)
	}
	if err := b.Err(); err != nil && x.at() >= sh.warnAt {
		sh.warnAt = x.at() + warnEvery.Milliseconds()
		x.log.Warn("cron jobs cannot be expanded", "shard", sh.id, "error", err)
	}
	sh.queue.Evaluated(b)
	cmd := b.Command()
	if cmd == nil {
		return x.at(), nil
	}
	x.host.Propose(sh.id, cmd, func(result fsm.Result, err error) {
		x.ended(sh, func(at int64) { x.applied(sh, b, &result, err, at) })
	})
	return 0, nil
}

// ended lets Run take in what came of a proposal. It is called on the replica loop's goroutine, or on Run's.
func (x *Expander) ended(sh *shard, end func(at int64)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	sh.inbox.ends = append(sh.inbox.ends, end)
	x.signal()
}

// applied takes in what came of a batch.
func (x *Expander) applied(sh *shard, b *Batch, result *fsm.Result, err error, at int64) {
	if err != nil || result.Refusal != nil {
		sh.queue.Lost(at, b)
		return
	}
	if err := sh.queue.Applied(at, b, result.Items); err != nil {
		x.log.Error("an expansion is refused", "shard", sh.id, "error", err)
	}
}

// stepZones lets the zones of a shard do a step, if it is time. It returns when they want the next one.
func (x *Expander) stepZones(sh *shard) (again int64, err error) {
	rows := x.host.Rows(sh.id)
	cmd, again := sh.zones.Step(rows, sh.queue, x.at())
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("read jobs of shard %d: %w", sh.id, err)
	}
	if cmd == nil {
		return again, nil
	}
	x.host.Propose(sh.id, cmd, func(result fsm.Result, err error) {
		x.ended(sh, func(at int64) {
			if sh.zones.Told(at, err == nil && result.Refusal == nil) && sh.zones.from != "" {
				x.log.Info("all cron jobs go by newer zone data", "shard", sh.id, "version", sh.zones.version, "before", sh.zones.from)
			}
		})
	})
	return 0, nil
}

// publish makes Stats of what the round has left.
func (x *Expander) publish(led []*shard, took time.Duration) {
	x.busy += took
	s := Stats{Counters: x.counts, Busy: x.busy}
	at := x.at()
	for _, sh := range led {
		s.Waiting += sh.queue.Len()
		if since, ok := sh.queue.Oldest(); ok {
			s.Oldest = max(s.Oldest, time.Duration(at-since)*time.Millisecond)
		}
	}
	x.mu.Lock()
	x.stats, x.working = s, false
	x.mu.Unlock()
	if s.Waiting == 0 {
		x.cfg.Settled()
	}
}
