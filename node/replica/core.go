package replica

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"math"
	"slices"

	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// Core is the replicas of one store as a deterministic state machine: inputs are method calls, what comes of them is done
// by Turn. It must be used by one goroutine at a time. Given the same inputs it does the same, up to raft's random election
// timeouts.
type Core struct {
	cfg    Config
	engine store.Engine
	byID   map[uint32]*replica
	// all is in order of shards.
	all   []*replica
	dirty []*replica

	seq uint64
	// unsynced are the turns whose sync is awaited, oldest first.
	unsynced []unsynced
	out      Turn
	readSeq  uint64
	stopping bool
	// ticks since the start.
	ticks int
	// nowMS is the stamp of the last turn.
	nowMS int64
	// acceptedMS is the stamp of the last turn that found accepted work waiting.
	acceptedMS int64
	// freshShare is how many bytes of new work a shard's entry may take in this turn.
	freshShare int
	// freshRoom is how many bytes of it may still be taken in, all shards together, until SetPressure is called again.
	freshRoom int
	// queuedBytes is the size of the commands in all queues.
	queuedBytes int
	counters    Counters
	// worked are the replicas of the last turn.
	worked []*replica
	// shape counts the replicas that came and went.
	shape uint64
	// nonce tells this run's questions for a read index from an earlier run's.
	nonce [8]byte

	// suspects are the stores taken for dead or stuck.
	suspects map[string]bool
	// standing is how many replicas wait for their turn to stand for election.
	standing int
	// draining: leaderships are handed over; drained are told when none is left.
	draining bool
	drained  []func(error)
	removals []*removal
	// sending is the snapshot on its way out, installs the shards whose snapshots are on their way into the engine.
	sending  sendGate
	installs map[uint32]bool
	// broken is why nothing can go on.
	broken error
}

type unsynced struct {
	seq       uint64
	responses []responses
	// tombstones and installs become possible or final with the sync.
	tombstones []*removal
	installs   []*replica
}

// responses are the messages of a replica that may go once their turn is durable.
type responses struct {
	replica  *replica
	messages []*raftpb.Message
}

// New opens the groups of replicas, as Load returned them. A group with one voter campaigns in the first turn.
func New(cfg Config, engine store.Engine, replicas []ReplicaState) (*Core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Core{
		cfg: cfg.withDefaults(), engine: engine, byID: make(map[uint32]*replica, len(replicas)),
		suspects: make(map[string]bool), installs: make(map[uint32]bool), freshRoom: math.MaxInt,
	}
	if _, err := rand.Read(c.nonce[:]); err != nil {
		return nil, fmt.Errorf("open replicas: %w", err)
	}
	for _, s := range replicas {
		if c.byID[s.Shard] != nil {
			return nil, fmt.Errorf("open replicas: shard %d is there twice", s.Shard)
		}
		r, err := openReplica(c, s)
		if err != nil {
			return nil, fmt.Errorf("open replica of shard %d: %w", s.Shard, err)
		}
		c.byID[s.Shard] = r
		c.all = append(c.all, r)
		c.touch(r)
	}
	slices.SortFunc(c.all, byShard)
	return c, nil
}

func byShard(a, b *replica) int { return cmp.Compare(a.shard, b.shard) }

// Propose queues a command for the next entry of its shard. Its Done comes with a later turn's Results.
func (c *Core) Propose(p Proposal) {
	r := c.byID[p.Shard]
	if p.Encoded == nil {
		encoded, err := p.Command.MarshalVT()
		if err != nil {
			c.refuse(p, fmt.Errorf("encode command: %w", err))
			return
		}
		p.Encoded = encoded
	}
	patience, room := c.cfg.patience(p.Command), c.cfg.StoreQueueBytes-c.queuedBytes
	if patience > 0 {
		room -= c.cfg.StoreQueueBytes / reservedPart
	}
	switch {
	case r == nil:
		c.refuse(p, ErrNoReplica)
	case c.stopping:
		c.refuse(p, ErrStopped)
	case len(p.Encoded) > MaxCommandBytes:
		c.refuse(p, ErrTooLarge)
	case !r.leads():
		c.refuse(p, r.notLeader())
	case len(p.Encoded) > room || !r.queue.push(p, patience, &c.cfg, c.nowMS):
		c.counters.Shed++
		c.refuse(p, ErrOverloaded)
	default:
		c.queuedBytes += len(p.Encoded)
		c.touch(r)
	}
}

