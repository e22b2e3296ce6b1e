package fsm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// TestModel holds the state machine against a model that knows nothing of keys, rows or timers: after each random
// command every job and execution must be in the same state in both, and every nominal instant under one verdict.
// A failure prints the seed; `go test -run TestModel -rapid.seed=N ./fsm` repeats it.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModelTest(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"create": m.create, "advance": m.advance, "claim": m.claim, "complete": m.complete, "heartbeat": m.heartbeat,
			"pause": m.pause, "resume": m.resume, "delete": m.delete, "cancel": m.cancel, "requeue": m.requeue,
			"trigger": m.trigger, "leader": m.leader, "reschedule": m.reschedule, "restart": m.restart, "": m.check,
		})
	})
}

type modelJob struct {
	id          string
	inc         uint64
	state       string
	oneShot     bool
	at          int64
	every       int64
	anchor      int64
	catchUp     storagev1.CatchUp
	watermark   int64
	waiting     bool
	maxAttempts uint32
	// verdicts counts how often each nominal instant of a recurring job was decided.
	verdicts map[int64]string
}

type modelExecution struct {
	id               Identity
	state            string
	attempt, base    uint32
	readyAt          int64
	fencing          uint64
	deadline, length int64
	cancel           bool
	held             bool
}

type modelTest struct {
	t           *rapid.T
	s           *memState
	m           *Machine
	index       uint64
	now         int64
	term        uint64
	leaderSince int64
	jobs        map[string]*modelJob
	executions  map[Identity]*modelExecution
	incarnation uint64
	fencing     uint64
	n           int
	replay      *replay
	seen        uint64
}

func newModelTest(t *rapid.T) *modelTest {
	s := newMemState()
	m := &modelTest{
		t: t, s: s, m: Open(1, s), now: epochMS, jobs: map[string]*modelJob{}, executions: map[Identity]*modelExecution{},
		replay: newReplay(),
	}
	m.leader(t)
	return m
}

func (m *modelTest) apply(c *storagev1.Command) Result {
	m.index++
	results, _ := m.m.Apply(m.s, m.index, &storagev1.Entry{Term: m.term, StampMs: m.now, Commands: []*storagev1.Command{c}})
	m.s.spoil()
	return results[0]
}

func (m *modelTest) leader(*rapid.T) {
	m.term++
	m.leaderSince = m.now
	m.apply(&storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: m.term}})
}

func (m *modelTest) restart(*rapid.T) { m.m = Open(1, m.s) }

func (m *modelTest) template(maxAttempts uint32) *storagev1.Template {
	return &storagev1.Template{Queue: "q", LeaseMs: 30_000, Retry: &storagev1.RetryPolicy{
		MaxAttempts: maxAttempts, FirstDelayMs: 5000, FactorThousandths: 2000,
	}}
}

func (m *modelTest) create(t *rapid.T) {
	m.n++
	j := &modelJob{
		id: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "id"), state: "active", verdicts: map[int64]string{},
		maxAttempts: rapid.Uint32Range(1, 3).Draw(t, "attempts"),
		catchUp:     rapid.SampledFrom([]storagev1.CatchUp{1, 2, 3}).Draw(t, "catch-up"),
		oneShot:     rapid.Bool().Draw(t, "one-shot"),
	}
	c := &storagev1.CreateJob{
		Tenant: "t", JobId: j.id, Hash: encodeU64(uint64(m.n)), CatchUp: j.catchUp, Template: m.template(j.maxAttempts),
	}
	if j.oneShot {
		j.waiting = true
		j.at = m.now + rapid.Int64Range(-100, 1000).Draw(t, "at")*1000
		c.Schedule = &storagev1.Schedule{AtMs: j.at}
	} else {
		j.every, j.anchor = rapid.SampledFrom([]int64{30_000, 60_000, 90_000}).Draw(t, "every"), m.now
		j.watermark = m.now
		c.Schedule = &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: j.every}}
	}
	item := m.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{c}}}).Items[0]
	if old := m.jobs[j.id]; old != nil && old.state != "deleted" {
		if item.Refusal == nil || item.Refusal.Code != AlreadyExists {
			t.Fatalf("create over %s: %+v", j.id, item)
		}
		return
	}
	m.incarnation++
	j.inc = m.incarnation
	if item.Refusal != nil || item.Incarnation != j.inc {
		t.Fatalf("create: %+v, want incarnation %d", item, j.inc)
	}
	m.jobs[j.id] = j
}

