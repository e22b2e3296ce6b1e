package clienttest

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// fakeStep is how far one AdvanceClock goes at most.
const fakeStep = 24 * time.Hour

// VirtualClock makes the server say that it has a virtual clock, which stands at at. Jobs do not go by it: the fake reads the
// time package's.
func (s *Server) VirtualClock(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.virtual = at
}

// clock is what the server says of its clock. The lock is held.
func (s clusterService) clock() *carillonv1.Clock {
	if s.virtual.IsZero() {
		return &carillonv1.Clock{Time: timestamppb.Now()}
	}
	return &carillonv1.Clock{
		Time: timestamppb.New(s.virtual), Virtual: true, NextDueTime: timestamppb.New(s.virtual.Truncate(time.Hour).Add(time.Hour)),
	}
}

func (s clusterService) GetClock(
	context.Context, *connect.Request[carillonv1.GetClockRequest],
) (*connect.Response[carillonv1.GetClockResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return connect.NewResponse(&carillonv1.GetClockResponse{Clock: s.clock()}), nil
}

// AdvanceClock goes on for a day with one call, and every hour something fires.
func (s clusterService) AdvanceClock(
	_ context.Context, req *connect.Request[carillonv1.AdvanceClockRequest],
) (*connect.Response[carillonv1.AdvanceClockResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.virtual.IsZero() {
		return nil, Fail(connect.CodeFailedPrecondition, "this server keeps its machine's time")
	}
	goal := s.virtual.Add(req.Msg.GetBy().AsDuration())
	if req.Msg.GetTo() != nil {
		goal = req.Msg.GetTo().AsTime()
	}
	if goal.Before(s.virtual) {
		return nil, Fail(connect.CodeFailedPrecondition, "the clock does not go back")
	}
	from := s.virtual
	if s.virtual = goal; goal.Sub(from) > fakeStep {
		s.virtual = from.Add(fakeStep)
	}
	return connect.NewResponse(&carillonv1.AdvanceClockResponse{
		Clock: s.clock(), Goal: timestamppb.New(goal), Done: s.virtual.Equal(goal),
		Fired: uint64(s.virtual.Truncate(time.Hour).Sub(from.Truncate(time.Hour)) / time.Hour),
	}), nil
}
