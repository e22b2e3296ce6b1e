package expand

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Rows are a shard's committed rows as one goroutine reads them. After an I/O error reads find nothing and Err tells.
type Rows interface {
	fsm.Reader
	Err() error
}

// Host is what the expander needs of the node it runs in.
type Host interface {
	// Propose hands a command to its shard's log and must not block. done is called exactly once, on the replica loop's
	// goroutine or, if the command is refused at once, on the caller's.
	Propose(shard uint32, cmd *storagev1.Command, done func(fsm.Result, error))
	// Rows returns a reader of the shard's committed rows. It must show every entry whose effects Applied was told of.
	Rows(shard uint32) Rows
	// Now is the disciplined clock, milliseconds: it says what was missed.
	Now() int64
	// MayFire is false while the clock guard holds firing: what was missed is not known then.
	MayFire() bool
}

// Config is what New needs.
type Config struct {
	Evaluator Evaluator
	// Pace is the least time between two batches of a shard. 0: none, but that one is in flight at a time.
	Pace time.Duration
	// Settled is told, on Run's goroutine and without a lock, when Idle may have become true. The default tells nobody.
	Settled func()
	Logger  *slog.Logger
}

// Expander expands the cron jobs of the shards that one node leads. Its methods are safe for concurrent use.
type Expander struct {
	cfg   Config
	host  Host
	log   *slog.Logger
	began time.Time
	wake  chan struct{}

	// Run's alone: the count of rounds, how long they took, and what all queues count.
	rounds uint64
	busy   time.Duration
	counts Counters

	mu sync.Mutex
	// Guarded by mu. shards are those led here, stats what Stats returns. working: a round has taken over what was in the
	// inboxes, and stats do not show it yet.
	shards  map[uint32]*shard
	stats   Stats
	working bool
}

// shard is one leadership of one shard. queue and zones are Run's alone.
type shard struct {
	id    uint32
	queue *Queue
	zones *Zones
	// warnAt is when it may be logged again that jobs cannot be evaluated. Run's alone.
	warnAt int64
	inbox  inbox
}

// inbox is what the replica loop has told of a shard since Run last looked. Guarded by Expander.mu.
type inbox struct {
	hints []fsm.JobRef
	// ends take in what came of proposals, at an instant of the queue's clock.
	ends []func(at int64)
}

// Stats is a picture of the expander.
type Stats struct {
	Counters
	// Waiting is how many jobs wait, rest after a refusal or are in flight, and Oldest since how long the first of them.
	Waiting int
	Oldest  time.Duration
	// Busy is how long Run has worked in all.
	Busy time.Duration
}

// New returns an expander that leads nothing. Nothing happens until Run is called.
func New(cfg Config, host Host) *Expander {
	if cfg.Settled == nil {
		cfg.Settled = func() {}
	}
	return &Expander{
		cfg: cfg, host: host, log: cfg.Logger, began: time.Now(), wake: make(chan struct{}, 1), shards: map[uint32]*shard{},
	}
}

// Takeover begins a leadership. It is called on the replica loop's goroutine before the first Applied of the leadership.
func (x *Expander) Takeover(id uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shards[id] = &shard{
		id: id, queue: NewQueue(x.cfg.Pace.Milliseconds(), &x.counts), zones: NewZones(&x.cfg.Evaluator),
	}
	x.signal()
}

// StepDown ends a leadership: what waits is dropped. Whoever leads the shard next is asked again.
func (x *Expander) StepDown(id uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.shards, id)
}

// Applied takes in which jobs an entry wants expanded. It is called on the replica loop's goroutine.
func (x *Expander) Applied(id uint32, effects *fsm.Effects) {
	if len(effects.Expand) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if sh := x.shards[id]; sh != nil && len(sh.inbox.hints) < maxWaiting {
		sh.inbox.hints = append(sh.inbox.hints, effects.Expand...)
		x.signal()
	}
}

// Stats returns a picture of a moment ago.
func (x *Expander) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stats
}

// Idle says whether nothing waits, and nothing has been told that Run has not looked at.
func (x *Expander) Idle() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.working || x.stats.Waiting > 0 {
		return false
	}
	for _, sh := range x.shards {
		if len(sh.inbox.hints) > 0 || len(sh.inbox.ends) > 0 {
			return false
		}
	}
	return true
}

// signal wakes Run, once for any number of signals before it looks.
func (x *Expander) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// Run expands until ctx ends or a shard's rows cannot be read, which is returned: the node stops then.
func (x *Expander) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		sleep, err := x.round()
		if err != nil {
			return err
		}
		timer.Reset(sleep)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-x.wake:
		case <-timer.C:
		}
	}
}
