package rpc

import (
	"cmp"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/schedule"
)

// isRecurring says whether a request's schedule is one of those that recur.
func isRecurring(s *carillonv1.Schedule) bool {
	switch s.GetWhen().(type) {
	case *carillonv1.Schedule_Every, *carillonv1.Schedule_Cron:
		return true
	}
	return false
}

// schedule translates a schedule; the job's share of its spread is not set yet. A delay stays a delay: it counts from the
// stamp of the entry that accepts the job.
func (v *violations) schedule(s *carillonv1.Schedule, nowMS int64) *storagev1.Schedule {
	var out *storagev1.Schedule
	switch when := s.GetWhen().(type) {
	case *carillonv1.Schedule_At:
		ms := v.instant("job.schedule.at", when.At, nowMS)
		if when.At == nil {
			v.add("job.schedule.at", "is required")
		}
		out = &storagev1.Schedule{AtMs: ms}
	case *carillonv1.Schedule_Delay:
		if when.Delay == nil {
			v.add("job.schedule.delay", "is required")
			return nil
		}
		// No delay is the shortest one: 0 would mean that there is none set.
		out = &storagev1.Schedule{DelayMs: max(1, v.duration("job.schedule.delay", when.Delay, 0, 0, horizon))}
	case *carillonv1.Schedule_Every:
		out = &storagev1.Schedule{Every: v.every(when.Every, nowMS)}
	case *carillonv1.Schedule_Cron:
		out = &storagev1.Schedule{Cron: v.cron(when.Cron, nowMS)}
	default:
		v.add(pathSchedule, "is required: one of at, delay, every, cron")
		return nil
	}
	if !isRecurring(s) {
		v.onlyRecurring(pathSpread, s.Spread != nil)
		v.onlyRecurring(pathMaxFires, s.MaxFiresPerDay != 0)
		return out
	}
	out.SpreadMs = v.duration(pathSpread, s.Spread, 0, 0, maxSpread)
	out.MaxFiresPerDay = s.MaxFiresPerDay
	return out
}

// onlyRecurring refuses a field that is set and means nothing for a one-shot.
func (v *violations) onlyRecurring(field string, set bool) {
	if set {
		v.add(field, "is for recurring jobs only: those with every or cron")
	}
}

// every translates an interval schedule.
func (v *violations) every(e *carillonv1.Every, nowMS int64) *storagev1.Every {
	const path = "job.schedule.every."
	if e.GetInterval() == nil {
		v.add(path+"interval", "is required")
		return nil
	}
	out := &storagev1.Every{
		IntervalMs: v.duration(path+"interval", e.Interval, 0, minInterval, maxInterval),
		StartMs:    v.instant(path+"start", e.Start, nowMS),
		EndMs:      v.instant(path+"end", e.End, nowMS),
		MaxRuns:    e.MaxRuns,
	}
	if e.Interval.Nanos%int32(time.Millisecond) != 0 {
		v.add(path+"interval", "is %s; it must be whole milliseconds", showDuration(e.Interval))
	}
	switch a := e.Anchor; {
	case a == nil:
		// Unset here, too: anchored where it is accepted.
		out.AnchorMs = out.StartMs
	case a.Seconds == 0 && a.Nanos == 0:
		// 1970 itself is a natural anchor, but 0 says that there is none. One interval on is the same grid.
		out.AnchorMs = out.IntervalMs
	default:
		out.AnchorMs = v.instant(path+"anchor", a, nowMS)
	}
	if out.EndMs != 0 && out.EndMs < out.StartMs {
		v.add(path+"end", "is before start")
	}
	return out
}

// pathCron is where the fields of a calendar schedule are.
const pathCron = "job.schedule.cron."

// cron translates a calendar schedule: lines in canonical form, defaults filled in. It is one that fires.
func (v *violations) cron(c *carillonv1.Cron, nowMS int64) *storagev1.Cron {
	faults := len(v.list)
	if len(c.GetLines()) == 0 {
		v.add(pathCron+"lines", "is required: 1 to %d patterns", cron.MaxLines)
		return nil
	}
	out := &storagev1.Cron{
		Lines: c.Lines, Zone: cmp.Or(c.Zone, "UTC"), Gap: v.gap(c.Gap), Repeat: v.repeat(c.Repeat), ExcludeDates: c.Exclude.GetDates(),
		ExcludeWeekdays: c.Exclude.GetWeekdays(), ExcludeLines: c.Exclude.GetLines(), StartMs: v.instant(pathCron+"start", c.Start, nowMS),
		EndMs: v.instant(pathCron+"end", c.End, nowMS), MaxRuns: c.MaxRuns,
	}
	if out.EndMs != 0 && out.EndMs < out.StartMs {
		v.add(pathCron+"end", "is before start")
	}
	if len(v.list) > faults {
		return out
	}
	compiled, err := schedule.Compile(out)
	if err != nil {
		var at *cron.FieldError
		if !errors.As(err, &at) {
			at = &cron.FieldError{Field: "lines", Err: err}
		}
		v.add(pathCron+at.Field, "is refused: %v", at.Err)
		return out
	}
	out.Lines, out.ExcludeLines = compiled.Lines(), compiled.ExcludedLines()
	if size := out.SizeVT(); size > maxCronBytes {
		v.add("job.schedule.cron", "has %d bytes; at most %d are allowed", size, maxCronBytes)
	}
	return out
}