// start makes the execution of an occurrence.
func (m *modelTest) start(j *modelJob, kind storagev1.ExecutionKind, nominal int64, discriminator string) {
	id := Identity{"t", j.id, j.inc, kind, nominal, discriminator}
	if m.executions[id] != nil {
		m.t.Fatalf("the model accepted %s twice", id)
	}
	m.executions[id] = &modelExecution{id: id}
	m.again(m.executions[id])
}

// again lets an execution run as soon as its job lets it.
func (m *modelTest) again(e *modelExecution) {
	e.state, e.fencing, e.held, e.cancel = "ready", 0, false, false
	j := m.jobs[e.id.JobID]
	switch {
	case j.inc != e.id.Incarnation || j.state == "deleted":
		e.state = "cancelled"
	case j.state == "paused":
		e.held = true
	}
}

func (m *modelTest) advance(t *rapid.T) {
	m.now += rapid.Int64Range(1, 600).Draw(t, "step") * 1000
	c := &storagev1.Advance{}
	if n := rapid.Uint32Range(0, 3).Draw(t, "demand"); n > 0 {
		c.Demand = []*storagev1.Demand{{ClaimId: "c", Worker: "w", Queues: []string{"q"}, Max: n}}
	}
	before := map[Identity]bool{}
	for id, e := range m.executions {
		before[id] = e.state == "ready"
	}
	for _, id := range m.sorted() {
		switch e := m.executions[id]; {
		case e.state == "leased" && m.now >= max(e.deadline, m.leaderSince+e.length):
			m.lose(e)
		case e.state == "retrying" && m.now >= e.readyAt:
			m.again(e)
		}
	}
	for _, j := range m.jobs {
		m.fire(j)
	}
	for more := true; more; {
		r := m.apply(&storagev1.Command{Advance: c})
		more = r.MoreDue
		m.granted(t, r.Leases, func(e *modelExecution) bool { return !before[e.id] })
		if len(c.Demand) > 0 {
			c.Demand[0].Max -= uint32(len(r.Leases))
		}
	}
}

func (m *modelTest) lose(e *modelExecution) {
	switch {
	case e.cancel:
		e.state, e.fencing, e.cancel = "cancelled", 0, false
	case e.attempt-e.base >= m.maxAttempts(e):
		e.state, e.fencing = "dead", 0
	default:
		m.again(e)
	}
}

// maxAttempts is as the job was when the execution was accepted; updates in this test do not change it.
func (m *modelTest) maxAttempts(e *modelExecution) uint32 {
	found, _, ok := Find(m.s, e.id.String())
	if !ok {
		m.t.Fatalf("no execution %s", e.id)
	}
	return found.Template.Retry.MaxAttempts
}

// fire gives each nominal instant of j up to now its verdict, one by one.
func (m *modelTest) fire(j *modelJob) {
	if j.state != "active" {
		return
	}
	if j.oneShot {
		if !j.waiting || j.at > m.now {
			return
		}
		j.waiting = false
		if m.now-j.at > missedAfterMS && j.catchUp == storagev1.CatchUp_CATCH_UP_NONE {
			j.state = "exhausted"
			m.executions[Identity{"t", j.id, j.inc, 1, j.at, ""}] = &modelExecution{
				id: Identity{"t", j.id, j.inc, 1, j.at, ""}, state: "skipped"}
			return
		}
		m.start(j, storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, j.at, "")
		return
	}
	m.decide(j, func(n int64) bool { return m.now-n > missedAfterMS })
}

// decide goes through the nominal instants above the watermark, of which some were missed.
func (m *modelTest) decide(j *modelJob, missed func(int64) bool) {
	var due []int64
	for n := j.anchor; n <= m.now; n += j.every {
		if n > j.watermark {
			due = append(due, n)
		}
	}
	for i, n := range due {
		if j.verdicts[n] != "" {
			m.t.Fatalf("the model decided %d twice", n)
		}
		newestMissed := missed(n) && (i+1 == len(due) || !missed(due[i+1]))
		switch {
		case missed(n) && j.catchUp == storagev1.CatchUp_CATCH_UP_NONE,
			missed(n) && j.catchUp == storagev1.CatchUp_CATCH_UP_LATEST && !newestMissed:
			j.verdicts[n] = "skipped"
		default:
			j.verdicts[n] = "execution"
			m.start(j, storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, n, "")
		}
		j.watermark = n
	}
}

