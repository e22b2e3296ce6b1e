package clienttest

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// pauseService keeps rules; they pause nothing here.
type pauseService struct{ *Server }

func (s pauseService) CreatePauseRule(
	_ context.Context, req *connect.Request[carillonv1.CreatePauseRuleRequest],
) (*connect.Response[carillonv1.CreatePauseRuleResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rule := proto.CloneOf(req.Msg.GetRule())
	if s.rules[rule.GetId()] != nil {
		return nil, Fail(connect.CodeAlreadyExists, "the rule exists")
	}
	rule.Version, rule.CreateTime = 1, timestamppb.Now()
	s.rules[rule.GetId()] = rule
	return connect.NewResponse(&carillonv1.CreatePauseRuleResponse{Rule: rule}), nil
}

func (s pauseService) GetPauseRule(
	_ context.Context, req *connect.Request[carillonv1.GetPauseRuleRequest],
) (*connect.Response[carillonv1.GetPauseRuleResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rule := s.rules[req.Msg.GetId()]
	if rule == nil {
		return nil, missing("pause rule", req.Msg.GetId())
	}
	return connect.NewResponse(&carillonv1.GetPauseRuleResponse{Rule: proto.CloneOf(rule)}), nil
}

func (s pauseService) ListPauseRules(
	_ context.Context, req *connect.Request[carillonv1.ListPauseRulesRequest],
) (*connect.Response[carillonv1.ListPauseRulesResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &carillonv1.ListPauseRulesResponse{}
	res.Rules, res.NextPageToken = page(sorted(s.rules), req.Msg.GetPageSize(), req.Msg.GetPageToken())
	return connect.NewResponse(proto.CloneOf(res)), nil
}

func (s pauseService) DeletePauseRule(
	_ context.Context, req *connect.Request[carillonv1.DeletePauseRuleRequest],
) (*connect.Response[carillonv1.DeletePauseRuleResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rules[req.Msg.GetId()] == nil {
		return nil, missing("pause rule", req.Msg.GetId())
	}
	delete(s.rules, req.Msg.GetId())
	return connect.NewResponse(&carillonv1.DeletePauseRuleResponse{}), nil
}
