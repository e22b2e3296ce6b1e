package rpc

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// W4: cancelling is terminal; a holder is told by its next heartbeat.
func TestW4Cancel(t *testing.T) {
	s := newScene(t, 2)
	s.create(&carillonv1.JobSpec{Id: "later", Schedule: in(time.Hour)})
	waiting := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{JobId: "later"})).Executions[0]
	for range 2 {
		res, err := s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: waiting.Id, Reason: "not needed"})
		if err != nil || res.Execution.State != carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED {
			t.Errorf("cancelled: %v, %v", res, err)
		}
	}
	lease := s.claimOne(&carillonv1.JobSpec{Id: "now"})
	res := must(s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: lease.ExecutionId}))
	if !res.Execution.CancelRequested || res.Execution.State != carillonv1.ExecutionState_EXECUTION_STATE_LEASED {
		t.Errorf("asked to stop: %v", res.Execution)
	}
	beat := must(s.heartbeatExecution(t.Context(), &carillonv1.HeartbeatExecutionRequest{Id: lease.ExecutionId, LeaseToken: lease.LeaseToken}))
	if beat.Status != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED {
		t.Errorf("told %v", beat.Status)
	}
	_, err := s.finish(lease, &carillonv1.Succeeded{})
	wantCode(t, err, connect.CodeFailedPrecondition)
	if e := s.execution(lease.ExecutionId); e.State != carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED {
		t.Errorf("ended as %v", e.State)
	}
	_, err = s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: someExecution})
	wantCode(t, err, connect.CodeNotFound)
	done := s.claimOne(&carillonv1.JobSpec{Id: "done"})
	must(s.finish(done, &carillonv1.Succeeded{}))
	_, err = s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: done.ExecutionId})
	wantCode(t, err, connect.CodeFailedPrecondition)
}

// What the leader found may move before the command is applied: the call looks again, a few times.
func TestMovedIsTriedAgain(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: in(time.Hour)})
	id := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{JobId: "j"})).Executions[0].Id
	tries := 0
	s.b.fail = func(_ uint32, cmd *storagev1.Command) error {
		if tries++; tries < maxTries {
			cmd.CancelExecution.Hint = nil
		}
		return nil
	}
	if _, err := s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: id}); err != nil || tries != maxTries {
		t.Errorf("after %d tries: %v", tries, err)
	}
	s.b.fail = func(uint32, *storagev1.Command) error {
		return &Refused{&fsm.Refusal{Code: fsm.Moved, Message: "moved"}}
	}
	_, err := s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: id})
	wantCode(t, err, connect.CodeUnavailable)
}

// Dead letters are requeued and purged by id at once, by filter as a task that can be asked for again.
func TestDeadLetters(t *testing.T) {
	s := newScene(t, 4)
	kill := func(id, text string) string {
		lease := s.claimOne(&carillonv1.JobSpec{Id: id})
		must(s.finish(lease, &carillonv1.Failed{Error: text, NonRetryable: true}))
		return lease.ExecutionId
	}
	a, b, c := kill("a", "disk full"), kill("b", "disk full"), kill("c", "other")
	byID := must(s.requeueDeadLetters(t.Context(), &carillonv1.RequeueDeadLettersRequest{ExecutionIds: []string{a, someExecution}}))
	if byID.Task.DoneCount != 1 || byID.Task.SeenCount != 2 || !byID.Task.Finished {
		t.Errorf("by id: %v", byID)
	}
	if e := s.execution(a); e.State != carillonv1.ExecutionState_EXECUTION_STATE_READY {
		t.Errorf("requeued into %v", e.State)
	}
	req := &carillonv1.PurgeDeadLettersRequest{RequestId: "p", Filter: &carillonv1.DeadLetterFilter{ErrorContains: "full"}}
	first := must(s.purgeDeadLetters(t.Context(), req))
	s.b.pass(1000)
	if again := must(s.purgeDeadLetters(t.Context(), req)); !proto.Equal(first, again) || first.Task.DoneCount != 1 || first.Task.Id != "p" {
		t.Errorf("first %v, then %v", first, again)
	}
	_, err := s.getExecution(t.Context(), &carillonv1.GetExecutionRequest{Id: b})
	wantCode(t, err, connect.CodeNotFound)
	if e := s.execution(c); e.State != carillonv1.ExecutionState_EXECUTION_STATE_DEAD {
		t.Errorf("another dead letter is %v", e.State)
	}
	// The same request id for another operation is another task.
	if res := must(s.requeueDeadLetters(t.Context(), &carillonv1.RequeueDeadLettersRequest{RequestId: "p", Filter: &carillonv1.DeadLetterFilter{}})); res.Task.DoneCount != 1 {
		t.Errorf("requeued by filter: %v", res)
	}
}
