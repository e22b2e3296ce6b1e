package replica

import (
	"errors"
	"flag"
	"fmt"
	"runtime/debug"
	"strings"
	"testing"
)

var (
	oneSeed = flag.Uint64("seed", 0, "the only seed TestStorm plays; 0: as many as -seeds says")
	seeds   = flag.Uint64("seeds", 60, "how many seeds TestStorm plays")
)

var stormSteps = flag.Int("steps", 3000, "how many steps a storm has")

// recoveryTicks is how long it may take after a storm until every shard is served: elections by timeout alone, some of
// which end without a winner.
const recoveryTicks = 60

// storm plays random events against a cluster and returns the first thing that is wrong.
func storm(seed uint64, faults Faults) (c *cluster, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if c, err = newCluster(seed, faults); err != nil {
		return nil, err
	}
	c.logBytes = 512 << (seed % 4)
	for range 2 {
		if err := c.start(c.addStore()); err != nil {
			return c, err
		}
	}
	for _, m := range c.members {
		if err := c.start(m); err != nil {
			return c, err
		}
	}
	c.lossy = true
	for step := 0; step < *stormSteps && c.err == nil; step++ {
		if err := c.step(); err != nil {
			return c, err
		}
		for _, m := range c.members {
			m.paused = max(0, m.paused-1)
		}
	}
	if c.err != nil {
		return c, c.err
	}
	c.repair()
	if err := c.check(); err != nil {
		return c, err
	}
	if c.recovered > recoveryTicks {
		return c, fmt.Errorf("it took %d ticks until every shard was served", c.recovered)
	}
	return c, nil
}

// step is one random event.
func (c *cluster) step() error {
	m := c.members[c.rng.IntN(len(c.members))]
	shard := 1 + uint32(c.rng.IntN(simShards))
	n := c.rng.IntN(1000)
	if m.paused > 0 && n < 900 {
		return nil
	}
	switch {
	case n < 150:
		c.propose(m, shard)
	case n < 180:
		c.read(m, shard)
	case n < 430:
		c.turn(m)
	case n < 620:
		c.sync(m)
	case n < 840:
		c.deliver()
	case n < 850:
		c.deliverSnapshot()
	case n < 860:
		c.install(m)
	case n < 900:
		m.core.Tick()
	case n < 930:
		c.tickRunning()
	case n < 938:
		return c.place()
	default:
		return c.upset(m, shard, n)
	}
	return nil
}

func (c *cluster) tickRunning() {
	for _, m := range c.members {
		if m.paused == 0 {
			m.core.Tick()
			m.core.Stagger()
		}
	}
}

// upset is one of the rarer events.
func (c *cluster) upset(m *member, shard uint32, n int) error {
	other := c.members[c.rng.IntN(len(c.members))]
	switch {
	case n < 942:
		if len(c.cut) < 4 {
			c.cut[[2]string{m.name, other.name}] = true
			c.happened[cutMade]++
		}
	case n < 944:
		c.isolate(m)
		c.happened[cutMade]++
	case n < 950:
		clear(c.cut)
	case n < 954:
		c.happened[leaderTransferred]++
		m.core.TransferLeader(shard, 1+uint64(c.rng.IntN(int(c.plane.shards[shard].next))))
	case n < 958:
		return c.crash(m)
	case n < 959:
		return c.failDisk(m)
	case n < 962:
		c.happened[paused]++
		m.paused = c.rng.IntN(150)
	case n < 968:
		c.happened[suspected]++
		m.core.Suspect(other.name, c.rng.IntN(3) > 0)
	case n < 974:
		c.move()
	case n < 976:
		if c.whole() {
			return c.wipe(m)
		}
	case n < 980:
		c.repair()
	default:
		return c.calm()
	}
	return nil
}

func (c *cluster) crash(m *member) error {
	c.happened[crashed]++
	unsynced := m.engine.Unsynced()
	keep := c.rng.IntN(unsynced + 1)
	c.happened[commitLost] += unsynced - keep
	m.engine = m.engine.Crash(keep)
	return c.start(m)
}

