package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// verifyAtOnce is how many shards of one call are verified at a time.
	verifyAtOnce = 2
	// verifyAttempts is how often a shard is verified that not all replicas could be looked at of: a leader changes, a
	// snapshot replaces the rows.
	verifyAttempts = 2
	// findingsFirst and findingsLast are the pauses between two questions whether a replica has looked; they double.
	findingsFirst = 10 * time.Millisecond
	findingsLast  = time.Second
	// findingsSilent is for how long a node may not answer, findingsBehind for how long its replica may be behind the entry,
	// and maxLook for how long it may look.
	findingsSilent = 2 * time.Second
	findingsBehind = 30 * time.Second
	maxLook        = 10 * time.Minute
	// quietPause is the shortest pause between two shards that are verified unasked.
	quietPause = time.Second
)

// verdicts are what verifications that were asked for on this node have found.
type verdicts struct {
	runs, violations atomic.Uint64

	mu sync.Mutex
	// wrong are the shards that the last verification found something wrong of. Guarded by mu.
	wrong map[uint32]string
}

// VerifyShards verifies shards, all if none is named, and returns a report for each in order. It implements rpc.Verifier.
func (n *Node) VerifyShards(ctx context.Context, shards []uint32) ([]rpc.ShardVerification, error) {
	known := n.Shards()
	if len(shards) == 0 {
		shards = known
	}
	for _, shard := range shards {
		if !slices.Contains(known, shard) {
			return nil, refuse(fsm.NotFound, "shards", "there is no shard %d", shard)
		}
	}
	reports := make([]rpc.ShardVerification, len(shards))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(verifyAtOnce)
	for i, shard := range shards {
		group.Go(func() (err error) {
			reports[i], err = n.verifyShard(groupCtx, shard)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return reports, nil
}

// verifyShard verifies one shard, again if that was incomplete. Its error is that of ctx, or of this node.
func (n *Node) verifyShard(ctx context.Context, shard uint32) (report rpc.ShardVerification, err error) {
	for attempt := range verifyAttempts {
		if attempt > 0 && pause(ctx, time.Second) != nil {
			break
		}
		if report, err = n.verifyOnce(ctx, shard); err != nil {
			return report, err
		}
		if report.Result != rpc.VerifyIncomplete {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return report, err
	}
	n.noteVerdict(report)
	return report, nil
}

func (n *Node) verifyOnce(ctx context.Context, shard uint32) (rpc.ShardVerification, error) {
	voters, err := n.votersOf(ctx, shard)
	if err != nil {
		return rpc.ShardVerification{}, err
	}
	report := rpc.ShardVerification{Shard: shard}
	if len(voters) == 0 {
		report.Problems = []string{"its replicas are not known: no node that has one answers"}
		report.Result = rpc.VerifyIncomplete
		return report, nil
	}
	id := rand.Text()
	res, err := n.Do(ctx, shard, &storagev1.Command{RequestId: id, Verify: &storagev1.Verify{Id: id}})
	if err == nil && res.Refusal != nil {
		err = errors.New(res.Refusal.Message)
	}
	if err != nil {
		report.Problems = []string{"nothing could be put into its log: " + err.Error()}
		report.Result = rpc.VerifyIncomplete
		return report, nil
	}
	report.Replicas = make([]rpc.ReplicaVerification, len(voters))
	group := new(errgroup.Group)
	for i, voter := range voters {
		group.Go(func() error {
			report.Replicas[i] = n.awaitFindings(ctx, voter, shard, id)
			return nil
		})
	}
	_ = group.Wait() // nobody fails
	slices.SortFunc(report.Replicas, func(a, b rpc.ReplicaVerification) int { return cmp.Compare(a.Node, b.Node) })
	judge(&report)
	return report, nil
}

// voter is where a replica with a vote is.
type voter struct{ store, node string }

// votersOf are the shard's voters as its leader has them, or else as anybody does.
func (n *Node) votersOf(ctx context.Context, shard uint32) (voters []voter, err error) {
	status, err := n.Cluster(ctx, 0)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, node := range status.Nodes {
		names[node.Store] = node.Name
	}
	for _, s := range status.Shards {
		if s.ID != shard {
			continue
		}
		for _, store := range s.ReplicaStores {
			voters = append(voters, voter{store, cmp.Or(names[store], store)})
		}
	}
	return voters, nil
}

// awaitFindings asks a voter's node until its replica has looked, or cannot be waited for any longer.
func (n *Node) awaitFindings(ctx context.Context, v voter, shard uint32, id string) rpc.ReplicaVerification {
	began, heard, until := time.Now(), time.Now(), findingsBehind
	for wait := findingsFirst; ; wait = min(2*wait, findingsLast) {
		found, err := n.findings(ctx, v.store, shard, id)
		reason := ""
		switch {
		case err != nil:
			reason = err.Error()
		case found.State == clusterv1.VerificationState_VERIFICATION_STATE_DONE:
			return replicaVerification(v.node, found)
		case found.State == clusterv1.VerificationState_VERIFICATION_STATE_FAILED:
			return rpc.ReplicaVerification{Node: v.node, Reason: found.Reason}
		case found.State == clusterv1.VerificationState_VERIFICATION_STATE_NO_REPLICA:
			reason = "it is not there"
		case found.Index == 0:
			heard, reason = time.Now(), "it has not come to this entry"
		default:
			heard, until, reason = time.Now(), maxLook, "it has not come to an end of it"
		}
		if time.Since(heard) > findingsSilent || time.Since(began) > until || pause(ctx, wait) != nil {
			return rpc.ReplicaVerification{Node: v.node, Reason: reason}
		}
	}
}

// findings asks a store's node, which may be this one, what its replica has found.
func (n *Node) findings(ctx context.Context, store string, shard uint32, id string) (*clusterv1.VerificationResponse, error) {
	if store == n.dir.Ident().StoreUUID {
		return n.Verification(ctx, &clusterv1.VerificationRequest{Shard: shard, Id: id})
	}
	return n.router.Verification(ctx, store, shard, id)
}

func replicaVerification(node string, found *clusterv1.VerificationResponse) rpc.ReplicaVerification {
	r := rpc.ReplicaVerification{
		Node: node, Done: true, Index: found.Index, Chain: found.Chain, Digest: found.Digest, Rows: found.Rows,
		ViolationCount: found.ViolationCount,
	}
	for _, v := range found.Violations {
		r.Violations = append(r.Violations, fsm.Violation{Rule: v.Rule, Key: v.Key, Detail: v.Detail})
	}
	return r
}

// judge compares what the replicas of a shard found, and says what is wrong.
func judge(report *rpc.ShardVerification) {
	report.Result = rpc.VerifyOK
	wrong := func(problem string) {
		report.Result = rpc.VerifyWrong
		report.Problems = append(report.Problems, problem)
	}
	var done []rpc.ReplicaVerification
	for _, r := range report.Replicas {
		if r.Done {
			done = append(done, r)
			continue
		}
		report.Result = rpc.VerifyIncomplete
		report.Problems = append(report.Problems, fmt.Sprintf("the replica on %s was not looked at: %s", r.Node, r.Reason))
	}
	if len(done) == 0 {
		return
	}
	report.Index = done[0].Index
	for _, what := range []struct {
		name string
		of   func(rpc.ReplicaVerification) string
	}{
		{"applied entries", func(r rpc.ReplicaVerification) string { return fmt.Sprint(r.Index) }},
		{"hash chains", func(r rpc.ReplicaVerification) string { return fmt.Sprintf("%016x", r.Chain) }},
		{"rows", func(r rpc.ReplicaVerification) string { return fmt.Sprintf("%016x (%d)", r.Digest, r.Rows) }},
	} {
		if parties := partiesBy(done, what.of); len(parties) > 1 {
			wrong(fmt.Sprintf("replicas have different %s: %s", what.name, strings.Join(parties, "; ")))
		}
	}
	for _, r := range done {
		switch { // what another node says may be of another version: a count alone is believed, too
		case len(r.Violations) > 0:
			wrong(fmt.Sprintf("%d things do not hold on %s, the first: %s", r.ViolationCount, r.Node, r.Violations[0]))
		case r.ViolationCount > 0:
			wrong(fmt.Sprintf("%d things do not hold on %s", r.ViolationCount, r.Node))
		}
	}
}

// partiesBy says which nodes agree on something.
func partiesBy(replicas []rpc.ReplicaVerification, of func(rpc.ReplicaVerification) string) (parties []string) {
	var values []string
	nodes := map[string][]string{}
	for _, r := range replicas {
		value := of(r)
		if nodes[value] == nil {
			values = append(values, value)
		}
		nodes[value] = append(nodes[value], r.Node)
	}
	for _, value := range values {
		parties = append(parties, strings.Join(nodes[value], ", ")+": "+value)
	}
	return parties
}

// noteVerdict counts a verification, and raises the alarm or ends it.
func (n *Node) noteVerdict(report rpc.ShardVerification) {
	v := &n.verdicts
	v.runs.Add(1)
	v.mu.Lock()
	defer v.mu.Unlock()
	switch report.Result {
	case rpc.VerifyWrong:
		v.violations.Add(uint64(len(report.Problems)))
		if v.wrong == nil {
			v.wrong = map[uint32]string{}
		}
		v.wrong[report.Shard] = report.Problems[0]
		n.logger.Error("a verification found something wrong", "shard", report.Shard, "index", report.Index,
			"problems", report.Problems)
	case rpc.VerifyOK:
		delete(v.wrong, report.Shard)
	case rpc.VerifyIncomplete:
		n.logger.Debug("a verification is incomplete", "shard", report.Shard, "problems", report.Problems)
	}
	message := ""
	for shard, problem := range v.wrong {
		message = fmt.Sprintf("%d shards are not as they should be; shard %d: %s", len(v.wrong), shard, problem)
		break
	}
	n.alarms.set("verify", len(v.wrong) > 0, message)
}

// verifyQuietly verifies each shard that is led here once in VerifyEvery, one after the other, until ctx ends.
func (n *Node) verifyQuietly(ctx context.Context) error {
	if n.cfg.VerifyEvery == 0 {
		return nil
	}
	last := int64(-1)
	for {
		led := n.shardsToKeep()
		if pause(ctx, max(n.cfg.VerifyEvery/time.Duration(max(1, len(led))), quietPause)) != nil {
			return nil
		}
		if led = n.shardsToKeep(); len(led) == 0 {
			continue
		}
		next := led[0]
		if i := slices.IndexFunc(led, func(shard uint32) bool { return int64(shard) > last }); i >= 0 {
			next = led[i]
		}
		last = int64(next)
		if _, err := n.verifyShard(ctx, next); err != nil && ctx.Err() == nil {
			n.logger.Debug("verification waits", "shard", next, "error", err)
		}
	}
}
