package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// scheduleFlags say when a job fires.
func scheduleFlags() []cli.Flag {
	const when = "when:"
	return []cli.Flag{
		&cli.StringFlag{Name: "at", Category: when, Usage: "once, at this `INSTANT` (RFC 3339, or +90m)"},
		&cli.StringFlag{
			Name: "in", Aliases: []string{"delay"}, Category: when, Usage: "once, this `DURATION` from now: 90s, 1h30m, 7d",
		},
		&cli.StringFlag{Name: "every", Category: when, Usage: "again and again, at this `INTERVAL`"},
		&cli.StringFlag{Name: "anchor", Category: when, Usage: "`INSTANT` that the interval's grid is aligned to"},
		&cli.StringSliceFlag{Name: "cron", Category: when, Usage: "whenever this `PATTERN` says: '30 2 * * MON-FRI', @daily; repeatable"},
		&cli.StringFlag{Name: "zone", Category: when, Usage: "`ZONE` of the patterns, like Europe/Berlin (default: UTC)"},
		&cli.StringFlag{Name: "gap", Category: when, Usage: "of times that the zone's clock leaves out: `RULE` is shift or skip (default: shift)"},
		&cli.StringFlag{Name: "repeat", Category: when, Usage: "of times that it shows twice: `RULE` is first, last or both (default: first)"},
		&cli.StringSliceFlag{Name: "exclude-date", Category: when, Usage: "not on this `DATE`, or in 2026-12-24..2027-01-06; repeatable"},
		&cli.StringFlag{Name: "exclude-weekdays", Category: when, Usage: "not on these `DAYS`: SAT,SUN"},
		&cli.StringSliceFlag{Name: "exclude-cron", Category: when, Usage: "not at times of this `PATTERN`; repeatable"},
		&cli.StringFlag{Name: "start", Category: when, Usage: "no occurrence before this `INSTANT`"},
		&cli.StringFlag{Name: "end", Category: when, Usage: "no occurrence after this `INSTANT`"},
		&cli.Uint64Flag{Name: "max-runs", Category: when, Usage: "at most `N` occurrences", DefaultText: "no bound"},
		&cli.StringFlag{Name: "spread", Category: when, Usage: "start up to this `DURATION` later, always as much, by the job's id"},
		&cli.Int64Flag{Name: "max-fires-per-day", Category: when, Usage: "refuse it if it fires more than `N` times a day", DefaultText: "no bound"},
	}
}

// Flags that go with some kinds of schedules only.
var scheduleKinds = []string{"at", "in", "every", "cron"}

var flagsOfKind = []struct {
	kinds []string
	flags []string
}{
	{[]string{"every"}, []string{"anchor"}},
	{[]string{"cron"}, []string{"zone", "gap", "repeat", "exclude-date", "exclude-weekdays", "exclude-cron"}},
	{[]string{"every", "cron"}, []string{"start", "end", "max-runs", "spread", "max-fires-per-day"}},
}

// schedule reads --at, --in, --every or --cron with what belongs to it; nil if none is set. What is not set is as it was, if
// there was a schedule of that kind.
func schedule(c *cli.Context, was *carillonv1.Schedule) (*carillonv1.Schedule, error) {
	kind := ""
	for _, name := range scheduleKinds {
		if c.IsSet(name) {
			if kind != "" {
				return nil, usage(c, "--at, --in, --every and --cron exclude each other")
			}
			kind = name
		}
	}
	if kind == "" {
		kind = kindOf(c, was)
	}
	for _, some := range flagsOfKind {
		for _, name := range some.flags {
			if c.IsSet(name) && !slices.Contains(some.kinds, kind) {
				return nil, usage(c, "--%s goes with --%s only", name, strings.Join(some.kinds, " or --"))
			}
		}
	}
	s := &carillonv1.Schedule{}
	var err error
	switch kind {
	case "":
		return nil, nil
	case "at":
		at := &carillonv1.Schedule_At{}
		at.At, err = instantFlag(c, "at")
		s.When = at
	case "in":
		delay := &carillonv1.Schedule_Delay{}
		delay.Delay, err = lengthFlag(c, "in")
		s.When = delay
	case "every":
		every := &carillonv1.Schedule_Every{}
		every.Every, err = everyFlags(c)
		s.When = every
	case "cron":
		cron := &carillonv1.Schedule_Cron{}
		cron.Cron, err = cronFlags(c)
		s.When = cron
	}
	if err != nil {
		return nil, err
	}
	if s.Spread, err = lengthFlag(c, "spread"); err != nil {
		return nil, err
	}
	s.MaxFiresPerDay, err = numberFlag(c, "max-fires-per-day")
	keep(c, s, was)
	return s, err
}

