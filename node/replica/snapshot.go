package replica

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// SnapshotRequest asks for the shard's rows to be streamed to another store, by WriteSnapshot from a snapshot of the engine
// that is taken before the next turn. SnapshotSent is to be told how it went; until then no other one is asked for.
type SnapshotRequest struct {
	Shard uint32
	// To is the replica that needs it, Store where it is.
	To    uint64
	Store string

	from, term uint64
}

// sendGate lets one snapshot out of the store at a time. It is taken when raft is told that it may send one.
type sendGate struct {
	taken bool
	shard uint32
	// asked says that the request has been made.
	asked bool
}

// Snapshot is what raft asks for when a peer needs entries that are gone: where the applied state stands. What is sent is
// at least that new; see SnapshotRequest.
func (l *raftLog) Snapshot() (*raftpb.Snapshot, error) {
	if l.sending == nil || l.sending.taken {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	at, conf := l.state()
	if at.index == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	l.sending.taken, l.sending.shard = true, l.shard
	return newSnapshot(at, conf), nil
}

func newSnapshot(at position, conf *raftpb.ConfState) *raftpb.Snapshot {
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{ConfState: conf, Index: &at.index, Term: &at.term}}
}

// requestSnapshot turns raft's message into a request to stream the rows.
func (c *Core) requestSnapshot(r *replica, m *raftpb.Message, to string) {
	req := SnapshotRequest{Shard: r.shard, To: m.GetTo(), Store: to, from: m.GetFrom(), term: m.GetTerm()}
	if to == "" {
		c.SnapshotSent(req, false)
		return
	}
	c.sending.asked = true
	c.out.Snapshots = append(c.out.Snapshots, req)
	c.counters.SnapshotsAsked++
}

// SnapshotSent says that a requested snapshot has arrived and is being installed, or that it has not.
func (c *Core) SnapshotSent(req SnapshotRequest, arrived bool) {
	c.sending = sendGate{}
	r := c.byID[req.Shard]
	if r == nil || r.id != req.from || r.lead == nil {
		return
	}
	status := raft.SnapshotFinish
	if !arrived {
		status = raft.SnapshotFailure
	}
	r.node.ReportSnapshot(req.To, status)
	c.touch(r)
}

// dropTransfers frees the gate if a replica that goes has taken it and nobody has been asked to send yet.
func (c *Core) dropTransfers(r *replica) {
	if c.sending.taken && c.sending.shard == r.shard && !c.sending.asked {
		c.sending = sendGate{}
	}
	if r.incoming != nil {
		c.out.Aborts = append(c.out.Aborts, r.incoming.rows)
		r.incoming = nil
	}
}

// Install is a received snapshot to be installed in the engine. Installed is to be told when that is durable.
type Install struct {
	Shard uint32
	Rows  store.Import
}

// StepSnapshot takes in a snapshot that ReadSnapshot has received. Should raft not want it, its import comes back with a
// turn's Aborts.
func (c *Core) StepSnapshot(got Received) {
	r := c.byID[got.Shard]
	if r == nil || r.id != got.to || r.incoming != nil || r.installing != nil {
		c.out.Aborts = append(c.out.Aborts, got.rows)
		return
	}
	r.incoming = &got
	// The rows are those of committed entries, whoever leads by now: they need not be sent again because the sender has lost
	// its leadership meanwhile.
	if now := r.node.BasicStatus(); now.GetTerm() > got.term && now.Lead != raft.None {
		got.from, got.term = now.Lead, now.GetTerm()
	}
	// An error means that raft dropped the message; then no append brings the snapshot, and the import is aborted.
	_ = r.node.Step(&raftpb.Message{
		Type: raftpb.MsgSnap.Enum(), From: &got.from, To: &got.to, Term: &got.term,
		Snapshot: newSnapshot(got.applied.position, got.conf),
	})
	c.touch(r)
}

// beginInstall is called when raft hands out a snapshot. The hard state that comes with it has to be durable before it is
// installed; until that is done no Ready is taken from the replica.
func (c *Core) beginInstall(r *replica, m *raftpb.Message, w *write) error {
	if err := c.applyAll(r); err != nil {
		return err
	}
	at := m.GetSnapshot().GetMetadata()
	if r.incoming == nil || r.incoming.applied.index != at.GetIndex() || r.incoming.applied.term != at.GetTerm() {
		panic(fmt.Sprintf("replica: shard %d: raft hands out a snapshot at %d that nobody sent", r.shard, at.GetIndex()))
	}
	r.installing = &installation{got: r.incoming, append: m}
	r.incoming = nil
	c.installs[r.shard] = true
	w.installs = append(w.installs, r)
	return nil
}

// installation is a snapshot on its way into the engine, with raft's message that waits for it.
type installation struct {
	got    *Received
	append *raftpb.Message
}

// refuseUnwanted aborts an import that raft did not take up: it would have come with the first Ready.
func (c *Core) refuseUnwanted(r *replica) {
	if r.incoming == nil {
		return
	}
	c.out.Aborts = append(c.out.Aborts, r.incoming.rows)
	r.incoming = nil
	c.counters.SnapshotsRefused++
}

// Installed says that a snapshot's rows have replaced those of the shard, durably: the replica goes on from there. An error
// is the engine's, and ends the next turn.
func (c *Core) Installed(shard uint32, err error) {
	delete(c.installs, shard)
	if err == nil {
		err = c.resume(shard)
	}
	if err != nil && c.broken == nil {
		c.broken = fmt.Errorf("install snapshot of shard %d: %w", shard, err)
	}
}

// resume lets a replica go on from the snapshot it has been given.
func (c *Core) resume(shard uint32) error {
	r := c.byID[shard]
	if r == nil || r.installing == nil {
		return nil
	}
	got, held := r.installing.got, r.installing.append
	r.installing = nil
	r.held = held
	r.log.reset(got.applied.position)
	r.applied, r.gen = got.applied, got.gen
	r.noteConf(got.conf, nil)
	r.learnStores(got.placed(r.stores))
	r.identityMoved = true
	r.hard.commit = max(r.hard.commit, got.applied.index, held.GetCommit())
	r.rows.Forget()
	if err := r.openMachine(c); err != nil {
		return err
	}
	c.counters.SnapshotsInstalled++
	c.touch(r)
	return nil
}

// placed are the sender's replicas of which this store does not know better where they are.
func (r *Received) placed(known map[uint64]string) []Placed {
	var placed []Placed
	for id, at := range r.stores {
		if own, ok := known[id]; ok {
			at = own
		}
		placed = append(placed, Placed{ID: id, Store: at})
	}
	return placed
}

// reset makes the log empty behind a position.
func (l *raftLog) reset(at position) {
	l.truncated, l.last, l.terms = at, at.index, []position{at}
	l.sizes, l.bytes, l.recent, l.recentBytes = nil, 0, nil, 0
}