// granted applies leases to the model; may says which executions could be leased.
func (m *modelTest) granted(t *rapid.T, leases []*storagev1.Execution, may func(*modelExecution) bool) {
	for _, l := range leases {
		e := m.executions[IdentityOf(l)]
		if e == nil || e.state != "ready" || e.held || !may(e) {
			t.Fatalf("leased %s, which the model has as %+v", ExecutionID(l), e)
		}
		m.fencing++
		e.attempt++
		e.state, e.fencing, e.length, e.deadline = "leased", m.fencing, 30_000, m.now+30_000
		if l.Fencing != e.fencing || l.Attempt != e.attempt || l.DeadlineMs != e.deadline {
			t.Fatalf("lease %v, want %+v", l, e)
		}
	}
}

func (m *modelTest) claim(t *rapid.T) {
	c := &storagev1.Claim{ClaimId: "c", Worker: "w"}
	want := 0
	for _, id := range m.sorted() {
		if e := m.executions[id]; e.state == "ready" && rapid.Bool().Draw(t, "pick") {
			probe := &storagev1.Execution{
				Tenant: id.Tenant, JobId: id.JobID, Incarnation: id.Incarnation, Kind: id.Kind, NominalMs: id.NominalMS,
				Discriminator: id.Discriminator, Template: m.template(0),
			}
			c.Picks = append(c.Picks, ReadyKey(probe))
			if !e.held {
				want++
			}
		}
	}
	r := m.apply(&storagev1.Command{Claim: c})
	if len(r.Leases) != want {
		t.Fatalf("%d leases of %d", len(r.Leases), want)
	}
	m.granted(t, r.Leases, func(*modelExecution) bool { return true })
}

