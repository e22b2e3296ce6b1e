package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// slack is what a busy machine may add to a bound that an idle one keeps by far.
const slack = 1500 * time.Millisecond

// A worker is killed between claim and completion: it just never says anything again.
func TestW1DeadWorkersExecutionIsBackWithinOneLease(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w1", Schedule: in(0), Lease: durationpb.New(2 * time.Second)})
	first := s.claimOne("killed", "default")
	second := s.claimOne("other", "default")
	if second.GetExecutionId() != first.GetExecutionId() || second.GetAttempt() != 2 {
		t.Fatalf("the second lease is %v; want attempt 2 of %s", second, first.GetExecutionId())
	}
	if second.GetFencingNumber() <= first.GetFencingNumber() {
		t.Errorf("fencing number %d after %d", second.GetFencingNumber(), first.GetFencingNumber())
	}
	s.complete(succeeded(second, "other", "done"), succeededState)

	e := s.onlyExecution("w1")
	lost := e.GetAttempts()[0]
	if lost.GetOutcome() != carillonv1.Outcome_OUTCOME_LOST || lost.GetWorker() != "killed" {
		t.Errorf("the first attempt is %v; want lost, by killed", lost)
	}
	away := e.GetAttempts()[1].GetStartTime().AsTime().Sub(lost.GetStartTime().AsTime())
	if away < 2*time.Second || away > 2*time.Second+slack {
		t.Errorf("it was available again after %v; its lease is 2 s", away)
	}
}

// A worker is frozen beyond its lease, a second one claims, the first thaws and completes.
func TestW2ThawedWorkerIsRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w2", Schedule: in(0), Lease: durationpb.New(time.Second)})
	frozen := s.claimOne("frozen", "default")
	second := call(t, s.workers().Claim, &carillonv1.ClaimRequest{
		Worker: "second", Queues: []string{"default"}, Wait: durationpb.New(20 * time.Second), Lease: durationpb.New(time.Minute),
	}).GetLeases()[0]

	refused(t, connect.CodeFailedPrecondition, s.workers().CompleteExecution, succeeded(frozen, "frozen", "theirs"))
	if got := s.heartbeat(frozen, "frozen").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST {
		t.Errorf("the thawed worker's heartbeat says %v; want LOST", got)
	}
	s.complete(succeeded(second, "second", "mine"), succeededState)
	refused(t, connect.CodeFailedPrecondition, s.workers().CompleteExecution, succeeded(frozen, "frozen", "theirs"))

	if e := s.execution(second.GetExecutionId()); string(e.GetResult()) != "mine" || e.GetState() != succeededState {
		t.Errorf("the execution is %v with result %q; want the second worker's", e.GetState(), e.GetResult())
	}
	late := s.history("", "w2").GetLateAttempts()
	if len(late) != 1 || late[0].GetWorker() != "frozen" || late[0].GetFencingNumber() != frozen.GetFencingNumber() {
		t.Errorf("late attempts are %v; want one, by frozen", late)
	}
}

// A job with one attempt is given back by its worker: interrupted, not counted, back at once.
func TestW3ReleasedAttemptIsNotCounted(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w3", Schedule: in(0), Retry: &carillonv1.RetryPolicy{MaxAttempts: 1}})
	for range 3 {
		lease := s.claimOne("leaving", "default")
		if lease.GetAttempt() != 1 {
			t.Fatalf("attempt %d; released ones do not count", lease.GetAttempt())
		}
		s.complete(released(lease, "leaving"), readyState)
	}
	s.complete(succeeded(s.claimOne("staying", "default"), "staying", ""), succeededState)
	e := s.onlyExecution("w3")
	if e.GetAttempt() != 1 || e.GetAttemptsTotal() != 4 {
		t.Errorf("attempt %d, %d deliveries; want 1 and 4", e.GetAttempt(), e.GetAttemptsTotal())
	}
	if got := e.GetAttempts()[0].GetOutcome(); got != carillonv1.Outcome_OUTCOME_RELEASED {
		t.Errorf("the first delivery ended as %v; want released", got)
	}
}

