package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func ids(leases []*storagev1.Execution) []string {
	var list []string
	for _, e := range leases {
		list = append(list, e.JobId)
	}
	slices.Sort(list)
	return list
}

func TestW10_300PollsAnd100ReadyGive100Leases(t *testing.T) {
	for _, when := range []string{"ready before the polls come", "due while they wait"} {
		t.Run(when, func(t *testing.T) {
			inWorld(t, 8, dispatch.Config{}, func(t *testing.T, w *world) {
				if when == "ready before the polls come" {
					w.create(numbered(100, job{})...)
					time.Sleep(time.Second)
				}
				var granted atomic.Int64
				var polls sync.WaitGroup
				for i := range 300 {
					polls.Go(func() { granted.Add(int64(len(w.poll(fmt.Sprint("c", i), 1, 10*time.Second)))) })
				}
				synctest.Wait()
				if when == "due while they wait" {
					w.create(numbered(100, job{in: time.Second})...)
				}
				polls.Wait()
				if granted.Load() != 100 || w.rowsOf(fsm.KindLeased) != 100 || w.rowsOf(fsm.KindReady) != 0 {
					t.Errorf("%d leases delivered, %d in the rows, %d ready; must be 100, 100, 0",
						granted.Load(), w.rowsOf(fsm.KindLeased), w.rowsOf(fsm.KindReady))
				}
			})
		})
	}
}

func TestOneReadyExecutionWakesTheFirstPollOnly(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		order := make(chan int, 5)
		var polls sync.WaitGroup
		for i := range 5 {
			polls.Go(func() {
				if len(w.poll(fmt.Sprint("c", i), 10, time.Minute)) > 0 {
					order <- i
				}
			})
			synctest.Wait()
		}
		for i := range 5 {
			w.create(job{id: fmt.Sprint("j", i)})
			time.Sleep(100 * time.Millisecond)
			if got := len(order); got != 1 {
				t.Fatalf("execution %d woke %d polls", i, got)
			}
			if first := <-order; first != i {
				t.Errorf("execution %d went to poll %d", i, first)
			}
		}
		polls.Wait()
	})
}

func TestPollEndsWithNothingWhenItsWaitIsOver(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		began := time.Now()
		if got := w.poll("c", 1, 3*time.Second); len(got) != 0 || time.Since(began) != 3*time.Second {
			t.Errorf("got %v after %v", ids(got), time.Since(began))
		}
		if got := w.poll("now", 1, 0); len(got) != 0 || time.Since(began) != 3*time.Second {
			t.Errorf("a poll without wait got %v after %v", ids(got), time.Since(began))
		}
		w.create(job{id: "a"})
		time.Sleep(time.Second)
		if got := w.poll("now", 1, 0); len(got) != 1 {
			t.Errorf("a poll without wait missed what was ready")
		}
		if s := w.d.Stats(); s.PollsWaiting != 0 {
			t.Errorf("%d polls are left behind", s.PollsWaiting)
		}
	})
}

func TestPollRefusesWhatBreaksLimits(t *testing.T) {
	inWorld(t, 1, dispatch.Config{MaxPolls: 1}, func(t *testing.T, w *world) {
		good := dispatch.PollRequest{ClaimID: "c", Worker: "w", Queues: []string{"q"}, Max: 1, Wait: time.Second}
		for name, change := range map[string]func(*dispatch.PollRequest){
			"no claim id": func(r *dispatch.PollRequest) { r.ClaimID = "" },
			"max 0":       func(r *dispatch.PollRequest) { r.Max = 0 },
			"max 1001":    func(r *dispatch.PollRequest) { r.Max = 1001 },
			"no queue":    func(r *dispatch.PollRequest) { r.Queues = nil },
			"lease -1":    func(r *dispatch.PollRequest) { r.LeaseMS = -1 },
			"101 queues":  func(r *dispatch.PollRequest) { r.Queues = make([]string, 101) },
		} {
			req := good
			change(&req)
			if _, err := w.d.Poll(w.t.Context(), req); !errors.Is(err, dispatch.ErrInvalidPoll) {
				t.Errorf("%s: %v", name, err)
			}
		}
		var first sync.WaitGroup
		first.Go(func() { w.pollFor(good) })
		synctest.Wait()
		other := good
		other.Worker = "x"
		if _, err := w.d.Poll(w.t.Context(), other); !errors.Is(err, dispatch.ErrClaimInUse) {
			t.Errorf("another worker's claim id: %v", err)
		}
		other.ClaimID = "d"
		if _, err := w.d.Poll(w.t.Context(), other); !errors.Is(err, dispatch.ErrTooManyPolls) {
			t.Errorf("one poll too many: %v", err)
		}
		first.Wait()
	})
}

