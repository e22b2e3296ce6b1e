package sim

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// model is what the committed entries did, seen from outside: once for each index of a shard, whichever replica applies it
// first. It knows nothing of rows or timers.
type model struct {
	c      *cluster
	shards map[uint32]*shardModel
	// accepted are jobs whose creation was acknowledged, with their incarnations, in the order of their acknowledgement.
	accepted []acceptedJob
}

type acceptedJob struct {
	shard       uint32
	id          string
	incarnation uint64
}

type shardModel struct {
	index uint64
	// since is the stamp at which the last leadership began, fencing the last token given out, offset the next event's.
	since   int64
	fencing uint64
	offset  uint64
	jobs    map[string]uint64
	series  map[string]*series
	// executions by identity; leases by token.
	executions map[fsm.Identity]*execution
	leases     map[uint64]*lease
}

type execution struct {
	// token is the live lease's, 0: none. ended is how it came to its end.
	token uint64
	ended storagev1.EventType
	due   bool
}

type lease struct {
	deadline, length int64
}

func newModel(c *cluster) model {
	m := model{c: c, shards: map[uint32]*shardModel{}}
	for _, shard := range c.shardIDs() {
		m.shards[shard] = &shardModel{
			jobs: map[string]uint64{}, series: map[string]*series{}, executions: map[fsm.Identity]*execution{}, leases: map[uint64]*lease{},
		}
	}
	return m
}

// entry is one entry as the model takes it in.
type entry struct {
	c       *cluster
	shard   uint32
	s       *shardModel
	stampMS int64
	// tokens are what its completions carried.
	tokens map[uint64]bool
	// given are the schedules that its commands gave jobs.
	given map[jobVersion]*storagev1.Schedule
}

// applied takes in an entry, unless it has been.
func (m *model) applied(by *machine, rows fsm.Reader, index uint64, e *storagev1.Entry, results []fsm.Result) {
	s := m.shards[by.shard]
	if index <= s.index {
		return
	}
	s.index = index
	in := entry{c: m.c, shard: by.shard, s: s, stampMS: e.StampMs, tokens: map[uint64]bool{}, given: map[jobVersion]*storagev1.Schedule{}}
	for i, cmd := range e.Commands {
		if cmd.LeaderStart != nil && results[i].Refusal == nil {
			s.since = e.StampMs
		}
		in.granted(results[i].Leases)
		in.stopped(e, rows, results[i].Leases)
		in.schedules(cmd, e.StampMs, results[i])
		for k, h := range cmd.GetHeartbeats().GetItems() {
			in.extended(h, results[i].Items[k])
		}
		for _, item := range cmd.GetCompletions().GetItems() {
			in.tokens[item.Fencing] = true
		}
	}
	fsm.Events(rows, s.offset, func(offset uint64, record *storagev1.EventRecord) bool {
		if record.Index != index {
			m.c.fail("shard %d: event record %d is of entry %d, read at %d", by.shard, offset, record.Index, index)
		}
		s.offset = offset + 1
		for _, ev := range record.Events {
			in.event(ev)
		}
		return true
	})
	in.answered(e, results)
}

// granted notes how long leases are.
func (in *entry) granted(leases []*storagev1.Execution) {
	for _, e := range leases {
		in.s.leases[e.Fencing] = &lease{deadline: e.DeadlineMs, length: e.LeaseLengthMs}
	}
}

// stopped: S5, nothing is leased whose queue, tenant or job is paused. What an entry with a pause or a resume leases may be
// either side of it.
func (in *entry) stopped(e *storagev1.Entry, rows fsm.Reader, leases []*storagev1.Execution) {
	for _, cmd := range e.Commands {
		if cmd.PutQueue != nil || cmd.PutTenant != nil || cmd.UpdateJob != nil {
			return
		}
	}
	for _, x := range leases {
		v, ok := fsm.GetJob(rows, x.Tenant, x.JobId)
		isPaused := ok && v.Job.Incarnation == x.Incarnation && v.State == storagev1.JobState_JOB_STATE_PAUSED
		if isPaused || fsm.QueuePaused(fsm.ReadQueue(rows, x.Template.GetQueue())) || fsm.TenantPaused(fsm.ReadTenant(rows, x.Tenant)) {
			in.c.fail("S5: shard %d: %s is leased under %d, and is paused", in.shard, fsm.ExecutionID(x), x.Fencing)
		}
	}
}

func (in *entry) extended(h *storagev1.Heartbeat, item fsm.Item) {
	l := in.s.leases[h.Fencing]
	if item.Refusal != nil {
		return
	}
	if l == nil {
		in.c.fail("S2: shard %d: a heartbeat under token %d, which is not live, was accepted", in.shard, h.Fencing)
		return
	}
	l.deadline = max(l.deadline, item.DeadlineMS)
}

func identityOf(ev *storagev1.Event) fsm.Identity {
	return fsm.Identity{
		Tenant: ev.Tenant, JobID: ev.JobId, Incarnation: ev.Incarnation, Kind: ev.Kind, NominalMS: ev.NominalMs,
		Discriminator: ev.Discriminator,
	}
}