// ReadIndex asks for a moment after which the applied state shows everything acknowledged before the call; done is told it
// with a later turn's Results. A replica that does not lead asks the leader; NotLeaderError says that no answer came in time.
func (c *Core) ReadIndex(shard uint32, done func(error)) {
	r := c.byID[shard]
	switch {
	case r == nil:
		c.answerRead(done, ErrNoReplica)
	case c.stopping:
		c.answerRead(done, ErrStopped)
	case !r.leads() && r.onlyVoter():
		c.answerRead(done, r.notLeader())
	case r.reads.count() >= maxWaitingReads:
		c.answerRead(done, ErrOverloaded)
	default:
		r.reads.fresh = append(r.reads.fresh, done)
		c.touch(r)
	}
}

// Step takes in a message of a peer on the store from. What is not for a replica here, or what this version cannot use, is
// dropped, as if the network had.
func (c *Core) Step(from string, m PeerMessage) {
	defer c.noteStorageError()
	r := c.byID[m.Shard]
	if r == nil || m.Message.GetTo() != r.id || m.Message.GetType() == raftpb.MsgSnap || !c.knows(r, from, m.Message) {
		return
	}
	if c.cfg.Faults.NoFencing && m.Message.GetTerm() != r.hard.term && m.Message.GetTerm() != 0 {
		if r.lead != nil && m.Message.GetTerm() > r.hard.term {
			return
		}
		m.Message.Term = new(max(m.Message.GetTerm(), r.hard.term))
	}
	// An error means that raft dropped the message, which it may.
	_ = r.node.Step(m.Message)
	c.touch(r)
}

// SyncDone says that the turn seq is durable. Turns must be reported in order.
func (c *Core) SyncDone(seq uint64) {
	defer c.noteStorageError()
	if len(c.unsynced) == 0 || c.unsynced[0].seq != seq {
		panic(fmt.Sprintf("replica: sync of turn %d reported out of order", seq))
	}
	done := c.unsynced[0]
	c.unsynced = slices.Delete(c.unsynced, 0, 1)
	for _, gone := range done.tombstones {
		gone.durable = true
	}
	for _, r := range done.installs {
		if r.gone {
			delete(c.installs, r.shard)
			c.out.Aborts = append(c.out.Aborts, r.installing.got.rows)
			continue
		}
		c.out.Installs = append(c.out.Installs, Install{Shard: r.shard, Rows: r.installing.got.rows})
	}
	for _, rs := range done.responses {
		c.release(rs)
	}
}

// release lets go messages that waited for a sync.
func (c *Core) release(rs responses) {
	if !rs.replica.gone {
		c.pass(rs)
		c.touch(rs.replica)
	}
}

// pass hands out messages that wait for nothing.
func (c *Core) pass(rs responses) {
	for _, m := range rs.messages {
		if m.GetTo() == rs.replica.id {
			rs.replica.stepLocal(m)
		} else {
			c.send(rs.replica, m)
		}
	}
}

// Tick lets TickInterval pass for the replicas that need it.
func (c *Core) Tick() {
	defer c.noteStorageError()
	c.ticks++
	for _, r := range c.all {
		if r.needsTick() {
			r.tick()
			c.tickMembership(r)
			c.touch(r)
		}
	}
}

// NeedsTick says whether any replica waits for time to pass. A store whose groups have one voter each, all established,
// does not.
func (c *Core) NeedsTick() bool { return slices.ContainsFunc(c.all, (*replica).needsTick) }

