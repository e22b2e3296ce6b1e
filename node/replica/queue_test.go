package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// newWork treats commands named new… as new work, with as many milliseconds of patience as the name has letters.
func newWork(c *Config) {
	c.Patience = func(cmd *storagev1.Command) time.Duration {
		if !strings.HasPrefix(cmd.RequestId, "new") {
			return 0
		}
		return time.Duration(len(cmd.RequestId)) * time.Millisecond
	}
}

// What accepted work needs overtakes new work, which has its part of every turn all the same.
func TestAcceptedWorkGoesFirst(t *testing.T) {
	var entries []int
	s := newSolo(t, func(c *Config) {
		newWork(c)
		c.Hooks.Entry = func(commands, _ int) { entries = append(entries, commands) }
	}).established()
	s.propose("flight")
	s.turn()
	for i := range 3 {
		s.propose(fmt.Sprintf("new %d", i) + strings.Repeat(" ", freshTurnBytes/2))
	}
	for i := range 2 * maxEntryCommands {
		s.propose(fmt.Sprint("old ", i))
	}
	s.settle()
	var order []string
	for _, got := range s.got {
		order = append(order, strings.Fields(got)[0]+strings.Trim(strings.Fields(got)[1], ":"))
	}
	const full = maxEntryCommands - 1
	want := map[int]string{
		1: "old0", full: fmt.Sprint("old", full-1), full + 1: "new0",
		full + 2: fmt.Sprint("old", full), 2*full + 2: "new1", 2*full + 3: fmt.Sprint("old", 2*full), 2*full + 5: "new2",
	}
	for place, name := range want {
		if order[place] != name {
			t.Errorf("place %d has %q, must have %q", place, order[place], name)
		}
	}
	if want := []int{1, maxEntryCommands, maxEntryCommands, 3}; !slices.Equal(entries, want) {
		t.Errorf("entries have %v commands, must have %v", entries, want)
	}
}

// New work is refused once what stands before it has waited for longer than it would: the less urgent sooner. Accepted work
// is not.
func TestNewWorkIsShedByItsPatience(t *testing.T) {
	s := newSolo(t, newWork)
	s.settle()
	s.propose("new head") // waits for the lease
	s.turn()
	waited := func(ms int) {
		s.stamp += int64(ms) - 1
		standNow(s.core, 1) // work for a turn
		s.turn()
	}
	waited(7)
	s.propose("new 678")
	waited(1)
	s.propose("new 678")
	s.propose("new 6789")
	s.propose("old")
	waited(1)
	s.propose("new 6789")
	s.core.LeaseHeld(1, 6)
	s.settle()
	overloaded := ": " + ErrOverloaded.Error()
	if c := s.core.Counters(); c.Shed != 2 || c.Refused != 2 {
		t.Errorf("%d shed, %d refused", c.Shed, c.Refused)
	}
	slices.Sort(s.got)
	s.wantGot("new 6789: 4", "new 6789"+overloaded, "new 678: 3", "new 678"+overloaded, "new head: 2", "old: 1")
	s.propose("new again")
	s.settle()
	s.wantGot("new again: 5")
}

// An idle time before a command does not count as its wait.
func TestIdleTimeIsNotWaited(t *testing.T) {
	s := newSolo(t, newWork).established()
	s.stamp += 1e6
	s.propose("flight")
	s.propose("new 1")
	s.propose("new 2")
	s.turn()
	s.propose("new 3")
	s.settle()
	if c := s.core.Counters(); c.Shed != 0 {
		t.Errorf("%d shed", c.Shed)
	}
}

// Accepted work has room in the store when new work has filled its part.
func TestNewWorkLeavesRoom(t *testing.T) {
	s := newSolo(t, func(c *Config) {
		newWork(c)
		c.StoreQueueBytes = 4 << 20
	}).established()
	s.propose("flight")
	s.turn()
	const size = 1 << 20
	for range 4 {
		s.propose("new" + strings.Repeat(" ", size))
	}
	s.propose("old" + strings.Repeat(" ", size/2))
	s.settle()
	shed := 0
	for _, got := range s.got {
		if strings.HasSuffix(got, ErrOverloaded.Error()) {
			shed++
			if strings.HasPrefix(got, "old") {
				t.Error("accepted work was refused")
			}
		}
	}
	if shed != 2 { // 3 MiB are not quite enough for three
		t.Errorf("%d of 4 were shed", shed)
	}
}

// An engine that does not keep up holds new work back, in part or wholly, until it says that it does. Accepted work goes on.
func TestPressureHoldsNewWorkBack(t *testing.T) {
	var entries []int
	s := newSolo(t, func(c *Config) {
		newWork(c)
		c.Hooks.Entry = func(commands, _ int) { entries = append(entries, commands) }
	}).established()
	s.core.SetPressure(100)
	for range 4 {
		s.propose("new" + strings.Repeat(" ", pressedBytes/100*2/3))
	}
	s.propose("old")
	s.settle()
	s.wantGot("old: 1")
	s.core.SetPressure(100)
	if !s.core.HasWork() {
		t.Error("no turn follows, in which the next question is asked")
	}
	s.settle()
	s.wantGot()
	s.core.SetPressure(99)
	s.settle()
	if len(s.got) != 2 {
		t.Errorf("%d commands went into the room for one and a half", len(s.got))
	}
	s.core.SetPressure(0)
	s.settle()
	if len(s.got) != 4 {
		t.Errorf("%d of 4 commands were answered without pressure", len(s.got))
	}
	if want := []int{1, 1, 1, 2}; !slices.Equal(entries, want) {
		t.Errorf("entries have %v commands, must have %v", entries, want)
	}
	if c := s.core.Counters(); c.Shed != 0 {
		t.Errorf("%d shed", c.Shed)
	}
}
