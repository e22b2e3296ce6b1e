package node

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/clock"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// advanceFor bounds one AdvanceClock; one that has a deadline returns advanceMargin before it.
	advanceFor    = 20 * time.Second
	advanceMargin = 500 * time.Millisecond
	// exactSteps is how many due instants on the way to a goal get a step of their own, however close together they are.
	// Each stepCostMS that the clock passes pays for one more. Without one left, a step takes in what is due until the next
	// is paid for: a million instants are worth a minute, not an hour.
	exactSteps = 10_000
	stepCostMS = 5_000
)

// lastInstant is the latest that a virtual clock can stand at.
var lastInstant = time.Date(9999, time.December, 31, 23, 59, 59, 999_000_000, time.UTC)

// advancer moves a virtual clock ahead: from due instant to due instant, each when everything due by then has fired, so that
// what happens in the log is stamped with the instant at which it was due. It decides nothing about jobs: what is due is read
// off the rows, and fired by the dispatcher.
type advancer struct {
	clock *clock.Virtual
	// rouse tells those who wait for an instant that the clock has moved. quiet says that they have done what there was to do,
	// such as to hand what has fired to workers that wait for it, or to find when a cron job fires next, and when something is
	// due next, math.MaxInt64 if nothing is. Nothing may be due there any more, but nothing is due before.
	rouse func()
	quiet func() (nextMS int64, quiet bool, err error)
	// one holds a token while somebody advances.
	one chan struct{}
	// changed is poked when quiet may have become true.
	changed wake
	// stopping is closed when the node stops.
	stopping <-chan struct{}
	// applied counts the entries that everybody has been told of.
	applied atomic.Uint64
	// steps belongs to who holds one.
	steps stepping
}

func newAdvancer(virtual *clock.Virtual) *advancer {
	return &advancer{clock: virtual, one: make(chan struct{}, 1), changed: newWake()}
}

// told says that everybody has been told of an entry. There is no advancer without a virtual clock.
func (a *advancer) told() {
	if a != nil {
		a.applied.Add(1)
	}
}

// look makes who waits look again whether all is quiet. There is no advancer without a virtual clock.
func (a *advancer) look() {
	if a != nil {
		a.changed.poke()
	}
}

// settled returns when everything that is due has fired and nothing that comes of it is under way, with the instant of what is
// due next.
func (a *advancer) settled(ctx context.Context) (nextMS int64, err error) {
	for {
		applied := a.applied.Load()
		next, quiet, err := a.quiet()
		switch {
		case err != nil:
			return 0, err
		case a.applied.Load() != applied:
			continue // one may have been found quiet before it was told of the entry, another one after.
		case quiet && next > a.clock.Now():
			return next, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-a.stopping:
			return 0, &rpc.Unavailable{Reason: "the node is stopping", RetryAfter: time.Second}
		case <-a.changed:
		}
	}
}

// aim sets the goal of the calls of advance that follow. One that stands already is gone on with. fired is how many
// occurrences have become executions so far.
func (a *advancer) aim(toMS int64, fired uint64) {
	if a.steps.goalMS != toMS {
		a.steps = stepping{goalMS: toMS, atMS: a.clock.Now(), creditMS: exactSteps * stepCostMS, told: fired}
	}
}

// advance moves the clock to the goal and returns when everything due by then has fired, or with ctx's error.
func (a *advancer) advance(ctx context.Context) error {
	for {
		next, err := a.settled(ctx)
		if err != nil {
			return err
		}
		if a.clock.Now() >= a.steps.goalMS {
			return nil
		}
		a.clock.Set(a.steps.next(next))
		a.rouse()
	}
}

// stepping says how far the steps on the way to a goal go.
type stepping struct {
	goalMS int64
	// atMS is where the last one went, creditMS what is left to pay the next ones with.
	atMS, creditMS int64
	// told is how many occurrences had become executions when that was last told.
	told uint64
}

