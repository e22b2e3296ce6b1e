package expand

import (
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func (w *world) checkSchedules(e Evaluator) (found []fsm.Violation) {
	e.Check(w.read(), 7, func(v fsm.Violation) { found = append(found, v) })
	return found
}

// Horizons that are the schedule's are well, however far the job is in them; one that is not is found.
func TestCheck(t *testing.T) {
	w := newWorld(t, start)
	gap := &storagev1.Cron{Lines: []string{"*/10 2 * * *"}, Zone: "Europe/Berlin", Gap: 1, ExcludeWeekdays: "MON"}
	ending := &storagev1.Cron{Lines: []string{"0 * * * *"}, EndMs: instant(t, "2026-03-29T03:30:00Z")}
	w.create("minutely", minutely, nil)
	w.create("gap", gap, nil)
	w.create("ending", ending, nil)
	for _, at := range []string{start, "2026-03-28T12:07:00Z", "2026-03-29T01:00:30Z", "2026-03-29T12:00:00Z"} {
		if w.runTo(at); len(w.checkSchedules(real)) > 0 {
			t.Fatalf("at %s: %v", at, w.checkSchedules(real))
		}
	}
	found := w.checkSchedules(Evaluator{ZoneVersion: real.ZoneVersion, Horizon: withZones(real.ZoneVersion, 5).Horizon})
	if len(found) != 1 || found[0].Rule != fsm.RuleSchedule || !strings.Contains(string(found[0].Key), "gap") {
		t.Errorf("another schedule: %v", found)
	}
	if found := w.checkSchedules(withZones("2036a", 5)); len(found) > 0 {
		t.Errorf("other zone data: %v", found)
	}
}
