package fsm

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// State rows have small letters as their kind; the capital ones are each replica's own.
var (
	stateStart = []byte{'a'}
	stateEnd   = []byte{'z' + 1}
)

// Digest is a hash over all rows of a shard that must be the same on every replica, in their order, and how many they are.
func Digest(r Reader) (sum, rows uint64) {
	d := xxhash.New()
	var size [8]byte
	write := func(b []byte) {
		binary.BigEndian.PutUint64(size[:], uint64(len(b)))
		_, _ = d.Write(size[:]) // never fails
		_, _ = d.Write(b)       // never fails
	}
	r.Scan(stateStart, stateEnd, func(key, value []byte) bool {
		rows++
		write(key)
		write(value)
		return true
	})
	return d.Sum64(), rows
}

// Rules that Check holds a shard's rows against. They are names for people and programs alike, and stay.
const (
	// RuleRow: a row can be decoded, and stands where and as its own content says.
	RuleRow = "row"
	// RuleCounter: meta's counters are what a recount finds, its highest numbers not below any in use.
	RuleCounter = "counter"
	// RuleTimer: everything that waits for a time has its timer, and each timer something that waits.
	RuleTimer = "timer"
	// RuleLease: every lease has a timer that looks at its end.
	RuleLease = "lease"
	// RuleOccurrence: an occurrence has one execution, and a one-shot is never without.
	RuleOccurrence = "occurrence"
	// RuleSchedule: what a cron job is to fire next is what its schedule says. Only package expand can tell.
	RuleSchedule = "schedule"
	// RuleMarker: a stop marker has a job that it stops, or housekeeping that removes it; what is held or parked has a reason.
	RuleMarker = "marker"
	// RulePayload: a payload that is referred to is there, and one that is there has a job or housekeeping that removes it.
	RulePayload = "payload"
	// RuleHousekeeping: what is kept for a time has its row in the housekeeping index, and the other way round.
	RuleHousekeeping = "housekeeping"
	// RuleEvents: the event log has every offset from the trimmed one on, in order.
	RuleEvents = "events"
	// RuleJob: what is alive has a job, or a marker that ends it.
	RuleJob = "job"
)

// Violation is something about a shard's rows that must not be.
type Violation struct {
	// Rule is what does not hold: one of the Rule constants.
	Rule string
	// Key is the row's at which it shows, relative to the shard; the caller's.
	Key []byte
	// Detail says what is wrong, for people.
	Detail string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s (row %q)", v.Rule, v.Detail, v.Key) }

// maxCheckIdentities is how many executions Check compares at once, 8 bytes each; of more it reads the rows several times.
const maxCheckIdentities = 1 << 20

// Check recounts a shard from its rows and reports what does not hold, each violation as it is found. It reads every row
// about twice and looks others up, on any consistent Reader, whose own errors the caller asks for afterwards. It keeps in
// memory: what a Machine keeps (settings, markers); 24 bytes for each claim whose lease-end timer stands; 8 for each
// replaced payload, and each purged one-shot, that housekeeping is to look at; the name of each marked job that it is to
// look at, of each job whose held executions a task releases, those tasks, of each job with an overlap rule of which something lives, and of each
// job that is gone and has left a payload; and
// 8 MiB of identities and 9 MiB of jobs of which something lives at most.
func Check(r Reader, report func(Violation)) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case CorruptRow:
			report(Violation{Rule: RuleRow, Key: p.Key, Detail: "cannot be decoded, which ends the check"})
		default:
			panic(p)
		}
	}()
	newChecker(r, report).run()
}

// checker is one Check.
type checker struct {
	r       Reader
	sink    func(Violation)
	meta    *storagev1.Meta
	counted storagev1.Meta

	// gone are deleted tenants, or those that are being deleted.
	gone  map[string]bool
	stops map[jobName]stop
	// settings has the queues, tenants and rules, to ask it what they pause.
	settings *Machine
	// swept are marked jobs that housekeeping looks at, resuming those whose held executions a task releases, releasing the tasks
	// that release what a pause around jobs has stopped.
	swept     map[jobName]bool
	resuming  map[jobName]bool
	releasing []*storagev1.Task
	leases    []leaseRange
	// replaced are hashes of payloads that housekeeping looks at, purged of one-shots without an execution that it does.
	replaced map[uint64]struct{}
	purged   map[uint64]struct{}
	// blocking counts the executions found that are in the way of the next one of their job.
	blocking map[jobName]int
	// stray are payloads whose job is not there, one for each.
	stray map[jobName][]byte

	// seen counts executions; ids are the hashes of their identities up to maxIDs.
	seen, maxIDs int
	ids          []uint64
	// owners are the jobs of what is alive.
	owners owners

	lastKey []byte
	lastJob *storagev1.Job
}

// leaseRange is a lease-end timer.
type leaseRange struct {
	first, last uint64
	atMS        int64
}

func newChecker(r Reader, report func(Violation)) *checker {
	return &checker{
		r: r, sink: report, meta: &storagev1.Meta{Level: 1}, gone: map[string]bool{}, stops: map[jobName]stop{},
		settings: &Machine{
			queues: map[string]*storagev1.QueueSettings{}, tenants: map[string]*storagev1.TenantSettings{},
			rules: map[string]*storagev1.PauseRule{},
		},
		swept: map[jobName]bool{}, resuming: map[jobName]bool{}, replaced: map[uint64]struct{}{},
		purged: map[uint64]struct{}{}, stray: map[jobName][]byte{}, blocking: map[jobName]int{}, maxIDs: maxCheckIdentities,
	}
}

