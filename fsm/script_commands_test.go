package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// commands build the command that a line asks for.
var commands = map[string]func(*script, args) *storagev1.Command{
	"create": func(sc *script, a args) *storagev1.Command {
		return &storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{buildCreate(sc, a)}}}
	},
	"put":    buildPut,
	"update": buildUpdate,
	"pause":  buildUpdate,
	"resume": buildUpdate,
	"delete": buildDelete,
	"expand": buildExpand,
	"zones": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{SetZoneVersion: &storagev1.SetZoneVersion{Version: a.str("version", "2026b"), Done: a.has("done")}}
	},
	"trigger":   buildTrigger,
	"advance":   buildAdvance,
	"claim":     buildClaim,
	"heartbeat": buildHeartbeat,
	"complete":  buildComplete,
	"cancel":    buildCancel,
	"requeue": func(sc *script, a args) *storagev1.Command {
		return &storagev1.Command{RequeueDead: &storagev1.RequeueDead{ExecutionIds: []string{sc.executionID(a)}}}
	},
	"purge": func(sc *script, a args) *storagev1.Command {
		return &storagev1.Command{PurgeDead: &storagev1.PurgeDead{ExecutionIds: []string{sc.executionID(a)}}}
	},
	"start-task": buildStartTask,
	"step-task": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{StepTask: &storagev1.StepTask{
			Id: a.str("id", "task"), Limit: uint32(a.num("limit", 0)), InstantsMs: a.instants("instants"), FromMs: a.instant("from"),
			ToMs: a.instant("to"),
		}}
	},
	"backfill": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{StartBackfill: &storagev1.StartBackfill{
			Tenant: a.str("tenant", "t"), JobId: a.str("id", "job"), Id: a.str("key", "b"), Hash: hashArgs(a, "key", "version"),
			FromMs: a.instant("from"), ToMs: a.instant("to"), Max: uint32(a.num("max", 1000)), InTurn: a.has("in-turn"),
			HasPriority: a.has("priority"), Priority: uint32(a.num("priority", 0)), ExpectedVersion: uint64(a.num("version", 0)),
		}}
	},
	"cancel-backfill": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{CancelBackfill: &storagev1.CancelBackfill{
			Tenant: a.str("tenant", "t"), JobId: a.str("id", "job"), Id: a.str("key", "b"),
		}}
	},
	"queue": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{PutQueue: &storagev1.QueueSettings{
			Name: a.str("name", "q"), Version: uint64(a.num("version", 1)), Paused: a.has("paused"), Pause: buildPause(a),
			RetentionMs: a.dur("retention", 0), DeadRetentionMs: a.dur("dead-retention", 0),
		}}
	},
	"tenant": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{PutTenant: &storagev1.TenantSettings{
			Name: a.str("name", "t"), Version: uint64(a.num("version", 1)), Paused: a.has("paused"), Pause: buildPause(a),
			Deleting: a.has("deleting"), Deleted: a.has("deleted"),
		}}
	},
	"rule": func(_ *script, a args) *storagev1.Command {
		r := &storagev1.PauseRule{
			Id: a.str("name", "r"), Version: uint64(a.num("version", 1)), Tenant: a.str("tenant", ""), Pause: buildPause(a),
			Deleted: a.has("deleted"),
		}
		for _, l := range keyValues(a, "label-") {
			r.Labels = append(r.Labels, &storagev1.LabelSelector{Key: l.Key, Value: l.Value, AnyValue: l.Value == "*"})
		}
		if a.has("big-reason") {
			r.Reason = strings.Repeat("x", maxErrorBytes+1)
		}
		if a.has("big-label") {
			r.Labels = append(r.Labels, &storagev1.LabelSelector{Key: "k", Value: strings.Repeat("x", maxNameBytes+1)})
		}
		return &storagev1.Command{PutPauseRule: r}
	},
	"housekeep": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{Housekeep: &storagev1.Housekeep{
			Limit: uint32(a.num("limit", 0)), EventsMaxAgeMs: a.dur("events", 0), TrimEventsBelow: uint64(a.num("trim", 0)),
		}}
	},
	"leader": func(sc *script, a args) *storagev1.Command {
		sc.term = uint64(a.num("term", int64(sc.term)+1))
		return &storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: sc.term, Store: "s2"}}
	},
	"old-leader": func(sc *script, a args) *storagev1.Command {
		sc.term--
		return buildAdvance(sc, a)
	},
	"raise-level": func(_ *script, a args) *storagev1.Command {
		return &storagev1.Command{RaiseLevel: &storagev1.RaiseLevel{Level: uint32(a.num("level", 1))}}
	},
}

