package replica

import (
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// storm plays random events against a cluster and returns the first thing that is wrong.
func storm(seed uint64, faults Faults) (*cluster, error) {
	c, err := newCluster(seed, faults)
	if err != nil {
		return nil, err
	}
	c.lossy = true
	for step := 0; step < 2500 && c.err == nil; step++ {
		m := c.members[c.rng.IntN(len(c.members))]
		shard := 1 + uint32(c.rng.IntN(simShards))
		switch n := c.rng.IntN(1000); {
		case n < 150:
			c.propose(m, shard)
		case n < 180:
			c.read(m, shard)
		case n < 450:
			if m.core.InFlight() < maxTurnsInFlight {
				c.turn(m)
			}
		case n < 650:
			c.sync(m)
		case n < 900:
			c.deliver()
		case n < 980:
			c.tick()
		case n < 985:
			if c.cut[storeName(m.id)] || len(c.cut) == 0 {
				c.cut[storeName(m.id)] = !c.cut[storeName(m.id)]
			}
		case n < 990:
			clear(c.cut)
		case n < 993:
			m.core.TransferLeader(shard, 1+uint64(c.rng.IntN(3)))
		case n < 996:
			m.engine = m.engine.Crash(c.rng.IntN(m.engine.Unsynced() + 1))
			if err := c.start(m); err != nil {
				return c, err
			}
		default:
			// A calm spell, so that leaders come up and work gets done.
			for range 12 {
				c.round()
				c.round()
				c.tick()
			}
		}
	}
	if c.err != nil {
		return c, c.err
	}
	return c, c.check()
}

// Three replicas under lost and reordered frames, cuts, crashes and transfers of leadership: one leader a term, equal
// hash chains at equal indexes, every acknowledgement durable on a majority, reads current, nothing acknowledged lost.
func TestClusterSurvivesAStorm(t *testing.T) {
	acked, reads := 0, 0
	for seed := range uint64(100) {
		seedElections(t, seed)
		c, err := storm(seed, Faults{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		acked += len(c.acked)
		reads += c.reads
	}
	t.Logf("%d requests acknowledged, %d reads answered", acked, reads)
	if acked < 500 || reads < 50 {
		t.Fatalf("%d requests acknowledged and %d reads answered: the test shows nothing", acked, reads)
	}
}

func TestPlantedFaultReplyBeforeSyncIsCaughtByACluster(t *testing.T) {
	for seed := range uint64(100) {
		seedElections(t, seed)
		if _, err := storm(seed, Faults{ReplyBeforeSync: true}); err != nil {
			t.Logf("seed %d: %v", seed, err)
			return
		}
	}
	t.Fatal("100 storms went by without a complaint")
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
	c.cut[storeName(first.id)] = true
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

// A change of the group's configuration is an entry like others: it moves the majority, and stands on disk.
func TestClusterChangesItsConfiguration(t *testing.T) {
	seedElections(t, 3)
	c, err := newCluster(3, Faults{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	leader := c.leader(1)
	gone := c.members[leader.id%3]
	change := &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{{
		Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: &gone.id,
	}}}
	r := leader.core.byID[1]
	if err := r.node.ProposeConfChange(change); err != nil {
		t.Fatal(err)
	}
	leader.core.touch(r)
	for range 10 {
		c.round()
	}
	for _, m := range c.members {
		if m == gone {
			continue
		}
		m.engine = m.engine.Crash(m.engine.Unsynced())
		s, _, err := Load(m.engine, 1)
		if err != nil {
			t.Fatal(err)
		}
		if voters := s.Voters(); len(voters) != 2 || slices.Contains(voters, gone.id) || s.ID != m.id {
			t.Fatalf("store %d has voters %v, id %d", m.id, voters, s.ID)
		}
		if err := c.start(m); err != nil {
			t.Fatal(err)
		}
	}
}
