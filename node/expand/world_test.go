package expand

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	"github.com/carillon-scheduler/carillon/schedule"
	"github.com/carillon-scheduler/carillon/store"
)

const tenant = "t"

var real = Evaluator{ZoneVersion: cron.ZoneVersion(), Horizon: schedule.Horizon, Pass: schedule.Pass}

// world is a shard's real state machine with the core of the expander beside it, under a clock of its own.
type world struct {
	t       testing.TB
	engine  *store.Memory
	rows    *store.Shard
	machine *fsm.Machine
	index   uint64
	now     int64

	eval   Evaluator
	queue  *Queue
	counts Counters
	// asked are the jobs that wanted an expansion.
	asked []fsm.JobRef
	// before runs before a batch is applied.
	before func()
	// fired are the nominal instants by job, skipped its ranges; offset is the next event's.
	fired   map[string][]int64
	skipped map[string][]*storagev1.Event
	offset  uint64
}

func newWorld(t testing.TB, start string) *world {
	w := &world{
		t: t, engine: store.OpenMemory(), now: instant(t, start), eval: real,
		fired: map[string][]int64{}, skipped: map[string][]*storagev1.Event{},
	}
	w.rows = store.NewShard(w.engine, 1, store.NewCache(1<<20))
	w.machine = fsm.Open(1, w.rows)
	w.queue = NewQueue(0, &w.counts)
	w.apply(&storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: 1, Store: "s"}})
	return w
}

func instant(t testing.TB, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

func (w *world) read() *store.Reader { return store.NewReader(w.engine, 1) }

func (w *world) job(id string) *storagev1.Job { return fsm.ReadJob(w.read(), tenant, id) }

// apply puts commands through the machine as one entry, which must not be refused.
func (w *world) apply(cmds ...*storagev1.Command) []fsm.Result {
	w.t.Helper()
	w.index++
	results, effects := w.machine.Apply(w.rows, w.index, &storagev1.Entry{Term: 1, StampMs: w.now, Commands: cmds})
	batch := w.engine.NewBatch()
	if err := w.rows.Flush(batch); err != nil {
		w.t.Fatal(err)
	}
	wait, err := w.engine.Commit(batch, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.rows.Committed()
	w.queue.Add(w.now, effects.Expand...)
	w.asked = append(w.asked, effects.Expand...)
	fsm.Events(w.read(), w.offset, func(offset uint64, record *storagev1.EventRecord) bool {
		w.offset = offset + 1
		for _, ev := range record.Events {
			switch ev.Type {
			case storagev1.EventType_EVENT_TYPE_READY:
				w.fired[ev.JobId] = append(w.fired[ev.JobId], ev.NominalMs)
			case storagev1.EventType_EVENT_TYPE_SKIPPED:
				w.skipped[ev.JobId] = append(w.skipped[ev.JobId], ev)
			}
		}
		return true
	})
	return results
}

// create makes a cron job without a horizon.
func (w *world) create(id string, c *storagev1.Cron, change func(*storagev1.CreateJob)) {
	w.t.Helper()
	item := &storagev1.CreateJob{
		Tenant: tenant, JobId: id, Hash: []byte("12345678"), Schedule: &storagev1.Schedule{Cron: c},
		Template: &storagev1.Template{Queue: "q", LeaseMs: 30_000},
	}
	if change != nil {
		change(item)
	}
	r := w.apply(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{item}}})
	if r[0].Items[0].Refusal != nil {
		w.t.Fatalf("create: %+v", r[0].Items[0].Refusal)
	}
}

func never() bool { return false }

// expand proposes one batch; false if there was none.
func (w *world) expand() bool {
	w.t.Helper()
	jobs, _ := w.queue.Take(w.now)
	if len(jobs) == 0 {
		return false
	}
	b := w.eval.Evaluate(w.read(), jobs, w.now, never)
	if err := b.Err(); err != nil {
		w.t.Fatal(err)
	}
	w.queue.Evaluated(b)
	if w.before != nil {
		w.before()
		w.before = nil
	}
	if cmd := b.Command(); cmd != nil {
		if err := w.queue.Applied(w.now, b, w.apply(cmd)[0].Items); err != nil {
			w.t.Fatal(err)
		}
	}
	return true
}

// settle expands until nothing is to be expanded.
func (w *world) settle() {
	w.t.Helper()
	for w.expand() {
	}
}

// runTo lets time pass from timer to timer.
func (w *world) runTo(end string) {
	w.t.Helper()
	until := instant(w.t, end)
	for {
		w.settle()
		next := until + 1
		fsm.ScanTimers(w.read(), 0, until+1, func(ref fsm.TimerRef) bool {
			next = ref.AtMS
			return false
		})
		if next > until {
			w.now = until
			return
		}
		w.now = max(w.now, next)
		w.advance()
	}
}

// advance fires what is due now, with the expander looking on.
func (w *world) advance() {
	w.t.Helper()
	for more := true; more; {
		more = w.apply(&storagev1.Command{Advance: &storagev1.Advance{Limit: 1000}})[0].MoreDue
		w.settle()
	}
}

// check compares what became of a job's instants in (from, to]: each has its verdict, and none has two.
func (w *world) check(id string, c *storagev1.Cron, from, to string) {
	w.t.Helper()
	at, until := instant(w.t, from), instant(w.t, to)
	fired, skipped := w.fired[id], w.skipped[id]
	compiled, err := schedule.Compile(c)
	if err != nil {
		w.t.Fatal(err)
	}
	count, left := 0, uint64(0)
	for o, ok := compiled.Next(time.UnixMilli(at)); ok && o.At.UnixMilli() <= until; o, ok = compiled.Next(o.At) {
		ms := o.At.UnixMilli()
		count++
		switch {
		case left == 0 && len(fired) > 0 && fired[0] == ms:
			fired = fired[1:]
		case left == 0 && len(skipped) > 0 && skipped[0].NominalMs == ms:
			left = skipped[0].Count - 1
		case left > 0 && ms <= skipped[0].ToMs:
			left--
		default:
			w.t.Fatalf("%s: %s has no verdict, or not its own", id, show(ms))
		}
		if left == 0 && len(skipped) > 0 && skipped[0].ToMs == ms {
			skipped = skipped[1:]
		}
	}
	if len(fired)+len(skipped) > 0 || left > 0 || count == 0 {
		w.t.Fatalf("%s: %d instants; of others: %d fired, ranges %v", id, count, len(fired), skipped)
	}
	fsm.Check(w.read(), func(v fsm.Violation) { w.t.Errorf("%s", v) })
}

func show(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z") }

// ranges writes a job's skipped ranges and how often it fired.
func (w *world) ranges(id string) string {
	text := fmt.Sprintf("fired %d", len(w.fired[id]))
	for _, ev := range w.skipped[id] {
		text += fmt.Sprintf(", %s..%s %d", show(ev.NominalMs), show(ev.ToMs), ev.Count)
	}
	return text
}

func ref(id string) fsm.JobRef { return fsm.JobRef{Tenant: tenant, JobID: id} }
