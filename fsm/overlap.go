package fsm

import (
	"fmt"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// maxQueued is how many occurrences of a job wait for an earlier one at most.
	maxQueued = 100
	// maxTakenIn is how many live executions an update to a blocking overlap rule takes in at most.
	maxTakenIn = 100
	// maxFailures bounds pause_after_failures.
	maxFailures         = 1000
	maxCatchUpPerMinute = 60_000
)

// openJob is the job that a command has in hand: what its executions tell it goes there, and the command writes the row.
type openJob struct {
	tenant, jobID string
	j             *storagev1.Job
}

// blocks says whether a live execution of j's schedule is in the way of the next one.
func blocks(j *storagev1.Job) bool {
	return j.Overlap > storagev1.Overlap_OVERLAP_ALLOW && !isOneShot(j)
}

// overlapsTo is up to where the instants next..last, all of them due, are skipped because an earlier one lives; before next,
// if that one is not.
func overlapsTo(j *storagev1.Job, next, last int64) int64 {
	waits := len(j.QueuedMs)
	switch {
	case !blocks(j) || len(j.LiveMs) == 0,
		j.Overlap == storagev1.Overlap_OVERLAP_QUEUE_ONE && waits == 0,
		j.Overlap == storagev1.Overlap_OVERLAP_QUEUE_ALL && waits < maxQueued:
		return next - 1
	case j.Overlap == storagev1.Overlap_OVERLAP_CANCEL_RUNNING: // Each would wait in place of the one before.
		to, _ := lastUpTo(j, last-1)
		return to
	default:
		return last
	}
}

// wait lets an occurrence wait for an earlier one of its job that lives. It is accepted when it starts, as its job is then.
func (a *apply) wait(tenant, jobID string, j *storagev1.Job, nominal int64, late bool) {
	cancels := j.Overlap == storagev1.Overlap_OVERLAP_CANCEL_RUNNING
	if cancels {
		a.dropQueued(tenant, jobID, j, whySkippedOverlap)
	}
	j.QueuedMs = append(j.QueuedMs, nominal)
	if late {
		j.QueuedLateMs = append(j.QueuedLateMs, nominal)
	}
	if cancels {
		a.cancelLive(tenant, jobID, j)
	}
}

func oneVerdict(nominal int64, why string) *storagev1.RangeVerdict {
	return &storagev1.RangeVerdict{FromMs: nominal, ToMs: nominal, Count: 1, Why: why}
}

// dropQueued skips the occurrences that wait for an earlier one.
func (a *apply) dropQueued(tenant, jobID string, j *storagev1.Job, why string) {
	for _, nominal := range j.QueuedMs {
		a.putVerdict(tenant, jobID, j, oneVerdict(nominal, why))
	}
	j.QueuedMs, j.QueuedLateMs = nil, nil
}

// startQueued starts what waits, once nothing is in its way.
func (a *apply) startQueued(tenant, jobID string, j *storagev1.Job) {
	for len(j.QueuedMs) > 0 && !(blocks(j) && len(j.LiveMs) > 0) && !isStopped(j) {
		nominal := j.QueuedMs[0]
		j.QueuedMs = j.QueuedMs[1:]
		late := len(j.QueuedLateMs) > 0 && j.QueuedLateMs[0] == nominal
		if late {
			j.QueuedLateMs = j.QueuedLateMs[1:]
		}
		a.start(tenant, jobID, j, nominal, late, nil)
	}
}

func isStopped(j *storagev1.Job) bool {
	return j.State == storagev1.JobState_JOB_STATE_PAUSED || j.State == storagev1.JobState_JOB_STATE_DELETED
}

// cancelLive ends those of j's live executions that wait. One that is ready in another stream than the job's own, or
// leased, gives way when it is claimed, or its holder next says something: see superseded.
func (a *apply) cancelLive(tenant, jobID string, j *storagev1.Job) {
	f := newFinder(a.s, 0)
	for _, nominal := range slices.Clone(j.LiveMs) {
		id := Identity{
			Tenant: tenant, JobID: jobID, Incarnation: j.Incarnation,
			Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMS: nominal,
		}
		e, key := f.retrying(&id)
		if e == nil {
			e, key = f.held(&id)
		}
		if e == nil {
			t := j.Template
			e, key = f.inStream(&id, t.GetQueue(), t.GetPriority(), t.GetFairnessKey())
		}
		if e != nil {
			a.cancel(key, e, "")
		}
	}
}

// superseded says whether e is to give way to a later occurrence of its job.
func (a *apply) superseded(e *storagev1.Execution) bool {
	if !e.Blocks {
		return false
	}
	j := a.jobOf(e)
	return j != nil && j.Overlap == storagev1.Overlap_OVERLAP_CANCEL_RUNNING && len(j.QueuedMs) > 0
}

// jobOf is the job of e's incarnation, the one in hand if it is; nil when it is deleted.
func (a *apply) jobOf(e *storagev1.Execution) *storagev1.Job {
	j := a.open.j
	if j == nil || a.open.jobID != e.JobId || a.open.tenant != e.Tenant {
		j = a.job(JobKey(e.Tenant, e.JobId))
	}
	if j == nil || j.Incarnation != e.Incarnation || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return nil
	}
	return j
}

