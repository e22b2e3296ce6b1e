package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// fakeVerifier finds shard 2 wrong and says what it was asked for.
type fakeVerifier struct{ verified []string }

func (v *fakeVerifier) VerifyShards(_ context.Context, shards []uint32) (reports []ShardVerification, err error) {
	v.verified = append(v.verified, fmt.Sprint(shards))
	for _, shard := range shards {
		r := ShardVerification{Shard: shard, Result: VerifyOK, Index: 7, Replicas: []ReplicaVerification{
			{Node: "n1", Done: true, Digest: 0xAB, Chain: 1, Rows: 3, Index: 7},
		}}
		if shard == 2 {
			r.Result, r.Problems = VerifyWrong, []string{"not \xff as it should be"}
			r.Replicas[0].ViolationCount = 1
			r.Replicas[0].Violations = []fsm.Violation{{Rule: fsm.RuleRow, Key: []byte("j\x00\xff"), Detail: "bad \xfe"}}
			r.Replicas = append(r.Replicas, ReplicaVerification{Node: "n2", Reason: "away"})
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// Shards are asked for once each, in order; what was found reaches the caller whole, and as text.
func TestVerifyCluster(t *testing.T) {
	s := newScene(t, 3)
	res := must(s.verifyCluster(t.Context(), &carillonv1.VerifyClusterRequest{Shards: []uint32{2, 0, 2}}))
	if asked := strings.Join(s.b.verified, ""); asked != "[0 2]" {
		t.Errorf("asked for %s", asked)
	}
	if res.Result != carillonv1.VerifyResult_VERIFY_RESULT_WRONG || len(res.Shards) != 2 ||
		res.Shards[0].Result != carillonv1.VerifyResult_VERIFY_RESULT_OK {
		t.Fatalf("%v", res)
	}
	got := res.Shards[1]
	n1, n2 := got.Replicas[0], got.Replicas[1]
	if !n1.Done || n1.Digest != "00000000000000ab" || n1.Rows != 3 || n1.Violations[0].Row != `j\x00\xff` || n2.Done || n2.Digest != "" {
		t.Errorf("%v", got)
	}
	if _, err := proto.Marshal(res); err != nil {
		t.Error(err)
	}
	_, err := s.verifyCluster(t.Context(), &carillonv1.VerifyClusterRequest{Shards: make([]uint32, maxVerified+1)})
	wantCode(t, err, connect.CodeInvalidArgument)
}
