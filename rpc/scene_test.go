package rpc

import (
	"errors"
	"testing"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// scene is a server with its backend, and shorthands for what tests do most.
type scene struct {
	*server
	t *testing.T
	b *fakeBackend
}

func newScene(t *testing.T, shards int) *scene {
	b := newFakeBackend(shards)
	return &scene{server: newTestServer(t, b), t: t, b: b}
}

// create creates a job that must be accepted.
func (s *scene) create(spec *carillonv1.JobSpec) *carillonv1.CreateJobResponse {
	s.t.Helper()
	res, err := s.createJob(s.t.Context(), &carillonv1.CreateJobRequest{Job: spec})
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

// claimAll claims what is ready in queue default.
func (s *scene) claimAll() []*carillonv1.Lease {
	s.t.Helper()
	res, err := s.claim(s.t.Context(), &carillonv1.ClaimRequest{Worker: "w", Queues: []string{defaultName}, MaxExecutions: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Leases
}

// claimOne creates a job that is due at once and claims its execution.
func (s *scene) claimOne(spec *carillonv1.JobSpec) *carillonv1.Lease {
	s.t.Helper()
	spec.Schedule = in(0)
	s.create(spec)
	s.b.pass(1)
	leases := s.claimAll()
	if len(leases) != 1 {
		s.t.Fatalf("claimed %d leases", len(leases))
	}
	return leases[0]
}

func (s *scene) finish(lease *carillonv1.Lease, outcome any) (*carillonv1.CompleteExecutionResponse, error) {
	req := &carillonv1.CompleteExecutionRequest{Id: lease.ExecutionId, LeaseToken: lease.LeaseToken, Worker: "w"}
	switch o := outcome.(type) {
	case *carillonv1.Succeeded:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Succeeded{Succeeded: o}
	case *carillonv1.Failed:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Failed{Failed: o}
	case *carillonv1.Snoozed:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Snoozed{Snoozed: o}
	case *carillonv1.Released:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Released{Released: o}
	}
	return s.completeExecution(s.t.Context(), req)
}

func (s *scene) execution(id string) *carillonv1.Execution {
	s.t.Helper()
	res, err := s.getExecution(s.t.Context(), &carillonv1.GetExecutionRequest{Id: id})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Execution
}

func (s *scene) job(id string) *carillonv1.Job {
	s.t.Helper()
	res, err := s.getJob(s.t.Context(), &carillonv1.GetJobRequest{Id: id})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Job
}

// answered is an error of a handler as the caller gets it.
func answered(err error) error {
	if err == nil {
		return nil
	}
	answer, _ := callError(err)
	return answer
}

func wantCode(t *testing.T, err error, code connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(answered(err)) != code {
		t.Errorf("got %v, want %v", err, code)
	}
}

// conflictFields are the fields that a conflict names.
func conflictFields(t *testing.T, err error) []string {
	t.Helper()
	wantCode(t, err, connect.CodeAlreadyExists)
	var connectErr *connect.Error
	if errors.As(answered(err), &connectErr) {
		for _, detail := range connectErr.Details() {
			if c, ok := must(detail.Value()).(*carillonv1.IdempotencyConflict); ok {
				return c.Fields
			}
		}
	}
	return nil
}
