package dispatch_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Of one tenant and priority the oldest goes first, also of several shards.
func TestTheOldestFirst(t *testing.T) {
	inWorld(t, 8, dispatch.Config{}, func(t *testing.T, w *world) {
		for i := range 60 {
			w.create(job{id: fmt.Sprint("j", i), in: time.Duration(1000-i*10) * time.Millisecond})
		}
		time.Sleep(3 * time.Second)
		var got []*storagev1.Execution
		for i := range 60 {
			got = append(got, w.poll(fmt.Sprint("c", i), 1, time.Second)...)
		}
		if len(got) != 60 || !slices.IsSortedFunc(got, func(a, b *storagev1.Execution) int { return int(a.NominalMs - b.NominalMs) }) {
			t.Errorf("got %v", ids(got))
		}
	})
}

func TestPollGetsOnlyTheQueuesItNames(t *testing.T) {
	inWorld(t, 2, dispatch.Config{}, func(t *testing.T, w *world) {
		for _, queue := range []string{"a", "b", "c"} {
			w.create(numbered(4, job{id: queue, queue: queue, in: time.Second})...)
		}
		req := dispatch.PollRequest{ClaimID: "1", Worker: "w", Queues: []string{"b", "a", "b"}, Max: 100, Wait: time.Minute}
		got := w.pollFor(req)
		time.Sleep(time.Second)
		req.ClaimID, req.Wait = "2", 0
		got = append(got, w.pollFor(req)...)
		if len(got) != 8 || slices.ContainsFunc(got, func(e *storagev1.Execution) bool { return e.Template.Queue == "c" }) {
			t.Errorf("got %v", ids(got))
		}
	})
}

func TestMemoryOfReadyExecutionsIsBounded(t *testing.T) {
	const maxReady = 256
	for _, streams := range []int{1, 7, 3000} {
		for _, takeover := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d streams, takeover %v", streams, takeover), func(t *testing.T) {
				inWorld(t, 2, dispatch.Config{MaxReady: maxReady}, func(t *testing.T, w *world) {
					const n = 3000
					jobs := numbered(n, job{in: time.Second})
					for i := range jobs {
						jobs[i].fairness = fmt.Sprint(i * 31 % streams)
						jobs[i].priority = uint32(i % 2)
					}
					w.create(jobs...)
					time.Sleep(5 * time.Second)
					if takeover {
						for _, sh := range w.shards {
							w.depose(sh)
							w.lead(sh)
						}
						synctest.Wait()
					}
					if depth := w.d.Stats().Queues["q"].Ready; depth != n {
						t.Errorf("the depth is %d, must be %d", depth, n)
					}
					seen := map[string]bool{}
					for i := 0; len(seen) < n; i++ {
						if m := w.d.Stats().ReadyInMemory; m > maxReady+16 {
							t.Fatalf("%d keys in memory, the bound is %d", m, maxReady)
						}
						got := w.poll(fmt.Sprint("c", i), 200, time.Second)
						if len(got) == 0 {
							t.Fatalf("%d of %d came", len(seen), n)
						}
						for _, e := range got {
							if seen[e.JobId] {
								t.Fatalf("%s came twice", e.JobId)
							}
							seen[e.JobId] = true
						}
						w.complete(got...)
					}
					time.Sleep(time.Second)
					if s := w.d.Stats(); s.ReadyInMemory != 0 || s.Queues["q"].Ready != 0 {
						t.Errorf("afterwards %d in memory, depth %d; must be none", s.ReadyInMemory, s.Queues["q"].Ready)
					}
				})
			})
		}
	}
}

// W6: one tenant's backlog is far beyond memory; another's single execution is still offered by its age.
func TestDeepBacklogOfOneTenantDoesNotHideAnother(t *testing.T) {
	inWorld(t, 1, dispatch.Config{MaxReady: 128}, func(t *testing.T, w *world) {
		w.create(job{id: "small", tenant: "z", in: 500 * time.Millisecond})
		w.create(numbered(2000, job{id: "big", tenant: "a", in: time.Second})...)
		w.create(job{id: "late", tenant: "zz", in: 1500 * time.Millisecond})
		time.Sleep(3 * time.Second)
		if got := w.poll("c", 1, time.Second); len(got) != 1 || got[0].JobId != "small" {
			t.Errorf("the oldest is small, got %v", ids(got))
		}
		for i := range 2001 {
			got := w.poll(fmt.Sprint("d", i), 1, time.Second)
			if len(got) != 1 {
				t.Fatalf("poll %d got nothing", i)
			}
			if got[0].JobId == "late" {
				return
			}
		}
		t.Error("late never came")
	})
}

