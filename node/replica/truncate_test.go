package replica

import (
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// What every replica has goes from every log, the followers' too. What one lacks stays, on the followers too, so that
// whoever leads next brings it up from the log.
func TestLogTailIsKeptForWhoLacksIt(t *testing.T) {
	seedElections(t, 11)
	c, err := newCluster(11, Faults{})
	if err != nil {
		t.Fatal(err)
	}
	c.logTail = 2 << 10
	for _, m := range c.members {
		if err := c.start(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	write := func(n int) {
		t.Helper()
		acked := len(c.acked)
		for range n {
			c.propose(c.leader(1), 1)
			for range 4 {
				c.round()
			}
		}
		if len(c.acked) != acked+n {
			t.Fatalf("%d of %d requests acknowledged", len(c.acked)-acked, n)
		}
	}
	write(200)
	for _, m := range c.members {
		if kept := m.core.logBytes(); kept > 2*c.logTail {
			t.Errorf("%s keeps %d bytes of log, every replica has all of it", m.name, kept)
		}
	}
	leader := c.leader(1)
	lagging, other := c.others(leader)
	has := lagging.core.byID[1].log.last
	c.isolate(lagging)
	write(200)
	for _, m := range []*member{leader, other} {
		if truncated := m.core.byID[1].log.truncated.index; truncated > has {
			t.Errorf("%s has truncated its log at %d, %s has it up to %d", m.name, truncated, lagging.name, has)
		}
	}
	clear(c.cut)
	c.isolate(leader)
	for range 60 {
		c.tick()
		for range 6 {
			c.round()
		}
	}
	if second := c.leader(1); second != other {
		t.Fatal("the one that has everything does not lead")
	}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.members {
		if n := m.core.Counters().SnapshotsAsked; n != 0 {
			t.Errorf("%s has asked for %d snapshots", m.name, n)
		}
	}
	if now := lagging.core.byID[1].log.last; now <= has+200 {
		t.Errorf("%s has the log up to %d", lagging.name, now)
	}
}

// others are the two members beside one.
func (c *cluster) others(m *member) (*member, *member) {
	var rest []*member
	for _, other := range c.members {
		if other != m {
			rest = append(rest, other)
		}
	}
	return rest[0], rest[1]
}

// A log that nothing may be taken from, though it is the largest, does not keep the others from being truncated.
func TestStuckLogHoldsUpNoOther(t *testing.T) {
	const shards, stuck = maxTruncations + 2, 2
	engine := store.OpenMemory()
	var seeds []Seed
	for shard := range uint32(shards) {
		seeds = append(seeds, Seed{Shard: shard + 1, ID: 1, Voters: []uint64{1}})
	}
	if err := Bootstrap(engine, seeds); err != nil {
		t.Fatal(err)
	}
	states, err := LoadAll(engine)
	if err != nil {
		t.Fatal(err)
	}
	core, err := New(testConfig("a"), engine, states)
	if err != nil {
		t.Fatal(err)
	}
	b := engine.NewBatch()
	for _, r := range core.all {
		for n := range 10 * (1 + uint64(shards) - uint64(r.shard)) {
			r.log.append(b, []*raftpb.Entry{newEntry(raftpb.EntryNormal, groupStart.term, groupStart.index+1+n, []byte("x"))})
		}
	}
	limit := func(_ *Core, r *replica) uint64 {
		if r.shard <= stuck {
			return groupStart.index
		}
		return r.log.last
	}
	left := func() (shards []uint32) {
		for _, r := range core.all {
			if r.log.bytes > 0 {
				shards = append(shards, r.shard)
			}
		}
		return shards
	}
	core.truncateTo(b, core.logBytes(), limit)
	if len(left()) != shards {
		t.Errorf("within the budget: logs are left of %v", left())
	}
	core.truncateTo(b, 1, limit)
	if got := left(); !slices.Equal(got, []uint32{1, 2}) {
		t.Errorf("logs are left of %v", got)
	}
}
