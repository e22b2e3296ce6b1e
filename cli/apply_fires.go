package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// shownFires is how many of a job's next fires a dry run shows, and how many of those that it loses.
const shownFires = 10

// knownFires is how many fires of the old schedule are looked at to find those that the new one does not have.
const knownFires = 1000

// fireChange is how a job's next fires change.
type fireChange struct {
	// zones are those of the old and the new schedule; one of them if they are the same.
	zones []string
	fires []fire
	// more is how many more are removed than are shown; atLeast, that nobody counted them all.
	more    int
	atLeast bool
}

// fire is one time at which a job fires, before or after the change or both.
type fire struct {
	Time time.Time `json:"time"`
	// Local is the time on the clock of the schedule's zone.
	Local string `json:"local"`
	// Change is added, removed or kept.
	Change string `json:"change"`
}

// firesOf compares what the server says the job fires now with what it would; nil if its schedule stays.
func firesOf(ctx context.Context, c *call, s *step) (*fireChange, error) {
	var old, new *carillonv1.Schedule
	switch s.action {
	case actionCreate:
		new = s.planned.GetSchedule()
	case actionUpdate:
		old, new = s.current.GetSchedule(), s.planned.GetSchedule()
	case actionDelete:
		old = s.current.GetSchedule()
	}
	if old == nil && new == nil || proto.Equal(old, new) {
		return nil, nil
	}
	after, err := preview(ctx, c, s.id(), new, shownFires)
	if err != nil {
		return nil, err
	}
	wanted := uint32(knownFires)
	if new == nil {
		wanted = shownFires
	}
	before, err := preview(ctx, c, s.id(), old, wanted)
	if err != nil {
		return nil, err
	}
	change := compareFires(before, after)
	change.zones = slices.Compact(slices.DeleteFunc([]string{zoneOf(old), zoneOf(new)}, func(z string) bool { return z == "" }))
	return change, nil
}

// zoneOf is the zone of a schedule's clock; empty without a schedule.
func zoneOf(s *carillonv1.Schedule) string {
	if s == nil {
		return ""
	}
	if zone := s.GetCron().GetZone(); zone != "" {
		return zone
	}
	return "UTC"
}

// fires are the next times of a schedule; all says that there are no more.
type fires struct {
	times []fire
	all   bool
}

func preview(ctx context.Context, c *call, id string, s *carillonv1.Schedule, count uint32) (f fires, err error) {
	if s == nil {
		return fires{all: true}, nil
	}
	res, err := c.client.PreviewSchedule(ctx, &carillonv1.PreviewScheduleRequest{Schedule: s, JobId: id, Count: count})
	if err != nil {
		return f, fmt.Errorf("preview job %s: %w", id, err)
	}
	for _, t := range res.GetTimes() {
		if t.GetVerdict() == carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES {
			f.times = append(f.times, fire{Time: t.GetTime().AsTime(), Local: t.GetLocal()})
		}
	}
	f.all = res.GetEnded()
	return f, nil
}

// compareFires merges two lists of fires: the new ones, and of the old ones those that are gone until the last of them.
func compareFires(before, after fires) *fireChange {
	change := &fireChange{}
	until := func(f fire) bool { // whether after says all about that time
		n := len(after.times)
		return after.all || n > 0 && !f.Time.After(after.times[n-1].Time)
	}
	change.atLeast = !before.all && (len(before.times) == 0 || until(before.times[len(before.times)-1]))
	removed := 0
	old := before.times
	remove := func(f fire) {
		if removed++; removed > shownFires {
			change.more++
			return
		}
		f.Change = "removed"
		change.fires = append(change.fires, f)
	}
	for _, f := range after.times {
		for len(old) > 0 && old[0].Time.Before(f.Time) {
			remove(old[0])
			old = old[1:]
		}
		f.Change = "added"
		if len(old) > 0 && old[0].Time.Equal(f.Time) {
			f.Change, old = "kept", old[1:]
		}
		change.fires = append(change.fires, f)
	}
	for _, f := range old {
		if until(f) {
			remove(f)
		}
	}
	return change
}
