package replica

import (
	"context"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// Progress is a replica of a group as its leader sees it.
type Progress struct {
	ReplicaID uint64
	// Match is the last entry that is known to be on its disk; Lag how many of the leader's it is not known to have.
	Match, Lag uint64
	Learner    bool
	// Snapshot: it is being filled from one. Active: it has been heard of within the last two election timeouts.
	Snapshot, Active bool
}

// Progress says how far the replicas of the groups led here are, the leader's own included.
func (c *Core) Progress() map[uint32][]Progress {
	all := map[uint32][]Progress{}
	for _, r := range c.all {
		if r.lead == nil {
			continue
		}
		r.node.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
			p := Progress{
				ReplicaID: id, Match: pr.Match, Learner: kind == raft.ProgressTypeLearner,
				Snapshot: pr.State == tracker.StateSnapshot, Active: pr.RecentActive || id == r.id || r.lead.heardOf(id),
			}
			if id != r.id && r.log.last > pr.Match {
				p.Lag = r.log.last - pr.Match
			}
			all[r.shard] = append(all[r.shard], p)
		})
	}
	return all
}

func (r *replica) noteHeard() {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if pr.RecentActive {
			r.lead.heard[id] = r.lead.ticks
		}
	})
}

func (l *leadership) heardOf(id uint64) bool {
	at, ok := l.heard[id]
	return ok && l.ticks-at < electionTicks
}

// Progress is Core's.
func (h *Host) Progress(ctx context.Context) (map[uint32][]Progress, error) {
	ch := make(chan map[uint32][]Progress, 1)
	if !h.mail.call(func(c *Core) { ch <- c.Progress() }) {
		return nil, ErrStopped
	}
	select {
	case all := <-ch:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
