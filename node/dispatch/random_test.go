package dispatch_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

var (
	seed  = flag.Uint64("seed", 0, "run the random test with this seed only")
	seeds = flag.Int("seeds", 4, "how many seeds the random test tries")
)

// TestEverythingIsDeliveredWhateverHappens lets workers poll, finish, give back and vanish while jobs come, leaderships
// change, and queues and tenants are paused, with hardly any memory. In the end every job has succeeded and nothing is
// left behind. With even seeds all workers are at another node: they come when they are told of something, if the hint is not
// lost, and never by themselves.
func TestEverythingIsDeliveredWhateverHappens(t *testing.T) {
	first, last := uint64(1), uint64(*seeds)
	if *seed != 0 {
		first, last = *seed, *seed
	}
	for s := first; s <= last; s++ {
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			c := &chaos{random: rand.New(rand.NewPCG(s, 7)), far: s%2 == 0}
			cfg := dispatch.Config{MaxReady: 64 + int(s%3)*100, MaxTimers: 128, Horizon: 4 * time.Second, Hint: c.hint}
			inWorld(t, 1+int(s%3), cfg, func(t *testing.T, w *world) {
				c.t, c.world, c.hinted = t, w, make(chan []string, 2)
				c.run()
				if t.Failed() {
					t.Logf("again: go test ./node/dispatch -run TestEverythingIsDelivered -seed %d", s)
				}
			})
		})
	}
}

type chaos struct {
	t *testing.T
	*world
	random *rand.Rand
	jobs   int
	// hinted has room for the hints that far workers have not seen yet; far is true if all are far.
	hinted chan []string
	far    bool
}

// hint takes a hint to the far workers, or loses it.
func (c *chaos) hint(_ string, queues []string) {
	select {
	case c.hinted <- queues:
	default:
	}
}

func (c *chaos) run() {
	ctx, stop := context.WithCancel(c.t.Context())
	slow := rand.New(rand.NewPCG(c.random.Uint64(), 1))
	var mu sync.Mutex
	c.pause = func() {
		mu.Lock()
		pause := time.Duration(slow.IntN(40)/39*slow.IntN(3000)) * time.Microsecond
		mu.Unlock()
		time.Sleep(pause)
	}
	var workers sync.WaitGroup
	if c.far {
		c.d.SetInterest("far", []string{"q0", "q1"})
	}
	for i := range 5 {
		random := rand.New(rand.NewPCG(c.random.Uint64(), uint64(i)))
		workers.Go(func() { c.work(ctx, i, random) })
	}
	for range 60 {
		c.disturb()
		time.Sleep(time.Duration(c.random.IntN(300)) * time.Millisecond)
	}
	for _, sh := range c.shards {
		for _, what := range []string{"queue", "tenant"} {
			c.do(sh.id, pauseNamed(what, "q0", "t0", false))
		}
	}
	for range 600 {
		if c.rowsOf(fsm.KindEnded) == c.jobs {
			break
		}
		time.Sleep(time.Second)
	}
	stop()
	workers.Wait()
	c.d.SetInterest("far", nil)
	time.Sleep(time.Minute)
	synctest.Wait()
	if ended := c.rowsOf(fsm.KindEnded); ended != c.jobs {
		c.t.Errorf("%d of %d jobs ended; ready %d, leased %d, timers %d; stats %+v", ended, c.jobs,
			c.rowsOf(fsm.KindReady), c.rowsOf(fsm.KindLeased), c.rowsOf(fsm.KindTimer), c.d.Stats())
	}
	s := c.d.Stats()
	c.t.Logf("%d jobs, %d entries: %+v", c.jobs, c.entries.Load(), s.Counters)
	if s.ReadyInMemory != 0 || s.Leases != 0 || s.Timers != 0 || s.PollsWaiting != 0 || len(s.Queues) != 0 {
		c.t.Errorf("left behind: %+v", s)
	}
}

func pauseNamed(what, queue, tenant string, paused bool) *storagev1.Command {
	version := uint64(time.Now().UnixNano())
	if what == "queue" {
		return &storagev1.Command{PutQueue: &storagev1.QueueSettings{Name: queue, Version: version, Paused: paused}}
	}
	return &storagev1.Command{PutTenant: &storagev1.TenantSettings{Name: tenant, Version: version, Paused: paused}}
}

// disturb does one thing.
func (c *chaos) disturb() {
	sh := c.shards[c.random.IntN(len(c.shards))]
	switch c.random.IntN(10) {
	case 0:
		c.depose(sh)
		time.Sleep(time.Duration(c.random.IntN(20)) * time.Millisecond)
		c.lead(sh)
	case 1:
		what := []string{"queue", "tenant"}[c.random.IntN(2)]
		paused := c.random.IntN(2) == 0
		for _, sh := range c.shards {
			c.do(sh.id, pauseNamed(what, "q0", "t0", paused))
		}
	case 2:
		c.mayFire.Store(c.random.IntN(3) > 0)
		time.Sleep(100 * time.Millisecond)
		c.mayFire.Store(true)
	default:
		jobs := make([]job, 1+c.random.IntN(150))
		for i := range jobs {
			c.jobs++
			jobs[i] = job{
				id: fmt.Sprint(c.jobs), tenant: fmt.Sprint("t", c.random.IntN(3)), queue: fmt.Sprint("q", c.random.IntN(2)),
				priority: uint32(c.random.IntN(3)), fairness: fmt.Sprint(c.random.IntN(1 + c.jobs%40)),
				in: time.Duration(c.random.IntN(c.random.IntN(10_000)+1)) * time.Millisecond,
			}
		}
		c.create(jobs...)
	}
}

// work polls until ctx ends.
func (c *chaos) work(ctx context.Context, worker int, random *rand.Rand) {
	for i := 0; ctx.Err() == nil; i++ {
		req := dispatch.PollRequest{
			ClaimID: fmt.Sprint(worker, "-", i), Worker: fmt.Sprint(worker), Max: 1 + random.IntN(40),
			Queues: [][]string{{"q0"}, {"q1"}, {"q0", "q1"}}[random.IntN(3)],
			Wait:   time.Duration(random.IntN(1000)) * time.Millisecond,
		}
		if c.far {
			select {
			case req.Queues = <-c.hinted:
			case <-ctx.Done():
				return
			}
			req.Wait = 0
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		}
		patience := time.Hour
		if random.IntN(3) == 0 {
			patience = time.Duration(random.IntN(20)) * time.Millisecond
		}
		poll, cancel := context.WithTimeout(ctx, patience)
		leases, err := c.d.Poll(poll, req)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			c.t.Errorf("poll: %v", err)
		}
		if len(leases) > req.Max {
			c.t.Errorf("got %d, asked for %d", len(leases), req.Max)
		}
		if random.IntN(8) == 0 {
			c.d.Release(leases)
			continue
		}
		time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
		c.finish(leases)
	}
}

// finish completes leases; those whose answer is lost with a leadership end by their deadline if it was not applied.
func (c *chaos) finish(leases []*storagev1.Execution) {
	for _, e := range leases {
		done := make(chan struct{})
		c.Propose(c.ShardOf(e.Tenant, e.JobId), &storagev1.Command{Completions: &storagev1.Completions{
			Items: []*storagev1.Completion{{
				ExecutionId: fsm.ExecutionID(e), Fencing: e.Fencing, Outcome: storagev1.Outcome_OUTCOME_SUCCEEDED,
			}},
		}}, func(fsm.Result, error) { close(done) })
		<-done
	}
}
