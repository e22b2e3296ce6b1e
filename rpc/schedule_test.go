package rpc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const newYork = "America/New_York"

// sceneAt is a scene whose clock shows an instant.
func sceneAt(t *testing.T, now string) *scene {
	t.Helper()
	s := newScene(t, 2)
	s.b.now = must(time.Parse(time.RFC3339, now)).UnixMilli()
	return s
}

func instants(times []*carillonv1.FireTime) (out []string) {
	for _, at := range times {
		out = append(out, at.Time.AsTime().Format(time.RFC3339))
	}
	return out
}

func locals(times []*carillonv1.FireTime) (out []string) {
	for _, at := range times {
		out = append(out, at.Local)
	}
	return out
}

// refusedAt creates a job that must be refused for a field, and returns the reason.
func (s *scene) refusedAt(field string, spec *carillonv1.JobSpec) string {
	s.t.Helper()
	_, err := s.createJob(s.t.Context(), &carillonv1.CreateJobRequest{Job: spec})
	wantViolation(s.t, err, field)
	return fmt.Sprint(err)
}

// The cases T1 to T7: what a create answers, and the same from the job itself.
func TestTCasesInAnswers(t *testing.T) {
	const skip, both, last = carillonv1.Gap_GAP_SKIP, carillonv1.Repeat_REPEAT_BOTH, carillonv1.Repeat_REPEAT_LAST
	for _, c := range []struct {
		name, now string
		cron      *carillonv1.Cron
		want      []string
	}{
		{"T1 skip", "2026-03-08T00:00:00Z", &carillonv1.Cron{Lines: []string{"30 2 * * *"}, Zone: newYork, Gap: skip},
			[]string{"2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"}},
		{"T1 shift", "2026-03-08T00:00:00Z", &carillonv1.Cron{Lines: []string{"30 2 * * *"}, Zone: newYork},
			[]string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
		{"T2 first", "2026-11-01T00:00:00Z", &carillonv1.Cron{Lines: []string{"30 1 * * *"}, Zone: newYork},
			[]string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		{"T2 last", "2026-11-01T00:00:00Z", &carillonv1.Cron{Lines: []string{"30 1 * * *"}, Zone: newYork, Repeat: last},
			[]string{"2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"}},
		{"T2 both", "2026-11-01T00:00:00Z", &carillonv1.Cron{Lines: []string{"30 1 * * *"}, Zone: newYork, Repeat: both},
			[]string{"2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"}},
		{"T3", "2026-10-20T00:00:00Z", &carillonv1.Cron{Lines: []string{"0 6 * * MON"}, Zone: newYork},
			[]string{"2026-10-26T10:00:00Z", "2026-11-02T11:00:00Z"}},
		{"T4", "2026-09-05T12:00:00Z", &carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "America/Santiago"},
			[]string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		{"T6", "2024-02-29T09:00:00Z", &carillonv1.Cron{Lines: []string{"0 9 29 2 *"}},
			[]string{"2028-02-29T09:00:00Z", "2032-02-29T09:00:00Z"}},
		{"T6 far", "2026-01-01T00:00:00Z", &carillonv1.Cron{Lines: []string{"0 0 * 2 MON#5"}},
			[]string{"2044-02-29T00:00:00Z", "2072-02-29T00:00:00Z", "2112-02-29T00:00:00Z"}},
		{"T7", "2026-01-31T00:00:01Z", &carillonv1.Cron{Lines: []string{"0 0 31 * *"}},
			[]string{"2026-03-31T00:00:00Z", "2026-05-31T00:00:00Z", "2026-07-31T00:00:00Z", "2026-08-31T00:00:00Z", "2026-10-31T00:00:00Z"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sceneAt(t, c.now)
			req := &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: "j", Schedule: cronJob(c.cron)}}
			res := must(s.createJob(t.Context(), req))
			got := instants(res.NextTimes)
			if len(got) < len(c.want) || !slices.Equal(got[:len(c.want)], c.want) {
				t.Errorf("the create answers %v, want %v", got, c.want)
			}
			if res.NextTime.AsTime().Format(time.RFC3339) != c.want[0] {
				t.Errorf("next_time is %v", res.NextTime.AsTime())
			}
			if j := s.job("j"); !slices.Equal(instants(j.NextTimes), got) || !proto.Equal(j.NextTime, res.NextTime) || j.FiresPerDay != res.FiresPerDay {
				t.Errorf("the job shows %v", j)
			}
			s.b.pass(1000)
			if again := must(s.createJob(t.Context(), req)); !proto.Equal(again, res) {
				t.Errorf("the retry answers %v, not %v", again, res)
			}
		})
	}
}

