package dispatch_test

import (
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
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

// Who waits for all to be quiet is told when something is due next, from memory; beyond the horizon the rows have to be asked.
func TestQuietSaysWhatIsDueNext(t *testing.T) {
	var moved atomic.Int64
	begin := time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return begin.Add(time.Duration(moved.Load())) }
	cfg := dispatch.Config{ClockStands: true, Grace: 1, Quantum: 1, Horizon: 24 * time.Hour}
	inWorldOf(t, 1, cfg, clock, func(t *testing.T, w *world) {
		wants := func(next int64, unknown int) {
			t.Helper()
			synctest.Wait()
			at, shards, quiet := w.d.Quiet([]uint32{0})
			if !quiet || at != next || len(shards) != unknown {
				t.Errorf("quiet: %v, next %d, unknown %v; want %d and %d shards", quiet, at, shards, next, unknown)
			}
		}
		if _, _, quiet := w.d.Quiet([]uint32{0, 1}); quiet {
			t.Error("it is quiet where a shard is not led")
		}
		w.create(job{id: "far", in: 36 * time.Hour})
		wants(math.MaxInt64, 1)
		w.create(job{id: "gone", in: time.Hour}, job{id: "near", in: 2 * time.Hour})
		wants(begin.Add(time.Hour).UnixMilli(), 0)
		w.do(0, &storagev1.Command{DeleteJob: &storagev1.DeleteJob{Tenant: "default", JobId: "gone", Hash: []byte("0123456789abcdef")}})
		moved.Store(int64(time.Hour))
		entries := w.entries.Load()
		w.d.ClockChanged()
		time.Sleep(turnTime + time.Microsecond) // a shard that rests does so for longer
		wants(begin.Add(2*time.Hour).UnixMilli(), 0)
		if n := w.entries.Load() - entries; n != 1 {
			t.Errorf("a timer that is gone cost %d entries; want one", n)
		}
		moved.Store(int64(2 * time.Hour))
		w.held.Store(true)
		w.d.ClockChanged()
		time.Sleep(turnTime)
		if _, _, quiet := w.d.Quiet([]uint32{0}); quiet {
			t.Error("it is quiet while an advance is under way")
		}
		w.held.Store(false)
		w.signal()
		time.Sleep(turnTime + time.Microsecond)
		wants(math.MaxInt64, 1)
	})
}
