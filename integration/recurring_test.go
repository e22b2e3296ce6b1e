package integration

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const day = 24 * time.Hour

// An interval of seven days while the leader changes again and again: it fires at anchor + 7 d, the anchor is stored.
func TestT11AnchorSurvivesRestarts(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	next := soon(4 * time.Second)
	stored := &carillonv1.Schedule{When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{Interval: durationpb.New(7 * day)}}}
	unanchored := s.create(&carillonv1.JobSpec{Id: "unanchored", Schedule: stored}).GetNextTime().AsTime()
	if accepted := s.job("unanchored").GetCreateTime().AsTime(); !unanchored.Equal(accepted.Add(7 * day)) {
		t.Errorf("first is %v, accepted at %v", unanchored, accepted)
	}
	s.create(&carillonv1.JobSpec{Id: "weekly", Queue: "weekly", Schedule: every(7*day, next.Add(-7*day))})
	for range 3 {
		s.kill()
		s.start()
		if got := s.job("unanchored").GetNextTime().AsTime(); !got.Equal(unanchored) {
			t.Fatalf("after a restart next is %v; it was %v", got, unanchored)
		}
	}
	lease := s.claimOne("w", "weekly")
	s.complete(succeeded(lease, "w", ""), succeededState)
	if got := lease.GetNominalTime().AsTime(); !got.Equal(next) {
		t.Errorf("it fired for %v; anchor + 7 d is %v", got, next)
	}
	if got := s.job("weekly").GetNextTime().AsTime(); !got.Equal(next.Add(7 * day)) {
		t.Errorf("next is %v; want %v", got, next.Add(7*day))
	}
}

// Intervals of seven days, with a phase and without, and the leader changes again and again on the way: each fires at its
// anchor + 7 d and + 14 d.
func TestT11ManyLeadersInAWeek(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	firsts := map[string]time.Time{"unanchored": march.Add(7 * day), "phased": march.Add(3*day + 1234*time.Millisecond), "distant": march.Add(day)}
	s.create(&carillonv1.JobSpec{Id: "unanchored", Schedule: &carillonv1.Schedule{
		When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{Interval: durationpb.New(7 * day)}},
	}})
	s.create(&carillonv1.JobSpec{Id: "phased", Schedule: every(7*day, firsts["phased"])})
	s.create(&carillonv1.JobSpec{Id: "distant", Schedule: every(7*day, march.Add(-7*2000*day+8*day))})
	for at := march; at.Before(march.Add(14 * day)); {
		at = at.Add(31 * time.Hour)
		s.advance(at)
		s.kill()
		s.start()
	}
	for id, first := range firsts {
		s.wantFates(id, time.Time{}, series(first, 7*day, 2, "fired")+"; "+series(first.Add(14*day), 0, 1, "waiting"))
		if next := s.job(id).GetNextTime().AsTime(); !next.Equal(first.Add(14 * day)) {
			t.Errorf("%s: next is %v", id, next)
		}
	}
}

// The server is down when a job falls due: it fires once, late, with its nominal time and its lateness.
func TestL3DownWhenDue(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	due := soon(3 * time.Second)
	s.create(&carillonv1.JobSpec{Id: "once", Schedule: at(due)})
	s.create(&carillonv1.JobSpec{Id: "hourly", Schedule: every(time.Hour, due)})
	s.kill()
	pauseUntil(t, due.Add(700*time.Millisecond))
	s.start()
	for range 2 {
		lease := s.claimOne("w", "default")
		s.complete(succeeded(lease, "w", ""), succeededState)
	}
	s.nothing("default")
	for _, id := range []string{"once", "hourly"} {
		e := s.onlyExecution(id)
		if !e.GetNominalTime().AsTime().Equal(due) {
			t.Errorf("%s ran for %v; want %v", id, e.GetNominalTime().AsTime(), due)
		}
		want := e.GetAttempts()[0].GetStartTime().AsTime().Sub(due)
		if late := e.GetLateness().AsDuration(); late < 700*time.Millisecond || late != want {
			t.Errorf("%s: lateness is recorded as %v; it was %v", id, late, want)
		}
	}
	if got := s.job("hourly").GetNextTime().AsTime(); !got.Equal(due.Add(time.Hour)) {
		t.Errorf("next is %v; want %v", got, due.Add(time.Hour))
	}
}