// T1 to T3 as they fire: what was answered at the create is what the executions have.
func TestTCasesFire(t *testing.T) {
	for _, c := range []struct {
		name, now string
		cron      *carillonv1.Cron
	}{
		{"T1", "2026-03-07T00:00:00Z", &carillonv1.Cron{Lines: []string{"30 2 * * *"}, Zone: newYork, Gap: carillonv1.Gap_GAP_SKIP}},
		{"T2", "2026-10-31T12:00:00Z", &carillonv1.Cron{Lines: []string{"30 1 * * *"}, Zone: newYork, Repeat: carillonv1.Repeat_REPEAT_BOTH}},
		{"T3", "2026-10-20T00:00:00Z", &carillonv1.Cron{Lines: []string{"0 6 * * MON"}, Zone: newYork}},
		{"T4", "2026-09-05T12:00:00Z", &carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "America/Santiago"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sceneAt(t, c.now)
			res := s.create(&carillonv1.JobSpec{Id: "j", Schedule: cronJob(c.cron)})
			var fired []string
			for _, at := range res.NextTimes {
				s.b.pass(at.Time.AsTime().UnixMilli() - 1 - s.b.now)
				if early := s.claimAll(); len(early) > 0 {
					t.Errorf("early: %v", early)
				}
				s.b.pass(1)
				for _, lease := range s.claimAll() {
					fired = append(fired, lease.NominalTime.AsTime().Format(time.RFC3339))
					must(s.finish(lease, &carillonv1.Succeeded{}))
				}
			}
			if want := instants(res.NextTimes); !slices.Equal(fired, want) {
				t.Errorf("fired %v, promised %v", fired, want)
			}
		})
	}
}

// T5 and T9: refused as invalid arguments, with the reason and the whole path of the field.
func TestT5T9Refused(t *testing.T) {
	s := newScene(t, 1)
	for _, c := range []struct {
		cron        *carillonv1.Cron
		field, says string
	}{
		{&carillonv1.Cron{Lines: []string{"0 0 31 2 *"}}, "lines[0]", "it never fires: no month that it names has such a day"},
		{&carillonv1.Cron{Lines: []string{"@daily", "0 25 * * *"}}, "lines[1]", `column 3, hour: "25" is not allowed; allowed are 0 to 23`},
		{&carillonv1.Cron{Lines: []string{"TZ=UTC"}}, "lines[0]", "the schedule has a field for it"},
		{&carillonv1.Cron{Lines: []string{"TZ=UTC @every 5m"}}, "lines[0]", "the schedule has a field for it"},
		{&carillonv1.Cron{Lines: []string{"CRON_TZ=Asia/Tokyo 0 0 * * *"}}, "lines[0]", "the schedule has a field for it"},
		{&carillonv1.Cron{Lines: []string{"@every 5m"}}, "lines[0]", "use every, not cron"},
		{&carillonv1.Cron{Lines: []string{""}}, "lines[0]", "it has 0 fields"},
		{&carillonv1.Cron{}, "lines", "is required"},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "Mars/Olympus"}, "zone", `zone "Mars/Olympus" is unknown`},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "europe/berlin"}, "zone", "it is written Europe/Berlin"},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "Local"}, "zone", "unknown"},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Gap: 3}, "gap", "is 3"},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Repeat: -1}, "repeat", "is -1"},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Exclude: &carillonv1.Exclusions{Weekdays: "XYZ"}}, "exclude.weekdays", "XYZ"},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Exclude: &carillonv1.Exclusions{Weekdays: "0-6"}}, "lines", "all its times are excluded"},
		{&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Start: timestamppb.New(time.Unix(2e9, 0)), End: timestamppb.New(time.Unix(1.9e9, 0))}, "end", "is before start"},
		{&carillonv1.Cron{Lines: []string{"0 0 1 1 *"}, Start: timestamppb.New(time.Unix(2e9, 0)), End: timestamppb.New(time.Unix(2e9+86400, 0))}, "lines", "between its start and its end"},
	} {
		if text := s.refusedAt("job.schedule.cron."+c.field, &carillonv1.JobSpec{Schedule: cronJob(c.cron)}); !strings.Contains(text, c.says) {
			t.Errorf("%v: %s; want %q", c.cron, text, c.says)
		}
	}
	s.refusedAt("job.schedule", &carillonv1.JobSpec{Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{
		Lines: []string{"0 0 1 1 * "}, End: timestamppb.New(time.UnixMilli(s.b.now - 1000)),
	}}}})
	// An old alias works, and what was refused has left no trace.
	s.create(&carillonv1.JobSpec{Id: "kiev", Schedule: cronJob(&carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "Europe/Kiev"})})
	if j := s.job("kiev"); j.Schedule.GetCron().Zone != "Europe/Kiev" || j.NextTimes[0].Local != "2026-01-02T00:00:00+02:00" {
		t.Errorf("an alias: %v", j)
	}
	if jobs := must(s.listJobs(t.Context(), &carillonv1.ListJobsRequest{})).Jobs; len(jobs) != 1 {
		t.Errorf("%d jobs", len(jobs))
	}
}