// kindOf is the flag of a schedule's kind, if a flag is set that changes such a schedule.
func kindOf(c *cli.Context, was *carillonv1.Schedule) string {
	kind := ""
	switch {
	case was.GetEvery() != nil:
		kind = "every"
	case was.GetCron() != nil:
		kind = "cron"
	}
	for _, some := range flagsOfKind {
		if slices.Contains(some.kinds, kind) && slices.ContainsFunc(some.flags, c.IsSet) {
			return kind
		}
	}
	return ""
}

// keep fills in what no flag says from a schedule of the same kind.
func keep(c *cli.Context, s, was *carillonv1.Schedule) {
	unset := func(flag string, fill func()) {
		if !c.IsSet(flag) {
			fill()
		}
	}
	switch e, x := s.GetEvery(), s.GetCron(); {
	case e != nil && was.GetEvery() != nil:
		old := was.GetEvery()
		unset("every", func() { e.Interval = old.Interval })
		unset("start", func() { e.Start = old.Start })
		unset("end", func() { e.End = old.End })
		unset("max-runs", func() { e.MaxRuns = old.MaxRuns })
	case x != nil && was.GetCron() != nil:
		old := was.GetCron()
		unset("cron", func() { x.Lines = old.Lines })
		unset("zone", func() { x.Zone = old.Zone })
		unset("gap", func() { x.Gap = old.Gap })
		unset("repeat", func() { x.Repeat = old.Repeat })
		unset("start", func() { x.Start = old.Start })
		unset("end", func() { x.End = old.End })
		unset("max-runs", func() { x.MaxRuns = old.MaxRuns })
		if old.Exclude != nil {
			if x.Exclude == nil {
				x.Exclude = &carillonv1.Exclusions{}
			}
			unset("exclude-date", func() { x.Exclude.Dates = old.Exclude.Dates })
			unset("exclude-weekdays", func() { x.Exclude.Weekdays = old.Exclude.Weekdays })
			unset("exclude-cron", func() { x.Exclude.Lines = old.Exclude.Lines })
		}
	default:
		return
	}
	unset("spread", func() { s.Spread = was.Spread })
	unset("max-fires-per-day", func() { s.MaxFiresPerDay = was.MaxFiresPerDay })
}

