package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// A job is deleted and its id created again, for the same instant: each incarnation's execution is its own. Triggers are
// executions of their own too, whatever the instant.
func TestI1EachExecutionIsItsOwn(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	due := soon(-time.Second)
	ids := map[string]bool{}
	run := func() {
		t.Helper()
		lease := s.claimOne("w", "default")
		if ids[lease.GetExecutionId()] {
			t.Errorf("execution %s was delivered again", lease.GetExecutionId())
		}
		ids[lease.GetExecutionId()] = true
		s.complete(succeeded(lease, "w", ""), succeededState)
	}
	for i := range 3 {
		s.create(&carillonv1.JobSpec{Id: "i1", Schedule: at(due), Payload: fmt.Append(nil, i)})
		run()
		s.delete("i1")
	}
	s.create(&carillonv1.JobSpec{Id: "i1", Schedule: at(due), Payload: []byte("last")})
	run()
	// Many triggers and occurrences within a few milliseconds.
	s.create(&carillonv1.JobSpec{Id: "beat", Queue: "beat", Schedule: every(time.Second, soon(0))})
	const triggers = 20
	for i := range triggers {
		call(t, s.jobs().TriggerJob, &carillonv1.TriggerJobRequest{Id: "beat", IdempotencyKey: fmt.Sprint("k", i)})
	}
	await(t, 10*time.Second, "occurrences beside the triggers", func() bool {
		return s.job("beat").GetRuns() >= 2
	})
	s.update("beat", &carillonv1.JobPatch{State: carillonv1.JobState_JOB_STATE_PAUSED.Enum()})
	count := map[carillonv1.ExecutionKind]int{}
	seen := map[string]bool{}
	for _, e := range s.history("", "beat").GetExecutions() {
		count[e.GetKind()]++
		seen[e.GetId()] = true
	}
	scheduled := count[carillonv1.ExecutionKind_EXECUTION_KIND_SCHEDULE]
	if runs := s.job("beat").GetRuns(); uint64(scheduled) != runs {
		t.Errorf("%d executions of the schedule, %d runs", scheduled, runs)
	}
	if n := count[carillonv1.ExecutionKind_EXECUTION_KIND_TRIGGER]; n != triggers || len(seen) != scheduled+triggers {
		t.Errorf("%d executions of triggers, %d ids in all; want %d and %d", n, len(seen), triggers, scheduled+triggers)
	}
	if h := s.history("", "i1").GetExecutions(); len(h) != 4 {
		t.Errorf("the history of the id has %d executions; want one for each incarnation: %v", len(h), h)
	}
}

// A job is deleted; the retry of its create gets the first answer, not a new job.
func TestI2RetriedCreateOfADeletedJob(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	req := &carillonv1.CreateJobRequest{IdempotencyKey: "k", Job: &carillonv1.JobSpec{Schedule: in(time.Hour)}}
	first := call(t, s.jobs().CreateJob, req)
	for _, restart := range []bool{false, true} {
		if restart {
			s.kill()
			s.start()
		} else {
			s.delete(first.GetId())
		}
		if again := call(t, s.jobs().CreateJob, req); !proto.Equal(again, first) {
			t.Errorf("the retry got %v, first was %v", again, first)
		}
		refused(t, connect.CodeNotFound, s.jobs().GetJob, &carillonv1.GetJobRequest{Id: first.GetId()})
	}
	if b := s.backlog(); b.GetJobs() != 0 || b.GetWaiting() != 0 {
		t.Errorf("%d jobs, %d waiting; want none", b.GetJobs(), b.GetWaiting())
	}
}

