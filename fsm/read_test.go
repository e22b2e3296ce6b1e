package fsm

import (
	"fmt"
	"slices"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// pages collects what a paged read returns with small pages, and fails when one does not get on.
func pages[T any](t *testing.T, read func(cursor []byte) ([]T, []byte)) (all []T) {
	t.Helper()
	var cursor []byte
	for range 100_000 {
		page, next := read(cursor)
		all = append(all, page...)
		if next == nil {
			return all
		}
		if slices.Compare(cursor, next) >= 0 {
			t.Fatalf("cursor went from %q to %q", cursor, next)
		}
		cursor = next
	}
	t.Fatal("no end")
	return nil
}

// TestPages: small pages, even of a budget of one row, add up to the one large page.
func TestPages(t *testing.T) {
	r := recordLog(5, 300)
	const huge = 1 << 20
	for _, f := range []JobFilter{
		{Tenant: "t"}, {Tenant: "t-1"}, {Tenant: "t", IDPrefix: "job-1"}, {Tenant: "t", Queue: "q1"},
		{Tenant: "t", State: storagev1.JobState_JOB_STATE_EXHAUSTED}, {Tenant: "t", State: storagev1.JobState_JOB_STATE_DELETED},
		{Tenant: "t", Labels: []LabelFilter{{Key: "k", Value: "v"}}}, {Tenant: "t", Labels: []LabelFilter{{Key: "other", AnyValue: true}}},
	} {
		whole, next := ListJobs(r.s, f, nil, huge, huge)
		if next != nil {
			t.Fatalf("%+v: a cursor behind the last row", f)
		}
		want := jobIDs(whole)
		for _, limit := range []int{1, 3} {
			got := jobIDs(pages(t, func(c []byte) ([]JobView, []byte) { return ListJobs(r.s, f, c, limit, limit*2-1) }))
			if !slices.Equal(got, want) {
				t.Errorf("%+v in pages of %d: %v, want %v", f, limit, got, want)
			}
		}
	}
	for _, f := range []ExecutionFilter{
		{}, {Tenant: "t"}, {Tenant: "t", JobID: "job-1"}, {Queue: "q0"}, {Tenant: "t", Queue: "q0"},
		{State: storagev1.ExecutionState_EXECUTION_STATE_READY}, {State: storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED, Tenant: "t"},
		{State: storagev1.ExecutionState_EXECUTION_STATE_DEAD}, {Kind: storagev1.ExecutionKind_EXECUTION_KIND_TRIGGER},
		{State: storagev1.ExecutionState_EXECUTION_STATE_RETRYING}, {State: storagev1.ExecutionState_EXECUTION_STATE_LEASED},
		{State: storagev1.ExecutionState_EXECUTION_STATE_WAITING, Tenant: "t"},
	} {
		want := r.matching(f)
		got := executionIDs(pages(t, func(c []byte) ([]*storagev1.Execution, []byte) { return ListExecutions(r.s, f, c, 2, 3) }))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %v\nwant %v", f, got, want)
		}
	}
}

// matching lists the executions that a filter matches by looking at every row.
func (r *recorder) matching(f ExecutionFilter) []string {
	var ids []string
	for _, k := range r.s.keys {
		if _, e := readHint(r.s, []byte(k)); e != nil && f.matches(e) {
			ids = append(ids, ExecutionID(e))
		}
	}
	slices.Sort(ids)
	return ids
}

func jobIDs(views []JobView) []string {
	ids := make([]string, len(views))
	for i := range views {
		ids[i] = views[i].JobID
	}
	return ids
}

func executionIDs(list []*storagev1.Execution) []string {
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = ExecutionID(e)
	}
	return ids
}

// TestHistoryPages: the pages of a job's history hold each item once.
func TestHistoryPages(t *testing.T) {
	r := recordLog(6, 400)
	items := 0
	for i := range 30 {
		job := fmt.Sprintf("job-%d", i)
		whole := ReadHistory(r.s, "t", job, nil, 1<<20)
		want := slices.Concat(executionIDs(whole.Executions), executionIDs(whole.Late))
		var got, late []string
		verdicts := 0
		pages(t, func(c []byte) ([]int, []byte) {
			h := ReadHistory(r.s, "t", job, c, 2)
			got, late = append(got, executionIDs(h.Executions)...), append(late, executionIDs(h.Late)...)
			verdicts += len(h.Verdicts)
			return nil, h.Next
		})
		if !slices.Equal(slices.Concat(got, late), want) || verdicts != len(whole.Verdicts) {
			t.Errorf("%s: %v %v, %d verdicts; want %v, %d", job, got, late, verdicts, want, len(whole.Verdicts))
		}
		items += len(want) + verdicts
	}
	if items < 30 {
		t.Fatalf("only %d items: the log is too poor", items)
	}
}

