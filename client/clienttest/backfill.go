package clienttest

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// BackfillJob makes nothing: the server knows no past occurrences.
func (s jobService) BackfillJob(
	_ context.Context, req *connect.Request[carillonv1.BackfillJobRequest],
) (*connect.Response[carillonv1.BackfillJobResponse], error) {
	task, err := s.backfill(req.Msg.GetTenant(), req.Msg.GetId(), req.Msg.GetBackfillId(), false)
	return connect.NewResponse(&carillonv1.BackfillJobResponse{Task: task}), err
}

// CancelBackfill finds every backfill.
func (s jobService) CancelBackfill(
	_ context.Context, req *connect.Request[carillonv1.CancelBackfillRequest],
) (*connect.Response[carillonv1.CancelBackfillResponse], error) {
	task, err := s.backfill(req.Msg.GetTenant(), req.Msg.GetId(), req.Msg.GetBackfillId(), true)
	return connect.NewResponse(&carillonv1.CancelBackfillResponse{Task: task}), err
}

func (s jobService) backfill(tenant, jobID, id string, cancelled bool) (*carillonv1.Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(tenant, jobID); err != nil {
		return nil, err
	}
	now := timestamppb.Now()
	return &carillonv1.Task{Id: id, Finished: true, Cancelled: cancelled, CreateTime: now, UpdateTime: now}, nil
}
