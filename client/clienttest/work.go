package clienttest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Short names of states.
const (
	waiting   = carillonv1.ExecutionState_EXECUTION_STATE_WAITING
	ready     = carillonv1.ExecutionState_EXECUTION_STATE_READY
	leased    = carillonv1.ExecutionState_EXECUTION_STATE_LEASED
	retrying  = carillonv1.ExecutionState_EXECUTION_STATE_RETRYING
	succeeded = carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED
	dead      = carillonv1.ExecutionState_EXECUTION_STATE_DEAD
	cancelled = carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED
)

type workerService struct{ *Server }

func (s workerService) Claim(
	ctx context.Context, req *connect.Request[carillonv1.ClaimRequest],
) (*connect.Response[carillonv1.ClaimResponse], error) {
	until := time.Now().Add(req.Msg.GetWait().AsDuration())
	for {
		leases, next, changed := s.grant(req.Msg)
		now := time.Now()
		if len(leases) > 0 || !now.Before(until) {
			res := &carillonv1.ClaimResponse{Leases: leases, ClaimId: req.Msg.GetClaimId()}
			return connect.NewResponse(res), nil
		}
		if next.IsZero() || next.After(until) {
			next = until
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// grant leases what is ready, or answers a repeated claim; next is when something becomes ready.
func (s *Server) grant(
	req *carillonv1.ClaimRequest,
) (leases []*carillonv1.Lease, next time.Time, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.executions {
		if e.GetState() == leased && req.GetClaimId() != "" && e.claimID == req.GetClaimId() {
			leases = append(leases, s.leaseOf(e))
		}
	}
	most := int(cmp.Or(req.GetMaxExecutions(), 1))
	if len(leases) > 0 {
		return leases[:min(len(leases), most)], next, s.changed
	}
	now := time.Now()
	// Recurring jobs add to the list while it is walked.
	for i := 0; i < len(s.executions) && len(leases) < most; i++ {
		e := s.executions[i]
		if !s.claimable(e, req.GetQueues()) {
			continue
		}
		if e.dueAt.After(now) {
			if next.IsZero() || e.dueAt.Before(next) {
				next = e.dueAt
			}
			continue
		}
		s.lease(e, req, now)
		leases = append(leases, s.leaseOf(e))
	}
	return leases, next, s.changed
}

func (s *Server) claimable(e *execution, queues []string) bool {
	switch e.GetState() {
	case waiting, ready, retrying:
	default:
		return false
	}
	if e.job.GetState() != carillonv1.JobState_JOB_STATE_ACTIVE &&
		e.job.GetState() != carillonv1.JobState_JOB_STATE_EXHAUSTED {
		return false
	}
	for _, q := range queues {
		if q == e.GetQueue() {
			return true
		}
	}
	return false
}

func (s *Server) lease(e *execution, req *carillonv1.ClaimRequest, now time.Time) {
	s.fencing++
	e.fencing, e.claimID = s.fencing, req.GetClaimId()
	e.lease = cmp.Or(req.GetLease().AsDuration(), e.job.GetLease().AsDuration(), 30*time.Second)
	e.State, e.Worker, e.NextTime = leased, req.GetWorker(), nil
	e.Attempt++
	e.AttemptsTotal++
	e.Deadline = timestamppb.New(now.Add(e.lease))
	late := durationpb.New(now.Sub(e.GetNominalTime().AsTime()))
	if e.StartTime == nil {
		e.StartTime, e.Lateness = timestamppb.New(now), late
	}
	e.Attempts = append(e.Attempts, &carillonv1.Attempt{
		Number: e.GetAttempt(), FencingNumber: e.fencing, Worker: req.GetWorker(), StartTime: timestamppb.New(now),
		Lateness: late,
	})
	if e.job.pending == e {
		e.job.Runs++
		if next, ok := e.job.next(e.dueAt); ok {
			s.expect(e.job, next)
			e.job.showTimes(e.dueAt)
		} else {
			e.job.pending, e.job.NextTime = nil, nil
			e.job.State = carillonv1.JobState_JOB_STATE_EXHAUSTED
		}
	}
}

func (s *Server) leaseOf(e *execution) *carillonv1.Lease {
	return &carillonv1.Lease{
		ExecutionId: e.GetId(), LeaseToken: fmt.Sprintf("token-%d", e.fencing), FencingNumber: e.fencing,
		JobId: e.GetJobId(), Tenant: e.GetTenant(), Queue: e.GetQueue(), Attempt: e.GetAttempt(),
		MaxAttempts: e.GetMaxAttempts(), NominalTime: e.GetNominalTime(), Deadline: e.GetDeadline(),
		LeaseLength: durationpb.New(e.lease), Payload: e.job.GetPayload(), ContentType: e.job.GetContentType(),
		PayloadRef: e.job.GetPayloadRef(), Headers: e.job.GetHeaders(), Priority: e.GetPriority(), Kind: e.GetKind(),
		JobVersion: e.GetJobVersion(), Progress: e.GetProgress(),
	}
}

// held is the execution that a token holds, or nil. The lock is held.
func (s *Server) held(id, token string) *execution {
	for _, e := range s.executions {
		if e.GetId() == id && e.GetState() == leased && token == fmt.Sprintf("token-%d", e.fencing) {
			return e
		}
	}
	return nil
}

// Take ends the lease of an execution, as if it had run out: its worker has lost it, and it is ready again.
func (s *Server) Take(executionID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.executions {
		if e.GetId() == executionID && e.GetState() == leased {
			s.end(e, carillonv1.Outcome_OUTCOME_LOST, "")
			e.State, e.dueAt = ready, time.Now()
			s.wake()
		}
	}
}

// Execution is an execution as it stands, or nil.
func (s *Server) Execution(id string) *carillonv1.Execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.executions {
		if e.GetId() == id {
			return proto.CloneOf(e.Execution)
		}
	}
	return nil
}

func (s workerService) Heartbeat(
	_ context.Context, req *connect.Request[carillonv1.HeartbeatRequest],
) (*connect.Response[carillonv1.HeartbeatResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &carillonv1.HeartbeatResponse{}
	for _, item := range req.Msg.GetItems() {
		result := &carillonv1.HeartbeatResult{
			ExecutionId: item.GetExecutionId(), Status: carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST,
		}
		if e := s.held(item.GetExecutionId(), item.GetLeaseToken()); e != nil {
			e.Deadline = timestamppb.New(time.Now().Add(e.lease))
			if item.Progress != nil {
				e.Progress = item.GetProgress()
			}
			result.Status, result.Deadline = carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK, e.GetDeadline()
			if e.GetCancelRequested() {
				result.Status = carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED
			}
		}
		res.Results = append(res.Results, result)
	}
	return connect.NewResponse(res), nil
}

func (s workerService) Complete(
	_ context.Context, req *connect.Request[carillonv1.CompleteRequest],
) (*connect.Response[carillonv1.CompleteResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &carillonv1.CompleteResponse{}
	for _, item := range req.Msg.GetItems() {
		result := &carillonv1.CompleteResult{ExecutionId: item.GetExecutionId()}
		state, err := s.complete(item)
		if err != nil {
			result.Result = &carillonv1.CompleteResult_Error{Error: itemError(err)}
		} else {
			result.Result = &carillonv1.CompleteResult_State{State: state}
		}
		res.Results = append(res.Results, result)
	}
	s.wake()
	return connect.NewResponse(res), nil
}

// complete ends an attempt. The lock is held.
func (s *Server) complete(item *carillonv1.CompleteItem) (carillonv1.ExecutionState, error) {
	e := s.held(item.GetExecutionId(), item.GetLeaseToken())
	if e == nil {
		return 0, Fail(connect.CodeFailedPrecondition, "lease token is stale")
	}
	now := time.Now()
	switch o := item.GetOutcome().(type) {
	case *carillonv1.CompleteItem_Succeeded:
		if len(o.Succeeded.GetResult()) > 256<<10 {
			return 0, invalid("result", "must be at most 262144 bytes")
		}
		s.end(e, carillonv1.Outcome_OUTCOME_SUCCEEDED, "")
		e.State, e.Result, e.FinishTime = succeeded, o.Succeeded.GetResult(), timestamppb.New(now)
	case *carillonv1.CompleteItem_Failed:
		outcome := carillonv1.Outcome_OUTCOME_FAILED
		if o.Failed.GetNonRetryable() {
			outcome = carillonv1.Outcome_OUTCOME_FAILED_FINAL
		}
		s.end(e, outcome, o.Failed.GetError())
		s.failed(e, o.Failed, now)
	case *carillonv1.CompleteItem_Snoozed:
		s.end(e, carillonv1.Outcome_OUTCOME_SNOOZED, "")
		e.State, e.dueAt, e.NextTime = retrying, o.Snoozed.GetUntil().AsTime(), o.Snoozed.GetUntil()
	case *carillonv1.CompleteItem_Released:
		s.end(e, carillonv1.Outcome_OUTCOME_RELEASED, "")
		e.Attempt--
		e.State, e.dueAt = ready, now
	}
	return e.GetState(), nil
}

func (s *Server) failed(e *execution, f *carillonv1.Failed, now time.Time) {
	e.Error = f.GetError()
	if e.GetCancelRequested() || f.GetNonRetryable() || e.GetAttempt() >= e.GetMaxAttempts() {
		e.State, e.FinishTime = dead, timestamppb.New(now)
		if e.GetCancelRequested() {
			e.State = cancelled
		}
		return
	}
	delay := cmp.Or(f.GetRetryAfter().AsDuration(), e.job.GetRetry().GetFirstDelay().AsDuration(), time.Second)
	e.State, e.dueAt, e.NextTime = retrying, now.Add(delay), timestamppb.New(now.Add(delay))
}

func (s *Server) end(e *execution, o carillonv1.Outcome, text string) {
	last := e.Attempts[len(e.Attempts)-1]
	last.EndTime, last.Outcome, last.Error = timestamppb.Now(), o, text
	e.Worker, e.Deadline = "", nil
}

func (s workerService) HeartbeatExecution(
	ctx context.Context, req *connect.Request[carillonv1.HeartbeatExecutionRequest],
) (*connect.Response[carillonv1.HeartbeatExecutionResponse], error) {
	res, err := s.Heartbeat(ctx, connect.NewRequest(&carillonv1.HeartbeatRequest{Items: []*carillonv1.HeartbeatItem{{
		ExecutionId: req.Msg.GetId(), LeaseToken: req.Msg.GetLeaseToken(), Progress: req.Msg.Progress,
	}}}))
	if err != nil {
		return nil, err
	}
	result := res.Msg.GetResults()[0]
	if result.GetStatus() == carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST {
		return nil, Fail(connect.CodeFailedPrecondition, "lease token is stale")
	}
	return connect.NewResponse(&carillonv1.HeartbeatExecutionResponse{
		Status: result.GetStatus(), Deadline: result.GetDeadline(),
	}), nil
}

func (s workerService) CompleteExecution(
	_ context.Context, req *connect.Request[carillonv1.CompleteExecutionRequest],
) (*connect.Response[carillonv1.CompleteExecutionResponse], error) {
	item := &carillonv1.CompleteItem{ExecutionId: req.Msg.GetId(), LeaseToken: req.Msg.GetLeaseToken()}
	switch o := req.Msg.GetOutcome().(type) {
	case *carillonv1.CompleteExecutionRequest_Succeeded:
		item.Outcome = &carillonv1.CompleteItem_Succeeded{Succeeded: o.Succeeded}
	case *carillonv1.CompleteExecutionRequest_Failed:
		item.Outcome = &carillonv1.CompleteItem_Failed{Failed: o.Failed}
	case *carillonv1.CompleteExecutionRequest_Snoozed:
		item.Outcome = &carillonv1.CompleteItem_Snoozed{Snoozed: o.Snoozed}
	case *carillonv1.CompleteExecutionRequest_Released:
		item.Outcome = &carillonv1.CompleteItem_Released{Released: o.Released}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state, err := s.complete(item)
	if err != nil {
		return nil, err
	}
	s.wake()
	return connect.NewResponse(&carillonv1.CompleteExecutionResponse{State: state}), nil
}

type executionService struct{ *Server }

func (s executionService) GetExecution(
	_ context.Context, req *connect.Request[carillonv1.GetExecutionRequest],
) (*connect.Response[carillonv1.GetExecutionResponse], error) {
	e := s.Execution(req.Msg.GetId())
	if e == nil {
		return nil, Fail(connect.CodeNotFound, fmt.Sprintf("execution %q not found", req.Msg.GetId()))
	}
	return connect.NewResponse(&carillonv1.GetExecutionResponse{Execution: e}), nil
}

func (s executionService) ListExecutions(
	_ context.Context, req *connect.Request[carillonv1.ListExecutionsRequest],
) (*connect.Response[carillonv1.ListExecutionsResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := req.Msg
	var all []*carillonv1.Execution
	for _, e := range s.executions {
		if e.GetTenant() == orDefault(r.GetTenant()) && (r.GetState() == 0 || r.GetState() == e.GetState()) &&
			(r.GetJobId() == "" || r.GetJobId() == e.GetJobId()) && (r.GetQueue() == "" || r.GetQueue() == e.GetQueue()) &&
			(r.GetKind() == 0 || r.GetKind() == e.GetKind()) {
			listed := proto.CloneOf(e.Execution)
			listed.Result = nil
			all = append(all, listed)
		}
	}
	res := &carillonv1.ListExecutionsResponse{}
	res.Executions, res.NextPageToken = page(all, r.GetPageSize(), r.GetPageToken())
	return connect.NewResponse(res), nil
}

func (s executionService) CancelExecution(
	_ context.Context, req *connect.Request[carillonv1.CancelExecutionRequest],
) (*connect.Response[carillonv1.CancelExecutionResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.executions {
		if e.GetId() != req.Msg.GetId() {
			continue
		}
		switch e.GetState() {
		case leased:
			e.CancelRequested = true
		case waiting, ready, retrying:
			e.State, e.Error, e.FinishTime = cancelled, req.Msg.GetReason(), timestamppb.Now()
		default:
			return nil, Fail(connect.CodeFailedPrecondition, "execution has ended")
		}
		return connect.NewResponse(&carillonv1.CancelExecutionResponse{Execution: proto.CloneOf(e.Execution)}), nil
	}
	return nil, Fail(connect.CodeNotFound, fmt.Sprintf("execution %q not found", req.Msg.GetId()))
}

// eachDead calls f for the dead letters that are named or match, and sums them up as a task.
func (s *Server) eachDead(
	id string, ids []string, filter *carillonv1.DeadLetterFilter, f func(*execution),
) *carillonv1.Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &carillonv1.Task{Id: id, Finished: true, CreateTime: timestamppb.Now(), UpdateTime: timestamppb.Now()}
	for _, e := range s.executions {
		if e.GetState() != dead {
			continue
		}
		named := false
		for _, id := range ids {
			named = named || id == e.GetId()
		}
		t.SeenCount++
		if named || filter != nil && orDefault(filter.GetTenant()) == e.GetTenant() &&
			(filter.GetQueue() == "" || filter.GetQueue() == e.GetQueue()) &&
			(filter.GetJobId() == "" || filter.GetJobId() == e.GetJobId()) &&
			strings.Contains(e.GetError(), filter.GetErrorContains()) {
			f(e)
			t.DoneCount++
		}
	}
	s.wake()
	return t
}

func (s executionService) RequeueDeadLetters(
	_ context.Context, req *connect.Request[carillonv1.RequeueDeadLettersRequest],
) (*connect.Response[carillonv1.RequeueDeadLettersResponse], error) {
	r := req.Msg
	t := s.eachDead(r.GetRequestId(), r.GetExecutionIds(), r.GetFilter(), func(e *execution) {
		e.State, e.dueAt, e.FinishTime = ready, time.Now(), nil
		e.MaxAttempts += e.job.GetRetry().GetMaxAttempts()
	})
	return connect.NewResponse(&carillonv1.RequeueDeadLettersResponse{Task: t}), nil
}

func (s executionService) PurgeDeadLetters(
	_ context.Context, req *connect.Request[carillonv1.PurgeDeadLettersRequest],
) (*connect.Response[carillonv1.PurgeDeadLettersResponse], error) {
	r := req.Msg
	gone := make(map[*execution]bool)
	t := s.eachDead(r.GetRequestId(), r.GetExecutionIds(), r.GetFilter(), func(e *execution) { gone[e] = true })
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.executions[:0:0]
	for _, e := range s.executions {
		if !gone[e] {
			kept = append(kept, e)
		}
	}
	s.executions = kept
	return connect.NewResponse(&carillonv1.PurgeDeadLettersResponse{Task: t}), nil
}
