package rpc

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Leaderships are named once each; what cannot be meant is refused before the node is asked.
func TestTransferLeader(t *testing.T) {
	s := newScene(t, 3)
	res := must(s.transferLeader(t.Context(), &carillonv1.TransferLeaderRequest{Shards: []uint32{3, 2, 3}, From: "n1", To: "n2"}))
	if fmt.Sprint(s.b.asked) != "[transfer [2 3] n1 n2]" {
		t.Errorf("asked %v", s.b.asked)
	}
	if a, b := res.Transfers[0], res.Transfers[1]; a.Shard != 2 || a.Done || a.Reason != "no" || b.Shard != 3 || !b.Done || b.To != "n2" {
		t.Errorf("answered %v", res)
	}
	for what, req := range map[string]*carillonv1.TransferLeaderRequest{
		"nothing":    {},
		"only to":    {To: "n2"},
		"itself":     {From: "n1", To: "n1"},
		"no name":    {From: "n 1"},
		"to no name": {Shards: []uint32{1}, To: "n/2"},
		"too many":   {Shards: make([]uint32, maxTransfers+1)},
	} {
		_, err := s.transferLeader(t.Context(), req)
		t.Run(what, func(t *testing.T) { wantCode(t, err, connect.CodeInvalidArgument) })
	}
	if len(s.b.asked) != 1 {
		t.Errorf("asked %v", s.b.asked)
	}
}

// The changes of a node reach the backend, each its own, and what that says reaches the caller whole.
func TestChangesOfNodes(t *testing.T) {
	s := newScene(t, 1)
	changes := []*carillonv1.NodeChange{
		must(s.drainNode(t.Context(), &carillonv1.DrainNodeRequest{Node: "n2"})).GetChange(),
		must(s.undrainNode(t.Context(), &carillonv1.UndrainNodeRequest{Node: "n2"})).GetChange(),
		must(s.removeNode(t.Context(), &carillonv1.RemoveNodeRequest{Node: "n2"})).GetChange(),
		must(s.replaceStore(t.Context(), &carillonv1.ReplaceStoreRequest{Node: "n2"})).GetChange(),
	}
	if fmt.Sprint(s.b.asked) != "[drain n2 undrain n2 remove n2 replace n2]" {
		t.Errorf("asked %v", s.b.asked)
	}
	if c := changes[2]; c.Node != "n2" || c.StoreId != "s2" || c.State != carillonv1.StoreState_STORE_STATE_DRAINING || c.Done ||
		c.ShardsLed != 1 || c.Replicas != 2 || c.Staying != 1 || c.Message != "remove" {
		t.Errorf("answered %v", c)
	}
	_, err := s.drainNode(t.Context(), &carillonv1.DrainNodeRequest{})
	wantCode(t, err, connect.CodeInvalidArgument)
	s.b.fakeOperator.fail = &Refused{Refusal: &fsm.Refusal{Code: fsm.FailedPrecondition, Message: "it lives"}}
	_, err = s.removeNode(t.Context(), &carillonv1.RemoveNodeRequest{Node: "n2"})
	wantCode(t, err, connect.CodeFailedPrecondition)
}

// The status shows what operators need of nodes and replicas, by the nodes' names.
func TestTheStatusShowsNodesAndReplicas(t *testing.T) {
	s := newScene(t, 1)
	s.b.cluster = ClusterStatus{
		Nodes: []NodeStatus{
			{Name: "a", Store: "s1", State: StateUp, EtcdVoter: true, Controller: true, ClockKnown: true, ClockOffsetMS: -120, Replicas: 1},
			{Name: "b", Store: "s2", State: StateGone, EtcdLearner: true, SilentSinceMS: 5},
		},
		Shards: []ShardStatus{{ID: 1, LeaderStore: "s1", Members: []ReplicaStatus{
			{Store: "s2", Learner: true, Lag: 7, Snapshot: true}, {Store: "s1", Active: true},
		}}},
		Alarms: []Alarm{{Name: "node-silent", Node: "a"}, {Name: "node-silent", Node: "c"}},
	}
	res := must(s.getCluster(t.Context(), &carillonv1.GetClusterRequest{}))
	a, b := res.Nodes[0], res.Nodes[1]
	if a.State != carillonv1.StoreState_STORE_STATE_UP || a.ControlRole != carillonv1.ControlRole_CONTROL_ROLE_VOTER || !a.Controller ||
		a.ClockOffset.AsDuration().Milliseconds() != -120 || a.Replicas != 1 || a.SilentSince != nil {
		t.Errorf("a %v", a)
	}
	if b.State != carillonv1.StoreState_STORE_STATE_GONE || b.ControlRole != carillonv1.ControlRole_CONTROL_ROLE_LEARNER ||
		b.ClockOffset != nil || b.SilentSince.AsTime().UnixMilli() != 5 {
		t.Errorf("b %v", b)
	}
	if m := res.Shards[0].Members; m[0].Node != "a" || !m[0].Active || m[1].Node != "b" || !m[1].Learner || m[1].Lag != 7 || !m[1].Snapshot {
		t.Errorf("members %v", m)
	}
	if res.Alarms[0].Node != "a" || res.Alarms[1].Node != "c" {
		t.Errorf("alarms %v", res.Alarms)
	}
}
