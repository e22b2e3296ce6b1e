package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// preview is a preview as lines: what happens, when, on which clock.
func (s *scene) preview(req *carillonv1.PreviewScheduleRequest) []string {
	s.t.Helper()
	res, err := s.previewSchedule(s.t.Context(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, e := range res.Times {
		line := strings.ToLower(strings.TrimPrefix(e.Verdict.String(), "PREVIEW_VERDICT_")) + " " + e.Time.AsTime().Format(time.RFC3339) + " " + e.Local
		if e.Rule > carillonv1.FireRule_FIRE_RULE_AS_NAMED {
			line += " " + strings.ToLower(strings.TrimPrefix(e.Rule.String(), "FIRE_RULE_"))
		}
		if e.Named != "" {
			line += " named " + e.Named
		}
		if e.Count > 1 {
			line += fmt.Sprintf(" %d to %s", e.Count, e.LastTime.AsTime().Format(time.RFC3339))
		}
		out = append(out, line)
	}
	if res.Ended {
		out = append(out, "ended")
	}
	return out
}

// The cases T1 to T4, T6 and T7 in the preview, with what each rule did.
func TestTCasesInThePreview(t *testing.T) {
	s := sceneAt(t, "2026-01-31T00:00:00Z")
	for _, c := range []struct {
		name, after string
		count       uint32
		cron        *carillonv1.Cron
		want        string
	}{
		{"T1 skip", "2026-03-07T12:00:00Z", 1, &carillonv1.Cron{Lines: []string{"30 2 * * *"}, Zone: newYork, Gap: carillonv1.Gap_GAP_SKIP}, `
			skipped_gap 2026-03-08T07:00:00Z 2026-03-08T03:00:00-04:00 named 2026-03-08T02:30:00
			fires 2026-03-09T06:30:00Z 2026-03-09T02:30:00-04:00`},
		{"T1 shift", "2026-03-07T12:00:00Z", 2, &carillonv1.Cron{Lines: []string{"30 2 * * *"}, Zone: newYork}, `
			fires 2026-03-08T07:00:00Z 2026-03-08T03:00:00-04:00 shifted named 2026-03-08T02:30:00
			fires 2026-03-09T06:30:00Z 2026-03-09T02:30:00-04:00`},
		{"T2 both", "2026-10-31T12:00:00Z", 3, &carillonv1.Cron{Lines: []string{"30 1 * * *"}, Zone: newYork, Repeat: carillonv1.Repeat_REPEAT_BOTH}, `
			fires 2026-11-01T05:30:00Z 2026-11-01T01:30:00-04:00
			fires 2026-11-01T06:30:00Z 2026-11-01T01:30:00-05:00 second_of_repeat
			fires 2026-11-02T06:30:00Z 2026-11-02T01:30:00-05:00`},
		{"T3", "2026-10-20T00:00:00Z", 2, &carillonv1.Cron{Lines: []string{"0 6 * * MON"}, Zone: newYork}, `
			fires 2026-10-26T10:00:00Z 2026-10-26T06:00:00-04:00
			fires 2026-11-02T11:00:00Z 2026-11-02T06:00:00-05:00`},
		{"T4 shift", "2026-09-05T12:00:00Z", 2, &carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "America/Santiago"}, `
			fires 2026-09-06T04:00:00Z 2026-09-06T01:00:00-03:00 shifted named 2026-09-06T00:00:00
			fires 2026-09-07T03:00:00Z 2026-09-07T00:00:00-03:00`},
		{"T4 skip", "2026-09-05T12:00:00Z", 1, &carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "America/Santiago", Gap: carillonv1.Gap_GAP_SKIP}, `
			skipped_gap 2026-09-06T04:00:00Z 2026-09-06T01:00:00-03:00 named 2026-09-06T00:00:00
			fires 2026-09-07T03:00:00Z 2026-09-07T00:00:00-03:00`},
		{"T6", "2024-02-29T09:00:00Z", 1, &carillonv1.Cron{Lines: []string{"0 9 29 2 *"}}, `
			fires 2028-02-29T09:00:00Z 2028-02-29T09:00:00Z`},
		{"T7", "", 6, &carillonv1.Cron{Lines: []string{"0 1 31 * *"}}, `
			fires 2026-01-31T01:00:00Z 2026-01-31T01:00:00Z
			fires 2026-03-31T01:00:00Z 2026-03-31T01:00:00Z
			fires 2026-05-31T01:00:00Z 2026-05-31T01:00:00Z
			fires 2026-07-31T01:00:00Z 2026-07-31T01:00:00Z
			fires 2026-08-31T01:00:00Z 2026-08-31T01:00:00Z
			fires 2026-10-31T01:00:00Z 2026-10-31T01:00:00Z`},
		{"excluded", "2026-12-24T12:00:00Z", 1, &carillonv1.Cron{Lines: []string{"0 8 * * *"}, Zone: "Europe/Berlin", Exclude: &carillonv1.Exclusions{Dates: []string{"2026-12-25..2026-12-26"}}}, `
			skipped_excluded 2026-12-25T07:00:00Z 2026-12-25T08:00:00+01:00 2 to 2026-12-26T07:00:00Z
			fires 2026-12-27T07:00:00Z 2026-12-27T08:00:00+01:00`},
		{"an end", "", 10, &carillonv1.Cron{Lines: []string{"0 0 * * *"}, End: timestamppb.New(time.Date(2026, 2, 2, 0, 0, 0, 0, time.UTC))}, `
			fires 2026-02-01T00:00:00Z 2026-02-01T00:00:00Z
			fires 2026-02-02T00:00:00Z 2026-02-02T00:00:00Z
			ended`},
		{"max runs", "", 2, &carillonv1.Cron{Lines: []string{"0 0 * * *"}, MaxRuns: 2}, `
			fires 2026-02-01T00:00:00Z 2026-02-01T00:00:00Z
			fires 2026-02-02T00:00:00Z 2026-02-02T00:00:00Z
			ended`},
	} {
		req := &carillonv1.PreviewScheduleRequest{Schedule: cronJob(c.cron), Count: c.count}
		if c.after != "" {
			req.After = timestamppb.New(must(time.Parse(time.RFC3339, c.after)))
		}
		want := strings.Split(strings.ReplaceAll(strings.TrimSpace(c.want), "\t", ""), "\n")
		if got := s.preview(req); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// T5, T8 and T9 in the preview: the same refusals, and the rate of what is no daily job.
func TestT5T8T9InThePreview(t *testing.T) {
	s := newScene(t, 1)
	for field, c := range map[string]*carillonv1.Cron{
		"schedule.cron.lines[0]": {Lines: []string{"0 0 31 2 *"}},
		"schedule.cron.lines[1]": {Lines: []string{"@daily", "TZ=UTC"}},
		"schedule.cron.zone":     {Lines: []string{"@daily"}, Zone: "Mars/Olympus"},
	} {
		_, err := s.previewSchedule(t.Context(), &carillonv1.PreviewScheduleRequest{Schedule: cronJob(c)})
		wantViolation(t, err, field)
	}
	_, err := s.previewSchedule(t.Context(), &carillonv1.PreviewScheduleRequest{})
	wantViolation(t, err, "schedule")
	sched := cronJob(&carillonv1.Cron{Lines: []string{"0-59 0 * * *"}})
	sched.Spread = durationpb.New(time.Hour)
	s.maxFires = 1 // what would be refused can be looked at
	res := must(s.previewSchedule(t.Context(), &carillonv1.PreviewScheduleRequest{Schedule: sched, JobId: "j"}))
	if res.FiresPerDay != 60 || res.FiresPerYear != 60*365 || len(res.Times) != 10 || res.ZoneVersion != cron.ZoneVersion() ||
		res.Schedule.GetCron().Lines[0] != "* 0 * * *" || res.Offset.AsDuration() != cron.Spread("j", time.Hour) {
		t.Errorf("answered: %v", res)
	}
}

func TestPreviewOfOtherSchedules(t *testing.T) {
	s := sceneAt(t, "2026-01-31T00:00:00Z")
	for _, c := range []struct {
		sched *carillonv1.Schedule
		want  []string
	}{
		{in(90 * time.Second), []string{"fires 2026-01-31T00:01:30Z 2026-01-31T00:01:30Z", "ended"}},
		{at(time.Unix(1_700_000_000, 0)), []string{"ended"}},
		{every(&carillonv1.Every{Interval: durationpb.New(time.Hour), MaxRuns: 2}),
			[]string{"fires 2026-01-31T01:00:00Z 2026-01-31T01:00:00Z", "fires 2026-01-31T02:00:00Z 2026-01-31T02:00:00Z", "ended"}},
		{every(&carillonv1.Every{Interval: durationpb.New(7 * 24 * time.Hour), Anchor: timestamppb.New(time.Unix(0, 0))}),
			[]string{"fires 2026-02-05T00:00:00Z 2026-02-05T00:00:00Z", "fires 2026-02-12T00:00:00Z 2026-02-12T00:00:00Z", "fires 2026-02-19T00:00:00Z 2026-02-19T00:00:00Z"}},
	} {
		if got := s.preview(&carillonv1.PreviewScheduleRequest{Schedule: c.sched, Count: 3}); !slices.Equal(got, c.want) {
			t.Errorf("%v: %q", c.sched, got)
		}
	}
}

// A preview is bounded: by the caller's patience, and by how much it skips.
func TestPreviewIsBounded(t *testing.T) {
	s := newScene(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.previewSchedule(ctx, &carillonv1.PreviewScheduleRequest{Schedule: hourly()}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the caller left: %v", err)
	}
	// One second of each day is left.
	sched := cronJob(&carillonv1.Cron{Lines: []string{"* * * * * *"}, Exclude: &carillonv1.Exclusions{
		Lines: []string{"0-58 * * * * *", "59 1-59 * * * *", "59 0 1-23 * * *"},
	}})
	res := must(s.previewSchedule(t.Context(), &carillonv1.PreviewScheduleRequest{Schedule: sched, Count: 1000}))
	if n := len(res.Times); n < 10 || n > 30 || res.Ended {
		t.Errorf("%d times, ended %v", n, res.Ended)
	}
	last := res.Times[len(res.Times)-1]
	next := must(s.previewSchedule(t.Context(), &carillonv1.PreviewScheduleRequest{Schedule: sched, Count: 1, After: last.Time}))
	if last.Verdict != carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES || next.Times[1].Time.AsTime().Sub(last.Time.AsTime()) != 24*time.Hour {
		t.Errorf("after %v comes %v", last, next.Times)
	}
}

// What a preview says before a job is created is what the create answers, and the times at which the job fires.
func TestPreviewEqualsFiring(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	zones := []string{"UTC", newYork, "America/Santiago", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Cairo", "Europe/London"}
	pick := func(texts ...string) string { return texts[rnd.IntN(len(texts))] }
	for range 30 {
		c := &carillonv1.Cron{
			Lines: []string{strings.Join([]string{pick("0", "*/20", "15,45"), pick("0", "2", "*/6", "1-3"), pick("*", "1-7", "L"), pick("*", "3,9-11"), pick("*", "SUN")}, " ")},
			Zone:  pick(zones...), Gap: carillonv1.Gap(rnd.IntN(3)), Repeat: carillonv1.Repeat(rnd.IntN(4)),
		}
		s := newScene(t, 1)
		s.b.now += rnd.Int64N(365 * dayMS)
		preview := must(s.previewSchedule(t.Context(), &carillonv1.PreviewScheduleRequest{Schedule: cronJob(c), Count: 12}))
		var want []*carillonv1.FireTime
		for _, e := range preview.Times {
			if e.Verdict == carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES {
				want = append(want, &carillonv1.FireTime{Time: e.Time, Local: e.Local})
			}
		}
		res := s.create(&carillonv1.JobSpec{Id: "j", Schedule: cronJob(c)})
		for i := range res.NextTimes {
			if !proto.Equal(res.NextTimes[i], want[i]) {
				t.Fatalf("%v: previewed %v, created %v", c, want, res.NextTimes)
			}
		}
		for _, at := range want {
			s.b.pass(at.Time.AsTime().UnixMilli() - s.b.now)
			leases := s.claimAll()
			if len(leases) != 1 || !proto.Equal(leases[0].NominalTime, at.Time) {
				t.Fatalf("%v: at %s fires %v", c, at.Local, leases)
			}
			must(s.finish(leases[0], &carillonv1.Succeeded{}))
		}
	}
}

// Whatever is accepted evaluates, and its canonical form is accepted as itself: that is what a job's row has.
func FuzzCron(f *testing.F) {
	for _, seed := range [][4]string{
		{"30 2 * * *", "", "", newYork}, {"0 */7,3 L-3,15W FEB-APR 1#2,5L", "0 * * * * *", "SAT,SUN", "Australia/Lord_Howe"},
		{"@daily", "* * 0-7 * * * 2026-2030", "MON#1", ""}, {"* * * * * * 2199", "0-58 * * * * *", "6", "Africa/Cairo"}, {"TZ=UTC", "", "1 2", "Local"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], uint8(0))
	}
	f.Fuzz(func(t *testing.T, line, excluded, weekdays, zone string, rules uint8) {
		c := &carillonv1.Cron{
			Lines: []string{line}, Zone: zone, Gap: carillonv1.Gap(rules % 3), Repeat: carillonv1.Repeat(rules / 3 % 4),
			Exclude: &carillonv1.Exclusions{Weekdays: weekdays},
		}
		if excluded != "" {
			c.Exclude.Lines = []string{excluded}
		}
		var v violations
		sched := v.schedule(cronJob(c), startMS)
		if len(v.list) > 0 {
			return
		}
		h, from := horizonOf(sched, startMS)
		last := from
		for _, at := range h.NextMs {
			if at <= last || at > h.ToMs {
				t.Fatalf("%v: %v after %d", sched, h, from)
			}
			last = at
		}
		again := v.schedule(scheduleOf(sched), startMS)
		if len(v.list) > 0 || !proto.Equal(again, sched) {
			t.Fatalf("%v is read as %v: %v", sched, again, v.list)
		}
		if other, _ := horizonOf(again, startMS); !proto.Equal(other, h) {
			t.Fatalf("%v: %v, and in its canonical form %v", sched, h, other)
		}
	})
}
