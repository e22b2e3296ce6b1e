package integration

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// The cases that a change of the leader must not touch, each with such a change in its middle. Of one node they are tests of
// their own (TestL3 …); L2 is TestDrillLeaderIsFrozen.
func TestCasesAcrossFailovers(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "1")
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	for _, c := range []struct {
		id  string
		run func(*fleet)
	}{
		{"L1", leadershipComesAndGoes}, {"L3", leaderIsGoneWhenDue}, {"L4", noSecondLease}, {"R5", noOverlap}, {"W1", deadWorker}, {"W2", frozenWorker},
		{"W5", retriedCreate}, {"W10", noMoreThanAskedFor}, {"W11", retriedClaim}, {"W12", tokenOfTheLeaderBefore},
		{"W13", allAreAway}, {"I1", idUsedAgain}, {"I2", deletedMeanwhile}, {"I3", keysStand},
	} {
		f.nodes[0].awaitStatus(30*time.Second, "all is whole before "+c.id, whole)
		t.Log(c.id)
		c.run(f)
	}
	f.nodes[0].awaitStatus(30*time.Second, "all is whole", whole)
	f.verify()
}

// failover kills the leader and waits for the next one. It returns a node that is alive, and has the killed one started again
// when the case is over.
func (f *fleet) failover() (alive *server, restart func()) {
	f.t.Helper()
	leader := f.leader(0)
	alive = f.others(leader)[0]
	leader.kill()
	f.awaitLeaders(alive, leader, 10*time.Second)
	return alive, leader.start
}

// claimed creates a job that is due now and has its execution claimed.
func (f *fleet) claimed(id, worker string, lease time.Duration) *carillonv1.Lease {
	f.t.Helper()
	f.nodes[0].create(&carillonv1.JobSpec{Id: id, Queue: id, Schedule: in(0), Lease: durationpb.New(lease)})
	return f.nodes[1].claimOne(worker, id)
}

// L1: leadership goes from A to B and back while work falls due.
func leadershipComesAndGoes(f *fleet) {
	const n = 20
	first := soon(time.Second)
	f.nodes[0].createMany(n, func(i int) *carillonv1.JobSpec {
		due := first.Add(time.Duration(i) * 200 * time.Millisecond)
		return &carillonv1.JobSpec{Id: fmt.Sprint("l1-", i), Queue: "l1", Schedule: at(due)}
	})
	a := f.leader(0)
	b := f.others(a)[0]
	var group errgroup.Group
	group.Go(func() error {
		for _, to := range []*server{b, a} {
			if out, code := f.nodes[2].operate("transfer", "--shard", "1", "--to", f.name(to)); code != 0 {
				return fmt.Errorf("transfer to %s: %s", f.name(to), out)
			}
		}
		return nil
	})
	seen := map[string]bool{}
	for len(seen) < n {
		for _, l := range b.claim("w", "l1", n, 10*time.Second) {
			late := time.Since(l.GetNominalTime().AsTime())
			if seen[l.GetExecutionId()] || late > failoverLimit {
				f.t.Errorf("L1: %s came twice, or %v late", l.GetExecutionId(), late)
			}
			seen[l.GetExecutionId()] = true
			b.complete(succeeded(l, "w", ""), succeededState)
		}
	}
	if err := group.Wait(); err != nil {
		f.t.Errorf("L1: %v", err)
	}
}

// L3: the leader dies a moment before the time, the next one serves after it.
func leaderIsGoneWhenDue(f *fleet) {
	due := soon(700 * time.Millisecond)
	f.nodes[0].create(&carillonv1.JobSpec{Id: "l3", Queue: "l3", Schedule: at(due)})
	pauseUntil(f.t, due.Add(-300*time.Millisecond))
	alive, restart := f.failover()
	lease := alive.claimOne("w", "l3")
	if !lease.GetNominalTime().AsTime().Equal(due) {
		f.t.Errorf("L3: nominal time %v, want %v", lease.GetNominalTime().AsTime(), due)
	}
	alive.complete(succeeded(lease, "w", ""), succeededState)
	restart()
	f.once("l3")
}

// L4: a lease is alive across the failover, and nobody gets the execution before it ends.
func noSecondLease(f *fleet) {
	first := f.claimed("l4", "w1", 4*time.Second)
	alive, restart := f.failover()
	alive.nothing("l4")
	next := alive.claimOne("w2", "l4")
	if got := time.Now(); got.Before(first.GetDeadline().AsTime()) {
		f.t.Errorf("L4: leased again at %v, before the lease's end %v", got, first.GetDeadline().AsTime())
	}
	alive.complete(succeeded(next, "w2", ""), succeededState)
	restart()
	f.once("l4")
}

