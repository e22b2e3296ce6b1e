package fsm

import (
	"bytes"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func (a *apply) createJobs(c *storagev1.CreateJobs) Result {
	if len(c.Items) > MaxBatch {
		return Result{Refusal: refuseField("items", "more than %d", MaxBatch)}
	}
	items := make([]Item, len(c.Items))
	a.effects.Timers = slices.Grow(a.effects.Timers, len(items))
	for i, item := range c.Items {
		items[i] = a.createJob(item)
	}
	return Result{Items: items}
}

// createJob accepts a job. Its row is its own create record: while it stands a retry gets the first answer, and one with a
// key gets it from the tombstone, too.
func (a *apply) createJob(c *storagev1.CreateJob) Item {
	if r := validCreate(c); r != nil {
		return Item{Refusal: r}
	}
	key := JobKey(c.Tenant, c.JobId)
	if value, ok := a.s.Get(key); ok {
		old := &storagev1.Job{}
		mustDecode(key, value, old.UnmarshalVT)
		stands := old.State != storagev1.JobState_JOB_STATE_DELETED
		sameKey := c.KeyHash != 0 && c.KeyHash == old.CreateKey
		switch {
		case (stands || sameKey) && bytes.Equal(old.CreateHash, c.Hash):
			a.meta.DuplicatesTotal++
			item := receipt(old)
			item.Duplicate = true
			return item
		case stands || sameKey:
			a.meta.ConflictsTotal++
			return Item{Refusal: a.createConflict(c, old)}
		}
		// Another request under the id of a deleted job is another job.
	}
	if a.m.tenantGone(c.Tenant) {
		return Item{Refusal: refuse(FailedPrecondition, "tenant %q is deleted", c.Tenant)}
	}
	schedule, r := resolve(c.Schedule, nil, a.stamp)
	if r != nil {
		return Item{Refusal: r}
	}
	a.meta.Incarnation++
	j := &a.m.job
	j.Reset()
	j.Version, j.Incarnation, j.State = 1, a.meta.Incarnation, storagev1.JobState_JOB_STATE_ACTIVE
	j.CreateHash, j.CreateKey, j.CreatedMs = c.Hash, c.KeyHash, a.meta.ClockMs
	j.Schedule, j.CatchUp, j.CatchUpWindowMs, j.Labels = schedule, c.CatchUp, c.CatchUpWindowMs, c.Labels
	if c.Paused {
		j.State = storagev1.JobState_JOB_STATE_PAUSED
	}
	if r := a.placeNewJob(j, c); r != nil {
		a.meta.Incarnation--
		return Item{Refusal: r}
	}
	a.s.Set(key, mustEncode(j.MarshalVT()))
	a.meta.Jobs++
	a.meta.AcceptedTotal++
	a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_CREATED, c.Tenant, c.JobId, j.Incarnation, 1).NominalMs = firstNominal(j)
	if c.Paused {
		a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_PAUSED, c.Tenant, c.JobId, j.Incarnation, 1)
	}
	return receipt(j)
}

func receipt(j *storagev1.Job) Item {
	return Item{Incarnation: j.Incarnation, CreatedMS: j.CreatedMs, FirstMS: firstNominal(j)}
}

// firstNominal is the first nominal as create answered it. A one-shot's row has it only once the schedule was changed.
func firstNominal(j *storagev1.Job) int64 {
	if j.FirstMs == 0 {
		return j.Schedule.GetAtMs()
	}
	return j.FirstMs
}

