package fsm

import storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"

// pause takes the job's timer out of the index and marks the job, so that its live executions are held.
func (u *update) pause() {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	if j.State == storagev1.JobState_JOB_STATE_EXHAUSTED {
		// Its schedule has ended within this very update.
		return
	}
	if u.waiting != nil {
		u.dropWaiting(u.waitingKey)
		j.Template = u.waiting.Template
	}
	u.pauseJob(tenant, jobID, j, u.waiting == nil || j.Triggered)
	u.waiting = nil
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
	j.HeldToMs = u.stamp - offsetOf(j)
	next, ok := nextOf(j, j.WatermarkMs)
	if last, any := lastUpTo(j, j.HeldToMs); ok && any && next <= last {
		u.catchUp(tenant, jobID, j, next, last)
	}
	u.startQueued(tenant, jobID, j)
	u.rearm(tenant, jobID, j, 0)
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