// A daily job of 08:00 is changed at 14:00 (its instants are taken relative to now).
func TestR1UpdateNeverMakesAPastOccurrence(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	now := soon(0)
	for _, c := range []struct {
		name           string
		interval, past time.Duration // the old grid has an instant this long ago
		patch          *carillonv1.JobPatch
		next           time.Duration
	}{
		{"to-an-hour-ago", day, 6 * time.Hour, &carillonv1.JobPatch{Schedule: every(day, now.Add(-time.Hour))}, 23 * time.Hour},
		{"to-in-an-hour", day, 6 * time.Hour, &carillonv1.JobPatch{Schedule: every(day, now.Add(time.Hour))}, time.Hour},
		{"anchor-years-ago", day, 6 * time.Hour, &carillonv1.JobPatch{Schedule: every(day, now.Add(-1000*day-time.Hour))}, 23 * time.Hour},
		{"start-in-the-past", day, 6 * time.Hour, &carillonv1.JobPatch{Schedule: &carillonv1.Schedule{
			When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{
				Interval: durationpb.New(day), Anchor: timestamppb.New(now.Add(-time.Hour)), Start: timestamppb.New(now.Add(-10 * day)),
			}},
		}}, 23 * time.Hour},
		{"shorter", day, 6 * time.Hour, &carillonv1.JobPatch{Schedule: every(8*time.Hour, now.Add(-6*time.Hour))}, 2 * time.Hour},
		{"unrelated", day, 6 * time.Hour, &carillonv1.JobPatch{Labels: map[string]string{"a": "b"}}, 18 * time.Hour},
		{"payload", day, 6 * time.Hour, &carillonv1.JobPatch{Payload: []byte("new")}, 18 * time.Hour},
		{"queue", day, 6 * time.Hour, &carillonv1.JobPatch{Queue: new("other")}, 18 * time.Hour},
	} {
		s.create(&carillonv1.JobSpec{Id: c.name, Schedule: every(c.interval, now.Add(-c.past))})
		if got := s.update(c.name, c.patch).GetNextTime().AsTime(); !got.Equal(now.Add(c.next)) {
			t.Errorf("%s: next is in %v; want %v", c.name, got.Sub(now), c.next)
		}
		if h := s.history("", c.name); len(h.GetExecutions())+len(h.GetVerdicts()) != 0 {
			t.Errorf("%s: the update made %v", c.name, h)
		}
	}
	s.nothing("default")
	s.nothing("other")
}

// One id is deleted and created again, its interval is changed again and again, a hundred callers change it at once: one
// occurrence is pending, of the latest definition.
func TestR2OnePendingOccurrence(t *testing.T) {
	t.Parallel()
	// Each definition has an occurrence of its own in a few seconds, and the last must stand by then. A machine that is too
	// busy for that gets more time.
	for lead := 3 * time.Second; !onePending(t, lead); lead *= 2 {
		if lead > time.Minute {
			t.Fatalf("not even %v were enough to define the jobs", lead)
		}
	}
}

// onePending defines jobs again and again to be due after lead, and checks that each fires once, as defined last. It returns
// false if they fell due before that.
func onePending(t *testing.T, lead time.Duration) bool {
	t.Helper()
	s := startServer(t, "", "--shards", "4")
	due := soon(lead)
	definition := func(i int) *carillonv1.Schedule {
		return every(time.Hour+time.Duration(i)*time.Second, due.Add(time.Duration(i)*time.Millisecond))
	}
	for i := range 5 {
		s.create(&carillonv1.JobSpec{Id: "again", Schedule: definition(i)})
		if i < 4 {
			s.delete("again")
		}
	}
	s.create(&carillonv1.JobSpec{Id: "changed", Schedule: definition(0)})
	s.create(&carillonv1.JobSpec{Id: "moved", Schedule: at(due)})
	for i := 1; i <= 20; i++ {
		s.update("changed", &carillonv1.JobPatch{Schedule: definition(i)})
		s.update("moved", &carillonv1.JobPatch{Schedule: at(due.Add(time.Duration(i) * time.Millisecond))})
	}
	s.create(&carillonv1.JobSpec{Id: "contended", Schedule: definition(0)})
	contended := updateAtOnce(t, s, "contended", definition)
	want := map[string]time.Time{
		"again": due.Add(4 * time.Millisecond), "changed": due.Add(20 * time.Millisecond), "moved": due.Add(20 * time.Millisecond),
		"contended": contended,
	}
	if !time.Now().Before(due) {
		return false
	}
	for range want {
		lease := s.claimOne("w", "default")
		if !lease.GetNominalTime().AsTime().Equal(want[lease.GetJobId()]) {
			t.Errorf("%s fired for %v; its latest definition says %v", lease.GetJobId(), lease.GetNominalTime().AsTime(), want[lease.GetJobId()])
		}
		s.complete(succeeded(lease, "w", ""), succeededState)
	}
	pauseUntil(t, due.Add(300*time.Millisecond)) // beyond every definition's occurrence
	s.nothing("default")
	return true
}

