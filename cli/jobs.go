package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) jobsCommand() *cli.Command {
	return &cli.Command{
		Name: "jobs", Usage: "create jobs and look after them",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{
				Name: "create", Usage: "accept a job",
				Description: "Repeating it with the same --id or --idempotency-key and the same job changes nothing; with " +
					"another job\nit fails with exit code 4.",
				Flags: slices.Concat([]cli.Flag{
					&cli.StringFlag{Name: "id", Usage: "`ID` of the job (default: derived from the idempotency key)"},
					&cli.StringFlag{
						Name: "idempotency-key", Usage: "`KEY` that makes it safe to repeat (default: a random one)",
					},
				}, specFlags()),
			}, p.createJob),
			p.calling(cli.Command{Name: "get", Usage: "show a job", ArgsUsage: "ID"}, p.getJob),
			p.calling(cli.Command{
				Name: "list", Usage: "list jobs",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "queue", Usage: "only of this `QUEUE`"},
					&cli.StringFlag{Name: "state", Usage: "only in this `STATE`: active, paused, exhausted or deleted"},
					&cli.StringFlag{Name: "prefix", Usage: "only whose id starts with `PREFIX`"},
					&cli.StringSliceFlag{Name: "label", Usage: "only with this `KEY=VALUE`, or KEY; repeatable"},
					limitFlag(),
				},
			}, p.listJobs),
			p.calling(cli.Command{
				Name: "update", Usage: "change the named fields of a job, for later occurrences", ArgsUsage: "ID",
				Description: "Labels, headers, schedule and retry policy are replaced whole.",
				Flags: slices.Concat([]cli.Flag{
					expectedFlag(),
					&cli.StringSliceFlag{Name: "clear", Usage: "put `FIELD` back to its default; repeatable"},
				}, specFlags()),
			}, p.updateJob),
			p.putCommand(),
			p.calling(cli.Command{
				Name: "pause", Usage: "stop a job's firing and hold what is ready of it", ArgsUsage: "ID",
				Flags: append(pauseFlags(), expectedFlag()),
			}, p.pauseJob),
			p.calling(cli.Command{
				Name: "resume", Usage: "undo a pause", ArgsUsage: "ID",
				Flags: []cli.Flag{
					ruleFlag(), expectedFlag(), &cli.BoolFlag{Name: "dry-run", Usage: "only say what it would start and skip"},
				},
			}, p.resumeJob),
			p.calling(cli.Command{
				Name: "delete", Usage: "cancel what waits of a job and forget it", ArgsUsage: "ID",
				Flags: []cli.Flag{expectedFlag()},
			}, p.deleteJob),
			p.calling(cli.Command{
				Name: "trigger", Usage: "run a job now, apart from its schedule", ArgsUsage: "ID",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "idempotency-key", Usage: "`KEY` that makes it safe to repeat (default: a random one)"},
				},
			}, p.triggerJob),
			p.calling(cli.Command{
				Name: "history", Usage: "show what became of a job's occurrences", ArgsUsage: "ID",
				Flags: []cli.Flag{limitFlag()},
			}, p.jobHistory),
			p.occurrencesCommand(), p.backfillCommands()[0], p.backfillCommands()[1],
			p.importCommand(),
			p.exportCommand(),
		},
	}
}

func (p *program) createJob(ctx context.Context, c *call) error {
	spec, err := p.spec(c.Context, nil)
	if err != nil {
		return err
	}
	if spec.GetSchedule() == nil {
		return usage(c.Context, "one of --at, --in, --every and --cron is needed")
	}
	spec.Id, spec.Tenant = c.String("id"), c.tenant
	receipt, err := c.client.CreateJob(ctx, spec, client.WithIdempotencyKey(c.String("idempotency-key")))
	if err != nil {
		return err
	}
	return c.print.message(receipt, func() [][]string {
		rows := [][]string{
			{"id", receipt.GetId()}, {"tenant", receipt.GetTenant()}, {"created", instant(receipt.GetCreateTime())},
		}
		return append(rows, nextRows(receipt.GetNextTimes(), receipt.GetFiresPerDay(), receipt.GetNextTime())...)
	})
}

