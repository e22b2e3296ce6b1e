package replica

import (
	"bytes"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
)

// member is one store of a simulated cluster.
type member struct {
	id     uint64
	engine *store.Memory
	core   *Core
	waits  []Turn
}

// cluster is three stores, each with a replica of every shard, on a network that delays, reorders and loses frames. One
// goroutine plays all of it.
type cluster struct {
	rng     *rand.Rand
	faults  Faults
	members []*member
	// wire holds encoded frames in no order; cut members neither send nor receive.
	wire  [][]byte
	lossy bool
	cut   map[string]bool

	stamp int64
	next  int
	// acked is the shard of each acknowledged request; newest the highest number acknowledged in a shard.
	acked  map[string]uint32
	newest map[uint32]uint64
	// leaders by shard and term; chains by shard and applied index.
	leaders map[[2]uint64]uint64
	chains  map[[2]uint64]uint64
	reads   int
	err     error
}

func storeName(id uint64) string { return fmt.Sprintf("store-%d", id) }

func newCluster(seed uint64, faults Faults) (*cluster, error) {
	c := &cluster{
		rng: rand.New(rand.NewPCG(seed, 1)), faults: faults, cut: map[string]bool{}, acked: map[string]uint32{},
		newest: map[uint32]uint64{}, leaders: map[[2]uint64]uint64{}, chains: map[[2]uint64]uint64{},
	}
	for id := uint64(1); id <= 3; id++ {
		m := &member{id: id, engine: store.OpenMemory()}
		var seeds []Seed
		for shard := uint32(1); shard <= simShards; shard++ {
			seeds = append(seeds, Seed{Shard: shard, ID: id, Voters: []uint64{1, 2, 3}})
		}
		if err := Bootstrap(m.engine, seeds); err != nil {
			return nil, err
		}
		c.members = append(c.members, m)
		if err := c.start(m); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cluster) start(m *member) error {
	states, err := loadAll(m.engine, simShards)
	if err != nil {
		return err
	}
	for i := range states {
		if err := checkReplay(m.engine, states[i], openLedger); err != nil {
			return fmt.Errorf("%s: %w", storeName(m.id), err)
		}
		states[i].Stores = map[uint64]string{1: storeName(1), 2: storeName(2), 3: storeName(3)}
	}
	cfg := testConfig(storeName(m.id))
	cfg.Faults = c.faults
	m.waits = nil
	m.core, err = New(cfg, m.engine, states)
	return err
}

func (c *cluster) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *cluster) propose(m *member, shard uint32) {
	c.next++
	id := fmt.Sprintf("request-%06d", c.next)
	m.core.Propose(Proposal{Shard: shard, Command: request(id), Done: func(r fsm.Result, err error) {
		if err != nil || r.Refusal != nil {
			return
		}
		c.acked[id] = shard
		c.newest[shard] = max(c.newest[shard], uint64(r.Fired))
		if len(c.acked)%8 == 0 {
			c.checkMajority(shard, id)
		}
	}})
}

// checkMajority: at the moment of an acknowledgement the entry is in the synced image of a majority.
func (c *cluster) checkMajority(shard uint32, id string) {
	synced := 0
	for _, m := range c.members {
		image := m.engine.Crash(0)
		iter, err := image.NewIter(logKey(shard, 0), logKeyEnd(shard))
		if err != nil {
			c.fail("read log: %v", err)
			return
		}
		for ok := iter.First(); ok; ok = iter.Next() {
			if bytes.Contains(iter.Value(), []byte(id)) {
				synced++
			}
		}
		if err := iter.Close(); err != nil {
			c.fail("read log: %v", err)
		}
	}
	if synced < 2 {
		c.fail("request %s of shard %d was acknowledged while durable on %d of 3 stores", id, shard, synced)
	}
}

// read checks that the rows show at least what was acknowledged before the read was asked for.
func (c *cluster) read(m *member, shard uint32) {
	expect := c.newest[shard]
	core := m.core
	core.ReadIndex(shard, func(err error) {
		if err != nil || m.core != core {
			return
		}
		c.reads++
		total := uint64(0)
		if v, ok := store.NewReader(m.engine, shard).Get([]byte{ledgerMeta}); ok {
			total = binary.BigEndian.Uint64(v[8:])
		}
		if total < expect {
			c.fail("read of shard %d at store %d shows %d requests, %d were acknowledged", shard, m.id, total, expect)
		}
	})
}

