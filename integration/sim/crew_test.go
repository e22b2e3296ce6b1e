package sim

import (
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// A create that waits for a leader may be refused once its schedule has ended, and for no other reason.
func TestCreatesAreRefusedOnlyTooLate(t *testing.T) {
	c := newCluster(Config{Seed: 1})
	c.now = 30 * second
	ends := func(ms int64) *storagev1.Schedule {
		return &storagev1.Schedule{Cron: &storagev1.Cron{Lines: []string{"*/10 * * * * *"}, EndMs: ms}}
	}
	c.model.shards[1].jobs["made"] = 1
	for name, test := range map[string]struct {
		id, field string
		schedule  *storagev1.Schedule
		want      bool
	}{
		"ended":                     {"job", "schedule", ends(epochMS + 29_000), true},
		"ends before its next one":  {"job", "schedule", ends(epochMS + 39_000), true},
		"has an instant left":       {"job", "schedule", ends(epochMS + 41_000), false},
		"has no end":                {"job", "schedule", ends(0), false},
		"is refused for its queue":  {"job", "queue", ends(epochMS + 29_000), false},
		"was made by an earlier go": {"made", "schedule", ends(epochMS + 29_000), false},
	} {
		if got := c.crew.tooLate(job{1, test.id}, test.schedule, &fsm.Refusal{Field: test.field}); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
