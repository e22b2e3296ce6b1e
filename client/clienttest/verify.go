package clienttest

import (
	"context"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// VerifyCluster has twelve shards with a replica each on n1 and n2: of shard 3 they differ, and that of shard 4 on n2 does
// not answer.
func (s clusterService) VerifyCluster(
	_ context.Context, req *connect.Request[carillonv1.VerifyClusterRequest],
) (*connect.Response[carillonv1.VerifyClusterResponse], error) {
	shards := req.Msg.GetShards()
	if len(shards) == 0 {
		for shard := range uint32(12) {
			shards = append(shards, shard)
		}
	}
	res := &carillonv1.VerifyClusterResponse{Result: carillonv1.VerifyResult_VERIFY_RESULT_OK}
	for _, shard := range shards {
		one := &carillonv1.ShardVerification{Shard: shard, Result: carillonv1.VerifyResult_VERIFY_RESULT_OK, Index: 17}
		for _, node := range []string{"n1", "n2"} {
			one.Replicas = append(one.Replicas, &carillonv1.ReplicaVerification{
				Node: node, Done: true, Digest: "00000000000000aa", Chain: "00000000000000bb", Rows: 5,
			})
		}
		switch second := one.Replicas[1]; shard {
		case 3:
			second.Digest, second.ViolationCount = "00000000000000ab", 1
			second.Violations = []*carillonv1.Violation{{Rule: "counter", Row: "m", Detail: "jobs is 2, a recount finds 1"}}
			one.Result = carillonv1.VerifyResult_VERIFY_RESULT_WRONG
			one.Problems = []string{"replicas have different rows", "1 things do not hold on n2"}
		case 4:
			one.Replicas[1] = &carillonv1.ReplicaVerification{Node: "n2"}
			one.Result = carillonv1.VerifyResult_VERIFY_RESULT_INCOMPLETE
			one.Problems = []string{"the replica on n2 was not looked at: it is away"}
		}
		res.Shards, res.Result = append(res.Shards, one), max(res.Result, one.Result)
	}
	return connect.NewResponse(res), nil
}