func buildPause(a args) *storagev1.Pause {
	if !a.has("by") && !a.has("until") && !a.has("rule") {
		return nil
	}
	return &storagev1.Pause{By: a.str("by", ""), UntilMs: a.instant("until"), Resume: catchUps[a.m["rule"]]}
}

func hashArgs(a args, leave ...string) []byte {
	var words []string
	for k, v := range a.m {
		if k != "now" && !slices.Contains(leave, k) {
			words = append(words, k+"="+v)
		}
	}
	slices.Sort(words)
	return encodeU64(xxhash.Sum64String(strings.Join(words, " ")))
}

func buildSchedule(a args) *storagev1.Schedule {
	spread, offset := a.dur("spread", 0), a.dur("offset", 0)
	switch {
	case a.has("every"):
		return &storagev1.Schedule{SpreadMs: spread, OffsetMs: offset, Every: &storagev1.Every{
			IntervalMs: a.dur("every", 0), AnchorMs: a.instant("anchor"), StartMs: a.instant("start"), EndMs: a.instant("end"),
			MaxRuns: uint64(a.num("runs", 0)),
		}}
	case a.has("cron"):
		return &storagev1.Schedule{SpreadMs: spread, OffsetMs: offset, Cron: &storagev1.Cron{
			Lines: []string{a.str("cron", "")}, EndMs: a.instant("end"), MaxRuns: uint64(a.num("runs", 0)),
		}}
	case a.has("delay"):
		return &storagev1.Schedule{DelayMs: a.dur("delay", 0)}
	case a.has("at"):
		return &storagev1.Schedule{AtMs: a.instant("at")}
	default:
		return nil
	}
}

func buildTemplate(a args) *storagev1.Template {
	t := &storagev1.Template{
		Queue: a.str("queue", "q"), Priority: uint32(a.num("priority", 5)), FairnessKey: a.str("fairness", ""),
		Payload: []byte(a.str("payload", "")), LeaseMs: a.dur("lease", 0), StartDeadlineMs: a.dur("deadline", 0),
		RetentionMs: a.dur("retention", 0), Headers: keyValues(a, "header-"),
		Retry: &storagev1.RetryPolicy{
			MaxAttempts: uint32(a.num("attempts", 3)), FirstDelayMs: a.dur("first", 1e9),
			FactorThousandths: uint32(a.num("factor", 2000)), MaxDelayMs: a.dur("max", 60e9),
			JitterThousandths: uint32(a.num("jitter", 0)),
		},
	}
	if a.has("big-payload") {
		t.Payload = []byte(strings.Repeat("x", int(a.num("big-payload", 0))))
	}
	return t
}

var catchUps = map[string]storagev1.CatchUp{
	"none": storagev1.CatchUp_CATCH_UP_NONE, "latest": storagev1.CatchUp_CATCH_UP_LATEST, "all": storagev1.CatchUp_CATCH_UP_ALL,
}

func buildCreate(sc *script, a args) *storagev1.CreateJob {
	c := &storagev1.CreateJob{
		Tenant: a.str("tenant", "t"), JobId: a.str("id", "job"), Hash: hashArgs(a, "key"), Schedule: buildSchedule(a),
		KeyHash: uint64(len(a.str("key", ""))), CatchUp: catchUps[a.m["catch-up"]], CatchUpWindowMs: a.dur("window", 0), Labels: keyValues(a, "label-"),
		Template: buildTemplate(a), Paused: a.has("paused"), Overlap: overlaps[a.m["overlap"]],
		CatchUpPerMinute: uint32(a.num("per-minute", 0)), PauseAfterFailures: uint32(a.num("pause-after", 0)),
	}
	if cron := c.Schedule.GetCron(); cron != nil && !a.has("no-horizon") {
		c.HorizonFromMs = sc.now - minuteMS
		c.Horizon = horizonOf(sc.t, cron, c.HorizonFromMs, a)
	}
	return c
}