// any draws one of the executions, or nil.
func (m *modelTest) any(t *rapid.T, state string) *modelExecution {
	var ids []Identity
	for _, id := range m.sorted() {
		if state == "" || m.executions[id].state == state {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("none")
	}
	return m.executions[rapid.SampledFrom(ids).Draw(t, "execution")]
}

func (m *modelTest) sorted() []Identity {
	ids := make([]Identity, 0, len(m.executions))
	for id := range m.executions {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b Identity) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	return ids
}

func (m *modelTest) complete(t *rapid.T) {
	e := m.any(t, "leased")
	c := &storagev1.Completion{
		ExecutionId: e.id.String(), Fencing: e.fencing, Outcome: storagev1.Outcome(rapid.IntRange(1, 5).Draw(t, "outcome")),
	}
	if c.Outcome == storagev1.Outcome_OUTCOME_SNOOZED {
		c.UntilMs = m.now + 20_000
	}
	stale := rapid.IntRange(0, 4).Draw(t, "stale") == 0 && e.fencing > 1
	maxAttempts := m.maxAttempts(e)
	if stale {
		c.Fencing--
		_, c.Hint, _ = Find(m.s, c.ExecutionId)
	}
	item := m.apply(&storagev1.Command{Completions: &storagev1.Completions{Items: []*storagev1.Completion{c}}}).Items[0]
	if stale {
		if want := m.staleAnswer(e, c); item.Refusal == nil && want != OK || item.Refusal != nil && item.Refusal.Code != want {
			t.Fatalf("stale completion: %+v, want %v", item, want)
		}
		return
	}
	if (item.Refusal != nil) != (e.cancel && c.Outcome == storagev1.Outcome_OUTCOME_SUCCEEDED) {
		t.Fatalf("completion: %+v", item.Refusal)
	}
	m.settle(e, c, maxAttempts)
}

// staleAnswer: OK for the repeated word of an earlier lease of this execution, AlreadyExists for another word, and
// FailedPrecondition for a lease that was lost or was not this execution's.
func (m *modelTest) staleAnswer(e *modelExecution, c *storagev1.Completion) Code {
	found, _, _ := Find(m.s, e.id.String())
	for _, a := range found.Attempts {
		switch {
		case a.Fencing != c.Fencing || a.Outcome == storagev1.Outcome_OUTCOME_LOST:
		case a.Outcome == c.Outcome && a.Digest == completionDigest(c):
			return OK
		default:
			return AlreadyExists
		}
	}
	return FailedPrecondition
}

func (m *modelTest) settle(e *modelExecution, c *storagev1.Completion, maxAttempts uint32) {
	j := m.jobs[e.id.JobID]
	gone := j.inc != e.id.Incarnation || j.state == "deleted"
	e.fencing = 0
	switch {
	case e.cancel:
		e.state = "cancelled"
	case c.Outcome == storagev1.Outcome_OUTCOME_SUCCEEDED:
		e.state = "succeeded"
	case c.Outcome == storagev1.Outcome_OUTCOME_FAILED_FINAL,
		c.Outcome == storagev1.Outcome_OUTCOME_FAILED && e.attempt-e.base >= maxAttempts:
		e.state = "dead"
	case c.Outcome == storagev1.Outcome_OUTCOME_RELEASED:
		e.attempt--
		m.again(e)
	case gone:
		e.state = "cancelled"
	case c.Outcome == storagev1.Outcome_OUTCOME_SNOOZED:
		e.base++
		e.state, e.readyAt = "retrying", c.UntilMs
	default:
		e.state, e.readyAt = "retrying", m.now+5000<<(e.attempt-e.base-1)
	}
	e.cancel = false
}

func (m *modelTest) heartbeat(t *rapid.T) {
	e := m.any(t, "leased")
	extend := rapid.SampledFrom([]int64{0, 10_000, 120_000}).Draw(t, "extend")
	if extend != 0 {
		e.length = extend
	}
	e.deadline = max(e.deadline, m.now+e.length)
	item := m.apply(&storagev1.Command{Heartbeats: &storagev1.Heartbeats{Items: []*storagev1.Heartbeat{{
		ExecutionId: e.id.String(), Fencing: e.fencing, ExtendMs: extend,
	}}}}).Items[0]
	if item.Refusal != nil || item.DeadlineMS != e.deadline || item.CancelRequested != e.cancel {
		t.Fatalf("heartbeat %+v, want %+v", item, e)
	}
}

func (m *modelTest) anyJob(t *rapid.T, state string) *modelJob {
	var ids []string
	for id, j := range m.jobs {
		if j.state == state {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("none")
	}
	slices.Sort(ids)
	return m.jobs[rapid.SampledFrom(ids).Draw(t, "job")]
}

func (m *modelTest) setState(t *rapid.T, j *modelJob, s storagev1.JobState) {
	r := m.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{Tenant: "t", JobId: j.id, Fields: []string{"state"}, State: s}})
	if r.Refusal != nil {
		t.Fatalf("update %s: %+v", j.id, r.Refusal)
	}
}

// live says whether an execution of the job has not ended.
func (m *modelTest) live(j *modelJob) bool {
	for _, e := range m.executions {
		if e.id.JobID == j.id && e.id.Incarnation == j.inc && slices.Contains([]string{"ready", "leased", "retrying"}, e.state) {
			return true
		}
	}
	return false
}

func (m *modelTest) pause(t *rapid.T) {
	j := m.anyJob(t, "active")
	if j.oneShot && !j.waiting && !m.live(j) {
		r := m.apply(&storagev1.Command{UpdateJob: &storagev1.UpdateJob{
			Tenant: "t", JobId: j.id, Fields: []string{"state"}, State: storagev1.JobState_JOB_STATE_PAUSED,
		}})
		if r.Refusal == nil || r.Refusal.Code != FailedPrecondition {
			t.Fatalf("pause of the ended one-shot %s: %+v", j.id, r.Refusal)
		}
		return
	}
	j.state = "paused"
	m.setState(t, j, storagev1.JobState_JOB_STATE_PAUSED)
	// What is ready stays so until it is claimed; then it is held. Either way it cannot be leased.
	for _, e := range m.executions {
		if e.id.JobID == j.id && e.id.Incarnation == j.inc && e.state == "ready" {
			e.held = true
		}
	}
}

