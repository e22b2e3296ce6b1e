package fsm

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

var record = flag.Bool("record", false, "record the golden log anew: only before a level is released")

// recorder makes a log by driving a machine with random commands that follow from its state.
type recorder struct {
	rng   *rand.Rand
	s     *memState
	m     *Machine
	now   int64
	term  uint64
	n     int
	log   []*storagev1.Entry
	lease map[uint64]string
}

// recordLog makes a log of about n entries from a seed.
func recordLog(seed uint64, n int) *recorder {
	s := newMemState()
	r := &recorder{rng: rand.New(rand.NewPCG(seed, 1)), s: s, m: Open(1, s), now: epochMS, lease: map[uint64]string{}}
	r.entry(r.leader())
	for len(r.log) < n {
		cmds := make([]*storagev1.Command, 1+r.rng.IntN(3))
		for i := range cmds {
			cmds[i] = r.command()
		}
		r.now += r.rng.Int64N(20_000)
		r.entry(cmds...)
		if r.rng.IntN(50) == 0 {
			r.entry(r.leader())
		}
	}
	return r
}

func (r *recorder) leader() *storagev1.Command {
	r.term++
	return &storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: r.term, Store: "store"}}
}

func (r *recorder) entry(cmds ...*storagev1.Command) {
	for i, c := range cmds {
		c.RequestId, c.TraceId = fmt.Sprintf("r%d-%d", len(r.log), i), "trace"
	}
	e := &storagev1.Entry{Term: r.term, StampMs: r.now, Commands: cmds}
	r.log = append(r.log, e)
	results, _ := r.m.Apply(r.s, uint64(len(r.log)), e)
	r.s.spoil()
	for _, res := range results {
		for _, l := range res.Leases {
			r.lease[l.Fencing] = ExecutionID(l)
		}
	}
}

func (r *recorder) job() string { return fmt.Sprintf("job-%d", r.rng.IntN(30)) }

func (r *recorder) tenant() string { return []string{"t", "t-1"}[r.rng.IntN(2)] }

func (r *recorder) command() *storagev1.Command {
	r.n++
	switch r.rng.IntN(20) {
	case 16:
		return r.expand()
	case 17:
		return r.put()
	case 18:
		return r.backfill()
	case 19:
		return r.update()
	case 0, 1:
		return &storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{r.create(), r.create()}}}
	case 2, 3, 4:
		adv := &storagev1.Advance{Limit: uint32(r.rng.IntN(20))}
		if r.rng.IntN(2) == 0 {
			adv.Demand = []*storagev1.Demand{{ClaimId: fmt.Sprint("c", r.n), Worker: "w1", Queues: []string{"q0", "q1"}, Max: 5}}
		}
		return &storagev1.Command{Advance: adv}
	case 5:
		c := &storagev1.Claim{ClaimId: fmt.Sprint("c", r.n), Worker: "w2", LeaseMs: 10_000}
		ScanReady(r.s, nil, nil, func(ref ReadyRef) bool { c.Picks = append(c.Picks, ref.Key); return len(c.Picks) < 6 })
		return &storagev1.Command{Claim: c}
	case 6, 7:
		return r.complete()
	case 8:
		h := &storagev1.Heartbeats{}
		ScanLeases(r.s, func(e *storagev1.Execution) bool {
			h.Items = append(h.Items, &storagev1.Heartbeat{ExecutionId: ExecutionID(e), Fencing: e.Fencing, HasProgress: true, Progress: []byte("half")})
			return len(h.Items) < 3
		})
		return &storagev1.Command{Heartbeats: h}
	case 9:
		return r.update()
	case 10:
		return r.remove()
	case 11:
		return &storagev1.Command{TriggerJob: &storagev1.TriggerJob{
			Tenant: r.tenant(), JobId: r.job(), Discriminator: fmt.Sprint("d", r.rng.IntN(5)), Hash: []byte{byte(r.rng.IntN(2))},
		}}
	case 12:
		return r.settings()
	case 13, 14:
		return r.step()
	default:
		if r.rng.IntN(10) == 0 {
			r.now += r.rng.Int64N(2 * dayMS)
		}
		return &storagev1.Command{Housekeep: &storagev1.Housekeep{Limit: 50, EventsMaxAgeMs: dayMS}}
	}
}