var overlaps = map[string]storagev1.Overlap{
	"allow": storagev1.Overlap_OVERLAP_ALLOW, "skip": storagev1.Overlap_OVERLAP_SKIP, "queue-one": storagev1.Overlap_OVERLAP_QUEUE_ONE,
	"queue-all": storagev1.Overlap_OVERLAP_QUEUE_ALL, "cancel": storagev1.Overlap_OVERLAP_CANCEL_RUNNING,
}

// horizonOf is what the evaluator would say of a script's cron job: its lines are the length of a regular grid. skip names
// every skip-th as excluded.
func horizonOf(t *testing.T, c *storagev1.Cron, fromMS int64, a args) *storagev1.Horizon {
	step := parseDuration(t, c.Lines[0])
	h := &storagev1.Horizon{ToMs: fromMS, ZoneVersion: a.str("zone", "2025c")}
	skip := a.dur("skip", 0)
	for at := fromMS + floorMod(epochMS-fromMS-1, step) + 1; len(h.NextMs) < int(a.num("n", 4)); at += step {
		switch {
		case c.EndMs != 0 && at > c.EndMs:
			h.Ended = true
			return h
		case skip != 0 && (at-epochMS)%skip == 0:
			h.Skipped = append(h.Skipped, &storagev1.RangeVerdict{FromMs: at, ToMs: at, Count: 1, Why: whySkippedExcluded})
		default:
			h.NextMs = append(h.NextMs, at)
		}
		h.ToMs = at
	}
	return h
}

// buildExpand does as the leader's evaluator: it extends the horizon or, with replace or when the job waits for it, makes a
// new one behind the watermark; pass=… passes over what was missed up to there; line=… is the grid that newer zone data makes
// of the schedule.
func buildExpand(sc *script, a args) *storagev1.Command {
	tenant, jobID := a.str("tenant", "t"), a.str("id", "job")
	j := getJob(sc.s, JobKey(tenant, jobID))
	c := &storagev1.ExpandJob{
		Tenant: tenant, JobId: jobID, Incarnation: j.GetIncarnation(), Version: uint64(a.num("version", int64(j.GetVersion()))),
		FromMs: j.GetHorizon().GetToMs(),
	}
	if a.has("replace") || j.GetNextMs() == 0 {
		c.FromMs = j.GetWatermarkMs()
	}
	if a.has("from") {
		c.FromMs = a.instant("from")
	}
	schedule := j.GetSchedule().GetCron()
	if schedule == nil {
		schedule = &storagev1.Cron{Lines: []string{"1m"}}
	}
	if a.has("line") {
		schedule = &storagev1.Cron{Lines: []string{a.m["line"]}}
	}
	from := c.FromMs
	if a.has("pass") {
		step := parseDuration(sc.t, schedule.Lines[0])
		c.PassedFromMs, c.PassedToMs = from-floorMod(from-epochMS, step)+step, a.instant("pass")
		c.PassedCount = uint64((c.PassedToMs-c.PassedFromMs)/step) + 1
		from = c.PassedToMs
	}
	c.Horizon = horizonOf(sc.t, schedule, from, a)
	return &storagev1.Command{Expand: &storagev1.Expand{Items: []*storagev1.ExpandJob{c}}}
}

