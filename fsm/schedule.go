package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Interval schedules are arithmetic: the nominal instants are those anchor + k * interval, for any whole k, that lie in
// [start, end].

// gridFrom is the first nominal instant of e at or after from; ok is false when the schedule has none.
func gridFrom(e *storagev1.Every, from int64) (at int64, ok bool) {
	if e.StartMs != 0 {
		from = max(from, e.StartMs)
	}
	// Instants and intervals are bounded (validEvery), so that nothing here overflows.
	at = from + floorMod(e.AnchorMs-from, e.IntervalMs)
	if e.EndMs != 0 && at > e.EndMs || at > maxInstantMS {
		return 0, false
	}
	return at, true
}

// EveryAfter is the first nominal instant of an interval schedule with an anchor after an instant; ok is false when there is
// none. Max_runs has no part in it.
func EveryAfter(e *storagev1.Every, afterMS int64) (atMS int64, ok bool) {
	return gridFrom(e, afterMS+1)
}

// gridUpTo is the last nominal instant of e at or before to.
func gridUpTo(e *storagev1.Every, to int64) (at int64, ok bool) {
	if e.EndMs != 0 {
		to = min(to, e.EndMs)
	}
	at = to - floorMod(to-e.AnchorMs, e.IntervalMs)
	return at, at >= e.StartMs || e.StartMs == 0
}

// gridCount is how many nominal instants lie in [from, to], both of them nominal.
func gridCount(e *storagev1.Every, from, to int64) uint64 {
	if to < from {
		return 0
	}
	return uint64((to-from)/e.IntervalMs) + 1
}

func floorMod(a, m int64) int64 {
	if r := a % m; r < 0 {
		return r + m
	} else {
		return r
	}
}

// sameInstants says whether two schedules name the same instants, where they begin and end left out.
func sameInstants(a, b *storagev1.Schedule) bool {
	if a.GetEvery() != nil && b.GetEvery() != nil {
		return a.Every.IntervalMs == b.Every.IntervalMs && floorMod(a.Every.AnchorMs-b.Every.AnchorMs, a.Every.IntervalMs) == 0
	}
	names := func(c *storagev1.Cron) []byte {
		c = c.CloneVT()
		c.StartMs, c.EndMs, c.MaxRuns = 0, 0, 0
		return mustEncode(c.MarshalVT())
	}
	return a.GetCron() != nil && b.GetCron() != nil && bytes.Equal(names(a.Cron), names(b.Cron))
}

func isOneShot(j *storagev1.Job) bool { return !recurs(j.Schedule) }

func recurs(s *storagev1.Schedule) bool { return s.GetEvery() != nil || s.GetCron() != nil }

// catchUpOf is the job's rule with its default: latest for recurring jobs, all for one-shots.
func catchUpOf(j *storagev1.Job) storagev1.CatchUp {
	switch {
	case j.CatchUp != storagev1.CatchUp_CATCH_UP_UNSPECIFIED:
		return j.CatchUp
	case isOneShot(j):
		return storagev1.CatchUp_CATCH_UP_ALL
	default:
		return storagev1.CatchUp_CATCH_UP_LATEST
	}
}

// windowStart is the oldest nominal instant that catch-up still runs at now, or where it began; 0 window: no bound.
func windowStart(j *storagev1.Job, now int64) int64 {
	if j.WindowFromMs != 0 {
		return j.WindowFromMs
	}
	if j.CatchUpWindowMs <= 0 {
		return -maxInstantMS
	}
	return now - j.CatchUpWindowMs
}