func pause(w *world, paused bool) map[string]*storagev1.Command {
	version := uint64(time.Now().UnixNano())
	return map[string]*storagev1.Command{
		"queue":  {PutQueue: &storagev1.QueueSettings{Name: "q", Version: version, Paused: paused}},
		"tenant": {PutTenant: &storagev1.TenantSettings{Name: "default", Version: version, Paused: paused}},
	}
}

func TestPausedQueueOrTenantIsNotOffered(t *testing.T) {
	for _, what := range []string{"queue", "tenant"} {
		for _, when := range []string{"ready before", "due while paused", "found paused at takeover"} {
			t.Run(what+", "+when, func(t *testing.T) {
				inWorld(t, 2, dispatch.Config{}, func(t *testing.T, w *world) {
					w.create(numbered(20, job{in: time.Second})...)
					if when != "due while paused" {
						time.Sleep(2 * time.Second)
					}
					for _, sh := range w.shards {
						w.do(sh.id, pause(w, true)[what])
					}
					if when == "found paused at takeover" {
						for _, sh := range w.shards {
							w.depose(sh)
							w.lead(sh)
						}
					}
					time.Sleep(3 * time.Second)
					before := w.entries.Load()
					if got := w.poll("c", 30, 3*time.Second); len(got) != 0 {
						t.Fatalf("paused, and yet %v", ids(got))
					}
					if n := w.entries.Load() - before; n > 0 {
						t.Errorf("%d entries for what is paused", n)
					}
					for _, sh := range w.shards {
						w.do(sh.id, pause(w, false)[what])
					}
					var got []*storagev1.Execution
					for i := range 2 {
						got = append(got, w.poll(fmt.Sprint("d", i), 30, time.Second)...)
					}
					if len(got) != 20 {
						t.Errorf("resumed, and got %d of 20", len(got))
					}
				})
			})
		}
	}
}

func TestStepDownWithClaimsInFlight(t *testing.T) {
	inWorld(t, 2, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(40, job{})...)
		time.Sleep(2 * time.Second)
		w.held.Store(true)
		var got []*storagev1.Execution
		var polls sync.WaitGroup
		polls.Go(func() { got = w.poll("c", 30, time.Minute) })
		time.Sleep(10 * time.Millisecond)
		// One shard's claim is lost before it was applied, and led again.
		w.depose(w.shards[0])
		w.lead(w.shards[0])
		w.held.Store(false)
		w.signal()
		polls.Wait()
		rest := w.poll("d", 40, time.Second)
		if len(got) == 0 || len(got)+len(rest) != 40 || w.rowsOf(fsm.KindLeased) != 40 {
			t.Errorf("got %d and %d, leased are %d; must be 40", len(got), len(rest), w.rowsOf(fsm.KindLeased))
		}
	})
}

// The claim was applied, its leadership ended before the result: the same poll gets those leases from the next one.
func TestPollAdoptsWhatItsClaimGotBeforeAFailover(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(5, job{})...)
		time.Sleep(2 * time.Second)
		sh := w.shards[0]
		var got []*storagev1.Execution
		var polls sync.WaitGroup
		polls.Go(func() { got = w.poll("c", 10, time.Minute) })
		synctest.Wait() // applied; the loop sleeps through its turn
		if w.rowsOf(fsm.KindLeased) != 5 {
			t.Fatalf("%d are leased", w.rowsOf(fsm.KindLeased))
		}
		w.depose(sh)
		time.Sleep(5 * time.Millisecond)
		w.lead(sh)
		polls.Wait()
		if len(got) != 5 {
			t.Errorf("got %v", ids(got))
		}
	})
}