func buildUpdate(sc *script, a args) *storagev1.Command {
	u := &storagev1.UpdateJob{
		Tenant: a.str("tenant", "t"), JobId: a.str("id", "job"), IdempotencyKey: a.str("key", ""),
		Hash: hashArgs(a, "key", "version"), ExpectedVersion: uint64(a.num("version", 0)),
		Schedule: buildSchedule(a), CatchUp: catchUps[a.m["catch-up"]], CatchUpWindowMs: a.dur("window", 0),
		Labels: keyValues(a, "label-"), PauseReason: a.str("reason", ""), Pause: buildPause(a), Overlap: overlaps[a.m["overlap"]],
		CatchUpPerMinute: uint32(a.num("per-minute", 0)), PauseAfterFailures: uint32(a.num("pause-after", 0)),
	}
	if cron := u.Schedule.GetCron(); cron != nil && !a.has("no-horizon") {
		u.HorizonFromMs = sc.now - minuteMS
		u.Horizon = horizonOf(sc.t, cron, u.HorizonFromMs, a)
	}
	fields := map[string]string{
		"at": "schedule", "every": "schedule", "delay": "schedule", "catch-up": "catch_up", "window": "catch_up_window",
		"queue": "queue", "priority": "priority", "payload": "payload", "big-payload": "payload", "attempts": "retry",
		"lease": "lease", "deadline": "start_deadline", "retention": "retention", "reason": "pause_reason", "by": "pause", "until": "pause", "rule": "pause", "fairness": "fairness_key",
		"cron": "schedule", "overlap": "overlap", "per-minute": "catch_up_per_minute", "pause-after": "pause_after_failures",
	}
	for k := range a.m {
		field := fields[k]
		if strings.HasPrefix(k, "label-") {
			field = "labels"
		}
		if field != "" && !slices.Contains(u.Fields, field) {
			u.Fields = append(u.Fields, field)
		}
	}
	switch a.cmd {
	case "pause":
		u.Fields, u.State = append(u.Fields, "state"), storagev1.JobState_JOB_STATE_PAUSED
	case "resume":
		u.Fields, u.State = append(u.Fields, "state"), storagev1.JobState_JOB_STATE_ACTIVE
	}
	slices.Sort(u.Fields)
	if slices.ContainsFunc(u.Fields, isTemplateField) {
		u.Template = buildTemplate(a)
	}
	return &storagev1.Command{UpdateJob: u}
}

// buildPut takes a create's words, and version=, new (it must not exist), key=.
func buildPut(sc *script, a args) *storagev1.Command {
	job := buildCreate(sc, a)
	job.KeyHash, job.Hash = 0, hashArgs(a, "key", "version", "new")
	return &storagev1.Command{PutJob: &storagev1.PutJob{
		Job: job, IdempotencyKey: a.str("key", ""), Hash: hashArgs(a, "key", "version"), ExpectedVersion: uint64(a.num("version", 0)),
		MustNotExist: a.has("new"),
	}}
}

func buildDelete(sc *script, a args) *storagev1.Command {
	d := &storagev1.DeleteJob{
		Tenant: a.str("tenant", "t"), JobId: a.str("id", "job"), IdempotencyKey: a.str("key", ""),
		Hash: hashArgs(a, "key", "version"), ExpectedVersion: uint64(a.num("version", 0)),
	}
	if !a.has("no-hints") {
		d.Hints, _ = LiveExecutionKeys(sc.s, d.Tenant, d.JobId, MaxBatch)
	}
	return &storagev1.Command{DeleteJob: d}
}

func buildTrigger(_ *script, a args) *storagev1.Command {
	return &storagev1.Command{TriggerJob: &storagev1.TriggerJob{
		Tenant: a.str("tenant", "t"), JobId: a.str("id", "job"), Discriminator: a.str("key", "k"), Hash: hashArgs(a, "key"),
	}}
}

// buildAdvance takes demand=worker:queue+queue:max,…
func buildAdvance(_ *script, a args) *storagev1.Command {
	adv := &storagev1.Advance{Limit: uint32(a.num("limit", 0))}
	if d := a.str("demand", ""); d != "" {
		for _, one := range strings.Split(d, ",") {
			part := strings.Split(one, ":")
			var n uint32
			_, _ = fmt.Sscan(part[2], &n)
			adv.Demand = append(adv.Demand, &storagev1.Demand{
				ClaimId: "c-" + part[0], Worker: part[0], Queues: strings.Split(part[1], "+"), Max: n, LeaseMs: a.dur("lease", 0),
			})
		}
	}
	return &storagev1.Command{Advance: adv}
}