func everyFlags(c *cli.Context) (*carillonv1.Every, error) {
	interval, err := lengthFlag(c, "every")
	if err != nil {
		return nil, err
	}
	e := &carillonv1.Every{Interval: interval, MaxRuns: c.Uint64("max-runs")}
	for name, field := range map[string]**timestamppb.Timestamp{"anchor": &e.Anchor, "start": &e.Start, "end": &e.End} {
		if *field, err = instantFlag(c, name); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func cronFlags(c *cli.Context) (*carillonv1.Cron, error) {
	gap, err := parseEnum(c, "gap", "GAP_", carillonv1.Gap_value)
	if err != nil {
		return nil, err
	}
	repeat, err := parseEnum(c, "repeat", "REPEAT_", carillonv1.Repeat_value)
	if err != nil {
		return nil, err
	}
	out := &carillonv1.Cron{
		Lines: c.StringSlice("cron"), Zone: c.String("zone"), Gap: carillonv1.Gap(gap), Repeat: carillonv1.Repeat(repeat),
		MaxRuns: c.Uint64("max-runs"),
	}
	if c.IsSet("exclude-date") || c.IsSet("exclude-weekdays") || c.IsSet("exclude-cron") {
		out.Exclude = &carillonv1.Exclusions{
			Dates: c.StringSlice("exclude-date"), Weekdays: c.String("exclude-weekdays"), Lines: c.StringSlice("exclude-cron"),
		}
	}
	if out.Start, err = instantFlag(c, "start"); err != nil {
		return nil, err
	}
	out.End, err = instantFlag(c, "end")
	return out, err
}

// scheduleText is a schedule as a cell.
func scheduleText(s *carillonv1.Schedule) string {
	switch when := s.GetWhen().(type) {
	case *carillonv1.Schedule_At:
		return "at " + instant(when.At)
	case *carillonv1.Schedule_Delay:
		return "in " + length(when.Delay)
	case *carillonv1.Schedule_Every:
		e := when.Every
		return "every " + length(e.GetInterval()) + boundsText(e.GetStart(), e.GetEnd(), e.GetMaxRuns())
	case *carillonv1.Schedule_Cron:
		c := when.Cron
		return strings.TrimSpace("cron "+strings.Join(c.GetLines(), "; ")+" "+c.GetZone()) + boundsText(c.GetStart(), c.GetEnd(), c.GetMaxRuns())
	}
	return "-"
}

func boundsText(start, end *timestamppb.Timestamp, runs uint64) (text string) {
	if start != nil {
		text += " from " + instant(start)
	}
	if end != nil {
		text += " until " + instant(end)
	}
	if runs > 0 {
		text += fmt.Sprintf(", %d times", runs)
	}
	return text
}

// scheduleRows say what a schedule's cell leaves out.
func scheduleRows(s *carillonv1.Schedule) (rows [][]string) {
	if c := s.GetCron(); c != nil {
		if c.GetGap() == carillonv1.Gap_GAP_SKIP {
			rows = append(rows, []string{"gap", "skip"})
		}
		if c.GetRepeat() > carillonv1.Repeat_REPEAT_FIRST {
			rows = append(rows, []string{"repeat", enum(c.GetRepeat(), "REPEAT_")})
		}
		var excluded []string
		if weekdays := c.GetExclude().GetWeekdays(); weekdays != "" {
			excluded = append(excluded, weekdays)
		}
		excluded = slices.Concat(excluded, c.GetExclude().GetDates(), c.GetExclude().GetLines())
		const most = 5
		if n := len(excluded) - most; n > 0 {
			excluded = append(excluded[:most], fmt.Sprintf("and %d more", n))
		}
		if len(excluded) > 0 {
			rows = append(rows, []string{"excluded", strings.Join(excluded, "; ")})
		}
	}
	if s.GetSpread().AsDuration() > 0 {
		rows = append(rows, []string{"spread", length(s.GetSpread())})
	}
	if n := s.GetMaxFiresPerDay(); n > 0 {
		rows = append(rows, []string{"max fires a day", fmt.Sprint(n)})
	}
	return rows
}

// nextRows are the next times of an answer, each with what the schedule's clock shows, and how many there are on one day.
// Of answers that have none, the next one.
func nextRows(times []*carillonv1.FireTime, perDay uint32, next *timestamppb.Timestamp) [][]string {
	if len(times) == 0 {
		return [][]string{{"next", instant(next)}}
	}
	var rows [][]string
	for i, at := range times {
		name := "next"
		if i > 0 {
			name = ""
		}
		text := instant(at.GetTime())
		if local := at.GetLocal(); local != text {
			text += "  " + local
		}
		rows = append(rows, []string{name, text})
	}
	return append(rows, []string{"fires a day", fmt.Sprint(perDay)})
}

func (p *program) scheduleCommand() *cli.Command {
	return &cli.Command{
		Name: "schedule", Usage: "ask about schedules",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{
				Name: "preview", Usage: "show when a schedule would fire, and what its zone and exclusions do",
				Description: "It creates nothing. The same code decides when jobs fire. With --job it begins with the schedule of a job that is " +
					"there,\nand the other flags change it as in jobs update.",
				Flags: slices.Concat([]cli.Flag{
					&cli.StringFlag{Name: "job", Usage: "the schedule of the job with this `ID`"},
					&cli.StringFlag{Name: "after", Usage: "only after this `INSTANT` (default: now)"},
					&cli.IntFlag{Name: "n", Aliases: []string{"count"}, Value: 10, Usage: "show it firing `N` times, at most 1000"},
					&cli.StringFlag{Name: "job-id", Usage: "`ID` of a job that is to be, by which a --spread is shared out"},
				}, scheduleFlags()),
			}, p.previewSchedule),
			p.calling(cli.Command{
				Name: "zone-changes", Usage: "list jobs whose next times newer zone data has moved",
				Description: "A job is listed until it gets another schedule.",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "all-tenants", Usage: "of every tenant"},
					limitFlag(),
				},
			}, p.listZoneChanges),
		},
	}
}

