package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

const newYork, santiago = "America/New_York", "America/Santiago"

func (s *server) schedules() carillonv1connect.ScheduleServiceClient {
	return carillonv1connect.NewScheduleServiceClient(s.http, s.url(""))
}

// timeCase is a cron job and the instants at which it fires, all of them from one instant to another.
type timeCase struct {
	id   string
	cron *carillonv1.Cron
	want []string
	// skipped is what its clock leaves out, and its rule does not fire.
	skipped []string
}

func instantOf(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func shown(at *timestamppb.Timestamp) string { return at.AsTime().Format(time.RFC3339) }

// fires holds cases against the server: what the preview says before, what the create and the job answer, and what fires
// between two instants are the same.
func (s *server) fires(from, to string, cases ...timeCase) {
	s.t.Helper()
	if at := instantOf(s.t, from); s.clock().GetTime().AsTime().Before(at) {
		s.advance(at)
	}
	for _, c := range cases {
		sched := &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: c.cron}}
		preview := call(s.t, s.schedules().PreviewSchedule, &carillonv1.PreviewScheduleRequest{Schedule: sched, Count: uint32(len(c.want))})
		var fires, skips []string
		for _, at := range preview.GetTimes() {
			if at.GetVerdict() == carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES {
				fires = append(fires, shown(at.GetTime()))
			} else {
				skips = append(skips, shown(at.GetTime()))
			}
		}
		s.same(c, "previewed", fires, skips)
		created := s.create(&carillonv1.JobSpec{Id: c.id, Schedule: sched, Retention: durationpb.New(365 * day)})
		for who, times := range map[string][]*carillonv1.FireTime{"the create": created.GetNextTimes(), "the job": s.job(c.id).GetNextTimes()} {
			for i, at := range times[:min(len(times), len(c.want))] {
				if shown(at.GetTime()) != c.want[i] {
					s.t.Errorf("%s: %s answers %v as time %d, want %s", c.id, who, at, i, c.want[i])
				}
			}
		}
	}
	s.advance(instantOf(s.t, to))
	for _, c := range cases {
		h := s.history("", c.id)
		var fires, skips []string
		for _, e := range h.GetExecutions() {
			fires = append(fires, shown(e.GetNominalTime()))
		}
		for _, v := range h.GetVerdicts() {
			if v.GetWhy() != "skipped_gap" || v.GetCount() != 1 {
				s.t.Errorf("%s: skipped: %v", c.id, v)
			}
			skips = append(skips, shown(v.GetFrom()))
		}
		slices.Sort(fires)
		s.same(c, "fired", fires, skips)
		s.delete(c.id)
	}
}

func (s *server) same(c timeCase, what string, fires, skips []string) {
	s.t.Helper()
	if !slices.Equal(fires, c.want) || !slices.Equal(skips, c.skipped) {
		s.t.Errorf("%s: %s %v, and skipped %v; want %v and %v", c.id, what, fires, skips, c.want, c.skipped)
	}
}