// next is where the next step goes when something is due at dueMS.
func (s *stepping) next(dueMS int64) int64 {
	to := min(dueMS, s.goalMS)
	s.creditMS = min(exactSteps*stepCostMS, s.creditMS+to-s.atMS) - stepCostMS
	if s.creditMS < 0 {
		to = min(to-s.creditMS, s.goalMS)
		s.creditMS = 0
	}
	s.atMS = to
	return to
}

// openVirtualClock gives the node a virtual clock.
func (n *Node) openVirtualClock(lastStampMS int64) {
	begin := n.cfg.VirtualClock.UnixMilli()
	virtual := clock.NewVirtual(begin, lastStampMS)
	n.guard, n.advancer = virtual, newAdvancer(virtual)
	n.advancer.rouse = func() { n.dispatcher.ClockChanged() }
	n.advancer.quiet = n.quiet
	n.logger.Warn("THE CLOCK IS VIRTUAL: time stands still until it is advanced, and nothing falls due by itself",
		"clock", rfc3339(virtual.Now()), "advance", "carillon clock advance")
	if virtual.Now() > begin {
		n.logger.Warn("the virtual clock goes on where the log ends: time does not go back",
			"clock", rfc3339(virtual.Now()), "asked", rfc3339(begin))
	}
}

// clockNote is what health tells of a virtual clock.
func (n *Node) clockNote() string {
	if n.advancer == nil {
		return ""
	}
	return "the clock is virtual: nothing falls due by itself"
}

func rfc3339(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999Z07:00")
}

// dispatching is for a clock that jumps: timers that an advance comes to are in memory mostly, and what is due fires
// at once, as nobody is any nearer a moment later.
func (a *advancer) dispatching(cfg *dispatch.Config) {
	cfg.ClockStands, cfg.Horizon, cfg.Planned = true, 24*time.Hour, a.changed.poke
	cfg.Grace, cfg.Quantum, cfg.RoundsPerSecond = 1, 1, 1_000_000
}

// patience is that of the replicas. It is measured in stamps, which on a virtual clock say nothing of how long anybody waits.
func (n *Node) patience() func(*storagev1.Command) time.Duration {
	if n.advancer == nil {
		return patience
	}
	return func(cmd *storagev1.Command) time.Duration {
		if patience(cmd) == 0 {
			return 0
		}
		return math.MaxInt64
	}
}

// relaxed says of a command of this node's own that nobody outside is told what comes of it before the advance under way is
// durable as a whole: it fires or expands without handing anything to a worker.
func (n *Node) relaxed(cmd *storagev1.Command) bool {
	return n.advancer != nil && (cmd.Expand != nil || cmd.Advance != nil && len(cmd.Advance.Demand) == 0)
}

// quiet says whether everything that is due has fired, and when something is due next: see advancer.
func (n *Node) quiet() (nextMS int64, quiet bool, err error) {
	nextMS, unknown, quiet := n.dispatcher.Quiet(n.slots.shards)
	if !quiet || !n.expander.Idle() || !n.tasks.idle() {
		return 0, false, nil
	}
	for _, shard := range unknown {
		at, ok, err := n.firstTimer(shard)
		if err != nil {
			return 0, false, fmt.Errorf("read first timer of shard %d: %w", shard, err)
		}
		if ok {
			nextMS = min(nextMS, at)
		}
	}
	return nextMS, true, nil
}

func (n *Node) firstTimer(shard uint32) (atMS int64, ok bool, err error) {
	r := store.NewReader(n.engine, shard)
	atMS, ok = fsm.FirstTimer(r)
	return atMS, ok, r.Err()
}

// Clock says what time it is, and on a virtual clock when something is due next.
func (n *Node) Clock(ctx context.Context) (rpc.ClockStatus, error) {
	status := rpc.ClockStatus{NowMS: n.guard.Now(), Virtual: n.advancer != nil}
	if n.advancer == nil {
		return status, nil
	}
	for _, shard := range n.slots.shards {
		at, ok, err := n.firstTimer(shard)
		if err != nil {
			return rpc.ClockStatus{}, err
		}
		if ok && (status.NextDueMS == 0 || at < status.NextDueMS) {
			status.NextDueMS = at
		}
	}
	return status, nil
}

