package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

// callTimeout bounds one call, its long poll included.
const callTimeout = 30 * time.Second

type method[Req, Res any] func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// call makes a call that must succeed.
func call[Req, Res any](t *testing.T, m method[Req, Res], req *Req) *Res {
	t.Helper()
	res, err := try(m, req)
	if err != nil {
		t.Fatalf("%T: %v", req, err)
	}
	return res
}

// try makes a call. It may be used on any goroutine.
func try[Req, Res any](m method[Req, Res], req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	res, err := m(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// refused makes a call that must fail with code.
func refused[Req, Res any](t *testing.T, code connect.Code, m method[Req, Res], req *Req) error {
	t.Helper()
	res, err := try(m, req)
	if err == nil {
		t.Fatalf("%T was accepted: %v; want %v", req, res, code)
	}
	if connect.CodeOf(err) != code {
		t.Fatalf("%T: %v; want %v", req, err, code)
	}
	return err
}

// detail is the detail of type T of an error; it must have one.
func detail[T proto.Message](t *testing.T, err error) T {
	t.Helper()
	var failed *connect.Error
	if failed, _ = err.(*connect.Error); failed != nil {
		for _, d := range failed.Details() {
			if value, valueErr := d.Value(); valueErr == nil {
				if found, ok := value.(T); ok {
					return found
				}
			}
		}
	}
	var none T
	t.Fatalf("error %v has no detail %T", err, none)
	return none
}

// await polls until done, for at most limit.
func await(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	end := time.Now().Add(limit)
	for !done() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		pause(t, 20*time.Millisecond)
	}
}

// pauseUntil lets the scenario stand still until an instant.
func pauseUntil(t *testing.T, at time.Time) {
	t.Helper()
	pause(t, time.Until(at))
}

func (s *server) queues() carillonv1connect.QueueServiceClient {
	return carillonv1connect.NewQueueServiceClient(s.http, s.url(""))
}

func (s *server) tenants() carillonv1connect.TenantServiceClient {
	return carillonv1connect.NewTenantServiceClient(s.http, s.url(""))
}

func (s *server) cluster() carillonv1connect.ClusterServiceClient {
	return carillonv1connect.NewClusterServiceClient(s.http, s.url(""))
}

func at(when time.Time) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_At{At: timestamppb.New(when)}}
}

func in(d time.Duration) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Delay{Delay: durationpb.New(d)}}
}

// every is a grid through anchor.
func every(interval time.Duration, anchor time.Time) *carillonv1.Schedule {
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{
		Interval: durationpb.New(interval), Anchor: timestamppb.New(anchor),
	}}}
}

// soon is an instant in d, on the millisecond as the server keeps it.
func soon(d time.Duration) time.Time { return time.Now().Add(d).Truncate(time.Millisecond).UTC() }

// create accepts a job.
func (s *server) create(spec *carillonv1.JobSpec) *carillonv1.CreateJobResponse {
	s.t.Helper()
	return call(s.t, s.jobs().CreateJob, &carillonv1.CreateJobRequest{Job: spec})
}

// createMany accepts n jobs in batches: make gives the spec of each.
func (s *server) createMany(n int, make func(i int) *carillonv1.JobSpec) {
	s.t.Helper()
	for first := 0; first < n; first += 5000 {
		req := &carillonv1.BatchCreateJobsRequest{RequestId: fmt.Sprint("batch-", first)}
		for i := first; i < min(n, first+5000); i++ {
			req.Items = append(req.Items, &carillonv1.CreateJobRequest{Job: make(i)})
		}
		for i, r := range call(s.t, s.jobs().BatchCreateJobs, req).GetResults() {
			if r.GetError() != nil {
				s.t.Fatalf("create job %d: %v", first+i, r.GetError())
			}
		}
	}
}

func (s *server) job(id string) *carillonv1.Job {
	s.t.Helper()
	return call(s.t, s.jobs().GetJob, &carillonv1.GetJobRequest{Id: id}).GetJob()
}

// update changes the fields present in patch.
func (s *server) update(id string, patch *carillonv1.JobPatch) *carillonv1.Job {
	s.t.Helper()
	return call(s.t, s.jobs().UpdateJob, &carillonv1.UpdateJobRequest{Id: id, Job: patch}).GetJob()
}

func (s *server) delete(id string) *carillonv1.Job {
	s.t.Helper()
	return call(s.t, s.jobs().DeleteJob, &carillonv1.DeleteJobRequest{Id: id}).GetJob()
}

func (s *server) execution(id string) *carillonv1.Execution {
	s.t.Helper()
	return call(s.t, s.executions().GetExecution, &carillonv1.GetExecutionRequest{Id: id}).GetExecution()
}

// claim leases at most n executions of the queue, waiting for the first.
func (s *server) claim(worker, queue string, n uint32, wait time.Duration) []*carillonv1.Lease {
	s.t.Helper()
	return call(s.t, s.workers().Claim, &carillonv1.ClaimRequest{
		Worker: worker, Queues: []string{queue}, MaxExecutions: n, Wait: durationpb.New(wait),
	}).GetLeases()
}