// The cases T1 to T4, in the order of their times: previewed, created and fired by the binary.
func TestT1ToT4(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC))
	const skip, both, last = carillonv1.Gap_GAP_SKIP, carillonv1.Repeat_REPEAT_BOTH, carillonv1.Repeat_REPEAT_LAST
	cron := func(line, zone string, gap carillonv1.Gap, repeat carillonv1.Repeat) *carillonv1.Cron {
		return &carillonv1.Cron{Lines: []string{line}, Zone: zone, Gap: gap, Repeat: repeat}
	}
	s.fires("2026-03-07T12:00:00Z", "2026-03-09T07:00:00Z",
		timeCase{id: "T1-skip", cron: cron("30 2 * * *", newYork, skip, 0), want: []string{"2026-03-09T06:30:00Z"}, skipped: []string{"2026-03-08T07:00:00Z"}},
		timeCase{id: "T1-shift", cron: cron("30 2 * * *", newYork, 0, 0), want: []string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
		timeCase{id: "T1-other", cron: cron("0 6 8 3 *", "UTC", 0, 0), want: []string{"2026-03-08T06:00:00Z"}},
	)
	s.fires("2026-09-05T12:00:00Z", "2026-09-07T03:30:00Z",
		timeCase{id: "T4-shift", cron: cron("0 0 * * *", santiago, 0, 0), want: []string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		timeCase{id: "T4-skip", cron: cron("0 0 * * *", santiago, skip, 0), want: []string{"2026-09-07T03:00:00Z"}, skipped: []string{"2026-09-06T04:00:00Z"}},
	)
	// Created in summer time, it fires in winter time.
	s.fires("2026-10-20T00:00:00Z", "2026-11-02T12:00:00Z",
		timeCase{id: "T3", cron: cron("0 6 * * MON", newYork, 0, 0), want: []string{"2026-10-26T10:00:00Z", "2026-11-02T11:00:00Z"}},
		timeCase{id: "T2-first", cron: cron("30 1 1 11 *", newYork, 0, 0), want: []string{"2026-11-01T05:30:00Z"}},
		timeCase{id: "T2-last", cron: cron("30 1 1 11 *", newYork, 0, last), want: []string{"2026-11-01T06:30:00Z"}},
		timeCase{id: "T2-both", cron: cron("30 1 1 11 *", newYork, 0, both), want: []string{"2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"}},
	)
}

// T6 and T7: a leap day is found and comes, months without a 31st are passed over.
func TestT6T7(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, time.Date(2024, 2, 29, 9, 0, 0, 0, time.UTC))
	leap := s.create(&carillonv1.JobSpec{Id: "leap", Schedule: cronIn("", "0 9 29 2 *")})
	if got := shown(leap.GetNextTime()); got != "2028-02-29T09:00:00Z" || leap.GetFiresPerDay() != 1 {
		t.Errorf("T6: next is %s, %d a day", got, leap.GetFiresPerDay())
	}
	s.fires("2026-01-31T00:00:00Z", "2026-12-31T01:00:00Z", timeCase{id: "T7", cron: &carillonv1.Cron{Lines: []string{"0 0 31 * *"}}, want: []string{
		"2026-03-31T00:00:00Z", "2026-05-31T00:00:00Z", "2026-07-31T00:00:00Z", "2026-08-31T00:00:00Z", "2026-10-31T00:00:00Z", "2026-12-31T00:00:00Z",
	}})
	s.advance(time.Date(2028, 2, 29, 8, 59, 59, 0, time.UTC))
	s.nothing("default")
	s.advance(time.Date(2028, 2, 29, 9, 0, 0, 0, time.UTC))
	if got := shown(s.claimOne("w", "default").GetNominalTime()); got != "2028-02-29T09:00:00Z" {
		t.Errorf("T6: it ran for %s", got)
	}
}

// T5, T8 and T9: refused with the reason, on the command line and in REST; nothing is harmed.
func TestT5T8T9(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "2", "--max-fires-per-day", "1440")
	for _, c := range []struct{ id, says, args string }{
		{"T5", `--cron is refused: cron pattern "0 0 31 2 *": it never fires`, "--cron|0 0 31 2 *"},
		{"T8", "is 1, but it fires 60 times on its busiest day, next at ", "--cron|* 0 * * *|--max-fires-per-day|1"},
		{"T8", "this server allows 1440 a day", "--cron|* * * * * *"},
		{"T8", "this server allows 1440 a day", "--every|59s"},
		{"T9", "the schedule has a field for it", "--cron|TZ=UTC"},
		{"T9", "the schedule has a field for it", "--cron|CRON_TZ=Asia/Tokyo @every 5m"},
		{"T9", "use every, not cron", "--cron|@every 5m"},
		{"T9", `zone "Mars/Olympus" is unknown to the IANA data`, "--cron|@daily|--zone|Mars/Olympus"},
	} {
		args := append([]string{"jobs", "create", "--addr", s.addr, "--id", "refused"}, strings.Split(c.args, "|")...)
		if out := fails(t, 2, args...); !strings.Contains(out, c.says) {
			t.Errorf("%s: %s; want %q", c.id, out, c.says)
		}
	}
	status, body := s.send("POST", "/v1/jobs", "application/json", []byte(`{"schedule": {"cron": {"lines": ["@daily", "0 0 31 2 *"]}}}`))
	if status != 400 || !strings.Contains(body, `"field":"job.schedule.cron.lines[1]"`) {
		t.Errorf("T5: %d %s", status, body)
	}
	out := s.cli("jobs", "create", "--id", "kiev", "--cron", "* 0 * * *", "--zone", "Europe/Kiev")
	if !strings.Contains(out, ":00+02:00") && !strings.Contains(out, ":00+03:00") || !strings.Contains(out, "T00:") || !strings.Contains(out, "fires a day  60") {
		t.Errorf("T8, T9: %s", out)
	}
	if out := s.cli("schedule", "preview", "--cron", "30 2 * * *", "--zone", newYork, "--gap", "skip", "--after", "2026-03-07T12:00:00Z", "-n", "1"); !strings.Contains(out,
		"2026-03-08T07:00:00Z  2026-03-08T03:00:00-04:00  Sun  skipped: there is no 02:30:00, the clock goes forward\n2026-03-09T06:30:00Z  2026-03-09T02:30:00-04:00  Mon  fires\n") {
		t.Errorf("T1: %s", out)
	}
	if jobs := call(t, s.jobs().ListJobs, &carillonv1.ListJobsRequest{}).GetJobs(); len(jobs) != 1 {
		t.Errorf("there are %v", jobs)
	}
}
