package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// deleteJob leaves a tombstone, cancels what waits and tells what runs to stop.
func (a *apply) deleteJob(c *storagev1.DeleteJob) Result {
	if r := validJobName(c.Tenant, c.JobId); r != nil {
		return Result{Refusal: r}
	}
	if !isName(c.IdempotencyKey) {
		return Result{Refusal: refuseField("idempotency_key", "malformed")}
	}
	if len(c.Hints) > MaxBatch {
		return Result{Refusal: refuseField("hints", "more than %d", MaxBatch)}
	}
	if first, ok := a.firstAnswer(methodDelete, c.Tenant, c.JobId, c.IdempotencyKey, c.Hash, func(*storagev1.IdempotencyRecord) []string {
		return []string{"expected_version"}
	}); ok {
		return first
	}
	key := JobKey(c.Tenant, c.JobId)
	j := a.job(key)
	if j == nil {
		return Result{Refusal: refuse(NotFound, "no job %q", c.JobId)}
	}
	if j.State == storagev1.JobState_JOB_STATE_DELETED {
		// Also the retry of a delete without a key: what it asks for is so.
		if c.ExpectedVersion != 0 && c.ExpectedVersion != j.Version && c.ExpectedVersion != j.Version-1 {
			return Result{Refusal: versionRefusal(j)}
		}
		return Result{Job: answerOf(j, nil)}
	}
	if c.ExpectedVersion != 0 && c.ExpectedVersion != j.Version {
		return Result{Refusal: versionRefusal(j)}
	}
	a.removeJob(c.Tenant, c.JobId, j, true)
	// Unlike others of a deleted job nothing would touch them again, and the leader's hints may be older than the newest.
	task := a.releaseHeld(c.Tenant, c.JobId, j, MaxBatch)
	for _, hint := range c.Hints {
		if _, e := readHint(a.s, hint); e != nil && e.Tenant == c.Tenant && e.JobId == c.JobId && e.Incarnation <= j.Incarnation {
			a.cancel(hint, e, "")
		}
	}
	answer := answerOf(j, nil)
	a.putRecord(methodDelete, c.Tenant, c.JobId, c.IdempotencyKey, &storagev1.IdempotencyRecord{Hash: c.Hash, Job: answer})
	return Result{Job: answer, Task: task}
}

// removeJob makes a job's row a tombstone and takes its timer out of the index. mark leaves a marker that its live
// executions obey; a waiting one-shot has none but the one that is cancelled here. What waits for an earlier occurrence goes
// first: the end of that one must find nothing to start.
func (a *apply) removeJob(tenant, jobID string, j *storagev1.Job, mark bool) {
	waitingKey, waiting := a.waiting(tenant, jobID, j)
	untouched := isOneShot(j) && (waiting != nil || j.Template != nil) && !j.Triggered
	if waiting == nil && j.Template != nil && isOneShot(j) {
		// Paused before its time: the execution has no row of its own, its verdict gets one.
		waiting = &storagev1.Execution{
			Tenant: tenant, JobId: jobID, Incarnation: j.Incarnation, JobVersion: j.Version, OneShot: true,
			Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: j.Schedule.AtMs, Template: j.Template,
		}
		waitingKey = nil
	}
	if waiting != nil {
		if waitingKey != nil {
			a.dropWaiting(waitingKey)
		}
		a.putEnded(waiting, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED)
	}
	a.closeDeleted(tenant, jobID, j)
	a.disarm(tenant, jobID, j)
	a.dropPause(tenant, jobID, j)
	name := jobName{tenant, jobID}
	switch {
	case mark && !untouched:
		a.setStop(name, stop{deletedTo: j.Incarnation})
	default:
		// An older incarnation's marker stands on; a pause ends with its job.
		a.setStop(name, stop{deletedTo: a.m.stops[name].deletedTo})
	}
	a.entomb(tenant, jobID, j)
}

// entomb turns j's row into a tombstone, which answers retries of create and delete until it is swept.
func (a *apply) entomb(tenant, jobID string, j *storagev1.Job) {
	j.Version++
	j.State = storagev1.JobState_JOB_STATE_DELETED
	j.DeletedMs, j.UpdatedMs = a.meta.ClockMs, a.meta.ClockMs
	j.Template, j.PauseReason, j.Horizon, j.LiveMs = nil, "", nil, nil
	key := JobKey(tenant, jobID)
	a.s.Set(key, mustEncode(j.MarshalVT()))
	a.putExpiry(j.DeletedMs+recordKeptMS, expireJob, key[1:])
	a.meta.Jobs--
	a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_DELETED, tenant, jobID, j.Incarnation, j.Version)
}

