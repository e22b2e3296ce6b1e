package replica

import (
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3"
)

// Status is how a shard's replica stands.
type Status struct {
	Shard     uint32
	ReplicaID uint64
	// Leader: raft made this replica the leader, of Term. LeaderStore is the store of whoever leads, if known.
	Leader      bool
	LeaderStore string
	Term        uint64
	// Established: it serves. Degraded: it leads without the control plane having recorded it.
	Established bool
	Degraded    bool

	Applied, Commit uint64
	// Conf is the group's configuration as applied. Gen is the generation it comes from; without one yet, that which the
	// replica was made from. One that was published at Gen or above without this replica has dropped it for good. Installing: a
	// snapshot is being put in the place of the rows.
	Conf       Conf
	Gen        uint64
	Installing bool
	// LogFirst to LogLast are on disk and take LogBytes.
	LogFirst, LogLast, LogBytes uint64
	// Queued commands wait for an entry.
	Queued int
	// Rows is what the state machine cost.
	Rows store.Counters
}

func (c *Core) statusOf(r *replica) Status {
	s := Status{
		Shard: r.shard, ReplicaID: r.id, LeaderStore: r.stores[r.soft.Lead], Term: r.hard.term,
		Applied: r.applied.index, Commit: max(r.hard.commit, r.applied.index),
		LogFirst: r.log.truncated.index + 1, LogLast: r.log.last, LogBytes: r.log.bytes,
		Conf: r.view, Gen: r.gen, Installing: r.installing != nil,
		Queued: r.queue.len(), Rows: r.rows.Counters(),
	}
	if r.soft.Lead == r.id && r.soft.RaftState == raft.StateLeader {
		s.LeaderStore = c.cfg.Store
	}
	if l := r.lead; l != nil {
		s.Leader, s.Established = true, l.established
		s.Degraded = l.established && l.lease != leaseHeld
	}
	return s
}
