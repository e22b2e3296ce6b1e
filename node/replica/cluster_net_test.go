package replica

import (
	"bytes"
	"slices"
)

// put sends a frame, if the network has a good moment.
func (c *cluster) put(f Frame) {
	if c.cut[[2]string{f.From, f.To}] || c.lossy && c.rng.IntN(20) == 0 {
		c.happened[dropped]++
		return
	}
	p := packet{f.From, f.To, AppendFrame(nil, f)}
	c.wire = append(c.wire, p)
	if c.lossy && c.rng.IntN(20) == 0 {
		c.happened[duplicated]++
		c.wire = append(c.wire, packet{p.from, p.to, bytes.Clone(p.bytes)})
	}
}

// deliver hands over one frame, any of those on the wire.
func (c *cluster) deliver() {
	if len(c.wire) == 0 {
		return
	}
	i := c.rng.IntN(len(c.wire))
	p := c.wire[i]
	to := c.member(p.to)
	if to != nil && to.paused > 0 {
		return // it waits in a buffer of the network
	}
	c.wire[i] = c.wire[len(c.wire)-1]
	c.wire = c.wire[:len(c.wire)-1]
	if to == nil || c.cut[[2]string{p.from, p.to}] {
		c.happened[dropped]++
		return
	}
	f, err := DecodeFrame(p.bytes)
	if err != nil {
		c.fail("%w", err)
		return
	}
	for _, msg := range f.Messages {
		to.core.Step(f.From, msg)
	}
}

// sendSnapshot streams the rows as they stand after the turn.
func (c *cluster) sendSnapshot(m *member, req SnapshotRequest) {
	c.happened[snapshotSent]++
	source, err := m.engine.NewSnapshot()
	if err != nil {
		c.fail("snapshot: %w", err)
		return
	}
	var b bytes.Buffer
	if err := WriteSnapshot(&b, source, req); err != nil {
		c.fail("%w", err)
	}
	if err := source.Close(); err != nil {
		c.fail("close snapshot: %w", err)
	}
	c.parcels = append(c.parcels, parcel{m, m.life, req, b.Bytes()})
}

// deliverSnapshot lets one snapshot arrive, whole or not.
func (c *cluster) deliverSnapshot() {
	if len(c.parcels) == 0 {
		return
	}
	i := c.rng.IntN(len(c.parcels))
	p := c.parcels[i]
	c.parcels = slices.Delete(c.parcels, i, i+1)
	to := c.member(p.req.Store)
	arrived := to != nil && to.paused == 0 && !c.cut[[2]string{p.from.name, p.req.Store}]
	if arrived && c.lossy && c.rng.IntN(4) == 0 {
		p.bytes = slices.Clone(p.bytes)
		if at := c.rng.IntN(len(p.bytes)); c.rng.IntN(2) == 0 {
			p.bytes = p.bytes[:at]
		} else {
			p.bytes[at] ^= 1 << c.rng.IntN(8)
		}
		c.happened[snapshotSpoiled]++
		if got, err := c.receive(to, p.bytes); err == nil {
			c.fail("a spoiled snapshot of shard %d was taken for whole", got.Shard)
		}
		arrived = false
	}
	if arrived {
		got, err := c.receive(to, p.bytes)
		if arrived = err == nil; arrived {
			to.core.StepSnapshot(got)
		}
	}
	if p.from.life == p.life && c.member(p.from.name) != nil {
		p.from.core.SnapshotSent(p.req, arrived)
	}
}

func (c *cluster) receive(to *member, b []byte) (Received, error) {
	return ReadSnapshot(bytes.NewReader(b), to.engine, func(shard uint32) (uint64, bool) {
		r := to.core.byID[shard]
		if r == nil {
			return 0, false
		}
		return r.id, true
	})
}

// install puts one received snapshot into the engine.
func (c *cluster) install(m *member) {
	if len(m.installs) == 0 {
		return
	}
	in := m.installs[0]
	m.installs = m.installs[1:]
	if err := m.engine.Install(in.Rows); err != nil {
		c.fail("%s: install: %w", m.name, err)
		return
	}
	c.happened[snapshotInstalled]++
	m.core.Installed(in.Shard, nil)
	if r := m.core.byID[in.Shard]; r != nil {
		c.checks.installed(c, m, r)
	}
}

// isolate cuts a member off in both directions.
func (c *cluster) isolate(m *member) {
	for _, other := range c.members {
		c.cut[[2]string{m.name, other.name}], c.cut[[2]string{other.name, m.name}] = true, true
	}
}

func (c *cluster) isolated(m *member) bool {
	for _, other := range c.members {
		if other != m && !c.cut[[2]string{m.name, other.name}] {
			return false
		}
	}
	return len(c.members) > 1
}
