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
// of a job whose rule forbids it, nothing that starts or is decided while it is stopped, what the events tell, and no nominal
// instant with two verdicts. The seed stands in the test's name.
func TestRandomLogs(t *testing.T) {
	for seed := uint64(100); seed < 100+*randomSeeds; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := recordLog(seed, 400)
			s := newMemState()
			m := Open(1, s)
			events, seen := newReplay(), uint64(0)
			for i, e := range r.log {
				before := watch(m, s, e)
				results, _ := m.Apply(s, uint64(i+1), e)
				checkInvariants(t, s)
				oneRuns(t, s)
				before.check(t, m, s, results)
				Events(s, seen, func(offset uint64, rec *storagev1.EventRecord) bool {
					events.apply(t, rec)
					seen = offset + 1
					return true
				})
				events.compare(t, s)
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

// stoppedJobs are the recurring jobs that are stopped before an entry in which nobody touches pauses or jobs, by what they have
// decided so far.
type stoppedJobs map[jobName]*storagev1.Job

func watch(m *Machine, s *memState, e *storagev1.Entry) stoppedJobs {
	jobs := stoppedJobs{}
	for _, c := range e.Commands {
		if c.UpdateJob != nil || c.PutJob != nil || c.DeleteJob != nil || c.CreateJobs != nil || c.PutQueue != nil || c.PutTenant != nil ||
			c.PutPauseRule != nil {
			return jobs
		}
	}
	s.Scan([]byte{KindJob}, []byte{KindJob + 1}, func(key, _ []byte) bool {
		tenant, jobID, _ := parseJobKey(key, KindJob)
		if j := getJob(s, key); !isOneShot(j) && m.stopped(tenant, j) {
			jobs[jobName{tenant, jobID}] = j.CloneVT()
		}
		return true
	})
	return jobs
}

// check checks that nothing was decided of jobs that were stopped all the while, and that nothing of them has started.
func (jobs stoppedJobs) check(t *testing.T, m *Machine, s *memState, results []Result) {
	t.Helper()
	for name, was := range jobs {
		j := getJob(s, JobKey(name.tenant, name.jobID))
		if j != nil && j.Incarnation == was.Incarnation && m.stopped(name.tenant, j) && j.WatermarkMs != was.WatermarkMs {
			t.Errorf("%v is stopped, and went on from %d to %d", name, was.WatermarkMs, j.WatermarkMs)
		}
		for _, r := range results {
			for _, e := range r.Leases {
				if e.JobId == name.jobID && e.Tenant == name.tenant && j != nil && m.stopped(name.tenant, j) && !m.stoppedElsewhere(e, j) {
					t.Errorf("%s has started, and its job is stopped", ExecutionID(e))
				}
			}
		}
	}
}

// stoppedElsewhere says whether what stops a job does not stop e: the queue that the job has moved to.
func (m *Machine) stoppedElsewhere(e *storagev1.Execution, j *storagev1.Job) bool {
	return j.State != storagev1.JobState_JOB_STATE_PAUSED && !m.paused(e) && !m.ruled(e.Tenant, j.Labels)
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
