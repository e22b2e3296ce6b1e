package sim

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// read is a caller who was just told that a job is created and asks another node for it: a follower's rows must show what was
// acknowledged before a read began.
func (w *crew) read(j acceptedJob) {
	c := w.c
	n := c.nodes[c.rng.IntN(len(c.nodes))]
	if !n.live() {
		return
	}
	if at, ok := n.core.Inspect(j.shard); !ok || at.Leader {
		return
	}
	life := n.life
	shown := func(err error) {
		if err != nil || n.life != life {
			return // its leader did not answer in time, or it has none
		}
		rows := n.rows(j.shard)
		got, ok := fsm.GetJob(rows, tenant, j.id)
		if rows.Err() != nil {
			return // the disk has failed, which the node has still to notice
		}
		c.count(ReadAtFollower)
		if !ok || got.Job.Incarnation < j.incarnation {
			c.fail("read of shard %d on %s does not show job %s, incarnation %d, which was acknowledged before", j.shard, n, j.id, j.incarnation)
		}
	}
	if c.cfg.Faults.FollowerReadsUnasked {
		shown(nil)
		return
	}
	n.core.ReadIndex(j.shard, shown)
	n.poke()
}

// verify is an operator who has the replicas of a shard look at their rows, now and then.
func (w *crew) verify() {
	c := w.c
	if !c.busy {
		return
	}
	w.verifies++
	v := &storagev1.Verify{Id: fmt.Sprintf("verify-%d", w.verifies)}
	w.ask(1+uint32(c.rng.IntN(int(c.shards))), func(*node) *storagev1.Command {
		return &storagev1.Command{Verify: v}
	}, func(fsm.Result) { c.after(c.between(second, 5*second), w.verify) })
}

// sight is what a replica saw of its rows.
type sight struct{ chain, sum, rows uint64 }

// look is what a node does when one of its replicas is to look at its rows.
func (n *node) look(v replica.Verify) {
	if n.c.cfg.Faults.RowLost && n == n.c.nodes[1] {
		n.loseRow(v.Shard)
	}
	source, err := n.engine.NewSnapshot()
	if err != nil {
		n.stopped(err)
		return
	}
	n.c.count(Verified)
	n.c.checks.looked(n, v, source)
	if err := source.Close(); err != nil {
		n.c.fail("%s: close snapshot: %w", n, err)
	}
}

// looked: the rows are those of the entry, the same on every replica, and nothing of them is against the rules. Whoever looks
// first looks for all as to the rules.
func (k *checks) looked(n *node, v replica.Verify, source store.Snapshot) {
	index, chain, err := replica.AppliedAt(source, v.Shard)
	if err != nil || index != v.Index || chain != v.Chain {
		n.c.fail("verify: shard %d on %s: the rows are those of %d, not of %d, or of another chain (%v)", v.Shard, n, index, v.Index, err)
	}
	rows := store.NewReader(source, v.Shard)
	seen := sight{chain: chain}
	seen.sum, seen.rows = fsm.Digest(rows)
	at := [2]uint64{uint64(v.Shard), v.Index}
	first, known := k.sights[at]
	if !known {
		k.sights[at] = seen
		n.c.recount(n, v.Shard, rows)
	} else if first != seen {
		n.c.fail("verify: shard %d at %d: %s has %+v, another store %+v", v.Shard, v.Index, n, seen, first)
	}
	if err := rows.Err(); err != nil {
		n.c.fail("verify: shard %d on %s: %w", v.Shard, n, err)
	}
}

// recount checks the rules that a shard's rows keep among themselves.
func (c *cluster) recount(n *node, shard uint32, rows fsm.Reader) {
	fsm.Check(rows, func(v fsm.Violation) { c.fail("verify: shard %d on %s: %s", shard, n, v) })
}

// loseRow is the fault RowLost.
func (n *node) loseRow(shard uint32) {
	b := n.engine.NewBatch()
	n.rows(shard).Scan([]byte{fsm.KindJob}, []byte{fsm.KindJob + 1}, func(key, _ []byte) bool {
		b.Delete(store.AppendKey(nil, shard, key))
		return false
	})
	if _, err := n.engine.Commit(b, false); err != nil {
		n.c.fail("%s: %w", n, err)
	}
}
