package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Every node is stopped in order and started again, one after the other, under load: no job is more than a second late.
// It is not parallel to other tests: what it measures is small.
func TestDrillRollingRestart(t *testing.T) {
	drillSeed(t)
	d := startDrill(t, 8, 16)
	pause(t, 2*time.Second)
	d.gap("before", time.Second)
	for end := time.Now().Add(drillLength(t, 0)); ; {
		for _, s := range d.nodes {
			if code := s.stop(); code != 0 {
				t.Fatalf("%s: exit code %d\n%s", d.name(s), code, s.seen())
			}
			d.gap(d.name(s)+" stops", time.Second)
			s.start()
			d.awaitWhole(s, 20*time.Second)
			d.gap(d.name(s)+" is back", time.Second)
		}
		if time.Now().After(end) {
			break
		}
	}
	d.end()
}

// The leader is killed in the moment in which a worker has got something: what it committed stands, the lease is good under
// the next leader, and nobody gets the execution a second time.
func TestDrillLeaderKilledAfterItCommitted(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drillSeed(t), 0))
	d := startDrill(t, 1, 8)
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 2 || time.Now().Before(end); i++ {
		leader := d.leader(0)
		at := d.others(leader)[rng.IntN(2)]
		id := fmt.Sprint("fired-", i)
		at.create(&carillonv1.JobSpec{Id: id, Queue: "fired", Schedule: in(time.Second), Lease: durationpb.New(time.Minute)})
		lease := at.claimOne("w", "fired")
		leader.kill()
		killed := time.Now()
		outcome, err := d.insistOn(at, succeeded(lease, "w", "once"))
		if err != nil || outcome != succeededState {
			t.Errorf("%s, held across the failover: %v, %v", id, outcome, err)
		}
		t.Logf("completed under the next leader %v after the kill", time.Since(killed).Round(time.Millisecond))
		d.awaitLeaders(at, leader, 10*time.Second)
		pause(t, time.Second)
		d.gap("leader killed", failoverLimit)
		at.nothing("fired")
		leader.start()
		d.awaitWhole(leader, 30*time.Second)
		if e := leader.execution(lease.GetExecutionId()); e.GetState() != succeededState || string(e.GetResult()) != "once" || e.GetAttemptsTotal() != 1 {
			t.Errorf("%s is %v", id, e)
		}
	}
	d.end()
}

// insistOn completes at a node until it is answered.
func (f *fleet) insistOn(s *server, req *carillonv1.CompleteExecutionRequest) (carillonv1.ExecutionState, error) {
	res, err := insist(f.t.Context(), unaryOf(s.workers().CompleteExecution, req))
	return res.GetState(), err
}

// The leader is frozen, others are elected, it thaws: what it believed to lead is refused in its old epoch, and so are the
// tokens of workers whose leases have ended meanwhile.
func TestDrillLeaderIsFrozen(t *testing.T) {
	t.Parallel()
	drillSeed(t)
	d := startDrill(t, 1, 8)
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 1 || time.Now().Before(end); i++ {
		d.freeze(i)
	}
	d.end()
}