func (m *modelTest) resume(t *rapid.T) {
	j := m.anyJob(t, "paused")
	j.state = "active"
	m.setState(t, j, storagev1.JobState_JOB_STATE_ACTIVE)
	for _, e := range m.executions {
		if e.id.JobID == j.id && e.id.Incarnation == j.inc && e.held {
			e.held = false
		}
	}
	if j.oneShot {
		return
	}
	if j.catchUp != storagev1.CatchUp_CATCH_UP_LATEST {
		if j.catchUp == storagev1.CatchUp_CATCH_UP_NONE {
			m.decide(j, func(int64) bool { return true })
		}
		return
	}
	// All instants of the pause but the newest are decided now; that one fires with the next advance.
	newest := j.watermark
	for n := j.anchor; n <= m.now; n += j.every {
		newest = max(newest, n)
	}
	for n := j.anchor; n < newest; n += j.every {
		if n > j.watermark {
			j.verdicts[n], j.watermark = "skipped", n
		}
	}
}

func (m *modelTest) delete(t *rapid.T) {
	j := m.anyJob(t, rapid.SampledFrom([]string{"active", "paused", "exhausted"}).Draw(t, "state"))
	hints, _ := LiveExecutionKeys(m.s, "t", j.id, MaxBatch)
	r := m.apply(&storagev1.Command{DeleteJob: &storagev1.DeleteJob{Tenant: "t", JobId: j.id, Hints: hints}})
	if r.Refusal != nil {
		t.Fatalf("delete %s: %+v", j.id, r.Refusal)
	}
	j.state = "deleted"
	if j.waiting {
		id := Identity{"t", j.id, j.inc, storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, j.at, ""}
		m.executions[id] = &modelExecution{id: id, state: "cancelled"}
		j.waiting = false
	}
	for _, e := range m.executions {
		if e.id.JobID == j.id {
			m.stop(e)
		}
	}
}

func (m *modelTest) stop(e *modelExecution) {
	switch e.state {
	case "leased":
		e.cancel = true
	case "ready", "retrying":
		e.state, e.held = "cancelled", false
	}
}

func (m *modelTest) cancel(t *rapid.T) {
	e := m.any(t, "")
	_, hint, ok := Find(m.s, e.id.String())
	if !ok {
		t.Fatalf("no execution %s", e.id)
	}
	r := m.apply(&storagev1.Command{CancelExecution: &storagev1.CancelExecution{ExecutionId: e.id.String(), Hint: hint}})
	ended := e.state == "succeeded" || e.state == "dead" || e.state == "skipped"
	if r.Refusal != nil || (r.Items[0].Refusal != nil) != ended {
		t.Fatalf("cancel %s in state %s: %+v", e.id, e.state, r)
	}
	m.stop(e)
}

func (m *modelTest) requeue(t *rapid.T) {
	e := m.any(t, "dead")
	item := m.apply(&storagev1.Command{RequeueDead: &storagev1.RequeueDead{ExecutionIds: []string{e.id.String()}}}).Items[0]
	j := m.jobs[e.id.JobID]
	if gone := j.inc != e.id.Incarnation || j.state == "deleted"; (item.Refusal != nil) != gone {
		t.Fatalf("requeue %s: %+v, job gone %v", e.id, item, gone)
	} else if !gone {
		e.base = e.attempt
		m.again(e)
	}
}

func (m *modelTest) trigger(t *rapid.T) {
	j := m.anyJob(t, rapid.SampledFrom([]string{"active", "paused"}).Draw(t, "state"))
	m.n++
	key := fmt.Sprint("k", m.n)
	r := m.apply(&storagev1.Command{TriggerJob: &storagev1.TriggerJob{Tenant: "t", JobId: j.id, Discriminator: key, Hash: []byte{1}}})
	if r.Refusal != nil {
		// A one-shot's execution that has not ended keeps its template.
		if !j.oneShot || j.waiting {
			t.Fatalf("trigger %s: %+v", j.id, r.Refusal)
		}
		return
	}
	m.start(j, storagev1.ExecutionKind_EXECUTION_KIND_TRIGGER, m.now, key)
}

