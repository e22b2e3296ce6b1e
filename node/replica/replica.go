package replica

import (
	"errors"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// raft's own limits, REPLICATION.md 2.2.
const (
	maxMessageBytes     = 256 << 10
	maxInflightMessages = 64
	maxInflightBytes    = 4 << 20
	maxUncommittedBytes = 16 << 20
	maxApplyingBytes    = 4 << 20
	// maxPasses bounds the Readys of one replica in one turn, and so the batch; the rest waits for the next turn.
	maxPasses = 4
)

// replica is one shard's member of its raft group on this store.
type replica struct {
	shard  uint32
	id     uint64
	stores map[uint64]string
	// conf is the configuration as applied, view the same for others to read, gen the generation it comes from.
	conf *raftpb.ConfState
	view Conf
	gen  uint64

	node  *raft.RawNode
	log   *raftLog
	rows  *store.Shard
	state recorder

	machine Machine
	hard    hardState
	applied appliedState
	// everywhere is the highest index that is known to be on every replica of the group.
	everywhere uint64
	// dirty replicas take part in the next turn.
	dirty bool
	// gone: it has been removed.
	gone bool
	// appliedMoved says that the applied index is to be written with this turn.
	appliedMoved bool
	// identityMoved says the same of the identity: configuration, generation and stores.
	identityMoved bool

	soft raft.SoftState
	// lead is the leadership raft gave this replica, nil if none.
	lead *leadership
	// floor is the highest epoch seen in the control plane: a leadership at or below it is given up.
	floor uint64
	// campaignIn counts the ticks to the next candidacy; below zero: none is planned.
	campaignIn int
	// transferTicks is how long a transfer of leadership may still take; 0: none is going on.
	transferTicks int
	// standIn counts the StaggerIntervals to a candidacy, 0: none is planned; standTries how many there are left; voteWait those
	// that the present one has lasted. campaigned: it was planned, not raft's own.
	standIn, standTries, voteWait int
	campaigned                    bool
	// skipTicks of raft's are left out, so that its heartbeats come with those of the store's other leaders.
	skipTicks int
	members   membership

	// incoming is a received snapshot that raft has been told of, installing one that is on its way into the engine, held
	// raft's message that waited for it.
	incoming   *Received
	installing *installation
	held       *raftpb.Message

	// applies are raft's messages with committed entries that are still to be applied. verifying: the rest waits until this
	// turn is committed.
	applies   []*raftpb.Message
	verifying bool

	queue  queue
	flight *flight
	reads  reads
}

func openReplica(c *Core, s ReplicaState) (*replica, error) {
	r := &replica{
		shard: s.Shard, id: s.ID, stores: s.Stores, conf: s.conf, view: confOf(s.conf), gen: s.gen,
		log: s.log, rows: store.NewShard(c.engine, s.Shard, c.cfg.Cache), hard: s.hard, applied: s.applied, campaignIn: -1,
	}
	if r.onlyVoter() {
		r.campaignIn = 0
	}
	r.log.sending = &c.sending
	r.log.state = func() (position, *raftpb.ConfState) { return r.applied.position, r.conf }
	r.log.keepsTail = c.cfg.Faults.TruncateByIndexAlone
	r.state.rows = r.rows
	if err := r.openMachine(c); err != nil {
		return nil, err
	}
	node, err := raft.NewRawNode(&raft.Config{
		ID:                        s.ID,
		ElectionTick:              electionTicks,
		HeartbeatTick:             heartbeatTicks,
		Storage:                   s.log,
		Applied:                   s.applied.index,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             maxMessageBytes,
		MaxCommittedSizePerReady:  maxApplyingBytes,
		MaxUncommittedEntriesSize: maxUncommittedBytes,
		MaxInflightMsgs:           maxInflightMessages,
		MaxInflightBytes:          maxInflightBytes,
		CheckQuorum:               true,
		PreVote:                   true,
		ReadOnlyOption:            raft.ReadOnlySafe,
		Logger:                    raftLogger{c.cfg.Logger.With("shard", s.Shard)},
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	})
	if err != nil {
		return nil, err
	}
	r.node = node
	return r, nil
}

// openMachine makes the replica's state machine from its rows.
func (r *replica) openMachine(c *Core) error {
	if err := guard(r.rows, func() { r.machine = c.cfg.OpenMachine(r.shard, r.rows) }); err != nil {
		return fmt.Errorf("open state machine: %w", err)
	}
	return nil
}

// onlyVoter says that the group has no other voter: it elects itself and needs no heartbeats.
func (r *replica) onlyVoter() bool {
	return len(r.conf.Voters) == 1 && r.conf.Voters[0] == r.id && len(r.conf.VotersOutgoing) == 0
}

func (r *replica) leads() bool { return r.lead != nil }

func (r *replica) notLeader() error {
	return &NotLeaderError{Shard: r.shard, Term: r.hard.term, Store: r.stores[r.soft.Lead]}
}

// stepLocal hands raft a message of its own storage. What a replica has said to itself means nothing any more when it has
// meanwhile been removed from its group, and raft then knows no such peer.
func (r *replica) stepLocal(m *raftpb.Message) {
	if err := r.node.Step(m); err != nil && !errors.Is(err, raft.ErrStepPeerNotFound) {
		panic(fmt.Sprintf("replica: shard %d: raft refused %s of its own: %v", r.shard, m.GetType(), err))
	}
}

// needsTick says whether time matters to the replica now.
func (r *replica) needsTick() bool {
	if !r.onlyVoter() || len(r.conf.Learners) > 0 || r.changing() {
		return true
	}
	return r.lead == nil || !r.lead.established || r.lead.lease != leaseHeld || r.transferTicks > 0
}

func (r *replica) tick() {
	if r.skipTicks > 0 {
		r.skipTicks--
	} else {
		r.node.Tick()
	}
	if r.transferTicks > 0 {
		r.transferTicks--
	}
	if r.campaignIn > 0 {
		r.campaignIn--
	}
	if r.lead != nil {
		r.lead.ticks++
		r.noteHeard()
	}
	r.reads.tick()
}

func (r *replica) campaign() {
	r.campaignIn = -1
	if r.lead != nil || !r.votes() {
		return
	}
	r.campaigned = true
	// An error is impossible: raft answers a candidacy it does not want by doing nothing.
	_ = r.node.Campaign()
}

// drive does a turn of one replica: propose, and handle what raft has ready, until there is nothing or enough.
func (c *Core) drive(r *replica, w *write) error {
	if r.campaignIn == 0 {
		r.campaign()
	}
	if r.held != nil {
		c.appendLog(r, r.held, w)
		r.held = nil
	}
	if err := c.applyWaiting(r); err != nil {
		return err
	}
	for range maxPasses {
		if r.lead != nil {
			c.pursueLease(r)
			c.pursueWanted(r)
			c.pursueDrain(r)
			c.proposeNext(r, w.stampMS)
		}
		c.askReadIndex(r)
		if r.installing != nil || !r.node.HasReady() {
			break
		}
		if err := c.handle(r, r.node.Ready(), w); err != nil {
			return err
		}
	}
	c.releaseReads(r)
	c.refuseUnwanted(r)
	if r.installing == nil && r.node.HasReady() || len(r.applies) > 0 {
		c.touch(r)
	}
	// While a snapshot is installed nothing is written into its span, but what belongs to an applied index goes with it.
	if r.identityMoved && (r.installing == nil || r.appliedMoved) {
		r.identityMoved = false
		// Not through the recorder: the row holds the own id, and the chain must be the same on every replica.
		own := identity{id: r.id, conf: r.conf, gen: r.gen, stores: r.stores}
		r.rows.Set([]byte{fsm.KindConfState}, encodeIdentity(own))
	}
	if r.appliedMoved {
		r.appliedMoved = false
		c.writeApplied(r, w)
	}
	if c.cfg.Faults.IdempotencyApart {
		return r.rows.Flush(splitBatch{w.batch, w.apart})
	}
	return r.rows.Flush(w.batch)
}

// writeApplied puts the applied index into the batch that carries the state.
func (c *Core) writeApplied(r *replica, w *write) {
	if c.cfg.Faults.AppliedIndexApart {
		w.apart.Set(rowKey(r.shard, fsm.KindApplied), encodeApplied(r.applied))
		return
	}
	w.batch.Set(rowKey(r.shard, fsm.KindApplied), encodeApplied(r.applied))
}

// committed is called when the turn's batch is visible.
func (r *replica) committed() {
	r.verifying = false
	r.rows.Committed()
}

// handle does what one Ready asks for.
func (c *Core) handle(r *replica, rd raft.Ready, w *write) error {
	if !raft.IsEmptyHardState(rd.HardState) {
		c.noteHardState(r, rd, w.batch)
	}
	if rd.SoftState != nil {
		c.noteSoftState(r, *rd.SoftState)
	}
	var votes []*raftpb.Message
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			if m.GetSnapshot() != nil {
				if err := c.beginInstall(r, m, w); err != nil {
					return err
				}
				continue
			}
			c.appendLog(r, m, w)
		case raft.LocalApplyThread:
			r.applies = append(r.applies, m)
			if err := c.applyWaiting(r); err != nil {
				return err
			}
		default:
			if m.GetType() == raftpb.MsgVote {
				// Its answers count for this term and this log: both must outlive a crash, or an answer to a candidacy
				// before it could count for another one after it.
				votes = append(votes, m)
				continue
			}
			c.send(r, m)
		}
	}
	if len(votes) > 0 {
		w.responses = append(w.responses, responses{replica: r, messages: votes})
	}
	for _, rs := range rd.ReadStates {
		r.reads.learn(rs, c.nonce)
	}
	return nil
}

