package replica

import (
	"errors"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// calmCluster is three stores that have settled, and as many empty ones.
func calmCluster(t *testing.T, seed uint64, empty int) *cluster {
	t.Helper()
	seedElections(t, seed)
	c, err := newCluster(seed, Faults{})
	if err != nil {
		t.Fatal(err)
	}
	for range empty {
		if err := c.start(c.addStore()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	return c
}

// until lets rounds go by, ticks with them if asked to, until something holds.
func (c *cluster) until(t *testing.T, rounds int, ticks bool, holds func() bool) {
	t.Helper()
	for range rounds {
		if holds() {
			return
		}
		c.round()
		if ticks {
			c.tick()
		}
		if c.err != nil {
			t.Fatal(c.err)
		}
	}
	t.Fatalf("it never came to that:%s", c.describe())
}

// One replica becomes three, as a node's own groups do when others join it; nothing is lost, and what comes to stand on
// disk says where it comes from.
func TestOneReplicaBecomesThree(t *testing.T) {
	seedElections(t, 1)
	c, err := newCluster(1, Faults{})
	if err != nil {
		t.Fatal(err)
	}
	c.members, c.plane.stores, c.checks = nil, 0, newChecks()
	first := c.addStore()
	var lone []Seed
	for shard := uint32(1); shard <= simShards; shard++ {
		lone = append(lone, Seed{Shard: shard, ID: 1, Voters: []uint64{1}})
		c.checks.created(c, shard, 1, first.name)
		c.plane.shards[shard] = &planned{wanted: Wanted{Gen: 1, Replicas: []Placed{{1, first.name}}}, next: 2}
	}
	if err := Bootstrap(first.engine, lone); err != nil {
		t.Fatal(err)
	}
	if err := c.start(first); err != nil {
		t.Fatal(err)
	}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c.propose(first, 1)
		c.round()
	}
	for range 2 {
		if err := c.start(c.addStore()); err != nil {
			t.Fatal(err)
		}
	}
	for shard := uint32(1); shard <= simShards; shard++ {
		p := c.plane.shards[shard]
		p.wanted = Wanted{Gen: 2, Replicas: []Placed{{1, "store-1"}, {2, "store-2"}, {3, "store-3"}}}
		p.next = 4
	}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.members {
		s, ok, err := Load(m.engine.Crash(m.engine.Unsynced()), 1)
		if err != nil || !ok || s.gen != 2 || !sameIDs(s.conf.Voters, []uint64{1, 2, 3}) {
			t.Fatalf("%s has generation %d, voters %v (%v, %v)", m.name, s.gen, s.conf.Voters, ok, err)
		}
	}
	if len(c.acked) != 10 || c.happened[snapshotInstalled] != 2*simShards {
		t.Fatalf("%d requests acknowledged, %d snapshots installed", len(c.acked), c.happened[snapshotInstalled])
	}
}

// The leader itself goes: it hands over first, so that its group is never without one for an election timeout.
func TestLeaderThatGoesHandsOverFirst(t *testing.T) {
	c := calmCluster(t, 2, 1)
	leader := c.leader(1)
	if !c.replace(1, leader.name, storeName(4)) {
		t.Fatal("the change was not taken")
	}
	led := leader.core.byID[1].lead.term
	for range 10 {
		c.propose(leader, 1)
	}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	if after := c.leader(1); after == leader || after.core.byID[1].lead.term != led+1 {
		t.Fatalf("%s leads at term %d after %s at term %d", after.name, after.core.byID[1].lead.term, leader.name, led)
	}
	if leader.core.byID[1] != nil {
		t.Fatal("the old replica still stands")
	}
}

// Nothing is changed while a voter that stays is suspect; what is behind does not become a voter.
func TestChangesWaitForASuspectVoter(t *testing.T) {
	c := calmCluster(t, 3, 1)
	leader := c.leader(1)
	others := slices.DeleteFunc([]string{storeName(1), storeName(2), storeName(3)}, func(s string) bool { return s == leader.name })
	leader.core.Suspect(others[0], true)
	c.replace(1, others[1], storeName(4))
	for range 100 {
		c.round()
		c.tick()
		if err := c.place(); err != nil {
			t.Fatal(err)
		}
	}
	if conf := leader.core.byID[1].view; len(conf.Learners) > 0 || !sameIDs(conf.Voters, []uint64{1, 2, 3}) {
		t.Fatalf("configuration is %+v", conf)
	}
	leader.core.Suspect(others[0], false)
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
}

// What is older than what is known changes nothing.
func TestOlderWishesAreIgnored(t *testing.T) {
	c := calmCluster(t, 4, 1)
	was := c.plane.shards[1].wanted
	c.replace(1, storeName(3), storeName(4))
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	leader := c.leader(1)
	leader.core.Want(1, was)
	for range 50 {
		c.round()
		c.tick()
	}
	if conf := leader.core.byID[1].view; !sameIDs(conf.Voters, []uint64{1, 2, 4}) || len(conf.Learners) > 0 {
		t.Fatalf("configuration is %+v", conf)
	}
}

// A generation that changes nothing is in the log all the same before it is told: a leader that comes later, and has heard only
// of the one before, does not go after that.
func TestAGenerationThatChangesNothingIsInTheLog(t *testing.T) {
	c := calmCluster(t, 9, 1)
	p := c.plane.shards[1]
	givenUp := Wanted{Gen: 2, Replicas: append(slices.Clone(p.wanted.Replicas[:2]), Placed{4, storeName(4)})}
	p.wanted.Gen, p.next = 3, 5
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.members[:3] {
		if s, ok, err := Load(m.engine.Crash(0), 1); err != nil || !ok || s.gen != 3 || !sameIDs(s.conf.Voters, []uint64{1, 2, 3}) {
			t.Fatalf("%s has generation %d, voters %v (%v, %v)", m.name, s.gen, s.conf.Voters, ok, err)
		}
	}
	leader, followers := c.followers()
	if err := c.crash(followers[0]); err != nil {
		t.Fatal(err)
	}
	later := followers[0].core.byID[1]
	c.until(t, 100, true, func() bool {
		leader.core.TransferLeader(1, later.id)
		return later.leads() && later.lead.established
	})
	followers[0].core.Want(1, givenUp)
	for range 50 {
		c.round()
		c.tick()
	}
	if later.lead == nil || len(later.view.Learners) > 0 || !sameIDs(later.view.Voters, []uint64{1, 2, 3}) {
		t.Fatalf("leads %v, configuration is %+v", later.lead != nil, later.view)
	}
	followers[0].core.Want(1, p.wanted)
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
}

// A store that comes back under a replica's id without its disk is not listened to, nor is one that nobody knows.
func TestMessagesOfAnotherStoreAreDropped(t *testing.T) {
	c := calmCluster(t, 5, 0)
	leader := c.leader(1)
	r := leader.core.byID[1]
	term, id := r.hard.term+5, r.id%3+1
	say := func(store string, from uint64) {
		leader.core.Step(store, PeerMessage{Shard: 1, Message: &raftpb.Message{
			Type: raftpb.MsgAppResp.Enum(), To: &r.id, From: &from, Term: &term,
		}})
		c.turn(leader)
	}
	say("stranger", id)
	say("stranger", 77)
	if r.lead == nil {
		t.Fatal("a stranger's message ended a leadership")
	}
	say(r.stores[id], id)
	if r.lead != nil {
		t.Fatal("the replica's own message of a higher term did not")
	}
}

// A replica that is removed while its own vote is on its way to the disk forgets about it.
func TestReplicaRemovedWithAVoteUnderWay(t *testing.T) {
	c := calmCluster(t, 8, 0)
	_, followers := c.followers()
	m := followers[0]
	r := m.core.byID[1]
	if err := r.node.ForgetLeader(); err != nil {
		t.Fatal(err)
	}
	standNow(m.core, 1)
	c.turn(m)
	if len(m.waits) == 0 {
		t.Fatal("no vote waits for its sync")
	}
	r.noteConf(r.node.ApplyConfChange(&raftpb.ConfChange{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: &r.id}), nil)
	c.sync(m)
	if _, err := m.core.Turn(c.stamp); err != nil || c.err != nil {
		t.Fatal(err, c.err)
	}
}

// A stranger's message makes nobody forget where a wanted replica is that is not in the group yet.
func TestStrangersDisplaceNobody(t *testing.T) {
	c := calmCluster(t, 6, 1)
	leader := c.leader(1)
	r := leader.core.byID[1]
	leader.core.Want(1, Wanted{Gen: 2, Replicas: []Placed{{r.id, leader.name}, {4, storeName(4)}}})
	stranger, term := uint64(77), uint64(1)
	leader.core.Step("stranger", PeerMessage{Shard: 1, Message: &raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), To: &r.id, From: &stranger, Term: &term,
	}})
	if r.stores[4] != storeName(4) {
		t.Fatalf("stores are %v", r.stores)
	}
}

