package rpc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

var update = flag.Bool("update", false, "rewrite the generated docs")

// testLogger keeps the log of a test with it.
func testLogger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// docs/limits.md is printed from the table.
func TestLimitsAreDocumented(t *testing.T) {
	const path = "../docs/limits.md"
	var doc strings.Builder
	doc.WriteString("# Limits\n\nEverything a call may carry, and what happens beyond it. Generated from `rpc/limits.go`; " +
		"rewrite it with\n`go test ./rpc -run Limits -update`. Errors name the field at fault, see [api.md](api.md).\n\n" +
		"| limit | fields | accepted | unset | beyond it |\n| --- | --- | --- | --- | --- |\n")
	for _, l := range limitTable {
		unset := l.Default
		if unset == "" {
			unset = "–"
		}
		fmt.Fprintf(&doc, "| %s | %s | %s | %s | %s |\n", l.Name, l.Fields, l.Range, unset, l.Beyond)
	}
	if *update {
		if err := os.WriteFile(path, []byte(doc.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != doc.String() {
		t.Errorf("docs/limits.md is not what limitTable says (%v): go test ./rpc -run Limits -update", err)
	}
}

// edge is both sides of a limit. field is what the error names; empty: the call as a whole. good may fail otherwise, but
// not with invalid_argument.
type edge struct {
	good, bad func(*server) error
	field     string
}

// job makes a call that creates a job changed by fn.
func job(fn func(*carillonv1.JobSpec)) func(*server) error {
	return func(s *server) error {
		spec := &carillonv1.JobSpec{Schedule: in(time.Hour)}
		fn(spec)
		_, err := s.createJob(context.Background(), &carillonv1.CreateJobRequest{Job: spec})
		return err
	}
}

func in(d time.Duration) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Delay{Delay: durationpb.New(d)}}
}

func at(t time.Time) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_At{At: timestamppb.New(t)}}
}

func every(e *carillonv1.Every) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Every{Every: e}}
}

func cronJob(c *carillonv1.Cron) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: c}}
}

func hourly() *carillonv1.Schedule { return cronJob(&carillonv1.Cron{Lines: []string{"@hourly"}}) }

// cronEdge is an edge of a calendar schedule.
func cronEdge(field string, good, bad func(*carillonv1.Cron)) edge {
	of := func(fill func(*carillonv1.Cron)) func(*server) error {
		return job(func(j *carillonv1.JobSpec) {
			c := &carillonv1.Cron{}
			fill(c)
			j.Schedule = cronJob(c)
		})
	}
	return edge{field: field, good: of(good), bad: of(bad)}
}

func lines(n int) func(*carillonv1.Cron) {
	return func(c *carillonv1.Cron) { c.Lines = slices.Repeat([]string{"0 0 * * *"}, n) }
}

// lineOf has a second line of n bytes.
func lineOf(n int) func(*carillonv1.Cron) {
	return func(c *carillonv1.Cron) { c.Lines = []string{"0 0 * * *", "0 1 * * *" + strings.Repeat(" ", n-9)} }
}

func dates(n int) func(*carillonv1.Cron) {
	return func(c *carillonv1.Cron) {
		lines(1)(c)
		c.Exclude = &carillonv1.Exclusions{Dates: slices.Repeat([]string{"2026-12-24..2027-01-06"}, n)}
	}
}

// heavy is a schedule of about 32 KiB: patterns that no series shortens, and n dates.
func heavy(n int) func(*carillonv1.Cron) {
	list := func(from, to int) string {
		var items []string
		for i := from; i <= to; i++ {
			if i%3 > 0 {
				items = append(items, fmt.Sprint(i))
			}
		}
		return strings.Join(items, ",")
	}
	var days, weekdays []string
	for i := 1; i <= 30; i++ {
		days = append(days, fmt.Sprintf("%dW,L-%d", i, i))
		weekdays = append(weekdays, fmt.Sprintf("%d#%d", i%7, 1+i%5))
	}
	line := strings.Join([]string{
		list(0, 59), list(0, 59), list(0, 23), list(1, 31) + "," + strings.Join(days, ","), list(1, 12), strings.Join(weekdays, ","), list(1970, 2199),
	}, " ")
	return func(c *carillonv1.Cron) {
		dates(n)(c)
		c.Lines, c.Exclude.Lines = slices.Repeat([]string{line}, 16), []string{line[:len(line)-5], line[:len(line)-5], "* 0 * * *"}
	}
}