func (r *recorder) create() *storagev1.CreateJob {
	c := &storagev1.CreateJob{
		Tenant: r.tenant(), JobId: r.job(), Hash: encodeU64(uint64(r.n)), CatchUp: storagev1.CatchUp(r.rng.IntN(4)),
		Labels: []*storagev1.KeyValue{{Key: "k", Value: fmt.Sprint("v", r.rng.IntN(2))}}, Paused: r.rng.IntN(9) == 0,
		Template: &storagev1.Template{
			Queue: fmt.Sprint("q", r.rng.IntN(3)), Priority: uint32(r.rng.IntN(10)), FairnessKey: []string{"", "f"}[r.rng.IntN(2)],
			Payload: make([]byte, []int{10, 100, 2000}[r.rng.IntN(3)]), RetentionMs: []int64{0, hourMS, 40 * dayMS}[r.rng.IntN(3)],
			StartDeadlineMs: []int64{0, 30_000}[r.rng.IntN(2)],
			Retry:           &storagev1.RetryPolicy{MaxAttempts: uint32(r.rng.IntN(4)), FirstDelayMs: 2000, FactorThousandths: 1500, JitterThousandths: 300},
		},
	}
	switch r.rng.IntN(5) {
	case 0:
		c.Schedule = &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 10_000 * (1 + r.rng.Int64N(5)), MaxRuns: uint64(r.rng.IntN(20))}}
		r.recurring(c)
	case 1:
		c.Schedule = r.cron()
		if r.rng.IntN(4) > 0 {
			c.HorizonFromMs = r.now - minuteMS
			c.Horizon = r.horizon(c.Schedule.Cron, c.HorizonFromMs)
		}
		r.recurring(c)
	default:
		c.Schedule = &storagev1.Schedule{DelayMs: r.rng.Int64N(60_000)}
	}
	return c
}

// recurring draws what only recurring jobs have.
func (r *recorder) recurring(c *storagev1.CreateJob) {
	c.Overlap = storagev1.Overlap(r.rng.IntN(6))
	c.CatchUpPerMinute = []uint32{0, 1, 60, 600}[r.rng.IntN(4)]
	c.PauseAfterFailures = uint32(r.rng.IntN(3))
	c.CatchUpWindowMs = []int64{0, 5 * minuteMS}[r.rng.IntN(2)]
	if c.Schedule.SpreadMs = []int64{0, 0, 30_000}[r.rng.IntN(3)]; c.Schedule.SpreadMs > 0 {
		c.Schedule.OffsetMs = r.rng.Int64N(c.Schedule.SpreadMs)
	}
}

// cron draws a calendar schedule: a grid, whose step stands where its lines do.
func (r *recorder) cron() *storagev1.Schedule {
	step := 10_000 * (1 + r.rng.Int64N(5))
	return &storagev1.Schedule{Cron: &storagev1.Cron{Lines: []string{fmt.Sprint(step)}, MaxRuns: uint64(r.rng.IntN(20))}}
}

// horizon is what an evaluator would say of such a schedule; every seventh instant of it is excluded.
func (r *recorder) horizon(c *storagev1.Cron, fromMS int64) *storagev1.Horizon {
	step, err := strconv.ParseInt(c.Lines[0], 10, 64)
	if err != nil {
		panic(err)
	}
	h := &storagev1.Horizon{ToMs: fromMS, ZoneVersion: []string{"2025c", "2026a"}[r.rng.IntN(2)]}
	for n := 1 + r.rng.IntN(12); len(h.NextMs) < n; {
		h.ToMs += step - floorMod(h.ToMs-epochMS, step)
		if (h.ToMs-epochMS)/step%7 == 0 {
			h.Skipped = append(h.Skipped, &storagev1.RangeVerdict{FromMs: h.ToMs, ToMs: h.ToMs, Count: 1, Why: whySkippedExcluded})
			continue
		}
		h.NextMs = append(h.NextMs, h.ToMs)
	}
	return h
}

