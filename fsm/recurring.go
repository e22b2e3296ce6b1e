package fsm

import (
	"cmp"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Why a range of nominal instants got no execution. They stand in rows: see RangeVerdict.
const (
	whySkippedMissed   = "skipped_missed"
	whySkippedPaused   = "skipped_paused"
	whySkippedWindow   = "skipped_window"
	whySkippedOverlap  = "skipped_overlap"
	whySkippedExcluded = "skipped_excluded"
	whySkippedGap      = "skipped_gap"
	whySkippedDeleted  = "skipped_deleted"
	whySkippedReplaced = "skipped_replaced"
	whyCoalesced       = "coalesced"
)

// Whys are the reasons in the order in which Meta.skipped_by counts them. New ones come last.
var Whys = [...]string{
	whySkippedMissed, whySkippedPaused, whySkippedWindow, whySkippedOverlap, whySkippedExcluded, whySkippedGap, whySkippedDeleted,
	whyCoalesced, whySkippedReplaced,
}

// countSkipped counts occurrences that got no execution.
func (a *apply) countSkipped(why string, n uint64) {
	a.meta.SkippedTotal += n
	for len(a.meta.SkippedBy) < len(Whys) {
		a.meta.SkippedBy = append(a.meta.SkippedBy, 0)
	}
	a.meta.SkippedBy[slices.Index(Whys[:], why)] += n
}

func (a *apply) fireRecurring(t *dueTimer, d *matcher) {
	a.work++
	a.s.Delete(t.key)
	key := JobKey(t.id.Tenant, t.id.JobID)
	j := a.job(key)
	if j == nil || j.NextMs == 0 || timerAt(j) != t.atMS || j.State != storagev1.JobState_JOB_STATE_ACTIVE {
		panic(corrupt(t.key))
	}
	if a.m.stoppedAround(t.id.Tenant, j) {
		a.park(t.id.Tenant, t.id.JobID, j)
		a.s.Set(key, mustEncode(j.MarshalVT()))
		return
	}
	if a.stamp-t.atMS > missedAfterMS {
		j.WindowFromMs = 0 // It did not catch up in time: another outage, another window.
	}
	a.open = openJob{t.id.Tenant, t.id.JobID, j}
	notBefore := a.occur(t.id.Tenant, t.id.JobID, j, d, true)
	a.rearm(t.id.Tenant, t.id.JobID, j, notBefore)
	a.open = openJob{}
	a.s.Set(key, mustEncode(j.MarshalVT()))
}

// missedTo: the instants of j up to it were missed at nowMS, and go by one rule. They fell due more than missedAfterMS ago, or
// in a pause; those of a pause with a rule of its own come first, and alone.
func missedTo(j *storagev1.Job, nowMS int64) int64 {
	if j.HeldRule != storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		return j.HeldToMs
	}
	return max(nowMS-offsetOf(j)-missedAfterMS-1, j.HeldToMs)
}

// occur gives each nominal instant of j that is due its verdict: those that were missed by the catch-up rule, the others
// by an execution, or by one range verdict if an earlier one is in their way. It makes at most maxOccurrences of both; the
// watermark says how far it came. paced: of those that were missed it makes one, and returns when the next may start.
func (a *apply) occur(tenant, jobID string, j *storagev1.Job, d *matcher, paced bool) (notBefore int64) {
	missedTo, dueTo := missedTo(j, a.stamp), a.stamp-offsetOf(j)
	if j.HeldRule != storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		dueTo = min(dueTo, missedTo) // The pause's rule ends there: the next firing goes by the job's own.
	}
	next, ok := nextOf(j, j.WatermarkMs)
	if last, any := lastUpTo(j, missedTo); ok && any && next <= last {
		a.catchUp(tenant, jobID, j, next, last)
	}
	for made := 0; ; made++ {
		next, ok = nextOf(j, j.WatermarkMs)
		if !ok || next > dueTo || j.State != storagev1.JobState_JOB_STATE_ACTIVE || undecided(j, next, missedTo) {
			break
		}
		late, wait := next <= missedTo, int64(0)
		if made == maxOccurrences || made > 0 && a.work >= MaxBatch {
			if late {
				j.WindowFromMs = windowFrom(j, a.stamp)
			}
			return 0
		}
		last := next
		if late && paced {
			wait = pace(j, next)
		}
		if wait == 0 {
			last, _ = lastUpTo(j, dueTo)
		}
		if to := overlapsTo(j, next, last); to >= next {
			a.skipRange(tenant, jobID, j, next, to, whySkippedOverlap)
		} else {
			a.accept(tenant, jobID, j, next, late, d)
		}
		if wait > 0 {
			j.WindowFromMs = windowFrom(j, a.stamp)
			return a.stamp + wait
		}
	}
	j.WindowFromMs = 0
	return 0
}