// An idempotency key stands for one operation: for another id it is another one, with another body it is a conflict that
// names the difference, and a retry gets the first answer although the version has moved on.
func TestI3KeysStandForOneOperation(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	for _, id := range []string{"a", "b"} {
		s.create(&carillonv1.JobSpec{Id: id, Schedule: every(time.Hour, soon(0))})
	}
	priority := func(id string, priority uint32) *carillonv1.UpdateJobRequest {
		return &carillonv1.UpdateJobRequest{
			Id: id, IdempotencyKey: "k", ExpectedVersion: 1, Job: &carillonv1.JobPatch{Priority: &priority},
		}
	}
	first := call(t, s.jobs().UpdateJob, priority("a", 7))
	if got := call(t, s.jobs().UpdateJob, priority("b", 7)).GetJob(); got.GetId() != "b" || got.GetVersion() != 2 {
		t.Errorf("the same key for another job answers %v", got)
	}
	s.update("a", &carillonv1.JobPatch{Queue: new("moved-on")})
	if again := call(t, s.jobs().UpdateJob, priority("a", 7)); !proto.Equal(again, first) {
		t.Errorf("the retry got %v, first was %v", again, first)
	}
	err := refused(t, connect.CodeAlreadyExists, s.jobs().UpdateJob, priority("a", 8))
	if got := detail[*carillonv1.IdempotencyConflict](t, err).GetFields(); !slices.Equal(got, []string{"priority"}) {
		t.Errorf("the conflict names %v; want priority", got)
	}
	stale := priority("a", 8)
	stale.IdempotencyKey = "new"
	err = refused(t, connect.CodeAborted, s.jobs().UpdateJob, stale)
	if got := detail[*carillonv1.VersionConflict](t, err).GetCurrentVersion(); got != 3 {
		t.Errorf("the current version is given as %d; want 3", got)
	}
	// Each of the other calls that have a key.
	trigger := &carillonv1.TriggerJobRequest{Id: "a", IdempotencyKey: "k"}
	if x, y := call(t, s.jobs().TriggerJob, trigger), call(t, s.jobs().TriggerJob, trigger); !proto.Equal(x, y) {
		t.Errorf("a retried trigger made %v after %v", y, x)
	}
	pauseJob := &carillonv1.PauseJobRequest{Id: "a", IdempotencyKey: "k", ExpectedVersion: 3}
	paused := call(t, s.jobs().PauseJob, pauseJob)
	call(t, s.jobs().ResumeJob, &carillonv1.ResumeJobRequest{Id: "a", IdempotencyKey: "k"})
	if again := call(t, s.jobs().PauseJob, pauseJob); !proto.Equal(again, paused) {
		t.Errorf("a retried pause got %v, first was %v", again, paused)
	}
	if got := s.job("a").GetState(); got != carillonv1.JobState_JOB_STATE_ACTIVE {
		t.Errorf("the retried pause was applied again: the job is %v", got)
	}
	remove := &carillonv1.DeleteJobRequest{Id: "a", IdempotencyKey: "k", ExpectedVersion: 5}
	if x, y := call(t, s.jobs().DeleteJob, remove), call(t, s.jobs().DeleteJob, remove); !proto.Equal(x, y) {
		t.Errorf("a retried delete got %v, first was %v", y, x)
	}
}

// A completion is repeated: the same answer, also after a restart and after the execution has moved on. Another outcome
// under the same token is a conflict, and recorded.
func TestI4RepeatedCompletion(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "i4", Schedule: in(0), Retry: &carillonv1.RetryPolicy{FirstDelay: durationpb.New(0)}})
	first := s.claimOne("w", "default")
	state := call(t, s.workers().CompleteExecution, failed(first, "w", "boom")).GetState()
	second := s.claimOne("w", "default")
	s.complete(succeeded(second, "w", "done"), succeededState)
	for _, restart := range []bool{false, true} {
		if restart {
			s.kill()
			s.start()
		}
		s.complete(failed(first, "w", "boom"), state)
		s.complete(succeeded(second, "w", "done"), succeededState)
		refused(t, connect.CodeAlreadyExists, s.workers().CompleteExecution, succeeded(second, "w", "something else"))
		refused(t, connect.CodeAlreadyExists, s.workers().CompleteExecution, failed(second, "w", "boom"))
		refused(t, connect.CodeAlreadyExists, s.workers().CompleteExecution, succeeded(first, "w", "done"))
	}
	e := s.execution(second.GetExecutionId())
	if e.GetState() != succeededState || string(e.GetResult()) != "done" || e.GetAttemptsTotal() != 2 {
		t.Errorf("it is %v", e)
	}
	recorded := map[uint64]bool{}
	for _, late := range s.history("", "i4").GetLateAttempts() {
		recorded[late.GetFencingNumber()] = true
	}
	if !recorded[first.GetFencingNumber()] || !recorded[second.GetFencingNumber()] {
		t.Errorf("late attempts are recorded for %v; want %d and %d", recorded, first.GetFencingNumber(), second.GetFencingNumber())
	}
}