// expand answers jobs that wait for their horizon, and others, as an evaluator would: sometimes too late, sometimes anew.
func (r *recorder) expand() *storagev1.Command {
	x := &storagev1.Expand{}
	r.s.Scan([]byte{KindJob}, []byte{KindJob + 1}, func(key, value []byte) bool {
		tenant, jobID, _ := parseJobKey(key, KindJob)
		j := &storagev1.Job{}
		mustDecode(key, value, j.UnmarshalVT)
		if j.Schedule.GetCron() == nil || r.rng.IntN(2) == 0 && j.NextMs != 0 {
			return true
		}
		c := &storagev1.ExpandJob{
			Tenant: tenant, JobId: jobID, Incarnation: j.Incarnation, Version: j.Version - r.rng.Uint64N(10)/9, FromMs: j.Horizon.GetToMs(),
		}
		if j.NextMs == 0 || r.rng.IntN(3) == 0 {
			c.FromMs = j.WatermarkMs
		}
		c.Horizon = r.horizon(j.Schedule.Cron, c.FromMs)
		if next := c.Horizon.NextMs; len(next) > 1 && c.FromMs == j.WatermarkMs && r.rng.IntN(2) == 0 {
			// Refused unless they were missed and the rule allows it.
			pass := 1 + r.rng.IntN(len(next)-1)
			c.PassedFromMs, c.PassedToMs, c.PassedCount = next[0], next[pass-1], uint64(pass)
			c.Horizon.NextMs = next[pass:]
			c.Horizon.Skipped = slices.DeleteFunc(c.Horizon.Skipped, func(v *storagev1.RangeVerdict) bool { return v.ToMs <= c.PassedToMs })
		}
		x.Items = append(x.Items, c)
		return len(x.Items) < 8
	})
	return &storagev1.Command{Expand: x}
}

func (r *recorder) complete() *storagev1.Command {
	c := &storagev1.Completions{}
	ScanLeases(r.s, func(e *storagev1.Execution) bool {
		c.Items = append(c.Items, &storagev1.Completion{
			ExecutionId: ExecutionID(e), Fencing: e.Fencing, Outcome: storagev1.Outcome(1 + r.rng.IntN(5)), Error: "error",
			Result: []byte("result"), UntilMs: r.now + r.rng.Int64N(30_000), Worker: "w",
		})
		return len(c.Items) < 4
	})
	if fencing := 1 + r.rng.Uint64N(r.m.Meta().Fencing+1); r.lease[fencing] != "" {
		_, hint, _ := Find(r.s, r.lease[fencing])
		c.Items = append(c.Items, &storagev1.Completion{
			ExecutionId: r.lease[fencing], Fencing: fencing, Outcome: storagev1.Outcome_OUTCOME_SUCCEEDED, Worker: "late", Hint: hint,
		})
	}
	return &storagev1.Command{Completions: c}
}

func (r *recorder) update() *storagev1.Command {
	u := &storagev1.UpdateJob{
		Tenant: r.tenant(), JobId: r.job(), IdempotencyKey: []string{"", fmt.Sprint("k", r.rng.IntN(9))}[r.rng.IntN(2)], Hash: []byte{byte(r.rng.IntN(3))},
	}
	switch r.rng.IntN(11) {
	case 7, 8:
		r.otherFields(u)
	case 9:
		u.Fields, u.State = []string{"state", "pause"}, storagev1.JobState_JOB_STATE_ACTIVE
		u.Pause = &storagev1.Pause{Resume: storagev1.CatchUp(r.rng.IntN(4))}
	case 10:
		u.Fields, u.PauseReason = []string{"pause", "pause_reason"}, "longer"
		u.Pause = &storagev1.Pause{UntilMs: r.now + r.rng.Int64N(hourMS), Resume: storagev1.CatchUp(r.rng.IntN(4))}
	case 4:
		u.Fields, u.Overlap = []string{"overlap"}, storagev1.Overlap(r.rng.IntN(6))
	case 5:
		u.Fields, u.Schedule = []string{"schedule"}, r.cron()
		u.HorizonFromMs = r.now - minuteMS
		u.Horizon = r.horizon(u.Schedule.Cron, u.HorizonFromMs)
	case 0:
		u.Fields, u.State = []string{"state", "pause"}, storagev1.JobState_JOB_STATE_PAUSED
		if r.rng.IntN(2) == 0 {
			u.Pause = &storagev1.Pause{UntilMs: r.now + r.rng.Int64N(hourMS), Resume: storagev1.CatchUp(r.rng.IntN(4))}
		}
	case 6:
		u.Fields, u.Labels = []string{"labels"}, []*storagev1.KeyValue{{Key: "k", Value: "v0"}}
	case 1:
		u.Fields, u.State = []string{"state"}, storagev1.JobState_JOB_STATE_ACTIVE
	case 2:
		u.Fields, u.Template = []string{"payload", "priority"}, &storagev1.Template{Payload: make([]byte, 1500), Priority: 1}
	default:
		u.Fields, u.Schedule = []string{"schedule"}, &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 15_000}}
	}
	return &storagev1.Command{UpdateJob: u}
}