// resolve turns a request's schedule into the stored one. previous is the schedule it replaces, nil at a create; an
// interval without an anchor keeps the previous one, or starts at start, or now.
func resolve(s *storagev1.Schedule, previous *storagev1.Schedule, nowMS int64) (*storagev1.Schedule, *Refusal) {
	kinds := 0
	for _, set := range [...]bool{s.GetAtMs() != 0, s.GetDelayMs() != 0, s.GetEvery() != nil, s.GetCron() != nil} {
		if set {
			kinds++
		}
	}
	switch {
	case s == nil:
		return nil, refuseField("schedule", "missing")
	case kinds > 1:
		return nil, refuseField("schedule", "more than one of at, delay, every, cron")
	case s.DelayMs < 0 || s.DelayMs > maxDurationMS:
		return nil, refuseField("schedule.delay", "out of range")
	case s.SpreadMs < 0 || s.SpreadMs > maxSpreadMS || s.OffsetMs < 0 || s.OffsetMs > s.SpreadMs:
		return nil, refuseField("schedule.spread", "out of range")
	}
	if !recurs(s) {
		at := s.AtMs
		if at == 0 {
			at = nowMS + s.DelayMs
		}
		if !isInstant(at) {
			return nil, refuseField("schedule.at", "out of range")
		}
		return &storagev1.Schedule{AtMs: at}, nil
	}
	out := &storagev1.Schedule{SpreadMs: s.SpreadMs, OffsetMs: s.OffsetMs, MaxFiresPerDay: s.MaxFiresPerDay}
	if s.Cron != nil {
		out.Cron = s.Cron
		return out, validCron(s.Cron)
	}
	out.Every = s.Every.CloneVT()
	if every := out.Every; every.AnchorMs == 0 {
		switch {
		case previous.GetEvery() != nil:
			every.AnchorMs = previous.Every.AnchorMs
		case every.StartMs != 0:
			every.AnchorMs = every.StartMs
		default:
			every.AnchorMs = nowMS
		}
	}
	return out, validEvery(out.Every)
}

func isInstant(ms int64) bool { return ms > 0 && ms <= maxInstantMS }

// validRecurring refuses settings of recurring jobs that are out of range.
func validRecurring(overlap storagev1.Overlap, perMinute, afterFailures uint32) *Refusal {
	switch {
	case overlap < storagev1.Overlap_OVERLAP_UNSPECIFIED || overlap > storagev1.Overlap_OVERLAP_CANCEL_RUNNING:
		return refuseField("overlap", "no such rule")
	case perMinute > maxCatchUpPerMinute:
		return refuseField("catch_up_per_minute", "more than %d", maxCatchUpPerMinute)
	case afterFailures > maxFailures:
		return refuseField("pause_after_failures", "more than %d", maxFailures)
	}
	return nil
}

func isDuration(ms int64) bool { return ms >= 0 && ms <= maxDurationMS }

func validEvery(e *storagev1.Every) *Refusal {
	switch {
	case e.IntervalMs <= 0 || e.IntervalMs > maxDurationMS:
		return refuseField("schedule.every.interval", "out of range")
	case !isInstant(e.AnchorMs):
		return refuseField("schedule.every.anchor", "out of range")
	case e.StartMs != 0 && !isInstant(e.StartMs):
		return refuseField("schedule.every.start", "out of range")
	case e.EndMs != 0 && !isInstant(e.EndMs):
		return refuseField("schedule.every.end", "out of range")
	}
	return nil
}

// retryDelay is the wait before the attempt after number n of a budget: min(first * factor^(n-1), max), spread by jitter.
func retryDelay(p *storagev1.RetryPolicy, id *Identity, n, attempt uint32) int64 {
	limit := p.GetMaxDelayMs()
	if limit <= 0 {
		limit = maxRetryMS
	}
	factor := int64(p.GetFactorThousandths())
	if factor == 0 {
		factor = 1000
	}
	delay := min(p.GetFirstDelayMs(), limit)
	for i := uint32(1); i < n && factor != 1000 && delay > 0 && delay < limit; i++ {
		delay = min(delay*factor/1000, limit)
	}
	spread := delay * int64(p.GetJitterThousandths()) / 1000
	if spread == 0 {
		return delay
	}
	return delay - spread + int64(jitterHash(id, attempt)%uint64(2*spread+1))
}