// gap translates a rule for times that do not exist, as the records number them.
func (v *violations) gap(g carillonv1.Gap) uint32 {
	if g < carillonv1.Gap_GAP_UNSPECIFIED || g > carillonv1.Gap_GAP_SKIP {
		v.add(pathCron+"gap", "is %d, which is none of the rules", g)
	}
	return uint32(max(g, carillonv1.Gap_GAP_SHIFT) - carillonv1.Gap_GAP_SHIFT)
}

// repeat translates a rule for times that come twice, as the records number them.
func (v *violations) repeat(r carillonv1.Repeat) uint32 {
	if r < carillonv1.Repeat_REPEAT_UNSPECIFIED || r > carillonv1.Repeat_REPEAT_BOTH {
		v.add(pathCron+"repeat", "is %d, which is none of the rules", r)
	}
	return uint32(max(r, carillonv1.Repeat_REPEAT_FIRST) - carillonv1.Repeat_REPEAT_FIRST)
}

// catchUp translates the rule; unspecified depends on the kind of schedule.
func (v *violations) catchUp(c carillonv1.CatchUp, s *carillonv1.Schedule) storagev1.CatchUp {
	switch c {
	case carillonv1.CatchUp_CATCH_UP_UNSPECIFIED:
		if isRecurring(s) {
			return storagev1.CatchUp_CATCH_UP_LATEST
		}
		return storagev1.CatchUp_CATCH_UP_ALL
	case carillonv1.CatchUp_CATCH_UP_NONE, carillonv1.CatchUp_CATCH_UP_LATEST, carillonv1.CatchUp_CATCH_UP_ALL:
		return storagev1.CatchUp(c)
	}
	v.add(pathCatchUp, "is %d, which is none of the rules", c)
	return storagev1.CatchUp_CATCH_UP_UNSPECIFIED
}

// recurring translates what only recurring jobs have. The pace stands in every such job, so that a later change of the rule
// finds one.
func (v *violations) recurring(c *storagev1.CreateJob, spec *carillonv1.JobSpec) {
	if !isRecurring(spec.Schedule) {
		v.onlyRecurring(pathOverlap, spec.Overlap != 0)
		v.onlyRecurring(pathPerMinute, spec.CatchUpPerMinute != 0)
		v.onlyRecurring(pathFailures, spec.PauseAfterFailures != 0)
		return
	}
	if spec.CatchUpPerMinute != 0 && c.CatchUp != storagev1.CatchUp_CATCH_UP_ALL {
		v.add(pathPerMinute, "goes with CATCH_UP_ALL only")
	}
	c.Overlap = v.overlap(spec.Overlap)
	c.CatchUpPerMinute = v.perMinute(spec.CatchUpPerMinute)
	c.PauseAfterFailures = v.failures(spec.PauseAfterFailures)
}

// overlap translates the rule for occurrences that overlap.
func (v *violations) overlap(o carillonv1.Overlap) storagev1.Overlap {
	if o < carillonv1.Overlap_OVERLAP_UNSPECIFIED || o > carillonv1.Overlap_OVERLAP_CANCEL_RUNNING {
		v.add(pathOverlap, "is %d, which is none of the rules", o)
	}
	return storagev1.Overlap(cmp.Or(o, carillonv1.Overlap_OVERLAP_ALLOW))
}

// perMinute translates the pace of catching up.
func (v *violations) perMinute(n uint32) uint32 {
	if n > maxCatchUpPerMinute {
		v.add(pathPerMinute, "is %d; it must be 1 to %d, or 0 for %d", n, maxCatchUpPerMinute, defaultCatchUpPerMinute)
	}
	return cmp.Or(n, defaultCatchUpPerMinute)
}

// failures translates the bound of failures in a row.
func (v *violations) failures(n uint32) uint32 {
	if n > maxFailuresInARow {
		v.add(pathFailures, "is %d; it must be 0 to %d", n, maxFailuresInARow)
	}
	return n
}

// setOffset sets the job's share of its schedule's spread.
func setOffset(s *storagev1.Schedule, jobID string) {
	s.OffsetMs = cron.Spread(jobID, time.Duration(s.SpreadMs)*time.Millisecond).Milliseconds()
}