// The library's worker is told to stop in the middle of a job: its handler is interrupted after the grace and the execution
// is given back; with time enough it goes on under its lease, which heartbeats keep alive to the end.
func TestW3StoppedWorker(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	c, err := client.New(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	work := func(grace time.Duration, handler client.Handler) {
		t.Helper()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		config := client.WorkerConfig{Queues: []string{"default"}, Name: "stopped", Concurrency: 1, Grace: grace}
		err := client.NewWorker(c, config, func(ctx context.Context, e *client.Execution) ([]byte, error) {
			stop()
			return handler(ctx, e)
		}).Run(ctx)
		if err != nil {
			t.Fatal(err)
		}
	}
	s.create(&carillonv1.JobSpec{
		Id: "w3", Schedule: in(0), Lease: durationpb.New(2 * time.Second), Retry: &carillonv1.RetryPolicy{MaxAttempts: 1},
	})
	work(-1, func(ctx context.Context, _ *client.Execution) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if e := s.onlyExecution("w3"); e.GetState() != readyState || e.GetAttempt() != 0 {
		t.Fatalf("after the stop it is %v at attempt %d; want ready, nothing counted", e.GetState(), e.GetAttempt())
	}
	work(20*time.Second, func(ctx context.Context, _ *client.Execution) ([]byte, error) {
		pauseCtx(ctx, 5*time.Second) // the work: longer than two leases
		return []byte("finished"), ctx.Err()
	})
	e := s.execution(s.onlyExecution("w3").GetId())
	if e.GetState() != succeededState || string(e.GetResult()) != "finished" || e.GetAttempt() != 1 {
		t.Errorf("it ended as %v", e)
	}
}

// A running execution is cancelled.
func TestW4CancelledIsTerminal(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w4", Schedule: in(0)})
	lease := s.claimOne("running", "default")
	cancel := &carillonv1.CancelExecutionRequest{Id: lease.GetExecutionId(), Reason: "no longer wanted"}
	for range 2 { // repeating it changes nothing
		e := call(t, s.executions().CancelExecution, cancel).GetExecution()
		if e.GetState() != leasedState || !e.GetCancelRequested() {
			t.Fatalf("the answer is %v", e)
		}
	}
	if got := s.heartbeat(lease, "running").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED {
		t.Errorf("the heartbeat says %v; want CANCEL_REQUESTED", got)
	}
	refused(t, connect.CodeFailedPrecondition, s.workers().CompleteExecution, succeeded(lease, "running", "too late"))

	e := s.execution(lease.GetExecutionId())
	if e.GetState() != cancelledState || len(e.GetResult()) != 0 {
		t.Errorf("it is %v with result %q; want cancelled without one", e.GetState(), e.GetResult())
	}
	if got := e.GetAttempts()[0].GetOutcome(); got != carillonv1.Outcome_OUTCOME_LATE {
		t.Errorf("the success is recorded as %v; want late", got)
	}
	if got := s.heartbeat(lease, "running").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST {
		t.Errorf("the next heartbeat says %v; want LOST", got)
	}
	s.nothing("default")
}

// The answer to a create is lost with the server; the retry goes to the next one.
func TestW5RetriedCreateGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	derived := &carillonv1.CreateJobRequest{
		IdempotencyKey: "order-7", Job: &carillonv1.JobSpec{Schedule: in(time.Hour), Payload: []byte("p")},
	}
	given := &carillonv1.CreateJobRequest{
		IdempotencyKey: "order-8", Job: &carillonv1.JobSpec{Id: "given", Schedule: in(time.Hour)},
	}
	answers := map[*carillonv1.CreateJobRequest]*carillonv1.CreateJobResponse{}
	for _, req := range []*carillonv1.CreateJobRequest{derived, given} {
		answers[req] = call(t, s.jobs().CreateJob, req)
	}
	s.kill()
	s.start()
	for req, first := range answers {
		if again := call(t, s.jobs().CreateJob, req); !proto.Equal(again, first) {
			t.Errorf("the retry got %v, first was %v", again, first)
		}
		other := proto.Clone(req).(*carillonv1.CreateJobRequest)
		other.Job.Payload = []byte("another body")
		conflict := detail[*carillonv1.IdempotencyConflict](t, refused(t, connect.CodeAlreadyExists, s.jobs().CreateJob, other))
		if !slices.Equal(conflict.GetFields(), []string{"payload"}) {
			t.Errorf("the conflict names %v; want payload", conflict.GetFields())
		}
	}
	if n := s.backlog().GetJobs(); n != 2 {
		t.Errorf("%d jobs; want 2", n)
	}
}

// The answer to a Claim is lost; the same Claim again, also to the next server, gets the same leases.
func TestW11RetriedClaimGetsTheSameLeases(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.createMany(20, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: fmt.Sprint("w11-", i), Schedule: in(0)}
	})
	await(t, 10*time.Second, "20 executions ready", func() bool { return s.backlog().GetReady() == 20 })
	req := &carillonv1.ClaimRequest{Worker: "w", ClaimId: "c1", Queues: []string{"default"}, MaxExecutions: 10}
	tokens := func() []string {
		t.Helper()
		var list []string
		for _, l := range call(t, s.workers().Claim, req).GetLeases() {
			list = append(list, l.GetExecutionId()+" "+l.GetLeaseToken())
		}
		slices.Sort(list)
		return list
	}
	first := tokens()
	if len(first) != 10 {
		t.Fatalf("claimed %d; want 10", len(first))
	}
	if again := tokens(); !slices.Equal(again, first) {
		t.Errorf("the retry got\n%v\nfirst were\n%v", again, first)
	}
	s.kill()
	s.start()
	if again := tokens(); !slices.Equal(again, first) {
		t.Errorf("after the crash the retry got\n%v\nfirst were\n%v", again, first)
	}
	if b := s.backlog(); b.GetLeased() != 10 || b.GetReady() != 10 {
		t.Errorf("%d leased, %d ready; want 10 and 10", b.GetLeased(), b.GetReady())
	}
}

