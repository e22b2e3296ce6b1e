package fsm

import (
	"fmt"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Machine is one shard's state machine: the few rows it keeps decoded, and scratch space. Everything else stands in the
// State that Apply is given. It belongs to one goroutine; after the shard's rows were replaced (a snapshot), open anew.
type Machine struct {
	shard   uint32
	meta    *storagev1.Meta
	stops   map[jobName]stop
	queues  map[string]*storagev1.QueueSettings
	tenants map[string]*storagev1.TenantSettings
	rules   map[string]*storagev1.PauseRule
	// holding are the rules that pause something.
	holding []*storagev1.PauseRule
	// releases are the tasks of pauses around jobs that have ended, until each has finished: of the last that ended first.
	releases []*storagev1.Task

	// Positions in the timer and expiry indexes below which no live row stands: scans start there and not among the
	// tombstones of what was popped. Only meta.low_water_ms of them is state, so that they never change a result.
	timersFrom []byte
	expiryFrom []byte

	events eventBuffer
	// Scratch of the create path: rows are encoded from them and never refer to them.
	job       storagev1.Job
	execution storagev1.Execution
}

// jobName is a job within its shard.
type jobName struct{ tenant, jobID string }

// Open reads what a machine keeps in memory of a shard's rows; no rows at all are a fresh shard.
func Open(shard uint32, r Reader) *Machine {
	m := &Machine{
		shard: shard, meta: &storagev1.Meta{Level: 1}, stops: map[jobName]stop{},
		queues: map[string]*storagev1.QueueSettings{}, tenants: map[string]*storagev1.TenantSettings{},
		rules: map[string]*storagev1.PauseRule{}, expiryFrom: []byte{KindExpiry},
	}
	if value, ok := r.Get(MetaKey()); ok {
		mustDecode(MetaKey(), value, m.meta.UnmarshalVT)
	}
	if m.meta.Level > MaxLevel {
		panic(UnsupportedLevel{shard, m.meta.Level})
	}
	m.timersFrom = timerStart(m.meta.LowWaterMs)
	r.Scan([]byte{KindStop}, []byte{KindStop + 1}, func(key, value []byte) bool {
		tenant, jobID, ok := parseJobKey(key, KindStop)
		s, okValue := decodeStop(value)
		if !ok || !okValue {
			panic(corrupt(key))
		}
		m.stops[jobName{tenant, jobID}] = s
		return true
	})
	m.loadSettings(r)
	return m
}

// Meta is the shard's own row as it stands. It must not be changed; it changes with the next Apply.
func (m *Machine) Meta() *storagev1.Meta { return m.meta }

// Apply applies a committed entry to s and returns one result for each of its commands. It never fails on what an entry
// says; it panics when a row cannot be read (CorruptRow) or when the log asks for what this binary does not know
// (UnsupportedLevel): the node stops. e must not change as long as the results are in use.
func (m *Machine) Apply(s State, index uint64, e *storagev1.Entry) ([]Result, Effects) {
	a := &apply{m: m, s: s, meta: m.meta, index: index, stamp: e.StampMs}
	results := make([]Result, len(e.Commands))
	first := a.leaderStart(e, results)
	if e.Term != m.meta.LeaderTerm || e.Term == 0 {
		for i := first; i < len(results); i++ {
			results[i].Refusal = refuse(StaleTerm, "proposed in term %d; the shard's is %d", e.Term, m.meta.LeaderTerm)
		}
		return results, a.effects
	}
	m.meta.ClockMs = max(m.meta.ClockMs, a.stamp)
	m.events.reset()
	for i := first; i < len(results); i++ {
		a.command = e.Commands[i]
		a.leases, a.work = nil, 0
		results[i] = a.run(a.command)
		results[i].Leases = a.leases
	}
	a.finish()
	return results, a.effects
}

// apply is the application of one entry.
type apply struct {
	m    *Machine
	s    State
	meta *storagev1.Meta

	index uint64
	// stamp decides what is due and where new instants stand; meta.clock_ms orders what is recorded.
	stamp   int64
	effects Effects

	command *storagev1.Command
	// open is the job that the command has in hand, if it has one whose executions may end meanwhile.
	open openJob
	// dropped are timers that an advance took out of the index otherwise than by firing them: it has read them already. Only
	// while advancing, and nil as long as there is none.
	advancing bool
	dropped   map[string]bool
	// leases granted by the command; work counts the executions it dealt with.
	leases []*storagev1.Execution
	work   int

	// searched counts the rows that the whole entry has read to find live executions.
	searched int

	// The leases of the whole entry, which share one timer row.
	firstFencing, lastFencing uint64
	leaseEndMS                int64
}

// leaderStart begins a leadership if the entry does, and returns how many results it filled in.
func (a *apply) leaderStart(e *storagev1.Entry, results []Result) int {
	if len(e.Commands) == 0 || e.Commands[0].LeaderStart == nil {
		return 0
	}
	start := e.Commands[0].LeaderStart
	if start.Term != e.Term || start.Term <= a.meta.LeaderTerm {
		results[0].Refusal = refuse(StaleTerm, "leadership of term %d; the shard's is %d", start.Term, a.meta.LeaderTerm)
		return 1
	}
	a.meta.LeaderTerm = start.Term
	a.meta.LeaderStore = start.Store
	a.meta.LeaderSinceMs = a.stamp
	return 1
}

func (a *apply) run(c *storagev1.Command) Result {
	switch {
	case c.CreateJobs != nil:
		return a.createJobs(c.CreateJobs)
	case c.Advance != nil:
		return a.advance(c.Advance)
	case c.Claim != nil:
		return a.claim(c.Claim)
	case c.Completions != nil:
		return a.completions(c.Completions)
	case c.Heartbeats != nil:
		return a.heartbeats(c.Heartbeats)
	case c.UpdateJob != nil:
		return a.updateJob(c.UpdateJob)
	case c.PutJob != nil:
		return a.putJob(c.PutJob)
	case c.DeleteJob != nil:
		return a.deleteJob(c.DeleteJob)
	case c.TriggerJob != nil:
		return a.triggerJob(c.TriggerJob)
	case c.CancelExecution != nil:
		return a.cancelExecution(c.CancelExecution)
	case c.RequeueDead != nil:
		return a.requeueDead(c.RequeueDead.ExecutionIds)
	case c.PurgeDead != nil:
		return a.purgeDead(c.PurgeDead.ExecutionIds)
	case c.StartTask != nil:
		return a.startTask(c.StartTask)
	case c.StartBackfill != nil:
		return a.startBackfill(c.StartBackfill)
	case c.CancelBackfill != nil:
		return a.cancelBackfill(c.CancelBackfill)
	case c.StepTask != nil:
		return a.stepTask(c.StepTask)
	case c.PutQueue != nil:
		return a.putQueue(c.PutQueue)
	case c.PutTenant != nil:
		return a.putTenant(c.PutTenant)
	case c.PutPauseRule != nil:
		return a.putPauseRule(c.PutPauseRule)
	case c.Housekeep != nil:
		return a.housekeep(c.Housekeep)
	case c.RaiseLevel != nil:
		return a.raiseLevel(c.RaiseLevel)
	case c.Verify != nil:
		return a.verify(c.Verify)
	case c.Expand != nil:
		return a.expand(c.Expand)
	case c.SetZoneVersion != nil:
		return a.setZoneVersion(c.SetZoneVersion)
	case c.LeaderStart != nil:
		return Result{Refusal: refuse(InvalidArgument, "a leadership starts with its entry's first command")}
	default:
		return Result{Refusal: refuse(InvalidArgument, "empty command")}
	}
}

func (a *apply) raiseLevel(c *storagev1.RaiseLevel) Result {
	if c.Level > MaxLevel {
		panic(UnsupportedLevel{a.m.shard, c.Level})
	}
	a.meta.Level = max(a.meta.Level, c.Level)
	return Result{}
}

// verify changes nothing: it has each replica look at its rows.
func (a *apply) verify(c *storagev1.Verify) Result {
	if c.Id == "" || !isName(c.Id) {
		return Result{Refusal: refuseField("id", "malformed")}
	}
	a.effects.Verifies = append(a.effects.Verifies, c.Id)
	return Result{}
}

// finish writes what an entry writes once: its leases' timer, its event record, and the shard's own row.
func (a *apply) finish() {
	if a.firstFencing != 0 {
		a.putTimer(a.leaseEndMS, timerLeaseKey(a.leaseEndMS, a.firstFencing), encodeU64(a.lastFencing), TimerLeaseEnd, "")
	}
	if record := a.m.events.record(a.index, a.meta.ClockMs); record != nil {
		a.s.Set(EventKey(a.meta.EventOffset), mustEncode(record.MarshalVT()))
		a.meta.EventOffset++
	}
	a.s.Set(MetaKey(), mustEncode(a.meta.MarshalVT()))
}

// refuse makes a refusal.
func refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

// refuseField makes a refusal of a request's field.
func refuseField(field, format string, args ...any) *Refusal {
	return &Refusal{Code: InvalidArgument, Field: field, Message: fmt.Sprintf(format, args...)}
}

// CorruptRow is what reading panics with when a row cannot be decoded: the shard cannot be vouched for.
type CorruptRow struct{ Key []byte }

func (c CorruptRow) Error() string { return fmt.Sprintf("corrupt row %q", c.Key) }

// UnsupportedLevel is what Apply and Open panic with when the log needs a newer binary.
type UnsupportedLevel struct{ Shard, Level uint32 }

func (u UnsupportedLevel) Error() string {
	return fmt.Sprintf("shard %d needs level %d; this binary knows levels up to %d", u.Shard, u.Level, MaxLevel)
}

func corrupt(key []byte) CorruptRow { return CorruptRow{append([]byte(nil), key...)} }

func mustEncode(b []byte, err error) []byte {
	if err != nil {
		panic(fmt.Errorf("encode row: %w", err))
	}
	return b
}

func mustDecode(key, value []byte, unmarshal func([]byte) error) {
	if unmarshal(value) != nil {
		panic(corrupt(key))
	}
}
