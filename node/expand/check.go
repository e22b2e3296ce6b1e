package expand

import (
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// maxChecked is about how many jobs Check evaluates: of more it takes a share.
const maxChecked = 50_000

// Check reports cron jobs whose horizons are not what their schedules say, as far as both go by the same zone data. What fell
// due already is left out: it may go by older data. Of very many jobs it looks at a share, another one for another turn.
func (e *Evaluator) Check(r fsm.Reader, turn uint64, report func(fsm.Violation)) {
	meta := fsm.ReadMeta(r)
	share := meta.Jobs/maxChecked + 1
	seen := turn
	fsm.ScanCron(r, func(key []byte, ref fsm.JobRef, j *storagev1.Job) bool {
		if seen++; seen%share != 0 || j.GetHorizon().GetZoneVersion() != e.ZoneVersion {
			return true
		}
		if detail := e.checkJob(j, max(j.WatermarkMs, meta.ClockMs)); detail != "" {
			report(fsm.Violation{Rule: fsm.RuleSchedule, Key: key, Detail: detail})
		}
		return true
	})
}

// checkJob says what is wrong with what j knows of the instants after fromMS.
func (e *Evaluator) checkJob(j *storagev1.Job, fromMS int64) string {
	h := j.Horizon
	known, want := within(h.NextMs, fromMS, h.ToMs), []int64(nil)
	for at := fromMS; at < h.ToMs && len(want) <= len(known); {
		more, err := e.Horizon(j.Schedule.Cron, at, len(known)+1)
		if err != nil {
			return "its schedule cannot be evaluated: " + err.Error()
		}
		want = append(want, within(more.NextMs, at, h.ToMs)...)
		if at = more.ToMs; more.Ended {
			break
		}
	}
	if !slices.Equal(known, want) {
		return fmt.Sprintf("between %d and %d it is to fire at %v, its schedule says %v", fromMS, h.ToMs, known, want)
	}
	return ""
}

// within are the instants after fromMS up to toMS.
func within(list []int64, fromMS, toMS int64) []int64 {
	begin, _ := slices.BinarySearch(list, fromMS+1)
	end, _ := slices.BinarySearch(list, toMS+1)
	return list[begin:max(begin, end)]
}
