package replica

import (
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// solesOf are all replicas of a store, as the only ones of their groups under a generation.
func solesOf(t *testing.T, engine store.Engine, on string, gen uint64) (soles []Sole) {
	t.Helper()
	states, err := LoadAll(engine)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		soles = append(soles, Sole{State: s, Store: on, Gen: gen, Epoch: 3})
	}
	return soles
}

// Two of three disks are lost while a write is under way. The third one's replicas go on alone with all that they have,
// frames and a disk of before do not disturb them, and they become three again.
func TestTheLastOfThreeReplicasBecomesTheOnlyOne(t *testing.T) {
	for seed := uint64(1); seed <= 6; seed++ {
		c := calmCluster(t, seed, 0)
		leader := c.leader(1)
		for range 20 {
			c.propose(leader, 1)
			c.round()
		}
		if err := c.check(); err != nil {
			t.Fatal(err)
		}
		survivor := c.members[seed%3]
		late := c.members[(seed+1)%3]
		c.propose(leader, 1)
		c.turn(leader) // its frames arrive after the rescue
		c.members, c.checks = nil, newChecks()
		rescueStore(t, c, survivor)
		if err := c.start(survivor); err != nil {
			t.Fatal(err)
		}
		if err := c.check(); err != nil {
			t.Fatalf("seed %d: alone: %v", seed, err)
		}
		term := survivor.core.byID[1].lead.term
		c.babble(t, late)
		if err := c.check(); err != nil || survivor.core.byID[1].lead.term != term {
			t.Fatalf("seed %d: with a disk that was given up: %v", seed, err)
		}
		for range 2 {
			if err := c.start(c.addStore()); err != nil {
				t.Fatal(err)
			}
		}
		for shard := uint32(1); shard <= simShards; shard++ {
			p := c.plane.shards[shard]
			p.wanted = Wanted{Gen: p.wanted.Gen + 1, Replicas: append(p.wanted.Replicas, Placed{4, storeName(4)}, Placed{5, storeName(5)})}
			p.next = 6
		}
		for range 5 {
			c.propose(c.leader(1), 1)
			c.round()
		}
		if err := c.check(); err != nil {
			t.Fatalf("seed %d: three again: %v", seed, err)
		}
		if len(c.acked) < 25 {
			t.Fatalf("seed %d: %d requests were acknowledged", seed, len(c.acked))
		}
	}
}

// babble lets a store that is not in the cluster any more say all that it has to say for half a minute.
func (c *cluster) babble(t *testing.T, m *member) {
	t.Helper()
	m.engine = m.engine.Crash(0)
	if err := c.start(m); err != nil {
		t.Fatal(err)
	}
	said := 0
	for range 300 {
		m.core.Tick()
		turn, err := m.core.Turn(c.stamp)
		if err != nil {
			t.Fatal(err)
		}
		if turn.Wait != nil {
			if err := turn.Wait(); err != nil {
				t.Fatal(err)
			}
			m.core.SyncDone(turn.Seq)
		}
		for _, f := range turn.Frames {
			c.put(f)
			said += len(f.Messages)
		}
		c.round()
		c.tick()
	}
	if said < 100 {
		t.Fatalf("it has said %d things", said)
	}
}

// rescueStore makes what stands on a store the whole cluster, twice.
func rescueStore(t *testing.T, c *cluster, m *member) {
	t.Helper()
	c.members = append(c.members, m)
	m.engine = m.engine.Crash(0)
	for _, p := range c.plane.shards {
		id := p.on(m.name)
		p.wanted = Wanted{Gen: p.wanted.Gen + 1, Replicas: []Placed{{id, m.name}}}
	}
	gen := c.plane.shards[1].wanted.Gen
	for range 2 {
		if err := MakeSole(m.engine, solesOf(t, m.engine, m.name, gen)); err != nil {
			t.Fatal(err)
		}
		m.engine = m.engine.Crash(0) // it is durable
	}
	for _, s := range solesOf(t, m.engine, m.name, gen) {
		c.checks.created(c, s.State.Shard, s.State.ID, m.name)
		if s.State.Gen() != gen || !sameIDs(s.State.Conf().Voters, []uint64{s.State.ID}) || s.State.Stores[s.State.ID] != m.name ||
			len(s.State.Stores) != 1 || s.State.Term() <= rescueTerms || s.State.Vote() != 0 {
			t.Fatalf("%+v", s.State)
		}
	}
}