// placeNewJob decides the first occurrence and puts its timer and the template where they belong.
func (a *apply) placeNewJob(j *storagev1.Job, c *storagev1.CreateJob) *Refusal {
	if isOneShot(j) {
		t := a.storeTemplate(c.Template, c.Tenant, c.JobId, j)
		setStream(j, t)
		if c.Paused {
			j.Template = t
			return nil
		}
		e := &a.m.execution
		e.Reset()
		e.Tenant, e.JobId, e.Incarnation, e.JobVersion = c.Tenant, c.JobId, j.Incarnation, j.Version
		e.Kind, e.NominalMs, e.OneShot = storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, j.Schedule.AtMs, true
		e.Template = t
		a.putWaiting(e)
		return nil
	}
	j.Overlap, j.CatchUpPerMinute, j.PauseAfterFailures = c.Overlap, c.CatchUpPerMinute, c.PauseAfterFailures
	if j.Schedule.Cron != nil {
		j.Horizon = usableHorizon(c.Horizon, c.HorizonFromMs, a.stamp)
		a.noteZone(j.Horizon)
	}
	first, ok := firstOf(j, a.stamp)
	switch {
	case ok:
		j.FirstMs, j.WatermarkMs = first, min(first-1, a.stamp)
	case unknown(j):
		j.WatermarkMs = a.stamp
	default:
		return refuseField("schedule", "has no occurrence from now on")
	}
	j.Template = a.storeTemplate(c.Template, c.Tenant, c.JobId, j)
	if !c.Paused {
		a.rearm(c.Tenant, c.JobId, j, 0)
	}
	return nil
}

// setStream keeps in a one-shot's row where its execution will stand while it is ready.
func setStream(j *storagev1.Job, t *storagev1.Template) {
	j.Queue, j.Priority, j.FairnessKey = t.Queue, t.Priority, t.FairnessKey
}

// storeTemplate returns the template as rows carry it: a large payload goes to a blob row of the job's version.
func (a *apply) storeTemplate(t *storagev1.Template, tenant, jobID string, j *storagev1.Job) *storagev1.Template {
	if len(t.GetPayload()) <= inlinePayloadBytes {
		return t
	}
	a.s.Set(BlobKey(tenant, jobID, j.Incarnation, j.Version), bytes.Clone(t.Payload))
	slim := t.CloneVT()
	slim.Payload, slim.BlobVersion, slim.BlobSize = nil, j.Version, uint64(len(t.Payload))
	return slim
}

// createConflict refuses a create of a job that exists from another request, naming what differs from it as it is now.
func (a *apply) createConflict(c *storagev1.CreateJob, j *storagev1.Job) *Refusal {
	fields := a.definitionDifference(c, j, a.templateOf(c.Tenant, c.JobId, j), sameSchedule(c.Schedule, j))
	if len(fields) == 0 {
		// Everything that can still be compared agrees: it is another request all the same.
		fields = []string{"idempotency_key"}
	}
	r := refuse(AlreadyExists, "job %q exists from another request", c.JobId)
	r.Fields = fields
	return r
}

// definitionDifference names the fields in which a request differs from a job, and from its template if that is known.
func (a *apply) definitionDifference(c *storagev1.CreateJob, j *storagev1.Job, t *storagev1.Template, isScheduled bool) []string {
	fields := jobDifference(c, j, isScheduled)
	if t == nil {
		return fields
	}
	payload := t.Payload
	if t.BlobVersion != 0 {
		payload, _ = a.s.Get(BlobKey(c.Tenant, c.JobId, j.Incarnation, t.BlobVersion))
	}
	return append(fields, templateDifference(c.Template, t, payload)...)
}

