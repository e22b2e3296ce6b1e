package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// leaseRow is a lease of a job of tenant t, as it stands.
func leaseRow(job string, fencing uint64) (key, value []byte) {
	e := &storagev1.Execution{
		Tenant: "t", JobId: job, Incarnation: 1, Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: epochMS,
		State: storagev1.ExecutionState_EXECUTION_STATE_LEASED, Fencing: fencing, Template: &storagev1.Template{Queue: "q"},
	}
	return LeasedKey(fencing), mustEncode(e.MarshalVT())
}

// TestPagesOfLargeExecutions: a page ends when it is large, and the pages add up.
func TestPagesOfLargeExecutions(t *testing.T) {
	s := newMemState()
	const n = 3 * maxPageBytes / MaxResultBytes
	for i := range n {
		e := &storagev1.Execution{
			Tenant: "t", JobId: fmt.Sprintf("job-%03d", i), Incarnation: 1, Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE,
			State: storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED, Result: make([]byte, MaxResultBytes),
		}
		id := IdentityOf(e)
		s.Set(endedKey(1, &id, charSchedule), encodeNamed(e))
	}
	largest := 0
	all := pages(t, func(c []byte) ([]*storagev1.Execution, []byte) {
		page, next := ListExecutions(s, ExecutionFilter{Tenant: "t"}, c, 1000, 1000)
		size := 0
		for _, e := range page {
			size += len(e.Result)
		}
		largest = max(largest, size)
		return page, next
	})
	if len(all) != n || largest > maxPageBytes+MaxResultBytes {
		t.Fatalf("%d of %d executions, %d bytes in one page", len(all), n, largest)
	}
}

// TestListsReadNoPayloads: payloads that stand apart are read by GetJob only.
func TestListsReadNoPayloads(t *testing.T) {
	b := newBudget(t)
	payload := make([]byte, inlinePayloadBytes+1)
	b.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
		Tenant: "t", JobId: "a", Hash: []byte("h"), Schedule: &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 1000}},
		Template: &storagev1.Template{Queue: "q", Payload: payload},
	}}}})
	b.s.resetCounts()
	if jobs, _ := ListJobs(b.s, JobFilter{Tenant: "t", Queue: "q"}, nil, 10, 10); len(jobs) != 1 || b.s.hits[KindBlob] != 0 {
		t.Errorf("%d jobs, %d payloads read", len(jobs), b.s.hits[KindBlob])
	}
	if view, ok := GetJob(b.s, "t", "a"); !ok || !slices.Equal(view.Payload, payload) || len(view.Job.Template.Payload) != 0 {
		t.Errorf("found %v with %d bytes of payload", ok, len(view.Payload))
	}
}

// TestSearchFindsWhatRunsFirst: what is leased is found before a backlog uses up the search.
func TestSearchFindsWhatRunsFirst(t *testing.T) {
	s := newMemState()
	for i := range 50 {
		e := &storagev1.Execution{
			Tenant: "t", JobId: "other", Incarnation: 1, NominalMs: int64(i), Template: &storagev1.Template{Queue: "q"},
		}
		s.Set(ReadyKey(e), mustEncode(e.MarshalVT()))
	}
	s.Set(leaseRow("a", 7))
	keys, complete := newFinder(s, 10).live("t", "a", 100)
	if len(keys) != 1 || string(keys[0]) != string(LeasedKey(7)) || complete {
		t.Fatalf("found %q, complete %v", keys, complete)
	}
}

// TestSweepsAreBounded: deleted jobs whose live executions take long to look for are swept by several entries.
func TestSweepsAreBounded(t *testing.T) {
	b := newBudget(t)
	for _, id := range []string{"a", "b", "c"} {
		b.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
			Tenant: "t", JobId: id, Hash: []byte("h"), Schedule: &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 1000}},
			Template: &storagev1.Template{Queue: "q"},
		}}}})
		b.apply(&storagev1.Command{DeleteJob: &storagev1.DeleteJob{Tenant: "t", JobId: id}})
	}
	for fencing := range uint64(maxFindRows * 6 / 10) {
		b.s.Set(leaseRow("other", fencing+1))
	}
	b.now += recordKeptMS
	housekeep := &storagev1.Command{Housekeep: &storagev1.Housekeep{}}
	if res := b.apply(housekeep); !res.More || len(b.m.stops) != 1 {
		t.Fatalf("after one entry: more %v, %d markers", res.More, len(b.m.stops))
	}
	if res := b.apply(housekeep); res.More || len(b.m.stops) != 0 || ReadMeta(b.s).Jobs != 0 {
		t.Fatalf("after two entries: more %v, %d markers", res.More, len(b.m.stops))
	}
}

