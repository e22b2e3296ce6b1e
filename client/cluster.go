package client

import (
	"context"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// GetCluster reads nodes, shards, backlog and alarms as the node in use knows them.
func (c *Client) GetCluster(
	ctx context.Context, req *carillonv1.GetClusterRequest,
) (*carillonv1.GetClusterResponse, error) {
	return unary(ctx, c, identified, c.cluster.GetCluster, req)
}

// TransferLeader moves leaderships to another node. The answer says of each whether it is there, or why not.
func (c *Client) TransferLeader(
	ctx context.Context, req *carillonv1.TransferLeaderRequest,
) (*carillonv1.TransferLeaderResponse, error) {
	return unary(ctx, c, identified, c.cluster.TransferLeader, req)
}

// DrainNode moves replicas and leaderships off a node. It is done when the answer says so: until then, call it again.
func (c *Client) DrainNode(ctx context.Context, req *carillonv1.DrainNodeRequest) (*carillonv1.NodeChange, error) {
	res, err := unary(ctx, c, identified, c.cluster.DrainNode, req)
	return res.GetChange(), err
}

// UndrainNode ends a drain.
func (c *Client) UndrainNode(ctx context.Context, req *carillonv1.UndrainNodeRequest) (*carillonv1.NodeChange, error) {
	res, err := unary(ctx, c, identified, c.cluster.UndrainNode, req)
	return res.GetChange(), err
}

// RemoveNode takes a node out of the cluster for good. It is done when the answer says so: until then, call it again.
func (c *Client) RemoveNode(ctx context.Context, req *carillonv1.RemoveNodeRequest) (*carillonv1.NodeChange, error) {
	res, err := unary(ctx, c, identified, c.cluster.RemoveNode, req)
	return res.GetChange(), err
}

// ReplaceStore declares a node's store lost for good. It is done when the answer says so: until then, call it again.
func (c *Client) ReplaceStore(ctx context.Context, req *carillonv1.ReplaceStoreRequest) (*carillonv1.NodeChange, error) {
	res, err := unary(ctx, c, identified, c.cluster.ReplaceStore, req)
	return res.GetChange(), err
}