// jobEdge is an edge of one field of a job: set puts n into it.
func jobEdge[N any](field string, good, bad N, set func(*carillonv1.JobSpec, N)) edge {
	return edge{
		field: field,
		good:  job(func(j *carillonv1.JobSpec) { set(j, good) }),
		bad:   job(func(j *carillonv1.JobSpec) { set(j, bad) }),
	}
}

// spanEdges are both ends of a duration of a job.
func spanEdges(field string, low, high time.Duration, set func(*carillonv1.JobSpec, *durationpb.Duration)) []edge {
	return []edge{
		jobEdge(field, durationpb.New(low), durationpb.New(low-time.Millisecond), set),
		jobEdge(field, durationpb.New(high), durationpb.New(high+time.Millisecond), set),
	}
}

// backfillEdge is the most occurrences of a backfill, and one more.
func backfillEdge(most uint32, overlap carillonv1.Overlap) edge {
	call := func(n uint32) func(*server) error {
		return func(s *server) error {
			_, err := s.backfillJob(context.Background(), &carillonv1.BackfillJobRequest{
				Id: "nobody", From: timestamppb.New(time.UnixMilli(startMS)), To: timestamppb.New(time.UnixMilli(startMS)),
				MaxOccurrences: n, Overlap: overlap,
			})
			return err
		}
	}
	return edge{field: "max_occurrences", good: call(most), bad: call(most + 1)}
}

func chars(n int) string { return strings.Repeat("a", n) }

func entries(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("k", i)] = ""
	}
	return m
}

const someExecution = "default~j~1~s~1"

// someToken is one of someExecution's shard, of four.
var someToken = leaseToken{newFakeBackend(4).ShardOf(defaultName, "j"), 1}.String()

// callEdge makes an edge of one request message.
func callEdge[Req, Res any](field string, handle func(*server, context.Context, *Req) (*Res, error), good, bad *Req) edge {
	run := func(req *Req) func(*server) error {
		return func(s *server) error {
			_, err := handle(s, context.Background(), req)
			return err
		}
	}
	return edge{field: field, good: run(good), bad: run(bad)}
}

func heartbeatOf(progress int, extend time.Duration) *carillonv1.HeartbeatExecutionRequest {
	return &carillonv1.HeartbeatExecutionRequest{
		Id: someExecution, LeaseToken: someToken, Progress: make([]byte, progress), Extend: durationpb.New(extend),
	}
}

func failedOf(after time.Duration) *carillonv1.CompleteExecutionRequest {
	return &carillonv1.CompleteExecutionRequest{
		Id: someExecution, LeaseToken: someToken,
		Outcome: &carillonv1.CompleteExecutionRequest_Failed{Failed: &carillonv1.Failed{RetryAfter: durationpb.New(after)}},
	}
}

func claimOf(change func(*carillonv1.ClaimRequest)) *carillonv1.ClaimRequest {
	req := &carillonv1.ClaimRequest{Worker: "w", Queues: []string{"q"}}
	change(req)
	return req
}

func batchOf(n int) *carillonv1.BatchCreateJobsRequest {
	req := &carillonv1.BatchCreateJobsRequest{}
	for range n {
		req.Items = append(req.Items, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Schedule: in(time.Hour)}})
	}
	return req
}

