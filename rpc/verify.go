package rpc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// maxVerified bounds the shards of one VerifyCluster: a cluster has no more.
const maxVerified = 4096

// Verifier looks at the replicas of shards.
type Verifier interface {
	// VerifyShards has every replica of each shard look at its rows as one entry of the log leaves them, and compares. No
	// shards are all of them. The reports are in the order of the shards.
	VerifyShards(ctx context.Context, shards []uint32) ([]ShardVerification, error)
}

// VerifyResult is how a verification ended.
type VerifyResult uint8

const (
	// VerifyOK: the replicas agree and everything holds.
	VerifyOK VerifyResult = iota + 1
	// VerifyIncomplete: not every replica could be looked at.
	VerifyIncomplete
	// VerifyWrong: replicas differ, or something does not hold.
	VerifyWrong
)

// ShardVerification is what was found of a shard at the entry at Index; 0: nothing was looked at.
type ShardVerification struct {
	Shard    uint32
	Result   VerifyResult
	Index    uint64
	Problems []string
	Replicas []ReplicaVerification
}

// ReplicaVerification is what one replica found; if it is not Done, Reason says why.
type ReplicaVerification struct {
	Node   string
	Done   bool
	Reason string

	Index, Chain, Digest, Rows uint64
	// ViolationCount is exact, Violations are the first of them.
	ViolationCount uint64
	Violations     []fsm.Violation
}

var verifyResults = map[VerifyResult]carillonv1.VerifyResult{
	VerifyOK: carillonv1.VerifyResult_VERIFY_RESULT_OK, VerifyIncomplete: carillonv1.VerifyResult_VERIFY_RESULT_INCOMPLETE,
	VerifyWrong: carillonv1.VerifyResult_VERIFY_RESULT_WRONG,
}

func (s *server) verifyCluster(
	ctx context.Context, req *carillonv1.VerifyClusterRequest,
) (*carillonv1.VerifyClusterResponse, error) {
	var v violations
	if n := len(req.GetShards()); n > maxVerified {
		v.add("shards", "has %d; at most %d are allowed", n, maxVerified)
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	reports, err := s.backend.VerifyShards(ctx, slices.Compact(slices.Sorted(slices.Values(req.GetShards()))))
	if err != nil {
		return nil, err
	}
	res, worst := &carillonv1.VerifyClusterResponse{}, VerifyOK
	for i := range reports {
		worst = max(worst, reports[i].Result)
		res.Shards = append(res.Shards, verificationOf(&reports[i]))
	}
	res.Result = verifyResults[worst]
	return res, nil
}

func verificationOf(report *ShardVerification) *carillonv1.ShardVerification {
	shard := &carillonv1.ShardVerification{
		Shard: report.Shard, Result: verifyResults[report.Result], Index: report.Index,
	}
	for _, problem := range report.Problems {
		shard.Problems = append(shard.Problems, strings.ToValidUTF8(problem, "\uFFFD"))
	}
	for _, r := range report.Replicas {
		replica := &carillonv1.ReplicaVerification{Node: r.Node, Done: r.Done}
		if r.Done {
			replica.Digest, replica.Chain = fmt.Sprintf("%016x", r.Digest), fmt.Sprintf("%016x", r.Chain)
			replica.Rows, replica.ViolationCount = r.Rows, r.ViolationCount
		}
		for _, found := range r.Violations {
			replica.Violations = append(replica.Violations, &carillonv1.Violation{
				Rule: found.Rule, Row: strings.Trim(strconv.QuoteToASCII(string(found.Key)), `"`),
				Detail: strings.ToValidUTF8(found.Detail, "\uFFFD"),
			})
		}
		shard.Replicas = append(shard.Replicas, replica)
	}
	return shard
}