// R5: overlap is forbidden, and the leader dies in the middle of a run, and then the worker: blocked while the lease lives, which a
// new leadership grants anew, then the same execution goes on; the next one starts when that has ended.
func noOverlap(f *fleet) {
	f.nodes[0].create(&carillonv1.JobSpec{
		Id: "r5", Queue: "r5", Schedule: every(time.Second, soon(time.Second)), Overlap: carillonv1.Overlap_OVERLAP_SKIP,
		Lease: durationpb.New(5 * time.Second),
	})
	first := f.nodes[1].claimOne("w1", "r5")
	alive, restart := f.failover()
	alive.nothing("r5")
	again := alive.claimOne("w2", "r5")
	if again.GetExecutionId() != first.GetExecutionId() || again.GetAttempt() != 2 {
		f.t.Errorf("R5: %s, attempt %d, while %s had not ended", again.GetExecutionId(), again.GetAttempt(), first.GetExecutionId())
	}
	if got := time.Now(); got.Before(first.GetDeadline().AsTime()) {
		f.t.Errorf("R5: leased again at %v, before the lease's end %v", got, first.GetDeadline().AsTime())
	}
	alive.nothing("r5")
	alive.complete(succeeded(again, "w2", ""), succeededState)
	next := alive.claimOne("w3", "r5")
	if !next.GetNominalTime().AsTime().After(again.GetNominalTime().AsTime()) {
		f.t.Errorf("R5: %v after %v", next.GetNominalTime().AsTime(), again.GetNominalTime().AsTime())
	}
	alive.complete(succeeded(next, "w3", ""), succeededState)
	restart()
	call(f.t, f.nodes[0].jobs().DeleteJob, &carillonv1.DeleteJobRequest{Id: "r5"})
}

// W1: the worker dies, and the leader that gave it the lease.
func deadWorker(f *fleet) {
	f.claimed("w1", "dead", time.Second)
	alive, restart := f.failover()
	next := alive.claimOne("next", "w1")
	if next.GetAttempt() != 2 {
		f.t.Errorf("W1: attempt %d, want 2", next.GetAttempt())
	}
	alive.complete(succeeded(next, "next", ""), succeededState)
	attempts := alive.execution(next.GetExecutionId()).GetAttempts()
	if len(attempts) != 2 || attempts[0].GetOutcome() != carillonv1.Outcome_OUTCOME_LOST {
		f.t.Errorf("W1: attempts %v", attempts)
	}
	restart()
}

// W2: the worker is away beyond its lease, under the next leader a second one claims, the first one is back.
func frozenWorker(f *fleet) {
	old := f.claimed("w2", "old", time.Second)
	alive, restart := f.failover()
	next := alive.claimOne("next", "w2")
	if got := alive.heartbeat(old, "old").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST {
		f.t.Errorf("W2: its heartbeat is answered %v", got)
	}
	refused(f.t, connect.CodeFailedPrecondition, alive.workers().CompleteExecution, succeeded(old, "old", "old"))
	alive.complete(succeeded(next, "next", "next"), succeededState)
	restart()
	if got := f.nodes[0].execution(old.GetExecutionId()); string(got.GetResult()) != "next" {
		f.t.Errorf("W2: the result is %q", got.GetResult())
	}
}

// W5: the answer to a create is lost; the retry goes to another node, after a failover.
func retriedCreate(f *fleet) {
	req := func(payload string) *carillonv1.CreateJobRequest {
		return &carillonv1.CreateJobRequest{
			IdempotencyKey: "w5", Job: &carillonv1.JobSpec{Queue: "w5", Schedule: in(time.Hour), Payload: []byte(payload)},
		}
	}
	first := call(f.t, f.nodes[0].jobs().CreateJob, req("one"))
	alive, restart := f.failover()
	if again := call(f.t, alive.jobs().CreateJob, req("one")); !proto.Equal(again, first) {
		f.t.Errorf("W5: the retry got %v, first was %v", again, first)
	}
	refused(f.t, connect.CodeAlreadyExists, alive.jobs().CreateJob, req("another"))
	restart()
}

// W10: 300 polls for one execution each, at three nodes; 100 become ready.
func noMoreThanAskedFor(f *fleet) {
	var mu sync.Mutex
	leases := map[string]int{}
	var polls errgroup.Group
	for i := range 300 {
		polls.Go(func() error {
			for _, l := range f.nodes[i%3].claim(fmt.Sprint("w", i), "w10", 1, 4*time.Second) {
				mu.Lock()
				leases[l.GetExecutionId()]++
				mu.Unlock()
			}
			return nil
		})
	}
	pause(f.t, 500*time.Millisecond)
	f.nodes[0].createMany(100, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: fmt.Sprint("w10-", i), Queue: "w10", Schedule: in(0), Lease: durationpb.New(time.Minute)}
	})
	_ = polls.Wait() // none fails, or has ended the test
	twice := 0
	for _, n := range leases {
		twice += n - 1
	}
	if len(leases) != 100 || twice != 0 {
		f.t.Errorf("W10: %d executions leased, %d of them more than once; want 100 and none", len(leases), twice)
	}
}

