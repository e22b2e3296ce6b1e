package rpc

import (
	"context"
	"slices"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// maxTransfers bounds the shards of one TransferLeader: a cluster has no more.
const maxTransfers = 4096

var storeStates = map[StoreState]carillonv1.StoreState{
	StateUnknown: carillonv1.StoreState_STORE_STATE_UNSPECIFIED, StateUp: carillonv1.StoreState_STORE_STATE_UP,
	StateDraining: carillonv1.StoreState_STORE_STATE_DRAINING, StateGone: carillonv1.StoreState_STORE_STATE_GONE,
}

func (s *server) transferLeader(
	ctx context.Context, req *carillonv1.TransferLeaderRequest,
) (*carillonv1.TransferLeaderResponse, error) {
	var v violations
	v.optionalName("from", req.GetFrom())
	v.optionalName("to", req.GetTo())
	switch {
	case len(req.GetShards()) > maxTransfers:
		v.add("shards", "has %d; at most %d are allowed", len(req.GetShards()), maxTransfers)
	case len(req.GetShards()) == 0 && req.GetFrom() == "":
		v.add("shards", "is required without from: which leaderships are to be moved?")
	case req.GetFrom() != "" && req.GetFrom() == req.GetTo():
		v.add("to", "is the same node as from")
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	shards := slices.Compact(slices.Sorted(slices.Values(req.GetShards())))
	moved, err := s.backend.TransferLeaders(ctx, TransferRequest{Shards: shards, From: req.GetFrom(), To: req.GetTo()})
	if err != nil {
		return nil, err
	}
	res := &carillonv1.TransferLeaderResponse{}
	for _, t := range moved {
		res.Transfers = append(res.Transfers, &carillonv1.LeaderTransfer{
			Shard: t.Shard, From: t.From, To: t.To, Done: t.Reason == "", Reason: t.Reason,
		})
	}
	return res, nil
}

func (s *server) drainNode(ctx context.Context, req *carillonv1.DrainNodeRequest) (*carillonv1.DrainNodeResponse, error) {
	change, err := changeNode(ctx, req.GetNode(), s.backend.Drain)
	if err != nil {
		return nil, err
	}
	return &carillonv1.DrainNodeResponse{Change: change}, nil
}

func (s *server) undrainNode(ctx context.Context, req *carillonv1.UndrainNodeRequest) (*carillonv1.UndrainNodeResponse, error) {
	change, err := changeNode(ctx, req.GetNode(), s.backend.Undrain)
	if err != nil {
		return nil, err
	}
	return &carillonv1.UndrainNodeResponse{Change: change}, nil
}

func (s *server) removeNode(ctx context.Context, req *carillonv1.RemoveNodeRequest) (*carillonv1.RemoveNodeResponse, error) {
	change, err := changeNode(ctx, req.GetNode(), s.backend.RemoveNode)
	if err != nil {
		return nil, err
	}
	return &carillonv1.RemoveNodeResponse{Change: change}, nil
}

func (s *server) replaceStore(ctx context.Context, req *carillonv1.ReplaceStoreRequest) (*carillonv1.ReplaceStoreResponse, error) {
	change, err := changeNode(ctx, req.GetNode(), s.backend.ReplaceStore)
	if err != nil {
		return nil, err
	}
	return &carillonv1.ReplaceStoreResponse{Change: change}, nil
}

func changeNode(
	ctx context.Context, node string, change func(context.Context, string) (NodeChange, error),
) (*carillonv1.NodeChange, error) {
	var v violations
	v.name("node", node)
	if err := v.err(); err != nil {
		return nil, err
	}
	c, err := change(ctx, node)
	if err != nil {
		return nil, err
	}
	return &carillonv1.NodeChange{
		Node: c.Node, StoreId: c.Store, State: storeStates[c.State], Done: c.Done, ShardsLed: uint32(c.Led),
		Replicas: uint32(c.Replicas), Staying: uint32(c.Staying), Message: c.Message,
	}, nil
}
