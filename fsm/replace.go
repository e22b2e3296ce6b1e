package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// What becomes of the times of a schedule that have come and are undecided when an update replaces it: those that a pause holds
// up, that are caught up with at a pace, that wait for their spread, or that the evaluator has not named yet. If the new schedule
// names them as well, nothing happens to them. Else the old one is closed.

// closeOldSchedule gives what is due under a schedule that is about to be replaced its verdicts: what fell due by now
// still fires by the old catch-up rule, as the job's old version, at once and up to maxOccurrences of it; what a pause holds up
// is skipped, and the rest is replaced. Of what nobody has named yet it does not know the count.
func (u *update) closeOldSchedule() {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	if u.schedule == nil || isOneShot(j) {
		return
	}
	if u.goesOn = continues(j, u.schedule, u.stamp); u.goesOn {
		u.pacedMS = pacedTo(j)
		u.keepHorizon()
		return
	}
	paused := u.m.stopped(tenant, j)
	if !paused && j.NextMs != 0 && j.NextMs <= u.stamp {
		u.occur(tenant, jobID, j, nil, false)
	}
	if !paused && j.HeldRule != storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		// What a pause had held up is decided: the rest goes by the job's own rule.
		j.HeldRule = storagev1.CatchUp_CATCH_UP_UNSPECIFIED
		u.occur(tenant, jobID, j, nil, false)
	}
	if to := missedTo(j, u.stamp); !paused && j.NextMs != 0 && j.WatermarkMs < to {
		// More was missed than is made at once. What is due and was not missed comes after it.
		u.closeUpTo(tenant, jobID, j, to, whySkippedReplaced)
		u.occur(tenant, jobID, j, nil, false)
	}
	u.passHorizon(tenant, jobID, j)
	why := whySkippedReplaced
	if paused {
		why = whySkippedPaused
	}
	u.closeUpTo(tenant, jobID, j, u.stamp-offsetOf(j), why)
	u.passSkipped(tenant, jobID, j, u.stamp)
	u.closeUpTo(tenant, jobID, j, u.stamp, whySkippedReplaced)
	u.closeUnknown(tenant, jobID, j, u.stamp, why)
}

// continues says whether a schedule names the same times as j's does from the first that is undecided up to now, if there are
// any.
func continues(j *storagev1.Job, s *storagev1.Schedule, nowMS int64) bool {
	first, ok := nextOf(j, j.WatermarkMs)
	if !ok {
		first = max(j.WatermarkMs, j.Horizon.GetToMs()) + 1
	}
	start, end := boundsOf(s)
	_, oldEnd := boundsOf(j.Schedule)
	return !isExhausted(j) && (ok || unknown(j)) && first <= nowMS && start <= first && (end == 0 || end >= nowMS) &&
		(oldEnd == 0 || oldEnd >= nowMS) && sameInstants(j.Schedule, s)
}

func isExhausted(j *storagev1.Job) bool { return j.State == storagev1.JobState_JOB_STATE_EXHAUSTED }

// boundsOf is where a recurring schedule begins and ends; 0: nowhere.
func boundsOf(s *storagev1.Schedule) (startMS, endMS int64) {
	if s.Every != nil {
		return s.Every.StartMs, s.Every.EndMs
	}
	return s.Cron.StartMs, s.Cron.EndMs
}

// keepHorizon lets what is known up to now stand in the new horizon. If more has come that is not known, that is asked for.
func (u *update) keepHorizon() {
	switch old := u.j.Horizon; {
	case u.horizon == nil:
	case old.ToMs < u.stamp:
		u.horizon = old
		u.horizon.Ended = false
	default:
		keepDue(old, u.horizon, u.stamp)
	}
}

// moveRecurring lets a recurring job go on under its new schedule.
func (u *update) moveRecurring(paused bool) {
	j, tenant, jobID := u.j, u.c.Tenant, u.c.JobId
	j.Horizon, j.ZoneChange = u.horizon, nil
	u.noteZone(j.Horizon)
	if !u.goesOn {
		u.passToNow()
	} else if paused || j.Parked {
		return
	}
	u.disarm(tenant, jobID, j)
	// Without an instant: those that closeOldSchedule made have used up the runs. A paused one stays so, with what it holds: a
	// resume finds it exhausted.
	if !paused {
		j.State = storagev1.JobState_JOB_STATE_ACTIVE
		u.rearm(tenant, jobID, j, u.pacedMS)
	}
}

// passToNow lets the new schedule's times begin after now.
func (u *update) passToNow() {
	j := u.j
	j.WindowFromMs = 0
	if next, ok := firstOf(j, u.stamp); ok {
		// Not beyond now: the next change may want an earlier instant than this one's first.
		j.WatermarkMs = max(j.WatermarkMs, min(next-1, u.stamp))
	} else if unknown(j) {
		j.WatermarkMs = max(j.WatermarkMs, u.stamp)
	}
}
