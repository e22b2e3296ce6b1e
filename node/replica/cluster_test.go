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
	name   string
	engine *store.Memory
	core   *Core
	waits  []Turn
	// installs are under way; paused counts the steps it stands still for.
	installs []Install
	paused   int
	// before are the configurations its replicas had before its last turn.
	before map[uint32]Conf
	// told are the generations of what it was told is wanted.
	told map[uint32]uint64
	// life counts its starts: what was begun in an earlier one has no effect.
	life int
}

// packet is a frame on the wire.
type packet struct {
	from, to string
	bytes    []byte
}

// parcel is a snapshot on its way.
type parcel struct {
	from  *member
	life  int
	req   SnapshotRequest
	bytes []byte
}

// cluster is stores with replicas of every shard, on a network that delays, reorders, duplicates and loses frames, under a
// control plane that moves replicas about. One goroutine plays all of it.
type cluster struct {
	rng     *rand.Rand
	faults  Faults
	members []*member
	// logTail is Config.LogTailBytes; 0: logBytes.
	logTail uint64
	// logBytes is what each store keeps of its logs; 0: the default, so that nothing is truncated.
	logBytes uint64
	wire     []packet
	parcels  []parcel
	// holdParcels keeps snapshots on their way.
	holdParcels bool
	lossy       bool
	// cut are the directions, from and to, in which nothing gets through.
	cut      map[[2]string]bool
	plane    plane
	checks   checks
	happened [events]int

	stamp int64
	next  int
	// acked is the shard of each acknowledged request; newest the highest number acknowledged in a shard.
	acked map[string]uint32
	// recovered is how many ticks after the faults ended every shard was served.
	recovered int
	newest    map[uint32]uint64
	err       error
}

// event is a kind of thing that a storm counts.
type event int

const (
	readDone event = iota
	followerRead
	dropped
	duplicated
	cutMade
	crashed
	diskFailed
	commitLost
	wiped
	paused
	suspected
	moved
	changed
	snapshotSent
	snapshotSpoiled
	snapshotInstalled
	replicaRemoved
	logTruncated
	leaderTransferred
	verified
	applyHeldBack
	events
)

func (e event) String() string {
	return [events]string{
		"read", "read at a follower", "frame dropped", "frame duplicated", "cut", "crash", "failed disk", "commit lost", "disk wiped",
		"pause", "suspicion", "move", "change of a configuration", "snapshot sent", "snapshot spoiled", "snapshot installed",
		"replica removed", "log truncated", "transfer of leadership", "look at rows", "entries held back for a look",
	}[e]
}

func storeName(n int) string { return fmt.Sprintf("store-%d", n) }

// newCluster has three stores with a voter of every shard each: replica n on store-n.
func newCluster(seed uint64, faults Faults) (*cluster, error) {
	c := &cluster{
		rng: rand.New(rand.NewPCG(seed, 1)), faults: faults, cut: map[[2]string]bool{}, acked: map[string]uint32{},
		newest: map[uint32]uint64{}, checks: newChecks(), plane: plane{shards: map[uint32]*planned{}},
	}
	for shard := uint32(1); shard <= simShards; shard++ {
		p := &planned{wanted: Wanted{Gen: 1}, next: 4}
		for id := uint64(1); id <= 3; id++ {
			p.wanted.Replicas = append(p.wanted.Replicas, Placed{ID: id, Store: storeName(int(id))})
		}
		c.plane.shards[shard] = p
	}
	for id := uint64(1); id <= 3; id++ {
		m := c.addStore()
		var seeds []Seed
		for shard := uint32(1); shard <= simShards; shard++ {
			seeds = append(seeds, Seed{Shard: shard, ID: id, Voters: []uint64{1, 2, 3}})
			c.checks.created(c, shard, id, m.name)
		}
		if err := Bootstrap(m.engine, seeds); err != nil {
			return nil, err
		}
		if err := c.start(m); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// addStore adds an empty store, under a name that no other one had.
func (c *cluster) addStore() *member {
	c.plane.stores++
	m := &member{name: storeName(c.plane.stores), engine: store.OpenMemory(), before: map[uint32]Conf{}}
	c.members = append(c.members, m)
	return m
}

// start opens what the disk holds, after checking it.
func (c *cluster) start(m *member) error {
	states, err := LoadAll(m.engine)
	if err != nil {
		return err
	}
	for i := range states {
		if err := c.checks.loaded(m, &states[i]); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	cfg := testConfig(m.name)
	cfg.Faults, cfg.LogBytes, cfg.LogTailBytes = c.faults, c.logBytes, c.logTail
	m.waits, m.installs, m.paused, m.told = nil, nil, 0, map[uint32]uint64{}
	m.life++
	m.core, err = New(cfg, m.engine, states)
	return err
}

func (c *cluster) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *cluster) member(name string) *member {
	for _, m := range c.members {
		if m.name == name {
			return m
		}
	}
	return nil
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
			c.checks.majority(c, m, shard, id)
		}
	}})
}

