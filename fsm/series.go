package fsm

import (
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// A recurring job's nominal instants are those of its interval, which is arithmetic, or those that its horizon lists: of
// them all after the watermark are known, up to where the horizon ends.

const (
	// maxHorizon is the most instants, and the most skipped ranges, of a horizon.
	maxHorizon = 64
	// lowHorizon: with so few instants left, the leader's evaluator is asked for more.
	lowHorizon = 4
	// maxCronBytes bounds a calendar schedule as it is stored.
	maxCronBytes = 32 << 10
	maxSpreadMS  = dayMS
)

// nextOf is a recurring job's first nominal instant after after. ok is false when there is none, when its runs are used up,
// or when it is not known yet: see unknown.
func nextOf(j *storagev1.Job, after int64) (at int64, ok bool) {
	if runsLeft(j) == 0 {
		return 0, false
	}
	if e := j.Schedule.Every; e != nil {
		return gridFrom(e, after+1)
	}
	next := j.Horizon.GetNextMs()
	if i, _ := slices.BinarySearch(next, after+1); i < len(next) {
		return next[i], true
	}
	return 0, false
}

// ended says whether a recurring job has nothing left to decide.
func ended(j *storagev1.Job) bool {
	_, ok := nextOf(j, j.WatermarkMs)
	return !ok && !unknown(j)
}

// runsLeft is how many more occurrences the schedule may make; what waits for an earlier one counts as made.
func runsLeft(j *storagev1.Job) uint64 {
	limit := j.Schedule.GetEvery().GetMaxRuns() + j.Schedule.GetCron().GetMaxRuns()
	if limit == 0 {
		return ^uint64(0)
	}
	return limit - min(limit, j.Runs+uint64(len(j.QueuedMs)))
}

// unknown says whether instants after the horizon have to be asked for.
func unknown(j *storagev1.Job) bool {
	return j.Schedule.GetCron() != nil && !j.Horizon.GetEnded() && runsLeft(j) > 0
}

// lastUpTo is the last nominal instant at or before to that is known and, of a cron job, not decided yet.
func lastUpTo(j *storagev1.Job, to int64) (at int64, ok bool) {
	if e := j.Schedule.Every; e != nil {
		return gridUpTo(e, to)
	}
	next := j.Horizon.GetNextMs()
	if i, _ := slices.BinarySearch(next, to+1); i > 0 {
		return next[i-1], true
	}
	return 0, false
}

// countOf is how many nominal instants lie in [from, to], both of them nominal.
func countOf(j *storagev1.Job, from, to int64) uint64 {
	if e := j.Schedule.Every; e != nil {
		return gridCount(e, from, to)
	}
	next := j.Horizon.GetNextMs()
	first, _ := slices.BinarySearch(next, from)
	last, _ := slices.BinarySearch(next, to+1)
	return uint64(max(0, last-first))
}

// firstOf is the first nominal instant of a new or changed schedule: after now, or at an interval's start if that is not
// past, and always above the watermark.
func firstOf(j *storagev1.Job, nowMS int64) (at int64, ok bool) {
	from := nowMS + 1
	if start := j.Schedule.GetEvery().GetStartMs(); start >= nowMS {
		from = start
	}
	return nextOf(j, max(from-1, j.WatermarkMs))
}

// offsetOf is how long after their nominal times a job's occurrences are due: its share of the spread.
func offsetOf(j *storagev1.Job) int64 { return j.Schedule.GetOffsetMs() }

// usableHorizon is what a request's horizon, which lists the instants after fromMS, says of those after afterMS. One that
// begins later, or is missing, says nothing: the evaluator has to be asked.
func usableHorizon(h *storagev1.Horizon, fromMS, afterMS int64) *storagev1.Horizon {
	if h == nil || fromMS > afterMS {
		return &storagev1.Horizon{ToMs: afterMS}
	}
	out := h.CloneVT()
	i, _ := slices.BinarySearch(out.NextMs, afterMS+1)
	out.NextMs = out.NextMs[i:]
	out.Skipped = slices.DeleteFunc(out.Skipped, func(v *storagev1.RangeVerdict) bool { return v.ToMs <= afterMS })
	for _, v := range out.Skipped { // one that has begun before goes on from there
		v.FromMs = max(v.FromMs, afterMS+1)
	}
	out.ToMs = max(out.ToMs, afterMS)
	return out
}

// validHorizon refuses what cannot be what follows fromMS.
func validHorizon(h *storagev1.Horizon, fromMS int64) *Refusal {
	if h == nil {
		return refuseField("horizon", "missing")
	}
	if len(h.NextMs) > maxHorizon || len(h.Skipped) > maxHorizon {
		return refuseField("horizon", "more than %d instants or ranges", maxHorizon)
	}
	if len(h.ZoneVersion) > maxNameBytes {
		return refuseField("horizon.zone_version", "malformed")
	}
	last := fromMS
	for _, at := range h.NextMs {
		if at <= last || !isInstant(at) {
			return refuseField("horizon.next", "out of order or range")
		}
		last = at
	}
	if h.ToMs < last || h.ToMs > maxInstantMS {
		return refuseField("horizon.to", "out of range")
	}
	last = fromMS
	for _, v := range h.Skipped {
		switch {
		case v.Why != whySkippedGap && v.Why != whySkippedExcluded:
			return refuseField("horizon.skipped", "unknown reason %q", clip(v.Why))
		case v.FromMs < last || v.ToMs < v.FromMs || v.ToMs > h.ToMs || v.Count == 0:
			return refuseField("horizon.skipped", "out of order or range")
		}
		last = v.FromMs
	}
	return nil
}

// validCron bounds a calendar schedule. What its lines mean is not the state machine's to know.
func validCron(c *storagev1.Cron) *Refusal {
	switch {
	case len(c.Lines) == 0:
		return refuseField("schedule.cron.lines", "missing")
	case c.SizeVT() > maxCronBytes:
		return refuseField("schedule.cron", "more than %d bytes", maxCronBytes)
	case c.StartMs != 0 && !isInstant(c.StartMs):
		return refuseField("schedule.cron.start", "out of range")
	case c.EndMs != 0 && !isInstant(c.EndMs):
		return refuseField("schedule.cron.end", "out of range")
	}
	return nil
}