// T8: meant as daily; the answer shows what it is, and a bound refuses it with the number and the next times.
func TestT8FiresPerDay(t *testing.T) {
	s := newScene(t, 1)
	for _, line := range []string{"* 0 * * *", "* 0 0 * * *"} {
		res := s.create(&carillonv1.JobSpec{Schedule: cronJob(&carillonv1.Cron{Lines: []string{line}})})
		if res.FiresPerDay != 60 || len(res.NextTimes) != 5 {
			t.Errorf("%s: %v", line, res)
		}
	}
	bounded := func() *carillonv1.Schedule {
		sched := cronJob(&carillonv1.Cron{Lines: []string{"* 0 * * *"}, Zone: "Europe/Berlin"})
		sched.MaxFiresPerDay = 1
		return sched
	}
	const want = "job.schedule.max_fires_per_day is 1, but it fires 60 times on its busiest day, next at " +
		"2026-01-02T00:00:00+01:00, 2026-01-02T00:01:00+01:00, 2026-01-02T00:02:00+01:00"
	if text := s.refusedAt("job.schedule.max_fires_per_day", &carillonv1.JobSpec{Schedule: bounded()}); !strings.HasSuffix(text, want) {
		t.Errorf("refused: %s", text)
	}
	batch := must(s.batchCreateJobs(t.Context(), &carillonv1.BatchCreateJobsRequest{Items: []*carillonv1.CreateJobRequest{
		{Job: &carillonv1.JobSpec{Schedule: bounded()}}, {Job: &carillonv1.JobSpec{Schedule: hourly()}},
	}}))
	if e := batch.Results[0].GetError(); e.GetField() != "job.schedule.max_fires_per_day" || batch.Results[1].GetReceipt() == nil {
		t.Errorf("in a batch: %v", batch)
	}
	if r := batch.Results[1].GetReceipt(); r.NextTime == nil || r.NextTimes != nil || r.FiresPerDay != 0 {
		t.Errorf("a batch's receipt: %v", r)
	}

	// The server's own bound; what was accepted before keeps its answer.
	req := &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: "j", Schedule: cronJob(&carillonv1.Cron{Lines: []string{"*/30 * * * *"}})}}
	first := must(s.createJob(t.Context(), req))
	s.maxFires = 24
	if again := must(s.createJob(t.Context(), req)); !proto.Equal(again, first) {
		t.Errorf("the retry answers %v", again)
	}
	for _, sched := range []*carillonv1.Schedule{
		req.Job.Schedule, every(&carillonv1.Every{Interval: durationpb.New(59 * time.Minute)}),
	} {
		if text := s.refusedAt("job.schedule", &carillonv1.JobSpec{Schedule: sched}); !strings.HasSuffix(text, "this server allows 24 a day") {
			t.Errorf("refused: %s", text)
		}
	}
	_, err := s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "j", Job: &carillonv1.JobPatch{
		Schedule: cronJob(&carillonv1.Cron{Lines: []string{"*/20 * * * *"}}),
	}})
	wantViolation(t, err, "job.schedule")
	s.create(&carillonv1.JobSpec{Schedule: hourly()})
}

