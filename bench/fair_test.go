package bench

import (
	"testing"
	"time"
)

// Of twenty jobs of a priority eleven are the flooding tenant's, and one is each other's.
func TestRivals(t *testing.T) {
	n := map[[2]int]int{}
	for i := range 20 * priorities {
		n[party(i)]++
	}
	for p := range priorities {
		for tenant := range rivalTenants {
			want := 1
			if tenant == 0 {
				want = 11
			}
			if got := n[[2]int{tenant, p}]; got != want {
				t.Errorf("tenant %d, priority %d: %d", tenant, p, got)
			}
		}
	}
}

// Shares are counted while everybody waits, and the worst miss is told.
func TestFairnessIsCounted(t *testing.T) {
	p := newPlan(1, 20_000, "", at(time.Now()))
	p.rivals = true
	l := newLedger(p, 20_000)
	// One of each party in turn: equal shares, which are not the declared ones of priorities.
	next := map[[2]int]int{}
	for i := range l.items {
		turn := next[party(i)]
		next[party(i)]++
		l.items[i] = account{attempt: 1, latenessUS: int32(1000 * (turn + 1))}
	}
	var r Result
	r.fairness(l)
	if len(r.Shares) != priorities+rivalTenants {
		t.Fatalf("%+v", r.Shares)
	}
	for _, s := range r.Shares {
		if s.Had < 9.9 || s.Had > 10.1 || s.WaitMS == nil {
			t.Errorf("%+v", s)
		}
	}
	if r.Shares[0].Of != "priority 9" || r.Shares[0].Declared < 33 || r.Shares[10].Of != "tenant t000, which floods" || *r.UnfairPercent < 900 {
		t.Errorf("%+v, worst %v", r.Shares, *r.UnfairPercent)
	}
}
