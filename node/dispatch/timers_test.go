package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// late is how long after its nominal time e is in hand.
func late(e *storagev1.Execution) time.Duration {
	return time.Duration(time.Now().UnixMilli()-e.NominalMs) * time.Millisecond
}

func TestDueToReturnedPollTakesOneEntry(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(20, job{in: 5 * time.Second})[3])
		time.Sleep(time.Second)
		before := w.entries.Load()
		got := w.poll("c", 10, time.Minute)
		if len(got) != 1 || late(got[0]) > turnTime+time.Millisecond {
			t.Fatalf("got %v, late by %v", ids(got), late(got[0]))
		}
		if w.entries.Load() != before+1 || w.rowsOf(fsm.KindReady) != 0 {
			t.Errorf("%d entries, must be 1: fired into the poll's hands", w.entries.Load()-before)
		}
	})
}

func TestWithoutAPollWhatIsDueBecomesReady(t *testing.T) {
	inWorld(t, 2, dispatch.Config{}, func(t *testing.T, w *world) {
		due := w.now() + 1000
		w.create(numbered(50, job{in: time.Second})...)
		time.Sleep(2 * time.Second)
		if n := w.rowsOf(fsm.KindReady); n != 50 {
			t.Fatalf("%d are ready, must be 50", n)
		}
		if q := w.d.Stats().Queues["q"]; q.Ready != 50 || q.OldestNominalMS != due {
			t.Errorf("stats say %+v", q)
		}
		if got := w.poll("c", 100, time.Second); len(got) != 50 {
			t.Errorf("the poll got %d", len(got))
		}
		if q := w.d.Stats().Queues["q"]; q.Ready != 0 || q.OldestNominalMS != 0 {
			t.Errorf("afterwards stats say %+v", q)
		}
	})
}

func TestDueTimersWaitAGraceForWorkersThatAreAbout(t *testing.T) {
	inWorld(t, 1, dispatch.Config{Grace: 100 * time.Millisecond}, func(t *testing.T, w *world) {
		w.create(job{id: "a", in: time.Second}, job{id: "b", in: 2 * time.Second}, job{id: "c", in: 2500 * time.Millisecond})
		if got := w.poll("c1", 1, time.Minute); len(got) != 1 || got[0].JobId != "a" {
			t.Fatalf("got %v", ids(got))
		}
		time.Sleep(500 * time.Millisecond)
		w.poll("c2", 1, 490*time.Millisecond)
		time.Sleep(50 * time.Millisecond)
		if n := w.rowsOf(fsm.KindReady); n != 0 {
			t.Errorf("fired with nobody to take it, 40 ms after it was due and 50 after a poll left")
		}
		if got := w.poll("c3", 1, time.Minute); len(got) != 1 || got[0].JobId != "b" || w.claims.Load() != 0 {
			t.Errorf("got %v with %d claims of ready ones", ids(got), w.claims.Load())
		}
		time.Sleep(time.Second)
		if n := w.rowsOf(fsm.KindReady); n != 1 {
			t.Errorf("%d are ready: after the grace it fires all the same", n)
		}
	})
}

func TestIdleShardReadsNoTimerRowsBetweenHorizonLoads(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(2000, job{in: time.Hour})...)
		for _, sh := range w.shards {
			w.depose(sh)
			w.lead(sh)
		}
		time.Sleep(58 * time.Minute)
		if s := w.d.Stats(); s.TimerRowsRead != 0 || s.Timers != 0 {
			t.Fatalf("58 minutes on: %d rows read, %d timers in memory; must be none", s.TimerRowsRead, s.Timers)
		}
		time.Sleep(90 * time.Second)
		if s := w.d.Stats(); s.TimerRowsRead != 2000 || s.Timers != 2000 {
			t.Errorf("30 s ahead: %d rows read, %d timers in memory; must be 2000", s.TimerRowsRead, s.Timers)
		}
		for left := 2000; left > 0; {
			got := w.poll(fmt.Sprint("c", left), 1000, time.Minute)
			if len(got) == 0 {
				t.Fatalf("%d never came", left)
			}
			for _, e := range got {
				if late(e) > 200*time.Millisecond || late(e) < 0 {
					t.Fatalf("%s is late by %v", e.JobId, late(e))
				}
			}
			left -= len(got)
		}
	})
}

