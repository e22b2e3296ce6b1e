package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// solo is a store with one shard, shard 1, of which it has the only replica. Events are written down, and the control
// plane answers only when the test does.
type solo struct {
	t      *testing.T
	engine *store.Memory
	core   *Core
	events []string
	got    []string
	stamp  int64
}

func newSolo(t *testing.T, change func(*Config)) *solo {
	t.Helper()
	s := &solo{t: t, engine: store.OpenMemory()}
	if err := Bootstrap(s.engine, []Seed{{Shard: 1, ID: 1, Voters: []uint64{1}}}); err != nil {
		t.Fatal(err)
	}
	s.open(change)
	return s
}

func (s *solo) open(change func(*Config)) {
	s.t.Helper()
	states, err := loadAll(s.engine, 1)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := testConfig("a")
	if change != nil {
		change(&cfg)
	}
	if s.core, err = New(cfg, s.engine, states); err != nil {
		s.t.Fatal(err)
	}
}

// turn does one turn; its sync is done at once.
func (s *solo) turn() {
	s.t.Helper()
	s.stamp++
	turn, err := s.core.Turn(s.stamp)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range turn.Events {
		name := map[EventKind]string{
			LeaseWanted: "wants lease", Established: "established", SteppedDown: "stepped down", Applied: "applied",
		}[e.Kind]
		s.events = append(s.events, fmt.Sprintf("%s %d", name, e.Term))
	}
	for _, d := range turn.Results {
		d.Deliver()
	}
	if turn.Wait != nil {
		if err := turn.Wait(); err != nil {
			s.t.Fatal(err)
		}
		s.core.SyncDone(turn.Seq)
	}
}

func (s *solo) settle() {
	s.t.Helper()
	for n := 0; s.core.HasWork(); n++ {
		if n > 1000 {
			s.t.Fatal("the core never comes to rest")
		}
		s.turn()
	}
}

func (s *solo) tick(n int) {
	s.t.Helper()
	for range n {
		s.core.Tick()
		s.settle()
	}
}

// propose notes the outcome as "id: result".
func (s *solo) propose(id string) {
	s.core.Propose(Proposal{Shard: 1, Command: request(id), Done: func(r fsm.Result, err error) {
		outcome := fmt.Sprint(r.Fired)
		if err != nil {
			outcome = err.Error()
		}
		s.got = append(s.got, id+": "+outcome)
	}})
}

func (s *solo) wantEvents(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.events, want) {
		s.t.Fatalf("events are %q, must be %q", s.events, want)
	}
	s.events = nil
}

func (s *solo) wantGot(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.got, want) {
		s.t.Fatalf("callers got %q, must be %q", s.got, want)
	}
	s.got = nil
}

func TestLeaderWaitsForItsLease(t *testing.T) {
	s := newSolo(t, nil)
	s.settle()
	s.wantEvents("wants lease 6")
	s.propose("early")
	s.settle()
	s.wantGot()
	s.core.LeaseHeld(1, 5) // an answer to somebody else
	s.settle()
	s.wantEvents()
	s.core.LeaseHeld(1, 6)
	s.settle()
	s.wantEvents("established 6", "applied 6")
	s.wantGot("early: 1")
	if s.core.NeedsTick() {
		t.Fatal("an established leader without peers asks for ticks")
	}
}

func TestLeaderWithoutControlPlaneServesDegraded(t *testing.T) {
	s := newSolo(t, nil)
	s.settle()
	s.wantEvents("wants lease 6")
	s.tick(leaseWaitTicks - 1)
	s.wantEvents()
	s.tick(1)
	s.wantEvents("established 6")
	if st := s.core.statusOf(s.core.all[0]); !st.Degraded || !st.Established {
		t.Fatalf("status is %+v", st)
	}
	s.propose("degraded")
	s.settle()
	s.wantGot("degraded: 1")
	s.events = nil
	s.tick(leaseRetryTicks)
	s.wantEvents("wants lease 6")
	s.core.LeaseHeld(1, 6)
	s.settle()
	if st := s.core.statusOf(s.core.all[0]); st.Degraded || s.core.NeedsTick() {
		t.Fatalf("status is %+v, needs ticks: %v", st, s.core.NeedsTick())
	}
}