// Changes of the configuration that have not been applied are void: they would bring back replicas that are lost.
func TestARescueVoidsChangesThatWait(t *testing.T) {
	engine := store.OpenMemory()
	if err := Bootstrap(engine, []Seed{{Shard: 1, ID: 1, Voters: []uint64{1, 2, 3}}}); err != nil {
		t.Fatal(err)
	}
	b := engine.NewBatch()
	change, changeV2 := raftpb.EntryConfChange, raftpb.EntryConfChangeV2
	for i, kind := range []raftpb.EntryType{raftpb.EntryNormal, changeV2, raftpb.EntryNormal, change} {
		b.Set(logKey(1, 11+uint64(i)), encodeLogRow(newEntry(kind, 5+uint64(i/2), 11+uint64(i), []byte("x"))))
	}
	b.Set(rowKey(1, fsm.KindHardState), encodeHardState(hardState{term: 6, vote: 2, commit: 12}))
	commitNow(t, engine, b)
	soles := solesOf(t, engine, "c", 9)
	soles[0].Epoch = 70
	if err := MakeSole(engine, soles); err != nil {
		t.Fatal(err)
	}
	s, ok, err := Load(engine.Crash(0), 1)
	if err != nil || !ok || s.LogEnd() != 14 || s.Commit() != 12 || s.Applied() != 10 || s.Term() != 1070 {
		t.Fatalf("%+v, %v", s, err)
	}
	entries, err := s.log.Entries(11, 15, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var data []string
	for i, e := range entries {
		if e.GetType() != raftpb.EntryNormal || e.GetTerm() != 5+uint64(i/2) {
			t.Errorf("entry %v", e)
		}
		data = append(data, string(e.Data))
	}
	if got := strings.Join(data, ","); got != "x,,x," {
		t.Errorf("entries hold %s", got)
	}
}

// Only a voter can stand for its group, and not under a generation that it has left behind.
func TestWhichReplicasCanBeTheOnlyOnes(t *testing.T) {
	for want, self := range map[string]identity{
		"":             {id: 1, gen: 4, conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}},
		"was never":    {id: 4, gen: 4, conf: &raftpb.ConfState{}},
		"is a learner": {id: 4, gen: 4, conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}}},
		"is out of":    {id: 3, gen: 4, conf: &raftpb.ConfState{Voters: []uint64{1, 2, 4}}},
		"generation 4": {id: 1, gen: 5, conf: &raftpb.ConfState{Voters: []uint64{1, 2, 3}}},
	} {
		engine := store.OpenMemory()
		if err := Bootstrap(engine, []Seed{{Shard: 1, ID: 1, Voters: []uint64{1}}}); err != nil {
			t.Fatal(err)
		}
		b := engine.NewBatch()
		b.Set(rowKey(1, fsm.KindConfState), encodeIdentity(self))
		if len(self.conf.Voters) == 0 {
			b.Set(rowKey(1, fsm.KindApplied), encodeApplied(appliedState{}))
			b.Set(rowKey(1, fsm.KindTruncated), encodePosition(position{}))
		}
		commitNow(t, engine, b)
		before := dump(engine, 1)
		err := MakeSole(engine, solesOf(t, engine, "c", 4))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
		if s, _, loadErr := Load(engine, 1); loadErr != nil || err != nil && (s.gen != self.gen || dump(engine, 1) != before) {
			t.Errorf("%q: a refusal has changed something: %+v, %v", want, s, loadErr)
		}
	}
	outgoing := &raftpb.ConfState{Voters: []uint64{1, 2, 4}, VotersOutgoing: []uint64{1, 2, 3}}
	if err := (&ReplicaState{ID: 3, conf: outgoing}).CanBeSole(); err != nil {
		t.Errorf("one that still has a vote: %v", err)
	}
}

// A shard of which nothing is left begins anew, under an id that none had.
func TestAShardBeginsAnew(t *testing.T) {
	engine := store.OpenMemory()
	if err := Bootstrap(engine, []Seed{{Shard: 2, ID: 1, Voters: []uint64{1}}, {Shard: 3, ID: 1, Voters: []uint64{1}}}); err != nil {
		t.Fatal(err)
	}
	if err := CreateLearner(engine, 1, 4, 2); err != nil {
		t.Fatal(err)
	}
	b := engine.NewBatch()
	b.Set(store.AppendKey(nil, 2, []byte{fsm.KindJob, 'x'}), []byte("of before"))
	commitNow(t, engine, b)
	neighbour := dump(engine, 3)
	for shard := uint32(1); shard <= 2; shard++ {
		first := store.AppendKey(nil, shard, []byte{ledgerMeta})
		if err := BeginAnew(engine, shard, 5, func(b store.Batch) { b.Set(first, pair(7, 0)) }); err != nil {
			t.Fatal(err)
		}
		if row, _, err := engine.Crash(0).Get(first); err != nil || string(row) != string(pair(7, 0)) {
			t.Errorf("shard %d begins with %x, %v", shard, row, err)
		}
		s, ok, err := Load(engine.Crash(0), shard)
		if err != nil || !ok || s.ID != 5 || s.CanBeSole() != nil || !sameIDs(s.Conf().Voters, []uint64{5}) || s.Applied() != 10 {
			t.Errorf("shard %d: %+v, %v", shard, s, err)
		}
		if err := BeginAnew(engine, shard, 4, func(store.Batch) {}); err == nil {
			t.Errorf("shard %d: an id below the one that stands was taken", shard)
		}
	}
	if _, ok, err := engine.Get(store.AppendKey(nil, 2, []byte{fsm.KindJob, 'x'})); ok || err != nil {
		t.Errorf("a row of before is there still (%v)", err)
	}
	if dump(engine, 3) != neighbour {
		t.Error("another shard has changed")
	}
	if err := MakeSole(engine, solesOf(t, engine, "c", 9)[:2]); err != nil {
		t.Error(err)
	}
}
