package fsm

import storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"

// pause takes the job's timer out of the index and marks the job, so that its live executions are held.
func (u *update) pause() {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	if j.State == storagev1.JobState_JOB_STATE_EXHAUSTED {
		// Its schedule has ended within this very update.
		return
	}
	j.State = storagev1.JobState_JOB_STATE_PAUSED
	if j.NextMs != 0 {
		u.s.Delete(timerJobKey(j.NextMs, TimerRecurring, tenant, jobID))
		j.NextMs = 0
	}
	if u.waiting != nil {
		u.dropWaiting(u.waitingKey)
		j.Template = u.waiting.Template
	}
	if u.waiting == nil || j.Triggered {
		name := jobName{tenant, jobID}
		s := u.m.stops[name]
		s.paused = true
		u.setStop(name, s)
	}
	u.waiting = nil
	u.emitJob(storagev1.EventType_EVENT_TYPE_JOB_PAUSED, tenant, jobID, j.Incarnation, j.Version)
}

// resume lets the job go on: what it held becomes ready, and what it missed goes by its catch-up rule.
func (u *update) resume() {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	j.State = storagev1.JobState_JOB_STATE_ACTIVE
	j.PauseReason = ""
	name := jobName{tenant, jobID}
	s := u.m.stops[name]
	s.paused = false
	u.setStop(name, s)
	u.emitJob(storagev1.EventType_EVENT_TYPE_JOB_RESUMED, tenant, jobID, j.Incarnation, j.Version)
	switch {
	case !isOneShot(j):
		u.resumeRecurring()
	case j.Template != nil:
		e := &storagev1.Execution{
			Tenant: tenant, JobId: jobID, Incarnation: j.Incarnation, JobVersion: j.Version, OneShot: true,
			Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: j.Schedule.AtMs, Template: j.Template,
		}
		j.Template = nil
		u.putWaiting(e)
		u.waiting = e
	}
	u.releaseHeld()
}

// resumeRecurring applies the catch-up rule to the instants of the pause: each of them was missed, however recent.
func (u *update) resumeRecurring() {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	next, ok := nextOf(j, j.WatermarkMs)
	last, any := gridUpTo(j.Schedule.Every, u.stamp)
	if ok && any && next <= last {
		skipTo, why := skipped(j, last, whySkippedPaused, u.stamp)
		if skipTo >= next {
			u.skipRange(tenant, jobID, j, next, skipTo, why)
		}
	}
	u.rearm(tenant, jobID, j)
}

// releaseHeld makes ready what the job held: some now, the others by a task.
func (u *update) releaseHeld() {
	filter := &storagev1.Filter{Tenant: u.c.Tenant, JobId: u.c.JobId}
	t := &storagev1.Task{
		Id:   resumeTaskID(u.c.Tenant, u.c.JobId, u.j),
		Kind: storagev1.TaskKind_TASK_KIND_RELEASE, Filter: filter, CreatedMs: u.meta.ClockMs, UpdatedMs: u.meta.ClockMs,
	}
	u.stepResume(t, inlineResume)
	if !t.Finished {
		u.putTask(t)
		u.task = t
	}
}
