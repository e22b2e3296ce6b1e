package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Why a range of nominal instants got no execution.
const (
	whySkippedMissed = "skipped_missed"
	whySkippedPaused = "skipped_paused"
	whySkippedWindow = "skipped_window"
	whyCoalesced     = "coalesced"
)

func (a *apply) fireRecurring(t *dueTimer, d *matcher) {
	a.work++
	a.s.Delete(t.key)
	key := JobKey(t.id.Tenant, t.id.JobID)
	j := a.job(key)
	if j == nil || j.NextMs != t.atMS || j.State != storagev1.JobState_JOB_STATE_ACTIVE {
		panic(corrupt(t.key))
	}
	a.occur(t.id.Tenant, t.id.JobID, j, d)
	a.rearm(t.id.Tenant, t.id.JobID, j)
	a.s.Set(key, mustEncode(j.MarshalVT()))
}

// occur gives each nominal instant of j that is due its verdict: those that were missed by the catch-up rule, the others
// by an execution. It makes at most maxOccurrences executions; the watermark says how far it came.
func (a *apply) occur(tenant, jobID string, j *storagev1.Job, d *matcher) {
	every := j.Schedule.Every
	next, ok := nextOf(j, j.WatermarkMs)
	// Up to here an instant was missed.
	missed, anyMissed := gridUpTo(every, a.stamp-missedAfterMS-1)
	if ok && anyMissed && next <= missed {
		next = a.catchUp(tenant, jobID, j, next, missed)
	}
	for made := 0; next <= a.stamp && made < maxOccurrences; made++ {
		if next, ok = nextOf(j, next-1); !ok || next > a.stamp {
			return
		}
		a.accept(tenant, jobID, j, next, d)
		next++
	}
}

// catchUp writes the range verdict that j's rule asks for among the missed instants from..to, both nominal, and returns
// where executions go on.
func (a *apply) catchUp(tenant, jobID string, j *storagev1.Job, from, to int64) int64 {
	skipTo, why := skipped(j, to, whySkippedMissed, a.stamp)
	if skipTo < from {
		return from
	}
	a.skipRange(tenant, jobID, j, from, skipTo, why)
	return skipTo + 1
}

// skipped is up to where the missed instants that end at to get no execution, and why. What is older than the window gets
// none under any rule.
func skipped(j *storagev1.Job, to int64, missed string, nowMS int64) (skipTo int64, why string) {
	every, start := j.Schedule.Every, windowStart(j, nowMS)
	rule := catchUpOf(j)
	switch {
	case rule == storagev1.CatchUp_CATCH_UP_NONE:
		return to, missed
	case to < start:
		return to, whySkippedWindow
	case rule == storagev1.CatchUp_CATCH_UP_ALL:
		skipTo, _ = gridUpTo(every, start-1)
		return skipTo, whySkippedWindow
	default:
		return to - every.IntervalMs, whyCoalesced
	}
}

// skipRange records one verdict for the nominal instants from..to.
func (a *apply) skipRange(tenant, jobID string, j *storagev1.Job, from, to int64, why string) {
	v := &storagev1.RangeVerdict{
		FromMs: from, ToMs: to, Count: gridCount(j.Schedule.Every, from, to), Why: why, RecordedMs: a.meta.ClockMs,
	}
	id := Identity{Tenant: tenant, JobID: jobID, Incarnation: j.Incarnation, NominalMS: from}
	bucket := expiryBucket(a.meta.ClockMs, a.m.retention(tenant, j.Template))
	a.s.Set(endedKey(bucket, &id, charRange), mustEncode(v.MarshalVT()))
	ev := a.emitJob(storagev1.EventType_EVENT_TYPE_SKIPPED, tenant, jobID, j.Incarnation, j.Version)
	ev.NominalMs, ev.ToMs, ev.Count = from, to, v.Count
	a.meta.SkippedTotal += v.Count
	j.WatermarkMs = to
}

// accept makes the one execution of a nominal instant above the watermark.
func (a *apply) accept(tenant, jobID string, j *storagev1.Job, nominal int64, d *matcher) {
	if nominal <= j.WatermarkMs {
		panic(corrupt(JobKey(tenant, jobID)))
	}
	j.WatermarkMs = nominal
	j.Runs++
	a.work++
	a.meta.FiredTotal++
	a.admit(&storagev1.Execution{
		Tenant: tenant, JobId: jobID, Incarnation: j.Incarnation, JobVersion: j.Version,
		Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: nominal, Template: j.Template,
	}, d)
}

// rearm lets j's next nominal instant stand in the index, or exhausts the job when there is none.
func (a *apply) rearm(tenant, jobID string, j *storagev1.Job) {
	j.NextMs = 0
	if next, ok := nextOf(j, j.WatermarkMs); ok {
		a.putRecurring(tenant, jobID, j, next)
		return
	}
	j.State = storagev1.JobState_JOB_STATE_EXHAUSTED
	a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_EXHAUSTED, tenant, jobID, j.Incarnation, j.Version)
}
