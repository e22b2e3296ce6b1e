package replica

import (
	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Turn is what one turn did and asks for.
type Turn struct {
	// Seq numbers the turns.
	Seq uint64
	// Wait blocks until the turn is durable; then SyncDone(Seq) is due. nil: there is nothing to wait for. Waits must be
	// called in the order of the turns.
	Wait func() error
	// Wrote says that something was written, durable or not.
	Wrote bool
	// Frames are to be sent now.
	Frames []Frame
	// Events come before Results, in order.
	Events  []Event
	Results []Delivery
	// Snapshots are asked for, Installs and Aborts of received ones to be done. None of it belongs on the goroutine that runs
	// the turns.
	Snapshots []SnapshotRequest
	Installs  []Install
	Aborts    []store.Import
	// Verifies are looks at rows as they stand now: take a snapshot of the engine for each before the next turn.
	Verifies []Verify
	// More says that another turn has work already.
	More bool
}

// Proposal is a command on its way into its shard's log.
type Proposal struct {
	Shard uint32
	// Command is handed over: it must not be changed any more.
	Command *storagev1.Command
	// Encoded is Command's encoding, if the caller has made it already.
	Encoded []byte
	// Relaxed says that nobody outside is told what comes of it: where the replica is the only voter, its entry need not be
	// durable before it is applied. It becomes so with the next entry of the store that is to be.
	Relaxed bool
	// Done is told the outcome exactly once.
	Done func(fsm.Result, error)
}

// Delivery is an outcome to hand out: to the caller of Propose, or of ReadIndex.
type Delivery struct {
	done   func(fsm.Result, error)
	read   func(error)
	result fsm.Result
	err    error
}

// Deliver calls the caller back.
func (d Delivery) Deliver() {
	if d.read != nil {
		d.read(d.err)
		return
	}
	d.done(d.result, d.err)
}

// EventKind says what an Event tells.
type EventKind uint8

const (
	// LeaseWanted: raft elected this replica; the control plane is to record Term as the shard's epoch and the outcome to
	// be told by LeaseHeld or HigherEpoch. Without an answer the leader goes on soon, degraded, and wants the lease again.
	LeaseWanted EventKind = iota + 1
	// Established: the replica serves from now on, under Term.
	Established
	// SteppedDown: the leadership of Term has ended. WasEstablished says whether it served.
	SteppedDown
	// Applied: an entry was applied while established; Effects says what it changed.
	Applied
	// Changed: the configuration is the one wanted, Gen, and every voter has it on its disk: what it is without may go. Conf
	// says what it is.
	Changed
)

// Event tells what happened to a shard.
type Event struct {
	Kind    EventKind
	Shard   uint32
	Term    uint64
	Effects *fsm.Effects

	WasEstablished bool

	Gen  uint64
	Conf Conf
}

// Counters only grow.
type Counters struct {
	Turns, Syncs                      uint64
	EntriesProposed, CommandsProposed uint64
	EntriesApplied, CommandsApplied   uint64
	BytesProposed, TruncatedBytes     uint64
	Ambiguous, LeadershipsGained      uint64
	// Refused commands were not proposed; those of them that were Shed had no room in a queue, or would have waited too
	// long.
	Refused, Shed uint64
	// Snapshots that were asked of this store, installed on it, and received without need.
	SnapshotsAsked, SnapshotsInstalled, SnapshotsRefused uint64
}
