package rpc

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Ranges by the clock of the job's zone: whole days of 23 and 25 hours, times that the clock leaves out or shows twice.
func TestRangesByTheClockOfTheZone(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: cronJob(&carillonv1.Cron{Lines: []string{"0 * * * *"}, Zone: newYork})})
	s.create(&carillonv1.JobSpec{Id: "utc", Schedule: in(time.Hour)})
	for _, c := range []struct{ id, from, to, wantFrom, wantTo string }{
		{"j", "2026-03-08", "2026-03-08", "2026-03-08T05:00:00Z", "2026-03-09T03:59:59.999Z"},
		{"j", "2026-11-01", "2026-11-01", "2026-11-01T04:00:00Z", "2026-11-02T04:59:59.999Z"},
		{"j", "2026-03-08T02:30", "2026-03-08T02:30:30", "2026-03-08T07:00:00Z", "2026-03-08T07:00:00Z"},
		{"j", "2026-11-01T01:30", "2026-11-01T01:30", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"},
		{"utc", "2026-03-08T02:30", "2026-03-08", "2026-03-08T02:30:00Z", "2026-03-08T23:59:59.999Z"},
		{"nobody", "2026-03-08T02:30", "", "2026-03-08T02:30:00Z", ""},
	} {
		var from, to *timestamppb.Timestamp
		if err := s.instantsOf(t.Context(), jobRef{defaultName, c.id}, c.from, c.to, &from, &to); err != nil {
			t.Fatal(err)
		}
		text := func(at *timestamppb.Timestamp) string {
			if at == nil {
				return ""
			}
			return at.AsTime().Format(time.RFC3339Nano)
		}
		if text(from) != c.wantFrom || text(to) != c.wantTo {
			t.Errorf("%v: %s to %s", c, text(from), text(to))
		}
	}
	for _, c := range []struct {
		req  *carillonv1.ListOccurrencesRequest
		says string
	}{
		{&carillonv1.ListOccurrencesRequest{Id: "j", FromLocal: "today"}, "from_local is \"today\""},
		{&carillonv1.ListOccurrencesRequest{Id: "j", ToLocal: "2300-01-01"}, "to_local is"},
		{&carillonv1.ListOccurrencesRequest{Id: "j", From: instantAfter(0), FromLocal: "2026-01-01"}, "from_local is given together"},
		{&carillonv1.ListOccurrencesRequest{Id: "j", FromLocal: "2026-01-02", ToLocal: "2026-01-01"}, "to is before from"},
	} {
		err := second(s.listOccurrences(t.Context(), c.req))
		wantCode(t, err, connect.CodeInvalidArgument)
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.req, err)
		}
	}
}

// Occurrences, history and the last run show what the clock of the job's zone shows; a backfill takes its days.
func TestAnswersShowLocalTime(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: cronJob(&carillonv1.Cron{Lines: []string{"0 7 * * *"}, Zone: newYork})})
	s.b.pass(13 * time.Hour.Milliseconds())
	const want = "2026-01-01T07:00:00-05:00"
	list := must(s.listOccurrences(t.Context(), &carillonv1.ListOccurrencesRequest{Id: "j", FromLocal: "2026-01-01", ToLocal: "2026-01-01"}))
	if len(list.Occurrences) != 1 || list.Occurrences[0].Local != want {
		t.Errorf("occurrences %v", list)
	}
	history := must(s.getJobHistory(t.Context(), &carillonv1.GetJobHistoryRequest{Id: "j"}))
	if len(history.Executions) != 1 || history.Executions[0].NominalLocal != want {
		t.Errorf("history %v", history)
	}
	task := must(s.backfillJob(t.Context(), &carillonv1.BackfillJobRequest{Id: "j", FromLocal: "2025-12-30", ToLocal: "2025-12-31", BackfillId: "b"})).Task
	if task.Id != "b" {
		t.Errorf("backfill %v", task)
	}
}

// A preview counts the runs that the job has had, and says what a create would refuse.
func TestPreviewOfAJobThatRan(t *testing.T) {
	s := newScene(t, 1)
	preview := func(runs uint64, most uint32) *carillonv1.PreviewScheduleResponse {
		sched := cronJob(&carillonv1.Cron{Lines: []string{"0 * * * *"}, MaxRuns: 10})
		sched.MaxFiresPerDay = most
		return must(s.previewSchedule(t.Context(), &carillonv1.PreviewScheduleRequest{Schedule: sched, Runs: runs, Count: 5}))
	}
	for runs, want := range map[uint64]int{0: 5, 5: 5, 8: 2, 10: 0, 11: 0} {
		if got := preview(runs, 0); len(got.Times) != want || got.Ended != (runs >= 5) || got.TooOften != nil {
			t.Errorf("after %d runs: %v", runs, got)
		}
	}
	if got := preview(0, 23).TooOften; got.GetField() != "schedule.max_fires_per_day" || !strings.HasPrefix(got.Description, "is 23, but it fires 24 times") {
		t.Errorf("too often: %v", got)
	}
	if got := preview(0, 24).TooOften; got != nil {
		t.Errorf("not too often: %v", got)
	}
}