// jobDifference names the fields, save those of the template, in which a request differs from a job.
func jobDifference(c *storagev1.CreateJob, j *storagev1.Job, isScheduled bool) (fields []string) {
	for _, f := range [...]struct {
		name string
		same bool
	}{
		{"schedule", isScheduled},
		{"catch_up", c.CatchUp == j.CatchUp},
		{"catch_up_window", c.CatchUpWindowMs == j.CatchUpWindowMs},
		{"overlap", c.Overlap == j.Overlap},
		{"catch_up_per_minute", c.CatchUpPerMinute == j.CatchUpPerMinute},
		{"pause_after_failures", c.PauseAfterFailures == j.PauseAfterFailures},
		{"labels", sameKeyValues(c.Labels, j.Labels)},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

func sameSchedule(s *storagev1.Schedule, j *storagev1.Job) bool {
	switch {
	case s.GetEvery() != nil:
		want, have := s.Every, j.Schedule.GetEvery()
		return want.IntervalMs == have.GetIntervalMs() && (want.AnchorMs == 0 || want.AnchorMs == have.GetAnchorMs()) &&
			want.StartMs == have.GetStartMs() && want.EndMs == have.GetEndMs() && want.MaxRuns == have.GetMaxRuns() &&
			s.SpreadMs == j.Schedule.SpreadMs && s.MaxFiresPerDay == j.Schedule.MaxFiresPerDay
	case s.GetCron() != nil:
		return bytes.Equal(mustEncode(s.Cron.MarshalVT()), mustEncode(j.Schedule.GetCron().MarshalVT())) && s.SpreadMs == j.Schedule.SpreadMs && s.MaxFiresPerDay == j.Schedule.MaxFiresPerDay
	case s.GetAtMs() != 0:
		return s.AtMs == j.Schedule.GetAtMs()
	default:
		return isOneShot(j) && firstNominal(j) == j.CreatedMs+s.GetDelayMs()
	}
}

func sameKeyValues(a, b []*storagev1.KeyValue) bool {
	return slices.EqualFunc(a, b, func(x, y *storagev1.KeyValue) bool { return x.Key == y.Key && x.Value == y.Value })
}

// templateDifference names the fields in which a request's template differs from a stored one, whose payload may stand apart.
func templateDifference(want, have *storagev1.Template, payload []byte) (fields []string) {
	for _, f := range [...]struct {
		name string
		same bool
	}{
		{"queue", want.GetQueue() == have.GetQueue()},
		{"priority", want.GetPriority() == have.GetPriority()},
		{"fairness_key", want.GetFairnessKey() == have.GetFairnessKey()},
		{"payload", bytes.Equal(want.GetPayload(), payload)},
		{"content_type", want.GetContentType() == have.GetContentType()},
		{"payload_ref", want.GetPayloadRef() == have.GetPayloadRef()},
		{"headers", sameKeyValues(want.GetHeaders(), have.GetHeaders())},
		{"retry", sameRetry(want.GetRetry(), have.GetRetry())},
		{"lease", want.GetLeaseMs() == have.GetLeaseMs()},
		{"start_deadline", want.GetStartDeadlineMs() == have.GetStartDeadlineMs()},
		{"retention", want.GetRetentionMs() == have.GetRetentionMs()},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

func sameRetry(a, b *storagev1.RetryPolicy) bool {
	return a.GetMaxAttempts() == b.GetMaxAttempts() && a.GetFirstDelayMs() == b.GetFirstDelayMs() &&
		a.GetFactorThousandths() == b.GetFactorThousandths() && a.GetMaxDelayMs() == b.GetMaxDelayMs() &&
		a.GetJitterThousandths() == b.GetJitterThousandths()
}

// oneShotTemplate is the template of a one-shot that waits for its time; nil when it has fired.
func (a *apply) oneShotTemplate(tenant, jobID string, j *storagev1.Job) *storagev1.Template {
	if _, e := a.waiting(tenant, jobID, j); e != nil {
		return e.Template
	}
	return nil
}

// waiting returns the row of a one-shot that waits for its time; nil when it has fired, is paused, or recurs.
func (a *apply) waiting(tenant, jobID string, j *storagev1.Job) (key []byte, e *storagev1.Execution) {
	return findWaiting(a.s, tenant, jobID, j)
}

func findWaiting(r Reader, tenant, jobID string, j *storagev1.Job) (key []byte, e *storagev1.Execution) {
	if !isOneShot(j) {
		return nil, nil
	}
	key = timerJobKey(j.Schedule.GetAtMs(), TimerOneShot, tenant, jobID)
	value, ok := r.Get(key)
	if !ok {
		return nil, nil
	}
	e = decodeNamed(key, value, &Identity{Tenant: tenant, JobID: jobID, NominalMS: j.Schedule.GetAtMs()})
	if e.Incarnation != j.Incarnation {
		return nil, nil
	}
	return key, e
}