// established brings the shard up at term 6.
func (s *solo) established() *solo {
	s.t.Helper()
	s.settle()
	s.core.LeaseHeld(1, 6)
	s.settle()
	s.wantEvents("wants lease 6", "established 6")
	return s
}

func TestHigherEpochEndsALeadership(t *testing.T) {
	s := newSolo(t, nil).established()
	s.core.HigherEpoch(1, 5) // long overtaken
	s.settle()
	s.wantEvents()
	s.propose("in flight")
	s.turn()
	s.propose("queued")
	s.core.HigherEpoch(1, 40)
	s.turn()
	s.wantEvents("stepped down 6")
	s.wantGot("in flight: "+ErrAmbiguous.Error(), "queued: shard 1 has no leader known here at term 40")
	s.settle()
	s.propose("between")
	s.settle()
	s.wantGot("between: shard 1 has no leader known here at term 40")
	s.tick(campaignTicks - 1)
	s.wantEvents()
	s.tick(1)
	s.wantEvents("wants lease 41")
	s.core.LeaseHeld(1, 41)
	s.settle()
	s.wantEvents("established 41")
	s.propose("after")
	s.settle()
	// What was in flight was in the log already: it counts as the first.
	s.wantGot("after: 2")
}

// An epoch far above anything that can be overtaken leaves the shard without a leader, whatever it tries.
func TestEpochThatCannotBeOvertaken(t *testing.T) {
	s := newSolo(t, nil).established()
	s.core.HigherEpoch(1, 1<<63)
	s.settle()
	s.tick(100)
	for _, e := range s.events {
		if e != "stepped down 6" && e[:7] != "stepped" {
			t.Fatalf("events are %q", s.events)
		}
	}
}

func TestEpochSeenBeforeTheElectionCounts(t *testing.T) {
	s := newSolo(t, nil)
	s.core.HigherEpoch(1, 9)
	s.settle()
	s.tick(campaignTicks)
	s.wantEvents("stepped down 6", "wants lease 10")
}

func TestTermsOnlyGrowOverRestarts(t *testing.T) {
	s := newSolo(t, nil).established()
	s.engine = s.engine.Crash(s.engine.Unsynced())
	s.open(nil)
	s.settle()
	s.wantEvents("wants lease 7")
}

func TestQueueIsBounded(t *testing.T) {
	s := newSolo(t, func(c *Config) { c.QueueCommands = 2 }).established()
	for _, id := range []string{"a", "b", "c"} {
		s.propose(id)
	}
	s.settle()
	s.wantGot("c: "+ErrOverloaded.Error(), "a: 1", "b: 2")
	s.core.Propose(Proposal{Shard: 1, Command: request(string(make([]byte, MaxCommandBytes))), Done: func(_ fsm.Result, err error) {
		s.got = append(s.got, err.Error())
	}})
	s.core.Propose(Proposal{Shard: 2, Command: request("x"), Done: func(_ fsm.Result, err error) {
		s.got = append(s.got, err.Error())
	}})
	s.settle()
	s.wantGot(ErrTooLarge.Error(), ErrNoReplica.Error())
}

// Commands are put together up to the caps; a large one has an entry to itself; their order stays.
func TestEntriesAreCapped(t *testing.T) {
	var entries []int
	s := newSolo(t, func(c *Config) {
		c.Hooks.Entry = func(commands, _ int) { entries = append(entries, commands) }
	}).established()
	for i := range 600 {
		s.propose(fmt.Sprint(i))
	}
	s.propose(string(make([]byte, 900<<10)))
	s.propose(string(make([]byte, 200<<10)))
	s.propose(string(make([]byte, 200<<10)))
	s.settle()
	if want := []int{512, 88, 1, 1, 1}; !slices.Equal(entries, want) {
		t.Fatalf("entries have %v commands, must have %v", entries, want)
	}
	if len(s.got) != 603 || s.got[599] != "599: 600" {
		t.Fatalf("%d outcomes, the 600th is %q", len(s.got), s.got[599])
	}
}