func (c *cluster) turn(m *member) {
	c.stamp++
	turn, err := m.core.Turn(c.stamp)
	if err != nil {
		c.fail("turn: %v", err)
		return
	}
	for _, f := range turn.Frames {
		if !c.cut[f.From] && (!c.lossy || c.rng.IntN(20) > 0) {
			c.wire = append(c.wire, AppendFrame(nil, f))
		}
	}
	if turn.Wait != nil {
		m.waits = append(m.waits, turn)
	}
	for _, e := range turn.Events {
		c.observe(m, e)
	}
	for _, r := range m.core.worked {
		at := [2]uint64{uint64(r.shard), r.applied.index}
		if known, ok := c.chains[at]; ok && known != r.applied.chain {
			c.fail("shard %d at index %d: replicas differ", r.shard, r.applied.index)
		}
		c.chains[at] = r.applied.chain
	}
	for _, d := range turn.Results {
		d.Deliver()
	}
}

func (c *cluster) observe(m *member, e Event) {
	switch e.Kind {
	case LeaseWanted:
		m.core.LeaseHeld(e.Shard, e.Term)
	case Established:
		at := [2]uint64{uint64(e.Shard), e.Term}
		if other, ok := c.leaders[at]; ok && other != m.id {
			c.fail("shard %d has two leaders at term %d: stores %d and %d", e.Shard, e.Term, other, m.id)
		}
		c.leaders[at] = m.id
	}
}

func (c *cluster) sync(m *member) {
	if len(m.waits) == 0 {
		return
	}
	turn := m.waits[0]
	m.waits = m.waits[1:]
	if err := turn.Wait(); err != nil {
		c.fail("sync: %v", err)
		return
	}
	m.core.SyncDone(turn.Seq)
}

// deliver hands over one frame, any of those on the wire.
func (c *cluster) deliver() {
	if len(c.wire) == 0 {
		return
	}
	i := c.rng.IntN(len(c.wire))
	b := c.wire[i]
	c.wire[i] = c.wire[len(c.wire)-1]
	c.wire = c.wire[:len(c.wire)-1]
	f, err := DecodeFrame(b)
	if err != nil {
		c.fail("%v", err)
		return
	}
	for _, m := range c.members {
		if storeName(m.id) != f.To || c.cut[f.To] {
			continue
		}
		for _, msg := range f.Messages {
			m.core.Step(msg)
		}
	}
}

// round lets everything happen that can: turns, syncs, and the frames that are under way now.
func (c *cluster) round() {
	for _, m := range c.members {
		c.turn(m)
		c.sync(m)
	}
	for n := len(c.wire); n > 0; n-- {
		c.deliver()
	}
}

func (c *cluster) tick() {
	for _, m := range c.members {
		m.core.Tick()
	}
}

// leader returns the member that serves a shard, nil if none does.
func (c *cluster) leader(shard uint32) *member {
	for _, m := range c.members {
		if r := m.core.byID[shard]; r.lead != nil && r.lead.established && !c.cut[storeName(m.id)] {
			return m
		}
	}
	return nil
}

// settle heals the network and runs until every shard has a leader and all replicas have applied the same.
func (c *cluster) settle() error {
	c.lossy = false
	clear(c.cut)
	for range 600 {
		for range 6 {
			c.round()
		}
		c.tick()
		if c.err != nil || c.settled() {
			return c.err
		}
	}
	return fmt.Errorf("cluster did not settle")
}

func (c *cluster) settled() bool {
	for shard := uint32(1); shard <= simShards; shard++ {
		first := c.members[0].core.byID[shard]
		for _, m := range c.members {
			r := m.core.byID[shard]
			if r.applied != first.applied || r.applied.index != r.log.last {
				return false
			}
		}
		if c.leader(shard) == nil {
			return false
		}
	}
	return true
}

// check settles and compares: every acknowledged request once on every replica, all replicas alike.
func (c *cluster) check() error {
	if err := c.settle(); err != nil {
		return err
	}
	for _, m := range c.members {
		for id, shard := range c.acked {
			if n := ledgerTimes(store.NewReader(m.engine, shard), id); n != 1 {
				return fmt.Errorf("acknowledged request %s stands %d times on store %d", id, n, m.id)
			}
		}
		for shard := uint32(1); shard <= simShards; shard++ {
			if dump(m.engine, shard) != dump(c.members[0].engine, shard) {
				return fmt.Errorf("shard %d: stores 1 and %d differ", shard, m.id)
			}
		}
	}
	return nil
}

// seedElections makes raft's random election timeouts repeatable.
func seedElections(t *testing.T, seed uint64) {
	was := crand.Reader
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	crand.Reader = rand.NewChaCha8(key)
	t.Cleanup(func() { crand.Reader = was })
}