// buildClaim picks the first max ready executions of a queue, as the dispatcher would.
func buildClaim(sc *script, a args) *storagev1.Command {
	c := &storagev1.Claim{
		ClaimId: a.str("claim", "c-"+a.str("worker", "w")), Worker: a.str("worker", "w"), LeaseMs: a.dur("lease", 0),
	}
	prefix := ReadyQueuePrefix(a.str("queue", "q"))
	ScanReady(sc.s, prefix, PrefixEnd(prefix), func(r ReadyRef) bool {
		if len(c.Picks) >= int(a.num("max", 1)) {
			return false
		}
		c.Picks = append(c.Picks, r.Key)
		return true
	})
	return &storagev1.Command{Claim: c}
}

func (sc *script) lease(a args) (uint64, string) {
	fencing := uint64(a.num("lease", 0))
	e, ok := sc.leases[fencing]
	if !ok {
		sc.t.Fatalf("no lease %d was granted", fencing)
	}
	return fencing, ExecutionID(e)
}

func buildHeartbeat(sc *script, a args) *storagev1.Command {
	fencing, id := sc.lease(a)
	return &storagev1.Command{Heartbeats: &storagev1.Heartbeats{Items: []*storagev1.Heartbeat{{
		ExecutionId: id, Fencing: fencing, ExtendMs: a.dur("extend", 0), Progress: []byte(a.str("progress", "")),
		HasProgress: a.has("progress"),
	}}}}
}

var outcomes = map[string]storagev1.Outcome{
	"succeeded": storagev1.Outcome_OUTCOME_SUCCEEDED, "failed": storagev1.Outcome_OUTCOME_FAILED,
	"final": storagev1.Outcome_OUTCOME_FAILED_FINAL, "snoozed": storagev1.Outcome_OUTCOME_SNOOZED,
	"released": storagev1.Outcome_OUTCOME_RELEASED,
}

func buildComplete(sc *script, a args) *storagev1.Command {
	fencing, id := sc.lease(a)
	c := &storagev1.Completion{
		ExecutionId: id, Fencing: fencing, Outcome: outcomes[a.str("outcome", "succeeded")], Result: []byte(a.str("result", "")),
		Error: a.str("error", ""), UntilMs: a.instant("until"), Worker: a.str("worker", "w"),
	}
	if a.has("retry-after") {
		c.RetryAfterMs, c.HasRetryAfter = a.dur("retry-after", 0), true
	}
	if a.has("big-result") {
		c.Result = make([]byte, a.num("big-result", 0))
	}
	return &storagev1.Command{Completions: &storagev1.Completions{Items: []*storagev1.Completion{c}}}
}

// executionID takes an execution as scripts show it: job/incarnation/kind@nominal, and !discriminator if there is one.
func (sc *script) executionID(a args) string {
	if a.has("lease") {
		_, id := sc.lease(a)
		return id
	}
	s, discriminator, _ := strings.Cut(a.str("execution", ""), "!")
	head, at, ok := strings.Cut(s, "@")
	part := strings.Split(head, "/")
	if !ok || len(part) != 3 {
		sc.t.Fatalf("malformed execution %q", s)
	}
	kind, _ := charKind(part[2][0])
	id := Identity{Tenant: a.str("tenant", "t"), JobID: part[0], Kind: kind, NominalMS: epochMS + parseDuration(sc.t, at), Discriminator: discriminator}
	_, _ = fmt.Sscan(part[1], &id.Incarnation)
	return id.String()
}

func buildCancel(sc *script, a args) *storagev1.Command {
	id := sc.executionID(a)
	_, key, ok := Find(sc.s, id)
	if !ok {
		sc.t.Fatalf("no execution %s", id)
	}
	return &storagev1.Command{CancelExecution: &storagev1.CancelExecution{ExecutionId: id, Hint: key, Reason: a.str("reason", "")}}
}

var taskKinds = map[string]storagev1.TaskKind{
	"requeue": storagev1.TaskKind_TASK_KIND_REQUEUE_DEAD, "purge": storagev1.TaskKind_TASK_KIND_PURGE_DEAD,
	"delete-tenant": storagev1.TaskKind_TASK_KIND_DELETE_TENANT,
}