func TestReadsWaitForTheLeadership(t *testing.T) {
	s := newSolo(t, nil)
	s.settle()
	var reads []error
	s.core.ReadIndex(1, func(err error) { reads = append(reads, err) })
	s.settle()
	if len(reads) != 0 {
		t.Fatal("a read was answered before the leadership was established")
	}
	s.core.LeaseHeld(1, 6)
	s.core.ReadIndex(2, func(err error) { reads = append(reads, err) })
	s.settle()
	if len(reads) != 2 || !errors.Is(reads[0], ErrNoReplica) || reads[1] != nil {
		t.Fatalf("reads got %v", reads)
	}
}

func TestStopAnswersEverybody(t *testing.T) {
	s := newSolo(t, nil).established()
	s.propose("in flight")
	s.turn()
	s.propose("queued")
	s.core.Stop()
	s.propose("late")
	s.settle()
	if !s.core.Idle() {
		t.Fatal("not idle")
	}
	s.wantGot("queued: "+ErrStopped.Error(), "late: "+ErrStopped.Error(), "in flight: 1")
}

func TestFailedEngineEndsTheCore(t *testing.T) {
	s := newSolo(t, nil).established()
	s.propose("doomed")
	s.turn()
	s.engine.Fail(errors.New("disk is gone"))
	if _, err := s.core.Turn(99); err == nil {
		t.Fatal("turn went on without a disk")
	}
	for _, d := range s.core.Abandon() {
		d.Deliver()
	}
	s.wantGot("doomed: " + ErrAmbiguous.Error())
}

// breaking is a state machine that panics with what it is told to.
type breaking struct{ with *any }

func (b breaking) Apply(fsm.State, uint64, *storagev1.Entry) ([]fsm.Result, fsm.Effects) {
	if *b.with != nil {
		panic(*b.with)
	}
	return make([]fsm.Result, 1), fsm.Effects{}
}

// Rows that cannot be vouched for end the core with an error; our own mistakes with a panic.
func TestBrokenRowsEndTheCore(t *testing.T) {
	for _, with := range []any{fsm.CorruptRow{Key: []byte("m")}, fsm.UnsupportedLevel{Level: 99}, "own mistake"} {
		var planted any
		s := newSolo(t, func(c *Config) {
			c.OpenMachine = func(uint32, fsm.Reader) Machine { return breaking{&planted} }
		}).established()
		planted = with
		s.propose("x")
		s.turn()
		panicked, err := turnOrPanic(s.core)
		want, isError := with.(error)
		if isError && (err == nil || panicked != nil || !strings.Contains(err.Error(), want.Error())) {
			t.Errorf("%v: turn returned %v, panicked with %v", with, err, panicked)
		}
		if !isError && panicked != with {
			t.Errorf("%v: turn returned %v, panicked with %v", with, err, panicked)
		}
	}
}

func turnOrPanic(core *Core) (panicked any, err error) {
	defer func() { panicked = recover() }()
	_, err = core.Turn(1)
	return nil, err
}

// The log is kept within its budget, never above what is applied, and a restart goes on from what is left.
func TestLogIsTruncated(t *testing.T) {
	s := newSolo(t, func(c *Config) { c.LogBytes = 4 << 10 }).established()
	for i := range 300 {
		s.propose(fmt.Sprintf("%0100d", i))
		s.settle()
		log := s.core.all[0].log
		if log.truncated.index > s.core.all[0].applied.index {
			t.Fatalf("truncated at %d, applied %d", log.truncated.index, s.core.all[0].applied.index)
		}
		if log.bytes > 5<<10 {
			t.Fatalf("log has %d bytes", log.bytes)
		}
	}
	if s.core.Counters().TruncatedBytes == 0 {
		t.Fatal("nothing was truncated")
	}
	chain := s.core.all[0].applied
	s.engine = s.engine.Crash(s.engine.Unsynced())
	s.open(nil)
	if s.core.all[0].applied != chain {
		t.Fatalf("applied %+v, was %+v", s.core.all[0].applied, chain)
	}
	s.events, s.got = nil, nil
	s.settle()
	s.core.LeaseHeld(1, 7)
	s.propose("again")
	s.settle()
	s.wantGot("again: 301")
}
