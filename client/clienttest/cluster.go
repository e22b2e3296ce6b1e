package clienttest

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// The operators' calls: the server has three nodes by name, n1 that answers, n2, and n3 that is dead. What takes time takes
// one call for each replica: each of the nodes has two.

const fakeReplicas = 2

// fakeNode is what operators have done to a node.
type fakeNode struct {
	state    carillonv1.StoreState
	replicas uint32
}

// change does one step of a change of a node that makes it be in a state.
func (s clusterService) change(
	name string, to carillonv1.StoreState, refuse func() string,
) (*carillonv1.NodeChange, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != "n1" && name != "n2" && name != "n3" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no node or store %q", name))
	}
	if reason := refuse(); reason != "" {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s", reason))
	}
	node := s.nodes[name]
	if node == nil {
		node = &fakeNode{replicas: fakeReplicas}
		s.nodes[name] = node
	}
	switch {
	case to == carillonv1.StoreState_STORE_STATE_UP:
		node.replicas = fakeReplicas
	case node.state == to && node.replicas > 0:
		node.replicas--
	}
	node.state = to
	res := &carillonv1.NodeChange{
		Node: name, StoreId: "store-" + name, State: to, Replicas: node.replicas, ShardsLed: node.replicas / fakeReplicas,
		Done: node.replicas == 0 || to == carillonv1.StoreState_STORE_STATE_UP,
	}
	if !res.Done {
		res.Message = fmt.Sprintf("%d replicas are on their way to other nodes", node.replicas)
	}
	return res, nil
}

// never refuses.
func never() string { return "" }

func (s clusterService) DrainNode(
	_ context.Context, req *connect.Request[carillonv1.DrainNodeRequest],
) (*connect.Response[carillonv1.DrainNodeResponse], error) {
	change, err := s.change(req.Msg.GetNode(), carillonv1.StoreState_STORE_STATE_DRAINING, never)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&carillonv1.DrainNodeResponse{Change: change}), nil
}

func (s clusterService) UndrainNode(
	_ context.Context, req *connect.Request[carillonv1.UndrainNodeRequest],
) (*connect.Response[carillonv1.UndrainNodeResponse], error) {
	change, err := s.change(req.Msg.GetNode(), carillonv1.StoreState_STORE_STATE_UP, never)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&carillonv1.UndrainNodeResponse{Change: change}), nil
}

func (s clusterService) RemoveNode(
	_ context.Context, req *connect.Request[carillonv1.RemoveNodeRequest],
) (*connect.Response[carillonv1.RemoveNodeResponse], error) {
	change, err := s.change(req.Msg.GetNode(), carillonv1.StoreState_STORE_STATE_GONE, s.livesUndrained(req.Msg.GetNode()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&carillonv1.RemoveNodeResponse{Change: change}), nil
}

func (s clusterService) ReplaceStore(
	_ context.Context, req *connect.Request[carillonv1.ReplaceStoreRequest],
) (*connect.Response[carillonv1.ReplaceStoreResponse], error) {
	change, err := s.change(req.Msg.GetNode(), carillonv1.StoreState_STORE_STATE_GONE, s.livesUndrained(req.Msg.GetNode()))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&carillonv1.ReplaceStoreResponse{Change: change}), nil
}

// livesUndrained refuses what may not be done to a node that lives and has replicas.
func (s clusterService) livesUndrained(name string) func() string {
	return func() string {
		if node := s.nodes[name]; name == "n3" || node != nil && node.replicas == 0 {
			return ""
		}
		return name + " lives: drain it first"
	}
}

// TransferLeader has one shard, 1, which n1 leads, and a replica of it on n2.
func (s clusterService) TransferLeader(
	_ context.Context, req *connect.Request[carillonv1.TransferLeaderRequest],
) (*connect.Response[carillonv1.TransferLeaderResponse], error) {
	res := &carillonv1.TransferLeaderResponse{}
	shards := req.Msg.GetShards()
	if len(shards) == 0 {
		shards = []uint32{1}
	}
	for _, shard := range shards {
		t := &carillonv1.LeaderTransfer{Shard: shard, From: "n1", To: req.Msg.GetTo(), Done: true}
		if t.To == "" {
			t.To = "n2"
		}
		if t.To == "n3" {
			t.Done, t.Reason = false, "there is no replica with a vote on that node"
		}
		res.Transfers = append(res.Transfers, t)
	}
	return connect.NewResponse(res), nil
}