func TestReplicasAreMadeOnce(t *testing.T) {
	engine := store.OpenMemory()
	if err := CreateLearner(engine, 7, 4, 3); err != nil {
		t.Fatal(err)
	}
	if err := CreateLearner(engine, 7, 5, 3); !errors.Is(err, ErrReplicaStands) {
		t.Fatalf("a second replica: %v", err)
	}
	core, err := New(testConfig("a"), engine, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, ok, err := Load(engine.Crash(0), 7)
	if err != nil || !ok || s.ID != 4 || len(s.conf.Voters) != 0 {
		t.Fatalf("loaded %+v, %v, %v", s, ok, err)
	}
	if err := core.Add(s); err != nil {
		t.Fatal(err)
	}
	if err := core.Add(s); !errors.Is(err, ErrReplicaStands) {
		t.Fatalf("added twice: %v", err)
	}
	core.Tick() // an empty replica stands for nothing
	turn, err := core.Turn(1)
	if err != nil || len(turn.Frames) > 0 {
		t.Fatalf("turn: %+v, %v", turn, err)
	}
}

// removing is a store with an empty replica 4 of shard 7 that is being removed.
func removing(t *testing.T) (engine *store.Memory, core *Core, removed *bool) {
	t.Helper()
	engine = store.OpenMemory()
	if err := CreateLearner(engine, 7, 4, 3); err != nil {
		t.Fatal(err)
	}
	states, err := LoadAll(engine)
	if err != nil {
		t.Fatal(err)
	}
	if core, err = New(testConfig("a"), engine, states); err != nil {
		t.Fatal(err)
	}
	removed = new(bool)
	core.Remove(7, func(err error) {
		if err != nil {
			t.Error(err)
		}
		*removed = true
	})
	return engine, core, removed
}

// A replica that goes leaves the row cache to the others.
func TestRemovedReplicaLeavesTheCache(t *testing.T) {
	cache := store.NewCache(1 << 20)
	s := newSolo(t, func(c *Config) { c.Cache = cache }).established()
	s.propose("a")
	s.settle()
	if cache.Len() == 0 {
		t.Fatal("nothing was cached")
	}
	s.core.Remove(1, func(error) {})
	if cache.Len() != 0 {
		t.Errorf("the cache holds %d rows", cache.Len())
	}
	s.settle()
	if cache.Len() != 0 {
		t.Errorf("the cache holds %d rows after the removal", cache.Len())
	}
}

// Whatever a crash leaves of a removal: either the replica stands as it was, or it is gone for good with its id.
func TestCrashInARemoval(t *testing.T) {
	for stop := range 4 {
		for keep := 0; ; keep++ {
			engine, core, removed := removing(t)
			for step := 0; step < stop; step++ {
				turn, err := core.Turn(1)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range turn.Results {
					d.Deliver()
				}
				if turn.Wait != nil {
					if err := turn.Wait(); err != nil {
						t.Fatal(err)
					}
					core.SyncDone(turn.Seq)
				}
			}
			if (stop >= 2) != *removed {
				t.Fatalf("%d turns: removed %v", stop, *removed)
			}
			if keep > engine.Unsynced() {
				break
			}
			left := engine.Crash(keep)
			states, err := LoadAll(left)
			if err != nil {
				t.Fatal(err)
			}
			if len(states) == 1 {
				if stop > 0 && keep > 0 || stop > 1 {
					t.Fatalf("%d turns, %d commits kept: it still stands", stop, keep)
				}
				continue
			}
			if err := CreateLearner(left, 7, 4, 3); !errors.Is(err, ErrReplicaGone) {
				t.Fatalf("%d turns, %d commits kept: replica 4 again: %v", stop, keep, err)
			}
			if err := CreateLearner(left, 7, 5, 3); err != nil {
				t.Fatalf("%d turns, %d commits kept: replica 5: %v", stop, keep, err)
			}
		}
	}
}
