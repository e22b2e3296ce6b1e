package replica

import (
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// maxTruncations bounds the range deletes of one turn.
const maxTruncations = 4

// truncateLogs keeps the logs of all shards within Config.LogBytes together, the largest first, by removing what is
// applied here and, on a leader, known to be on every replica that is not lost or hopelessly behind.
func (c *Core) truncateLogs(b store.Batch) {
	total := c.logBytes()
	// A step below half of a shard's share would come too often.
	step := c.cfg.LogBytes / uint64(2*len(c.all)+1)
	for n := 0; n < maxTruncations && total > c.cfg.LogBytes; n++ {
		r := c.largestLog()
		before, limit := r.log.bytes, c.truncatable(r)
		if limit <= r.log.truncated.index || r.log.bytesTo(limit) < step {
			return
		}
		r.log.truncate(b, limit)
		c.counters.TruncatedBytes += before - r.log.bytes
		total -= before - r.log.bytes
	}
}

func (c *Core) logBytes() uint64 {
	total := uint64(0)
	for _, r := range c.all {
		total += r.log.bytes
	}
	return total
}

func (c *Core) largestLog() *replica {
	largest := c.all[0]
	for _, r := range c.all[1:] {
		if r.log.bytes > largest.log.bytes {
			largest = r
		}
	}
	return largest
}

// truncatable is the last index whose row nobody needs any more, as far as is known here: a follower does not know what the
// others have, so that its successor as leader may have to bring them up by a snapshot. So does a leader those whose store
// is suspect, and those that lack more than a shard's share of the log.
func (c *Core) truncatable(r *replica) uint64 {
	if r.installing != nil {
		return 0 // its rows are being replaced
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
