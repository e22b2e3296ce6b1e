package fsm

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

var randomSeeds = flag.Uint64("random-seeds", 5, "how many random logs TestRandomLogs plays")

// TestRandomLogs plays random logs and looks at the whole state after each entry: the rules of the rows, no two live leases
// of a job whose rule forbids it, and no nominal instant with two verdicts. The seed stands in the test's name.
func TestRandomLogs(t *testing.T) {
	for seed := uint64(100); seed < 100+*randomSeeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := recordLog(seed, 400)
			s := newMemState()
			m := Open(1, s)
			for i, e := range r.log {
				m.Apply(s, uint64(i+1), e)
				checkInvariants(t, s)
				oneRuns(t, s)
				if t.Failed() {
					t.Fatalf("after entry %d: %v", i, e)
				}
			}
			oneVerdict := verdicts(t, s)
			if oneVerdict == 0 {
				t.Fatal("nothing recurred")
			}
		})
	}
}

// oneRuns checks that of the executions that block each other at most one is leased, but for those that a new rule took in.
func oneRuns(t *testing.T, s *memState) {
	t.Helper()
	leased := map[jobName]int{}
	ScanLeases(s, func(e *storagev1.Execution) bool {
		if e.Blocks {
			leased[jobName{e.Tenant, e.JobId}]++
		}
		return true
	})
	for name, n := range leased {
		j := getJob(s, JobKey(name.tenant, name.jobID))
		if n > 1 && j != nil && len(j.LiveMs) < n {
			t.Errorf("%d executions of %v run, it knows of %d", n, name, len(j.LiveMs))
		}
	}
}

// verdicts checks that no nominal instant of a schedule has two, and counts them.
func verdicts(t *testing.T, s *memState) int {
	t.Helper()
	type span struct {
		from, to int64
		what     string
	}
	found := map[Identity][]span{}
	add := func(id Identity, to int64, what string) {
		at := Identity{Tenant: id.Tenant, JobID: id.JobID, Incarnation: id.Incarnation}
		found[at] = append(found[at], span{id.NominalMS, to, what})
	}
	executions, _ := ListExecutions(s, ExecutionFilter{Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE}, nil, 1<<20, 1<<20)
	for _, e := range executions {
		if !e.OneShot {
			add(IdentityOf(e), e.NominalMs, e.State.String())
		}
	}
	s.Scan([]byte{KindEnded}, []byte{KindEnded + 1}, func(key, value []byte) bool {
		// What is excluded lies between the instants that fire, and so within ranges of them.
		if ref, _ := parseEndedKey(key); ref.char == charRange && ref.id.Discriminator == "" {
			v := &storagev1.RangeVerdict{}
			mustDecode(key, value, v.UnmarshalVT)
			add(ref.id, v.ToMs, v.Why)
		}
		return true
	})
	n := 0
	for id, spans := range found {
		slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
		for i := range spans[1:] {
			if spans[i+1].from <= spans[i].to {
				t.Errorf("%v: %v and %v", id, spans[i], spans[i+1])
			}
		}
		n += len(spans)
	}
	return n
}
