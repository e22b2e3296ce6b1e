package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// PlanPut is what a put would answer at an instant, found by reading alone: nothing is done and nothing promised. It knows
// nothing of idempotency keys.
func PlanPut(r Reader, c *storagev1.PutJob, nowMS int64) Result {
	want := c.Job
	if r := validCreate(want); r != nil {
		return Result{Refusal: r}
	}
	view, ok := GetJob(r, want.Tenant, want.JobId)
	j := view.Job
	if ok && view.State == storagev1.JobState_JOB_STATE_DELETED {
		j = nil
	}
	if r := putRefusal(c, j); r != nil {
		return Result{Refusal: r}
	}
	res := Result{Put: storagev1.PutOutcome_PUT_OUTCOME_CREATED}
	planned := &storagev1.Job{State: storagev1.JobState_JOB_STATE_ACTIVE, CreatedMs: nowMS, UpdatedMs: nowMS}
	if j != nil {
		planned = j.CloneVT()
		planned.State, planned.NextMs = view.State, view.NextMS
		if res = view.planOver(want); res.Refusal != nil {
			return res
		}
	}
	if res.Job = planned; res.Put == storagev1.PutOutcome_PUT_OUTCOME_UNCHANGED {
		return res
	}
	schedule, refusal := resolve(want.Schedule, j.GetSchedule(), nowMS)
	if refusal != nil {
		return Result{Refusal: refusal}
	}
	planned.Schedule, planned.CatchUp, planned.CatchUpWindowMs, planned.Labels = schedule, want.CatchUp, want.CatchUpWindowMs, want.Labels
	planned.Overlap, planned.CatchUpPerMinute, planned.PauseAfterFailures = want.Overlap, want.CatchUpPerMinute, want.PauseAfterFailures
	planned.Template = want.Template.CloneVT()
	if planned.Overlap == storagev1.Overlap_OVERLAP_SKIP {
		planned.QueuedMs = nil
	}
	if j != nil && stillScheduled(want.Schedule, j) {
		planRevival(planned, nowMS)
		return res // what is pending stays
	}
	if !planNext(planned, want, nowMS) {
		return Result{Refusal: refuseField("schedule", "has no occurrence from now on")}
	}
	if planned.State == storagev1.JobState_JOB_STATE_EXHAUSTED {
		planned.State = storagev1.JobState_JOB_STATE_ACTIVE
	}
	return res
}

// planOver is what a put would do to a job that exists.
func (v *JobView) planOver(want *storagev1.CreateJob) Result {
	if sameDefinition(want, v.Job) {
		return Result{Put: storagev1.PutOutcome_PUT_OUTCOME_UNCHANGED}
	}
	if isOneShot(v.Job) == recurs(want.Schedule) {
		return Result{Refusal: kindRefusal()}
	}
	fields := append(jobDifference(want, v.Job, stillScheduled(want.Schedule, v.Job)),
		templateDifference(want.Template, v.Job.Template, v.Payload)...)
	switch {
	case len(fields) == 0:
		return Result{Put: storagev1.PutOutcome_PUT_OUTCOME_UNCHANGED}
	case isOneShot(v.Job) && v.State == storagev1.JobState_JOB_STATE_EXHAUSTED:
		return Result{Refusal: firedRefusal()}
	}
	return Result{Put: storagev1.PutOutcome_PUT_OUTCOME_CHANGED}
}

// planRevival lets an exhausted job go on that gets a run back.
func planRevival(j *storagev1.Job, nowMS int64) {
	if j.State != storagev1.JobState_JOB_STATE_EXHAUSTED || isOneShot(j) {
		return
	}
	next, ok := nextOf(j, max(j.WatermarkMs, nowMS-offsetOf(j)))
	if ok || unknown(j) {
		j.State, j.NextMs = storagev1.JobState_JOB_STATE_ACTIVE, next
	}
}

// planNext sets what a job would fire next, as far as it can be known. It reports whether there is, or may be, anything.
func planNext(j *storagev1.Job, want *storagev1.CreateJob, nowMS int64) bool {
	if isOneShot(j) {
		j.NextMs = 0
		if at := j.Schedule.GetAtMs(); at > nowMS {
			j.NextMs = at
		}
		return true
	}
	if j.Schedule.Cron != nil {
		j.Horizon = usableHorizon(want.Horizon, want.HorizonFromMs, nowMS)
	}
	first, ok := firstOf(j, nowMS)
	if j.NextMs = first; !ok {
		j.NextMs = 0
	}
	return ok || unknown(j)
}

// sameDefinition says whether a job was last defined by the very same request.
func sameDefinition(want *storagev1.CreateJob, j *storagev1.Job) bool {
	return bytes.Equal(j.PutHash, want.Hash) || j.Version == 1 && bytes.Equal(j.CreateHash, want.Hash)
}

// putRefusal is why a put cannot be done to a job, nil for one that does not exist, if it wants another version of it.
func putRefusal(c *storagev1.PutJob, j *storagev1.Job) *Refusal {
	switch {
	case j != nil && (c.MustNotExist || c.ExpectedVersion != 0 && c.ExpectedVersion != j.Version):
		return versionRefusal(j)
	case j == nil && c.ExpectedVersion != 0:
		return refuse(NotFound, "no job %q", c.Job.JobId)
	}
	return nil
}
