package dispatch_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// saturated makes jobs ready and takes so many of them in polls of most each.
func saturated(w *world, jobs []job, take, most int) (got []*storagev1.Execution) {
	w.create(jobs...)
	time.Sleep(3 * time.Second)
	for i := 0; len(got) < take; i++ {
		leases := w.poll(fmt.Sprint(jobs[0].id, "-", i), min(most, take-len(got)), time.Second)
		if len(leases) == 0 {
			w.t.Fatalf("nothing more after %d", len(got))
		}
		got = append(got, leases...)
	}
	return got
}

func countBy[K comparable](list []*storagev1.Execution, key func(*storagev1.Execution) K) map[K]int {
	n := map[K]int{}
	for _, e := range list {
		n[key(e)]++
	}
	return n
}

func priorityOf(e *storagev1.Execution) uint32 { return e.Template.Priority }
func tenantOf(e *storagev1.Execution) string   { return e.Tenant }

// checkShares compares counts with what weights promise: within a tenth, or two more or less.
func checkShares[K comparable](t *testing.T, got map[K]int, weights map[K]int) {
	t.Helper()
	total, sum := 0, 0
	for k, w := range weights {
		sum += w
		total += got[k]
	}
	for k, w := range weights {
		want := float64(total) * float64(w) / float64(sum)
		if math.Abs(float64(got[k])-want) > max(2, want/10) {
			t.Errorf("%v has %d of %d, its share is %.1f", k, got[k], total, want)
		}
	}
}

// settings puts a queue's or tenant's settings through every shard's log.
func (w *world) settings(cmd *storagev1.Command) {
	for _, sh := range w.shards {
		w.do(sh.id, cmd)
	}
	time.Sleep(100 * time.Millisecond)
}

// everyPriority is n jobs of each priority, the least urgent due first.
func everyPriority(n int) (jobs []job) {
	for p := range 10 {
		jobs = append(jobs, numbered(n, job{id: fmt.Sprint("p", p, "-"), priority: uint32(p), in: time.Second + time.Duration(p)*time.Millisecond})...)
	}
	return jobs
}

// W6: over any stretch of saturation each priority has its declared share, however many a poll takes and from however many shards.
func TestPrioritiesHaveTheirShares(t *testing.T) {
	own := [10]uint32{1, 1, 1, 1, 1, 2, 2, 2, 2, 7}
	for name, shares := range map[string]*storagev1.PriorityShares{"default": nil, "own": {Weights: own[:]}} {
		for _, most := range []int{1, 100} {
			for _, shards := range []int{1, 8} {
				t.Run(fmt.Sprint(name, ", polls of ", most, ", shards ", shards), func(t *testing.T) {
					inWorld(t, shards, dispatch.Config{}, func(t *testing.T, w *world) {
						weights := dispatch.DefaultShares().Weights
						if shares != nil {
							weights = own
							w.settings(&storagev1.Command{PutQueue: &storagev1.QueueSettings{Name: "q", Version: 1, Shares: shares}})
						}
						got := saturated(w, everyPriority(600), 1500, most)
						want := map[uint32]int{}
						for p, weight := range weights {
							want[uint32(p)] = int(weight)
						}
						checkShares(t, countBy(got[:700], priorityOf), want)
						checkShares(t, countBy(got[700:], priorityOf), want)
					})
				})
			}
		}
	}
}

func TestStrictPriorityKeepsAFloor(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		w.settings(&storagev1.Command{PutQueue: &storagev1.QueueSettings{
			Name: "q", Version: 1, Shares: &storagev1.PriorityShares{Strict: true, FloorPercent: 2},
		}})
		got := saturated(w, everyPriority(1000), 1000, 50)
		n := countBy(got, priorityOf)
		for p := range uint32(9) {
			if n[p] < 18 || n[p] > 22 {
				t.Errorf("priority %d has %d of 1000, its floor is 20", p, n[p])
			}
		}
	})
}

// A priority that had nothing to do has not saved turns up, and one that comes does not wait behind those that are there.
func TestWhoComesAnewHasItsShareAndNoMore(t *testing.T) {
	inWorld(t, 2, dispatch.Config{}, func(t *testing.T, w *world) {
		saturated(w, numbered(2000, job{id: "low", priority: 0, in: time.Second}), 1000, 100)
		got := saturated(w, numbered(2000, job{id: "high", priority: 9, in: 0}), 400, 1)
		if p := countBy(got[:5], priorityOf); p[9] < 4 {
			t.Errorf("the first turns went to %v", p)
		}
		checkShares(t, countBy(got, priorityOf), map[uint32]int{0: 2, 9: 75})
	})
}