// tell lets e's job know that e has ended: what waited for it starts, and failures in a row are counted.
func (a *apply) tell(e *storagev1.Execution) {
	if !e.Tracked {
		return
	}
	if e.Kind == storagev1.ExecutionKind_EXECUTION_KIND_BACKFILL {
		a.backfilled(e)
		return
	}
	j := a.jobOf(e)
	if j == nil {
		return
	}
	inHand := j == a.open.j
	if !inHand {
		a.open = openJob{e.Tenant, e.JobId, j}
	}
	j.LiveMs = slices.DeleteFunc(j.LiveMs, func(ms int64) bool { return ms == e.NominalMs })
	switch e.State {
	case storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED:
		j.Failures = 0
	case storagev1.ExecutionState_EXECUTION_STATE_DEAD:
		a.countFailure(e.Tenant, e.JobId, j)
	default:
	}
	a.startQueued(e.Tenant, e.JobId, j)
	if !inHand {
		a.open = openJob{}
		a.s.Set(JobKey(e.Tenant, e.JobId), mustEncode(j.MarshalVT()))
	}
}

// countFailure counts a dead letter of j's schedule, and pauses j when there were too many in a row.
func (a *apply) countFailure(tenant, jobID string, j *storagev1.Job) {
	j.Failures++
	if j.PauseAfterFailures == 0 || j.Failures < j.PauseAfterFailures || isStopped(j) || ended(j) && len(j.QueuedMs) == 0 {
		return
	}
	j.Version++
	j.UpdatedMs = a.meta.ClockMs
	j.PauseReason = fmt.Sprintf("paused after %d failures in a row", j.Failures)
	j.Failures = 0
	a.meta.AutoPausedTotal++
	a.pauseJob(tenant, jobID, j, true)
}

// pauseJob takes a job's timer out of the index; mark has its live executions held when they are next touched.
func (a *apply) pauseJob(tenant, jobID string, j *storagev1.Job, mark bool) {
	j.State = storagev1.JobState_JOB_STATE_PAUSED
	j.WindowFromMs = 0
	a.disarm(tenant, jobID, j)
	j.HeldRule = storagev1.CatchUp_CATCH_UP_UNSPECIFIED
	if mark {
		a.markPaused(tenant, jobID, j)
	}
	a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_PAUSED, tenant, jobID, j.Incarnation, j.Version)
}

// markPaused lets what lives of a job, or is about to, be held if the job is paused. One that has nothing alive when its pause
// begins has no marker.
func (a *apply) markPaused(tenant, jobID string, j *storagev1.Job) {
	name := jobName{tenant, jobID}
	s := a.m.stops[name]
	if j.State == storagev1.JobState_JOB_STATE_PAUSED && !s.paused {
		s.paused = true
		a.setStop(name, s)
	}
}

// takeIn lets the live executions at keys block the next occurrence: their job has got an overlap rule.
func (a *apply) takeIn(j *storagev1.Job, keys [][]byte) {
	for _, key := range keys {
		_, e := readHint(a.s, key)
		if e == nil || e.Incarnation != j.Incarnation || e.Kind != storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE || e.Blocks {
			continue
		}
		e.Blocks, e.Tracked = true, true
		j.LiveMs = append(j.LiveMs, e.NominalMs)
		if key[0] == KindReady || key[0] == KindLeased {
			a.s.Set(key, mustEncode(e.MarshalVT()))
			continue
		}
		a.s.Set(key, encodeNamed(e))
	}
	slices.Sort(j.LiveMs)
}

// checkOverlap finds what begins to block when the job gets an overlap rule.
func (u *update) checkOverlap() *Refusal {
	u.blocked = blocks(u.j)
	if !u.has("overlap") || isOneShot(u.j) || u.c.Overlap <= storagev1.Overlap_OVERLAP_ALLOW || u.blocked {
		return nil
	}
	_, complete := newFinder(u.s, maxFindRows).live(u.c.Tenant, u.c.JobId, maxTakenIn)
	if !complete {
		return &Refusal{
			Code: FailedPrecondition, Field: "overlap",
			Message: fmt.Sprintf("more than %d executions of the job live: pause it until they have ended, or cancel them", maxTakenIn),
		}
	}
	return nil
}

// setOverlap changes the rule. What lives begins to block, and what waits and no longer has to starts.
func (u *update) setOverlap() {
	j := u.j
	j.Overlap = u.c.Overlap
	if blocks(j) && !u.blocked {
		// Those that the old schedule has just made among them.
		keys, _ := newFinder(u.s, maxFindRows).live(u.c.Tenant, u.c.JobId, maxTakenIn+3*maxOccurrences)
		u.takeIn(j, keys)
	}
	if j.Overlap == storagev1.Overlap_OVERLAP_SKIP {
		u.dropQueued(u.c.Tenant, u.c.JobId, j, whySkippedOverlap)
	}
	u.startQueued(u.c.Tenant, u.c.JobId, j)
}

// revive lets an exhausted job go on that has got a run back: an occurrence that waited was dropped. Those that fell due while it
// waited were in its way.
func (u *update) revive() {
	j, to := u.j, u.stamp-offsetOf(u.j)
	u.closeUpTo(u.c.Tenant, u.c.JobId, j, to, whySkippedOverlap)
	if unknown(j) && j.Horizon.ToMs < to {
		u.closeUnknown(u.c.Tenant, u.c.JobId, j, to, whySkippedOverlap)
		j.WatermarkMs, j.Horizon.ToMs = to, to
	}
	u.noteZone(j.Horizon) // the walk over older horizons has left it out
	j.State = storagev1.JobState_JOB_STATE_ACTIVE
	u.rearm(u.c.Tenant, u.c.JobId, j, 0)
}