// TestScans: what a new leader reads at takeover are the rows, in their order.
func TestScans(t *testing.T) {
	r := recordLog(7, 300)
	meta := ReadMeta(r.s)
	var timers, oneShots uint64
	first, last := int64(0), int64(0)
	ScanTimers(r.s, 0, maxInstantMS, func(ref TimerRef) bool {
		if timers == 0 {
			first = ref.AtMS
		}
		if ref.AtMS < last {
			t.Fatalf("timer at %d behind one at %d", ref.AtMS, last)
		}
		last = ref.AtMS
		timers++
		if ref.Kind == TimerOneShot {
			oneShots++
			if ref.Queue == "" {
				t.Fatal("a one-shot's timer without its queue")
			}
		}
		return true
	})
	if at, ok := FirstTimer(r.s); !ok || at != first {
		t.Errorf("the first timer is at %d, %v; want %d", at, ok, first)
	}
	var early uint64
	ScanTimers(r.s, 0, last, func(TimerRef) bool { early++; return true })
	if oneShots != meta.Waiting || early >= timers || timers == 0 {
		t.Fatalf("%d timers, %d before the last, %d one-shots of %d", timers, early, oneShots, meta.Waiting)
	}
	var ready, leases uint64
	ScanReady(r.s, nil, nil, func(ref ReadyRef) bool {
		value, ok := r.s.Get(ref.Key)
		if !ok {
			t.Fatalf("no row at %q", ref.Key)
		}
		e := decodeExecution(ref.Key, value)
		want := ReadyRef{ref.Key, e.Template.Queue, e.Template.Priority, e.Tenant, e.Template.FairnessKey, e.NominalMs, e.ReadyMs}
		if fmt.Sprint(ref) != fmt.Sprint(want) {
			t.Fatalf("%+v, want %+v", ref, want)
		}
		ready++
		return true
	})
	ScanLeases(r.s, func(e *storagev1.Execution) bool {
		if e.ClaimId == "" || e.Tenant == "" {
			t.Fatalf("lease %v", e)
		}
		leases++
		return true
	})
	if ready != meta.Ready || leases != meta.Leased {
		t.Fatalf("%d ready of %d, %d leases of %d", ready, meta.Ready, leases, meta.Leased)
	}
}

// TestEffects: what an entry changed is told to the leader's structures in memory.
func TestEffects(t *testing.T) {
	sc := newScript(t)
	do := func(line string) Effects {
		t.Helper()
		a := parseArgs(t, line)
		if a.has("now") {
			sc.now = a.instant("now")
		}
		sc.apply(commands[a.cmd](sc, a))
		return sc.fx
	}
	if fx := do("create id=a at=10s"); len(fx.Timers) != 1 || fx.Timers[0] != (TimerRef{epochMS + 10_000, TimerOneShot, "q"}) {
		t.Errorf("create: %+v", fx)
	}
	if fx := do("advance now=12s"); len(fx.Ready) != 1 || fx.Ready[0].ReadyMS != epochMS+12_000 || fx.Ready[0].Queue != "q" || len(fx.LatenessMS) != 0 {
		t.Errorf("advance: %+v", fx)
	}
	fx := do("claim worker=w")
	if len(fx.Unready) != 0 || len(fx.LatenessMS) != 1 || fx.LatenessMS[0] != 2000 || fx.Timers[0].Kind != TimerLeaseEnd {
		t.Errorf("claim: %+v", fx)
	}
	id := ExecutionID(sc.leases[1])
	if fx := do("cancel lease=1"); len(fx.Cancels) != 1 || fx.Cancels[0] != (LeaseRef{1, id, "c-w", "q"}) {
		t.Errorf("cancel: %+v", fx)
	}
	if fx := do("complete lease=1 outcome=released"); len(fx.Ended) != 1 || fx.Ended[0] != (LeaseRef{1, id, "c-w", "q"}) {
		t.Errorf("complete: %+v", fx)
	}
	do("create id=b at=13s")
	do("advance now=13s")
	if fx := do("cancel execution=b/2/s@13s"); len(fx.Unready) != 1 {
		t.Errorf("cancel of a ready one: %+v", fx)
	}
	if fx := do("queue name=q version=3 paused"); !fx.SettingsChanged {
		t.Errorf("queue: %+v", fx)
	}
}