func (p *program) getJob(ctx context.Context, c *call) error {
	job, err := c.client.GetJob(ctx, &carillonv1.GetJobRequest{Id: c.Args().First(), Tenant: c.tenant})
	return p.showJob(c, job, err)
}

// showJob prints the answer of a call about one job.
func (p *program) showJob(c *call, job *carillonv1.Job, err error) error {
	if err != nil {
		return err
	}
	return c.print.message(job, func() [][]string { return jobRows(job) })
}

func jobRows(j *carillonv1.Job) [][]string {
	rows := [][]string{
		{"id", j.GetId()}, {"tenant", j.GetTenant()}, {"state", jobStateText(j)},
	}
	optional := func(name, value string) {
		if value != "" && value != "-" {
			rows = append(rows, []string{name, value})
		}
	}
	optional("stopped by", strings.Join(j.GetStoppedBy(), ", "))
	optional("queue", j.GetQueue())
	optional("pause reason", j.GetPauseReason())
	optional("paused by", j.GetPausedBy())
	optional("paused until", instant(j.GetPauseUntil()))
	optional("resume rule", ruleText(j.GetResumeRule()))
	if j.GetParked() {
		optional("parked", "yes: due, and waits for a pause of its queue, its tenant or a rule to end")
	}
	optional("schedule", scheduleText(j.GetSchedule()))
	rows = append(rows, scheduleRows(j.GetSchedule())...)
	if j.GetNextTime() != nil {
		rows = append(rows, nextRows(j.GetNextTimes(), j.GetFiresPerDay(), j.GetNextTime())...)
	}
	optional("runs", runsText(j))
	optional("last run", lastRunText(j.GetLastRun()))
	if j.GetCatchUp() != carillonv1.CatchUp_CATCH_UP_UNSPECIFIED {
		optional("catch-up", enum(j.GetCatchUp(), "CATCH_UP_"))
	}
	optional("catch-up window", length(j.GetCatchUpWindow()))
	if n := j.GetCatchUpPerMinute(); n > 0 {
		optional("catch-up per minute", fmt.Sprint(n))
	}
	if j.GetOverlap() > carillonv1.Overlap_OVERLAP_ALLOW {
		optional("overlap", enum(j.GetOverlap(), "OVERLAP_"))
	}
	if n := j.GetPauseAfterFailures(); n > 0 {
		optional("pause after failures", fmt.Sprint(n))
	}
	if j.Priority != nil {
		optional("priority", fmt.Sprint(j.GetPriority()))
	}
	optional("fairness key", j.GetFairnessKey())
	optional("payload", data(j.GetPayload()))
	optional("payload ref", j.GetPayloadRef())
	optional("content type", j.GetContentType())
	optional("labels", pairsText(j.GetLabels()))
	optional("headers", pairsText(j.GetHeaders()))
	optional("retry", retryText(j.GetRetry()))
	optional("lease", length(j.GetLease()))
	optional("start deadline", length(j.GetStartDeadline()))
	optional("retention", length(j.GetRetention()))
	optional("version", fmt.Sprint(j.GetVersion()))
	optional("created", instant(j.GetCreateTime()))
	optional("updated", instant(j.GetUpdateTime()))
	return rows
}

// runsText is how often a recurring job ran; a one-shot's history tells that of its one execution.
func runsText(j *carillonv1.Job) string {
	if j.GetSchedule().GetEvery() == nil && j.GetSchedule().GetCron() == nil {
		return "-"
	}
	return fmt.Sprint(j.GetRuns())
}

// jobStateText is a job's state, and what stops it all the same.
func jobStateText(j *carillonv1.Job) string {
	var stops []string
	for _, stop := range j.GetStoppedBy() {
		kind, name, _ := strings.Cut(stop, ":")
		if kind == "rule" {
			stops = append(stops, "pause "+name)
		} else {
			stops = append(stops, kind+" paused")
		}
	}
	text := enum(j.GetState(), "JOB_STATE_")
	if len(stops) > 0 {
		text += " (" + strings.Join(stops, ", ") + ")"
	}
	return text
}

