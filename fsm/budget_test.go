package fsm

import (
	"fmt"
	"maps"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// counts is what an entry cost in key writes by kind, as "+kind" and "-kind", and in reads.
func counts(s *memState) map[string]int {
	c := map[string]int{}
	for kind, n := range s.puts {
		c["+"+string(rune(kind))] += n
	}
	for kind, n := range s.dels {
		c["-"+string(rune(kind))] += n
	}
	for kind, n := range s.rangeDels {
		c["--"+string(rune(kind))] += n
	}
	for kind, n := range s.hits {
		c["get "+string(rune(kind))] += n
	}
	for kind, n := range s.misses {
		c["miss "+string(rune(kind))] += n
	}
	return c
}

func (b *budget) spends(step string, want map[string]int) {
	b.t.Helper()
	if got := counts(b.s); !maps.Equal(got, want) {
		b.t.Errorf("%s costs %v\nwant %v", step, got, want)
	}
	b.s.resetCounts()
}

type budget struct {
	t     testing.TB
	s     *memState
	m     *Machine
	index uint64
	now   int64
}

func newBudget(t testing.TB) *budget {
	s := newMemState()
	b := &budget{t: t, s: s, m: Open(1, s), now: epochMS}
	b.apply(&storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: 1}})
	s.resetCounts()
	return b
}

func (b *budget) apply(c *storagev1.Command) Result {
	b.t.Helper()
	b.index++
	results, _ := b.m.Apply(b.s, b.index, &storagev1.Entry{Term: 1, StampMs: b.now, Commands: []*storagev1.Command{c}})
	for _, item := range results[0].Items {
		if item.Refusal != nil {
			b.t.Fatalf("refused: %+v", item.Refusal)
		}
	}
	return results[0]
}

func createMany(from, n int, at int64) *storagev1.Command {
	c := &storagev1.CreateJobs{}
	for i := from; i < from+n; i++ {
		c.Items = append(c.Items, &storagev1.CreateJob{
			Tenant: "tenant", JobId: fmt.Sprintf("job-%08d", i), Hash: make([]byte, 16), Schedule: &storagev1.Schedule{AtMs: at},
			Template: &storagev1.Template{
				Queue: "queue", Priority: 5, Payload: make([]byte, 100), LeaseMs: 30_000,
				Retry: &storagev1.RetryPolicy{MaxAttempts: 5, FirstDelayMs: 1000, FactorThousandths: 2000, MaxDelayMs: 3600_000},
			},
		})
	}
	return &storagev1.Command{CreateJobs: c}
}

func completeAll(leases []*storagev1.Execution, outcome storagev1.Outcome) *storagev1.Command {
	c := &storagev1.Completions{}
	for _, e := range leases {
		c.Items = append(c.Items, &storagev1.Completion{ExecutionId: ExecutionID(e), Fencing: e.Fencing, Outcome: outcome, Worker: "w"})
	}
	return &storagev1.Command{Completions: c}
}

func demand(n uint32) *storagev1.Command {
	return &storagev1.Command{Advance: &storagev1.Advance{Demand: []*storagev1.Demand{{ClaimId: "c", Worker: "w", Queues: []string{"queue"}, Max: n}}}}
}

// TestKeyBudget counts the key writes and reads of a one-shot's life, over 100 jobs an entry. Beside what is listed an
// entry costs its meta row, its event record, and one timer for all its leases.
func TestKeyBudget(t *testing.T) {
	const n = 100
	b := newBudget(t)
	b.apply(createMany(0, n, epochMS+1000))
	b.spends("create: 2 a job, and the existence check", map[string]int{"+j": n, "+t": n, "miss j": n, "+m": 1, "+e": 1})

	b.now += 1000
	leases := b.apply(demand(n)).Leases
	b.spends("fire and claim, a worker waiting: 2", map[string]int{"-t": n, "+l": n, "+t": 1, "+m": 1, "+e": 1})

	b.apply(completeAll(leases, storagev1.Outcome_OUTCOME_SUCCEEDED))
	b.spends("complete: 2, reading the lease's row", map[string]int{"get l": n, "-l": n, "+x": n, "+m": 1, "+e": 1})

	b.apply(createMany(n, n, b.now+1000))
	b.s.resetCounts()
	b.now += 1000
	b.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	b.spends("fire with nobody waiting: 2", map[string]int{"-t": n, "+r": n, "+m": 1, "+e": 1})

	c := &storagev1.Claim{ClaimId: "c", Worker: "w"}
	ScanReady(b.s, nil, nil, func(r ReadyRef) bool { c.Picks = append(c.Picks, r.Key); return true })
	leases = b.apply(&storagev1.Command{Claim: c}).Leases
	b.spends("claim: 2, reading the ready row", map[string]int{"get r": n, "-r": n, "+l": n, "+t": 1, "+m": 1, "+e": 1})

	h := &storagev1.Heartbeats{}
	for _, e := range leases {
		h.Items = append(h.Items, &storagev1.Heartbeat{ExecutionId: ExecutionID(e), Fencing: e.Fencing})
	}
	b.apply(&storagev1.Command{Heartbeats: h})
	b.spends("heartbeat: 1", map[string]int{"get l": n, "+l": n, "+m": 1})

	b.apply(completeAll(leases, storagev1.Outcome_OUTCOME_FAILED))
	b.spends("fail, to be retried: 3", map[string]int{"get l": n, "-l": n, "+t": n, "+a": n, "+m": 1, "+e": 1})

	b.now += 1000
	b.apply(demand(n))
	b.spends("retry, a worker waiting: 3", map[string]int{"-t": n, "-a": n, "+l": n, "+t": 1, "+m": 1, "+e": 1})
}

