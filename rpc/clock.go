package rpc

import (
	"context"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) getClock(ctx context.Context, _ *carillonv1.GetClockRequest) (*carillonv1.GetClockResponse, error) {
	clock, err := s.backend.Clock(ctx)
	if err != nil {
		return nil, err
	}
	return &carillonv1.GetClockResponse{Clock: clockOf(clock)}, nil
}

func (s *server) advanceClock(
	ctx context.Context, req *carillonv1.AdvanceClockRequest,
) (*carillonv1.AdvanceClockResponse, error) {
	var v violations
	var goal ClockGoal
	switch g := req.GetGoal().(type) {
	case *carillonv1.AdvanceClockRequest_By:
		goal.ByMS = v.duration("by", g.By, 0, 0, horizon)
	case *carillonv1.AdvanceClockRequest_To:
		goal.ToMS = v.instant("to", g.To, s.backend.NowMS())
	default:
		v.add("to", "or by is required: where is the clock to go?")
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	came, err := s.backend.AdvanceClock(ctx, goal)
	if err != nil {
		return nil, err
	}
	return &carillonv1.AdvanceClockResponse{
		Clock: clockOf(came.Clock), Goal: timeOf(came.ToMS), Done: came.Done, Fired: came.Fired,
	}, nil
}

func clockOf(c ClockStatus) *carillonv1.Clock {
	return &carillonv1.Clock{Time: timeOf(c.NowMS), Virtual: c.Virtual, NextDueTime: optionalTime(c.NextDueMS)}
}
