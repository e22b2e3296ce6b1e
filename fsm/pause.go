package fsm

import (
	"cmp"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// pause takes the job's timer out of the index and marks the job, so that its live executions are held.
func (u *update) pause() {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	if u.waiting != nil {
		u.dropWaiting(u.waitingKey)
		j.Template = u.waiting.Template
	}
	u.noteZone(j.Horizon) // the walk over older horizons leaves out an exhausted job
	u.pauseJob(tenant, jobID, j, u.waiting == nil || j.Triggered)
	u.waiting = nil
	u.setPause()
}

// setPause keeps what the update says of the pause, and lets a timer end it if it is to end by itself.
func (u *update) setPause() {
	j := u.j
	u.dropPause(u.c.Tenant, u.c.JobId, j)
	if p := u.c.Pause; p.GetBy() != "" || p.GetUntilMs() != 0 || p.GetResume() != storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		j.Pause = p.CloneVT()
	}
	if until := j.Pause.GetUntilMs(); until != 0 {
		u.putTimer(until, timerJobKey(until, TimerResume, u.c.Tenant, u.c.JobId), []byte{}, TimerResume, "")
	}
}

// dropPause forgets what is known of a job's pause, with the timer of its end.
func (a *apply) dropPause(tenant, jobID string, j *storagev1.Job) {
	if until := j.Pause.GetUntilMs(); until != 0 {
		a.dropTimer(timerJobKey(until, TimerResume, tenant, jobID))
	}
	j.Pause = nil
}

// fireResume resumes a job whose pause was to end now.
func (a *apply) fireResume(t *dueTimer) {
	a.work++
	tenant, jobID := t.id.Tenant, t.id.JobID
	key := JobKey(tenant, jobID)
	j := a.job(key)
	if j == nil || j.State != storagev1.JobState_JOB_STATE_PAUSED || j.Pause.GetUntilMs() != t.atMS {
		panic(corrupt(t.key))
	}
	j.Version++
	j.UpdatedMs = a.meta.ClockMs
	a.open = openJob{tenant, jobID, j}
	u := &update{apply: a, c: &storagev1.UpdateJob{Tenant: tenant, JobId: jobID}, j: j}
	u.resume()
	a.open = openJob{}
	a.s.Set(key, mustEncode(j.MarshalVT()))
}

// resume ends the job's own pause: what it held becomes ready, and what it missed goes by the rule that the resume names, or else
// the pause, or else by its catch-up rule; unless something else stops it still.
func (u *update) resume() {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	rule := cmp.Or(u.c.Pause.GetResume(), j.Pause.GetResume())
	j.State = storagev1.JobState_JOB_STATE_ACTIVE
	j.PauseReason, j.Failures = "", 0
	u.dropPause(tenant, jobID, j)
	name := jobName{tenant, jobID}
	s := u.m.stops[name]
	s.paused = false
	u.setStop(name, s)
	u.emitJob(storagev1.EventType_EVENT_TYPE_JOB_RESUMED, tenant, jobID, j.Incarnation, j.Version)
	switch {
	case !isOneShot(j):
		u.goOn(tenant, jobID, j, rule)
	case j.Template != nil:
		e := &storagev1.Execution{
			Tenant: tenant, JobId: jobID, Incarnation: j.Incarnation, JobVersion: j.Version, OneShot: true,
			Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: j.Schedule.AtMs, Template: j.Template,
		}
		j.Template = nil
		u.putWaiting(e)
		u.waiting = e
	}
	u.task = u.releaseHeld(tenant, jobID, j, inlineResume)
}

// releaseHeld lets go what a job held and nothing stops any more, or what a deleted one held: up to limit now, the others by a
// task, which it returns then.
func (a *apply) releaseHeld(tenant, jobID string, j *storagev1.Job, limit int) *storagev1.Task {
	if a.meta.Held == 0 {
		return nil
	}
	t := &storagev1.Task{
		Id:   resumeTaskID(tenant, jobID, j),
		Kind: storagev1.TaskKind_TASK_KIND_RELEASE, Filter: &storagev1.Filter{Tenant: tenant, JobId: jobID},
		CreatedMs: a.meta.ClockMs, UpdatedMs: a.meta.ClockMs,
	}
	a.stepRelease(t, limit)
	a.work += int(t.SeenCount)
	if t.Finished {
		return nil
	}
	a.putTask(t)
	a.effects.TasksStarted = true
	return t
}