// otherFields draws some of the fields that neither move a schedule nor pause.
func (r *recorder) otherFields(u *storagev1.UpdateJob) {
	c := r.create()
	r.recurring(c)
	u.Template, u.CatchUp, u.CatchUpWindowMs, u.CatchUpPerMinute = c.Template, c.CatchUp, c.CatchUpWindowMs, c.CatchUpPerMinute
	u.Overlap, u.PauseAfterFailures, u.Labels = c.Overlap, c.PauseAfterFailures, c.Labels
	for _, field := range [...]string{
		"catch_up", "catch_up_window", "catch_up_per_minute", "overlap", "pause_after_failures", "labels", "queue", "priority",
		"fairness_key", "payload", "headers", "retry", "lease", "start_deadline", "retention",
	} {
		if r.rng.IntN(5) == 0 {
			u.Fields = append(u.Fields, field)
		}
	}
}

// put draws a definition: one of its own, or what the job is with something changed, or nothing.
func (r *recorder) put() *storagev1.Command {
	c := r.create()
	c.KeyHash, c.Paused = 0, false
	if v, ok := GetJob(r.s, c.Tenant, c.JobId); ok && v.Job.Template != nil && r.rng.IntN(3) > 0 {
		j := v.Job.CloneVT()
		c.Schedule, c.Labels, c.CatchUp, c.CatchUpWindowMs = j.Schedule, j.Labels, j.CatchUp, j.CatchUpWindowMs
		c.CatchUpPerMinute, c.PauseAfterFailures, c.Template = j.CatchUpPerMinute, j.PauseAfterFailures, j.Template
		c.Template.Payload, c.Template.BlobVersion, c.Template.BlobSize = v.Payload, 0, 0
		if every := c.Schedule.GetEvery(); every != nil && r.rng.IntN(3) == 0 {
			every.MaxRuns = uint64(r.rng.IntN(20))
		}
	}
	if cron := c.Schedule.GetCron(); cron != nil {
		c.HorizonFromMs = r.now - minuteMS
		c.Horizon = r.horizon(cron, c.HorizonFromMs)
	}
	return &storagev1.Command{PutJob: &storagev1.PutJob{
		Job: c, IdempotencyKey: []string{"", fmt.Sprint("p", r.rng.IntN(9))}[r.rng.IntN(2)], Hash: c.Hash, MustNotExist: r.rng.IntN(9) == 0,
	}}
}

// backfill starts one of a recurring job, or cancels one.
func (r *recorder) backfill() *storagev1.Command {
	tenant, jobID, id := r.tenant(), r.job(), fmt.Sprint("b", r.rng.IntN(4))
	for range 20 {
		if j := getJob(r.s, JobKey(tenant, jobID)); j != nil && !isOneShot(j) {
			break
		}
		jobID = r.job()
	}
	if r.rng.IntN(6) == 0 {
		return &storagev1.Command{CancelBackfill: &storagev1.CancelBackfill{Tenant: tenant, JobId: jobID, Id: id}}
	}
	return &storagev1.Command{StartBackfill: &storagev1.StartBackfill{
		Tenant: tenant, JobId: jobID, Id: id, Hash: []byte{1}, FromMs: r.now - 2*minuteMS - r.rng.Int64N(5*minuteMS), ToMs: r.now - r.rng.Int64N(2*minuteMS),
		Max: 1000, InTurn: r.rng.IntN(2) == 0, HasPriority: r.rng.IntN(2) == 0, Priority: 3,
		ExpectedVersion: getJob(r.s, JobKey(tenant, jobID)).GetVersion(),
	}}
}