func (m *modelTest) reschedule(t *rapid.T) {
	j := m.anyJob(t, rapid.SampledFrom([]string{"active", "paused"}).Draw(t, "state"))
	u := &storagev1.UpdateJob{Tenant: "t", JobId: j.id, Fields: []string{"schedule"}}
	if j.oneShot {
		at := m.now + rapid.Int64Range(-100, 1000).Draw(t, "at")*1000
		u.Schedule = &storagev1.Schedule{AtMs: at}
		r := m.apply(&storagev1.Command{UpdateJob: u})
		if (r.Refusal == nil) != j.waiting {
			t.Fatalf("reschedule %s: %+v", j.id, r.Refusal)
		}
		if j.waiting {
			j.at = at
		}
		return
	}
	every := rapid.SampledFrom([]int64{30_000, 60_000, 90_000}).Draw(t, "every")
	u.Schedule = &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: every, AnchorMs: m.now}}
	// If it names the same instants, those that have come stay undecided. Else they are decided under the old one.
	if every != j.every || (m.now-j.anchor)%every != 0 {
		if j.state == "active" {
			m.fire(j)
		} else {
			for n := j.anchor; n <= m.now; n += j.every {
				if n > j.watermark {
					j.verdicts[n], j.watermark = "skipped", n
				}
			}
		}
		j.every, j.anchor = every, m.now
		j.watermark = max(j.watermark, m.now)
	}
	if r := m.apply(&storagev1.Command{UpdateJob: u}); r.Refusal != nil {
		t.Fatalf("reschedule %s: %+v", j.id, r.Refusal)
	}
}

// check compares model and rows.
func (m *modelTest) check(t *rapid.T) {
	checkInvariants(t, m.s)
	for id, e := range m.executions {
		found, _, ok := Find(m.s, id.String())
		if !ok || state(found.State) != e.state || found.Attempt != e.attempt || found.Fencing != e.fencing || found.CancelRequested != e.cancel {
			t.Fatalf("execution %s: %v\nwant %+v", id, found, e)
		}
	}
	live := map[Identity]bool{}
	all, _ := ListExecutions(m.s, ExecutionFilter{}, nil, 1<<20, 1<<20)
	for _, e := range all {
		id := IdentityOf(e)
		if live[id] {
			t.Fatalf("execution %s has two rows", id)
		}
		live[id] = true
		if m.executions[id] == nil && e.State != storagev1.ExecutionState_EXECUTION_STATE_WAITING {
			t.Fatalf("execution %s is in no model", id)
		}
	}
	for _, j := range m.jobs {
		v, ok := GetJob(m.s, "t", j.id)
		want := j.state
		if j.oneShot && !j.waiting && want == "active" {
			want = "exhausted"
		}
		if !ok || jobState(v.State) != want || v.Job.Incarnation != j.inc {
			t.Fatalf("job %s: %v %s, want %s", j.id, v.Job, jobState(v.State), want)
		}
		m.checkVerdicts(t, j)
	}
	Events(m.s, m.seen, func(offset uint64, r *storagev1.EventRecord) bool {
		m.replay.apply(t, r)
		m.seen = offset + 1
		return true
	})
	m.replay.compare(t, m.s)
}

// checkVerdicts holds the history of a recurring job against the verdicts of the model.
func (m *modelTest) checkVerdicts(t *rapid.T, j *modelJob) {
	if j.oneShot {
		return
	}
	got := map[int64]string{}
	h := ReadHistory(m.s, "t", j.id, nil, 1<<20)
	for _, e := range h.Executions {
		if e.Incarnation == j.inc && e.Kind == storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE {
			got[e.NominalMs] = "execution"
		}
	}
	skipped := uint64(0)
	for n, v := range j.verdicts {
		if v == "execution" {
			if got[n] != v {
				t.Fatalf("job %s: no execution of %s", j.id, show(n))
			}
			delete(got, n)
			continue
		}
		skipped++
		covered := 0
		for _, r := range h.Verdicts {
			if r.FromMs <= n && n <= r.ToMs {
				covered++
			}
		}
		if covered == 0 || got[n] != "" {
			t.Fatalf("job %s: %s is covered by %d ranges and %q", j.id, show(n), covered, got[n])
		}
	}
	if len(got) != 0 {
		t.Fatalf("job %s: executions beyond the model's: %v", j.id, got)
	}
}
