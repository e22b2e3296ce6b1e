package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// What a pause stops waits in two kinds of rows. A recurring job that falls due is parked, and one that is resumed while a pause
// around it goes on: its timer goes, a parked row stands in its place, and nothing is decided for its instants. An execution that
// could start is held. Both go on when nothing stops them any more: a task looks at them when a pause has ended, an update looks
// at its own job.
//
// Of several pauses of a job the one that ends last decides by its rule what fell due meanwhile. A job's own pause is ended by
// its resume, in the same entry. Of those around it the order of their ends counts, not that of their tasks' steps: see lastRule.

// park lets a recurring job wait. It has no timer, or the caller has taken it out of the index.
func (a *apply) park(tenant, jobID string, j *storagev1.Job) {
	j.Parked, j.NextMs, j.TimerMs, j.WindowFromMs, j.HeldRule = true, 0, 0, 0, storagev1.CatchUp_CATCH_UP_UNSPECIFIED
	a.s.Set(ParkedKey(tenant, jobID), []byte{})
	a.meta.Parked++
	a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_PARKED, tenant, jobID, j.Incarnation, j.Version)
}

func (a *apply) dropParked(tenant, jobID string, j *storagev1.Job) {
	j.Parked = false
	a.s.Delete(ParkedKey(tenant, jobID))
	a.meta.Parked--
	a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_RELEASED, tenant, jobID, j.Incarnation, j.Version)
}

// releaseKinds is the order in which a task looks at what is stopped: what was accepted earlier goes first.
var releaseKinds = [...]byte{KindHeld, KindParked}

// stepRelease lets go on up to limit of what is stopped and nothing stops any more: of one job what it holds, else also the jobs
// that are parked, of a tenant or of all. The cursor is the next row to look at, or just the next kind.
func (a *apply) stepRelease(t *storagev1.Task, limit int) {
	if len(t.Cursor) == 0 {
		t.Cursor = releaseKinds[:1]
	}
	for left := limit; left > 0 && !t.Finished; {
		kind := t.Cursor[0]
		prefix := releasePrefix(kind, t.Filter)
		start := prefix
		if len(t.Cursor) > 1 {
			start = t.Cursor
		}
		rows, next := rowsFrom(a.s, start, PrefixEnd(prefix), left)
		left -= len(rows)
		for _, row := range rows {
			t.SeenCount++
			if kind == KindHeld && a.releaseHeldRow(row) || kind == KindParked && a.releaseParkedRow(row) {
				t.DoneCount++
			}
		}
		switch {
		case next != nil:
			t.Cursor = next
		case kind == KindHeld && t.Filter.GetJobId() == "":
			t.Cursor = releaseKinds[1:]
		default:
			t.Cursor, t.Finished = nil, true
		}
	}
}

// releasePrefix starts the rows of a kind that a task is to look at.
func releasePrefix(kind byte, f *storagev1.Filter) []byte {
	switch {
	case f.GetJobId() != "":
		return namedKey(kind, f.Tenant, f.JobId)
	case f.GetTenant() != "":
		return tenantPrefix(kind, f.Tenant)
	default:
		return []byte{kind}
	}
}

// releaseHeldRow lets a held execution go where it belongs, unless it still has to be held.
func (a *apply) releaseHeldRow(row row) bool {
	id, ok := parseIdentKey(row.key, KindHeld)
	if !ok {
		panic(corrupt(row.key))
	}
	e := decodeNamed(row.key, row.value, &id)
	if a.mustHold(e) {
		return false
	}
	a.dropHeld(row.key)
	a.admit(e, nil)
	return true
}

// mustHold says whether an execution that could start has to wait for its job to be resumed, or for a rule to end.
func (a *apply) mustHold(e *storagev1.Execution) bool {
	switch a.m.stopOf(e) {
	case storagev1.JobState_JOB_STATE_DELETED:
		return false
	case storagev1.JobState_JOB_STATE_PAUSED:
		return true
	default:
		return a.ruledExecution(e)
	}
}

// releaseParkedRow lets a parked job go on, unless something still stops it.
func (a *apply) releaseParkedRow(row row) bool {
	tenant, jobID, ok := parseJobKey(row.key, KindParked)
	if !ok {
		panic(corrupt(row.key))
	}
	key := JobKey(tenant, jobID)
	j := a.job(key)
	if j == nil || !j.Parked {
		panic(corrupt(row.key))
	}
	a.open = openJob{tenant, jobID, j}
	released := a.unpark(tenant, jobID, j, a.m.lastRule(tenant, j))
	a.open = openJob{}
	if released {
		a.s.Set(key, mustEncode(j.MarshalVT()))
	}
	return released
}

// unpark lets a parked job go on that nothing stops any more: what fell due meanwhile goes by the rule, or by its own.
func (a *apply) unpark(tenant, jobID string, j *storagev1.Job, rule storagev1.CatchUp) bool {
	if !j.Parked || a.m.stopped(tenant, j) {
		return false
	}
	a.dropParked(tenant, jobID, j)
	a.goOn(tenant, jobID, j, rule)
	return true
}

// goOn lets a recurring job go on, unless a pause around it still stops it: then it waits for that one's end. Else each instant of
// the pause was missed, however recent, and goes by the rule; unspecified: the job's own.
func (a *apply) goOn(tenant, jobID string, j *storagev1.Job, rule storagev1.CatchUp) {
	if a.m.stoppedAround(tenant, j) && !ended(j) {
		a.park(tenant, jobID, j)
		a.startQueued(tenant, jobID, j)
		return
	}
	j.HeldToMs, j.HeldRule = a.stamp-offsetOf(j), rule
	next, ok := nextOf(j, j.WatermarkMs)
	if last, any := lastUpTo(j, j.HeldToMs); ok && any && next <= last {
		a.catchUp(tenant, jobID, j, next, last)
	}
	a.startQueued(tenant, jobID, j)
	a.rearm(tenant, jobID, j, 0)
}

// release lets go on what pauses had stopped of a job that the update has moved out of their reach.
func (u *update) release() {
	j := u.j
	u.unpark(u.c.Tenant, u.c.JobId, j, storagev1.CatchUp_CATCH_UP_UNSPECIFIED)
	if u.has("labels") && j.State != storagev1.JobState_JOB_STATE_PAUSED {
		u.task = u.releaseHeld(u.c.Tenant, u.c.JobId, j, inlineResume)
	}
}