func TestMalformedWishEndsItsPollAndHoldsUpNobody(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		var polls sync.WaitGroup
		polls.Go(func() {
			bad := dispatch.PollRequest{ClaimID: "bad", Worker: "w", Queues: []string{"q"}, Max: 1, LeaseMS: 1 << 60, Wait: time.Minute}
			if got := w.pollFor(bad); len(got) != 0 {
				t.Errorf("the malformed wish got %v", ids(got))
			}
		})
		synctest.Wait()
		w.create(job{id: "a"})
		if got := w.poll("good", 1, 10*time.Second); len(got) != 1 {
			t.Errorf("the other poll got nothing")
		}
		polls.Wait()
	})
}

func TestW11_RetriedClaimGetsTheSameLeases(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(10, job{})...)
		time.Sleep(time.Second)
		first := w.poll("c", 5, time.Second)
		if len(first) != 5 {
			t.Fatalf("got %d", len(first))
		}
		again := w.poll("c", 5, time.Second)
		if !slices.Equal(ids(first), ids(again)) {
			t.Errorf("first %v, then %v", ids(first), ids(again))
		}
		for _, sh := range w.shards {
			w.depose(sh)
			w.lead(sh)
		}
		synctest.Wait()
		if again = w.poll("c", 5, time.Second); !slices.Equal(ids(first), ids(again)) {
			t.Errorf("after a failover: first %v, then %v", ids(first), ids(again))
		}
		w.complete(first[:2]...)
		if again = w.poll("c", 5, time.Second); !slices.Equal(ids(first[2:]), ids(again)) {
			t.Errorf("live are %v, the retry got %v", ids(first[2:]), ids(again))
		}
		w.complete(first[2:]...)
		if again = w.poll("c", 5, time.Second); len(again) != 5 || slices.ContainsFunc(again, func(e *storagev1.Execution) bool {
			return slices.Contains(ids(first), e.JobId)
		}) {
			t.Errorf("with no live lease it is a new claim; it got %v", ids(again))
		}
	})
}

func TestW11_RetryJoinsAFirstCallInFlight(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		got := make([][]string, 2)
		var polls sync.WaitGroup
		for i := range got {
			polls.Go(func() { got[i] = ids(w.poll("c", 5, time.Minute)) })
			synctest.Wait()
		}
		w.create(numbered(3, job{})...)
		polls.Wait()
		if len(got[0]) == 0 || !slices.Equal(got[0], got[1]) {
			t.Errorf("first %v, retry %v", got[0], got[1])
		}
	})
}

func TestW11_RetryTakesOverWhenTheFirstCallWasCancelledInFlight(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(w.t.Context())
		var first sync.WaitGroup
		first.Go(func() {
			req := dispatch.PollRequest{ClaimID: "c", Worker: "w", Queues: []string{"q"}, Max: 5, Wait: time.Minute}
			if _, err := w.d.Poll(ctx, req); !errors.Is(err, context.Canceled) {
				t.Errorf("the cancelled call: %v", err)
			}
		})
		w.create(job{id: "a", in: time.Second})
		time.Sleep(time.Second - time.Millisecond)
		w.held.Store(true)
		time.Sleep(10 * time.Millisecond)
		cancel()
		first.Wait()
		var retry sync.WaitGroup
		retry.Go(func() {
			if got := w.poll("c", 5, time.Minute); len(got) != 1 || got[0].Attempt != 1 {
				t.Errorf("the retry got %v", got)
			}
		})
		synctest.Wait()
		w.held.Store(false)
		w.signal()
		retry.Wait()
	})
}

