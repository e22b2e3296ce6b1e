package fsm

import (
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// updateJob changes the named fields of a job. Executions that were accepted keep what they were accepted with.
func (a *apply) updateJob(c *storagev1.UpdateJob) Result {
	if r := validUpdate(c); r != nil {
		return Result{Refusal: r}
	}
	if first, ok := a.firstAnswer(methodUpdate, c.Tenant, c.JobId, c.IdempotencyKey, c.Hash, func(rec *storagev1.IdempotencyRecord) []string {
		return updateDifference(c, rec)
	}); ok {
		return first
	}
	key := JobKey(c.Tenant, c.JobId)
	j := a.job(key)
	if j == nil || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return Result{Refusal: refuse(NotFound, "no job %q", c.JobId)}
	}
	if c.ExpectedVersion != 0 && c.ExpectedVersion != j.Version {
		return Result{Refusal: versionRefusal(j)}
	}
	u := &update{apply: a, c: c, j: j}
	u.waitingKey, u.waiting = a.waiting(c.Tenant, c.JobId, j)
	if r := u.check(); r != nil {
		return Result{Refusal: r}
	}
	a.open = openJob{c.Tenant, c.JobId, j}
	// A pause that has ended decides by its own rule, whatever the update makes of the job before its task comes to it.
	a.unpark(c.Tenant, c.JobId, j, a.m.lastRule(c.Tenant, j))
	u.closeOldSchedule()
	j.Version++
	j.UpdatedMs = a.meta.ClockMs
	if slices.ContainsFunc(c.Fields, isDefinition) {
		j.PutHash = nil
	}
	u.run()
	a.open = openJob{}
	a.s.Set(key, mustEncode(j.MarshalVT()))
	answer := answerOf(j, u.template())
	a.putRecord(methodUpdate, c.Tenant, c.JobId, c.IdempotencyKey, &storagev1.IdempotencyRecord{
		Hash: c.Hash, Job: answer, Fields: c.Fields,
	})
	return Result{Job: answer, Task: u.task}
}

func versionRefusal(j *storagev1.Job) *Refusal {
	r := refuse(Aborted, "the job is at version %d", j.Version)
	r.Version = j.Version
	return r
}

func firedRefusal() *Refusal {
	return &Refusal{Code: FailedPrecondition, Field: "schedule", Message: "the one-shot has fired: it cannot be rescheduled or changed"}
}

func kindRefusal() *Refusal {
	return &Refusal{Code: FailedPrecondition, Field: "schedule", Message: "a one-shot stays one, a recurring job recurs: delete and create"}
}

// answerOf is a job as answers show it: with its template, without its payload.
func answerOf(j *storagev1.Job, t *storagev1.Template) *storagev1.Job {
	answer := j.CloneVT()
	answer.CreateHash, answer.PutHash = nil, nil
	if t != nil {
		answer.Template = t.CloneVT()
		answer.Template.Payload = nil
	}
	return answer
}

// update is the application of one UpdateJob.
type update struct {
	*apply
	c *storagev1.UpdateJob
	j *storagev1.Job
	// The row of a one-shot that waits for its time.
	waitingKey []byte
	waiting    *storagev1.Execution

	schedule *storagev1.Schedule
	// The horizon of a new cron schedule.
	horizon *storagev1.Horizon
	// goesOn: the new schedule names what has come and is undecided, as the old one does.
	goesOn bool
	// Where the timer of a job that catches up at its pace stands; 0: it does not.
	pacedMS int64
	// blocked: it had an overlap rule already.
	blocked bool
	task    *storagev1.Task
}

func (u *update) has(field string) bool { return slices.Contains(u.c.Fields, field) }

func (u *update) hasTemplate() bool { return slices.ContainsFunc(u.c.Fields, isTemplateField) }

func isTemplateField(field string) bool {
	switch field {
	case "queue", "priority", "fairness_key", "payload", "headers", "retry", "lease", "start_deadline", "retention":
		return true
	default:
		return false
	}
}

func isJobField(field string) bool {
	switch field {
	case "schedule", "catch_up", "catch_up_window", "catch_up_per_minute", "overlap", "pause_after_failures", "labels", "state",
		"pause_reason", "pause":
		return true
	default:
		return false
	}
}

// isDefinition says whether a field is part of what a job is put as.
func isDefinition(field string) bool {
	return field != "state" && field != "pause_reason" && field != "pause"
}

