package sim

import (
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// A job is exhausted when its runs are used up, under the schedule of the version that says so: that may be a new one, of
// which the record tells only behind that.
func TestExhaustionIsMeasuredByItsVersionsSchedule(t *testing.T) {
	every := func(maxRuns uint64) *storagev1.Schedule {
		return &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 1000, AnchorMs: 1000, MaxRuns: maxRuns}}
	}
	for name, test := range map[string]struct {
		runs, version uint64
		fails         bool
	}{
		"all runs of the old schedule":                     {5, 1, false},
		"runs of the old schedule are left":                {2, 1, true},
		"all runs of the new schedule, which is new now":   {2, 2, false},
		"runs of the new schedule are left, as of the old": {1, 2, true},
	} {
		c := newCluster(Config{Seed: 1})
		s := &series{incarnation: 7, schedule: every(5), afterMS: 4000, runs: test.runs}
		in := entry{
			c: c, shard: 1, s: &shardModel{series: map[string]*series{"job": s}}, stampMS: 4500,
			given: map[jobVersion]*storagev1.Schedule{{"job", 7, 2}: every(2)},
		}
		in.changed(&storagev1.Event{
			Type: storagev1.EventType_EVENT_TYPE_JOB_EXHAUSTED, JobId: "job", Incarnation: 7, JobVersion: test.version,
		})
		if (c.err != nil) != test.fails {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}