// freeze is one election while the leader is frozen.
func (d *drill) freeze(round int) {
	d.t.Helper()
	leader := d.leader(0)
	other := d.others(leader)[0]
	held, changed := fmt.Sprint("held-", round), fmt.Sprint("changed-", round)
	leader.create(&carillonv1.JobSpec{Id: held, Queue: "held", Schedule: in(0), Lease: durationpb.New(time.Second)})
	leader.create(&carillonv1.JobSpec{Id: changed, Schedule: in(time.Hour), Payload: []byte("first")})
	old := leader.claimOne("old", "held")
	before := leader.epochs()
	d.k.lateness()
	d.signal(leader, syscall.SIGSTOP)
	var frozen errgroup.Group
	frozen.Go(func() error { return d.staleWrite(leader, changed) })
	frozen.Go(func() error { return d.staleToken(leader, old) })
	d.awaitLeaders(other, leader, 15*time.Second)
	if now := other.epochs(); now[0] <= before[0] {
		d.t.Errorf("epoch %d after %d", now[0], before[0])
	}
	pause(d.t, time.Second)
	d.gap("leader frozen", failoverLimit)
	next := other.claimOne("next", "held")
	if next.GetExecutionId() != old.GetExecutionId() || next.GetFencingNumber() <= old.GetFencingNumber() {
		d.t.Errorf("the next lease is %v after %v", next, old)
	}
	_, err := try(other.jobs().UpdateJob, &carillonv1.UpdateJobRequest{
		Id: changed, Job: &carillonv1.JobPatch{Payload: []byte("second")}, ExpectedVersion: 1,
	})
	if err != nil {
		d.t.Errorf("update at the next leader: %v", err)
	}
	d.signal(leader, syscall.SIGCONT)
	if err := frozen.Wait(); err != nil {
		d.t.Error(err)
	}
	d.awaitWhole(leader, 30*time.Second)
	other.complete(succeeded(next, "next", "next"), succeededState)
	refused(d.t, connect.CodeFailedPrecondition, leader.workers().CompleteExecution, succeeded(old, "old", "old"))
	if e := leader.execution(old.GetExecutionId()); string(e.GetResult()) != "next" {
		d.t.Errorf("%s has the result %q", held, e.GetResult())
	}
	if job := call(d.t, leader.jobs().GetJob, &carillonv1.GetJobRequest{Id: changed}).GetJob(); job.GetVersion() != 2 || string(job.GetPayload()) != "second" {
		d.t.Errorf("%s is %v", changed, job)
	}
	d.gap("leader thawed", failoverLimit)
}

// staleWrite is sent to a frozen leader and reaches it when it thaws, after another leader has accepted another one.
func (d *drill) staleWrite(leader *server, job string) error {
	res, err := insist(d.t.Context(), unaryOf(leader.jobs().UpdateJob, &carillonv1.UpdateJobRequest{
		Id: job, Job: &carillonv1.JobPatch{Payload: []byte("stale")}, ExpectedVersion: 1,
	}))
	if connect.CodeOf(err) != connect.CodeAborted {
		return fmt.Errorf("a write that came to the frozen leader was answered %v, %w; want aborted", res, err)
	}
	return nil
}

// staleToken is a completion that reaches the frozen leader when it thaws, after its lease has ended.
func (d *drill) staleToken(leader *server, lease *carillonv1.Lease) error {
	state, err := d.insistOn(leader, succeeded(lease, "old", "old"))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		return fmt.Errorf("a stale token that came to the frozen leader was answered %v, %w; want failed_precondition", state, err)
	}
	return nil
}

func (d *drill) signal(s *server, sig syscall.Signal) {
	d.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
	if sig != syscall.SIGSTOP {
		return
	}
	// Its threads stop one after the other, a moment later: what is asked of it until then may still be done.
	await(d.t, 10*time.Second, "every thread of the process stands still", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(file string) bool {
			stat, err := os.ReadFile(file)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	})
}

// Random nodes are killed under mixed load, never a second one before the cluster shows all replicas where they belong:
// every acknowledged job and completion stands, every occurrence was accepted once.
func TestDrillRandomKills(t *testing.T) {
	t.Parallel()
	length, seed := drillLength(t, 12*time.Second), drillSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	d := startDrill(t, 4, 8)
	kills := 0
	load := newCrashLoad(d.anywhere())
	load.runWhile(t, seed, func() {
		for end := time.Now().Add(length); time.Now().Before(end); kills++ {
			pause(t, time.Duration(500+rng.IntN(1500))*time.Millisecond)
			victim := d.nodes[rng.IntN(3)]
			led := slices.DeleteFunc(d.others(victim)[0].status().GetShards(), func(s *carillonv1.Shard) bool { return s.GetLeader() != d.name(victim) })
			victim.kill()
			pause(t, time.Duration(1500+rng.IntN(1000))*time.Millisecond)
			victim.start()
			d.awaitWhole(victim, 60*time.Second)
			d.gap(fmt.Sprintf("%s killed, which led %d of 4 shards", d.name(victim), len(led)), failoverLimit)
		}
	})
	load.prove(t)
	t.Logf("%d kills, %d jobs acknowledged, %d completions acknowledged", kills, len(load.acked), len(load.completed))
	if kills < 2 || len(load.acked) < 50 || len(load.completed) < 50 {
		t.Error("the drill did too little to mean anything")
	}
	d.end()
}