func (p *program) previewSchedule(ctx context.Context, c *call) error {
	if c.Int("n") < 1 {
		return usage(c.Context, "-n must be at least 1")
	}
	req := &carillonv1.PreviewScheduleRequest{JobId: c.String("job-id"), Count: uint32(c.Int("n"))}
	var err error
	if c.IsSet("job") {
		err = scheduleOfJob(ctx, c, req)
	} else {
		req.Schedule, err = schedule(c.Context, nil)
	}
	if err != nil {
		return err
	}
	if req.Schedule == nil {
		return usage(c.Context, "one of --at, --in, --every and --cron is needed, or --job")
	}
	if req.After, err = instantFlag(c.Context, "after"); err != nil {
		return err
	}
	res, err := c.client.PreviewSchedule(ctx, req)
	if err != nil {
		return err
	}
	return errors.Join(showPreview(c, res), refusal(c, res))
}

// scheduleOfJob asks for the preview of the schedule that a job has, with what the flags change of it.
func scheduleOfJob(ctx context.Context, c *call, req *carillonv1.PreviewScheduleRequest) error {
	if c.IsSet("job-id") {
		return usage(c.Context, "--job and --job-id exclude each other")
	}
	job, err := c.client.GetJob(ctx, &carillonv1.GetJobRequest{Id: c.String("job"), Tenant: c.tenant})
	if err != nil {
		return err
	}
	req.JobId, req.Runs = job.GetId(), job.GetRuns()
	if req.Schedule, err = schedule(c.Context, job.GetSchedule()); err != nil {
		return err
	}
	if req.Schedule == nil {
		req.Schedule = job.GetSchedule()
	}
	if every := req.Schedule.GetEvery(); every != nil && every.Anchor == nil {
		// The grid stays, as in an update.
		every.Anchor = job.GetSchedule().GetEvery().GetAnchor()
	}
	return nil
}

func showPreview(c *call, res *carillonv1.PreviewScheduleResponse) error {
	if c.print.json {
		return c.print.message(res, nil)
	}
	if err := c.print.table(previewTable(res)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c.print.w); err != nil {
		return err
	}
	return c.print.table(previewSummary(res))
}

// refusal is the error of a preview whose schedule a create would refuse.
func refusal(c *call, res *carillonv1.PreviewScheduleResponse) error {
	fault := res.GetTooOften()
	if fault == nil {
		return nil
	}
	field := fault.GetField()
	if flag := flagOf(c.Command, field); flag != "" {
		field = flag
	}
	return &usageError{text: fmt.Sprintf("a job with this schedule would be refused: %s %s", field, fault.GetDescription())}
}