// updateAtOnce changes a job by a hundred callers at once and returns what the one that came last was told of the next time.
func updateAtOnce(t *testing.T, s *server, id string, definition func(int) *carillonv1.Schedule) time.Time {
	t.Helper()
	const callers = 100
	var group errgroup.Group
	var mu sync.Mutex
	next := map[uint64]time.Time{} // by version
	for i := 1; i <= callers; i++ {
		group.Go(func() error {
			res, err := try(s.jobs().UpdateJob, &carillonv1.UpdateJobRequest{Id: id, Job: &carillonv1.JobPatch{Schedule: definition(i)}})
			mu.Lock()
			defer mu.Unlock()
			next[res.GetJob().GetVersion()] = res.GetJob().GetNextTime().AsTime()
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := s.job(id).GetVersion(); got != callers+1 || len(next) != callers {
		t.Fatalf("version %d after %d updates that were told %d versions", got, callers, len(next))
	}
	return next[callers+1]
}

// A hundred callers create the same id at once: with one body all get the same receipt, with many one wins and the others
// are told what differs.
func TestR2ConcurrentCreates(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	due := soon(time.Hour)
	var callers errgroup.Group
	var mu sync.Mutex
	same := map[string]int{}
	won, conflicts := []string{}, 0
	for i := range 100 {
		callers.Go(func() error {
			res, err := try(s.jobs().CreateJob, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: "same", Schedule: at(due)}})
			mu.Lock()
			defer mu.Unlock()
			same[res.String()]++
			return err
		})
		callers.Go(func() error {
			_, err := try(s.jobs().CreateJob, &carillonv1.CreateJobRequest{
				Job: &carillonv1.JobSpec{Id: "other", Schedule: at(due), Payload: fmt.Append(nil, i)},
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, fmt.Sprint(i))
			case connect.CodeOf(err) == connect.CodeAlreadyExists:
				conflicts++
			default:
				return err
			}
			return nil
		})
	}
	if err := callers.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(same) != 1 {
		t.Errorf("100 equal creates got %d different receipts: %v", len(same), same)
	}
	if len(won) != 1 || conflicts != 99 {
		t.Errorf("of 100 different creates %v won and %d were conflicts", won, conflicts)
	}
	if got := string(s.job("other").GetPayload()); !slices.Contains(won, got) {
		t.Errorf("the job has payload %q; the winner's was %v", got, won)
	}
	if b := s.backlog(); b.GetJobs() != 2 || b.GetWaiting() != 2 {
		t.Errorf("%d jobs, %d waiting; want 2 and 2", b.GetJobs(), b.GetWaiting())
	}
}

// Jobs are paused over several periods and resumed: next is the next nominal instant, the missed ones go by the rule.
func TestR3PausedOverManyPeriods(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	anchor := soon(-30 * time.Minute)
	rules := map[string]carillonv1.CatchUp{
		"none": carillonv1.CatchUp_CATCH_UP_NONE, "latest": carillonv1.CatchUp_CATCH_UP_LATEST, "all": carillonv1.CatchUp_CATCH_UP_ALL,
	}
	for id, rule := range rules {
		s.create(&carillonv1.JobSpec{Id: id, Queue: id, CatchUp: rule, Schedule: every(time.Second, anchor)})
		call(t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{Id: id, Reason: "holiday"})
	}
	before := map[string]int{} // occurrences until the pause
	for id := range rules {
		before[id] = len(s.history("", id).GetExecutions())
	}
	pause(t, 4*time.Second) // the pause: at least three periods
	for id := range rules {
		if got := len(s.history("", id).GetExecutions()); got != before[id] {
			t.Errorf("%s: %d executions during the pause", id, got-before[id])
		}
		// A second pause at the end, so that what follows is counted in peace.
		job := call(t, s.jobs().ResumeJob, &carillonv1.ResumeJobRequest{Id: id}).GetJob()
		next, resumed := job.GetNextTime().AsTime(), job.GetUpdateTime().AsTime()
		if next.Sub(anchor)%time.Second != 0 {
			t.Errorf("%s: next is %v, off the grid of %v", id, next, anchor)
		}
		if id == "none" && (!next.After(resumed) || next.Sub(resumed) > time.Second) {
			t.Errorf("%s: resumed at %v, next is %v", id, resumed, next)
		}
		await(t, 10*time.Second, "occurrences are up to date", func() bool {
			return s.job(id).GetNextTime().AsTime().After(resumed)
		})
		call(t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{Id: id})
		missed, verdicts := missedBy(s, id, resumed, before[id])
		switch id {
		case "none":
			if missed != 0 || verdicts < 3 {
				t.Errorf("none: %d missed ones run, %d skipped", missed, verdicts)
			}
		case "latest":
			if missed != 1 || verdicts < 2 {
				t.Errorf("latest: %d missed ones run, %d skipped", missed, verdicts)
			}
		case "all":
			if missed < 3 || verdicts != 0 {
				t.Errorf("all: %d missed ones run, %d skipped", missed, verdicts)
			}
		}
	}
}

// missedBy counts the executions of instants up to resumed, those before the pause left out, and the instants that ranges
// cover. Nothing may be covered twice.
func missedBy(s *server, id string, resumed time.Time, before int) (missed int, covered uint64) {
	s.t.Helper()
	h := s.history("", id)
	seen := map[int64]bool{}
	for _, e := range h.GetExecutions() {
		nominal := e.GetNominalTime().AsTime()
		if seen[nominal.UnixMilli()] {
			s.t.Errorf("%s: two executions for %v", id, nominal)
		}
		seen[nominal.UnixMilli()] = true
		if !nominal.After(resumed) {
			missed++
		}
	}
	for _, v := range h.GetVerdicts() {
		covered += v.GetCount()
		for ms := range seen {
			if ms >= v.GetFrom().AsTime().UnixMilli() && ms <= v.GetTo().AsTime().UnixMilli() {
				s.t.Errorf("%s: %v has an execution and the verdict %v", id, time.UnixMilli(ms), v)
			}
		}
	}
	return missed - before, covered
}