// What a job says of its schedule is read back with lines in canonical form and defaults filled in; so that a create of what
// was read is the same create.
func TestCronIsReadBack(t *testing.T) {
	s := newScene(t, 1)
	start, end := timestamppb.New(time.Unix(1_800_000_000, 0)), timestamppb.New(time.Unix(1_900_000_000, 0))
	spec := &carillonv1.JobSpec{
		Id: "j", Schedule: &carillonv1.Schedule{
			When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{
				Lines: []string{"@daily", "0,15,30,45 9-17 ? * mon-fri"}, Zone: newYork, Gap: carillonv1.Gap_GAP_SKIP,
				Repeat: carillonv1.Repeat_REPEAT_LAST, Start: start, End: end, MaxRuns: 7,
				Exclude: &carillonv1.Exclusions{Dates: []string{"2026-12-24..2027-01-06"}, Weekdays: "SAT,SUN", Lines: []string{"0-59 0-7 * * *"}},
			}},
			Spread: durationpb.New(10 * time.Minute), MaxFiresPerDay: 100,
		},
		CatchUp: carillonv1.CatchUp_CATCH_UP_ALL, Overlap: carillonv1.Overlap_OVERLAP_QUEUE_ONE, CatchUpPerMinute: 5, PauseAfterFailures: 3,
	}
	res := s.create(spec)
	want := proto.CloneOf(spec)
	c := want.Schedule.GetCron()
	c.Lines, c.Exclude.Lines = []string{"0 0 * * *", "*/15 9-17 * * 1-5"}, []string{"* 0-7 * * *"}
	j := s.job("j")
	if !proto.Equal(j.Schedule, want.Schedule) || j.CatchUp != want.CatchUp || j.Overlap != want.Overlap ||
		j.CatchUpPerMinute != 5 || j.PauseAfterFailures != 3 {
		t.Errorf("read back: %v", j)
	}
	if again := s.create(want); !proto.Equal(again, res) {
		t.Errorf("what was read creates %v, not %v", again, res)
	}
	// Half of what differs is named; the key is not in the body.
	want.Overlap, want.Schedule.Spread = carillonv1.Overlap_OVERLAP_SKIP, nil
	_, err := s.createJob(t.Context(), &carillonv1.CreateJobRequest{Job: want})
	if got := conflictFields(t, err); !slices.Equal(got, []string{"schedule", "overlap"}) {
		t.Errorf("the conflict names %v", got)
	}

	s.create(&carillonv1.JobSpec{Id: "plain", Schedule: cronJob(&carillonv1.Cron{Lines: []string{"0 0 * * *"}})})
	plain := s.job("plain")
	wantCron := &carillonv1.Cron{Lines: []string{"0 0 * * *"}, Zone: "UTC", Gap: carillonv1.Gap_GAP_SHIFT, Repeat: carillonv1.Repeat_REPEAT_FIRST}
	if !proto.Equal(plain.Schedule, cronJob(wantCron)) || plain.CatchUp != carillonv1.CatchUp_CATCH_UP_LATEST ||
		plain.Overlap != carillonv1.Overlap_OVERLAP_ALLOW || plain.CatchUpPerMinute != 0 {
		t.Errorf("defaults: %v", plain)
	}
	listed := must(s.listJobs(t.Context(), &carillonv1.ListJobsRequest{IdPrefix: "plain"})).Jobs[0]
	if listed.NextTime == nil || listed.NextTimes != nil || listed.FiresPerDay != 0 {
		t.Errorf("listed: %v", listed)
	}
}

