package dispatch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// loaded is a dispatcher that leads n shards of which nothing is to be read. Its proposals get no answer.
func loaded(t testing.TB, shards int) *Dispatcher {
	d, err := New(Config{MaxReady: 1 << 20, RoundBurst: 1000}, &model{t: t})
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint32(shards) {
		d.Takeover(id, 1)
		d.shards[id].discovered, d.shards[id].ready = true, true
	}
	d.jobs.takeovers = nil
	return d
}

// arrive adds a waiting poll.
func (d *Dispatcher) arrive(t testing.TB, claimID string, most int, queues ...string) {
	req := &PollRequest{ClaimID: claimID, Worker: "w", Queues: queues, Max: most, Wait: time.Minute}
	if _, err := d.enter(req, 0, true); err != nil {
		t.Fatal(err)
	}
}

// becomeReady adds a ready execution.
func (d *Dispatcher) becomeReady(t testing.TB, shard uint32, queue string, nominal int64) {
	ref, err := fsm.DecodeReady(fsm.ReadyKey(&storagev1.Execution{
		Tenant: "t", JobId: fmt.Sprint(nominal), Incarnation: 1, NominalMs: nominal,
		Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, Template: &storagev1.Template{Queue: queue},
	}))
	if err != nil {
		t.Fatal(err)
	}
	d.readyAdded(d.shards[shard], ref)
}

// TestPollsAreServedInTheOrderInWhichTheyCame, whatever queues they name: each takes from the queue that has had the fewest
// turns, where the oldest is of what those before it have left.
func TestPollsAreServedInTheOrderInWhichTheyCame(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 5))
		d := loaded(t, 1+random.IntN(3))
		queues := make([]string, 1+random.IntN(6))
		for i := range queues {
			queues[i] = fmt.Sprint("q", i)
		}
		type place struct {
			queue string
			shard uint32
		}
		ready := map[place][]int64{}
		for nominal := range int64(random.IntN(40)) {
			at := place{queues[random.IntN(len(queues))], uint32(random.IntN(len(d.led)))}
			ready[at] = append(ready[at], nominal)
			d.becomeReady(t, at.shard, at.queue, nominal)
		}
		want, turns := map[string][]int64{}, map[string]int{}
		for i := range random.IntN(25) {
			random.Shuffle(len(queues), func(i, k int) { queues[i], queues[k] = queues[k], queues[i] })
			claim, most, names := fmt.Sprint("c", i), 1+random.IntN(4), queues[:1+random.IntN(len(queues))]
			d.arrive(t, claim, most, names...)
			for most > 0 {
				var oldest place
				for _, name := range slices.Sorted(slices.Values(names)) {
					if oldest.queue != "" && turns[oldest.queue] <= turns[name] {
						continue
					}
					for at, list := range ready {
						if at.queue == name && len(list) > 0 && (oldest.queue != name || list[0] < ready[oldest][0]) {
							oldest = at
						}
					}
				}
				if oldest.queue == "" {
					break
				}
				n := min(most, len(ready[oldest]))
				want[claim] = append(want[claim], ready[oldest][:n]...)
				ready[oldest] = ready[oldest][n:]
				turns[oldest.queue] += n
				most -= n
			}
			slices.Sort(want[claim])
		}
		maps.DeleteFunc(want, func(_ string, list []int64) bool { return len(list) == 0 })
		got := map[string][]int64{}
		proposals, _ := d.plan(time.Now())
		for _, p := range proposals {
			claim := p.Command.Claim
			for _, key := range claim.Picks {
				ref, err := fsm.DecodeReady(key)
				if err != nil {
					t.Fatal(err)
				}
				got[claim.ClaimId] = append(got[claim.ClaimId], ref.NominalMS)
			}
			slices.Sort(got[claim.ClaimId])
		}
		if !maps.EqualFunc(got, want, slices.Equal) {
			t.Fatalf("seed %d: claimed %v, want %v", seed, got, want)
		}
	}
}

// The benchmarks below are of what is done in one go under the lock for which the replica loop waits. Of the first ones
// what happens between plans is the larger part by far, which the figure leaves out: -benchtime 20x.
const (
	benchmarkQueues = 5000
	benchmarkShards = 16
)

// manyQueues is a dispatcher with a waiting poll for each queue.
func manyQueues(b *testing.B) *Dispatcher {
	d := loaded(b, benchmarkShards)
	for i := range benchmarkQueues {
		d.arrive(b, fmt.Sprint("claim-", i), 1, fmt.Sprint("queue-", i))
	}
	return d
}

// BenchmarkPlanOfReady is a plan when a poll waits for one ready execution in each of many queues.
func BenchmarkPlanOfReady(b *testing.B) {
	ready := func(b *testing.B) *Dispatcher {
		d := manyQueues(b)
		for i := range benchmarkQueues {
			d.becomeReady(b, uint32(i%benchmarkShards), fmt.Sprint("queue-", i), int64(i))
		}
		return d
	}
	b.Run("all shards take part", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			d := ready(b)
			b.StartTimer()
			if proposals, _ := d.plan(time.Now()); len(proposals) != benchmarkShards*commandLimit {
				b.Fatalf("%d claims", len(proposals))
			}
		}
	})
	b.Run("one shard takes part and has nothing", func(b *testing.B) {
		d := ready(b)
		for _, sh := range d.led {
			sh.round = &round{shard: sh}
		}
		d.Takeover(benchmarkShards, 1)
		d.shards[benchmarkShards].discovered, d.shards[benchmarkShards].ready = true, true
		for b.Loop() {
			if proposals, _ := d.plan(time.Now()); len(proposals) != 0 {
				b.Fatalf("%d claims", len(proposals))
			}
		}
	})
}

// BenchmarkPlanOfDue is a plan when a poll waits for each of many queues and each shard has a due timer for every one.
func BenchmarkPlanOfDue(b *testing.B) {
	for range b.N {
		b.StopTimer()
		d := manyQueues(b)
		for _, sh := range d.led {
			d.addTimers(sh, timersOfManyQueues(benchmarkQueues))
			d.tick(sh, 1, time.Now())
		}
		b.StartTimer()
		if proposals, _ := d.plan(time.Now()); len(proposals) != benchmarkShards {
			b.Fatalf("%d advances", len(proposals))
		}
	}
}

// BenchmarkTick is when many timers of many queues of one shard fall due at the same instant.
func BenchmarkTick(b *testing.B) {
	for range b.N {
		b.StopTimer()
		d := loaded(b, 1)
		d.addTimers(d.led[0], timersOfManyQueues(60_000))
		b.StartTimer()
		d.tick(d.led[0], 1, time.Now())
	}
}

func timersOfManyQueues(n int) []fsm.TimerRef {
	refs := make([]fsm.TimerRef, n)
	for i := range refs {
		refs[i] = fsm.TimerRef{AtMS: 1, Queue: fmt.Sprint("queue-", i%benchmarkQueues)}
	}
	return refs
}
