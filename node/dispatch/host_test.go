package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	"github.com/carillon-scheduler/carillon/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errLost = errors.New("the leadership ended")

// turnTime is what one turn of the test host's loop takes, as if it waited for a sync.
const turnTime = time.Millisecond

// host runs real state machines over rows in memory: a node without raft, sync and network.
type host struct {
	d      *dispatch.Dispatcher
	engine *store.Memory
	shards []*hostShard
	now    func() int64
	// early: the next entry is stamped a millisecond before now.
	early   atomic.Bool
	turn    time.Duration
	wake    chan struct{}
	mayFire atomic.Bool
	// pause, if not nil, is called between rows that are read.
	pause func()
	// held: proposals stay in the mailbox.
	held atomic.Bool
	// refuse: what is proposed is refused.
	refuse atomic.Bool

	// loop makes the loop, and changes of leadership, one at a time.
	loop    sync.Mutex
	mu      sync.Mutex
	mailbox []proposed
	// entries that were applied, and commands of two kinds in them.
	entries, advances, claims atomic.Int64
}

type hostShard struct {
	id      uint32
	rows    *store.Shard
	machine *fsm.Machine
	index   uint64
	term    uint64
}

type proposed struct {
	shard uint32
	cmd   *storagev1.Command
	done  func(fsm.Result, error)
}

func (h *host) Propose(shard uint32, cmd *storagev1.Command, done func(fsm.Result, error)) {
	h.mu.Lock()
	h.mailbox = append(h.mailbox, proposed{shard, cmd, done})
	h.mu.Unlock()
	h.signal()
}

func (h *host) ProposeAll(all []dispatch.Proposal) {
	for _, p := range all {
		h.Propose(p.Shard, p.Command, p.Done)
	}
}

func (h *host) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *host) Rows(shard uint32) dispatch.Rows {
	rows := store.NewReader(h.engine, shard)
	if h.pause == nil {
		return rows
	}
	return slowRows{rows, h.pause}
}

// slowRows lets things happen while rows are read, which show them as they were when the scan began.
type slowRows struct {
	*store.Reader
	pause func()
}

func (r slowRows) Scan(start, end []byte, fn func(key, value []byte) bool) {
	r.pause()
	r.Reader.Scan(start, end, func(key, value []byte) bool {
		r.pause()
		more := fn(key, value)
		r.pause()
		return more
	})
}

func (h *host) ShardOf(tenant, jobID string) uint32 {
	return uint32(fsm.Slot(tenant, jobID)) % uint32(len(h.shards))
}

func (h *host) Now() int64    { return h.now() }
func (h *host) MayFire() bool { return h.mayFire.Load() }

// run is the loop: what arrived during a turn is the next one's, one entry for each shard.
func (h *host) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		if h.held.Load() {
			continue
		}
		h.mu.Lock()
		batch := h.mailbox
		h.mailbox = nil
		h.mu.Unlock()
		if h.refuse.Load() {
			for _, p := range batch {
				p.done(fsm.Result{}, errLost)
			}
			continue
		}
		byShard := make([][]proposed, len(h.shards))
		for _, p := range batch {
			byShard[p.shard] = append(byShard[p.shard], p)
		}
		var finish []func()
		for id, list := range byShard {
			if len(list) > 0 {
				h.loop.Lock()
				finish = append(finish, h.apply(h.shards[id], list))
				h.loop.Unlock()
			}
		}
		if h.turn > 0 {
			time.Sleep(h.turn)
		}
		for _, f := range finish {
			h.loop.Lock()
			f()
			h.loop.Unlock()
		}
	}
}