// What means nothing for a one-shot is refused, by field, in creates and updates.
func TestOnlyRecurringJobsRecur(t *testing.T) {
	s := newScene(t, 1)
	for field, set := range map[string]func(*carillonv1.JobSpec){
		"job.schedule.spread":            func(j *carillonv1.JobSpec) { j.Schedule.Spread = durationpb.New(0) },
		"job.schedule.max_fires_per_day": func(j *carillonv1.JobSpec) { j.Schedule.MaxFiresPerDay = 1 },
		"job.overlap":                    func(j *carillonv1.JobSpec) { j.Overlap = carillonv1.Overlap_OVERLAP_ALLOW },
		"job.catch_up_per_minute":        func(j *carillonv1.JobSpec) { j.CatchUpPerMinute = 1 },
		"job.pause_after_failures":       func(j *carillonv1.JobSpec) { j.PauseAfterFailures = 1 },
	} {
		for _, sched := range []*carillonv1.Schedule{in(time.Hour), at(time.Unix(1.9e9, 0))} {
			spec := &carillonv1.JobSpec{Schedule: sched}
			set(spec)
			if text := s.refusedAt(field, spec); !strings.Contains(text, "recurring jobs only") {
				t.Errorf("refused: %s", text)
			}
		}
	}
	s.refusedAt("job.catch_up_per_minute", &carillonv1.JobSpec{Schedule: hourly(), CatchUpPerMinute: 5})
	s.refusedAt("job.overlap", &carillonv1.JobSpec{Schedule: hourly(), Overlap: 9})
	s.create(&carillonv1.JobSpec{Id: "once", Schedule: in(time.Hour)})
	for field, patch := range map[string]*carillonv1.JobPatch{
		"overlap":              {Overlap: new(carillonv1.Overlap_OVERLAP_SKIP)},
		"catch_up_per_minute":  {CatchUpPerMinute: new(uint32(5))},
		"pause_after_failures": {PauseAfterFailures: new(uint32(5))},
	} {
		_, err := s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "once", Job: patch})
		wantViolation(t, answered(err), "job."+field)
	}
	_, err := s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "once", Job: &carillonv1.JobPatch{
		CatchUp: new(carillonv1.CatchUp_CATCH_UP_NONE), CatchUpPerMinute: new(uint32(5)),
	}})
	wantViolation(t, err, "job.catch_up_per_minute")
}

// Updates of what recurring jobs have; a rule that catches up has a pace, whenever it comes.
func TestUpdatesOfRecurringJobs(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: hourly()})
	update := func(patch *carillonv1.JobPatch) *carillonv1.Job {
		t.Helper()
		res, err := s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "j", Job: patch, IdempotencyKey: fmt.Sprint(patch)})
		if err != nil {
			t.Fatal(err)
		}
		again := must(s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "j", Job: patch, IdempotencyKey: fmt.Sprint(patch)}))
		if again.Job.Version != res.Job.Version {
			t.Errorf("the retry changed the job again: %v", again.Job)
		}
		return res.Job
	}
	if j := update(&carillonv1.JobPatch{CatchUp: new(carillonv1.CatchUp_CATCH_UP_ALL)}); j.CatchUpPerMinute != 60 {
		t.Errorf("the pace is %d", j.CatchUpPerMinute)
	}
	j := update(&carillonv1.JobPatch{
		Overlap: new(carillonv1.Overlap_OVERLAP_QUEUE_ALL), CatchUpPerMinute: new(uint32(7)), PauseAfterFailures: new(uint32(2)),
	})
	if j.Overlap != carillonv1.Overlap_OVERLAP_QUEUE_ALL || j.CatchUpPerMinute != 7 || j.PauseAfterFailures != 2 {
		t.Errorf("updated: %v", j)
	}
	// From an interval to a calendar: the answer has the new times.
	sched := cronJob(&carillonv1.Cron{Lines: []string{"0 0 13 * FRI"}, Zone: "Asia/Kolkata"})
	sched.Spread = durationpb.New(time.Hour)
	j = update(&carillonv1.JobPatch{Schedule: sched})
	want := []string{"2026-01-02T00:00:00+05:30", "2026-01-09T00:00:00+05:30", "2026-01-13T00:00:00+05:30", "2026-01-16T00:00:00+05:30", "2026-01-23T00:00:00+05:30"}
	if !slices.Equal(locals(j.NextTimes), want) || j.FiresPerDay != 1 || !slices.Equal(locals(s.job("j").NextTimes), want) {
		t.Errorf("after the update: %v", j)
	}
	paused := must(s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{Id: "j"})).Job
	if paused.NextTime != nil || paused.NextTimes != nil || paused.FiresPerDay != 0 {
		t.Errorf("paused: %v", paused)
	}
	if j := must(s.resumeJob(t.Context(), &carillonv1.ResumeJobRequest{Id: "j"})).Job; !slices.Equal(locals(j.NextTimes), want) {
		t.Errorf("resumed: %v", j)
	}
}