// event takes in one transition.
func (in *entry) event(ev *storagev1.Event) {
	in.changed(ev)
	switch ev.Type {
	case storagev1.EventType_EVENT_TYPE_JOB_CREATED:
		in.s.jobs[ev.JobId] = ev.Incarnation
		return
	case storagev1.EventType_EVENT_TYPE_READY, storagev1.EventType_EVENT_TYPE_HELD, storagev1.EventType_EVENT_TYPE_LEASED,
		storagev1.EventType_EVENT_TYPE_RETRYING, storagev1.EventType_EVENT_TYPE_SNOOZED,
		storagev1.EventType_EVENT_TYPE_RELEASED, storagev1.EventType_EVENT_TYPE_LOST:
	case storagev1.EventType_EVENT_TYPE_SUCCEEDED, storagev1.EventType_EVENT_TYPE_DEAD,
		storagev1.EventType_EVENT_TYPE_CANCELLED, storagev1.EventType_EVENT_TYPE_EXPIRED, storagev1.EventType_EVENT_TYPE_SKIPPED:
		if ev.Count > 0 {
			in.passed(ev) // a range of instants: no execution
			return
		}
	default:
		return
	}
	id := identityOf(ev)
	x := in.s.executions[id]
	if x == nil {
		x = &execution{}
		in.s.executions[id] = x
		in.accepted(id)
		in.c.note(uint64(in.shard), uint64(id.NominalMS), uint64(ev.Type))
	}
	in.transition(id, x, ev)
}

// transition checks what may follow on what: S1 and S2.
func (in *entry) transition(id fsm.Identity, x *execution, ev *storagev1.Event) {
	if x.ended != 0 {
		in.c.fail("S1: shard %d: %s after %s of %s", in.shard, ev.Type, x.ended, id)
		return
	}
	switch ev.Type {
	case storagev1.EventType_EVENT_TYPE_READY, storagev1.EventType_EVENT_TYPE_HELD:
		in.due(id, x)
		if x.token != 0 {
			in.completed(id, x) // its holder wants it again at once
		}
	case storagev1.EventType_EVENT_TYPE_LEASED:
		in.due(id, x)
		if x.token != 0 {
			in.c.fail("S2: shard %d: %s is leased under %d while %d is live", in.shard, id, ev.Fencing, x.token)
		}
		if ev.Fencing <= in.s.fencing {
			in.c.fail("S2: shard %d: token %d of %s comes after %d", in.shard, ev.Fencing, id, in.s.fencing)
		}
		x.token, in.s.fencing = ev.Fencing, ev.Fencing
		in.c.count(Leased)
		if in.s.leases[ev.Fencing] == nil {
			in.c.fail("S2: shard %d: lease %d of %s was given to nobody", in.shard, ev.Fencing, id)
		}
	case storagev1.EventType_EVENT_TYPE_LOST:
		in.lost(id, x)
	case storagev1.EventType_EVENT_TYPE_RELEASED:
		in.completed(id, x)
	default:
		if x.token != 0 {
			in.completed(id, x)
		}
		if ev.Type != storagev1.EventType_EVENT_TYPE_RETRYING && ev.Type != storagev1.EventType_EVENT_TYPE_SNOOZED {
			x.ended = ev.Type
		}
	}
}

// due: nothing of a schedule begins before its time, by the true clock and what a node's clock may be wrong.
func (in *entry) due(id fsm.Identity, x *execution) {
	if x.due || id.Kind != storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE {
		return
	}
	x.due = true
	if in.c.trueMS()+clockLimit/millisecond < id.NominalMS {
		in.c.fail("shard %d: %s fired early, at %d", in.shard, id, in.c.trueMS())
	}
}

// lost: a lease ends without a word only after its time, which every leadership grants anew.
func (in *entry) lost(id fsm.Identity, x *execution) {
	l := in.s.leases[x.token]
	if l == nil {
		in.c.fail("S2: shard %d: %s lost a lease that it did not have", in.shard, id)
		return
	}
	if end := max(l.deadline, in.s.since+l.length); in.stampMS < end {
		in.c.fail("shard %d: the lease of %s was lost at %d, %d ms before its end; its leadership began at %d",
			in.shard, id, in.stampMS, end-in.stampMS, in.s.since)
	}
	in.c.count(LeaseLost)
	delete(in.s.leases, x.token)
	x.token = 0
}

// completed: a lease's holder has spoken, under its token.
func (in *entry) completed(id fsm.Identity, x *execution) {
	if !in.tokens[x.token] {
		in.c.fail("S2: shard %d: %s was ended under token %d, which no completion carried", in.shard, id, x.token)
	}
	in.c.count(Completed)
	delete(in.s.leases, x.token)
	x.token = 0
}

// answered counts what was refused, and holds creates against their events.
func (in *entry) answered(e *storagev1.Entry, results []fsm.Result) {
	for i, cmd := range e.Commands {
		for k, item := range cmd.GetCreateJobs().GetItems() {
			r := results[i].Items[k]
			if r.Refusal == nil && in.s.jobs[item.JobId] != r.Incarnation {
				in.c.fail("S6: shard %d: create of %s answered incarnation %d, it is %d", in.shard, item.JobId, r.Incarnation,
					in.s.jobs[item.JobId])
			}
			if r.Refusal == nil && !r.Duplicate {
				in.c.count(Created)
			}
		}
		for k := range cmd.GetCompletions().GetItems() {
			if r := results[i].Items[k].Refusal; r != nil && r.Code == fsm.FailedPrecondition {
				in.c.count(StaleRefused)
			}
		}
	}
}

// unfinished says what has not come to its end; empty: nothing.
func (m *model) unfinished() string {
	for _, shard := range m.c.shardIDs() {
		for id, x := range m.shards[shard].executions {
			if x.ended == 0 {
				return fmt.Sprintf("shard %d: %s, token %d", shard, id, x.token)
			}
		}
	}
	return ""
}