// run looks at one kind of rows after the other: first those that others are judged by.
func (c *checker) run() {
	if value, ok := c.r.Get(MetaKey()); ok && c.meta.UnmarshalVT(value) != nil {
		c.fail(RuleRow, MetaKey(), "cannot be decoded")
		return
	}
	for _, kind := range []struct {
		kind  byte
		check func(key, value []byte)
	}{
		{KindSettings, c.settingsRow}, {KindStop, c.stopRow}, {KindTask, c.taskRow}, {KindExpiry, c.expiryRow}, {KindStop, c.markerRow},
		{KindTimer, c.timerRow}, {KindParked, c.parkedRow}, {KindReady, c.readyRow}, {KindLeased, c.leasedRow()}, {KindHeld, c.heldRow},
		{KindRetrying, c.retryingRow}, {KindDead, c.deadRow}, {KindEnded, c.endedRow}, {KindBlob, c.blobRow},
		{KindIdempotency, c.recordRow},
	} {
		c.each(kind.kind, kind.check)
		if kind.kind == KindSettings {
			c.settings.findHolding()
		}
	}
	c.strays()
	c.events()
	c.owners.end()
	c.identities()
	c.orphans()
	c.strangers()
	c.counters()
}

// each calls fn for all rows of a kind.
func (c *checker) each(kind byte, fn func(key, value []byte)) {
	c.r.Scan([]byte{kind}, []byte{kind + 1}, func(key, value []byte) bool {
		fn(key, value)
		return true
	})
}

func (c *checker) fail(rule string, key []byte, format string, args ...any) {
	c.sink(Violation{Rule: rule, Key: append([]byte(nil), key...), Detail: fmt.Sprintf(format, args...)})
}

func (c *checker) has(key []byte) bool {
	_, ok := c.r.Get(key)
	return ok
}

// job reads a job's row; nil if there is none that can be decoded. The last one is kept: rows of a job stand together.
func (c *checker) job(tenant, jobID string) *storagev1.Job {
	key := JobKey(tenant, jobID)
	if string(key) == string(c.lastKey) {
		return c.lastJob
	}
	c.lastKey, c.lastJob = key, nil
	value, ok := c.r.Get(key)
	if j := (&storagev1.Job{}); ok && j.UnmarshalVT(value) == nil {
		c.lastJob = j
	}
	return c.lastJob
}

// stopped says whether what is alive of an incarnation is to end.
func (c *checker) stopped(tenant, jobID string, incarnation uint64) bool {
	return c.gone[tenant] || incarnation <= c.stops[jobName{tenant, jobID}].deletedTo
}

// strangers finds rows of kinds that there are not.
func (c *checker) strangers() {
	const known = "" + string(KindMeta) + string(KindJob) + string(KindBlob) + string(KindTimer) + string(KindReady) +
		string(KindLeased) + string(KindHeld) + string(KindRetrying) + string(KindDead) + string(KindEnded) + string(KindStop) +
		string(KindIdempotency) + string(KindEvent) + string(KindExpiry) + string(KindSettings) + string(KindTask) +
		string(KindParked)
	for kind := stateStart[0]; kind < stateEnd[0]; kind++ {
		if strings.IndexByte(known, kind) < 0 {
			c.each(kind, func(key, _ []byte) { c.fail(RuleRow, key, "is of no kind that there is") })
		}
	}
}

// counters compares meta's to the recount.
func (c *checker) counters() {
	for _, n := range [...]struct {
		name          string
		have, counted uint64
	}{
		{"jobs", c.meta.Jobs, c.counted.Jobs}, {"waiting", c.meta.Waiting, c.counted.Waiting},
		{"ready", c.meta.Ready, c.counted.Ready}, {"leased", c.meta.Leased, c.counted.Leased},
		{"retrying", c.meta.Retrying, c.counted.Retrying}, {"held", c.meta.Held, c.counted.Held},
		{"dead", c.meta.Dead, c.counted.Dead}, {"parked", c.meta.Parked, c.counted.Parked},
	} {
		if n.have != n.counted {
			c.fail(RuleCounter, MetaKey(), "%s is %d, a recount finds %d", n.name, n.have, n.counted)
		}
	}
}

// numbers holds an incarnation and a fencing number against the highest that were handed out.
func (c *checker) numbers(key []byte, incarnation, fencing uint64) {
	if incarnation > c.meta.Incarnation {
		c.fail(RuleCounter, key, "incarnation %d is above the shard's %d", incarnation, c.meta.Incarnation)
	}
	if fencing > c.meta.Fencing {
		c.fail(RuleCounter, key, "fencing number %d is above the shard's %d", fencing, c.meta.Fencing)
	}
}

// events checks the event log.
func (c *checker) events() {
	want, index, atMS := c.meta.EventTrimmed, uint64(0), int64(0)
	if want > c.meta.EventOffset {
		c.fail(RuleEvents, MetaKey(), "trimmed up to %d, behind the next offset %d", want, c.meta.EventOffset)
	}
	c.each(KindEvent, func(key, value []byte) {
		k := readKey(key, KindEvent)
		offset := k.u64()
		rec := &storagev1.EventRecord{}
		if !k.end() || rec.UnmarshalVT(value) != nil {
			c.fail(RuleRow, key, "cannot be decoded")
			return
		}
		if offset != want {
			c.fail(RuleEvents, key, "offset %d stands where %d is due", offset, want)
		}
		if rec.Index <= index || rec.AtMs < atMS || rec.AtMs > c.meta.ClockMs {
			c.fail(RuleEvents, key, "entry %d at %d is out of order", rec.Index, rec.AtMs)
		}
		want, index, atMS = offset+1, rec.Index, rec.AtMs
	})
	if want != c.meta.EventOffset {
		c.fail(RuleEvents, MetaKey(), "the log ends before %d, the next offset is %d", want, c.meta.EventOffset)
	}
}