// The server dies while a worker holds a lease; the token given before is good.
func TestW12TokenSurvivesTheServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w12", Schedule: in(0)})
	lease := s.claimOne("w", "default")
	s.kill()
	s.start()
	if got := s.heartbeat(lease, "w").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK {
		t.Errorf("the heartbeat says %v; want OK", got)
	}
	s.complete(succeeded(lease, "w", "done"), succeededState)
	if e := s.onlyExecution("w12"); e.GetAttemptsTotal() != 1 {
		t.Errorf("%d attempts; want 1", e.GetAttemptsTotal())
	}
}

// All servers are down for longer than the lease while the worker goes on: the outage ends no lease.
func TestW13OutageEndsNoLease(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	const length = 3 * time.Second
	s.create(&carillonv1.JobSpec{Id: "kept", Queue: "kept", Schedule: in(0), Lease: durationpb.New(length)})
	s.create(&carillonv1.JobSpec{Id: "gone", Queue: "gone", Schedule: in(0), Lease: durationpb.New(length)})
	kept, gone := s.claimOne("w", "kept"), s.claimOne("w", "gone")
	s.kill()
	pause(t, 5*time.Second) // the outage
	s.start()
	s.nothing("kept")
	s.complete(succeeded(kept, "w", "done"), succeededState)
	if e := s.onlyExecution("kept"); e.GetAttemptsTotal() != 1 {
		t.Errorf("%d attempts; want 1", e.GetAttemptsTotal())
	}
	// A worker that died meanwhile has one lease from the restart on, not for ever.
	if again := s.claimOne("other", "gone"); again.GetExecutionId() != gone.GetExecutionId() || again.GetAttempt() != 2 {
		t.Errorf("the second delivery is %v", again)
	}
	a := s.onlyExecution("gone").GetAttempts()
	if held := a[0].GetEndTime().AsTime().Sub(gone.GetDeadline().AsTime()); held < 5*time.Second {
		t.Errorf("it was given up %v after its deadline, in spite of an outage of 5 s", held)
	}
}
