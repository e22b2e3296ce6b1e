package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Limits that do not depend on the machine.
const (
	// maxEntryCommands and maxEntryBytes cap what is put together into one entry.
	maxEntryCommands = 512
	maxEntryBytes    = 256 << 10
	// freshTurnBytes is about how much new work all shards together take in with one turn: 10 to 20 ms of it on the machine
	// of docs/performance.md, so that claims and completions never wait long for a turn to end. Where there have been none
	// for quietMS it is freshOnlyTurnBytes: larger entries cost less.
	freshTurnBytes     = 256 << 10
	freshOnlyTurnBytes = 1 << 20
	quietMS            = 1000
	// MaxCommandBytes is the size of the largest single command: a payload of 1 MiB and what comes with it. One above
	// maxEntryBytes has an entry to itself.
	MaxCommandBytes = 1<<20 + 64<<10
	// maxTurnsInFlight is how many turns may wait for their syncs at once.
	maxTurnsInFlight = 4
	// maxWaitingReads bounds the reads that wait for a shard's read index.
	maxWaitingReads = 4096
)

// Durations in ticks of TickInterval.
const (
	// TickInterval is how often Tick is due while NeedsTick.
	TickInterval = 100 * time.Millisecond

	electionTicks = 10
	// heartbeatTicks: a lost leader is seen by the beats of its node, not by these. All leaders of a store send theirs with the
	// same tick, so that an idle store wakes its peers seldom.
	heartbeatTicks = 3
	// leaseWaitTicks is how long a fresh leader waits for the control plane before it goes on under raft alone.
	leaseWaitTicks = 3
	// leaseRetryTicks is how often a degraded leader asks the control plane again.
	leaseRetryTicks = 10
	// campaignTicks is the pause of a group's only voter between a leadership it gave up and the next one.
	campaignTicks = 3
	// readTicks is how long a read index is waited for.
	readTicks = 20
)

// Config is what New and NewHost need. Store, Logger and OpenMachine are required.
type Config struct {
	// Store is this store's name in LeaderStart, in frames and in hints to callers.
	Store string
	// OpenMachine makes the state machine of a shard from its rows.
	OpenMachine func(shard uint32, rows fsm.Reader) Machine
	Logger      *slog.Logger
	// Cache holds recently written rows of all shards; nil: none.
	Cache *store.Cache

	// Patience tells new work from what accepted work needs: 0 is the latter, which goes first. A positive duration is new
	// work, which is refused as overloaded if the new work before it has waited for longer. nil: nothing is new work.
	Patience func(*storagev1.Command) time.Duration
	// QueueCommands and QueueBytes bound the commands of one shard that wait for an entry, new and accepted work by
	// themselves; StoreQueueBytes those of all shards.
	QueueCommands   int
	QueueBytes      int
	StoreQueueBytes int
	// LogBytes is how much log all shards together keep before the largest is truncated, up to what is applied.
	LogBytes uint64
	// LogTailBytes is how much log all shards together keep of what is known to be on every replica: the less, the more of
	// it is gone before it is flushed. 0: LogBytes.
	LogTailBytes uint64
	// LogCacheBytes bounds the entries kept in memory for peers that catch up, all shards together.
	LogCacheBytes uint64

	Hooks  Hooks
	Faults Faults
}

// Machine is a shard's state machine: fsm.Machine, or a small one in simulations.
type Machine interface {
	// Apply applies the entry at index and returns one result per command. It must be a function of state and entry.
	Apply(s fsm.State, index uint64, e *storagev1.Entry) ([]fsm.Result, fsm.Effects)
}

// Hooks are told figures as they arise, on the goroutine that runs the turns. Any of them may be nil.
type Hooks struct {
	// Turn is how long a turn took, its wait for the sync not included.
	Turn func(time.Duration)
	// Sync is how long a turn waited until it was durable.
	Sync func(time.Duration)
	// Entry is the size of a proposed entry.
	Entry func(commands, bytes int)
}

// Faults are deliberate mistakes. Tests switch one on to prove that they would notice it; nothing else sets them.
type Faults struct {
	// ReplyBeforeSync treats appends as durable before they are.
	ReplyBeforeSync bool
	// AppliedIndexApart commits the applied index in a batch of its own, after the state it belongs to.
	AppliedIndexApart bool
	// IdempotencyApart commits the records of idempotency keys in a batch of their own, after what they are for.
	IdempotencyApart bool
	// TruncateByIndexAlone keeps entries of the own log that stand at the indexes of what a leader sends, whatever their
	// terms.
	TruncateByIndexAlone bool
	// ReusedReplicaID lets a replica be made under an id that has been removed.
	ReusedReplicaID bool
	// AmnesiacVoter takes messages of a replica from any store, so that a wiped one that comes back under its old id counts.
	AmnesiacVoter bool
	// NoFencing takes messages of ended terms for messages of the current one, and lets no leader hear that its term has
	// ended, so that a deposed one goes on and is still obeyed.
	NoFencing bool
}

// withDefaults fills in what was left zero.
func (c Config) withDefaults() Config {
	setDefault(&c.QueueCommands, 8192)
	setDefault(&c.QueueBytes, 8<<20)
	setDefault(&c.StoreQueueBytes, 64<<20)
	setDefault(&c.LogBytes, 64<<20)
	setDefault(&c.LogTailBytes, c.LogBytes)
	setDefault(&c.LogCacheBytes, 32<<20)
	if c.Cache == nil {
		c.Cache = store.NewCache(0)
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) patience(cmd *storagev1.Command) time.Duration {
	if c.Patience == nil {
		return 0
	}
	return c.Patience(cmd)
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Store == "":
		return errors.New("config: Store is empty")
	case c.OpenMachine == nil:
		return errors.New("config: OpenMachine is nil")
	case c.Logger == nil:
		return errors.New("config: Logger is nil")
	case c.QueueCommands < 0:
		return fmt.Errorf("config: QueueCommands is %d", c.QueueCommands)
	case c.QueueBytes != 0 && c.QueueBytes < MaxCommandBytes:
		return fmt.Errorf("config: QueueBytes is %d, below one command's %d", c.QueueBytes, MaxCommandBytes)
	case c.StoreQueueBytes != 0 && c.StoreQueueBytes < MaxCommandBytes:
		return fmt.Errorf("config: StoreQueueBytes is %d, below one command's %d", c.StoreQueueBytes, MaxCommandBytes)
	}
	return nil
}
