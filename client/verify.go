package client

import (
	"context"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// VerifyCluster has all replicas of shards compared and checked, of all shards if none is named. What is wrong stands in the
// answer and is no error. It takes as long as reading every row of theirs does: give it few shards at a time, and ctx a
// deadline.
func (c *Client) VerifyCluster(
	ctx context.Context, req *carillonv1.VerifyClusterRequest,
) (*carillonv1.VerifyClusterResponse, error) {
	return unary(ctx, c, verification, c.cluster.VerifyCluster, req)
}