// windowFrom keeps the window of a job that catches up from moving away from what it still has to do.
func windowFrom(j *storagev1.Job, nowMS int64) int64 {
	if j.CatchUpWindowMs == 0 {
		return 0
	}
	return windowStart(j, nowMS)
}

// undecided says whether the fate of a missed instant hangs on what the horizon does not say: it is the latest that is
// known, and a later one may have been missed as well.
func undecided(j *storagev1.Job, at, missedTo int64) bool {
	if !unknown(j) || at > missedTo || j.Horizon.GetToMs() >= missedTo || missedRule(j) != storagev1.CatchUp_CATCH_UP_LATEST {
		return false
	}
	last, _ := lastUpTo(j, missedTo)
	return at == last
}

// pace is how long after a missed instant the next one may start: as the job says, but at most half of what lies between
// them, so that catching up comes to an end. 0: at once.
func pace(j *storagev1.Job, at int64) int64 {
	if j.CatchUpPerMinute == 0 {
		return 0
	}
	wait := minuteMS / int64(j.CatchUpPerMinute)
	if next, ok := nextOf(j, at); ok {
		wait = min(wait, (next-at)/2)
	}
	return wait
}

// catchUp writes the range verdict that j's rule asks for among the missed instants from..to, both nominal, and passes them.
func (a *apply) catchUp(tenant, jobID string, j *storagev1.Job, from, to int64) {
	if skipTo, why := skipped(j, from, to, a.stamp); skipTo >= from {
		a.skipRange(tenant, jobID, j, from, skipTo, why)
	}
}

// skipped is up to where the missed instants from..to get no execution, and why. What is older than the window gets none
// under any rule.
func skipped(j *storagev1.Job, from, to, nowMS int64) (skipTo int64, why string) {
	start := windowStart(j, nowMS)
	switch rule := missedRule(j); {
	case rule == storagev1.CatchUp_CATCH_UP_NONE:
		return to, missedWhy(j, from)
	case to < start:
		return to, whySkippedWindow
	case rule == storagev1.CatchUp_CATCH_UP_ALL:
		skipTo, _ = lastUpTo(j, start-1)
		return skipTo, whySkippedWindow
	default:
		skipTo, _ = lastUpTo(j, to-1)
		return skipTo, whyCoalesced
	}
}

// missedRule is the rule for the instants of j that were missed and come next.
func missedRule(j *storagev1.Job) storagev1.CatchUp {
	return cmp.Or(j.HeldRule, catchUpOf(j))
}

// heldRuleEnds says whether no instant of a pause with a rule of its own is undecided any more.
func heldRuleEnds(j *storagev1.Job) bool {
	if next, ok := nextOf(j, j.WatermarkMs); ok {
		return next > j.HeldToMs
	}
	return !unknown(j) || j.Horizon.GetToMs() >= j.HeldToMs
}

func missedWhy(j *storagev1.Job, from int64) string {
	if from <= j.HeldToMs {
		return whySkippedPaused
	}
	return whySkippedMissed
}

