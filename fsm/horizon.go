package fsm

import (
	"cmp"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// expandRetryMS: a job that waits for its horizon asks for it so often. The first time its leader is told at once.
const expandRetryMS = 1000

// expandAgainMS: asked in vain, it asks so often. Many jobs wait at once after an outage, and their timers stand before due work.
const expandAgainMS = 10_000

// wantHorizon tells the leader that a job's horizon runs out.
func (a *apply) wantHorizon(tenant, jobID string) {
	a.effects.Expand = append(a.effects.Expand, JobRef{tenant, jobID})
}

// awaitHorizon lets j wait for the leader's evaluator: nothing of it fires until then.
func (a *apply) awaitHorizon(tenant, jobID string, j *storagev1.Job) {
	a.askAt(tenant, jobID, j, a.stamp+expandRetryMS)
}

func (a *apply) askAt(tenant, jobID string, j *storagev1.Job, at int64) {
	j.NextMs, j.TimerMs = 0, at
	a.putTimer(at, timerJobKey(at, TimerExpand, tenant, jobID), []byte{}, TimerExpand, "")
	a.wantHorizon(tenant, jobID)
}

func (a *apply) fireExpand(t *dueTimer) {
	a.work++
	a.s.Delete(t.key)
	key := JobKey(t.id.Tenant, t.id.JobID)
	j := a.job(key)
	if j == nil || j.NextMs != 0 || j.TimerMs != t.atMS || j.State != storagev1.JobState_JOB_STATE_ACTIVE {
		panic(corrupt(t.key))
	}
	if a.m.stoppedAround(t.id.Tenant, j) {
		a.park(t.id.Tenant, t.id.JobID, j)
	} else {
		a.askAt(t.id.Tenant, t.id.JobID, j, a.stamp+expandAgainMS)
	}
	a.s.Set(key, mustEncode(j.MarshalVT()))
}

// passHorizon drops from j's horizon what its watermark has passed; what the schedule named there and does not fire gets
// its verdict.
func (a *apply) passHorizon(tenant, jobID string, j *storagev1.Job) {
	h := j.Horizon
	if h == nil {
		return
	}
	i, _ := slices.BinarySearch(h.NextMs, j.WatermarkMs+1)
	h.NextMs = h.NextMs[i:]
	a.passSkipped(tenant, jobID, j, j.WatermarkMs)
}

// passSkipped gives what j's schedule named up to toMS and does not fire its verdicts.
func (a *apply) passSkipped(tenant, jobID string, j *storagev1.Job, toMS int64) {
	for h := j.Horizon; len(h.GetSkipped()) > 0 && h.Skipped[0].ToMs <= toMS; h.Skipped = h.Skipped[1:] {
		a.putVerdict(tenant, jobID, j, h.Skipped[0])
	}
}

// expand takes in what the leader's evaluator found.
func (a *apply) expand(c *storagev1.Expand) Result {
	if len(c.Items) > MaxBatch {
		return Result{Refusal: refuseField("items", "more than %d", MaxBatch)}
	}
	items := make([]Item, len(c.Items))
	for i, item := range c.Items {
		if a.work >= MaxBatch {
			items[i].Refusal = refuse(Aborted, "the entry has done enough: more than %d rows", MaxBatch)
			continue
		}
		items[i].Refusal = a.expandJob(item)
	}
	return Result{Items: items}
}

func (a *apply) expandJob(c *storagev1.ExpandJob) *Refusal {
	if r := validJobName(c.Tenant, c.JobId); r != nil {
		return r
	}
	if r := validHorizon(c.Horizon, max(c.FromMs, c.PassedToMs)); r != nil {
		return r
	}
	key := JobKey(c.Tenant, c.JobId)
	j := a.job(key)
	if j == nil || j.State == storagev1.JobState_JOB_STATE_DELETED || j.Incarnation != c.Incarnation || j.Schedule.GetCron() == nil {
		return refuse(NotFound, "no cron job %q of incarnation %d", c.JobId, c.Incarnation)
	}
	if j.Version != c.Version {
		return versionRefusal(j)
	}
	replaces := c.FromMs == j.WatermarkMs
	switch h := j.Horizon; {
	case j.State == storagev1.JobState_JOB_STATE_EXHAUSTED:
		return refuse(FailedPrecondition, "the job is exhausted")
	case replaces && len(h.GetNextMs()) > 0 && c.Horizon.ZoneVersion < h.ZoneVersion && c.PassedToMs < h.ToMs:
		return refuse(FailedPrecondition, "the job's horizon was computed with newer zone data: %s", h.ZoneVersion)
	case !replaces && (c.FromMs != h.GetToMs() || h.GetEnded()):
		return refuse(Aborted, "the job's watermark is %d and its horizon ends at %d", j.WatermarkMs, h.GetToMs())
	case !replaces && (len(h.NextMs)+len(c.Horizon.NextMs) > maxHorizon || len(h.Skipped)+len(c.Horizon.Skipped) > maxHorizon):
		return refuseField("horizon", "more than %d instants or ranges", maxHorizon)
	}
	if r := a.mayPass(c, j, replaces); r != nil {
		return r
	}
	a.open = openJob{c.Tenant, c.JobId, j}
	if replaces {
		a.replaceHorizon(c, j)
	} else {
		appendHorizon(j.Horizon, c.Horizon.CloneVT())
	}
	a.noteZone(j.Horizon)
	if awaits := j.NextMs == 0 && j.TimerMs != 0; awaits || replaces && j.NextMs != 0 {
		notBefore := pacedTo(j)
		a.disarm(c.Tenant, c.JobId, j)
		a.rearm(c.Tenant, c.JobId, j, notBefore)
	}
	a.open = openJob{}
	a.s.Set(key, mustEncode(j.MarshalVT()))
	return nil
}

// mayPass refuses to pass over instants that were not missed, or that the job's catch-up rule wants.
func (a *apply) mayPass(c *storagev1.ExpandJob, j *storagev1.Job, replaces bool) *Refusal {
	if c.PassedCount == 0 {
		return nil
	}
	missedTo := missedTo(j, a.stamp)
	rule := missedRule(j)
	next := c.Horizon.NextMs
	switch {
	case !replaces || j.State != storagev1.JobState_JOB_STATE_ACTIVE || j.Parked || a.m.stoppedAround(c.Tenant, j):
		return refuse(Aborted, "only instants right after the watermark of an active job can be passed over")
	case c.PassedFromMs <= c.FromMs || c.PassedToMs < c.PassedFromMs:
		return refuseField("passed", "out of order")
	case c.PassedToMs > missedTo:
		return refuseField("passed", "up to %d, which is after %d: not missed yet", c.PassedToMs, missedTo)
	case rule == storagev1.CatchUp_CATCH_UP_NONE, c.PassedToMs < windowStart(j, a.stamp):
		return nil
	case rule == storagev1.CatchUp_CATCH_UP_LATEST && len(next) > 0 && next[0] <= missedTo:
		return nil
	}
	return refuseField("passed", "the job's catch-up rule wants them")
}

// replaceHorizon puts what is known of the instants after j's watermark in place of what was. Newer zone data takes none away
// that has fallen due meanwhile; one that it names there and the older did not is due as well, unless the job has had it.
func (a *apply) replaceHorizon(c *storagev1.ExpandJob, j *storagev1.Job) {
	if c.PassedCount > 0 {
		why := whyCoalesced
		switch {
		case missedRule(j) == storagev1.CatchUp_CATCH_UP_NONE:
			why = missedWhy(j, c.PassedFromMs)
		case c.PassedToMs < windowStart(j, a.stamp):
			why = whySkippedWindow
		}
		a.putVerdict(c.Tenant, c.JobId, j, &storagev1.RangeVerdict{
			FromMs: c.PassedFromMs, ToMs: c.PassedToMs, Count: c.PassedCount, Why: why,
		})
		j.WatermarkMs = c.PassedToMs
		a.passHorizon(c.Tenant, c.JobId, j)
	}
	old := j.Horizon
	j.Horizon = c.Horizon.CloneVT()
	if j.TimerMs != 0 || j.NextMs != 0 { // What a pause holds up follows the newer data.
		keepDue(old, j.Horizon, a.stamp-offsetOf(j))
	}
	a.passMoved(c.Tenant, c.JobId, j, old)
	a.noteZoneChange(j, old)
}

// passMoved passes what has fallen due by newer zone data and is nearer to the instant that was decided last than to the one
// that was to come by the older: it is that last one, moved, and a daily job does not run twice that day.
func (a *apply) passMoved(tenant, jobID string, j *storagev1.Job, old *storagev1.Horizon) {
	if old == nil {
		return
	}
	toCome := instantAt(old, indexAfter(old, j.WatermarkMs))
	if toCome == 0 {
		return
	}
	next, n := j.Horizon.NextMs, 0
	for n < len(next) && next[n] <= a.stamp-offsetOf(j) && next[n]-j.WatermarkMs < toCome-next[n] {
		n++
	}
	if n > 0 {
		a.skipRange(tenant, jobID, j, next[0], next[n-1], whySkippedReplaced)
		a.passHorizon(tenant, jobID, j)
	}
}

// keepDue lets what an old horizon says up to dueMS stand in the one that replaces it, beside what that one says there. What
// either fires is not said to be skipped as well.
func keepDue(old, h *storagev1.Horizon, dueMS int64) {
	if old == nil {
		return
	}
	due := old.NextMs[:indexAfter(old, dueMS)]
	h.Skipped = slices.DeleteFunc(h.Skipped, func(v *storagev1.RangeVerdict) bool {
		return v.FromMs == v.ToMs && slices.Contains(due, v.FromMs)
	})
	for _, v := range old.Skipped {
		if v.ToMs <= dueMS && !names(h, v.FromMs, v.ToMs) {
			h.Skipped = append(h.Skipped, v)
			h.ToMs = max(h.ToMs, v.ToMs)
		}
	}
	slices.SortStableFunc(h.Skipped, func(a, b *storagev1.RangeVerdict) int { return cmp.Compare(a.FromMs, b.FromMs) })
	h.NextMs = append(h.NextMs, due...)
	slices.Sort(h.NextMs)
	h.NextMs = slices.Compact(h.NextMs)
	h.ToMs = max(h.ToMs, min(dueMS, old.ToMs))
	cutHorizon(h)
}

// names says whether a horizon tells of an instant in from..to.
func names(h *storagev1.Horizon, fromMS, toMS int64) bool {
	next := instantAt(h, indexAfter(h, fromMS-1))
	return next != 0 && next <= toMS || slices.ContainsFunc(h.Skipped, func(v *storagev1.RangeVerdict) bool {
		return v.FromMs <= toMS && fromMS <= v.ToMs
	})
}

// cutHorizon lets a horizon end where it is as long as one may be, and not within a skipped range: the rest is asked for.
func cutHorizon(h *storagev1.Horizon) {
	to := h.ToMs
	if len(h.NextMs) > maxHorizon {
		to = min(to, h.NextMs[maxHorizon]-1)
	}
	if len(h.Skipped) > maxHorizon {
		to = min(to, h.Skipped[maxHorizon].FromMs-1)
	}
	if to == h.ToMs {
		return
	}
	for _, v := range slices.Backward(h.Skipped) {
		if v.FromMs <= to && to < v.ToMs {
			to = v.FromMs - 1
		}
	}
	h.NextMs = h.NextMs[:indexAfter(h, to)]
	h.Skipped = slices.DeleteFunc(h.Skipped, func(v *storagev1.RangeVerdict) bool { return v.FromMs > to })
	h.ToMs, h.Ended = to, false
}

// appendHorizon lets more follow a horizon. Its zone data counts as the older of the two.
func appendHorizon(h, more *storagev1.Horizon) {
	if !says(h) {
		h.ZoneVersion = more.ZoneVersion
	}
	h.NextMs = append(h.NextMs, more.NextMs...)
	h.Skipped = append(h.Skipped, more.Skipped...)
	h.ToMs, h.Ended = more.ToMs, more.Ended
	h.ZoneVersion = min(h.ZoneVersion, more.ZoneVersion)
}