// TestDeleteCancelsAllThatIsHeld: of more than one entry takes a task cancels the rest.
func TestDeleteCancelsAllThatIsHeld(t *testing.T) {
	sc := newScript(t)
	var out strings.Builder
	sc.line(&out, "create id=a every=1h paused now=1s")
	triggers := make([]*storagev1.Command, MaxBatch+50)
	for i := range triggers {
		triggers[i] = &storagev1.Command{TriggerJob: &storagev1.TriggerJob{
			Tenant: "t", JobId: "a", Discriminator: fmt.Sprint(i), Hash: []byte{1},
		}}
	}
	sc.apply(triggers...)
	r := sc.apply(&storagev1.Command{DeleteJob: &storagev1.DeleteJob{Tenant: "t", JobId: "a"}})[0]
	if r.Task == nil || sc.m.meta.Held != 50 || !sc.fx.TasksStarted {
		t.Fatalf("task %v, %d held", r.Task, sc.m.meta.Held)
	}
	sc.line(&out, "step-task id="+r.Task.Id)
	if sc.m.meta.Held != 0 {
		t.Errorf("%d are held of a deleted job", sc.m.meta.Held)
	}
}

// streamsOf fills a tenant's backlog with n streams of one execution each.
func streamsOf(s *memState, n int) {
	for i := range n {
		e := &storagev1.Execution{
			Tenant: "t", JobId: "other", Incarnation: 1, NominalMs: 1,
			Template: &storagev1.Template{Queue: "a", FairnessKey: fmt.Sprintf("f%05d", i)},
		}
		s.Set(ReadyKey(e), mustEncode(e.MarshalVT()))
	}
}

// TestReadyIsFoundInItsJobsStream: however many streams the tenant has, what is ready is found by a few reads, also after
// an update moved the stream. What an update left behind is searched for, up to a bound.
func TestReadyIsFoundInItsJobsStream(t *testing.T) {
	b := newBudget(t)
	const streams = maxStreamReads / 2
	template := &storagev1.Template{Queue: "q", Priority: 3, FairnessKey: "mine"}
	create := func(id string, s *storagev1.Schedule) {
		b.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
			Tenant: "t", JobId: id, Hash: []byte("h"), Schedule: s, Template: template,
		}}}})
	}
	move := func(id string) {
		b.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{
			Tenant: "t", JobId: id, Fields: []string{"queue", "priority", "fairness_key"},
			Template: &storagev1.Template{Queue: "r", Priority: 4, FairnessKey: "other"},
		}})
	}
	create("one", &storagev1.Schedule{AtMs: epochMS + 1000})
	create("moved", &storagev1.Schedule{AtMs: epochMS + 1000})
	create("every", &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 1000}})
	move("moved")
	b.now += 1000
	b.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	look := func(job string, incarnation uint64) (found bool, spent int) {
		f := newFinder(b.s, 0)
		e, _ := f.find(&Identity{"t", job, incarnation, storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, epochMS + 1000, ""})
		return e != nil, f.spent
	}
	streamsOf(b.s, streams)
	for i, job := range []string{"one", "moved", "every"} {
		if found, spent := look(job, uint64(i+1)); !found || spent > 10 {
			t.Errorf("%s: found %v by %d reads", job, found, spent)
		}
	}
	if jobs, _ := ListJobs(b.s, JobFilter{Tenant: "t", Queue: "r"}, nil, 10, 100); len(jobs) != 1 || jobs[0].JobID != "moved" {
		t.Errorf("listed %v", jobIDs(jobs))
	}
	move("every")
	if found, spent := look("every", 3); found || spent > maxStreamReads+10 {
		t.Errorf("behind %d streams: found %v by %d reads", streams, found, spent)
	}
	prefix := ReadyQueuePrefix("a")
	b.s.DeleteRange(prefix, PrefixEnd(prefix))
	streamsOf(b.s, 100)
	if found, spent := look("every", 3); !found || spent > 300 {
		t.Errorf("behind 100 streams: found %v by %d reads", found, spent)
	}
}