func validUpdate(c *storagev1.UpdateJob) *Refusal {
	if r := validJobName(c.Tenant, c.JobId); r != nil {
		return r
	}
	if len(c.Fields) == 0 || len(c.Fields) > 64 {
		return refuseField("fields", "no field is named, or too many")
	}
	needsTemplate := false
	for _, field := range c.Fields {
		if !isJobField(field) && !isTemplateField(field) {
			return refuseField("fields", "unknown field %q", clip(field))
		}
		needsTemplate = needsTemplate || isTemplateField(field)
	}
	if !isName(c.IdempotencyKey) {
		return refuseField("idempotency_key", "malformed")
	}
	if len(c.PauseReason) > maxErrorBytes {
		return refuseField("pause_reason", "more than %d bytes", maxErrorBytes)
	}
	if r := validPause(c.Pause); r != nil {
		return r
	}
	if !isDuration(c.CatchUpWindowMs) {
		return refuseField("catch_up_window", "out of range")
	}
	if r := validRecurring(c.Overlap, c.CatchUpPerMinute, c.PauseAfterFailures); r != nil {
		return r
	}
	if !needsTemplate {
		return nil
	}
	if c.Template == nil {
		return refuseField("template", "missing")
	}
	t := c.Template
	if !slices.Contains(c.Fields, "queue") && t.Queue == "" {
		t = t.CloneVT()
		t.Queue = "unnamed"
	}
	return validTemplate(t)
}

// template is where the job's template stands now; nil for a one-shot that has fired.
func (u *update) template() *storagev1.Template {
	if u.waiting != nil {
		return u.waiting.Template
	}
	return u.j.Template
}

// mayLive says whether an execution of the job is alive, or may be: the search is bounded.
func (u *update) mayLive() bool {
	keys, complete := newFinder(u.s, maxFindRows).live(u.c.Tenant, u.c.JobId, 1)
	return len(keys) > 0 || !complete
}

// check refuses what cannot be done, before anything is changed.
func (u *update) check() *Refusal {
	j, c := u.j, u.c
	fired := isOneShot(j) && u.template() == nil
	if u.has("state") {
		switch {
		case c.Pause.GetUntilMs() != 0 && c.Pause.UntilMs <= u.stamp:
			return refuseField("until", "has passed")
		case c.State != storagev1.JobState_JOB_STATE_ACTIVE && c.State != storagev1.JobState_JOB_STATE_PAUSED:
			return refuseField("state", "a job can be made active or paused")
		case c.State == storagev1.JobState_JOB_STATE_ACTIVE:
		case fired && !u.mayLive():
			return &Refusal{Code: FailedPrecondition, Field: "state", Message: "the one-shot has ended"}
		case j.State == storagev1.JobState_JOB_STATE_EXHAUSTED && !u.mayLive():
			return &Refusal{Code: FailedPrecondition, Field: "state", Message: "the job is exhausted"}
		}
	}
	if fired && (u.has("schedule") || u.hasTemplate()) {
		return firedRefusal()
	}
	for _, field := range [...]string{"overlap", "catch_up_per_minute", "pause_after_failures"} {
		if isOneShot(j) && u.has(field) {
			return refuseField(field, "is for recurring jobs only")
		}
	}
	if r := u.checkOverlap(); r != nil || !u.has("schedule") {
		return r
	}
	if c.Schedule != nil && isOneShot(j) == recurs(c.Schedule) {
		return kindRefusal()
	}
	var r *Refusal
	if u.schedule, r = resolve(c.Schedule, j.Schedule, u.stamp); r != nil {
		return r
	}
	if isOneShot(j) {
		return nil
	}
	probe := &storagev1.Job{Schedule: u.schedule, Runs: j.Runs, WatermarkMs: j.WatermarkMs, QueuedMs: j.QueuedMs}
	if u.has("overlap") && c.Overlap == storagev1.Overlap_OVERLAP_SKIP {
		probe.QueuedMs = nil // setOverlap drops them
	}
	if u.schedule.Cron != nil {
		if c.Horizon != nil {
			if r := validHorizon(c.Horizon, c.HorizonFromMs); r != nil {
				return r
			}
		}
		u.horizon = usableHorizon(c.Horizon, c.HorizonFromMs, max(u.stamp, j.WatermarkMs))
		probe.Horizon = u.horizon
	}
	if _, ok := firstOf(probe, u.stamp); !ok && !unknown(probe) {
		return refuseField("schedule", "has no occurrence from now on")
	}
	return nil
}

