package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// plansOf is what reading alone says of the puts in an entry: of one that is alone in it and has no key.
func plansOf(r Reader, e *storagev1.Entry) (plans []*Result) {
	for _, c := range e.Commands {
		if c.PutJob == nil || c.PutJob.IdempotencyKey != "" || len(e.Commands) > 1 {
			plans = append(plans, nil)
			continue
		}
		plan := PlanPut(r, c.PutJob, e.StampMs)
		plans = append(plans, &plan)
	}
	return plans
}

// comparePlans holds every put of every script against what was planned.
func comparePlans(t *testing.T, e *storagev1.Entry, plans []*Result, results []Result) {
	t.Helper()
	for i, plan := range plans {
		if plan == nil {
			continue
		}
		got, id := results[i], e.Commands[i].PutJob.Job.JobId
		if plan.Put != got.Put || (plan.Refusal == nil) != (got.Refusal == nil) {
			t.Errorf("the put of %s is %v %v, planned %v %v", id, got.Put, got.Refusal, plan.Put, plan.Refusal)
			continue
		}
		if got.Refusal != nil {
			if plan.Refusal.Code != got.Refusal.Code || plan.Refusal.Message != got.Refusal.Message || plan.Refusal.Field != got.Refusal.Field {
				t.Errorf("the put of %s is refused with %v, planned %v", id, got.Refusal, plan.Refusal)
			}
			continue
		}
		if got.Job.Template == nil { // a one-shot that has fired, of which reading knows more
			plan.Job.Template = nil
		}
		if a, b := plannedPart(got.Job), plannedPart(plan.Job); !proto.Equal(a, b) {
			t.Errorf("the put of %s makes %v, planned %v", id, a, b)
		}
	}
}

// plannedPart is what a plan knows of a job: its definition and, if it fires by itself, when next.
func plannedPart(j *storagev1.Job) *storagev1.Job {
	part := &storagev1.Job{
		Schedule: j.Schedule, CatchUp: j.CatchUp, CatchUpWindowMs: j.CatchUpWindowMs, Labels: j.Labels, CatchUpPerMinute: j.CatchUpPerMinute,
		PauseAfterFailures: j.PauseAfterFailures, Template: j.Template.CloneVT(),
	}
	if !isOneShot(j) {
		part.Overlap, part.State = j.Overlap, j.State
		if j.State == storagev1.JobState_JOB_STATE_ACTIVE {
			part.NextMs = j.NextMs
		}
	}
	if t := part.Template; t != nil {
		t.Payload, t.BlobVersion, t.BlobSize = nil, 0, 0
	}
	return part
}