// claimOne waits for one execution of the queue.
func (s *server) claimOne(worker, queue string) *carillonv1.Lease {
	s.t.Helper()
	leases := s.claim(worker, queue, 1, 20*time.Second)
	if len(leases) != 1 {
		s.t.Fatalf("worker %s waited for queue %s and got %v", worker, queue, leases)
	}
	return leases[0]
}

// nothing says that the queue has nothing to give now.
func (s *server) nothing(queue string) {
	s.t.Helper()
	if leases := s.claim("nobody", queue, 10, 0); len(leases) != 0 {
		s.t.Fatalf("queue %s gave %v; want nothing", queue, leases)
	}
}

// Reports of a worker on a lease.

func succeeded(l *carillonv1.Lease, worker, result string) *carillonv1.CompleteExecutionRequest {
	return &carillonv1.CompleteExecutionRequest{
		Id: l.GetExecutionId(), LeaseToken: l.GetLeaseToken(), Worker: worker,
		Outcome: &carillonv1.CompleteExecutionRequest_Succeeded{Succeeded: &carillonv1.Succeeded{Result: []byte(result)}},
	}
}

func failed(l *carillonv1.Lease, worker, why string) *carillonv1.CompleteExecutionRequest {
	return &carillonv1.CompleteExecutionRequest{
		Id: l.GetExecutionId(), LeaseToken: l.GetLeaseToken(), Worker: worker,
		Outcome: &carillonv1.CompleteExecutionRequest_Failed{Failed: &carillonv1.Failed{Error: why}},
	}
}

func released(l *carillonv1.Lease, worker string) *carillonv1.CompleteExecutionRequest {
	return &carillonv1.CompleteExecutionRequest{
		Id: l.GetExecutionId(), LeaseToken: l.GetLeaseToken(), Worker: worker,
		Outcome: &carillonv1.CompleteExecutionRequest_Released{Released: &carillonv1.Released{}},
	}
}

// complete reports and requires the execution to go to state.
func (s *server) complete(req *carillonv1.CompleteExecutionRequest, want carillonv1.ExecutionState) {
	s.t.Helper()
	if got := call(s.t, s.workers().CompleteExecution, req).GetState(); got != want {
		s.t.Fatalf("completed %s: %v; want %v", req.GetId(), got, want)
	}
}

// heartbeat asks what the holder of a lease is to do.
func (s *server) heartbeat(l *carillonv1.Lease, worker string) *carillonv1.HeartbeatResult {
	s.t.Helper()
	return call(s.t, s.workers().Heartbeat, &carillonv1.HeartbeatRequest{Worker: worker, Items: []*carillonv1.HeartbeatItem{
		{ExecutionId: l.GetExecutionId(), LeaseToken: l.GetLeaseToken()},
	}}).GetResults()[0]
}

// history is all pages of a job's history.
func (s *server) history(tenant, id string) *carillonv1.GetJobHistoryResponse {
	s.t.Helper()
	all := &carillonv1.GetJobHistoryResponse{}
	req := &carillonv1.GetJobHistoryRequest{Tenant: tenant, Id: id}
	for {
		page := call(s.t, s.jobs().GetJobHistory, req)
		all.Executions = append(all.Executions, page.GetExecutions()...)
		all.Verdicts = append(all.Verdicts, page.GetVerdicts()...)
		all.LateAttempts = append(all.LateAttempts, page.GetLateAttempts()...)
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return all
		}
	}
}

// onlyExecution is the one execution in a job's history.
func (s *server) onlyExecution(id string) *carillonv1.Execution {
	s.t.Helper()
	h := s.history("", id)
	if len(h.GetExecutions()) != 1 {
		s.t.Fatalf("job %s has %d executions, want one: %v", id, len(h.GetExecutions()), h)
	}
	return h.GetExecutions()[0]
}

// list is all pages of the executions that req asks for.
func (s *server) list(req *carillonv1.ListExecutionsRequest) []*carillonv1.Execution {
	s.t.Helper()
	var all []*carillonv1.Execution
	for {
		page := call(s.t, s.executions().ListExecutions, req)
		all = append(all, page.GetExecutions()...)
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return all
		}
	}
}

func (s *server) backlog() *carillonv1.Backlog {
	s.t.Helper()
	return call(s.t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{}).GetBacklog()
}

// States under short names.
const (
	leasedState    = carillonv1.ExecutionState_EXECUTION_STATE_LEASED
	readyState     = carillonv1.ExecutionState_EXECUTION_STATE_READY
	retryingState  = carillonv1.ExecutionState_EXECUTION_STATE_RETRYING
	succeededState = carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED
	deadState      = carillonv1.ExecutionState_EXECUTION_STATE_DEAD
	cancelledState = carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED
)