// lastRunText is when a job ran last and what became of it: the verdict of the occurrence, the state of its execution if that says
// more, and its error.
func lastRunText(r *carillonv1.LastRun) string {
	switch {
	case r == nil:
		return ""
	case r.GetRemoved():
		return "not known any more: its history was removed by retention"
	}
	text := instant(r.GetTime())
	if r.GetLocal() != text {
		text += "  " + r.GetLocal()
	}
	verdict, state := enum(r.GetVerdict(), "VERDICT_"), enum(r.GetState(), "EXECUTION_STATE_")
	if text += "  " + verdict; state != verdict {
		text += ", " + state
	}
	if r.GetError() != "" {
		text += ": " + firstLine(r.GetError())
	}
	return text
}

func pairsText(m map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, k+"="+firstLine(m[k]))
	}
	return strings.Join(pairs, " ")
}

func retryText(r *carillonv1.RetryPolicy) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%d attempts", r.GetMaxAttempts())
	if r.GetFirstDelay() != nil {
		text += ", first after " + length(r.GetFirstDelay())
	}
	if f := r.GetFactorThousandths(); f > 0 {
		text += fmt.Sprintf(", times %g", float64(f)/1000)
	}
	if r.GetMaxDelay() != nil {
		text += ", at most " + length(r.GetMaxDelay())
	}
	return text
}

func (p *program) listJobs(ctx context.Context, c *call) error {
	state, err := parseEnum(c.Context, "state", "JOB_STATE_", carillonv1.JobState_value)
	if err != nil {
		return err
	}
	jobs := c.client.ListJobs(ctx, &carillonv1.ListJobsRequest{
		Tenant: c.tenant, Queue: c.String("queue"), State: carillonv1.JobState(state), IdPrefix: c.String("prefix"),
		Label: c.StringSlice("label"), PageSize: pageSize(c.Int("limit")),
	})
	header := []string{"ID", "QUEUE", "STATE", "SCHEDULE", "NEXT", "RUNS"}
	more, err := list(c.print, "jobs", jobs, c.Int("limit"), header, func(j *carillonv1.Job) []string {
		return []string{
			j.GetId(), orDash(j.GetQueue()), jobStateText(j), scheduleText(j.GetSchedule()),
			instant(j.GetNextTime()), runsText(j),
		}
	})
	if err != nil {
		return err
	}
	return p.sayMore(c, more)
}

// pageSize is one more than what is printed, to know whether there is more; large pages for all.
func pageSize(limit int) int32 {
	if limit <= 0 || limit >= 1000 {
		return 1000
	}
	return int32(limit) + 1
}

// updatable maps flags to the fields of JobPatch that they set.
var updatable = map[string]string{
	"queue": "queue", "at": "schedule", "in": "schedule", "every": "schedule", "cron": "schedule",
	"overlap": "overlap", "catch-up-per-minute": "catch_up_per_minute", "pause-after-failures": "pause_after_failures", "catch-up": "catch_up",
	"catch-up-window": "catch_up_window", "start-deadline": "start_deadline", "payload": "payload",
	"payload-file": "payload", "payload-ref": "payload_ref", "content-type": "content_type", "header": "headers",
	"label": "labels", "priority": "priority", "fairness-key": "fairness_key", "retention": "retention",
	"lease": "lease", "max-attempts": "retry", "retry-delay": "retry", "retry-factor": "retry",
	"retry-max-delay": "retry", "retry-jitter": "retry",
}

