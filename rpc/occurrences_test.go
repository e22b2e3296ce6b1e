package rpc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// verdicts are a job's occurrences as short text, read in pages of two.
func (s *scene) verdicts(req *carillonv1.ListOccurrencesRequest) (list []string, last *carillonv1.ListOccurrencesResponse) {
	s.t.Helper()
	req.PageSize = 2
	for {
		last = must(s.listOccurrences(s.t.Context(), req))
		for _, o := range last.Occurrences {
			text := o.Time.AsTime().Format("15:04")
			if o.Until != nil {
				text += fmt.Sprintf("-%s(%d)", o.Until.AsTime().Format("15:04"), o.Count)
			}
			text += " " + strings.ToLower(strings.TrimPrefix(o.Verdict.String(), "VERDICT_"))
			if o.Why != "" {
				text += " " + o.Why
			}
			list = append(list, text)
		}
		if req.PageToken = last.NextPageToken; req.PageToken == "" {
			return list, last
		}
	}
}

// An hour of a job's life: what fired, ran late, expired, was cancelled, skipped and why, and what waits.
func TestOccurrencesTellWhy(t *testing.T) {
	const minute = int64(time.Minute / time.Millisecond)
	s := newScene(t, 4)
	s.create(&carillonv1.JobSpec{
		Id: "j", CatchUp: carillonv1.CatchUp_CATCH_UP_LATEST, StartDeadline: durationpb.New(9 * time.Minute),
		Schedule: every(&carillonv1.Every{Interval: durationpb.New(10 * time.Minute)}),
	})
	s.b.pass(10 * minute)
	must(s.finish(s.claimAll()[0], &carillonv1.Succeeded{}))
	s.b.pass(10 * minute)
	s.b.pass(9 * minute) // the one of 0:20 was never claimed
	s.b.pass(minute)
	executions := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{
		JobId: "j", State: carillonv1.ExecutionState_EXECUTION_STATE_READY,
	})).Executions
	must(s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: executions[0].Id}))
	s.b.pass(33 * minute) // an outage: 0:40, 0:50 and 1:00 were missed
	must(s.triggerJob(t.Context(), &carillonv1.TriggerJobRequest{Id: "j"}))
	s.claimAll()
	must(s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{Id: "j"}))
	s.b.pass(10 * minute)

	got, last := s.verdicts(&carillonv1.ListOccurrencesRequest{Id: "j"})
	want := "00:10 fired, 00:20 expired, 00:30 cancelled, 00:40-00:50(2) coalesced, 01:00 late, 01:10 waiting paused"
	if strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
	if last.KnownFrom != nil || last.KnownTo != nil {
		t.Errorf("known from %v to %v", last.KnownFrom, last.KnownTo)
	}
	got, last = s.verdicts(&carillonv1.ListOccurrencesRequest{
		Id: "j", AllKinds: true, From: instantAfter(45 * time.Minute), To: instantAfter(80 * time.Minute),
	})
	want = "00:40-00:50(2) coalesced, 01:00 late, 01:03 fired, 01:10 waiting paused, 01:20 waiting paused"
	if strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
	if last.KnownFrom != nil {
		t.Errorf("known from %v", last.KnownFrom)
	}
	one := must(s.listOccurrences(t.Context(), &carillonv1.ListOccurrencesRequest{Id: "j", To: instantAfter(10 * time.Minute)})).Occurrences[0]
	if e := s.execution(one.ExecutionId); one.State != e.State || one.StartTime.AsTime() != e.StartTime.AsTime() || one.Lateness.AsDuration() != 0 {
		t.Errorf("its occurrence %v is not what %v says", one, e)
	}
}

func instantAfter(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(time.UnixMilli(startMS).Add(d))
}

// What cannot be asked is refused by name, and instants in a query are RFC 3339.
func TestOccurrencesOverREST(t *testing.T) {
	s := newScene(t, 2)
	_, err := s.listOccurrences(t.Context(), &carillonv1.ListOccurrencesRequest{Id: "nobody"})
	wantCode(t, err, connect.CodeNotFound)
	_, err = s.listOccurrences(t.Context(), &carillonv1.ListOccurrencesRequest{Id: "j", From: instantAfter(time.Second), To: instantAfter(0)})
	wantViolation(t, err, "to")

	a := newAPI(t, s.b, Options{})
	a.json(a.do("POST", "/v1/jobs", `{"id":"j","schedule":{"every":{"interval":"60s"}}}`))
	page := a.json(a.do("GET", "/v1/jobs/j/occurrences?from=2026-01-01T00:00:30Z&to=2026-01-01T01:02:00%2B01:00", ""))
	if list := page["occurrences"].([]any); len(list) != 2 || list[1].(map[string]any)["time"] != "2026-01-01T00:02:00Z" {
		t.Errorf("got %v", page)
	}
	a.want(a.do("GET", "/v1/jobs/j/occurrences?from=yesterday", ""), 400, `"field":"from"`, "2026-01-31T09:00:00Z")
}