// read checks that the rows show at least what was acknowledged before the read was asked for.
func (c *cluster) read(m *member, shard uint32) {
	expect := c.newest[shard]
	core, r := m.core, m.core.byID[shard]
	core.ReadIndex(shard, func(err error) {
		if err != nil || m.core != core {
			return
		}
		c.happened[readDone]++
		if r != nil && r.lead == nil {
			c.happened[followerRead]++
		}
		total := uint64(0)
		if v, ok := store.NewReader(m.engine, shard).Get([]byte{ledgerMeta}); ok {
			total = binary.BigEndian.Uint64(v[8:])
		}
		if total < expect {
			c.fail("read of shard %d at %s shows %d requests, %d were acknowledged", shard, m.name, total, expect)
		}
	})
}

func (c *cluster) turn(m *member) {
	if m.core.InFlight() >= maxTurnsInFlight {
		return
	}
	c.stamp++
	before := m.core.Counters().TruncatedBytes
	clear(m.before)
	for _, r := range m.core.all {
		m.before[r.shard] = r.view
	}
	turn, err := m.core.Turn(c.stamp)
	if err != nil {
		c.fail("%s: turn: %w", m.name, err)
		return
	}
	if m.core.Counters().TruncatedBytes > before {
		c.happened[logTruncated]++
	}
	c.checks.sent(c, turn.Frames)
	for _, f := range turn.Frames {
		c.put(f)
	}
	for _, req := range turn.Snapshots {
		c.sendSnapshot(m, req)
	}
	m.installs = append(m.installs, turn.Installs...)
	for _, rows := range turn.Aborts {
		if err := rows.Abort(); err != nil {
			c.fail("%s: abort: %w", m.name, err)
		}
	}
	if turn.Wait != nil {
		m.waits = append(m.waits, turn)
	}
	for _, e := range turn.Events {
		c.observe(m, e)
	}
	for _, v := range turn.Verifies {
		c.look(m, v)
	}
	for _, r := range m.core.worked {
		if !r.gone {
			c.checks.worked(c, m, r)
		}
	}
	for _, d := range turn.Results {
		d.Deliver()
	}
}

// look checks that the rows that a turn asks to be looked at are those of the entry.
func (c *cluster) look(m *member, v Verify) {
	c.happened[verified]++
	index, chain, err := AppliedAt(m.engine, v.Shard)
	if err != nil || index != v.Index || chain != v.Chain {
		c.fail("%s: asked to look at %+v, the rows are those of %d, %x: %v", m.name, v, index, chain, err)
	}
	if len(m.core.byID[v.Shard].applies) > 0 {
		c.happened[applyHeldBack]++
	}
}

func (c *cluster) observe(m *member, e Event) {
	switch e.Kind {
	case LeaseWanted:
		c.checks.elected(c, m, e)
		m.core.LeaseHeld(e.Shard, e.Term)
	case Established:
		c.checks.established(c, m, e)
	case Changed:
		c.happened[changed]++
		c.checks.changed(c, e)
		c.plane.publish(e)
	}
}

func (c *cluster) sync(m *member) {
	if len(m.waits) == 0 {
		return
	}
	turn := m.waits[0]
	m.waits = m.waits[1:]
	if err := turn.Wait(); err != nil {
		c.fail("sync: %w", err)
		return
	}
	m.core.SyncDone(turn.Seq)
}

