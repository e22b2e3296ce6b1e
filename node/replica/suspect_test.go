package replica

import (
	"errors"
	"fmt"
	"testing"
)

// followers are the members that follow in shard 1, by their replicas' ids.
func (c *cluster) followers() (leader *member, followers []*member) {
	leader = c.leader(1)
	for _, m := range c.members {
		if m != leader {
			followers = append(followers, m)
		}
	}
	return leader, followers
}

// standNow makes a shard's replica stand for election with the next turn, unless it leads already.
func standNow(c *Core, shard uint32) {
	r := c.byID[shard]
	r.campaignIn = 0
	c.touch(r)
}

// Without a tick: the followers of a suspect store elect the first of them.
func TestSuspicionElectsTheFirstInLine(t *testing.T) {
	c := calmCluster(t, 11, 0)
	leader, followers := c.followers()
	c.isolate(leader)
	for _, m := range followers {
		m.core.Suspect(leader.name, true)
	}
	if !followers[1].core.Staggered() || followers[0].core.byID[1].campaignIn != 0 {
		t.Fatal("they do not stand one after the other")
	}
	c.until(t, 20, false, func() bool { return c.leader(1) == followers[0] })
	followers[1].core.Stagger()
	for range 10 {
		c.round()
	}
	if c.leader(1) != followers[0] {
		t.Fatal("the second in line disturbed the first")
	}
}

// Nodes do not become suspicious at the same moment: who stood too early stands again, so that the one whose log is
// longest wins without waiting for an election timeout.
func TestCandidateThatWasTooEarlyStandsAgain(t *testing.T) {
	c := calmCluster(t, 17, 0)
	leader, followers := c.followers()
	c.cut[[2]string{leader.name, followers[1].name}] = true
	c.propose(leader, 1)
	for range 4 {
		c.round()
	}
	if len(c.acked) != 1 || followers[1].core.byID[1].log.last >= followers[0].core.byID[1].log.last {
		t.Fatal("the second follower is not behind")
	}
	c.isolate(leader)
	followers[0].core.Suspect(leader.name, true)
	for range 5 {
		c.round()
	}
	followers[1].core.Suspect(leader.name, true)
	for range 6 {
		for range 5 {
			c.round()
		}
		if c.leader(1) == followers[0] {
			return
		}
		followers[0].core.Stagger()
		followers[1].core.Stagger()
	}
	t.Fatalf("the first follower does not lead:%s", c.describe())
}

// A suspicion that proves wrong costs nothing: a leader that is heard goes on leading.
func TestWrongSuspicionOfOneNodeChangesNothing(t *testing.T) {
	c := calmCluster(t, 13, 0)
	leader, followers := c.followers()
	term := leader.core.byID[1].lead.term
	followers[0].core.Suspect(leader.name, true)
	for range 30 {
		c.round()
		c.tick()
	}
	if r := leader.core.byID[1]; r.lead == nil || r.lead.term != term {
		t.Fatalf("it no longer leads:%s", c.describe())
	}
}

// Followers answer reads as current as their leader does, and say so when nobody can be asked.
func TestReadsAtFollowers(t *testing.T) {
	c := calmCluster(t, 14, 0)
	leader, followers := c.followers()
	for range 20 {
		c.propose(leader, 1)
		c.read(followers[0], 1) // checks what it shows
		c.round()
	}
	for range 20 {
		c.round()
		c.tick()
	}
	if c.happened[followerRead] != 20 {
		t.Fatalf("%d of 20 reads were answered", c.happened[followerRead])
	}
	c.isolate(followers[0])
	var got []error
	followers[0].core.ReadIndex(1, func(err error) { got = append(got, err) })
	for range readTicks - 1 {
		c.round()
		c.tick()
	}
	if len(got) != 0 {
		t.Fatalf("answered early: %v", got)
	}
	for range 3 {
		c.round()
		c.tick()
	}
	var notLeader *NotLeaderError
	if len(got) != 1 || !errors.As(got[0], &notLeader) {
		t.Fatalf("got %v", got)
	}
}

// A follower that is dead holds back the leader's log for as long as it lacks less than a share of it.
func TestADeadFollowerDoesNotHoldTheLogForEver(t *testing.T) {
	seedElections(t, 15)
	c, err := newCluster(15, Faults{})
	if err != nil {
		t.Fatal(err)
	}
	c.logBytes = 8 << 10
	for _, m := range c.members {
		if err := c.start(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	leader, followers := c.followers()
	c.isolate(followers[0])
	for i := range 400 {
		c.propose(leader, 1)
		c.round()
		r := leader.core.byID[1]
		if i%20 == 0 {
			c.tick()
		}
		if total := leader.core.logBytes(); total > c.logBytes+c.logBytes/2 {
			t.Fatalf("logs take %d bytes, shard 1's (%d, %d]", total, r.log.truncated.index, r.log.last)
		}
	}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	if c.happened[snapshotInstalled] == 0 || len(c.acked) < 300 {
		t.Fatalf("%d snapshots installed, %d requests acknowledged", c.happened[snapshotInstalled], len(c.acked))
	}
}

// A store that is about to stop hands over all it leads.
func TestDrainLeavesNoLeadership(t *testing.T) {
	c := calmCluster(t, 16, 0)
	for shard := uint32(1); shard <= simShards; shard++ {
		if c.leader(shard) != c.members[0] {
			c.leader(shard).core.TransferLeader(shard, 1)
		}
	}
	c.until(t, 100, true, func() bool {
		for shard := uint32(1); shard <= simShards; shard++ {
			if c.leader(shard) != c.members[0] {
				return false
			}
		}
		return true
	})
	c.members[1].core.Suspect("nobody", true)
	c.members[0].core.Suspect(storeName(2), true)
	drained := 0
	c.members[0].core.DrainLeaders(func(err error) {
		if err != nil {
			t.Error(err)
		}
		drained++
	})
	c.until(t, 30, false, func() bool { return drained == 1 })
	for range 20 {
		c.round()
	}
	for shard := uint32(1); shard <= simShards; shard++ {
		if got := c.leader(shard); got != c.members[2] {
			t.Fatal(fmt.Sprintf("shard %d went not to the store that is not suspect:", shard), c.describe())
		}
	}
}

// Two that raft's own timeouts make candidates in the same moment split the votes. They stand again soon, one after the other,
// instead of after another timeout.
func TestSplitVotesAreSettledSoon(t *testing.T) {
	c := calmCluster(t, 19, 0)
	leader, followers := c.followers()
	c.isolate(leader)
	for range 5 {
		c.round() // what it has sent before arrives
	}
	for _, m := range followers {
		r := m.core.byID[1]
		if err := errors.Join(r.node.ForgetLeader(), r.node.Campaign()); err != nil {
			t.Fatal(err)
		}
		m.core.touch(r)
	}
	for range 20 { // a second
		for range 10 {
			c.round()
		}
		if now := c.leader(1); now != nil && now != leader {
			return
		}
		for _, m := range followers {
			m.core.Stagger()
		}
	}
	t.Fatalf("nobody leads:%s", c.describe())
}