// apply puts an entry through a shard's machine and commits it; the function it returns tells of it. Both are called with
// loop held.
func (h *host) apply(sh *hostShard, list []proposed) func() {
	entry := &storagev1.Entry{Term: sh.term, StampMs: h.now()}
	if h.early.Swap(false) {
		entry.StampMs--
	}
	for _, p := range list {
		entry.Commands = append(entry.Commands, p.cmd)
		if p.cmd.Advance != nil {
			h.advances.Add(1)
		}
		if p.cmd.Claim != nil {
			h.claims.Add(1)
		}
	}
	h.entries.Add(1)
	sh.index++
	results, effects := sh.machine.Apply(sh.rows, sh.index, entry)
	batch := h.engine.NewBatch()
	if err := sh.rows.Flush(batch); err != nil {
		panic(err)
	}
	if _, err := h.engine.Commit(batch, false); err != nil {
		panic(err)
	}
	sh.rows.Committed()
	term := sh.term
	return func() {
		if term != sh.term {
			for _, p := range list {
				p.done(fsm.Result{}, errLost)
			}
			return
		}
		h.d.Applied(sh.id, &effects)
		for i, p := range list {
			p.done(results[i], nil)
		}
	}
}

// lead begins a leadership of the shard.
func (h *host) lead(sh *hostShard) {
	h.loop.Lock()
	defer h.loop.Unlock()
	sh.term++
	sh.index++
	start := &storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: sh.term, Store: "s1"}}
	h.d.Takeover(sh.id, sh.term)
	h.apply(sh, []proposed{{sh.id, start, func(fsm.Result, error) {}}})()
}

// depose ends the leadership: what is under way is lost to those who wait for it, though it may have been applied.
func (h *host) depose(sh *hostShard) {
	h.loop.Lock()
	defer h.loop.Unlock()
	sh.term++
	h.d.StepDown(sh.id)
	h.mu.Lock()
	var kept, lost []proposed
	for _, p := range h.mailbox {
		if p.shard == sh.id {
			lost = append(lost, p)
		} else {
			kept = append(kept, p)
		}
	}
	h.mailbox = kept
	h.mu.Unlock()
	for _, p := range lost {
		p.done(fsm.Result{}, errLost)
	}
}

// world is a dispatcher with its host, inside a synctest bubble: sleeping takes no time.
type world struct {
	t *testing.T
	*host
	d *dispatch.Dispatcher
}

// inWorld runs a test on a running dispatcher that leads all of n shards.
func inWorld(t *testing.T, shards int, cfg dispatch.Config, test func(t *testing.T, w *world)) {
	t.Helper()
	inWorldOf(t, shards, cfg, time.Now, test)
}

// inWorldOf is inWorld by a clock of its own.
func inWorldOf(t *testing.T, shards int, cfg dispatch.Config, now func() time.Time, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, shards, cfg, now)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.d.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
		running.Go(func() { w.run(ctx) })
		defer running.Wait()
		defer cancel()
		for _, sh := range w.shards {
			w.lead(sh)
		}
		synctest.Wait()
		if err := w.d.Ready(); err != nil {
			t.Fatal(err)
		}
		test(t, w)
	})
}