// TestEntriesAreBounded: whatever is due, one advance works on at most MaxBatch executions, also when one timer stands for
// many leases or many occurrences.
func TestEntriesAreBounded(t *testing.T) {
	b := newBudget(t)
	for i := range 3 {
		b.apply(createMany(i*MaxBatch, MaxBatch, epochMS+1000))
	}
	b.now += 1000
	total := 0
	var all []*storagev1.Execution
	for more := true; more; {
		r := b.apply(demand(MaxBatch))
		if r.Fired > MaxBatch {
			t.Fatalf("%d timers in one entry", r.Fired)
		}
		total, more, all = total+r.Fired, r.MoreDue, append(all, r.Leases...)
	}
	if total != 3*MaxBatch || len(all) != total {
		t.Fatalf("fired %d, leased %d", total, len(all))
	}
	b.now += 30_000
	lost := uint64(0)
	for more := true; more; {
		before := b.m.Meta().LostTotal
		more = b.apply(&storagev1.Command{Advance: &storagev1.Advance{}}).MoreDue
		step := b.m.Meta().LostTotal - before
		if step > MaxBatch {
			t.Fatalf("%d leases lost in one entry", step)
		}
		lost += step
	}
	if lost != uint64(total) || b.m.Meta().Ready != uint64(total) {
		t.Fatalf("lost %d of %d", lost, total)
	}
	checkInvariants(t, b.s)
}

// TestLeasesOfOneEntryAreCut: one entry may grant more leases than another may look at.
func TestLeasesOfOneEntryAreCut(t *testing.T) {
	b := newBudget(t)
	for i := range 3 {
		b.apply(createMany(i*MaxBatch, MaxBatch, epochMS+1000))
	}
	b.now += 1000
	e := &storagev1.Entry{Term: 1, StampMs: b.now, Commands: []*storagev1.Command{demand(MaxBatch), demand(MaxBatch), demand(MaxBatch)}}
	b.index++
	b.m.Apply(b.s, b.index, e)
	if b.m.Meta().Leased != 3*MaxBatch {
		t.Fatalf("%d leases", b.m.Meta().Leased)
	}
	b.now += 30_000
	for i := range 3 {
		r := b.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
		if want := uint64((i + 1) * MaxBatch); b.m.Meta().LostTotal != want || r.MoreDue != (i < 2) {
			t.Fatalf("lost %d, want %d; more due %v", b.m.Meta().LostTotal, want, r.MoreDue)
		}
	}
	checkInvariants(t, b.s)
}

// TestAttemptsKept: of many attempts the first and the last 20 are kept, the total is exact.
func TestAttemptsKept(t *testing.T) {
	b := newBudget(t)
	c := createMany(0, 1, epochMS)
	c.CreateJobs.Items[0].Template.Retry = &storagev1.RetryPolicy{MaxAttempts: 1000}
	b.apply(c)
	leases := b.apply(demand(1)).Leases
	for range 100 {
		b.apply(completeAll(leases, storagev1.Outcome_OUTCOME_FAILED))
		claim := &storagev1.Claim{ClaimId: "c", Worker: "w", Picks: [][]byte{ReadyKey(leases[0])}}
		leases = b.apply(&storagev1.Command{Claim: claim}).Leases
	}
	e := leases[0]
	if e.AttemptsTotal != 100 || len(e.Attempts) != 40 || e.Attempts[19].Number != 20 || e.Attempts[20].Number != 81 || e.Attempts[39].Number != 100 {
		t.Fatalf("total %d, kept %d", e.AttemptsTotal, len(e.Attempts))
	}
}