func buildStartTask(_ *script, a args) *storagev1.Command {
	return &storagev1.Command{StartTask: &storagev1.StartTask{
		Id: a.str("id", "task"), Kind: taskKinds[a.str("kind", "")], Filter: &storagev1.Filter{
			Tenant: a.str("tenant", ""), Queue: a.str("queue", ""), JobId: a.str("job", ""), BeforeMs: a.instant("before"),
			ErrorContains: a.str("error", ""),
		},
	}}
}

// reads show the state.
var reads = map[string]func(*script, *strings.Builder, args){
	"clock": func(*script, *strings.Builder, args) {},
	"job":   showJob,
	"jobs": func(sc *script, out *strings.Builder, a args) {
		jobs, next := ListJobs(sc.s, JobFilter{Tenant: a.str("tenant", "t"), Queue: a.str("queue", ""), IDPrefix: a.str("prefix", "")}, nil, 100, 1000)
		for i := range jobs {
			fmt.Fprintf(out, "%s %s, next %s\n", jobs[i].JobID, jobState(jobs[i].State), show(jobs[i].NextMS))
		}
		if next != nil || len(jobs) == 0 {
			fmt.Fprintf(out, "%d jobs, more %v\n", len(jobs), next != nil)
		}
	},
	"executions": func(sc *script, out *strings.Builder, a args) {
		found, _ := ListExecutions(sc.s, ExecutionFilter{Tenant: a.str("tenant", ""), JobID: a.str("id", ""), Queue: a.str("queue", "")}, nil, 100, 1000)
		for _, e := range found {
			showExecution(sc, out, e)
		}
		if len(found) == 0 {
			out.WriteString("no executions\n")
		}
	},
	"stopped": func(sc *script, out *strings.Builder, _ args) {
		m := ReadMeta(sc.s)
		fmt.Fprintf(out, "parked %d, held %d, ready %d\n", m.Parked, m.Held, m.Ready)
		for _, t := range Tasks(sc.s) {
			fmt.Fprintf(out, "task %s: done %d, seen %d, finished %v\n", t.Id, t.DoneCount, t.SeenCount, t.Finished)
		}
	},
	"versions": func(sc *script, out *strings.Builder, a args) {
		found, _ := ListExecutions(sc.s, ExecutionFilter{Tenant: "t", JobID: a.str("id", "")}, nil, 100, 1000)
		for _, e := range found {
			fmt.Fprintf(out, "%s of version %d, priority %d\n", showID(ExecutionID(e)), e.JobVersion, e.Template.GetPriority())
		}
	},
	"history":     showHistory,
	"occurrences": showOccurrences,
	"count": func(sc *script, out *strings.Builder, _ args) {
		m := ReadMeta(sc.s)
		fmt.Fprintf(out, "jobs %d, waiting %d, ready %d, leased %d, retrying %d, held %d, dead %d\n", m.Jobs, m.Waiting, m.Ready,
			m.Leased, m.Retrying, m.Held, m.Dead)
		fmt.Fprintf(out, "fired %d, succeeded %d, lost %d, stale %d, conflicts %d, duplicates %d, skipped %d\n", m.FiredTotal,
			m.SucceededTotal, m.LostTotal, m.StaleTotal, m.ConflictsTotal, m.DuplicatesTotal, m.SkippedTotal)
	},
	"rows": func(sc *script, out *strings.Builder, a args) {
		n := map[byte]int{}
		for _, k := range sc.s.keys {
			n[k[0]]++
		}
		var words []string
		for k, c := range n {
			if k != KindEvent && k != KindMeta {
				words = append(words, fmt.Sprintf("%c:%d", k, c))
			}
		}
		slices.Sort(words)
		fmt.Fprintf(out, "rows %s\n", strings.Join(words, " "))
	},
	"events": func(sc *script, out *strings.Builder, _ args) {
		Events(sc.s, 0, func(_ uint64, r *storagev1.EventRecord) bool {
			for _, e := range r.Events {
				fmt.Fprintf(out, "%s %s %s\n", show(r.AtMs), strings.ToLower(strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_")), e.JobId)
			}
			return true
		})
	},
	// restart reads the machine from its rows again.
	"restart": func(sc *script, _ *strings.Builder, _ args) { sc.m = Open(1, sc.s) },
}

func showJob(sc *script, out *strings.Builder, a args) {
	v, ok := GetJob(sc.s, a.str("tenant", "t"), a.str("id", "job"))
	if !ok {
		out.WriteString("no such job\n")
		return
	}
	fmt.Fprintf(out, "job %s: %s, version %d, incarnation %d, next %s, runs %d", v.JobID, jobState(v.State), v.Job.Version, v.Job.Incarnation,
		show(v.NextMS), v.Job.Runs)
	if v.Job.Template != nil {
		fmt.Fprintf(out, ", queue %s", v.Job.Template.Queue)
	}
	if len(v.Payload) > 0 {
		fmt.Fprintf(out, ", payload of %d", len(v.Payload))
	}
	if v.Execution != nil {
		fmt.Fprintf(out, ", execution %s", state(v.Execution.State))
	}
	if v.Job.TimerMs != 0 {
		fmt.Fprintf(out, ", timer %s", show(v.Job.TimerMs))
	}
	if h := v.Job.Horizon; h != nil {
		fmt.Fprintf(out, ", horizon%s to %s", shows(h.NextMs), show(h.ToMs))
	}
	if len(v.Job.LiveMs)+len(v.Job.QueuedMs) > 0 {
		fmt.Fprintf(out, ", live%s, queued%s", shows(v.Job.LiveMs), shows(v.Job.QueuedMs))
	}
	if p := v.Job.Pause; p != nil {
		fmt.Fprintf(out, ", by %q until %s rule %d", p.By, show(p.UntilMs), p.Resume)
	}
	if v.Job.Parked {
		out.WriteString(", parked")
	}
	if v.Job.PauseReason != "" {
		fmt.Fprintf(out, ", %q", v.Job.PauseReason)
	}
	out.WriteByte('\n')
}

func shows(all []int64) string {
	out := ""
	for _, ms := range all {
		out += " " + show(ms)
	}
	return out
}

func showExecution(sc *script, out *strings.Builder, e *storagev1.Execution) {
	id := ExecutionID(e)
	fmt.Fprintf(out, "%s %s, attempt %d", showID(id), state(e.State), e.Attempt)
	if found, _, ok := Find(sc.s, id); !ok || found.State != e.State {
		sc.t.Fatalf("%s was listed and is not found", id)
	}
	if e.State == storagev1.ExecutionState_EXECUTION_STATE_RETRYING {
		fmt.Fprintf(out, " at %s", show(e.ReadyMs))
	}
	if e.CancelRequested {
		out.WriteString(", cancel requested")
	}
	if len(e.Result) > 0 {
		fmt.Fprintf(out, ", result %q", e.Result)
	}
	if e.Error != "" {
		fmt.Fprintf(out, ", error %q", e.Error)
	}
	out.WriteByte('\n')
	for _, at := range e.Attempts {
		fmt.Fprintf(out, "  attempt %d, lease %d, %s, %s to %s: %s, then %s\n", at.Number, at.Fencing, at.Worker, show(at.StartedMs),
			show(at.EndedMs), outcome(at.Outcome), state(at.State))
	}
}

func showHistory(sc *script, out *strings.Builder, a args) {
	h := ReadHistory(sc.s, a.str("tenant", "t"), a.str("id", "job"), nil, 1000)
	for _, v := range h.Verdicts {
		fmt.Fprintf(out, "%s to %s: %d %s\n", show(v.FromMs), show(v.ToMs), v.Count, v.Why)
	}
	if a.has("brief") {
		n := map[string]int{}
		for _, e := range h.Executions {
			n[state(e.State)]++
		}
		fmt.Fprintf(out, "executions %v\n", n)
		return
	}
	for _, e := range h.Executions {
		showExecution(sc, out, e)
	}
	for _, e := range h.Late {
		at := e.Attempts[0]
		fmt.Fprintf(out, "late: %s, lease %d, %s at %s: %s\n", showID(ExecutionID(e)), at.Fencing, at.Worker, show(at.EndedMs), outcome(at.Outcome))
	}
	if len(h.Verdicts)+len(h.Executions)+len(h.Late) == 0 {
		out.WriteString("no history\n")
	}
}
