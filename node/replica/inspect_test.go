package replica

import (
	"cmp"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"go.etcd.io/raft/v3/raftpb"
)

// follower is replica 3 of a group of three, whose turns are taken and synced one by one.
type follower struct {
	t      *testing.T
	engine *store.Memory
	core   *Core
}

func newFollower(t *testing.T) *follower {
	t.Helper()
	engine := store.OpenMemory()
	if err := Bootstrap(engine, []Seed{{Shard: 1, ID: 3, Voters: []uint64{1, 2, 3}}}); err != nil {
		t.Fatal(err)
	}
	states, err := LoadAll(engine)
	if err != nil {
		t.Fatal(err)
	}
	core, err := New(testConfig(storeName(3)), engine, states)
	if err != nil {
		t.Fatal(err)
	}
	return &follower{t, engine, core}
}

// hear takes in a leader's entry of its term, which follows one of an earlier term.
func (f *follower) hear(leader, term, index, termBefore uint64) {
	to, before := uint64(3), index-1
	f.core.Step(storeName(int(leader)), PeerMessage{Shard: 1, Message: &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: &leader, To: &to, Term: &term, Index: &before, LogTerm: &termBefore,
		Entries: []*raftpb.Entry{newEntry(raftpb.EntryNormal, term, index, nil)},
	}})
}

// turn takes a turn and returns what it promises.
func (f *follower) turn() (Turn, []Promise) {
	f.t.Helper()
	turn, err := f.core.Turn(1)
	if err != nil {
		f.t.Fatal(err)
	}
	var promises []Promise
	for _, frame := range turn.Frames {
		for _, m := range frame.Messages {
			if p, ok := m.Promise(); ok {
				promises = append(promises, p)
			}
		}
	}
	return turn, promises
}

// An entry that a later leader overwrites in the turn in which it came is never on the disk. Its acknowledgement leaves all the
// same, in the term in which it was taken in, but not before the disk is at the later one.
func TestEntryOverwrittenInItsTurnIsAcknowledgedInItsTerm(t *testing.T) {
	f := newFollower(t)
	f.hear(1, 6, 11, 5)
	f.hear(1, 6, 12, 6)
	f.hear(2, 7, 11, 5)
	turn, early := f.turn()
	if len(early) > 0 || turn.Wait == nil {
		t.Fatalf("before the sync it promises %+v", early)
	}
	if err := turn.Wait(); err != nil {
		t.Fatal(err)
	}
	f.core.SyncDone(turn.Seq)
	_, promises := f.turn()
	slices.SortFunc(promises, func(a, b Promise) int { return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.Index, b.Index)) })
	if want := []Promise{
		{From: 3, To: 1, Term: 6, Index: 11, Appended: true},
		{From: 3, To: 1, Term: 6, Index: 12, Appended: true},
		{From: 3, To: 2, Term: 7, Index: 11, Appended: true},
	}; !slices.Equal(promises, want) {
		t.Errorf("it promises %+v, wanted %+v", promises, want)
	}
	left := f.engine.Crash(0)
	for _, p := range promises {
		if kept, err := p.Kept(left, 1); err != nil || !kept {
			t.Errorf("%+v is not kept: %v", p, err)
		}
	}
	s, _, err := Load(left, 1)
	if err != nil || s.hard.term != 7 || s.log.last != 11 || s.log.termAt(11) != 7 {
		t.Errorf("the disk is at term %d with a log to %d, %v", s.hard.term, s.log.last, err)
	}
}

// Acknowledgements and votes are measured by the disk's term first, and within it by vote and log.
func TestPromisesAreKeptByRows(t *testing.T) {
	engine := store.OpenMemory()
	if err := Bootstrap(engine, []Seed{{Shard: 1, ID: 3, Voters: []uint64{1, 2, 3}}}); err != nil {
		t.Fatal(err)
	}
	b := engine.NewBatch()
	b.Set(rowKey(1, fsm.KindHardState), encodeHardState(hardState{term: 7, vote: 2}))
	b.Set(logKey(1, 11), encodeLogRow(newEntry(raftpb.EntryNormal, 6, 11, nil)))
	commitNow(t, engine, b)
	for p, want := range map[Promise]bool{
		{Term: 7, Appended: true, Index: 10}: true, // applied, its row is gone
		{Term: 7, Appended: true, Index: 11}: true,
		{Term: 7, Appended: true, Index: 12}: false,
		{Term: 8, Appended: true, Index: 11}: false, // a crash would forget the term
		{Term: 6, Appended: true, Index: 12}: true,  // overwritten since
		{Term: 7, Voted: true, To: 2}:        true,
		{Term: 7, Voted: true, To: 1}:        false,
		{Term: 8, Voted: true, To: 2}:        false,
		{Term: 6, Voted: true, To: 1}:        true,
	} {
		if kept, err := p.Kept(engine, 1); err != nil || kept != want {
			t.Errorf("%+v: kept is %v, %v", p, kept, err)
		}
	}
	if kept, err := (Promise{Term: 1, Appended: true, Index: 1}).Kept(engine, 2); err == nil || kept {
		t.Errorf("a shard without rows keeps promises: %v", err)
	}
}
