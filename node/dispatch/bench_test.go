package dispatch_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/dispatch"
)

// BenchmarkLeases takes executions through real state machines over rows in memory, without a sync, from 64 shards to
// four polling workers. Most of it is the state machines' and the rows' share: -cpuprofile tells.
func BenchmarkLeases(b *testing.B) {
	for _, how := range []string{"due while polled", "ready before"} {
		b.Run(how, func(b *testing.B) {
			w := newWorld(b, 64, dispatch.Config{Grace: time.Minute, MaxReady: 1 << 20, RoundsPerSecond: 1_000_000}, time.Now)
			w.turn = 0
			ctx, cancel := context.WithCancel(b.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := w.d.Run(ctx); ctx.Err() == nil {
					b.Error(err)
				}
			})
			running.Go(func() { w.run(ctx) })
			defer running.Wait()
			defer cancel()
			for _, sh := range w.shards {
				w.lead(sh)
			}
			for w.d.Ready() != nil {
				time.Sleep(time.Millisecond)
			}
			w.mayFire.Store(how == "ready before")
			w.create(numbered(b.N, job{})...)
			for how == "ready before" && w.d.Stats().Queues["q"].Ready < int64(b.N) {
				time.Sleep(time.Millisecond)
			}
			b.ReportAllocs()
			b.ResetTimer()
			w.mayFire.Store(true)
			w.d.ClockChanged()
			var left atomic.Int64
			left.Store(int64(b.N))
			var workers sync.WaitGroup
			for worker := range 4 {
				workers.Go(func() {
					for i := 0; left.Load() > 0; i++ {
						got, err := w.d.Poll(ctx, dispatch.PollRequest{
							ClaimID: fmt.Sprint(worker, "-", i), Worker: "w", Queues: []string{"q"}, Max: 1000, Wait: 50 * time.Millisecond,
						})
						if err != nil {
							b.Error(err)
							return
						}
						left.Add(-int64(len(got)))
					}
				})
			}
			workers.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "leases/s")
			b.ReportMetric(float64(b.N)/float64(max(1, w.d.Stats().Rounds)), "leases/round")
		})
	}
}

// BenchmarkPollOfNothing is what another node's poll without a wait costs when nothing of its queues is there.
func BenchmarkPollOfNothing(b *testing.B) {
	w := newWorld(b, 64, dispatch.Config{}, time.Now)
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.d.Run(ctx); ctx.Err() == nil {
			b.Error(err)
		}
	})
	running.Go(func() { w.run(ctx) })
	defer running.Wait()
	defer cancel()
	for _, sh := range w.shards {
		w.lead(sh)
	}
	for w.d.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	req := dispatch.PollRequest{ClaimID: "a-claim-of-some-length-0123456789", Worker: "w", Queues: []string{"a", "b"}, Max: 100}
	b.ReportAllocs()
	for b.Loop() {
		if got, err := w.d.Poll(ctx, req); len(got) > 0 || err != nil {
			b.Fatal(got, err)
		}
	}
}
