package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// told is an instant of a schedule, or several in a row, and what becomes of it: fires, gap or excluded.
type told struct {
	at, last time.Time
	count    uint64
	what     string
}

func (o told) String() string {
	return fmt.Sprintf("%s to %s, %d: %s", o.at.Format(time.RFC3339Nano), o.last.Format(time.RFC3339Nano), o.count, o.what)
}

// ordered puts instants in their order. What does not fire for one reason, with nothing else between, becomes one.
func ordered(all []told) (out []told) {
	slices.SortStableFunc(all, func(a, b told) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return strings.Compare(a.what, b.what)
	})
	for _, o := range all {
		if n := len(out) - 1; n >= 0 && o.what != "fires" && out[n].what == o.what {
			out[n].last, out[n].count = o.last, out[n].count+o.count
			continue
		}
		out = append(out, o)
	}
	return out
}

// preview says what a schedule does after an instant and up to another.
func (s *server) preview(id string, schedule *carillonv1.Schedule, after, to time.Time) (all []told, offset time.Duration) {
	s.t.Helper()
	for {
		res := call(s.t, s.schedules().PreviewSchedule, &carillonv1.PreviewScheduleRequest{
			Schedule: schedule, JobId: id, After: timestamppb.New(after), Count: 100,
		})
		for _, p := range res.GetTimes() {
			o := told{p.GetTime().AsTime(), p.GetTime().AsTime(), uint64(p.GetCount()), "fires"}
			if p.GetLastTime() != nil {
				o.last = p.GetLastTime().AsTime()
			}
			switch p.GetVerdict() {
			case carillonv1.PreviewVerdict_PREVIEW_VERDICT_SKIPPED_GAP:
				o.what = "gap"
			case carillonv1.PreviewVerdict_PREVIEW_VERDICT_SKIPPED_EXCLUDED:
				o.what = "excluded"
			}
			after = o.last
			if o.at.After(to) {
				return ordered(all), res.GetOffset().AsDuration()
			}
			all = append(all, o)
		}
		if res.GetEnded() || len(res.GetTimes()) == 0 {
			return ordered(all), res.GetOffset().AsDuration()
		}
	}
}

// became says what became of a job's instants from one to another, both included, and that each was decided at its time. Of
// ranges it takes those that begin there.
func (s *server) became(id string, from, to time.Time, offset time.Duration) (all []told) {
	s.t.Helper()
	for _, o := range s.occurrences(&carillonv1.ListOccurrencesRequest{
		Id: id, From: timestamppb.New(from), To: timestamppb.New(to), PageSize: 1000,
	}) {
		got := told{o.GetTime().AsTime(), o.GetTime().AsTime(), o.GetCount(), o.GetWhy()}
		if o.GetUntil() != nil {
			got.last = o.GetUntil().AsTime()
		}
		switch {
		case got.at.Before(from):
			continue
		case o.GetVerdict() == carillonv1.Verdict_VERDICT_WAITING && got.at.Add(offset).After(s.now()):
			continue
		case o.GetVerdict() == carillonv1.Verdict_VERDICT_SKIPPED:
		case o.GetVerdict() == carillonv1.Verdict_VERDICT_EXPIRED && o.GetFinishTime().AsTime().Equal(got.at.Add(offset+time.Second)):
			got.what = "fires"
		default:
			got.what = o.String()
		}
		all = append(all, got)
	}
	return all
}

func (s *server) now() time.Time {
	s.t.Helper()
	return s.clock().GetTime().AsTime()
}

func cronJob(c *carillonv1.Cron) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: c}}
}

func spreadOver(d time.Duration, s *carillonv1.Schedule) *carillonv1.Schedule {
	s.Spread = durationpb.New(d)
	return s
}