func (u *update) run() {
	c, j := u.c, u.j
	oldQueue := u.template().GetQueue()
	wasPaused := j.State == storagev1.JobState_JOB_STATE_PAUSED
	if u.has("catch_up") {
		j.CatchUp = c.CatchUp
	}
	if u.has("catch_up_window") {
		j.WindowFromMs = 0
		j.CatchUpWindowMs = c.CatchUpWindowMs
	}
	if u.has("catch_up_per_minute") {
		j.CatchUpPerMinute = c.CatchUpPerMinute
	}
	if u.has("pause_after_failures") {
		j.PauseAfterFailures, j.Failures = c.PauseAfterFailures, 0
	}
	if u.has("overlap") {
		u.setOverlap()
	}
	if u.has("labels") {
		j.Labels = c.Labels
	}
	if u.hasTemplate() {
		u.setTemplate(u.changedTemplate())
	}
	if u.has("pause_reason") {
		j.PauseReason = c.PauseReason
	}
	pause := u.has("state") && c.State == storagev1.JobState_JOB_STATE_PAUSED && !wasPaused
	resume := u.has("state") && c.State == storagev1.JobState_JOB_STATE_ACTIVE && wasPaused
	if !pause && !resume {
		// Before what the new schedule does: it may have nothing left.
		u.emitJob(storagev1.EventType_EVENT_TYPE_JOB_UPDATED, c.Tenant, c.JobId, j.Incarnation, j.Version)
		if j.State == storagev1.JobState_JOB_STATE_EXHAUSTED && u.schedule == nil && (isOneShot(j) || ended(j)) {
			// An exhausted job may go on when it is updated: this one does not.
			u.emitJob(storagev1.EventType_EVENT_TYPE_JOB_EXHAUSTED, c.Tenant, c.JobId, j.Incarnation, j.Version)
		}
	}
	u.reschedule(wasPaused, oldQueue)
	switch {
	case pause:
		u.pause()
	case resume:
		u.resume()
	default:
		if wasPaused && u.has("pause") {
			u.setPause()
		}
		u.release()
	}
}

// changedTemplate is the job's template with the named fields replaced.
func (u *update) changedTemplate() *storagev1.Template {
	t, c := u.template().CloneVT(), u.c.Template
	for _, field := range u.c.Fields {
		switch field {
		case "queue":
			t.Queue = c.Queue
		case "priority":
			t.Priority = c.Priority
		case "fairness_key":
			t.FairnessKey = c.FairnessKey
		case "payload":
			slim := u.storeTemplate(&storagev1.Template{Payload: c.Payload}, u.c.Tenant, u.c.JobId, u.j)
			t.Payload, t.BlobVersion, t.BlobSize = slim.Payload, slim.BlobVersion, slim.BlobSize
			t.ContentType, t.PayloadRef = c.ContentType, c.PayloadRef
		case "headers":
			t.Headers = c.Headers
		case "retry":
			t.Retry = c.Retry
		case "lease":
			t.LeaseMs = c.LeaseMs
		case "start_deadline":
			t.StartDeadlineMs = c.StartDeadlineMs
		case "retention":
			t.RetentionMs = c.RetentionMs
		}
	}
	return t
}

// setTemplate replaces the template where it stands, and lets the payload go that the old one had apart.
func (u *update) setTemplate(t *storagev1.Template) {
	if old := u.template(); old.BlobVersion != 0 && old.BlobVersion != t.BlobVersion {
		u.dropBlob(old)
	}
	if isOneShot(u.j) {
		setStream(u.j, t)
	}
	if u.waiting != nil {
		u.waiting.Template = t
		return
	}
	u.j.Template = t
}

// dropBlob removes the payload of a template that was replaced: a one-shot's has no other reader. What was accepted with a
// recurring job's, or triggered, may need it as long as its history and dead letters are kept.
func (u *update) dropBlob(old *storagev1.Template) {
	key := BlobKey(u.c.Tenant, u.c.JobId, u.j.Incarnation, old.BlobVersion)
	if isOneShot(u.j) && !u.j.Triggered {
		u.s.Delete(key)
		return
	}
	kept := max(u.m.retention(u.c.Tenant, old)+dayMS, u.m.deadRetention(&storagev1.Execution{Template: old}))
	u.putExpiry(u.meta.ClockMs+kept, expireBlob, key[1:])
}

// reschedule puts the job's timer where the update wants it. Unrelated changes keep the pending occurrence; a changed
// schedule never makes a past one, save a one-shot's own instant.
func (u *update) reschedule(paused bool, oldQueue string) {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	if u.schedule != nil {
		j.FirstMs = firstNominal(j)
		j.Schedule = u.schedule
		if !isOneShot(j) {
			u.moveRecurring(paused)
			return
		}
	}
	switch {
	case u.waiting != nil:
		u.dropWaiting(u.waitingKey)
		u.waiting.NominalMs, u.waiting.JobVersion = j.Schedule.AtMs, j.Version
		u.putWaiting(u.waiting)
		u.waitingKey = timerJobKey(j.Schedule.AtMs, TimerOneShot, tenant, jobID)
	case j.State == storagev1.JobState_JOB_STATE_EXHAUSTED && !isOneShot(j) && !ended(j):
		u.revive()
	case j.NextMs != 0 && u.template().GetQueue() != oldQueue:
		u.arm(tenant, jobID, j, j.NextMs, j.TimerMs)
	}
}