func limitEdges() map[string][]edge {
	type spec = *carillonv1.JobSpec
	ptr := func(n uint32) *uint32 { return &n }
	now := time.UnixMilli(startMS)
	ids := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = someExecution
		}
		return list
	}
	return map[string][]edge{
		"id": {
			jobEdge("job.id", chars(128), chars(129), func(j spec, s string) { j.Id = s }),
			jobEdge("job.id", "aZ0._:@+{}-", "a~b", func(j spec, s string) { j.Id = s }),
			jobEdge("job.tenant", chars(128), chars(129), func(j spec, s string) { j.Tenant = s }),
			jobEdge("job.queue", chars(128), "a b", func(j spec, s string) { j.Queue = s }),
			callEdge("worker", (*server).claim, claimOf(func(*carillonv1.ClaimRequest) {}),
				claimOf(func(r *carillonv1.ClaimRequest) { r.Worker = "" })),
			callEdge("name", (*server).getQueue, &carillonv1.GetQueueRequest{Name: chars(128)}, &carillonv1.GetQueueRequest{Name: chars(129)}),
		},
		"idempotency_key": {
			callEdge("idempotency_key", (*server).createJob,
				&carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Schedule: in(1)}, IdempotencyKey: strings.Repeat("~", 128)},
				&carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Schedule: in(1)}, IdempotencyKey: chars(129)}),
			callEdge("claim_id", (*server).claim, claimOf(func(r *carillonv1.ClaimRequest) { r.ClaimId = "a b" }),
				claimOf(func(r *carillonv1.ClaimRequest) { r.ClaimId = "a\tb" })),
		},
		"execution_id": {
			callEdge("id", (*server).getExecution, &carillonv1.GetExecutionRequest{Id: someExecution},
				&carillonv1.GetExecutionRequest{Id: someExecution + "~" + chars(513)}),
			callEdge("id", (*server).getExecution, &carillonv1.GetExecutionRequest{Id: someExecution + "~x"},
				&carillonv1.GetExecutionRequest{Id: "nonsense"}),
		},
		"fairness_key": {jobEdge("job.fairness_key", chars(128), chars(129), func(j spec, s string) { j.FairnessKey = s })},
		"payload": {jobEdge("job.payload", make([]byte, DefaultMaxPayloadBytes), make([]byte, DefaultMaxPayloadBytes+1),
			func(j spec, b []byte) { j.Payload = b })},
		"content_type": {jobEdge("job.content_type", chars(256), chars(257), func(j spec, s string) { j.ContentType = s })},
		"payload_ref": {
			jobEdge("job.payload_ref", chars(2048), chars(2049), func(j spec, s string) { j.PayloadRef = s }),
			jobEdge("job.payload_ref", "", "ref", func(j spec, s string) { j.PayloadRef, j.Payload = s, []byte("p") }),
		},
		// What lies beyond these two is accepted, and has tests of its own.
		"result": nil, "error": nil, "claim_bytes": nil,
		"progress": {callEdge("progress", (*server).heartbeatExecution, heartbeatOf(16<<10, time.Second), heartbeatOf(16<<10+1, time.Second))},
		"reason": {callEdge("reason", (*server).pauseJob, &carillonv1.PauseJobRequest{Id: "j", Reason: chars(1024)},
			&carillonv1.PauseJobRequest{Id: "j", Reason: chars(1025)})},
		"paused_by": {callEdge("paused_by", (*server).pauseJob, &carillonv1.PauseJobRequest{Id: "j", PausedBy: chars(256)},
			&carillonv1.PauseJobRequest{Id: "j", PausedBy: chars(257)})},
		"pause_until": {
			callEdge("until", (*server).pauseJob, &carillonv1.PauseJobRequest{Id: "j", Until: timestamppb.New(now.Add(horizon))},
				&carillonv1.PauseJobRequest{Id: "j", Until: timestamppb.New(now.Add(horizon + 1))}),
			callEdge("rule.until", (*server).createPauseRule, ruleUntil(now.Add(time.Millisecond)), ruleUntil(now)),
		},
		"labels":    {jobEdge("job.labels", 64, 65, func(j spec, n int) { j.Labels = entries(n) })},
		"label_key": {jobEdge("job.labels", chars(63), chars(64), func(j spec, s string) { j.Labels = map[string]string{s: ""} })},
		"label_value": {jobEdge("job.labels[k]", chars(256), chars(257),
			func(j spec, s string) { j.Labels = map[string]string{"k": s} })},
		"label_filters": {callEdge("label", (*server).listJobs, &carillonv1.ListJobsRequest{Label: ids(16)},
			&carillonv1.ListJobsRequest{Label: ids(17)})},
		"pause_rules": nil, // see TestPauseRulesAreBounded
		"headers":     {jobEdge("job.headers", 64, 65, func(j spec, n int) { j.Headers = entries(n) })},
		"header_key":  {jobEdge("job.headers", chars(128), chars(129), func(j spec, s string) { j.Headers = map[string]string{s: ""} })},
		"header_value": {jobEdge("job.headers[k]", chars(4096), chars(4097),
			func(j spec, s string) { j.Headers = map[string]string{"k": s} })},
		"headers_total": {jobEdge("job.headers", 4092, 4093, func(j spec, n int) {
			j.Headers = map[string]string{"key1": chars(4092), "key2": chars(4092), "key3": chars(4092), "key4": chars(n)}
		})},
		"priority": {jobEdge("job.priority", 9, 10, func(j spec, n uint32) { j.Priority = &n })},
		"instant": {
			jobEdge("job.schedule.at", time.UnixMilli(1), time.UnixMilli(0), func(j spec, t time.Time) { j.Schedule = at(t) }),
			jobEdge("job.schedule.at", now.Add(horizon), now.Add(horizon+time.Millisecond),
				func(j spec, t time.Time) { j.Schedule = at(t) }),
			jobEdge("job.schedule.every.end", now.Add(horizon), now.Add(horizon+1), func(j spec, t time.Time) {
				j.Schedule = every(&carillonv1.Every{Interval: durationpb.New(time.Hour), End: timestamppb.New(t)})
			}),
		},
		"delay": spanEdges("job.schedule.delay", 0, horizon,
			func(j spec, d *durationpb.Duration) { j.Schedule.When = &carillonv1.Schedule_Delay{Delay: d} }),
		"interval": append(spanEdges("job.schedule.every.interval", time.Second, horizon,
			func(j spec, d *durationpb.Duration) { j.Schedule = every(&carillonv1.Every{Interval: d}) }),
			jobEdge("job.schedule.every.interval", time.Second+time.Millisecond, time.Second+time.Microsecond,
				func(j spec, d time.Duration) { j.Schedule = every(&carillonv1.Every{Interval: durationpb.New(d)}) })),
		"cron_lines": {
			cronEdge("job.schedule.cron.lines", lines(16), lines(17)),
			cronEdge("job.schedule.cron.lines", lines(1), func(*carillonv1.Cron) {}),
		},
		"cron_line": {
			cronEdge("job.schedule.cron.lines[1]", lineOf(2048), lineOf(2049)),
			cronEdge("job.schedule.cron.exclude.lines[0]",
				func(c *carillonv1.Cron) {
					lines(1)(c)
					c.Exclude = &carillonv1.Exclusions{Lines: []string{"* 8 * * *"}}
				},
				func(c *carillonv1.Cron) {
					lines(1)(c)
					c.Exclude = &carillonv1.Exclusions{Lines: []string{"* 24 * * *"}}
				}),
		},
		"cron_zone": {cronEdge("job.schedule.cron.zone",
			func(c *carillonv1.Cron) { lines(1)(c); c.Zone = "Europe/Kiev" },
			func(c *carillonv1.Cron) { lines(1)(c); c.Zone = "Europe/Kyiw" })},
		"exclude_dates": {
			cronEdge("job.schedule.cron.exclude.dates", dates(400), dates(401)),
			cronEdge("job.schedule.cron.exclude.dates[0]", dates(1),
				func(c *carillonv1.Cron) {
					lines(1)(c)
					c.Exclude = &carillonv1.Exclusions{Dates: []string{"2200-01-01"}}
				}),
		},
		"exclude_lines": {cronEdge("job.schedule.cron.exclude.lines",
			func(c *carillonv1.Cron) {
				lines(1)(c)
				c.Exclude = &carillonv1.Exclusions{Lines: slices.Repeat([]string{"* 8 * * *"}, 4)}
			},
			func(c *carillonv1.Cron) {
				lines(1)(c)
				c.Exclude = &carillonv1.Exclusions{Lines: slices.Repeat([]string{"* 8 * * *"}, 5)}
			})},
		"cron_bytes": {cronEdge("job.schedule.cron", heavy(252), heavy(253))},
		"spread": spanEdges("job.schedule.spread", 0, 24*time.Hour, func(j spec, d *durationpb.Duration) {
			j.Schedule = every(&carillonv1.Every{Interval: durationpb.New(time.Hour)})
			j.Schedule.Spread = d
		}),
		"max_fires_per_day": {
			jobEdge("job.schedule.max_fires_per_day", 24, 23, func(j spec, n uint32) { j.Schedule = hourly(); j.Schedule.MaxFiresPerDay = n }),
			jobEdge("job.schedule.max_fires_per_day", 25, 24, func(j spec, n uint32) {
				j.Schedule = every(&carillonv1.Every{Interval: durationpb.New(time.Hour - time.Second)})
				j.Schedule.MaxFiresPerDay = n
			}),
		},
		"catch_up_per_minute": {jobEdge("job.catch_up_per_minute", 60_000, 60_001, func(j spec, n uint32) {
			j.Schedule, j.CatchUp, j.CatchUpPerMinute = hourly(), carillonv1.CatchUp_CATCH_UP_ALL, n
		})},
		"pause_after_failures": {jobEdge("job.pause_after_failures", 1000, 1001, func(j spec, n uint32) {
			j.Schedule, j.PauseAfterFailures = hourly(), n
		})},
		"preview": {callEdge("count", (*server).previewSchedule, &carillonv1.PreviewScheduleRequest{Schedule: hourly(), Count: 1000},
			&carillonv1.PreviewScheduleRequest{Schedule: hourly(), Count: 1001})},
		"catch_up_window": spanEdges("job.catch_up_window", time.Millisecond, year,
			func(j spec, d *durationpb.Duration) { j.CatchUpWindow = d }),
		"max_attempts": {jobEdge("job.retry.max_attempts", 1000, 1001,
			func(j spec, n uint32) { j.Retry = &carillonv1.RetryPolicy{MaxAttempts: n} })},
		"first_delay": spanEdges("job.retry.first_delay", 0, 24*time.Hour,
			func(j spec, d *durationpb.Duration) { j.Retry = &carillonv1.RetryPolicy{FirstDelay: d} }),
		"factor": {
			jobEdge("job.retry.factor_thousandths", 1000, 999,
				func(j spec, n uint32) { j.Retry = &carillonv1.RetryPolicy{FactorThousandths: n} }),
			jobEdge("job.retry.factor_thousandths", 10_000, 10_001,
				func(j spec, n uint32) { j.Retry = &carillonv1.RetryPolicy{FactorThousandths: n} }),
		},
		"max_delay": spanEdges("job.retry.max_delay", 0, 7*24*time.Hour,
			func(j spec, d *durationpb.Duration) { j.Retry = &carillonv1.RetryPolicy{MaxDelay: d} }),
		"jitter": {jobEdge("job.retry.jitter_thousandths", 1000, 1001,
			func(j spec, n uint32) { j.Retry = &carillonv1.RetryPolicy{JitterThousandths: ptr(n)} })},
		"retry_after": {
			callEdge("failed.retry_after", (*server).completeExecution, failedOf(7*24*time.Hour), failedOf(7*24*time.Hour+time.Millisecond)),
			callEdge("failed.retry_after", (*server).completeExecution, failedOf(0), failedOf(-time.Second)),
		},
		"lease": append(spanEdges("job.lease", time.Second, 24*time.Hour, func(j spec, d *durationpb.Duration) { j.Lease = d }),
			callEdge("extend", (*server).heartbeatExecution, heartbeatOf(0, time.Second), heartbeatOf(0, time.Second-time.Millisecond)),
			callEdge("lease", (*server).claim,
				claimOf(func(r *carillonv1.ClaimRequest) { r.Lease = durationpb.New(24 * time.Hour) }),
				claimOf(func(r *carillonv1.ClaimRequest) { r.Lease = durationpb.New(25 * time.Hour) }))),
		"start_deadline": spanEdges("job.start_deadline", time.Millisecond, year,
			func(j spec, d *durationpb.Duration) { j.StartDeadline = d }),
		"retention": spanEdges("job.retention", time.Hour, year, func(j spec, d *durationpb.Duration) { j.Retention = d }),
		"shares": {
			callEdge("queue.priority_shares.weights", (*server).createQueue, sharing(&carillonv1.PriorityShares{Weights: weights(1000)}),
				sharing(&carillonv1.PriorityShares{Weights: weights(1001)})),
			callEdge("tenant.weight", (*server).createTenant,
				&carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: "t", Weight: 1000}},
				&carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: "t", Weight: 1001}}),
		},
		"floor": {callEdge("queue.priority_shares.floor_percent", (*server).createQueue,
			sharing(&carillonv1.PriorityShares{Strict: true, FloorPercent: 10}),
			sharing(&carillonv1.PriorityShares{Strict: true, FloorPercent: 11}))},
		"batch_items": {
			callEdge("items", (*server).batchCreateJobs, batchOf(1), batchOf(0)),
			callEdge("items", (*server).batchCreateJobs, batchOf(10_000), batchOf(10_001)),
		},
		// The transport's, tested in transport_test.go, intake_test.go and turns_test.go, and package manifest's.
		"batch_bytes": nil, "inflight_bytes": nil, "refused_bytes": nil, "turns": nil, "parts": nil, "apply_file": nil,
		"dead_letter_ids": {callEdge("execution_ids", (*server).purgeDeadLetters, &carillonv1.PurgeDeadLettersRequest{ExecutionIds: ids(1000)},
			&carillonv1.PurgeDeadLettersRequest{ExecutionIds: ids(1001)})},
		"claim": {callEdge("max_executions", (*server).claim, claimOf(func(r *carillonv1.ClaimRequest) { r.MaxExecutions = 1000 }),
			claimOf(func(r *carillonv1.ClaimRequest) { r.MaxExecutions = 1001 }))},
		"claim_queues": {
			callEdge("queues", (*server).claim, claimOf(func(r *carillonv1.ClaimRequest) { r.Queues = strings.Split(chars(64), "") }),
				claimOf(func(r *carillonv1.ClaimRequest) { r.Queues = strings.Split(chars(65), "") })),
			callEdge("queues[1]", (*server).claim, claimOf(func(r *carillonv1.ClaimRequest) { r.Queues = []string{"a", "b"} }),
				claimOf(func(r *carillonv1.ClaimRequest) { r.Queues = []string{"a", "\xff"} })),
		},
		"wait": {
			callEdge("wait", (*server).claim, claimOf(func(r *carillonv1.ClaimRequest) { r.Wait = durationpb.New(time.Minute) }),
				claimOf(func(r *carillonv1.ClaimRequest) { r.Wait = durationpb.New(time.Minute + time.Millisecond) })),
			callEdge("wait", (*server).claim, claimOf(func(r *carillonv1.ClaimRequest) { r.Wait = durationpb.New(0) }),
				claimOf(func(r *carillonv1.ClaimRequest) { r.Wait = durationpb.New(-1) })),
		},
		"backfill": {
			backfillEdge(fsm.MaxBackfill, carillonv1.Overlap_OVERLAP_ALLOW), backfillEdge(fsm.MaxBackfillInTurn, carillonv1.Overlap_OVERLAP_QUEUE_ALL),
		},
		"page_size": {
			callEdge("page_size", (*server).listJobs, &carillonv1.ListJobsRequest{PageSize: 1000}, &carillonv1.ListJobsRequest{PageSize: 1001}),
			callEdge("page_size", (*server).listZoneChanges, &carillonv1.ListZoneChangesRequest{PageSize: 1000}, &carillonv1.ListZoneChangesRequest{PageSize: 1001}),
			callEdge("page_size", (*server).listJobs, &carillonv1.ListJobsRequest{PageSize: 0}, &carillonv1.ListJobsRequest{PageSize: -1}),
		},
		"top_tenants": {
			callEdge("top_tenants", (*server).getCluster, &carillonv1.GetClusterRequest{TopTenants: 100}, &carillonv1.GetClusterRequest{TopTenants: 101}),
		},
	}
}

