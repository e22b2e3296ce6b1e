package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/sync/errgroup"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// LeaseKeeper records leaderships in the control plane. Its methods must not block; it answers through the Host's LeaseHeld
// and HigherEpoch. Acquire may be called again for the same term.
type LeaseKeeper interface {
	Acquire(shard uint32, term uint64)
	Release(shard uint32)
}

// Listener is told what the leaders of this store do. It is called on the loop's goroutine and must not block; it may call
// the Host's Propose.
type Listener interface {
	// OnEstablished: the shard is served from here on. The state's rows are committed.
	OnEstablished(shard uint32, term uint64)
	// OnApplied: an entry changed an established shard.
	OnApplied(shard uint32, effects *fsm.Effects)
	// OnStepDown: an established shard is no longer served here.
	OnStepDown(shard uint32)
}

// HostConfig is what NewHost needs beside the Core's Config.
type HostConfig struct {
	Config
	// Now is the disciplined clock: milliseconds since 1970. It stamps the entries.
	Now func() int64
	// Keeper may be nil: leaderships are then recorded nowhere and established under raft alone.
	Keeper LeaseKeeper
	// Listener may be nil.
	Listener Listener
	// Send hands a frame to the transport and must not block; nil: there are no peers.
	Send func(Frame)
	// SendSnapshot streams a shard's rows from source to another store, with WriteSnapshot, and must not block: it closes
	// source and calls SnapshotSent when it is done. nil: none is sent.
	SendSnapshot func(req SnapshotRequest, source store.Snapshot)
	// OnChanged tells that a group led from here is as Want asked. It is called on the loop's goroutine and must not block;
	// nil: nobody is told.
	OnChanged func(shard uint32, term, gen uint64, conf Conf)
	// OnVerify is handed a replica's rows to look at, which it closes. It is called on the loop's goroutine and must not
	// block; nil: nobody looks.
	OnVerify func(v Verify, rows store.Snapshot)
	// StopTimeout bounds how long callers of what is in flight wait for it when Run is asked to stop; 0: 5 s. Run itself
	// returns when the disk has answered every sync.
	StopTimeout time.Duration
}

// Host runs a Core. Its methods may be called from any goroutine, before Run too: what they ask for then waits for it.
type Host struct {
	cfg  HostConfig
	core *Core
	mail *mailbox
	// syncs are turns on their way to the waiter, durable their way back. Both have room for all turns in flight.
	syncs   chan Turn
	durable chan synced
	// imports are received snapshots to be installed or aborted.
	imports chan importJob
	// turned has a token when a turn has written something since the engine was last asked how it keeps up.
	turned chan struct{}
	// syncing is since when a sync is awaited, counted from began on the monotonic clock; 0: none is.
	syncing atomic.Int64
	began   time.Time
	ticker  *time.Ticker
	// stagger fires when the next replica in line may stand for election.
	stagger *time.Timer

	mu       sync.RWMutex
	statuses map[uint32]Status
	// shape is the Core's when statuses was made.
	shape    uint64
	counters Counters
}

// synced is the waiter's word on a turn.
type synced struct {
	seq uint64
	err error
}

// NewHost opens replicas, as Load returned them; Run runs them.
func NewHost(cfg HostConfig, engine store.Engine, replicas []ReplicaState) (*Host, error) {
	if cfg.Now == nil {
		return nil, errors.New("config: Now is nil")
	}
	setDefault(&cfg.StopTimeout, 5*time.Second)
	core, err := New(cfg.Config, engine, replicas)
	if err != nil {
		return nil, err
	}
	h := &Host{
		cfg: cfg, core: core, mail: newMailbox(), statuses: make(map[uint32]Status, len(core.all)),
		syncs: make(chan Turn, maxTurnsInFlight), durable: make(chan synced, maxTurnsInFlight),
		imports: make(chan importJob, maxImportJobs), turned: make(chan struct{}, 1), began: time.Now(),
	}
	for _, r := range core.all {
		h.statuses[r.shard] = core.statusOf(r)
	}
	return h, nil
}

// Propose puts cmd, which must not be changed any more, into the shard's log. done is called exactly once with what came of
// it, on the loop's goroutine, which it must not block; before Propose returns, on the caller's, where too much waits for
// the loop already (ErrOverloaded) or Run has ended.
func (h *Host) Propose(shard uint32, cmd *storagev1.Command, done func(fsm.Result, error)) {
	h.ProposeAll([]Proposal{{Shard: shard, Command: cmd, Done: done}})
}

// ProposeAll is Propose for several commands, which reach the loop together: what goes to one shard becomes one entry.
// Encoded is made here.
func (h *Host) ProposeAll(ps []Proposal) {
	for i := range ps {
		// Encoding here takes it off the loop. What cannot be encoded is refused there.
		ps[i].Encoded, _ = ps[i].Command.MarshalVT()
	}
	refused, ok := h.mail.propose(ps...)
	err := ErrOverloaded
	if !ok {
		refused, err = ps, ErrStopped
	}
	for _, p := range refused {
		p.Done(fsm.Result{}, err)
	}
}