// previewTable has a line for each time, or several that are skipped together.
func previewTable(res *carillonv1.PreviewScheduleResponse) [][]string {
	offset := res.GetOffset().AsDuration()
	header := []string{"TIME", "LOCAL", "DAY", "WHAT"}
	if offset > 0 {
		header = append(header, "STARTS")
	}
	rows := [][]string{header}
	for _, t := range res.GetTimes() {
		row := []string{instant(t.GetTime()), t.GetLocal(), "-", previewText(t)}
		if local, err := time.Parse(time.RFC3339Nano, t.GetLocal()); err == nil {
			row[2] = local.Format("Mon")
		}
		if offset > 0 && t.GetVerdict() == carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES {
			row = append(row, instant(timestamppb.New(t.GetTime().AsTime().Add(offset))))
		}
		rows = append(rows, row)
	}
	if res.GetEnded() {
		rows = append(rows, []string{"-", "-", "-", "nothing more"})
	}
	return rows
}

// previewText says what becomes of a time and why.
func previewText(t *carillonv1.PreviewedTime) string {
	_, named, _ := strings.Cut(t.GetNamed(), "T")
	if day, _, _ := strings.Cut(t.GetNamed(), "T"); !strings.HasPrefix(t.GetLocal(), day) {
		named = t.GetNamed()
	}
	var text string
	switch {
	case t.GetVerdict() == carillonv1.PreviewVerdict_PREVIEW_VERDICT_SKIPPED_GAP:
		text = fmt.Sprintf("skipped: there is no %s, the clock goes forward", named)
	case t.GetVerdict() == carillonv1.PreviewVerdict_PREVIEW_VERDICT_SKIPPED_EXCLUDED:
		text = "excluded"
	case t.GetRule() == carillonv1.FireRule_FIRE_RULE_SHIFTED:
		return fmt.Sprintf("fires in place of %s, which does not exist: the clock goes forward", named)
	case t.GetRule() == carillonv1.FireRule_FIRE_RULE_SECOND_OF_REPEAT:
		_, shown, _ := strings.Cut(t.GetLocal(), "T")
		return fmt.Sprintf("fires at the second %s: the clock goes back", shown[:min(len(shown), len(time.TimeOnly))])
	default:
		return "fires"
	}
	if n := t.GetCount(); n > 1 {
		text += fmt.Sprintf(", %d times until %s", n, instant(t.GetLastTime()))
	}
	return text
}

func previewSummary(res *carillonv1.PreviewScheduleResponse) [][]string {
	rows := append([][]string{{"schedule", scheduleText(res.GetSchedule())}}, scheduleRows(res.GetSchedule())...)
	if res.GetOffset() != nil {
		rows = append(rows, []string{"share of the spread", length(res.GetOffset())})
	}
	if res.GetFiresPerDay() > 0 {
		rows = append(rows, []string{"fires a day", fmt.Sprint(res.GetFiresPerDay())}, []string{"fires a year", fmt.Sprint(res.GetFiresPerYear())})
	}
	return append(rows, []string{"zone data", res.GetZoneVersion()})
}

func (p *program) listZoneChanges(ctx context.Context, c *call) error {
	req := &carillonv1.ListZoneChangesRequest{
		Tenant: c.tenant, AllTenants: c.Bool("all-tenants"), PageSize: pageSize(c.Int("limit")),
	}
	header := []string{"JOB", "ZONE", "FROM", "TO", "CHANGED", "WAS", "IS"}
	if req.AllTenants {
		req.Tenant, header = "", append([]string{"TENANT"}, header...)
	}
	more, err := list(c.print, "changes", c.client.ListZoneChanges(ctx, req), c.Int("limit"), header,
		func(z *carillonv1.ZoneChange) []string {
			row := []string{
				z.GetJobId(), z.GetZone(), z.GetFromVersion(), z.GetToVersion(), instant(z.GetChangeTime()),
				instant(z.GetOldNext().GetTime()), instant(z.GetNewNext().GetTime()),
			}
			if req.AllTenants {
				row = append([]string{z.GetTenant()}, row...)
			}
			return row
		})
	if err != nil {
		return err
	}
	return p.sayMore(c, more)
}
