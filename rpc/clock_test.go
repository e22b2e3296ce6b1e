package rpc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// fakeClock says where it was to go, and gets half way.
type fakeClock struct {
	goals   []ClockGoal
	refusal *fsm.Refusal
}

func (c *fakeClock) Clock(context.Context) (ClockStatus, error) {
	return ClockStatus{NowMS: startMS, Virtual: true, NextDueMS: startMS + 1}, nil
}

func (c *fakeClock) AdvanceClock(_ context.Context, goal ClockGoal) (ClockAdvance, error) {
	c.goals = append(c.goals, goal)
	if c.refusal != nil {
		return ClockAdvance{}, &Refused{c.refusal}
	}
	return ClockAdvance{Clock: ClockStatus{NowMS: startMS + 5, Virtual: true}, ToMS: startMS + 10, Fired: 3}, nil
}

func TestGetClock(t *testing.T) {
	s := newScene(t, 1)
	clock := must(s.getClock(t.Context(), &carillonv1.GetClockRequest{})).GetClock()
	if clock.GetTime().AsTime().UnixMilli() != startMS || !clock.GetVirtual() || clock.GetNextDueTime().AsTime().UnixMilli() != startMS+1 {
		t.Errorf("answered %v", clock)
	}
}

func TestAdvanceClock(t *testing.T) {
	s := newScene(t, 1)
	by := func(d *durationpb.Duration) *carillonv1.AdvanceClockRequest {
		return &carillonv1.AdvanceClockRequest{Goal: &carillonv1.AdvanceClockRequest_By{By: d}}
	}
	to := func(at *timestamppb.Timestamp) *carillonv1.AdvanceClockRequest {
		return &carillonv1.AdvanceClockRequest{Goal: &carillonv1.AdvanceClockRequest_To{To: at}}
	}
	res := must(s.advanceClock(t.Context(), by(durationpb.New(36*time.Hour))))
	if c := res.GetClock(); res.GetDone() || res.GetFired() != 3 || res.GetGoal().AsTime().UnixMilli() != startMS+10 ||
		c.GetTime().AsTime().UnixMilli() != startMS+5 || c.GetNextDueTime() != nil {
		t.Errorf("answered %v", res)
	}
	must(s.advanceClock(t.Context(), to(timestamppb.New(time.UnixMilli(startMS+10)))))
	must(s.advanceClock(t.Context(), by(durationpb.New(0))))
	if want := fmt.Sprint([]ClockGoal{{ByMS: 129_600_000}, {ToMS: startMS + 10}, {}}); fmt.Sprint(s.b.goals) != want {
		t.Errorf("asked for %v; want %v", s.b.goals, want)
	}
	for what, req := range map[string]*carillonv1.AdvanceClockRequest{
		"nowhere":         {},
		"back":            by(durationpb.New(-time.Second)),
		"too far":         by(durationpb.New(101 * year)),
		"malformed":       by(&durationpb.Duration{Seconds: 1, Nanos: -1}),
		"before 1970":     to(timestamppb.New(time.Unix(-1, 0))),
		"to too far":      to(timestamppb.New(time.UnixMilli(startMS).Add(101 * year))),
		"to no timestamp": to(&timestamppb.Timestamp{Nanos: -1}),
	} {
		_, err := s.advanceClock(t.Context(), req)
		t.Run(what, func(t *testing.T) { wantCode(t, err, connect.CodeInvalidArgument) })
	}
	if len(s.b.goals) != 3 {
		t.Errorf("asked for %v", s.b.goals)
	}
	s.b.refusal = &fsm.Refusal{Code: fsm.FailedPrecondition, Message: "this server keeps its machine's time"}
	_, err := s.advanceClock(t.Context(), by(durationpb.New(time.Second)))
	wantCode(t, err, connect.CodeFailedPrecondition)
}