// skipRange records one verdict for the nominal instants from..to, and passes them.
func (a *apply) skipRange(tenant, jobID string, j *storagev1.Job, from, to int64, why string) {
	a.putVerdict(tenant, jobID, j, &storagev1.RangeVerdict{FromMs: from, ToMs: to, Count: countOf(j, from, to), Why: why})
	j.WatermarkMs = to
}

// closeUpTo skips the instants of j that are known and undecided, up to toMS.
func (a *apply) closeUpTo(tenant, jobID string, j *storagev1.Job, toMS int64, why string) {
	next, ok := nextOf(j, j.WatermarkMs)
	if last, any := lastUpTo(j, toMS); ok && any && next <= last {
		a.skipRange(tenant, jobID, j, next, last, why)
	}
}

// closeUnknown skips what a cron job's schedule names up to toMS beyond what is known. Nobody has counted it.
func (a *apply) closeUnknown(tenant, jobID string, j *storagev1.Job, toMS int64, why string) {
	if from := max(j.WatermarkMs, j.Horizon.GetToMs()) + 1; unknown(j) && from < toMS {
		a.putVerdict(tenant, jobID, j, &storagev1.RangeVerdict{FromMs: from, ToMs: toMS, Why: why})
	}
}

// closeDeleted gives what has come of a job that is about to go, and was not decided, its verdicts.
func (a *apply) closeDeleted(tenant, jobID string, j *storagev1.Job) {
	a.dropQueued(tenant, jobID, j, whySkippedDeleted)
	if isOneShot(j) || runsLeft(j) == 0 {
		return
	}
	if j.State != storagev1.JobState_JOB_STATE_EXHAUSTED {
		a.closeUpTo(tenant, jobID, j, a.stamp, whySkippedDeleted)
		a.closeUnknown(tenant, jobID, j, a.stamp, whySkippedDeleted)
	}
	a.passSkipped(tenant, jobID, j, a.stamp)
}

// putVerdict records why instants of j got no execution.
func (a *apply) putVerdict(tenant, jobID string, j *storagev1.Job, v *storagev1.RangeVerdict) {
	a.work++
	v.RecordedMs = a.meta.ClockMs
	id := Identity{Tenant: tenant, JobID: jobID, Incarnation: j.Incarnation, NominalMS: v.FromMs}
	if v.Why == whySkippedGap || v.Why == whySkippedExcluded {
		// Not among the schedule's own instants: another line may fire, or be skipped, at the very same.
		id.Discriminator = v.Why
	}
	bucket := expiryBucket(a.meta.ClockMs, a.m.retention(tenant, j.Template))
	a.s.Set(endedKey(bucket, &id, charRange), mustEncode(v.MarshalVT()))
	ev := a.emitJob(storagev1.EventType_EVENT_TYPE_SKIPPED, tenant, jobID, j.Incarnation, j.Version)
	ev.NominalMs, ev.ToMs, ev.Count = v.FromMs, v.ToMs, v.Count
	a.countSkipped(v.Why, v.Count)
}

// accept lets a nominal instant above the watermark start, or wait for an earlier one.
func (a *apply) accept(tenant, jobID string, j *storagev1.Job, nominal int64, late bool, d *matcher) {
	if nominal <= j.WatermarkMs {
		panic(corrupt(JobKey(tenant, jobID)))
	}
	j.WatermarkMs = nominal
	if blocks(j) && len(j.LiveMs) > 0 {
		a.wait(tenant, jobID, j, nominal, late)
		return
	}
	a.start(tenant, jobID, j, nominal, late, d)
}