// cancel ends e, which stands at key, or asks its holder to stop; a reason becomes its error. It returns the state
// afterwards; what has ended stays as it is.
func (a *apply) cancel(key []byte, e *storagev1.Execution, reason string) storagev1.ExecutionState {
	id := IdentityOf(e)
	switch key[0] {
	case KindLeased:
		if !e.CancelRequested {
			e.CancelRequested = true
			e.Error = reason
			a.putLease(e)
			a.emit(storagev1.EventType_EVENT_TYPE_CANCEL_REQUESTED, e)
			a.effects.Cancels = append(a.effects.Cancels, a.leaseRef(e))
		}
		return storagev1.ExecutionState_EXECUTION_STATE_LEASED
	case KindReady:
		a.dropReady(bytes.Clone(key), false)
	case KindHeld:
		a.dropHeld(key)
	case KindTimer:
		if t, _ := parseTimerKey(key); t.kind == TimerOneShot {
			a.dropWaiting(key)
		} else {
			a.dropRetrying(key, &id)
			a.dropTimer(key)
		}
	default:
		return e.State
	}
	if reason != "" {
		e.Error = reason
	}
	a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED)
	return storagev1.ExecutionState_EXECUTION_STATE_CANCELLED
}

func (a *apply) cancelExecution(c *storagev1.CancelExecution) Result {
	id, err := ParseExecutionID(c.ExecutionId)
	if err != nil {
		return Result{Refusal: refuseField("execution_id", "malformed")}
	}
	_, e := readHint(a.s, c.Hint)
	if e == nil || IdentityOf(e) != id {
		return Result{Refusal: refuse(Moved, "the execution is not where it was found")}
	}
	state := a.cancel(c.Hint, e, clip(c.Reason))
	item := Item{State: state, CancelRequested: state == storagev1.ExecutionState_EXECUTION_STATE_LEASED}
	switch state {
	case storagev1.ExecutionState_EXECUTION_STATE_CANCELLED, storagev1.ExecutionState_EXECUTION_STATE_LEASED:
	default:
		item.Refusal = refuse(FailedPrecondition, "the execution has ended")
	}
	return Result{Items: []Item{item}}
}

// triggerJob makes one execution of a job now, apart from its schedule. A trigger of a paused job is accepted and held.
func (a *apply) triggerJob(c *storagev1.TriggerJob) Result {
	if r := validJobName(c.Tenant, c.JobId); r != nil {
		return Result{Refusal: r}
	}
	if c.Discriminator == "" || !isName(c.Discriminator) {
		return Result{Refusal: refuseField("discriminator", "malformed")}
	}
	if first, ok := a.firstAnswer(methodTrigger, c.Tenant, c.JobId, c.Discriminator, c.Hash, func(*storagev1.IdempotencyRecord) []string {
		return []string{"body"}
	}); ok {
		if first.Refusal == nil {
			first.Items = []Item{{Duplicate: true}}
		}
		return first
	}
	key := JobKey(c.Tenant, c.JobId)
	j := a.job(key)
	if j == nil || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return Result{Refusal: refuse(NotFound, "no job %q", c.JobId)}
	}
	if a.m.tenantGone(c.Tenant) {
		return Result{Refusal: refuse(FailedPrecondition, "tenant %q is deleted", c.Tenant)}
	}
	t := a.triggerTemplate(c, j)
	if t == nil {
		return Result{Refusal: refuse(FailedPrecondition, "the one-shot's execution has not ended: it can be triggered before it fires or after it ended")}
	}
	if !j.Triggered {
		j.Triggered = true
		a.s.Set(key, mustEncode(j.MarshalVT()))
	}
	e := &storagev1.Execution{
		Tenant: c.Tenant, JobId: c.JobId, Incarnation: j.Incarnation, JobVersion: j.Version,
		Kind: storagev1.ExecutionKind_EXECUTION_KIND_TRIGGER, NominalMs: a.meta.ClockMs, Discriminator: c.Discriminator,
		Template: t,
	}
	id := ExecutionID(e)
	a.meta.FiredTotal++
	a.markPaused(c.Tenant, c.JobId, j)
	a.admit(e, nil)
	a.putRecord(methodTrigger, c.Tenant, c.JobId, c.Discriminator, &storagev1.IdempotencyRecord{Hash: c.Hash, ExecutionId: id})
	return Result{ExecutionID: id, Items: []Item{{}}}
}

// triggerTemplate is what a trigger runs with: the job's template, wherever it stands; nil while a one-shot's execution is
// ready, runs, or waits for a retry.
func (a *apply) triggerTemplate(c *storagev1.TriggerJob, j *storagev1.Job) *storagev1.Template {
	if j.Template != nil {
		return j.Template
	}
	if t := a.oneShotTemplate(c.Tenant, c.JobId, j); t != nil {
		return t
	}
	f := newFinder(a.s, maxFindRows)
	id := oneShotIdentity(c.Tenant, c.JobId, j)
	if e, _ := f.dead(&id); e != nil {
		return e.Template
	}
	if e, _ := f.ended(&id); e != nil {
		return e.Template
	}
	return nil
}

func oneShotIdentity(tenant, jobID string, j *storagev1.Job) Identity {
	return Identity{
		Tenant: tenant, JobID: jobID, Incarnation: j.Incarnation,
		Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMS: j.Schedule.GetAtMs(),
	}
}