func (p *program) updateJob(ctx context.Context, c *call) error {
	// A schedule is replaced whole, and so its flags are read over the one that the job has.
	var was *carillonv1.Schedule
	version := c.Uint64("expected-version")
	if slices.ContainsFunc(scheduleFlags(), func(f cli.Flag) bool { return c.IsSet(f.Names()[0]) }) {
		job, err := c.client.GetJob(ctx, &carillonv1.GetJobRequest{Id: c.Args().First(), Tenant: c.tenant})
		if err != nil {
			return err
		}
		was, version = job.GetSchedule(), cmp.Or(version, job.GetVersion())
	}
	s, err := p.spec(c.Context, was)
	if err != nil {
		return err
	}
	patch := &carillonv1.JobPatch{
		Schedule: s.GetSchedule(), CatchUpWindow: s.GetCatchUpWindow(), Labels: s.GetLabels(), Headers: s.GetHeaders(),
		Priority: s.Priority, Retry: s.GetRetry(), Lease: s.GetLease(), StartDeadline: s.GetStartDeadline(),
		Retention: s.GetRetention(),
	}
	named := make(map[string]bool)
	for flag, field := range updatable {
		if c.IsSet(flag) {
			named[field] = true
		}
	}
	if s.GetSchedule() != nil {
		named["schedule"] = true
	}
	for field, to := range map[string]**string{
		"queue": &patch.Queue, "content_type": &patch.ContentType, "payload_ref": &patch.PayloadRef,
		"fairness_key": &patch.FairnessKey,
	} {
		if named[field] {
			*to = new(c.String(strings.ReplaceAll(field, "_", "-")))
		}
	}
	if named["catch_up"] {
		patch.CatchUp = &s.CatchUp
	}
	if named["overlap"] {
		patch.Overlap = &s.Overlap
	}
	if named["catch_up_per_minute"] {
		patch.CatchUpPerMinute = &s.CatchUpPerMinute
	}
	if named["pause_after_failures"] {
		patch.PauseAfterFailures = &s.PauseAfterFailures
	}
	if named["payload"] {
		patch.Payload = s.GetPayload()
	}
	for _, field := range c.StringSlice("clear") {
		field = strings.ReplaceAll(field, "-", "_")
		if named[field] {
			return usage(c.Context, "--clear: %s is set as well", field)
		}
		named[field] = true
	}
	if len(named) == 0 {
		return usage(c.Context, "nothing to change")
	}
	job, err := c.client.UpdateJob(ctx, &carillonv1.UpdateJobRequest{
		Id: c.Args().First(), Tenant: c.tenant, Job: patch, ExpectedVersion: version,
		UpdateMask: &fieldmaskpb.FieldMask{Paths: slices.Sorted(maps.Keys(named))},
	})
	return p.showJob(c, job, err)
}

func (p *program) pauseJob(ctx context.Context, c *call) error {
	said, err := readPause(c.Context)
	if err != nil {
		return err
	}
	job, err := c.client.PauseJob(ctx, &carillonv1.PauseJobRequest{
		Id: c.Args().First(), Tenant: c.tenant, Reason: said.reason, PausedBy: said.by, Until: said.until,
		ResumeRule: said.resume, ExpectedVersion: c.Uint64("expected-version"),
	})
	return p.showJob(c, job, err)
}

func (p *program) resumeJob(ctx context.Context, c *call) error {
	rule, err := catchUpFlag(c.Context, "rule")
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		return p.previewResume(ctx, c, rule)
	}
	job, err := c.client.ResumeJob(ctx, &carillonv1.ResumeJobRequest{
		Id: c.Args().First(), Tenant: c.tenant, ExpectedVersion: c.Uint64("expected-version"), ResumeRule: rule,
	})
	return p.showJob(c, job, err)
}

func (p *program) deleteJob(ctx context.Context, c *call) error {
	job, err := c.client.DeleteJob(ctx, &carillonv1.DeleteJobRequest{
		Id: c.Args().First(), Tenant: c.tenant, ExpectedVersion: c.Uint64("expected-version"),
	})
	return p.showJob(c, job, err)
}

func (p *program) triggerJob(ctx context.Context, c *call) error {
	id, err := c.client.TriggerJob(ctx, &carillonv1.TriggerJobRequest{
		Id: c.Args().First(), Tenant: c.tenant, IdempotencyKey: c.String("idempotency-key"),
	})
	if err != nil {
		return err
	}
	return c.print.message(&carillonv1.TriggerJobResponse{ExecutionId: id}, func() [][]string {
		return [][]string{{"execution", id}}
	})
}
