package sim

import (
	"errors"
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// maxTurnsInFlight is how many turns a node lets wait for their syncs.
const maxTurnsInFlight = 4

var errDisk = errors.New("input/output error")

// node is one machine: its name stays, its store goes with its disk.
type node struct {
	c    *cluster
	name string

	// store is the uuid of the disk, engine what is on it, boots how often it was started.
	store  string
	engine *store.Memory
	boots  uint64
	// core is nil while the node is down. life counts its starts and ends: what was begun in another one has no effect.
	core *replica.Core
	life int
	// pausedUntil: it stands still until then. offset is by how much its disciplined clock is wrong.
	pausedUntil, offset int64
	// frozen is what has come up meanwhile.
	frozen []func()
	// syncDelay is the longest a sync takes; failed: the disk answers nothing but errors; full: it will until there is room.
	syncDelay    int64
	failed, full bool
	// lost: it never comes back, nor does anybody under its name.
	lost bool

	turnDue bool
	waits   []replica.Turn
	// before are the configurations its replicas had before its last turn, placed where the commands of a turn stand.
	before map[uint32]replica.Conf
	placed map[*storagev1.Command]uint64

	placement   placement
	heard       map[string]int64
	dispatchers map[uint32]*dispatcher
	// evaluator is of the binary that the node runs: each start may bring newer zone data, or go back to older.
	evaluator expand.Evaluator
}

func newNode(c *cluster, name string) *node {
	n := &node{c: c, name: name}
	n.newDisk(c.plane.newStore(name))
	return n
}

// newDisk gives the node an empty disk.
func (n *node) newDisk(uuid string) {
	n.store, n.engine, n.boots = uuid, store.OpenMemory(), 0
}

func (n *node) up() bool { return n.core != nil }

// live says that the node is up and does not stand still.
func (n *node) live() bool { return n.core != nil && n.pausedUntil <= n.c.now }

// clockMS is the node's disciplined clock.
func (n *node) clockMS() int64 { return epochMS + (n.c.now+n.offset)/millisecond }

// rows are a shard's rows as they are visible.
func (n *node) rows(shard uint32) *store.Reader { return store.NewReader(n.engine, shard) }

// after lets something happen on the node in d, unless it has ended by then; if it stands still, when it goes on.
func (n *node) after(d int64, do func()) {
	life := n.life
	var run func()
	run = func() {
		switch {
		case n.life != life || n.core == nil:
		case n.pausedUntil > n.c.now:
			n.frozen = append(n.frozen, run)
		default:
			do()
		}
	}
	n.c.after(d, run)
}

// thaw lets what has come up while the node stood still happen.
func (n *node) thaw() {
	if n.pausedUntil > n.c.now {
		return
	}
	due := n.frozen
	n.frozen = nil
	for _, run := range due {
		run()
	}
}

// every lets something happen on the node again and again.
func (n *node) every(d int64, do func()) {
	n.after(d, func() {
		do()
		n.every(d, do)
	})
}

// start opens what is on the disk. A disk that fails keeps the node down, which tries again.
func (n *node) start() {
	if n.core != nil || n.lost {
		return
	}
	if n.full && n.c.trouble {
		n.c.after(second, n.start)
		return
	}
	n.failed, n.full = false, false
	states, err := replica.LoadAll(n.engine)
	if err != nil {
		n.c.fail("%s: start: %w", n.name, err)
		return
	}
	n.boots++
	n.life++
	for i := range states {
		n.c.checks.loaded(n, &states[i])
	}
	core, err := replica.New(replica.Config{
		Store: n.store, Logger: n.c.logger, OpenMachine: n.openMachine, Faults: n.c.cfg.Faults.Replica,
		LogBytes: 16 << 10 << (n.c.cfg.Seed % 3),
	}, n.engine, states)
	if err != nil {
		n.c.fail("%s: start: %w", n.name, err)
		return
	}
	n.core, n.turnDue, n.waits = core, false, nil
	n.syncDelay, n.pausedUntil = 2*millisecond, 0
	n.before, n.placed = map[uint32]replica.Conf{}, map[*storagev1.Command]uint64{}
	n.evaluator = n.c.evaluator()
	n.heard, n.dispatchers = map[string]int64{}, map[uint32]*dispatcher{}
	n.placement = newPlacement()
	n.c.logf("%s starts as %s, boot %d", n.name, n.store, n.boots)
	n.c.plane.joined(n)
	n.every(50*millisecond, n.core.Stagger)
	n.after(n.c.between(1, 100*millisecond), func() { n.every(100*millisecond, n.tick) })
	n.poke()
}

// openMachine is the state machine, with somebody looking over its shoulder.
func (n *node) openMachine(shard uint32, rows fsm.Reader) replica.Machine {
	return &machine{n: n, shard: shard, inner: fsm.Open(shard, rows)}
}

// end stops the node as a crash does: of what was not synced the first keep commits survive.
func (n *node) end(keep int) {
	n.c.report.Counts[CommitLost] += n.engine.Unsynced() - keep
	n.engine = n.engine.Crash(keep)
	n.core = nil
	n.life++
}

// crash ends the node now and starts it again in a while.
func (n *node) crash(down int64) {
	n.c.logf("%s crashes", n.name)
	n.end(n.c.rng.IntN(n.engine.Unsynced() + 1))
	n.c.after(down, n.start)
}

// tick is every 100 ms.
func (n *node) tick() {
	n.core.Tick()
	for _, other := range n.c.peers {
		if other == n {
			continue
		}
		if other.live() && n.c.net.open(other.name, n.name) && !n.c.chance(20) {
			n.heard[other.store] = n.c.now
		}
		n.core.Suspect(other.store, n.c.now-n.heard[other.store] > second)
	}
	for _, shard := range n.c.shardIDs() {
		if d := n.dispatchers[shard]; d != nil {
			d.decide()
		}
	}
	n.poke()
}

// poke has a turn happen if there is anything to do.
func (n *node) poke() {
	if n.turnDue || n.core == nil || !n.core.HasWork() {
		return
	}
	n.turnDue = true
	n.after(n.c.between(20, 300), n.turn)
}

func (n *node) turn() {
	n.turnDue = false
	if n.core.InFlight() >= maxTurnsInFlight {
		return // the next sync brings it back
	}
	if n.c.chance(2000) {
		n.c.count(CrashedBeforeSync)
		n.crash(n.c.downtime())
		return
	}
	truncated := n.core.Counters().TruncatedBytes
	for _, shard := range n.c.shardIDs() {
		if at, ok := n.core.Inspect(shard); ok {
			n.before[shard] = at.Conf
		}
	}
	turn, err := n.core.Turn(n.clockMS())
	if err != nil {
		n.stopped(err)
		return
	}
	if n.core.Counters().TruncatedBytes > truncated {
		n.c.count(LogTruncated)
	}
	n.carryOut(turn)
}

// stopped is what becomes of a node whose disk failed: everybody who waits is told so, and the process ends.
func (n *node) stopped(err error) {
	if !errors.Is(err, errDisk) {
		n.c.fail("%s: %w", n.name, err)
		return
	}
	n.c.logf("%s stops: %v", n.name, err)
	for _, d := range n.core.Abandon() {
		d.Deliver()
	}
	n.end(n.c.rng.IntN(n.engine.Unsynced() + 1))
	n.c.after(n.c.downtime(), n.start)
}

// carryOut does what a turn asks for.
func (n *node) carryOut(turn replica.Turn) {
	core := n.core
	for _, v := range turn.Verifies {
		n.look(v)
	}
	n.c.checks.sent(n, turn.Frames)
	for _, f := range turn.Frames {
		n.c.net.send(n, f)
	}
	for _, req := range turn.Snapshots {
		n.sendSnapshot(req)
	}
	if n.core != core {
		return // its disk failed
	}
	for _, in := range turn.Installs {
		n.after(n.c.between(millisecond, 50*millisecond), func() { n.install(in) })
	}
	for _, rows := range turn.Aborts {
		if err := rows.Abort(); err != nil {
			n.c.fail("%s: abort import: %w", n.name, err)
		}
	}
	if turn.Wait != nil {
		n.waits = append(n.waits, turn)
		n.after(n.c.between(50, n.syncDelay), n.sync)
	}
	for _, e := range turn.Events {
		n.observe(e)
	}
	n.c.checks.worked(n)
	for _, d := range turn.Results {
		d.Deliver()
	}
	clear(n.placed)
	if n.core == core {
		n.poke()
	}
}

// sync makes the oldest turn durable.
func (n *node) sync() {
	turn := n.waits[0]
	n.waits = n.waits[1:]
	if err := turn.Wait(); err != nil {
		n.stopped(err)
		return
	}
	if n.c.chance(2000) {
		n.c.count(CrashedAfterSync)
		n.crash(n.c.downtime())
		return
	}
	n.core.SyncDone(turn.Seq)
	n.poke()
}

// observe is told what happened to the replicas here.
func (n *node) observe(e replica.Event) {
	switch e.Kind {
	case replica.LeaseWanted:
		n.c.count(Elected)
		n.c.checks.elected(n, e)
		n.after(n.c.between(millisecond, 100*millisecond), func() { n.acquire(e.Shard, e.Term) })
	case replica.Established:
		n.c.logf("%s leads shard %d at term %d", n.name, e.Shard, e.Term)
		n.c.checks.established(n, e)
		n.dispatchers[e.Shard] = newDispatcher(n, e.Shard)
	case replica.SteppedDown:
		delete(n.dispatchers, e.Shard)
	case replica.Applied:
		if d := n.dispatchers[e.Shard]; d != nil {
			d.applied(e.Effects)
		}
	case replica.Changed:
		n.c.count(ConfChanged)
		n.changed(e)
	}
}

// acquire asks the control plane to record a leadership.
func (n *node) acquire(shard uint32, term uint64) {
	defer n.poke()
	grants, err := n.c.plane.acquire(n, control.LeaderClaim{Shard: shard, Epoch: term})
	switch {
	case err != nil: // nobody tells the replica, which asks again
	case grants.Held:
		n.core.LeaseHeld(shard, term)
	default:
		n.core.HigherEpoch(shard, grants.Standing.Epoch)
	}
}

// leads says whether the node serves a shard.
func (n *node) leads(shard uint32) bool {
	if !n.up() {
		return false
	}
	at, ok := n.core.Inspect(shard)
	return ok && at.Established
}

func (c *cluster) shardIDs() []uint32 {
	ids := make([]uint32, c.shards)
	for i := range ids {
		ids[i] = uint32(i) + 1
	}
	return ids
}

// byStore is the node that has a store, nil if it is gone.
func (c *cluster) byStore(uuid string) *node {
	for _, n := range c.nodes {
		if n.store == uuid {
			return n
		}
	}
	return nil
}

// downtime is how long a node stays down.
func (c *cluster) downtime() int64 {
	if c.rng.IntN(4) == 0 {
		return c.between(second, 12*second)
	}
	return c.between(10*millisecond, second)
}

func (n *node) String() string { return fmt.Sprintf("%s (%s)", n.name, n.store) }