func newWorld(t testing.TB, shards int, cfg dispatch.Config, now func() time.Time) *world {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	h := &host{engine: store.OpenMemory(), wake: make(chan struct{}, 1), turn: turnTime}
	h.now = func() int64 { return now().UnixMilli() }
	h.mayFire.Store(true)
	cache := store.NewCache(1 << 20)
	for id := range uint32(shards) {
		rows := store.NewShard(h.engine, id, cache)
		h.shards = append(h.shards, &hostShard{id: id, rows: rows, machine: fsm.Open(id, rows)})
	}
	d, err := dispatch.New(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	h.d = d
	w := &world{host: h, d: d}
	w.t, _ = t.(*testing.T)
	return w
}

// do puts a command through the log and returns its result.
func (h *host) do(shard uint32, cmd *storagev1.Command) fsm.Result {
	type outcome struct {
		result fsm.Result
		err    error
	}
	ch := make(chan outcome, 1)
	h.Propose(shard, cmd, func(r fsm.Result, err error) { ch <- outcome{r, err} })
	o := <-ch
	if o.err != nil {
		panic(o.err)
	}
	if o.result.Refusal != nil {
		panic(fmt.Sprintf("refused: %+v", *o.result.Refusal))
	}
	return o.result
}

// job describes a one-shot to create.
type job struct {
	id       string
	tenant   string
	queue    string
	priority uint32
	fairness string
	// in is how long from now it is due.
	in time.Duration
}

// create accepts jobs: those of one shard in one command.
func (h *host) create(jobs ...job) {
	byShard := map[uint32][]*storagev1.CreateJob{}
	now := h.now()
	for _, j := range jobs {
		if j.tenant == "" {
			j.tenant = "default"
		}
		if j.queue == "" {
			j.queue = "q"
		}
		shard := h.ShardOf(j.tenant, j.id)
		byShard[shard] = append(byShard[shard], &storagev1.CreateJob{
			Tenant: j.tenant, JobId: j.id, Hash: []byte("0123456789abcdef"),
			Schedule: &storagev1.Schedule{AtMs: now + j.in.Milliseconds()},
			CatchUp:  storagev1.CatchUp_CATCH_UP_ALL, CatchUpWindowMs: 1 << 40,
			Template: &storagev1.Template{
				Queue: j.queue, Priority: j.priority, FairnessKey: j.fairness, LeaseMs: 30_000,
				Retry: &storagev1.RetryPolicy{MaxAttempts: 1000, FirstDelayMs: 1000, FactorThousandths: 2000, MaxDelayMs: 60_000},
			},
		})
	}
	for shard, items := range byShard {
		for len(items) > 0 {
			n := min(len(items), 1000)
			result := h.do(shard, &storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: items[:n]}})
			for _, item := range result.Items {
				if item.Refusal != nil {
					panic(fmt.Sprintf("create: %+v", *item.Refusal))
				}
			}
			items = items[n:]
		}
	}
}

// numbered returns n jobs that differ in their ids only.
func numbered(n int, like job) []job {
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = like
		jobs[i].id = fmt.Sprintf("%s%d", like.id, i)
	}
	return jobs
}

// poll polls queue q.
func (w *world) poll(claim string, n int, wait time.Duration) []*storagev1.Execution {
	w.t.Helper()
	return w.pollFor(dispatch.PollRequest{ClaimID: claim, Worker: "w", Queues: []string{"q"}, Max: n, Wait: wait})
}

func (w *world) pollFor(req dispatch.PollRequest) []*storagev1.Execution {
	w.t.Helper()
	leases, err := w.d.Poll(w.t.Context(), req)
	if err != nil {
		w.t.Fatalf("poll %s: %v", req.ClaimID, err)
	}
	if len(leases) > req.Max {
		w.t.Fatalf("poll %s: got %d, asked for %d", req.ClaimID, len(leases), req.Max)
	}
	return leases
}

// complete succeeds leases.
func (h *host) complete(leases ...*storagev1.Execution) {
	byShard := map[uint32][]*storagev1.Completion{}
	for _, e := range leases {
		shard := h.ShardOf(e.Tenant, e.JobId)
		byShard[shard] = append(byShard[shard], &storagev1.Completion{
			ExecutionId: fsm.ExecutionID(e), Fencing: e.Fencing, Outcome: storagev1.Outcome_OUTCOME_SUCCEEDED,
		})
	}
	var shards sync.WaitGroup
	for shard, items := range byShard {
		shards.Go(func() {
			result := h.do(shard, &storagev1.Command{Completions: &storagev1.Completions{Items: items}})
			for _, item := range result.Items {
				if item.Refusal != nil {
					panic(fmt.Sprintf("complete: %+v", *item.Refusal))
				}
			}
		})
	}
	shards.Wait()
}

// rowsOf counts rows of a kind in all shards.
func (h *host) rowsOf(kind byte) (n int) {
	for _, sh := range h.shards {
		h.Rows(sh.id).Scan([]byte{kind}, []byte{kind + 1}, func(_, _ []byte) bool {
			n++
			return true
		})
	}
	return n
}