// previewedSchedules are of every kind, at most some hundred occurrences of each in two years: zones whose clocks jump by half an
// hour, at midnight, by two hours, at other times each year, not at all; all rules; seconds, years, several lines, exclusions.
func previewedSchedules(begin time.Time) map[string]*carillonv1.Schedule {
	const skip, last, both = carillonv1.Gap_GAP_SKIP, carillonv1.Repeat_REPEAT_LAST, carillonv1.Repeat_REPEAT_BOTH
	all := map[string]*carillonv1.Schedule{
		"several lines": cronJob(&carillonv1.Cron{
			Lines: []string{"0 9 1-7 * *", "0 9 * * MON", "30 2 * 3,10 SUN", "0 30 2 * * SUN 2027"}, Zone: "Europe/Berlin", Repeat: both, Gap: skip,
		}),
		"office hours without holidays": cronJob(&carillonv1.Cron{
			Lines: []string{"0 9,17 * 1,5-8,12 MON-FRI"}, Zone: "Europe/Paris",
			Exclude: &carillonv1.Exclusions{
				Dates: []string{"2026-12-24..2027-01-06", "2027-05-01", "2027-07-14..2027-08-20"}, Weekdays: "MON#1", Lines: []string{"* 17 * * FRI", "* * 25 * *"},
			},
		}),
		"gaps among exclusions": cronJob(&carillonv1.Cron{
			Lines: []string{"30 2 * 3 *"}, Zone: newYork, Gap: skip, Exclude: &carillonv1.Exclusions{Dates: []string{"2026-03-07", "2027-03-14..2027-03-20"}, Weekdays: "WED"},
		}),
		"end":  cronJob(&carillonv1.Cron{Lines: []string{"0 0 * * *"}, End: timestamppb.New(begin.Add(100 * day))}),
		"runs": cronJob(&carillonv1.Cron{Lines: []string{"0 0 1 * *"}, MaxRuns: 7}),
		"every hour as clocks change": cronJob(&carillonv1.Cron{
			Lines: []string{"0 * * * *"}, Zone: "Australia/Lord_Howe", Start: timestamppb.New(time.Date(2026, 10, 3, 0, 0, 0, 0, time.UTC)),
			End: timestamppb.New(time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)),
		}),
		"seconds as clocks change": cronJob(&carillonv1.Cron{
			Lines: []string{"*/30 */10 * * * *"}, Zone: "Europe/London", Start: timestamppb.New(time.Date(2026, 10, 24, 23, 30, 0, 0, time.UTC)),
			End: timestamppb.New(time.Date(2026, 10, 25, 3, 0, 0, 0, time.UTC)),
		}),
		"spread":             spreadOver(6*time.Hour, cronIn(newYork, "0 0 * * SUN")),
		"every spread":       spreadOver(24*time.Hour, every(10*day, begin.Add(-day))),
		"every":              {When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{Interval: durationpb.New(7 * day)}}},
		"every anchored":     every(101*time.Hour+7*time.Minute+3*time.Millisecond, begin.Add(-1000*day)),
		"every future":       every(30*day, begin.Add(500*day)),
		"every from to runs": {When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{Interval: durationpb.New(36 * time.Hour), Start: timestamppb.New(begin.Add(9 * day)), End: timestamppb.New(begin.Add(400 * day)), MaxRuns: 50}}},
	}
	add := func(line, zone string, gap carillonv1.Gap, repeat carillonv1.Repeat) {
		name := fmt.Sprintf("%s in %s, %v, %v", line, zone, gap, repeat)
		all[name] = cronJob(&carillonv1.Cron{Lines: []string{line}, Zone: zone, Gap: gap, Repeat: repeat})
	}
	for _, zone := range []string{newYork, santiago, "Asia/Beirut", "America/Havana", "Africa/Cairo", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca"} {
		for _, line := range []string{"15 0,1,2 * 3,4,9-11 SUN", "0 0 * 3,4,9,10 FRI,SUN"} {
			add(line, zone, skip, both)
			add(line, zone, 0, last)
		}
	}
	add("30 2 * 3,11 *", newYork, 0, 0)
	add("30 1 * 3,11 *", newYork, skip, both)
	for _, line := range []string{
		"@weekly", "@monthly", "@yearly", "0 0 31 * *", "0 9 29 2 *", "0 0 LW * *", "0 12 15W * *", "0 0 L-3 * *", "0 0 13 * FRI", "0 0 * * FRIL",
		"0 0 1 */3 *", "0 */6 * 7 MON", "20,40 59 23 L * *", "0 0 12 1 * * 2027", "0 0 */10 * *",
	} {
		add(line, "Asia/Kolkata", 0, 0)
	}
	add("0 */2 * 3,11 SUN", newYork, 0, 0)
	add("*/20 * 5 4,9 *", "Pacific/Chatham", skip, both)
	return all
}

// What a preview says is what fires, over more than two years: no other instant, none left out,
// each at its own time, and what the rules skip is a verdict.
func TestPreviewIsWhatFires(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	end := time.Date(2028, 3, 15, 0, 0, 0, 0, time.UTC)
	s := startVirtual(t, begin)
	type job struct {
		name, id  string
		schedule  *carillonv1.Schedule
		offset    time.Duration
		want, got []told
	}
	var jobs []*job
	for name, schedule := range previewedSchedules(begin) {
		j := &job{name: name, id: fmt.Sprint("job-", len(jobs)), schedule: schedule}
		jobs = append(jobs, j)
		j.want, j.offset = s.preview(j.id, schedule, begin, end)
		s.create(&carillonv1.JobSpec{Id: j.id, Schedule: schedule, Retention: durationpb.New(365 * day), StartDeadline: durationpb.New(time.Second)})
	}
	total := 0
	for at := begin; at.Before(end); {
		next := at.Add(97*day + 11*time.Hour)
		if next.After(end) {
			next = end
		}
		want := uint64(0)
		for _, j := range jobs {
			for _, o := range j.want {
				if due := o.at.Add(j.offset); o.what == "fires" && due.After(at) && !due.After(next) {
					want++
				}
			}
		}
		if fired := s.advance(next); fired != want {
			t.Errorf("%d fired from %v to %v; %d were previewed", fired, at, next, want)
		}
		total += int(want)
		s.advance(next.Add(time.Second)) // to the start deadline of the last
		for _, j := range jobs {
			j.got = append(j.got, s.became(j.id, at.Add(time.Millisecond-j.offset), next.Add(-j.offset), j.offset)...)
		}
		at = next
		if s.metric("carillon_late_total") != 0 {
			t.Errorf("%v were late by %v", s.metric("carillon_late_total"), at)
		}
	}
	if total < 3000 {
		t.Errorf("%d occurrences show little", total)
	}
	for _, j := range jobs {
		compareTold(t, j.name, j.want, ordered(j.got))
	}
	s.wantClean(4, 1)
}

// compareTold reports the first difference.
func compareTold(t *testing.T, name string, want, got []told) {
	t.Helper()
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(want):
			t.Errorf("%s: not previewed, and happened: %v", name, got[i])
		case i >= len(got):
			t.Errorf("%s: previewed, and did not happen: %v", name, want[i])
		case want[i] != got[i]:
			t.Errorf("%s: number %d was previewed as %v, and became %v", name, i, want[i], got[i])
		default:
			continue
		}
		return
	}
}