// TestPagesOfManyStreams: of a tenant with more streams than a page seeks to, the pages add up all the same.
func TestPagesOfManyStreams(t *testing.T) {
	s := newMemState()
	const n = maxListSeeks + 100
	streamsOf(s, n)
	other := &storagev1.Execution{Tenant: "s", JobId: "other", Incarnation: 1, Template: &storagev1.Template{Queue: "a"}}
	s.Set(ReadyKey(other), mustEncode(other.MarshalVT()))
	w := walk{finder: newFinder(s, 1), filter: ExecutionFilter{Tenant: "t"}}
	if spans := w.readySpans(); len(spans) != 1 {
		t.Errorf("%d spans", len(spans))
	}
	all := pages(t, func(c []byte) ([]*storagev1.Execution, []byte) {
		return ListExecutions(s, ExecutionFilter{Tenant: "t", JobID: "other"}, c, 100, 90)
	})
	if len(all) != n {
		t.Errorf("%d of %d executions", len(all), n)
	}
}

// TestFindAllFindsWhatFindFinds in every state.
func TestFindAllFindsWhatFindFinds(t *testing.T) {
	var r *recorder
	leases := 0
	for seed := uint64(5); leases < 3; seed++ {
		r = recordLog(seed, 300)
		leases = len(r.matching(ExecutionFilter{State: storagev1.ExecutionState_EXECUTION_STATE_LEASED}))
	}
	ids := append(r.matching(ExecutionFilter{}), "malformed", "t~gone~1~s~1")
	found := 0
	FindAll(r.s, ids, func(i int, e *storagev1.Execution, key []byte) {
		want, wantKey, _ := Find(r.s, ids[i])
		if (e == nil) != (want == nil) || string(key) != string(wantKey) || e != nil && ExecutionID(e) != ids[i] {
			t.Errorf("%s: found at %q, want %q", ids[i], key, wantKey)
		}
		if e != nil {
			found++
		}
	})
	if found != len(ids)-2 {
		t.Fatalf("found %d of %d", found, len(ids)-2)
	}
}

// TestOverlapsAreOneRow: what falls due while an earlier one lives is one row a job.
func TestOverlapsAreOneRow(t *testing.T) {
	const n = 300
	sc := newScript(t)
	createScripted(sc, n, "every=1s anchor=1s overlap=skip lease=10h")
	sc.now = epochMS + 1000
	sc.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	rows := len(sc.s.keys)
	sc.now = epochMS + 56_000
	r := sc.apply(&storagev1.Command{Advance: &storagev1.Advance{}})
	// One more is the record of the entry's events.
	if skipped := ReadMeta(sc.s).SkippedTotal; r[0].MoreDue || skipped != 55*n || len(sc.s.keys)-rows != n+1 {
		t.Fatalf("more due %v, %d instants skipped, %d rows more", r[0].MoreDue, skipped, len(sc.s.keys)-rows)
	}
}

// TestPassedRangesAreWork: an entry of horizons that were full of ranges which have all passed ends when it has done enough,
// and what it left is taken in by others.
func TestPassedRangesAreWork(t *testing.T) {
	const n = 100
	sc := newScript(t)
	createScripted(sc, n, "cron=1s n=60 skip=2s")
	sc.now = epochMS + 600_000
	entries := 0
	for first := 0; first < n; entries++ {
		var items []*storagev1.ExpandJob
		for i := first; i < n; i++ {
			e := buildExpand(sc, parseArgs(t, fmt.Sprintf("expand id=job-%d replace pass=8m n=1", i)))
			items = append(items, e.Expand.Items...)
		}
		rows := len(sc.s.keys)
		r := sc.apply(&storagev1.Command{Expand: &storagev1.Expand{Items: items}})
		if more := len(sc.s.keys) - rows; more > MaxBatch+maxHorizon {
			t.Fatalf("%d rows more in one entry", more)
		}
		for _, item := range r[0].Items {
			if item.Refusal == nil {
				first++
			} else if item.Refusal.Code != Aborted {
				t.Fatalf("%+v", item.Refusal)
			}
		}
	}
	if skipped := ReadMeta(sc.s).SkippedTotal; entries < 3 || skipped < 30*n {
		t.Fatalf("%d entries, %d instants skipped", entries, skipped)
	}
}

// createScripted makes the jobs job-0 to job-(n-1) from the words of a script's create.
func createScripted(sc *script, n int, words string) {
	var items []*storagev1.CreateJob
	for i := range n {
		items = append(items, buildCreate(sc, parseArgs(sc.t, fmt.Sprintf("create id=job-%d %s", i, words))))
	}
	sc.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: items}})
}