// W11: the answer to a claim is lost; the retry goes to another node, after a failover.
func retriedClaim(f *fleet) {
	f.nodes[0].createMany(5, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: fmt.Sprint("w11-", i), Queue: "w11", Schedule: in(0), Lease: durationpb.New(time.Minute)}
	})
	req := &carillonv1.ClaimRequest{Worker: "w", ClaimId: "w11", Queues: []string{"w11"}, MaxExecutions: 3, Wait: durationpb.New(5 * time.Second)}
	tokens := func(s *server) (list []string) {
		for _, l := range call(f.t, s.workers().Claim, req).GetLeases() {
			list = append(list, l.GetExecutionId()+l.GetLeaseToken())
		}
		slices.Sort(list)
		return list
	}
	first := tokens(f.nodes[0])
	alive, restart := f.failover()
	if again := tokens(alive); len(first) == 0 || !slices.Equal(again, first) {
		f.t.Errorf("W11: the retry got %v, first were %v", again, first)
	}
	restart()
}

// W12: the token of a lease that the leader before has given is good.
func tokenOfTheLeaderBefore(f *fleet) {
	lease := f.claimed("w12", "w", time.Minute)
	alive, restart := f.failover()
	alive.complete(succeeded(lease, "w", "w12"), succeededState)
	restart()
}

// W13: all servers are away for longer than the lease, the worker goes on.
func allAreAway(f *fleet) {
	lease := f.claimed("w13", "w", 2*time.Second)
	for _, s := range f.nodes {
		s.kill()
	}
	pauseUntil(f.t, lease.GetDeadline().AsTime().Add(time.Second))
	for _, s := range f.nodes {
		s.launch()
	}
	f.awaitReady()
	f.nodes[2].complete(succeeded(lease, "w", "w13"), succeededState)
	if n := f.nodes[0].execution(lease.GetExecutionId()).GetAttemptsTotal(); n != 1 {
		f.t.Errorf("W13: %d attempts; want 1", n)
	}
}

// I1: an id is deleted and used again, in the same instant, on both sides of a failover.
func idUsedAgain(f *fleet) {
	due := soon(-time.Second)
	ids := map[string]bool{}
	run := func(s *server) {
		s.create(&carillonv1.JobSpec{Id: "i1", Queue: "i1", Schedule: at(due)})
		lease := s.claimOne("w", "i1")
		if ids[lease.GetExecutionId()] {
			f.t.Errorf("I1: %s was delivered again", lease.GetExecutionId())
		}
		ids[lease.GetExecutionId()] = true
		s.complete(succeeded(lease, "w", ""), succeededState)
	}
	run(f.nodes[0])
	f.nodes[1].delete("i1")
	alive, restart := f.failover()
	run(alive)
	restart()
}

// I2: the retry of a create whose job was deleted meanwhile, after a failover.
func deletedMeanwhile(f *fleet) {
	req := &carillonv1.CreateJobRequest{IdempotencyKey: "i2", Job: &carillonv1.JobSpec{Schedule: in(time.Hour)}}
	first := call(f.t, f.nodes[0].jobs().CreateJob, req)
	f.nodes[1].delete(first.GetId())
	alive, restart := f.failover()
	if again := call(f.t, alive.jobs().CreateJob, req); !proto.Equal(again, first) {
		f.t.Errorf("I2: the retry got %v, first was %v", again, first)
	}
	refused(f.t, connect.CodeNotFound, alive.jobs().GetJob, &carillonv1.GetJobRequest{Id: first.GetId()})
	restart()
}

// I3: the retry of an update whose version has moved on, after a failover; and the same key with another body.
func keysStand(f *fleet) {
	f.nodes[0].create(&carillonv1.JobSpec{Id: "i3", Schedule: in(time.Hour)})
	req := func(priority uint32) *carillonv1.UpdateJobRequest {
		return &carillonv1.UpdateJobRequest{Id: "i3", IdempotencyKey: "i3", ExpectedVersion: 1, Job: &carillonv1.JobPatch{Priority: &priority}}
	}
	first := call(f.t, f.nodes[1].jobs().UpdateJob, req(7))
	f.nodes[2].update("i3", &carillonv1.JobPatch{Queue: new("moved-on")})
	alive, restart := f.failover()
	if again := call(f.t, alive.jobs().UpdateJob, req(7)); !proto.Equal(again, first) {
		f.t.Errorf("I3: the retry got %v, first was %v", again, first)
	}
	err := refused(f.t, connect.CodeAlreadyExists, alive.jobs().UpdateJob, req(8))
	if got := detail[*carillonv1.IdempotencyConflict](f.t, err).GetFields(); !slices.Equal(got, []string{"priority"}) {
		f.t.Errorf("I3: the conflict names %v", got)
	}
	restart()
}