// Intervals show their times as well; a bounded number of runs bounds them.
func TestTimesOfIntervals(t *testing.T) {
	s := newScene(t, 1)
	anchor := timestamppb.New(time.UnixMilli(startMS + 1500))
	res := s.create(&carillonv1.JobSpec{Id: "j", Schedule: every(&carillonv1.Every{Interval: durationpb.New(7 * time.Hour), Anchor: anchor, MaxRuns: 3})})
	want := []string{"2026-01-01T00:00:01.5Z", "2026-01-01T07:00:01.5Z", "2026-01-01T14:00:01.5Z"}
	if !slices.Equal(locals(res.NextTimes), want) || res.FiresPerDay != 4 {
		t.Errorf("created: %v", res)
	}
	s.b.pass(2000)
	if j := s.job("j"); !slices.Equal(locals(j.NextTimes), want[1:]) {
		t.Errorf("after one run: %v", j.NextTimes)
	}
	if res := s.create(&carillonv1.JobSpec{Schedule: every(&carillonv1.Every{Interval: durationpb.New(168 * time.Hour)})}); res.FiresPerDay != 1 ||
		res.NextTimes[1].Time.AsTime().Sub(res.CreateTime.AsTime()) != 2*168*time.Hour {
		t.Errorf("weekly: %v", res)
	}
	if res := s.create(&carillonv1.JobSpec{Schedule: in(time.Hour)}); res.NextTimes != nil || res.FiresPerDay != 0 {
		t.Errorf("a one-shot: %v", res)
	}
}

// A job's share of the spread is computed from its id; its occurrences are due that much later, and are late from then on.
func TestSpread(t *testing.T) {
	s := newScene(t, 4)
	sched := hourly()
	sched.Spread = durationpb.New(30 * time.Minute)
	req := &carillonv1.CreateJobRequest{IdempotencyKey: "k", Job: &carillonv1.JobSpec{Schedule: sched}}
	res := must(s.createJob(t.Context(), req))
	offset := cron.Spread(res.Id, 30*time.Minute).Milliseconds()
	if res.NextTime.AsTime().UnixMilli() != startMS+3_600_000 {
		t.Errorf("its nominal time is %v", res.NextTime.AsTime())
	}
	s.b.pass(3_600_000 + offset - 1)
	if early := s.claimAll(); len(early) > 0 {
		t.Errorf("early: %v", early)
	}
	s.b.pass(1)
	leases := s.claimAll()
	if len(leases) != 1 {
		t.Fatalf("%d leases", len(leases))
	}
	if e := s.execution(leases[0].ExecutionId); e.Lateness.AsDuration() != 0 || e.Attempts[0].Lateness.AsDuration() != 0 ||
		e.NominalTime.AsTime().UnixMilli() != startMS+3_600_000 {
		t.Errorf("its execution: %v", e)
	}
}

