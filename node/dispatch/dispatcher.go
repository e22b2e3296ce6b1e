package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/fsm"
)

// Dispatcher serves the shards that one node leads. Its methods are safe for concurrent use.
type Dispatcher struct {
	cfg  Config
	host Host
	log  *slog.Logger

	// Signals of capacity one: something to plan, something to load.
	wakePlanner chan struct{}
	wakeLoader  chan struct{}

	mu sync.Mutex
	// shards led here, by id; led holds the same in order of id.
	shards map[uint32]*shard
	led    []*shard
	queues map[string]*queue
	// turns is the account above the queues'. weights are the tenants' that are not 1, shares the queues' that are not the default.
	turns   account
	weights map[string]uint32
	shares  map[string]Shares
	// polls that are not settled yet, by claim id.
	polls   map[string]*poll
	pollSeq uint64
	// hot are queues that may have both something to offer and a poll to take it.
	hot []*queue
	// peers are other nodes at which polls wait; outbox is what they, and our own node, are to be told.
	peers  map[string]*peer
	outbox outbox
	// lingering are polls that wait for more leases, in the order in which their time ends.
	lingering []*poll
	// memory is how many ready keys, streams and bands are held, bounded by Config.MaxReady.
	memory int
	// streams counts those in memory; shrunkTo is the least limit of their keys to which all were trimmed.
	streams, shrunkTo int
	jobs              jobs
	pace              pace
	counts            Counters
	// stopped: polls end at once and no round is made but to give leases back.
	stopped bool
}

// New returns a dispatcher that leads nothing. Nothing happens until Run is called.
func New(cfg Config, host Host) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Dispatcher{
		cfg: cfg, host: host, log: cfg.Logger,
		wakePlanner: make(chan struct{}, 1), wakeLoader: make(chan struct{}, 1),
		shards: map[uint32]*shard{}, queues: map[string]*queue{}, polls: map[string]*poll{}, peers: map[string]*peer{},
		outbox: outbox{wanted: map[string]struct{}{}},
		pace:   pace{rate: float64(cfg.RoundsPerSecond), burst: float64(cfg.RoundBurst)},
	}, nil
}

// Run plans and loads until ctx ends or a shard's rows cannot be read, which is returned: the node stops then.
func (d *Dispatcher) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.runPlanner(ctx) })
	group.Go(func() error { return d.runLoader(ctx) })
	return group.Wait()
}

// Takeover begins a leadership: the shard's rows are loaded by the loader and the shard is ready when that is done.
// It is called on the replica loop's goroutine before the first Applied of the leadership.
func (d *Dispatcher) Takeover(id uint32, term uint64) {
	now := d.host.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(id)
	sh := newShard(id, term, now, d.cfg.Horizon.Milliseconds())
	d.shards[id] = sh
	at, _ := slices.BinarySearchFunc(d.led, id, compareShard)
	d.led = slices.Insert(d.led, at, sh)
	d.jobs.takeovers = append(d.jobs.takeovers, sh)
	signal(d.wakeLoader)
}

// StepDown ends a leadership: what is known of the shard is dropped. Polls go on waiting for the other shards.
func (d *Dispatcher) StepDown(id uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(id)
	signal(d.wakePlanner)
}

// drop forgets a shard. Rounds under way still return what they reserved, through their callbacks. Locked.
func (d *Dispatcher) drop(id uint32) {
	sh := d.shards[id]
	if sh == nil {
		return
	}
	sh.dropped, sh.ready = true, false
	delete(d.shards, id)
	if at, ok := slices.BinarySearchFunc(d.led, id, compareShard); ok {
		d.led = slices.Delete(d.led, at, at+1)
	}
	for _, sq := range sh.queues {
		d.forgetQueue(sq)
	}
	d.forgetTimers(sh)
}

// Applied keeps a shard current with what an entry changed. It is called on the replica loop's goroutine, after the
// entry's rows became visible and in the order of the log. The effects must not be changed afterwards.
func (d *Dispatcher) Applied(id uint32, effects *fsm.Effects) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sh := d.shards[id]
	if sh == nil {
		return
	}
	wake := d.addTimers(sh, effects.Timers)
	for i := range effects.Ready {
		d.readyAdded(sh, effects.Ready[i])
	}
	for _, key := range effects.Unready {
		d.readyRemoved(sh, key)
	}
	for i := range effects.Ended {
		sh.endLease(effects.Ended[i].ClaimID, effects.Ended[i].Fencing)
	}
	if effects.SettingsChanged && !slices.Contains(d.jobs.settings, sh) {
		d.jobs.settings = append(d.jobs.settings, sh)
		signal(d.wakeLoader)
	}
	if wake || len(effects.Ready) > 0 && len(d.hot)+len(d.outbox.warm) > 0 {
		signal(d.wakePlanner)
	}
}

// Stop ends the waiting polls, with what they have, and those to come, with nothing, so that their calls can be answered
// before the server goes away. Leases can still be given back as long as Run runs. It returns at once and may be called
// again.
func (d *Dispatcher) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for _, p := range d.polls {
		d.close(p)
	}
}

// ClockChanged is to be called when the clock guard changes its state or believes another time: the planner then looks
// at the clock anew instead of sleeping on.
func (d *Dispatcher) ClockChanged() { signal(d.wakePlanner) }

// Quiet says of shards that all are led here, that nothing is under way, and that no poll waits for what there is: nothing
// happens here any more until somebody polls, entries change something or the clock moves. nextMS is the instant of the
// first timer in memory, which may be gone from the rows, math.MaxInt64 if there is none; of the shards in unknown there is
// none in memory: what their rows hold stands beyond the horizon.
func (d *Dispatcher) Quiet(shards []uint32) (nextMS int64, unknown []uint32, quiet bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	nextMS = math.MaxInt64
	for _, id := range shards {
		sh := d.shards[id]
		if sh == nil || !sh.ready || sh.round != nil || len(sh.releases) > 0 {
			return 0, nil, false
		}
		t := &sh.timers
		switch {
		case t.total > 0 || t.moreDue || t.loading:
			return 0, nil, false
		case t.next == math.MaxInt64:
			unknown = append(unknown, id)
		}
		nextMS = min(nextMS, t.next)
	}
	quiet = !slices.ContainsFunc(d.hot, func(q *queue) bool { return len(q.offers) > 0 && q.hungry.Len() > 0 })
	return nextMS, unknown, quiet
}

// Ready returns an error that names a shard that is led but not loaded yet, nil if there is none.
func (d *Dispatcher) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, sh := range d.led {
		if !sh.ready {
			return fmt.Errorf("shard %d is still loading its timers and ready executions", sh.id)
		}
	}
	return nil
}

// ShardReady says whether the shard is led here and loaded.
func (d *Dispatcher) ShardReady(id uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	sh := d.shards[id]
	return sh != nil && sh.ready
}

// signal wakes the owner of ch, once for any number of signals before it looks.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// pace is a token bucket of rounds.
type pace struct {
	rate, burst float64
	tokens      float64
	at          time.Time
}

// refill adds what has accrued by now.
func (p *pace) refill(now time.Time) {
	if p.at.IsZero() {
		p.tokens = p.burst
	} else {
		p.tokens = min(p.burst, p.tokens+p.rate*now.Sub(p.at).Seconds())
	}
	p.at = now
}

// take uses a token, if there is one.
func (p *pace) take() bool {
	if p.tokens < 1 {
		return false
	}
	p.tokens--
	return true
}

// wait is how long it takes until there is a token.
func (p *pace) wait() time.Duration {
	return time.Duration((1-p.tokens)/p.rate*float64(time.Second)) + time.Microsecond
}