// noteHardState writes term and vote when they changed. The commit index alone is not worth a row: it is found again, but for
// what keepCommit is for. That of a snapshot says nothing of the log that stands until the snapshot is installed, whose end
// may never have been committed: after a crash before that it must not count as if it had.
func (c *Core) noteHardState(r *replica, rd raft.Ready, b store.Batch) {
	was, hs := r.hard, rd.HardState
	r.hard = hardState{term: hs.GetTerm(), vote: hs.GetVote(), commit: hs.GetCommit()}
	if !raft.IsEmptySnap(rd.Snapshot) {
		r.hard.commit = was.commit
	}
	if was.term != r.hard.term || was.vote != r.hard.vote {
		b.Set(rowKey(r.shard, fsm.KindHardState), encodeHardState(r.hard))
	}
}

// appendLog puts entries into the log and their responses behind the turn's sync.
func (c *Core) appendLog(r *replica, m *raftpb.Message, w *write) {
	if len(m.GetEntries()) > 0 {
		r.log.append(w.batch, m.GetEntries())
		r.placeFlight(m.GetEntries())
		r.keepCommit(m.GetEntries(), w.batch)
	}
	if len(m.GetResponses()) == 0 {
		return
	}
	rs := responses{replica: r, messages: m.GetResponses()}
	if c.cfg.Faults.ReplyBeforeSync {
		w.early = true
		c.release(rs)
		return
	}
	if r.appendsRelaxed(m.GetEntries()) {
		c.pass(rs)
		return
	}
	w.responses = append(w.responses, rs)
}