// Do proposes cmd and waits for its result. If ctx ends first the outcome is unknown, as with ErrAmbiguous.
func (h *Host) Do(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error) {
	type outcome struct {
		result fsm.Result
		err    error
	}
	ch := make(chan outcome, 1)
	h.Propose(shard, cmd, func(r fsm.Result, err error) { ch <- outcome{r, err} })
	select {
	case o := <-ch:
		return o.result, o.err
	case <-ctx.Done():
		return fsm.Result{}, fmt.Errorf("wait for shard %d: %w", shard, ctx.Err())
	}
}

// Read returns when the shard's committed rows on this store show everything that was acknowledged before the call; then
// read them with store.Reader. With stale it only says whether the store has the shard at all.
func (h *Host) Read(ctx context.Context, shard uint32, stale bool) error {
	if _, ok := h.StatusOf(shard); !ok {
		return ErrNoReplica
	}
	if stale {
		return nil
	}
	ch := make(chan error, 1)
	err := h.mail.read(func(c *Core) {
		if ctx.Err() == nil {
			c.ReadIndex(shard, func(err error) { ch <- err })
		}
	})
	if err != nil {
		return err
	}
	return await(ctx, ch)
}

// Alive returns when the loop has come round: the proof of life that keeps the store's lease.
func (h *Host) Alive(ctx context.Context) error {
	return h.ask(ctx, func(_ *Core, done func(error)) { done(nil) })
}

// ask has the loop call fn and returns what done is told, or the error of a ctx that ends first.
func (h *Host) ask(ctx context.Context, fn func(c *Core, done func(error))) error {
	ch := make(chan error, 1)
	if !h.mail.call(func(c *Core) { fn(c, func(err error) { ch <- err }) }) {
		return ErrStopped
	}
	return await(ctx, ch)
}

func await(ctx context.Context, ch <-chan error) error {
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Receive takes in a peer's frame. One that is meant for another store is dropped.
func (h *Host) Receive(f Frame) {
	if f.To != h.cfg.Store {
		return
	}
	h.mail.frame(func(c *Core) {
		for _, m := range f.Messages {
			c.Step(f.From, m)
		}
	})
}

// LeaseHeld and HigherEpoch are the control plane's answers; see Core.
func (h *Host) LeaseHeld(shard uint32, term uint64) {
	h.mail.call(func(c *Core) { c.LeaseHeld(shard, term) })
}

func (h *Host) HigherEpoch(shard uint32, epoch uint64) {
	h.mail.call(func(c *Core) { c.HigherEpoch(shard, epoch) })
}

// TransferLeader moves a leadership; see Core.
func (h *Host) TransferLeader(shard uint32, id uint64) {
	h.mail.call(func(c *Core) { c.TransferLeader(shard, id) })
}

// Status returns how every replica stood after its last turn, in order of shards.
func (h *Host) Status() []Status {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return slices.SortedFunc(maps.Values(h.statuses), func(a, b Status) int { return cmp.Compare(a.Shard, b.Shard) })
}

// StatusOf returns how one shard's replica stood after its last turn.
func (h *Host) StatusOf(shard uint32) (Status, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	s, ok := h.statuses[shard]
	return s, ok
}

// Counters returns what was counted up to the last turn.
func (h *Host) Counters() Counters {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.counters
}

// Run runs the replicas until ctx ends, then finishes what is in flight and refuses the rest. It may be called once. An
// error means that the store cannot be vouched for any more: the process should end.
func (h *Host) Run(ctx context.Context) error {
	watching, unwatch := context.WithCancel(ctx)
	engine := h.core.engine
	var g errgroup.Group
	g.Go(h.waitForSyncs)
	g.Go(h.doImports)
	g.Go(func() error { return h.watchPressure(watching, engine) })
	g.Go(func() error {
		defer unwatch()
		defer close(h.syncs)
		defer close(h.imports)
		defer h.answerEverybody()
		return h.loop(ctx)
	})
	return g.Wait()
}

// SyncAge is for how long the disk has owed an answer to a sync; 0: it owes none.
func (h *Host) SyncAge() time.Duration {
	since := h.syncing.Load()
	if since == 0 {
		return 0
	}
	return time.Since(h.began) - time.Duration(since)
}

// waitForSyncs waits for one turn after the other, in their order. Its errors go to the loop, which reports them.
func (h *Host) waitForSyncs() error {
	for turn := range h.syncs {
		began := time.Now()
		h.syncing.Store(int64(began.Sub(h.began)) + 1)
		err := turn.Wait()
		h.syncing.Store(0)
		if h.cfg.Hooks.Sync != nil {
			h.cfg.Hooks.Sync(time.Since(began))
		}
		h.durable <- synced{turn.Seq, err}
	}
	return nil
}