func (r *recorder) remove() *storagev1.Command {
	switch r.rng.IntN(4) {
	case 0:
		d := &storagev1.DeleteJob{Tenant: r.tenant(), JobId: r.job(), IdempotencyKey: []string{"", "k"}[r.rng.IntN(2)]}
		d.Hints, _ = LiveExecutionKeys(r.s, d.Tenant, d.JobId, 5)
		return &storagev1.Command{DeleteJob: d}
	case 1:
		dead, _ := ListDead(r.s, ExecutionFilter{}, nil, 3, 1000)
		var ids []string
		for _, e := range dead {
			ids = append(ids, ExecutionID(e))
		}
		if r.rng.IntN(2) == 0 {
			return &storagev1.Command{PurgeDead: &storagev1.PurgeDead{ExecutionIds: ids}}
		}
		return &storagev1.Command{RequeueDead: &storagev1.RequeueDead{ExecutionIds: ids}}
	case 2:
		found, _ := ListExecutions(r.s, ExecutionFilter{}, nil, 20, 1000)
		if len(found) == 0 {
			return &storagev1.Command{}
		}
		id := ExecutionID(found[r.rng.IntN(len(found))])
		_, hint, _ := Find(r.s, id)
		return &storagev1.Command{CancelExecution: &storagev1.CancelExecution{ExecutionId: id, Hint: hint}}
	default:
		id := fmt.Sprint("task", r.rng.IntN(8))
		if r.rng.IntN(2) == 0 {
			return &storagev1.Command{StartTask: &storagev1.StartTask{
				Id: id, Kind: storagev1.TaskKind(2 + r.rng.IntN(2)), Filter: &storagev1.Filter{Tenant: r.tenant()},
			}}
		}
		return &storagev1.Command{StepTask: &storagev1.StepTask{Id: id, Limit: 3}}
	}
}

func (r *recorder) settings() *storagev1.Command {
	pause := &storagev1.Pause{By: "somebody", Resume: storagev1.CatchUp(r.rng.IntN(4))}
	if r.rng.IntN(2) == 0 {
		pause.UntilMs = r.now + r.rng.Int64N(60_000)
	}
	isPaused := r.rng.IntN(3) == 0
	switch r.rng.IntN(4) {
	case 0:
		return &storagev1.Command{PutTenant: &storagev1.TenantSettings{
			Name: r.tenant(), Version: uint64(r.n), Paused: isPaused, Pause: pause,
		}}
	case 1:
		return &storagev1.Command{PutPauseRule: &storagev1.PauseRule{
			Id: fmt.Sprint("rule", r.rng.IntN(2)), Version: uint64(r.n), Tenant: []string{"", "t"}[r.rng.IntN(2)], Pause: pause,
			Deleted: !isPaused, Labels: []*storagev1.LabelSelector{{Key: "k", Value: "v0"}, {Key: "k", AnyValue: true}},
		}}
	default:
		return &storagev1.Command{PutQueue: &storagev1.QueueSettings{
			Name: fmt.Sprint("q", r.rng.IntN(3)), Version: uint64(r.n), Paused: isPaused, DeadRetentionMs: hourMS, Pause: pause,
		}}
	}
}

// step advances one of the tasks that have been left open.
func (r *recorder) step() *storagev1.Command {
	open := slices.DeleteFunc(Tasks(r.s), func(t *storagev1.Task) bool { return t.Finished })
	if len(open) == 0 {
		return r.settings()
	}
	task := open[r.rng.IntN(len(open))]
	c := &storagev1.StepTask{Id: task.Id, Limit: 3}
	if b := task.Backfill; b.GetSchedule().GetCron() != nil {
		// What the leader's evaluator hands in, now and then from where it does not go on.
		c.FromMs, c.ToMs = b.HandedMs-r.rng.Int64N(10)/9, b.ToMs
		for _, at := range r.horizon(b.Schedule.Cron, c.FromMs).NextMs {
			if at > b.ToMs {
				break
			}
			if len(c.InstantsMs) == int(c.Limit) {
				c.ToMs = c.InstantsMs[len(c.InstantsMs)-1]
				break
			}
			c.InstantsMs = append(c.InstantsMs, at)
		}
	}
	return &storagev1.Command{StepTask: c}
}

