package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/dispatch"
)

// Under load executions gather into rounds and polls: entries and calls per second are the cost.
func TestLoadGathersIntoFewEntriesAndFullPolls(t *testing.T) {
	inWorld(t, 64, dispatch.Config{}, func(t *testing.T, w *world) {
		const perSecond, seconds = 20_000, 2
		jobs := numbered(perSecond*seconds, job{})
		for i := range jobs {
			jobs[i].in = 5*time.Second + time.Duration(i)*time.Second/perSecond
		}
		w.create(jobs...)
		before, entries := w.d.Stats(), w.entries.Load()
		polls, latest := w.drain(t, 2, 500, perSecond*seconds)
		after := w.d.Stats()
		rounds := int(after.Rounds - before.Rounds)
		t.Logf("%d rounds, %d entries, %d claims, %d polls, latest %v", rounds, w.entries.Load()-entries, w.claims.Load(), polls, latest)
		if perRound := perSecond * seconds / rounds; perRound < 8 {
			t.Errorf("%d leases in a round", perRound)
		}
		if perPoll := perSecond * seconds / polls; perPoll < 100 {
			t.Errorf("%d leases in a poll of 500", perPoll)
		}
		if latest > 500*time.Millisecond {
			t.Errorf("one was late by %v", latest)
		}
		if w.claims.Load() > 0 {
			t.Errorf("%d claims: workers wait all the time, everything fires into their hands", w.claims.Load())
		}
	})
}

// At 1,000 a second nothing may wait for company.
func TestLowLoadIsNotDelayed(t *testing.T) {
	inWorld(t, 64, dispatch.Config{}, func(t *testing.T, w *world) {
		const n = 2000
		jobs := numbered(n, job{})
		for i := range jobs {
			jobs[i].in = 5*time.Second + time.Duration(i)*time.Millisecond
		}
		w.create(jobs...)
		_, latest := w.drain(t, 4, 500, n)
		if latest > 8*time.Millisecond {
			t.Errorf("one was late by %v; a turn takes %v", latest, turnTime)
		}
	})
}

// W9: all due at one second.
func TestW9_BurstIsDrained(t *testing.T) {
	inWorld(t, 16, dispatch.Config{MaxReady: 8192}, func(t *testing.T, w *world) {
		const n = 40_000
		jobs := numbered(n, job{in: 5 * time.Second})
		for i := range jobs {
			jobs[i].tenant = fmt.Sprint("t", i%100)
		}
		w.create(jobs...)
		before := w.d.Stats()
		polls, latest := w.drain(t, 4, 1000, n)
		after := w.d.Stats()
		t.Logf("%d rounds, %d polls, latest %v, passed over %d", after.Rounds-before.Rounds, polls, latest, after.PassedOver)
		if rounds := after.Rounds - before.Rounds; n/rounds < 100 {
			t.Errorf("%d leases in a round", n/rounds)
		}
	})
}

// drain lets workers take and complete n executions. It returns how many polls that took and the greatest lateness.
func (w *world) drain(t *testing.T, workers, size, n int) (polls int, latest time.Duration) {
	var left, calls, worst atomic.Int64
	left.Store(int64(n))
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				req := dispatch.PollRequest{
					ClaimID: fmt.Sprint(worker, "-", i), Worker: "w", Queues: []string{"q"}, Max: size, Wait: time.Minute,
				}
				got, err := w.d.Poll(ctx, req)
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				calls.Add(1)
				for _, e := range got {
					worst.Store(max(worst.Load(), int64(late(e))))
				}
				w.complete(got...)
				if left.Add(-int64(len(got))) <= 0 {
					cancel()
				}
			}
		})
	}
	group.Wait()
	cancel()
	return int(calls.Load()), time.Duration(worst.Load())
}
