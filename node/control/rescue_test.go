package control

import (
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// unreachable is how a member's directory is opened when nobody else is left.
func (n *node) unreachable() ServerConfig {
	cfg := n.config("")
	cfg.PeerURL, cfg.TLS = "", TLSFiles{}
	return cfg
}

// threeVoters is a cluster of three members with two shards on the stores a, b and c.
func threeVoters(t *testing.T) (n1, n2, n3 *node) {
	t.Helper()
	n1, n2, n3 = newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a"), newNode(t, "n3", "33333333-a")
	n1.start("")
	n2.join(n1)
	n3.join(n1)
	becomeVoters(t, n2, n3)
	for at, uuid := range map[*node]string{n1: "a", n2: "b", n3: "c"} {
		_, err := openEtcd(t, at.server).Register(t.Context(), store(uuid, 1))
		must(t, err)
	}
	must(t, openEtcd(t, n1.server).Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 2, Stores: []string{"a", "b", "c"}}))
	return n1, n2, n3
}

// Two of three members are lost. The third becomes the only one, under its own id, with all that it had; the lost ones are out,
// and others join. Done again, also after it was done, it comes to the same.
func TestTheLastOfThreeMembersIsRescued(t *testing.T) {
	t.Parallel()
	n1, n2, n3 := threeVoters(t)
	id := n3.server.MemberID()
	n1.put("/last", "1")
	n1.stop()
	n2.stop()
	n3.stop()

	remains, err := ReadRemains(t.Context(), n3.unreachable())
	must(t, err)
	equal(t, remains.Self, Member{ID: id, Name: "n3-33333333", PeerURL: n3.url(), Started: true})
	equal(t, len(remains.Members), 3)
	equal(t, len(remains.View.Stores), 3)
	equal(t, len(remains.View.Wanted), 2)
	equal(t, len(remains.View.Wanted[0].Replicas), 3)

	own := Rescue{Store: "c", Replicas: map[uint32]Survivor{1: {RID: 2, Gen: 7, LastRID: 5}, 2: {}}}
	_, err = RescueMember(t.Context(), n3.unreachable(), Rescue{Store: "c", Replicas: map[uint32]Survivor{1: {RID: 1}}})
	if err == nil {
		t.Fatal("a shard was given up")
	}
	for again := range uint64(2) {
		shards, err := RescueMember(t.Context(), n3.unreachable(), own)
		must(t, err)
		equal(t, shards, []Shard{
			{ID: 1, Gen: 8 + again, NextRID: 6, Replicas: []Replica{{2, "c"}}},
			{ID: 2, Gen: 2 + again, NextRID: 5 + again, Replicas: []Replica{{4 + again, "c"}}},
		})
	}

	n3.start("")
	equal(t, n3.server.MemberID(), id)
	equal(t, voters(t, n3), []string{"n3-33333333"})
	equal(t, n3.get("/last"), "1")
	view, err := openEtcd(t, n3.server).Placement(t.Context())
	must(t, err)
	states := map[string]StoreState{}
	for _, s := range view.Stores {
		states[s.UUID] = s.State
		equal(t, s.Live, s.UUID == "c")
	}
	equal(t, states, map[string]StoreState{"a": StoreGone, "b": StoreGone, "c": StoreUp})
	equal(t, view.Wanted[1], Shard{ID: 2, Gen: 3, NextRID: 6, Replicas: []Replica{{5, "c"}}})

	// A lost one that comes back after all is none any more; with empty directories they join.
	n1.open("")
	wantError(t, n1.server.Ready(t.Context()), ErrRemoved)
	n1.stop()
	n1.dir, n1.store, n2.dir, n2.store = t.TempDir(), "1a1a1a1a-b", t.TempDir(), "2b2b2b2b-b"
	n1.join(n3)
	n2.join(n3)
	becomeVoters(t, n1, n2)
	equal(t, voters(t, n2), []string{"n1-1a1a1a1a", "n2-2b2b2b2b", "n3-33333333"})
	equal(t, n2.get("/last"), "1")
}

// A member without a vote cannot be the last one, and a first member that is alone already is what it was.
func TestWhichMembersAreRescued(t *testing.T) {
	t.Parallel()
	n1, n2 := newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a")
	n1.start("")
	n2.join(n1)
	n2.get("/")
	n1.stop()
	n2.stop()
	remains, err := ReadRemains(t.Context(), n2.unreachable())
	must(t, err)
	equal(t, remains.Self.Learner, true)
	if _, err := RescueMember(t.Context(), n2.unreachable(), Rescue{Store: "b"}); err == nil {
		t.Fatal("a learner was made the only member")
	}
	_, err = RescueMember(t.Context(), n1.unreachable(), Rescue{Store: "a"})
	must(t, err)
	n1.start("")
	equal(t, voters(t, n1), []string{"n1-11111111"})
	equal(t, len(n1.server.LocalMembers()), 1)
}

// What stands in the log counts as committed, up to the first change of the membership.
func TestALogIsCommitted(t *testing.T) {
	for _, c := range []struct {
		known, want uint64
		change      uint64
	}{
		{known: 1, want: 4}, {known: 4, want: 4},
		{known: 1, change: 3, want: 2}, {known: 2, change: 3, want: 2}, {known: 3, change: 3, want: 4},
	} {
		dir := t.TempDir()
		segment := writeLog(t, dir, func(log *wal.WAL) error {
			var entries []*raftpb.Entry
			for i := uint64(1); i <= 4; i++ {
				e := &raftpb.Entry{Term: new(uint64(1)), Index: &i}
				if i == c.change {
					e.Type = raftpb.EntryConfChange.Enum()
				}
				entries = append(entries, e)
			}
			return log.Save(&raftpb.HardState{Term: new(uint64(2)), Vote: new(uint64(9)), Commit: &c.known}, entries)
		})
		for range 2 {
			must(t, commitLog(dir))
			log, err := wal.Open(zap.NewNop(), filepath.Dir(segment), &walpb.Snapshot{})
			must(t, err)
			_, state, entries, err := log.ReadAll()
			must(t, errors.Join(err, log.Close()))
			equal(t, []uint64{state.GetTerm(), state.GetVote(), state.GetCommit()}, []uint64{2, 9, c.want})
			equal(t, len(entries), 4)
		}
	}
}