// failDisk lets a store's disk fail in the middle of what it does: the process answers everybody and ends.
func (c *cluster) failDisk(m *member) error {
	c.happened[diskFailed]++
	m.engine.Fail(errors.New("disk is broken"))
	if turn, err := m.core.Turn(c.stamp); err == nil && turn.Wait != nil {
		if err := turn.Wait(); err == nil {
			return errors.New("a broken disk has synced a turn")
		}
	}
	for _, d := range m.core.Abandon() {
		d.Deliver()
	}
	return c.crash(m)
}

// calm is a spell in which leaders come up and work gets done.
func (c *cluster) calm() error {
	for range 12 + c.rng.IntN(20) {
		c.round()
		c.round()
		c.tickRunning()
	}
	return c.place()
}

// TestStorm: replicas under lost, repeated, reordered and delayed frames, cuts in one direction and both, crashes, pauses, wrong
// suspicions, wiped disks, moves and snapshots keep every invariant of checks, and when it is over everything acknowledged
// is there once, everywhere.
func TestStorm(t *testing.T) {
	first, last := uint64(1), *seeds
	if *oneSeed != 0 {
		first, last = *oneSeed, *oneSeed
	}
	acked, slowest, total := 0, 0, [events]int{}
	for seed := first; seed <= last; seed++ {
		seedElections(t, seed)
		c, err := storm(seed, Faults{})
		if err != nil {
			t.Fatalf("seed %d: %v\nagain: go test ./node/replica -run TestStorm -seed %d", seed, err, seed)
		}
		acked += len(c.acked)
		slowest = max(slowest, c.recovered)
		for e, n := range c.happened {
			total[e] += n
		}
	}
	t.Logf("%d requests acknowledged; every shard was served again after at most %d ticks", acked, slowest)
	for e, n := range total {
		t.Logf("%s: %d", event(e), n)
		if n == 0 && last-first > 20 {
			t.Errorf("%s: never: the test shows less than it says", event(e))
		}
	}
	if acked < 500 && last > first {
		t.Errorf("%d requests acknowledged: the test shows nothing", acked)
	}
}

// A planted fault must be noticed by some seed, or the simulation proves nothing.
func stormCatches(t *testing.T, faults Faults) {
	t.Helper()
	for seed := range uint64(100) {
		seedElections(t, seed)
		if _, err := storm(seed, faults); err != nil {
			text, trace, panicked := strings.Cut(err.Error(), "\n")
			if panicked && strings.Contains(text, "runtime error") {
				t.Fatalf("seed %d: the test itself broke: %s\n%s", seed, text, trace)
			}
			t.Logf("seed %d: %s", seed, text)
			return
		}
	}
	t.Fatal("100 storms went by without a complaint")
}

func TestPlantedFaultReplyBeforeSyncIsCaughtByACluster(t *testing.T) {
	stormCatches(t, Faults{ReplyBeforeSync: true})
}

func TestPlantedFaultTruncateByIndexAloneIsCaught(t *testing.T) {
	stormCatches(t, Faults{TruncateByIndexAlone: true})
}

func TestPlantedFaultReusedReplicaIDIsCaught(t *testing.T) {
	stormCatches(t, Faults{ReusedReplicaID: true})
}

func TestPlantedFaultAmnesiacVoterIsCaught(t *testing.T) {
	stormCatches(t, Faults{AmnesiacVoter: true})
}

// The plain story: three replicas elect, replicate, lose their leader, elect another, and nothing is lost.
func TestClusterLosesItsLeader(t *testing.T) {
	seedElections(t, 7)
	c, err := newCluster(7, Faults{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	first := c.leader(1)
	for range 20 {
		c.propose(first, 1)
	}
	for range 6 {
		c.round()
	}
	if len(c.acked) != 20 {
		t.Fatalf("%d of 20 requests acknowledged", len(c.acked))
	}
	c.isolate(first)
	var second *member
	for range 60 {
		c.tick()
		for range 6 {
			c.round()
		}
		if second = c.leader(1); second != nil && second != first {
			break
		}
	}
	if second == nil || second == first {
		t.Fatal("nobody took over")
	}
	c.propose(second, 1)
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	if len(c.acked) != 21 {
		t.Fatalf("%d of 21 requests acknowledged", len(c.acked))
	}
}
