package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// What a pause stops waits in two kinds of rows. A recurring job that falls due is parked: its timer goes, a parked row stands in
// its place, and nothing is decided for its instants. An execution that could start is held. Both go on when nothing stops
// them any more: a task looks at them when a pause has ended, an update looks at its own job.

// park lets a recurring job that is due wait. The caller has taken its timer out of the index.
func (a *apply) park(tenant, jobID string, j *storagev1.Job) {
	j.Parked, j.NextMs, j.TimerMs, j.WindowFromMs = true, 0, 0, 0
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
			if kind == KindHeld && a.releaseHeldRow(row) || kind == KindParked && a.releaseParkedRow(row, t.Resume) {
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
func (a *apply) releaseParkedRow(row row, rule storagev1.CatchUp) bool {
	tenant, jobID, ok := parseJobKey(row.key, KindParked)
	if !ok {
		panic(corrupt(row.key))
	}
	key := JobKey(tenant, jobID)
	j := a.job(key)
	if j == nil || !j.Parked {
		panic(corrupt(row.key))
	}
	if a.m.stopsJob(tenant, j) {
		return false
	}
	a.open = openJob{tenant, jobID, j}
	a.unpark(tenant, jobID, j, rule)
	a.open = openJob{}
	a.s.Set(key, mustEncode(j.MarshalVT()))
	return true
}

// unpark lets a parked job go on: what fell due meanwhile goes by the rule, or by its own.
func (a *apply) unpark(tenant, jobID string, j *storagev1.Job, rule storagev1.CatchUp) {
	a.dropParked(tenant, jobID, j)
	a.resumeRecurring(tenant, jobID, j, rule)
}

// release lets go on what pauses had stopped of a job that an update may have moved out of their reach.
func (u *update) release() {
	j := u.j
	if j.Parked && !u.m.stopsJob(u.c.Tenant, j) {
		u.unpark(u.c.Tenant, u.c.JobId, j, storagev1.CatchUp_CATCH_UP_UNSPECIFIED)
	}
	if u.has("labels") && j.State != storagev1.JobState_JOB_STATE_PAUSED {
		u.task = u.releaseHeld(u.c.Tenant, u.c.JobId, j, inlineResume)
	}
}