// AdvanceClock moves a virtual clock ahead, at most as far as it comes within ctx's deadline and advanceFor: the answer says
// where it stands then.
func (n *Node) AdvanceClock(ctx context.Context, goal rpc.ClockGoal) (rpc.ClockAdvance, error) {
	a := n.advancer
	if a == nil {
		return rpc.ClockAdvance{}, refuse(fsm.FailedPrecondition, "",
			"this server keeps its machine's time; only one that was started with --virtual-clock can be advanced")
	}
	bounded, cancel := boundedAdvance(ctx)
	defer cancel()
	select {
	case a.one <- struct{}{}:
		defer func() { <-a.one }()
	case <-bounded.Done():
		return rpc.ClockAdvance{}, &rpc.Unavailable{Reason: "another call advances the clock", RetryAfter: time.Second}
	}
	now := a.clock.Now()
	toMS := goal.ToMS
	if toMS == 0 {
		toMS = now + goal.ByMS
	}
	if toMS < now {
		return rpc.ClockAdvance{}, refuse(fsm.FailedPrecondition, "to", "the clock stands at %s and does not go back to %s", rfc3339(now), rfc3339(toMS))
	}
	if toMS > lastInstant.UnixMilli() {
		return rpc.ClockAdvance{}, refuse(fsm.InvalidArgument, "by", "the clock stands at %s and does not go beyond the year 9999", rfc3339(now))
	}
	res := rpc.ClockAdvance{ToMS: toMS}
	fired, err := n.firedTotal()
	if err != nil {
		return rpc.ClockAdvance{}, err
	}
	a.aim(toMS, fired)
	err = n.advanceTo(bounded)
	if err != nil && bounded.Err() == nil {
		return rpc.ClockAdvance{}, err
	}
	res.Done = err == nil
	if err := n.stamp(ctx); err != nil {
		return rpc.ClockAdvance{}, err
	}
	if fired, err = n.firedTotal(); err != nil {
		return rpc.ClockAdvance{}, err
	}
	res.Fired, a.steps.told = fired-a.steps.told, fired
	res.Clock, err = n.Clock(ctx)
	return res, err
}

// boundedAdvance ends early enough before ctx's deadline that there is time to answer.
func boundedAdvance(ctx context.Context) (context.Context, context.CancelFunc) {
	until := time.Now().Add(advanceFor)
	if deadline, ok := ctx.Deadline(); ok {
		until = earlier(until, deadline.Add(-min(advanceMargin, time.Until(deadline)/4)))
	}
	return context.WithDeadline(ctx, until)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// advanceTo has everything fire that is due up to the goal, and removes what has outlived its retention.
func (n *Node) advanceTo(ctx context.Context) error {
	if err := n.advancer.advance(ctx); err != nil {
		return err
	}
	if err := n.keepHouse(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

// stamp has the log remember how far time has come, and returns when that is durable, with all that was relaxed before: the
// shards share the store's log, whose syncs cover everything written before them.
func (n *Node) stamp(ctx context.Context) error {
	_, err := n.host.Do(ctx, n.slots.shards[0], &storagev1.Command{Advance: &storagev1.Advance{Limit: 1}})
	return backendError(err)
}

// firedTotal is how many occurrences have become executions.
func (n *Node) firedTotal() (total uint64, err error) {
	metas, err := n.metas()
	for _, meta := range metas {
		total += meta.GetFiredTotal()
	}
	return total, err
}

// metas are the shards' own rows.
func (n *Node) metas() (list []*storagev1.Meta, err error) {
	for _, shard := range n.slots.shards {
		r := store.NewReader(n.engine, shard)
		list = append(list, fsm.ReadMeta(r))
		if err := r.Err(); err != nil {
			return nil, err
		}
	}
	return list, nil
}