// round lets everything happen that can: turns, syncs, and what is under way now.
func (c *cluster) round() {
	for _, m := range c.members {
		c.turn(m)
		c.sync(m)
		c.install(m)
	}
	for n := len(c.wire); n > 0; n-- {
		c.deliver()
	}
	for n := len(c.parcels); n > 0 && !c.holdParcels; n-- {
		c.deliverSnapshot()
	}
}

func (c *cluster) tick() {
	for _, m := range c.members {
		m.core.Tick()
		m.core.Stagger()
	}
}

// leader returns the member that serves a shard, nil if none does.
func (c *cluster) leader(shard uint32) *member {
	for _, m := range c.members {
		if r := m.core.byID[shard]; r != nil && r.lead != nil && r.lead.established && !c.isolated(m) {
			return m
		}
	}
	return nil
}

// settle heals everything and runs until the groups are as they are wanted, have leaders, and all replicas have applied
// the same.
func (c *cluster) settle() error {
	c.lossy = false
	clear(c.cut)
	for _, m := range c.members {
		m.paused = 0
		for _, other := range c.members {
			m.core.Suspect(other.name, false)
		}
	}
	for ticks := range 900 {
		for range 6 {
			c.round()
		}
		c.tick()
		if c.recovered == 0 && c.led() {
			c.recovered = ticks + 1
		}
		if err := c.place(); err != nil {
			return err
		}
		if c.err != nil || c.settled() {
			return c.err
		}
	}
	return fmt.Errorf("cluster did not settle: %s", c.describe())
}

// led says that every shard is served.
func (c *cluster) led() bool {
	for shard := range c.plane.shards {
		if c.leader(shard) == nil {
			return false
		}
	}
	return true
}

func (c *cluster) settled() bool {
	for shard, p := range c.plane.shards {
		leader := c.leader(shard)
		if leader == nil || p.actual.gen != p.wanted.Gen {
			return false
		}
		lead := leader.core.byID[shard]
		if len(lead.conf.GetLearners()) > 0 || len(lead.conf.GetVotersOutgoing()) > 0 || lead.applied.index != lead.log.last {
			return false
		}
		for _, m := range c.members {
			r := m.core.byID[shard]
			if wanted := p.on(m.name); (r == nil) != (wanted == 0) {
				return false
			}
			if r != nil && (r.applied != lead.applied || r.log.last != lead.log.last) {
				return false
			}
		}
	}
	return true
}

// describe says how every replica stands.
func (c *cluster) describe() string {
	var b bytes.Buffer
	for shard := uint32(1); shard <= simShards; shard++ {
		p := c.plane.shards[shard]
		fmt.Fprintf(&b, "\nshard %d: wanted %+v, actual %+v", shard, p.wanted, p.actual)
		for _, m := range c.members {
			if r := m.core.byID[shard]; r != nil {
				fmt.Fprintf(&b, "\n  %s: id %d, %+v, term %d, applied %d, log (%d, %d], conf %+v, installing %v, sending %+v",
					m.name, r.id, r.soft, r.hard.term, r.applied.index, r.log.truncated.index, r.log.last, r.view,
					r.installing != nil, m.core.sending)
			}
		}
	}
	return b.String()
}

// check settles and compares: every acknowledged request once on every replica, all replicas alike.
func (c *cluster) check() error {
	if err := c.settle(); err != nil {
		return err
	}
	for shard, p := range c.plane.shards {
		first := ""
		for _, m := range c.members {
			if p.on(m.name) == 0 {
				continue
			}
			for id, of := range c.acked {
				if n := ledgerTimes(store.NewReader(m.engine, shard), id); of == shard && n != 1 {
					return fmt.Errorf("acknowledged request %s stands %d times on %s", id, n, m.name)
				}
			}
			rows := dump(m.engine, shard)
			if first != "" && rows != first {
				return fmt.Errorf("shard %d: %s differs from another store", shard, m.name)
			}
			first = rows
		}
	}
	return nil
}

// seedElections makes raft's random election timeouts repeatable.
func seedElections(t testing.TB, seed uint64) {
	was := crand.Reader
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	crand.Reader = rand.NewChaCha8(key)
	t.Cleanup(func() { crand.Reader = was })
}