func TestFullWheelLoadsLessFarAndMissesNothing(t *testing.T) {
	for _, how := range []string{"added while leading", "found at takeover"} {
		t.Run(how, func(t *testing.T) {
			inWorld(t, 2, dispatch.Config{MaxTimers: 200}, func(t *testing.T, w *world) {
				const n = 3000
				jobs := numbered(n, job{})
				for i := range jobs {
					jobs[i].in = time.Duration(1+i*7919%50_000) * time.Millisecond
				}
				w.create(jobs...)
				if how == "found at takeover" {
					for _, sh := range w.shards {
						w.depose(sh)
						w.lead(sh)
					}
				}
				seen := map[string]bool{}
				for i := 0; len(seen) < n; i++ {
					got := w.poll(fmt.Sprint("c", i), 100, 2*time.Second)
					if len(got) == 0 {
						t.Fatalf("%d of %d came", len(seen), n)
					}
					for _, e := range got {
						if l := late(e); l < 0 || l > 300*time.Millisecond {
							t.Fatalf("%s is late by %v", e.JobId, l)
						}
						seen[e.JobId] = true
					}
					if s := w.d.Stats(); s.Timers > 260 {
						t.Fatalf("%d timers in memory, the bound is 200", s.Timers)
					}
					w.complete(got...)
				}
			})
		})
	}
}

func TestBacklogFoundAtTakeoverIsDrained(t *testing.T) {
	inWorld(t, 1, dispatch.Config{MaxTimers: 300}, func(t *testing.T, w *world) {
		w.mayFire.Store(false)
		w.create(numbered(5000, job{in: time.Second})...)
		time.Sleep(time.Minute)
		w.depose(w.shards[0])
		w.lead(w.shards[0])
		w.mayFire.Store(true)
		seen := 0
		for i := 0; seen < 5000; i++ {
			got := w.poll(fmt.Sprint("c", i), 1000, time.Second)
			if len(got) == 0 {
				t.Fatalf("%d of 5000 came", seen)
			}
			seen += len(got)
			w.complete(got...)
		}
	})
}

func TestT10_NothingIsProposedWhileTheGuardHolds(t *testing.T) {
	inWorld(t, 2, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(10, job{in: time.Second})...)
		w.mayFire.Store(false)
		before := w.entries.Load()
		if got := w.poll("c", 10, 5*time.Second); len(got) != 0 || w.entries.Load() != before {
			t.Fatalf("while held: got %v with %d entries", ids(got), w.entries.Load()-before)
		}
		w.mayFire.Store(true)
		w.d.ClockChanged()
		began := time.Now()
		if got := w.poll("c", 10, 5*time.Second); len(got) == 0 || time.Since(began) > 5*time.Millisecond {
			t.Errorf("resumed with %v after %v", ids(got), time.Since(began))
		}
	})
}

func TestTimersThatAreGoneCostTwoEntriesAtMost(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(100, job{in: 10 * time.Second})...)
		for i := range 100 {
			w.do(0, &storagev1.Command{DeleteJob: &storagev1.DeleteJob{
				Tenant: "default", JobId: fmt.Sprint(i), Hash: []byte("0123456789abcdef"),
			}})
		}
		before := w.advances.Load()
		time.Sleep(20 * time.Second)
		if n := w.advances.Load() - before; n > 2 {
			t.Errorf("%d advances for timers of deleted jobs", n)
		}
		if s := w.d.Stats(); s.Queues["q"].Due != 0 {
			t.Errorf("%d timers still count as due", s.Queues["q"].Due)
		}
	})
}

// A clock that the loop reads before it takes its proposals may stamp an entry a little too early.
func TestTimerIsNotForgottenWhenAnEntryWasStampedTooEarly(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(job{id: "a", in: time.Second})
		before := w.entries.Load()
		w.early.Store(true)
		if got := w.poll("c", 1, time.Minute); len(got) != 1 {
			t.Errorf("never came")
		}
		if n := w.entries.Load() - before; n != 2 {
			t.Errorf("%d entries, must be 2: one too early, one right", n)
		}
	})
}

// firedAfterOutage lets jobs fall due while nobody leads the shard, and returns how many are delivered after that.
func firedAfterOutage(t *testing.T, faults dispatch.Faults) (delivered int) {
	t.Helper()
	inWorld(t, 1, dispatch.Config{Faults: faults}, func(t *testing.T, w *world) {
		w.create(numbered(10, job{in: 5 * time.Second})...)
		w.depose(w.shards[0])
		time.Sleep(10 * time.Second)
		w.lead(w.shards[0])
		delivered = len(w.poll("c", 100, 10*time.Second))
	})
	return delivered
}

func TestWhatFellDueWhileNobodyLedFiresAtTakeover(t *testing.T) {
	if n := firedAfterOutage(t, dispatch.Faults{}); n != 10 {
		t.Errorf("%d of 10 were delivered", n)
	}
}

func TestPlantedFaultDueTimersLostIsCaught(t *testing.T) {
	if n := firedAfterOutage(t, dispatch.Faults{DueTimersLost: true}); n == 10 {
		t.Fatal("the timers were lost without a complaint")
	}
}