// encodeLog writes entries one after the other, each behind its length.
func encodeLog(log []*storagev1.Entry) []byte {
	var b []byte
	for _, e := range log {
		row := mustEncode(e.MarshalVT())
		b = append(binary.AppendUvarint(b, uint64(len(row))), row...)
	}
	return b
}

func decodeLog(t testing.TB, b []byte) (log []*storagev1.Entry) {
	t.Helper()
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || uint64(len(b)-size) < n {
			t.Fatal("torn log")
		}
		e := &storagev1.Entry{}
		if err := e.UnmarshalVTUnsafe(b[size : size+int(n)]); err != nil {
			t.Fatal(err)
		}
		log, b = append(log, e), b[size+int(n):]
	}
	return log
}

// replayLog applies entries from index on to a clone of s, by a machine opened on it.
func replayLog(s *memState, from int, log []*storagev1.Entry) *memState {
	c := s.clone()
	m := Open(1, c)
	for i, e := range log {
		m.Apply(c, uint64(from+i+1), e)
	}
	return c
}

// TestReplay: a log replayed from its bytes gives the same rows to the byte, at once or from a snapshot in the middle. The
// seed stands in the test's name.
func TestReplay(t *testing.T) {
	for seed := uint64(1); seed <= 8; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := recordLog(seed, 600)
			checkInvariants(t, r.s)
			log := decodeLog(t, encodeLog(r.log))
			whole := replayLog(newMemState(), 0, log)
			if whole.hash() != r.s.hash() {
				t.Fatalf("replayed rows differ: %s, recorded %s", whole.hash(), r.s.hash())
			}
			for _, cut := range []int{1, len(log) / 3, len(log) - 1} {
				snapshot := replayLog(newMemState(), 0, log[:cut])
				if got := replayLog(snapshot, cut, log[cut:]).hash(); got != r.s.hash() {
					t.Fatalf("rows from a snapshot at %d differ: %s, recorded %s", cut, got, r.s.hash())
				}
			}
		})
	}
}

// TestGoldenLog replays a log that was recorded when its level was current: its rows must stay the same for ever.
func TestGoldenLog(t *testing.T) {
	dir := filepath.Join("testdata", "golden")
	if *record {
		r := recordLog(42, 400)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "level1.log"), encodeLog(r.log), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "level1.hash"), []byte(r.s.hash()+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "level1.log"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(dir, "level1.hash"))
	if err != nil {
		t.Fatal(err)
	}
	log := decodeLog(t, b)
	if len(log) < 400 {
		t.Fatalf("%d entries", len(log))
	}
	if got := replayLog(newMemState(), 0, log).hash(); got != strings.TrimSpace(string(want)) {
		t.Fatalf("the golden log gives rows %s, recorded were %s", got, want)
	}
}

// TestStaleTerm: an entry of another leadership changes nothing at all.
func TestStaleTerm(t *testing.T) {
	r := recordLog(3, 100)
	before := r.s.hash()
	for _, term := range []uint64{0, r.term - 1, r.term + 1} {
		e := &storagev1.Entry{Term: term, StampMs: r.now + dayMS, Commands: []*storagev1.Command{r.command(), r.command()}}
		results, effects := r.m.Apply(r.s, 1000, e)
		for _, res := range results {
			if res.Refusal == nil || res.Refusal.Code != StaleTerm {
				t.Fatalf("term %d: %+v", term, res.Refusal)
			}
		}
		if len(effects.Timers)+len(effects.Ready)+len(effects.Ended) > 0 {
			t.Fatalf("term %d: effects %+v", term, effects)
		}
	}
	for _, start := range []*storagev1.LeaderStart{{Term: r.term}, {Term: r.term - 1}, {Term: r.term + 2}} {
		e := &storagev1.Entry{Term: r.term + 1, StampMs: r.now, Commands: []*storagev1.Command{{LeaderStart: start}}}
		if res, _ := r.m.Apply(r.s, 1001, e); res[0].Refusal == nil || res[0].Refusal.Code != StaleTerm {
			t.Fatalf("start %v: %+v", start, res[0].Refusal)
		}
	}
	if r.s.hash() != before {
		t.Fatal("a stale entry changed rows")
	}
}
