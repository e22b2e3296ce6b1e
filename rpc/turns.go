package rpc

import (
	"context"
	"runtime"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// turnPatience is how long a call waits for its turn to evaluate a schedule.
const turnPatience = 2 * time.Second

var errTurns = &Overloaded{Reason: "too many costly schedules are evaluated at once", RetryAfter: time.Second}

// turns are the places of calls that evaluate schedules which may be costly: half of the processors at most, so that other
// calls find one that is free. Who waits longest is next.
type turns chan struct{}

func newTurns() turns { return make(turns, max(1, runtime.GOMAXPROCS(0)/2)) }

// take waits for a turn and returns what gives it back. Who has one must not wait for other calls.
func (t turns) take(ctx context.Context, patience time.Duration) (done func(), err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-timer.C:
		return nil, errTurns
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// takeFor is take for a call that evaluates s. A schedule that is surely cheap needs no turn: it must not wait behind others.
func (t turns) takeFor(ctx context.Context, s *carillonv1.Schedule) (done func(), err error) {
	if !mayBeCostly(s) {
		return func() {}, nil
	}
	return t.take(ctx, turnPatience)
}

// await is takeFor for a call that has no way back: it waits until ctx ends.
func (t turns) await(ctx context.Context, s *carillonv1.Schedule) (done func(), err error) {
	if !mayBeCostly(s) {
		return func() {}, nil
	}
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// mayBeCostly says whether it may take more than microseconds to evaluate a schedule: patterns alone are found soon, but
// exclusions and gaps that are skipped may leave nothing of them for centuries.
func mayBeCostly(s *carillonv1.Schedule) bool {
	c := s.GetCron()
	return c.GetExclude() != nil || c.GetGap() == carillonv1.Gap_GAP_SKIP
}