// start accepts a nominal instant: it makes its one execution.
func (a *apply) start(tenant, jobID string, j *storagev1.Job, nominal int64, late bool, d *matcher) {
	j.Runs++
	a.work++
	a.meta.FiredTotal++
	e := &storagev1.Execution{
		Tenant: tenant, JobId: jobID, Incarnation: j.Incarnation, JobVersion: j.Version, OffsetMs: offsetOf(j), Late: late,
		Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: nominal, Template: j.Template,
		Blocks: blocks(j), Tracked: blocks(j) || j.PauseAfterFailures > 0,
	}
	if late {
		a.meta.LateTotal++
	}
	if e.Blocks {
		j.LiveMs = append(j.LiveMs, nominal)
	}
	a.admit(e, d)
}

// timerAt is where a recurring job's timer stands; 0: it has none.
func timerAt(j *storagev1.Job) int64 { return cmp.Or(j.TimerMs, j.NextMs) }

// pacedTo is where the timer of a job stands that catches up at its pace; 0: it does not.
func pacedTo(j *storagev1.Job) int64 {
	if j.NextMs == 0 || j.TimerMs <= j.NextMs+offsetOf(j) {
		return 0
	}
	return j.TimerMs
}

// arm lets j's next occurrence stand in the index: at its nominal instant, or later by its spread, or by notBefore.
func (a *apply) arm(tenant, jobID string, j *storagev1.Job, next, notBefore int64) {
	at := max(next+offsetOf(j), notBefore)
	j.NextMs, j.TimerMs = next, 0
	if at != next {
		j.TimerMs = at
	}
	queue := j.Template.GetQueue()
	a.putTimer(at, timerJobKey(at, TimerRecurring, tenant, jobID), []byte(queue), TimerRecurring, queue)
}

// disarm takes j's timer out of the index, whatever it waits for, or the parked row in its place.
func (a *apply) disarm(tenant, jobID string, j *storagev1.Job) {
	switch {
	case j.Parked:
		a.dropParked(tenant, jobID, j)
	case j.NextMs != 0:
		a.dropTimer(timerJobKey(timerAt(j), TimerRecurring, tenant, jobID))
	case j.TimerMs != 0:
		a.dropTimer(timerJobKey(j.TimerMs, TimerExpand, tenant, jobID))
	}
	j.NextMs, j.TimerMs = 0, 0
}

// dropTimer removes a timer that has not fired.
func (a *apply) dropTimer(key []byte) {
	a.s.Delete(key)
	if !a.advancing {
		return
	}
	if a.dropped == nil {
		a.dropped = map[string]bool{}
	}
	a.dropped[string(key)] = true
}

// rearm lets j's next nominal instant stand in the index, not before an instant, or its wait for a horizon, or exhausts the
// job when there is nothing left. Its old timer is gone.
func (a *apply) rearm(tenant, jobID string, j *storagev1.Job, notBefore int64) {
	j.NextMs, j.TimerMs = 0, 0
	a.passHorizon(tenant, jobID, j)
	if j.HeldRule != storagev1.CatchUp_CATCH_UP_UNSPECIFIED && heldRuleEnds(j) {
		j.HeldRule = storagev1.CatchUp_CATCH_UP_UNSPECIFIED
	}
	if j.State == storagev1.JobState_JOB_STATE_PAUSED {
		return
	}
	next, ok := nextOf(j, j.WatermarkMs)
	switch {
	case ok && !undecided(j, next, missedTo(j, a.stamp)):
		a.arm(tenant, jobID, j, next, notBefore)
		if unknown(j) && len(j.Horizon.GetNextMs()) <= lowHorizon {
			a.wantHorizon(tenant, jobID)
		}
	case ok || unknown(j):
		a.awaitHorizon(tenant, jobID, j)
	default:
		j.State = storagev1.JobState_JOB_STATE_EXHAUSTED
		if runsLeft(j) > 0 { // What it names and does not fire later than now stays in its row.
			a.passSkipped(tenant, jobID, j, a.stamp)
		}
		a.emitJob(storagev1.EventType_EVENT_TYPE_JOB_EXHAUSTED, tenant, jobID, j.Incarnation, j.Version)
	}
}