// W6: a tenant's backlog delays another's by its share only; weights are kept.
func TestTenantsHaveTheirShares(t *testing.T) {
	for _, most := range []int{1, 100} {
		inWorld(t, 8, dispatch.Config{}, func(t *testing.T, w *world) {
			w.settings(&storagev1.Command{PutTenant: &storagev1.TenantSettings{Name: "heavy", Version: 1, Weight: 3}})
			jobs := numbered(10_000, job{id: "f", tenant: "flood", in: time.Second})
			jobs = append(jobs, numbered(600, job{id: "h", tenant: "heavy", in: 1500 * time.Millisecond})...)
			weights := map[string]int{"flood": 1, "heavy": 3}
			for i := range 8 {
				name := fmt.Sprint("t", i)
				weights[name] = 1
				jobs = append(jobs, numbered(300, job{id: "o", tenant: name, in: 2 * time.Second})...)
			}
			got := saturated(w, jobs, 2000, most)
			checkShares(t, countBy(got[:1000], tenantOf), weights)
			checkShares(t, countBy(got[1000:], tenantOf), weights)
			w.create(job{id: "single", tenant: "single", in: 0})
			time.Sleep(time.Second)
			next := w.poll("last", 60, time.Second)
			if !slices.ContainsFunc(next, func(e *storagev1.Execution) bool { return e.JobId == "single" }) {
				t.Errorf("polls of %d: the next %d turns are %v", most, len(next), countBy(next, tenantOf))
			}
		})
	}
}

// A tenant's fairness keys take turns; within one it goes by nominal time.
func TestFairnessKeysTakeTurns(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		var jobs []job
		for i := range 400 {
			jobs = append(jobs, job{id: fmt.Sprint("a", i), fairness: "flood", in: time.Second - time.Duration(i)*time.Millisecond})
		}
		jobs = append(jobs, numbered(100, job{id: "b", fairness: "b", in: 2 * time.Second})...)
		jobs = append(jobs, numbered(100, job{id: "c", in: 2 * time.Second})...)
		got := saturated(w, jobs, 250, 10)
		last := map[string]int64{}
		for _, e := range got {
			if key := e.Template.FairnessKey; e.NominalMs < last[key] {
				t.Errorf("%s of key %q comes behind a later one", e.JobId, key)
			} else {
				last[key] = e.NominalMs
			}
		}
		checkShares(t, countBy(got, func(e *storagev1.Execution) string { return e.Template.FairnessKey }), map[string]int{"flood": 1, "b": 1, "": 1})
	})
}

// Queues of one poll take turns, too.
func TestQueuesOfAPollTakeTurns(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(500, job{id: "old", queue: "old", priority: 9, in: time.Second})...)
		w.create(numbered(500, job{id: "new", queue: "new", in: 2 * time.Second})...)
		time.Sleep(3 * time.Second)
		var got []*storagev1.Execution
		for i := range 10 {
			got = append(got, w.pollFor(dispatch.PollRequest{ClaimID: fmt.Sprint("c", i), Worker: "w", Queues: []string{"old", "new"}, Max: 20})...)
		}
		checkShares(t, countBy(got, func(e *storagev1.Execution) string { return e.Template.Queue }), map[string]int{"old": 1, "new": 1})
	})
}

// W6: shares hold whatever the order in which things become ready, also when a tenant's backlog alone is more than memory holds.
func TestSharesHoldBeyondMemory(t *testing.T) {
	inWorld(t, 4, dispatch.Config{MaxReady: 2000}, func(t *testing.T, w *world) {
		jobs := numbered(8000, job{id: "f", tenant: "flood", in: time.Second})
		weights := map[string]int{"flood": 1}
		for i := range 9 {
			name := fmt.Sprint("t", i)
			weights[name] = 1
			jobs = append(jobs, numbered(400, job{id: "o", tenant: name, in: 2 * time.Second})...)
		}
		got := saturated(w, jobs, 3000, 100)
		checkShares(t, countBy(got[:1500], tenantOf), weights)
		checkShares(t, countBy(got[1500:], tenantOf), weights)
	})
}
