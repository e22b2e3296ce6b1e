package rpc

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// A backfill answers how far it is, makes nothing twice, and refuses what it cannot be with the number or the field.
func TestBackfill(t *testing.T) {
	s := newScene(t, 4)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: every(&carillonv1.Every{Interval: durationOf(60_000)})})
	s.create(&carillonv1.JobSpec{Id: "cron", Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Lines: []string{"* * * * *"}}}}})
	s.b.pass(3_600_000)
	req := func(change func(*carillonv1.BackfillJobRequest)) *carillonv1.BackfillJobRequest {
		r := &carillonv1.BackfillJobRequest{Id: "j", From: instantAfter(time.Minute), To: instantAfter(10 * time.Minute), BackfillId: "b"}
		change(r)
		return r
	}
	same := func(*carillonv1.BackfillJobRequest) {}
	for range 2 {
		task := must(s.backfillJob(t.Context(), req(same))).Task
		if task.Id != "b" || task.DoneCount != 10 || !task.Finished || task.Cancelled || task.CreateTime == nil {
			t.Errorf("got %v", task)
		}
	}
	list := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{
		JobId: "j", Kind: carillonv1.ExecutionKind_EXECUTION_KIND_BACKFILL,
	})).Executions
	if len(list) != 10 || list[0].Discriminator != "b" {
		t.Errorf("it made %d: %v", len(list), list)
	}
	_, err := s.backfillJob(t.Context(), req(func(r *carillonv1.BackfillJobRequest) { r.Priority = new(uint32(1)) }))
	if got := conflictFields(t, err); len(got) != 1 || got[0] != "priority" {
		t.Errorf("the conflict names %v", got)
	}
	for _, c := range []struct {
		field  string
		change func(*carillonv1.BackfillJobRequest)
	}{
		{"max_occurrences", func(r *carillonv1.BackfillJobRequest) { r.BackfillId, r.MaxOccurrences = "c", 9 }},
		{"max_occurrences", func(r *carillonv1.BackfillJobRequest) { r.Id, r.MaxOccurrences = "cron", 9 }},
		{"from", func(r *carillonv1.BackfillJobRequest) { r.From = nil }},
		{"to", func(r *carillonv1.BackfillJobRequest) { r.To = nil }},
		{"to", func(r *carillonv1.BackfillJobRequest) { r.To = instantAfter(0) }},
		{"to", func(r *carillonv1.BackfillJobRequest) { r.To = instantAfter(2 * time.Hour) }},
		{"overlap", func(r *carillonv1.BackfillJobRequest) { r.Overlap = carillonv1.Overlap_OVERLAP_SKIP }},
		{"backfill_id", func(r *carillonv1.BackfillJobRequest) { r.BackfillId = "a b" }},
	} {
		_, err := s.backfillJob(t.Context(), req(c.change))
		wantViolation(t, answered(err), c.field)
	}
	_, err = s.backfillJob(t.Context(), req(func(r *carillonv1.BackfillJobRequest) { r.Id = "nobody" }))
	wantCode(t, err, connect.CodeNotFound)

	turn := req(func(r *carillonv1.BackfillJobRequest) {
		r.BackfillId, r.Overlap = "turn", carillonv1.Overlap_OVERLAP_QUEUE_ALL
	})
	must(s.backfillJob(t.Context(), turn))
	if task := must(s.backfillJob(t.Context(), turn)).Task; task.DoneCount != 1 || task.Finished {
		t.Errorf("in turn: %v", task)
	}
	cancel := &carillonv1.CancelBackfillRequest{Id: "j", BackfillId: "turn"}
	for range 2 {
		if task := must(s.cancelBackfill(t.Context(), cancel)).Task; task.DoneCount != 1 || !task.Finished || !task.Cancelled {
			t.Errorf("cancelled: %v", task)
		}
	}
	_, err = s.cancelBackfill(t.Context(), &carillonv1.CancelBackfillRequest{Id: "j", BackfillId: "other"})
	wantCode(t, err, connect.CodeNotFound)
}
