package replica

import (
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
)

// relax proposes a request of which nobody outside is told.
func (s *solo) relax(id string) {
	s.core.Propose(Proposal{Shard: 1, Command: request(id), Relaxed: true, Done: func(_ fsm.Result, err error) {
		if err != nil {
			s.t.Errorf("%s: %v", id, err)
		}
		s.got = append(s.got, id)
	}})
}

// A relaxed entry of a lone voter is applied in the turn that proposes it, without a sync; one that is to be durable makes
// it so.
func TestRelaxedEntriesWaitForNoSync(t *testing.T) {
	s := newSolo(t, nil).established()
	syncs, turns := s.core.Counters().Syncs, s.core.Counters().Turns
	for _, id := range []string{"a", "b", "c"} {
		s.relax(id)
		s.settle()
		s.wantGot(id)
	}
	if got := s.core.Counters(); got.Syncs != syncs || got.Turns != turns+3 {
		t.Fatalf("%d syncs and %d turns; want none, and 3", got.Syncs-syncs, got.Turns-turns)
	}
	lost := store.NewReader(s.engine.Crash(0), 1)
	if n := ledgerTimes(lost, "c"); n != 0 {
		t.Errorf("what was not synced was applied %d times after a crash that leaves nothing of it", n)
	}
	s.propose("d")
	s.settle()
	s.wantGot("d: 4")
	if got := s.core.Counters().Syncs; got != syncs+1 {
		t.Errorf("%d syncs; want 1", got-syncs)
	}
	// The last one stands in the log; its rows follow.
	left := store.NewReader(s.engine.Crash(0), 1)
	for _, id := range []string{"a", "b", "c"} {
		if n := ledgerTimes(left, id); n != 1 {
			t.Errorf("after a sync and a crash %s was applied %d times", id, n)
		}
	}
}

// One command in an entry that is to be durable makes the entry wait.
func TestAnEntryIsRelaxedOnlyAsAWhole(t *testing.T) {
	s := newSolo(t, nil).established()
	syncs := s.core.Counters().Syncs
	s.relax("a")
	s.propose("b")
	s.turn()
	s.wantGot()
	s.settle()
	s.wantGot("a", "b: 2")
	if got := s.core.Counters().Syncs; got != syncs+1 {
		t.Errorf("%d syncs; want 1", got-syncs)
	}
}