func TestCallerThatVanishesGivesItsLeasesBackUncounted(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(w.t.Context())
		var first sync.WaitGroup
		first.Go(func() {
			req := dispatch.PollRequest{ClaimID: "c", Worker: "w", Queues: []string{"q"}, Max: 5, Wait: time.Minute}
			if _, err := w.d.Poll(ctx, req); !errors.Is(err, context.Canceled) {
				t.Errorf("the cancelled call: %v", err)
			}
		})
		w.create(numbered(3, job{in: time.Second})...)
		time.Sleep(time.Second - time.Millisecond)
		w.held.Store(true)
		time.Sleep(10 * time.Millisecond)
		cancel()
		first.Wait()
		w.held.Store(false)
		w.signal()
		got := w.poll("d", 5, time.Minute)
		if len(got) != 3 {
			t.Fatalf("another poll got %v", ids(got))
		}
		for _, e := range got {
			if e.Attempt != 1 {
				t.Errorf("%s: attempt %d, the released one counted", e.JobId, e.Attempt)
			}
		}
		if s := w.d.Stats(); s.LeasesReleased != 3 || s.Leases != 3 {
			t.Errorf("released %d, live %d; must be 3 and 3", s.LeasesReleased, s.Leases)
		}
	})
}

func TestUndeliverableAnswerIsReleased(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(20, job{})...)
		time.Sleep(time.Second)
		got := w.poll("c", 20, time.Second)
		w.d.Release(got)
		again := w.poll("d", 20, time.Second)
		if !slices.Equal(ids(got), ids(again)) {
			t.Errorf("released %v, then got %v", ids(got), ids(again))
		}
	})
}

func TestStopEndsPollsAndStillReleases(t *testing.T) {
	inWorld(t, 2, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(job{id: "a"})
		time.Sleep(time.Second)
		leases := w.poll("a", 1, time.Second)
		began := time.Now()
		var polls sync.WaitGroup
		polls.Go(func() { w.poll("c", 1, time.Minute) })
		synctest.Wait()
		w.d.Stop()
		w.d.Stop()
		polls.Wait()
		if got := w.poll("d", 1, time.Minute); len(got) > 0 || time.Since(began) > time.Second {
			t.Errorf("got %v after %v", ids(got), time.Since(began))
		}
		w.d.Release(leases)
		time.Sleep(time.Second)
		if n := w.rowsOf(fsm.KindReady); n != 1 {
			t.Errorf("%d executions are ready after the release, must be 1", n)
		}
	})
}

func TestIdlePollsCostNothing(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(w.t.Context())
		var polls sync.WaitGroup
		for i := range 10_000 {
			polls.Go(func() {
				req := dispatch.PollRequest{ClaimID: fmt.Sprint(i), Worker: "w", Queues: []string{"idle"}, Max: 1, Wait: time.Hour}
				if _, err := w.d.Poll(ctx, req); !errors.Is(err, context.Canceled) {
					t.Errorf("poll %d: %v", i, err)
				}
			})
		}
		synctest.Wait()
		time.Sleep(time.Second)
		before := w.d.Stats().Plans
		time.Sleep(20 * time.Second)
		if plans := w.d.Stats().Plans - before; plans > 20 {
			t.Errorf("%d plans in 20 idle seconds", plans)
		}
		w.create(job{id: "a"})
		if got := w.poll("c", 1, time.Second); len(got) != 1 {
			t.Errorf("the busy queue's poll got nothing")
		}
		cancel()
		polls.Wait()
	})
}