// Each limit holds at its edge: accepted up to it, refused beyond it with the field named.
func TestLimitsHoldAtTheirEdges(t *testing.T) {
	edges := limitEdges()
	for _, l := range limitTable {
		list, ok := edges[l.Name]
		if !ok {
			t.Errorf("limit %s has no test", l.Name)
		}
		delete(edges, l.Name)
		for i, e := range list {
			t.Run(fmt.Sprint(l.Name, i), func(t *testing.T) {
				s := newTestServer(t, newFakeBackend(4))
				if err := e.good(s); connect.CodeOf(err) == connect.CodeInvalidArgument {
					t.Errorf("at the limit: %v", err)
				}
				wantViolation(t, e.bad(s), e.field)
			})
		}
	}
	for name := range edges {
		t.Errorf("tested limit %s is not in the table", name)
	}
}

// wantViolation wants an invalid_argument whose first violation names the field.
func wantViolation(t *testing.T, err error, field string) {
	t.Helper()
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("got %v, want invalid_argument", err)
		return
	}
	for _, v := range violationsOf(t, err) {
		if v.Field == field {
			return
		}
	}
	t.Errorf("got %v, which does not name %q", err, field)
}

func violationsOf(t *testing.T, err error) (list []*carillonv1.FieldViolation) {
	t.Helper()
	var connectErr *connect.Error
	if !errors.As(err, &connectErr) {
		t.Fatalf("%v is no Connect error", err)
	}
	for _, detail := range connectErr.Details() {
		value, err := detail.Value()
		if err != nil {
			t.Fatal(err)
		}
		if v, ok := value.(*carillonv1.FieldViolation); ok {
			list = append(list, v)
		}
	}
	return list
}

func ruleUntil(t time.Time) *carillonv1.CreatePauseRuleRequest {
	return &carillonv1.CreatePauseRuleRequest{Rule: &carillonv1.PauseRule{Label: []string{"k"}, Until: timestamppb.New(t)}}
}

func weights(w uint32) []uint32 { return slices.Repeat([]uint32{w}, maxPriority+1) }

func sharing(s *carillonv1.PriorityShares) *carillonv1.CreateQueueRequest {
	return &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "q", PriorityShares: s}}
}