// keepCommit writes the commit index with entries that change the configuration. Their leader has applied the change before,
// and says so with them. raft goes by the configuration as applied, and lets nobody stand for election who knows of a
// committed change that he has not applied: whoever holds this change must know of the one before after a crash, too, or he
// could be elected by a majority that is none any more.
func (r *replica) keepCommit(entries []*raftpb.Entry, b store.Batch) {
	for _, e := range entries {
		if e.GetType() != raftpb.EntryNormal {
			b.Set(rowKey(r.shard, fsm.KindHardState), encodeHardState(r.hard))
			return
		}
	}
}

// send puts a message into the frame of its addressee's store.
func (c *Core) send(r *replica, m *raftpb.Message) {
	to, ok := r.stores[m.GetTo()]
	if m.GetType() == raftpb.MsgSnap {
		c.requestSnapshot(r, m, to)
		return
	}
	if !ok {
		return
	}
	at := slices.IndexFunc(c.out.Frames, func(f Frame) bool { return f.To == to })
	if at < 0 {
		at = len(c.out.Frames)
		c.out.Frames = append(c.out.Frames, Frame{To: to, From: c.cfg.Store})
	}
	f := &c.out.Frames[at]
	f.Messages = append(f.Messages, PeerMessage{Shard: r.shard, Message: m})
}