// TestResumeIsBounded: a resume releases some of what was held itself, and leaves the others to a task.
func TestResumeIsBounded(t *testing.T) {
	b := newBudget(t)
	c := &storagev1.CreateJob{
		Tenant: "t", JobId: "j", Hash: []byte{1}, CatchUp: storagev1.CatchUp_CATCH_UP_ALL,
		Schedule: &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 1000}}, Template: &storagev1.Template{Queue: "queue"},
	}
	b.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{c}}})
	b.now += 250_000
	for b.apply(&storagev1.Command{Advance: &storagev1.Advance{}}).MoreDue {
	}
	set := func(s storagev1.JobState) Result {
		return b.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{Tenant: "t", JobId: "j", Fields: []string{"state"}, State: s}})
	}
	set(storagev1.JobState_JOB_STATE_PAUSED)
	claim := &storagev1.Claim{ClaimId: "c"}
	ScanReady(b.s, nil, nil, func(r ReadyRef) bool { claim.Picks = append(claim.Picks, r.Key); return true })
	if r := b.apply(&storagev1.Command{Claim: claim}); len(r.Leases) != 0 || b.m.Meta().Held != 250 {
		t.Fatalf("%d leases, %d held", len(r.Leases), b.m.Meta().Held)
	}
	task := set(storagev1.JobState_JOB_STATE_ACTIVE).Task
	if task == nil || task.Finished || b.m.Meta().Held != 150 || len(Tasks(b.s)) != 1 {
		t.Fatalf("task %v, %d held", task, b.m.Meta().Held)
	}
	step := &storagev1.Command{StepTask: &storagev1.StepTask{Id: task.Id, Limit: 100}}
	if r := b.apply(step); r.Task.Finished || !r.More || b.m.Meta().Held != 50 {
		t.Fatalf("task %v, %d held", r.Task, b.m.Meta().Held)
	}
	if r := b.apply(step); !r.Task.Finished || b.m.Meta().Held != 0 || b.m.Meta().Ready != 250 {
		t.Fatalf("task %v, %d held", r.Task, b.m.Meta().Held)
	}
	checkInvariants(t, b.s)
}

// TestRecordedErrors pins the texts that stand in rows: replicas of different versions must write the same.
func TestRecordedErrors(t *testing.T) {
	b := newBudget(t)
	c := createMany(0, 2, epochMS)
	for _, item := range c.CreateJobs.Items {
		item.Template.Retry.MaxAttempts = 1
	}
	b.apply(c)
	leases := b.apply(demand(2)).Leases
	large := completeAll(leases[:1], storagev1.Outcome_OUTCOME_SUCCEEDED)
	large.Completions.Items[0].Result = make([]byte, MaxResultBytes+1)
	b.index++
	b.m.Apply(b.s, b.index, &storagev1.Entry{Term: 1, StampMs: b.now, Commands: []*storagev1.Command{large}})
	b.now += 30_000
	b.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	for i, want := range []string{"result is more than 262144 bytes: the attempt has failed", "lease lost"} {
		e, _, ok := Find(b.s, ExecutionID(leases[i]))
		if !ok || e.State != storagev1.ExecutionState_EXECUTION_STATE_DEAD || e.Error != want {
			t.Errorf("found %v: %v, error %q, want %q", ok, e.GetState(), e.GetError(), want)
		}
	}
}

// TestStaleHeartbeats: one under a token that was granted is recorded by an event and no other row; one under a token that
// never was is counted only.
func TestStaleHeartbeats(t *testing.T) {
	b := newBudget(t)
	b.apply(createMany(0, 1, epochMS))
	e := b.apply(demand(1)).Leases[0]
	b.apply(completeAll([]*storagev1.Execution{e}, storagev1.Outcome_OUTCOME_SUCCEEDED))
	b.s.resetCounts()
	beat := func(fencing uint64) {
		t.Helper()
		b.index++
		results, _ := b.m.Apply(b.s, b.index, &storagev1.Entry{Term: 1, StampMs: b.now, Commands: []*storagev1.Command{{
			Heartbeats: &storagev1.Heartbeats{Items: []*storagev1.Heartbeat{{ExecutionId: ExecutionID(e), Fencing: fencing}}},
		}}})
		if r := results[0].Items[0].Refusal; r == nil || r.Code != FailedPrecondition {
			t.Fatalf("refusal %+v", r)
		}
	}
	beat(e.Fencing)
	b.spends("a stale heartbeat", map[string]int{"miss l": 1, "+m": 1, "+e": 1})
	var last *storagev1.Event
	Events(b.s, b.m.Meta().EventOffset-1, func(_ uint64, r *storagev1.EventRecord) bool { last = r.Events[0]; return true })
	if last.Type != storagev1.EventType_EVENT_TYPE_LATE_ATTEMPT || last.JobId != e.JobId || last.NominalMs != e.NominalMs || last.Fencing != e.Fencing {
		t.Errorf("event %v", last)
	}
	beat(e.Fencing + 1)
	b.spends("a token that was never granted", map[string]int{"miss l": 1, "+m": 1})
	if b.m.Meta().StaleTotal != 2 {
		t.Errorf("%d stale", b.m.Meta().StaleTotal)
	}
}