// The commands carry the next instants, also of schedules that fire each second; they are no part of what was asked for.
func TestCommandsCarryTheHorizon(t *testing.T) {
	s := newScene(t, 1)
	var got []*storagev1.Horizon
	s.b.fail = func(_ uint32, cmd *storagev1.Command) error {
		for _, c := range cmd.GetCreateJobs().GetItems() {
			got = append(got, c.Horizon)
			if c.Horizon != nil && c.HorizonFromMs > s.b.now {
				t.Errorf("the horizon begins at %d", c.HorizonFromMs)
			}
		}
		if u := cmd.UpdateJob; u != nil {
			got = append(got, u.Horizon)
		}
		return nil
	}
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: hourly()})
	s.create(&carillonv1.JobSpec{Schedule: cronJob(&carillonv1.Cron{Lines: []string{"* * * * * *"}})})
	must(s.batchCreateJobs(t.Context(), &carillonv1.BatchCreateJobsRequest{Items: []*carillonv1.CreateJobRequest{{Job: &carillonv1.JobSpec{Schedule: hourly()}}}}))
	must(s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "j", Job: &carillonv1.JobPatch{Schedule: cronJob(&carillonv1.Cron{Lines: []string{"@daily"}})}}))
	if len(got) != 4 {
		t.Fatalf("%d commands", len(got))
	}
	for i, h := range got {
		after := 0
		for _, at := range h.GetNextMs() {
			if at > s.b.now {
				after++
			}
		}
		if after != horizonInstants || h.ZoneVersion != cron.ZoneVersion() {
			t.Errorf("command %d: %d instants after now, zone data %q", i, after, h.GetZoneVersion())
		}
	}
	s.create(&carillonv1.JobSpec{Schedule: in(time.Hour)})
	must(s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "j", Job: &carillonv1.JobPatch{Priority: new(uint32(1))}}))
	if got[4] != nil || got[5] != nil {
		t.Errorf("horizons of what has no new cron schedule: %v", got[4:])
	}
}

// A batch evaluates schedules for a bounded time; what is left begins without a horizon, with the same answer.
func TestABatchLeavesHorizonsToTheLeader(t *testing.T) {
	s := newScene(t, 1)
	s.b.tick = batchHorizonMS
	var with []bool
	s.b.fail = func(_ uint32, cmd *storagev1.Command) error {
		for _, c := range cmd.CreateJobs.Items {
			with = append(with, c.Horizon != nil)
		}
		return nil
	}
	req := &carillonv1.BatchCreateJobsRequest{Items: []*carillonv1.CreateJobRequest{
		{Job: &carillonv1.JobSpec{Id: "a", Schedule: hourly()}}, {Job: &carillonv1.JobSpec{Id: "b", Schedule: hourly()}},
	}}
	results := must(s.batchCreateJobs(t.Context(), req)).Results
	if !slices.Equal(with, []bool{true, false}) {
		t.Errorf("horizons: %v", with)
	}
	for _, r := range results {
		if got := r.GetReceipt().GetNextTime().AsTime(); !got.Equal(time.UnixMilli(startMS + 3_600_000)) {
			t.Errorf("receipt: %v", r)
		}
	}
}

// In an answer to a job that waits for its horizon the times are evaluated.
func TestTimesWithoutAHorizon(t *testing.T) {
	s := newScene(t, 1)
	sched := &storagev1.Schedule{Cron: &storagev1.Cron{Lines: []string{"0 0 * * *"}, Zone: "UTC"}}
	create := &storagev1.CreateJob{Tenant: defaultName, JobId: "j", Schedule: sched, Hash: []byte("h"), Template: &storagev1.Template{Queue: "q"}}
	result := must(s.b.Do(t.Context(), s.b.ShardOf(defaultName, "j"), &storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{create}}}))
	if r := result.Items[0].Refusal; r != nil {
		t.Fatal(r)
	}
	const first = "2026-01-02T00:00:00Z"
	if j := s.job("j"); len(j.NextTimes) != 5 || j.NextTimes[0].Local != first || !proto.Equal(j.NextTime, j.NextTimes[0].Time) || j.FiresPerDay != 1 {
		t.Errorf("the job: %v", j)
	}
	item := &result.Items[0]
	var err error
	if item.FirstMS, err = s.firstOf(t.Context(), create, &carillonv1.CreateJobRequest{}, item.CreatedMS, 0, 0); err != nil {
		t.Fatal(err)
	}
	r := receiptOf(create, item)
	if times := firstTimes(sched, r.CreateTime.AsTime().UnixMilli(), result.Items[0].FirstMS); r.NextTime.AsTime().Format(time.RFC3339) != first ||
		times.next[0].Local != first {
		t.Errorf("the receipt: %v, %v", r, times)
	}
}
