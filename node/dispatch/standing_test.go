package dispatch_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/node/dispatch"
)

// A clock that stands still: the planner sleeps, however near an instant is, until it is told that the clock has moved; then
// what is due fires, from beyond the horizon as well.
func TestAStandingClockIsWaitedForOnlyWhenItMoves(t *testing.T) {
	var moved atomic.Int64
	begin := time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return begin.Add(time.Duration(moved.Load())) }
	inWorldOf(t, 4, dispatch.Config{ClockStands: true, Grace: 1}, clock, func(t *testing.T, w *world) {
		w.create(job{id: "soon", in: time.Millisecond}, job{id: "later", in: 36 * time.Hour})
		synctest.Wait()
		before := w.d.Stats().Plans
		time.Sleep(time.Hour)
		if got := w.poll("c0", 10, 0); len(got) != 0 {
			t.Fatalf("fired %v, and the clock has not moved", ids(got))
		}
		if plans := w.d.Stats().Plans - before; plans > 2 {
			t.Errorf("%d plans in an hour in which nothing happened but a poll", plans)
		}
		for _, step := range []struct {
			to  time.Duration
			due string
		}{{time.Millisecond, "soon"}, {36 * time.Hour, "later"}} {
			moved.Store(int64(step.to))
			w.d.ClockChanged()
			got := w.poll(step.due, 10, time.Second)
			if len(got) != 1 || got[0].JobId != step.due {
				t.Errorf("at %v got %v; want %s", step.to, ids(got), step.due)
			}
			w.complete(got...)
		}
	})
}
