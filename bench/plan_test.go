package bench

import (
	"math/rand/v2"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// start is when the jobs of tests are due.
var start = time.UnixMilli(1_700_000_000_000)

func TestPayloadNamesItsJob(t *testing.T) {
	seed := rand.Uint64()
	p := newPlan(seed, 1000, "", at(start))
	var b [PayloadBytes]byte
	seen := map[[PayloadBytes]byte]bool{}
	for i := range p.n {
		p.payload(b[:], i)
		if got, ok := p.number(b[:]); !ok || got != i {
			t.Fatalf("seed %d: payload of job %d is taken for that of %d, %v", seed, i, got, ok)
		}
		if seen[b] {
			t.Fatalf("seed %d: job %d has the payload of another", seed, i)
		}
		seen[b] = true
		flipped := b
		flipped[rand.IntN(PayloadBytes)] ^= 1 << rand.IntN(8)
		if got, ok := p.number(flipped[:]); ok {
			t.Fatalf("seed %d: a flipped bit in the payload of job %d goes unnoticed: %d", seed, i, got)
		}
		if _, ok := p.number(b[:PayloadBytes-1]); ok {
			t.Fatalf("seed %d: a short payload of job %d goes unnoticed", seed, i)
		}
	}
}

func TestUnmixUndoesMix(t *testing.T) {
	for range 1000 {
		if x := rand.Uint64(); unmix(mix(x)) != x {
			t.Fatalf("unmix(mix(%#x)) = %#x", x, unmix(mix(x)))
		}
	}
}

func TestUniformVisitsEachSlotOnce(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 618, 1000, 20_000} {
		due := uniform(start, time.Duration(n)*time.Millisecond, n)
		seen := map[int64]bool{}
		for i := range n {
			ms := due(i) - start.UnixMilli()
			if ms < 0 || ms >= int64(n) || seen[ms] {
				t.Fatalf("%d jobs: job %d is due in slot %d", n, i, ms)
			}
			seen[ms] = true
		}
	}
}

func TestFillMakesDistinctJobsAndUsesTheirMessageAgain(t *testing.T) {
	p := newPlan(7, 2000, "x-", uniform(start, time.Second, 2000))
	req := &carillonv1.CreateJobRequest{}
	keys, tenants, queues := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range p.n {
		p.fill(req, i)
		keys[req.GetIdempotencyKey()] = true
		tenants[req.GetJob().GetTenant()] = true
		queues[req.GetJob().GetQueue()] = true
		if got := req.GetJob().GetSchedule().GetAt().AsTime().UnixMilli(); got != p.due(i) {
			t.Fatalf("job %d is due at %d, not %d", i, got, p.due(i))
		}
	}
	if len(keys) != 2000 || len(tenants) != 100 || len(queues) != 8 {
		t.Errorf("%d keys, %d tenants, %d queues", len(keys), len(tenants), len(queues))
	}
	if !tenants["t000"] || !tenants["t099"] || !queues["x-q0"] || !queues["x-q7"] {
		t.Errorf("tenants %v, queues %v", tenants, queues)
	}
}
