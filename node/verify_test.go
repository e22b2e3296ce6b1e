package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Replicas that agree are fine; who differs from whom is said, and what is missing is not taken for right.
func TestJudge(t *testing.T) {
	seen := func(node string, digest uint64) rpc.ReplicaVerification {
		return rpc.ReplicaVerification{Node: node, Done: true, Index: 9, Chain: 1, Digest: digest, Rows: 5}
	}
	spoiled := seen("n3", 2)
	spoiled.ViolationCount, spoiled.Violations = 3, []fsm.Violation{{Rule: fsm.RuleTimer, Key: []byte("t"), Detail: "gone"}}
	unnamed := seen("n2", 2)
	unnamed.ViolationCount = 2 // and none is named: another node may say so
	late := seen("n2", 2)
	late.Index, late.Chain = 10, 7
	for _, c := range []struct {
		name     string
		replicas []rpc.ReplicaVerification
		result   rpc.VerifyResult
		problems string
	}{
		{"agreed", []rpc.ReplicaVerification{seen("n1", 2), seen("n2", 2), seen("n3", 2)}, rpc.VerifyOK, ""},
		{"alone", []rpc.ReplicaVerification{seen("n1", 2)}, rpc.VerifyOK, ""},
		{"one row", []rpc.ReplicaVerification{seen("n1", 2), seen("n2", 4), seen("n3", 2)}, rpc.VerifyWrong,
			"replicas have different rows: n1, n3: 0000000000000002 (5); n2: 0000000000000004 (5)"},
		{"another entry", []rpc.ReplicaVerification{seen("n1", 2), late}, rpc.VerifyWrong,
			"replicas have different applied entries: n1: 9; n2: 10\n" +
				"replicas have different hash chains: n1: 0000000000000001; n2: 0000000000000007"},
		{"violations", []rpc.ReplicaVerification{seen("n1", 2), spoiled}, rpc.VerifyWrong,
			"3 things do not hold on n3, the first: timer: gone (row \"t\")"},
		{"violations that are not named", []rpc.ReplicaVerification{seen("n1", 2), unnamed}, rpc.VerifyWrong,
			"2 things do not hold on n2"},
		{"away", []rpc.ReplicaVerification{seen("n1", 2), {Node: "n2", Reason: "dead"}}, rpc.VerifyIncomplete,
			"the replica on n2 was not looked at: dead"},
		{"away and wrong", []rpc.ReplicaVerification{{Node: "n2", Reason: "dead"}, spoiled}, rpc.VerifyWrong,
			"the replica on n2 was not looked at: dead\n3 things do not hold on n3, the first: timer: gone (row \"t\")"},
		{"nobody", []rpc.ReplicaVerification{{Node: "n2", Reason: "dead"}}, rpc.VerifyIncomplete,
			"the replica on n2 was not looked at: dead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			report := rpc.ShardVerification{Replicas: c.replicas}
			judge(&report)
			if got := strings.Join(report.Problems, "\n"); report.Result != c.result || got != c.problems {
				t.Errorf("%d: %s", report.Result, got)
			}
		})
	}
}

// snapshotOf is a snapshot of one shard with some rows, and what a look at it is asked as.
func snapshotOf(t *testing.T, rows int) (replica.Verify, *countedSnapshot) {
	t.Helper()
	engine := store.OpenMemory()
	if err := replica.Bootstrap(engine, []replica.Seed{{Shard: 3, ID: 1, Voters: []uint64{1}}}); err != nil {
		t.Fatal(err)
	}
	b := engine.NewBatch()
	for i := range rows {
		q := &storagev1.QueueSettings{Name: fmt.Sprintf("q-%05d", i)}
		value, err := q.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		b.Set(store.AppendKey(nil, 3, fsm.QueueKey(q.Name)), value)
	}
	if _, err := engine.Commit(b, false); err != nil {
		t.Fatal(err)
	}
	snap, err := engine.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	index, chain, err := replica.AppliedAt(snap, 3)
	if err != nil {
		t.Fatal(err)
	}
	return replica.Verify{Shard: 3, ID: "v", Index: index, Chain: chain}, &countedSnapshot{Snapshot: snap}
}

// countedSnapshot counts how often it is closed.
type countedSnapshot struct {
	store.Snapshot
	closed int
}

func (s *countedSnapshot) Close() error { s.closed++; return s.Snapshot.Close() }

// A look counts and hashes every row and closes what it was given, also when it ends early.
func TestLook(t *testing.T) {
	asked, rows := snapshotOf(t, 2500)
	found, err := look(t.Context(), lookJob{asked, rows})
	if err != nil || found.Rows != 2500 || found.Digest == 0 || found.ViolationCount != 0 || rows.closed != 1 {
		t.Errorf("%v %v, closed %d times", found, err, rows.closed)
	}
	asked, rows = snapshotOf(t, 2500)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = look(ended, lookJob{asked, rows}); !errors.Is(err, context.Canceled) || rows.closed != 1 {
		t.Errorf("%v, closed %d times", err, rows.closed)
	}
	asked, rows = snapshotOf(t, 1)
	asked.Index++
	if _, err = look(t.Context(), lookJob{asked, rows}); err == nil || rows.closed != 1 {
		t.Errorf("%v, closed %d times", err, rows.closed)
	}
}

// What is too much at once fails and is closed at once, and so is what comes after the end.
func TestVerifierIsBounded(t *testing.T) {
	v := newVerifier(slog.New(slog.DiscardHandler))
	if found := v.result(3, "0"); found.State != clusterv1.VerificationState_VERIFICATION_STATE_PENDING || found.Index != 0 {
		t.Errorf("%v", found)
	}
	var all []*countedSnapshot
	ask := func(id string) *clusterv1.VerificationResponse {
		asked, rows := snapshotOf(t, 1)
		asked.ID = id
		all = append(all, rows)
		v.ask(asked, rows)
		return v.result(asked.Shard, id)
	}
	for i := range maxLooks {
		if found := ask(fmt.Sprint(i)); found.State != clusterv1.VerificationState_VERIFICATION_STATE_PENDING || found.Index == 0 {
			t.Fatalf("%v", found)
		}
	}
	if found := ask("one more"); found.State != clusterv1.VerificationState_VERIFICATION_STATE_FAILED {
		t.Errorf("%v", found)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.run(ended); err != nil {
		t.Fatal(err)
	}
	if found := ask("late"); found.State != clusterv1.VerificationState_VERIFICATION_STATE_FAILED {
		t.Errorf("%v", found)
	}
	for i, rows := range all {
		if rows.closed != 1 {
			t.Errorf("snapshot %d is closed %d times", i, rows.closed)
		}
	}
	for i := range maxFindings + 10 {
		v.keep(replica.Verify{Shard: 1, ID: fmt.Sprint(i)}, &clusterv1.VerificationResponse{})
	}
	if len(v.findings) != maxFindings || len(v.order) != maxFindings {
		t.Errorf("%d findings are kept, %d keys", len(v.findings), len(v.order))
	}
}