// TransferLeader hands the leadership to replica id of the shard, if that is a voter and its store not suspect. Commands wait
// until it has happened, or an election timeout has passed without.
func (c *Core) TransferLeader(shard uint32, id uint64) {
	defer c.noteStorageError()
	r := c.byID[shard]
	if r != nil && r.leads() && id != r.id && slices.Contains(r.conf.GetVoters(), id) && !c.suspects[r.stores[id]] {
		c.transfer(r, id)
	}
}

// InFlight is how many turns wait for their syncs.
func (c *Core) InFlight() int { return len(c.unsynced) }

// HasWork says that a turn would do something.
func (c *Core) HasWork() bool {
	out := &c.out
	return len(c.dirty) > 0 || len(out.Results) > 0 || len(out.Frames) > 0 || len(out.Events) > 0 ||
		len(out.Snapshots) > 0 || len(out.Installs) > 0 || len(out.Aborts) > 0 ||
		c.removalsWait() || c.broken != nil
}

// Counters returns what was counted so far.
func (c *Core) Counters() Counters { return c.counters }

// touch marks r for the next turn.
func (c *Core) touch(r *replica) {
	if !r.dirty {
		r.dirty = true
		c.dirty = append(c.dirty, r)
	}
}

// Turn does what the inputs since the last one ask for, under stampMS, the node's disciplined clock. After an error, which
// is an engine's fault or a broken log, the Core must not be used any more and the process should end.
func (c *Core) Turn(stampMS int64) (turn Turn, err error) {
	defer recoverStorageError(&err)
	if c.broken != nil {
		return Turn{}, c.broken
	}
	c.seq++
	c.nowMS = stampMS
	c.counters.Turns++
	work := c.dirty
	c.dirty, c.worked = c.worked[:0], work
	slices.SortFunc(work, byShard)
	c.shareTurn(work)
	w := &write{batch: c.engine.NewBatch(), stampMS: stampMS}
	if c.cfg.Faults != (Faults{}) {
		w.apart = c.engine.NewBatch()
	}
	for _, r := range work {
		r.dirty = false
		if err := c.drive(r, w); err != nil {
			return Turn{}, fmt.Errorf("turn of shard %d: %w", r.shard, err)
		}
	}
	c.truncateLogs(w.batch)
	if err := c.driveRemovals(w); err != nil {
		return Turn{}, err
	}
	wrote := w.batch.Len() > 0
	wait, err := c.commit(w)
	if err != nil {
		return Turn{}, fmt.Errorf("commit turn: %w", err)
	}
	for _, r := range work {
		r.committed()
	}
	c.finishDrain()
	turn, c.out = c.out, Turn{}
	turn.Seq, turn.Wait, turn.Wrote, turn.More = c.seq, wait, wrote || wait != nil, len(c.dirty) > 0
	return turn, nil
}

// shareTurn divides what a turn takes of new work among the shards that have some.
func (c *Core) shareTurn(work []*replica) {
	shards := 0
	for _, r := range work {
		if len(r.queue.accepted.waiting) > 0 {
			c.acceptedMS = c.nowMS
		}
		if len(r.queue.fresh.waiting) > 0 {
			shards++
		}
	}
	bytes := freshTurnBytes
	if c.nowMS-c.acceptedMS > quietMS {
		bytes = freshOnlyTurnBytes
	}
	c.freshShare = min(bytes, c.freshRoom) / max(1, shards)
}

// recoverStorageError turns the engine's error that raft panicked with back into an error.
func recoverStorageError(err *error) {
	switch p := recover().(type) {
	case nil:
	case *storageError:
		*err = p
	default:
		panic(p)
	}
}

// noteStorageError does so for what is called between turns, where raft reads the log for whom it sends to: the next turn
// fails by it.
func (c *Core) noteStorageError() {
	switch p := recover().(type) {
	case nil:
	case *storageError:
		if c.broken == nil {
			c.broken = p
		}
	default:
		panic(p)
	}
}

func (c *Core) refuse(p Proposal, err error) {
	c.counters.Refused++
	c.out.Results = append(c.out.Results, Delivery{done: p.Done, err: err})
}

func (c *Core) answerRead(done func(error), err error) {
	c.out.Results = append(c.out.Results, Delivery{read: done, err: err})
}
