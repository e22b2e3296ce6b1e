package sim

import (
	"bytes"

	"github.com/carillon-scheduler/carillon/node/replica"
)

// network carries frames between nodes. cut are the directions, from and to by the names of nodes, in which nothing gets
// through.
type network struct{ cut map[[2]string]bool }

func (w *network) open(from, to string) bool { return !w.cut[[2]string{from, to}] }

// send puts a frame on its way.
func (w *network) send(from *node, f replica.Frame) {
	c := from.c
	b := replica.AppendFrame(nil, f)
	if c.chance(40) {
		c.count(Dropped)
		return
	}
	w.carry(from, f.To, b)
	if c.chance(40) {
		c.count(Duplicated)
		// The copy may come when others lead.
		c.after(c.between(1, 4*second), func() { w.arrive(from, f.To, bytes.Clone(b)) })
	}
}

func (w *network) carry(from *node, to string, b []byte) {
	c := from.c
	delay := c.between(100, 2*millisecond)
	if c.chance(50) {
		c.count(Delayed)
		delay = c.between(2*millisecond, 800*millisecond)
	}
	c.after(delay, func() { w.arrive(from, to, b) })
}

// hold keeps a frame until its way is open again: a connection that is not given up keeps what it was given.
func (w *network) hold(from *node, to string, b []byte) {
	c := from.c
	c.count(Delayed)
	c.after(c.between(50*millisecond, 200*millisecond), func() {
		if n := c.byStore(to); n != nil && !w.open(from.name, n.name) {
			w.hold(from, to, b)
			return
		}
		w.arrive(from, to, b)
	})
}

func (w *network) arrive(from *node, to string, b []byte) {
	n := from.c.byStore(to)
	if n != nil && !w.open(from.name, n.name) && from.c.chance(2) {
		w.hold(from, to, b)
		return
	}
	if n == nil || !n.up() || !w.open(from.name, n.name) {
		from.c.count(Dropped)
		return
	}
	if n.pausedUntil > from.c.now {
		if from.c.chance(2) {
			from.c.count(Dropped) // the connection broke meanwhile
			return
		}
		n.after(1, func() { w.arrive(from, to, b) }) // it waits in a buffer
		return
	}
	f, err := replica.DecodeFrame(b)
	if err != nil {
		from.c.fail("frame from %s: %w", from.name, err)
		return
	}
	for _, m := range f.Messages {
		n.core.Step(f.From, m)
	}
	n.poke()
}

// sendSnapshot streams a shard's rows as they stand after the turn.
func (n *node) sendSnapshot(req replica.SnapshotRequest) {
	n.c.count(SnapshotSent)
	source, err := n.engine.NewSnapshot()
	if err != nil {
		n.stopped(err)
		return
	}
	var b bytes.Buffer
	if err := replica.WriteSnapshot(&b, source, req); err != nil {
		n.c.fail("%s: %w", n.name, err)
	}
	if err := source.Close(); err != nil {
		n.c.fail("%s: close snapshot: %w", n.name, err)
	}
	core := n.core
	n.c.after(n.c.between(millisecond, 300*millisecond), func() {
		arrived := n.c.deliverSnapshot(n, req, b.Bytes())
		if n.core == core {
			n.core.SnapshotSent(req, arrived)
			n.poke()
		}
	})
}

// deliverSnapshot lets a snapshot arrive, whole, in part, or spoiled.
func (c *cluster) deliverSnapshot(from *node, req replica.SnapshotRequest, b []byte) (arrived bool) {
	to := c.byStore(req.Store)
	if to == nil || !to.live() || !c.net.open(from.name, to.name) {
		return false
	}
	spoiled := c.chance(5)
	if spoiled {
		b = bytes.Clone(b)
		if at := c.rng.IntN(len(b)); c.rng.IntN(2) == 0 {
			b = b[:at]
		} else {
			b[at] ^= 1 << c.rng.IntN(8)
		}
	}
	got, err := replica.ReadSnapshot(bytes.NewReader(b), to.engine, func(shard uint32) (uint64, bool) {
		at, ok := to.core.Inspect(shard)
		return at.ReplicaID, ok
	})
	if err != nil {
		return false
	}
	if spoiled {
		c.fail("a spoiled snapshot of shard %d was taken for whole", req.Shard)
	}
	to.core.StepSnapshot(got)
	to.poke()
	return true
}

// install puts a received snapshot into the engine.
func (n *node) install(in replica.Install) {
	if n.c.chance(20) {
		n.c.count(CrashedBeforeSync)
		n.crash(n.c.downtime())
		return
	}
	if err := n.engine.Install(in.Rows); err != nil {
		n.stopped(err)
		return
	}
	if n.c.chance(20) {
		n.c.count(CrashedAfterSync)
		n.crash(n.c.downtime())
		return
	}
	n.c.count(SnapshotInstalled)
	n.core.Installed(in.Shard, nil)
	n.c.checks.installed(n, in.Shard)
	n.poke()
}
