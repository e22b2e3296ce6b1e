package fsm

import (
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// putJob makes a job be what c says: it creates the job, or changes what differs from its definition, or nothing. A job that
// is paused stays so.
func (a *apply) putJob(c *storagev1.PutJob) Result {
	want := c.Job
	if want == nil {
		return Result{Refusal: refuseField("job", "missing")}
	}
	if r := validCreate(want); r != nil {
		return Result{Refusal: r}
	}
	if !isName(c.IdempotencyKey) {
		return Result{Refusal: refuseField("idempotency_key", "malformed")}
	}
	if first, ok := a.firstAnswer(methodPut, want.Tenant, want.JobId, c.IdempotencyKey, c.Hash, func(rec *storagev1.IdempotencyRecord) []string {
		return putDifference(want, rec)
	}); ok {
		return first
	}
	key := JobKey(want.Tenant, want.JobId)
	j := a.job(key)
	if j != nil && j.State == storagev1.JobState_JOB_STATE_DELETED {
		j = nil
	}
	if r := putRefusal(c, j); r != nil {
		return Result{Refusal: r}
	}
	var res Result
	if j == nil {
		res = a.putNew(want)
	} else {
		res = a.putOver(want, j)
	}
	if res.Refusal != nil {
		return res
	}
	if res.Put != storagev1.PutOutcome_PUT_OUTCOME_UNCHANGED {
		j = a.job(key)
		j.PutHash = want.Hash
		a.s.Set(key, mustEncode(j.MarshalVT()))
	}
	a.putRecord(methodPut, want.Tenant, want.JobId, c.IdempotencyKey, &storagev1.IdempotencyRecord{
		Hash: c.Hash, Job: res.Job, Put: res.Put,
	})
	return res
}

func (a *apply) putNew(want *storagev1.CreateJob) Result {
	if item := a.createJob(want); item.Refusal != nil {
		return Result{Refusal: item.Refusal}
	}
	j := a.job(JobKey(want.Tenant, want.JobId))
	return Result{Job: answerOf(j, a.templateOf(want.Tenant, want.JobId, j)), Put: storagev1.PutOutcome_PUT_OUTCOME_CREATED}
}

// putOver changes in a job what differs from a definition. Of a one-shot that has fired nothing can be changed, and its
// template is not there to be compared: it is unchanged if it was last defined by the very same request.
func (a *apply) putOver(want *storagev1.CreateJob, j *storagev1.Job) Result {
	t := a.templateOf(want.Tenant, want.JobId, j)
	unchanged := Result{Job: answerOf(j, t), Put: storagev1.PutOutcome_PUT_OUTCOME_UNCHANGED}
	if sameDefinition(want, j) {
		return unchanged
	}
	switch {
	case isOneShot(j) == recurs(want.Schedule):
		return Result{Refusal: kindRefusal()}
	case t == nil:
		return Result{Refusal: firedRefusal()}
	}
	var fields []string
	for _, field := range a.definitionDifference(want, j, t, stillScheduled(want.Schedule, j)) {
		if field == "content_type" || field == "payload_ref" {
			field = "payload"
		}
		if !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	if len(fields) == 0 {
		return unchanged
	}
	res := a.updateJob(&storagev1.UpdateJob{
		Tenant: want.Tenant, JobId: want.JobId, Fields: fields, Schedule: want.Schedule, CatchUp: want.CatchUp,
		CatchUpWindowMs: want.CatchUpWindowMs, CatchUpPerMinute: want.CatchUpPerMinute, Overlap: want.Overlap,
		PauseAfterFailures: want.PauseAfterFailures, Labels: want.Labels, Template: want.Template,
		Horizon: want.Horizon, HorizonFromMs: want.HorizonFromMs,
	})
	if res.Refusal == nil {
		res.Put = storagev1.PutOutcome_PUT_OUTCOME_CHANGED
	}
	return res
}

// templateOf is the job's template, wherever it stands; nil for a one-shot that has fired.
func (a *apply) templateOf(tenant, jobID string, j *storagev1.Job) *storagev1.Template {
	if j.Template != nil {
		return j.Template
	}
	return a.oneShotTemplate(tenant, jobID, j)
}

// stillScheduled says whether a job goes by a schedule now. A create's delay counts from then; that of a later put is known by
// the put's hash only.
func stillScheduled(s *storagev1.Schedule, j *storagev1.Job) bool {
	if s.GetDelayMs() != 0 {
		return isOneShot(j) && j.Schedule.GetAtMs() == j.CreatedMs+s.DelayMs
	}
	return sameSchedule(s, j)
}

// putDifference names what a put asks differently from the one that its key stands for. Payloads are not kept.
func putDifference(want *storagev1.CreateJob, rec *storagev1.IdempotencyRecord) []string {
	have := rec.Job.GetTemplate()
	fields := jobDifference(want, rec.Job, sameSchedule(want.Schedule, rec.Job))
	fields = append(fields, templateDifference(want.Template, have, want.Template.GetPayload())...)
	if len(fields) == 0 {
		fields = []string{"payload"}
	}
	return fields
}
