// Package schedule evaluates cron schedules as the state machine's records keep them: it compiles a stored schedule, and
// tells what it fires and passes over in the form in which commands carry that to the state machine.
//
// It stands between package cron, which knows no records, and the two that need both: rpc, which checks, previews and
// fills in creates, and the leader's expander in node. A folder of its own because the two must give one answer, and
// neither may import the other; fsm cannot hold it, because fsm never evaluates cron, and cron must stay free of records.
//
// It is no timer, and it does not know which instants a job has had: who calls it says from where on. Everything here may be
// called from any goroutine; there are none of its own, and no clock. The only state is a bounded cache of compiled
// schedules.
package schedule

import (
	"cmp"
	"math"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// MaxHorizon is how many instants a horizon has at most, and how many ranges that it skips.
	MaxHorizon = 64
	// enoughSkipped is after how many skipped instants a horizon ends, so that it is found in milliseconds.
	enoughSkipped = 10_000
)

// Why a range of nominal instants does not fire.
const (
	whyExcluded = "skipped_excluded"
	whyGap      = "skipped_gap"
)

// Compile returns the schedule of a record, from the cache if it was compiled before. Max_runs has no part in it. Its errors
// are cron's: *cron.FieldError.
func Compile(c *storagev1.Cron) (*cron.Schedule, error) {
	key := keyOf(c)
	if s := compiled.get(key); s != nil {
		return s, nil
	}
	s, err := cron.Compile(specOf(c))
	if err != nil {
		return nil, err
	}
	compiled.put(key, s)
	return s, nil
}

func specOf(c *storagev1.Cron) cron.Spec {
	return cron.Spec{
		Lines: c.Lines,
		Zone:  cmp.Or(c.Zone, "UTC"),
		Rules: cron.Rules{Gap: cron.Gap(min(c.Gap, math.MaxUint8)), Repeat: cron.Repeat(min(c.Repeat, math.MaxUint8))},
		Exclude: cron.Exclusions{
			Dates: c.ExcludeDates, Weekdays: c.ExcludeWeekdays, Lines: c.ExcludeLines,
		},
		Start: optionalTime(c.StartMs), End: optionalTime(c.EndMs),
	}
}

func optionalTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Horizon is what c does after fromMS: its next n instants, at most MaxHorizon, and what it names but does not fire up to
// the last of them, or up to its end if it has no more. There may be fewer than n without an end, if much is skipped among
// them; who needs more asks again from to_ms.
//
// The skipped ranges stand in the order of their beginnings. What gaps take has no instants of its own and stands at the
// first one after the gap, where another line may fire. What several gaps in a row take is one range, and one of excluded
// instants may lie around it. A range is whole, but the count of its excluded instants stops at 10,000.
func Horizon(c *storagev1.Cron, fromMS int64, n int) (*storagev1.Horizon, error) {
	s, err := Compile(c)
	if err != nil {
		return nil, err
	}
	n = min(n, MaxHorizon)
	h := &storagev1.Horizon{ToMs: fromMS, ZoneVersion: cron.ZoneVersion(), NextMs: make([]int64, 0, n)}
	// silent is what is skipped since the last instant, and counted how many were since fromMS.
	var silent []*silence
	counted := 0
	for e := range s.Walk(time.UnixMilli(fromMS)) {
		if e.Verdict != cron.Fires {
			silent = fold(silent, &e)
			counted += e.Count
			continue
		}
		at := e.At.UnixMilli()
		if !add(h, silent, at-1000) {
			return h, nil
		}
		h.NextMs, h.ToMs, silent = append(h.NextMs, at), at, nil
		if len(h.NextMs) == n || counted >= enoughSkipped {
			return h, nil
		}
	}
	if end := max(fromMS, s.End().UnixMilli()); add(h, silent, end) {
		h.ToMs, h.Ended = end, true
	}
	return h, nil
}

// silence is a range that is skipped. open says that it was not counted to its end.
type silence struct {
	verdict storagev1.RangeVerdict
	open    bool
}

// fold adds what is skipped to what was before it without an instant between them: at most one range of gaps and one of
// exclusions.
func fold(silent []*silence, e *cron.Event) []*silence {
	why := whyExcluded
	if e.Verdict == cron.InGap {
		why = whyGap
	}
	for _, s := range silent {
		if v := &s.verdict; v.Why == why {
			v.ToMs, v.Count = e.LastAt.UnixMilli(), v.Count+uint64(e.Count)
			return silent
		}
	}
	return append(silent, &silence{open: e.Open, verdict: storagev1.RangeVerdict{
		FromMs: e.At.UnixMilli(), ToMs: e.LastAt.UnixMilli(), Count: uint64(e.Count), Why: why,
	}})
}

// add closes what is skipped up to untilMS and adds it to the horizon, unless it does not fit: then the horizon ends where
// it is.
func add(h *storagev1.Horizon, silent []*silence, untilMS int64) bool {
	if len(h.Skipped)+len(silent) > MaxHorizon {
		return false
	}
	for _, s := range silent {
		if s.open {
			s.verdict.ToMs = untilMS
		}
		h.Skipped = append(h.Skipped, &s.verdict)
	}
	return true
}

// Pass counts the instants of c in (fromMS, untilMS] that fire, at most limit, and names the first and the last that it
// counted. more says that limit ended the count. It is for spans that are passed over as a whole.
func Pass(c *storagev1.Cron, fromMS, untilMS int64, limit int) (firstMS, lastMS int64, count uint64, more bool, err error) {
	s, err := Compile(c)
	if err != nil {
		return 0, 0, 0, false, err
	}
	for o := range s.All(time.UnixMilli(fromMS)) {
		at := o.At.UnixMilli()
		if at > untilMS {
			break
		}
		if count == uint64(limit) {
			return firstMS, lastMS, count, true, nil
		}
		if lastMS = at; count == 0 {
			firstMS = at
		}
		count++
	}
	return firstMS, lastMS, count, false, nil
}
