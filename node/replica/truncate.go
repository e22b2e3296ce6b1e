package replica

import (
	"cmp"
	"slices"

	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// maxTruncations bounds the range deletes of one turn.
const maxTruncations = 4

// truncateLogs keeps the logs of all shards within their budgets, the largest first: what every replica is known to have
// goes beyond Config.LogTailBytes; beyond Config.LogBytes what is applied here goes too, though a replica may lack it that is
// lost or hopelessly behind: it will get a snapshot.
func (c *Core) truncateLogs(b store.Batch) {
	c.truncateTo(b, c.cfg.LogTailBytes, (*Core).known)
	c.truncateTo(b, c.cfg.LogBytes, (*Core).truncatable)
}

// truncateTo removes from the largest logs what limit lets go, while all take more than budget.
func (c *Core) truncateTo(b store.Batch, budget uint64, limit func(*Core, *replica) uint64) {
	total := c.logBytes()
	if total <= budget {
		return
	}
	// A step below half of a shard's share would come too often.
	step, truncated := budget/uint64(2*len(c.all)+1), 0
	for _, r := range c.largestLogs() {
		if total <= budget || truncated == maxTruncations {
			return
		}
		before, upTo := r.log.bytes, limit(c, r)
		if upTo <= r.log.truncated.index || r.log.bytesTo(upTo) < step {
			continue // the others' need not wait for what holds this one up
		}
		r.log.truncate(b, upTo)
		truncated++
		c.counters.TruncatedBytes += before - r.log.bytes
		total -= before - r.log.bytes
	}
}

// known is the last applied index that every replica is known to have: a leader sees it, and tells the others with its
// entries, so that none of them lets go of what its successor as leader may have to send.
func (c *Core) known(r *replica) uint64 {
	if r.keepsLog() {
		return 0
	}
	return min(r.everywhere, r.applied.index)
}

// keepsLog says that the log must stay as it is: its rows are being replaced, or what waits to be applied includes entries
// that raft still counts as unapplied, though they are, and reads when it stands for election.
func (r *replica) keepsLog() bool { return r.installing != nil || len(r.applies) > 0 }

// matched is the index up to which every replica of a leader's group has the log.
func (r *replica) matched() uint64 {
	least := r.log.last
	r.node.WithProgress(func(_ uint64, _ raft.ProgressType, pr tracker.Progress) { least = min(least, pr.Match) })
	return least
}

func (c *Core) logBytes() uint64 {
	total := uint64(0)
	for _, r := range c.all {
		total += r.log.bytes
	}
	return total
}

// largestLogs are all replicas, those with the largest logs first.
func (c *Core) largestLogs() []*replica {
	all := slices.Clone(c.all)
	slices.SortStableFunc(all, func(a, b *replica) int { return cmp.Compare(b.log.bytes, a.log.bytes) })
	return all
}

// truncatable is the last index whose row nobody needs any more, as far as is known here: a follower does not know what the
// others have, so that its successor as leader may have to bring them up by a snapshot. So does a leader those whose store
// is suspect, and those that lack more than a shard's share of the log.
func (c *Core) truncatable(r *replica) uint64 {
	if r.keepsLog() {
		return 0
	}
	limit := r.applied.index
	if r.lead == nil {
		return limit
	}
	share := c.cfg.LogBytes / uint64(len(c.all))
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		has := pr.Match
		if pr.State == tracker.StateSnapshot {
			has = max(has, pr.PendingSnapshot)
		}
		if has >= limit || c.suspects[r.stores[id]] {
			return
		}
		if has < r.log.truncated.index || r.log.bytes-r.log.bytesTo(has) > share {
			return
		}
		limit = has
	})
	return limit
}

// bytesTo is the size of the rows up to index.
func (l *raftLog) bytesTo(index uint64) uint64 {
	total := uint64(0)
	for _, size := range l.sizes[:index-l.truncated.index] {
		total += uint64(size)
	}
	return total
}
