package dispatch

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Errors that callers of Poll branch on.
var (
	// ErrTooManyPolls: as many polls wait as may; try later.
	ErrTooManyPolls = errors.New("too many polls are waiting")
	// ErrInvalidPoll: the request breaks a limit that package rpc should have checked.
	ErrInvalidPoll = errors.New("invalid poll")
	// ErrClaimInUse: a poll with this claim id, but of another worker or size, is waiting.
	ErrClaimInUse = errors.New("claim id is in use by another poll")
)

// Limits that are not for configuration.
const (
	// MaxLeasesPerPoll bounds PollRequest.Max.
	MaxLeasesPerPoll = 1000
	// MaxQueuesPerPoll bounds PollRequest.Queues.
	MaxQueuesPerPoll = 100

	// roundLimit is how many rows of executions one round may move.
	roundLimit = 1000
	// sliceLimit is how many picks a poll takes from a shard before the next shard is looked at.
	sliceLimit = 250
	// commandLimit bounds the commands, and the demands, of one round.
	commandLimit = 250
)

// Rows are a shard's committed rows as one goroutine reads them. After an I/O error reads find nothing and Err tells.
type Rows interface {
	fsm.Reader
	Err() error
}

// Host is what the dispatcher needs of the node it runs in. ShardOf, Now and MayFire must be cheap and take no lock under
// which the dispatcher is called.
type Host interface {
	// ProposeAll hands commands to their shards' logs, together, in entries that are stamped no earlier than Now at the
	// call. It must not block. Each Done is called exactly once, on the replica loop's goroutine or, if its command is
	// refused at once, on the caller's.
	ProposeAll([]Proposal)
	// Rows returns a reader of the shard's committed rows. It must show every entry whose effects Applied was told of.
	Rows(shard uint32) Rows
	// ShardOf returns the shard of a job.
	ShardOf(tenant, jobID string) uint32
	// Now is the disciplined clock, milliseconds.
	Now() int64
	// MayFire is false while the clock guard holds firing.
	MayFire() bool
}

// Proposal is a command on its way to a shard's log; see Host.ProposeAll.
type Proposal struct {
	Shard   uint32
	Command *storagev1.Command
	Done    func(fsm.Result, error)
}

// Config is what a Dispatcher can be told. Zero fields take the default.
type Config struct {
	// Horizon is how far ahead timers are kept in memory; half of it is loaded at a time. Default 60 s.
	Horizon time.Duration
	// MaxTimers bounds the timers in memory. If more fall inside the horizon, less far is loaded. Default 1,000,000.
	MaxTimers int
	// MaxReady bounds the keys of ready executions in memory; the rest stays in rows. Default 65,536.
	MaxReady int
	// MaxPolls bounds the waiting polls. Default 20,000.
	MaxPolls int
	// RoundsPerSecond and RoundBurst pace what is proposed. Defaults 2,000 and 64.
	RoundsPerSecond int
	RoundBurst      int
	// Quantum is the least time between two plans. Default 1 ms.
	Quantum time.Duration
	// Grace is how long due timers wait for a poll, if one was there within the last second or one waits at another node,
	// which is told of them: fired into a poll's hands they cost an entry and two key writes less. Default 100 ms.
	Grace time.Duration
	// Linger is how long a poll that has a lease stays for more while much is waiting, and MinBatch is how much that is.
	// Defaults 20 ms and 32.
	Linger   time.Duration
	MinBatch int
	// ClockStands says that Host.Now stands still but for jumps, after each of which ClockChanged is called: the planner waits
	// for no instant then.
	ClockStands bool
	// Hint tells another node that there is something in queues in which it is interested and that no poll here takes:
	// see SetInterest. It is told of a queue at most once in 5 ms, and again after 200 ms while it stands. The default
	// tells nobody.
	Hint func(node string, queues []string)
	// InterestChanged is called, at most once in 5 ms, when polls wait for a queue that Interest did not name when it was
	// last called. That none waits any more is no reason to call. The default tells nobody.
	//
	// Both are called on the planner's goroutine, without a lock: they must not block, and may call the dispatcher.
	InterestChanged func()
	// Planned is called after each plan, on the planner's goroutine, without a lock: it must not block. It is for who waits
	// for Quiet. The default tells nobody.
	Planned func()
	Logger  *slog.Logger
	Faults  Faults
}

// Faults are deliberate mistakes. Tests switch one on to prove that they would notice it; nothing else sets them.
type Faults struct {
	// DueTimersLost begins a leadership with the timers that are still to come: those that fell due while nobody led the
	// shard are lost.
	DueTimersLost bool
}

const (
	// retryDelay is how long a shard rests after a refused round.
	retryDelay = 20 * time.Millisecond
	// heldRecheck is how often the guard is asked while it holds firing.
	heldRecheck = 20 * time.Millisecond
	// pollMemory is how long after a queue's last poll its workers are thought to be there.
	pollMemory = time.Second
)

func (c Config) withDefaults() Config {
	set(&c.Horizon, time.Minute)
	set(&c.MaxTimers, 1_000_000)
	set(&c.MaxReady, 65_536)
	set(&c.MaxPolls, 20_000)
	set(&c.RoundsPerSecond, 2_000)
	set(&c.RoundBurst, 64)
	set(&c.Quantum, time.Millisecond)
	set(&c.Grace, 100*time.Millisecond)
	set(&c.Linger, 20*time.Millisecond)
	set(&c.MinBatch, 32)
	if c.Hint == nil {
		c.Hint = func(string, []string) {}
	}
	if c.InterestChanged == nil {
		c.InterestChanged = func() {}
	}
	if c.Planned == nil {
		c.Planned = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func set[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	c = c.withDefaults()
	for _, f := range []struct {
		name       string
		value, min int64
	}{
		{"horizon", c.Horizon.Milliseconds(), 1000},
		{"max timers", int64(c.MaxTimers), 64},
		{"max ready", int64(c.MaxReady), 64},
		{"max polls", int64(c.MaxPolls), 1},
		{"rounds per second", int64(c.RoundsPerSecond), 1},
		{"round burst", int64(c.RoundBurst), 1},
		{"quantum", int64(c.Quantum), 1},
		{"grace", int64(c.Grace), 1},
		{"linger", int64(c.Linger), 1},
		{"min batch", int64(c.MinBatch), 1},
	} {
		if f.value < f.min {
			return fmt.Errorf("dispatch: %s: %d is below %d", f.name, f.value, f.min)
		}
	}
	return nil
}
