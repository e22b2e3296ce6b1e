package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

var _ rpc.Backend = (*Node)(nil)

// retryAfter is what a caller is told to wait when a leader is missing.
const retryAfter = 100 * time.Millisecond

// Shards returns the shards of the cluster, in order.
func (n *Node) Shards() []uint32 { return n.slots.shards }

// ShardOf returns the shard of a job and of its executions.
func (n *Node) ShardOf(tenant, jobID string) uint32 { return n.slots.shardOf(tenant, jobID) }

// NowMS is the disciplined clock.
func (n *Node) NowMS() int64 { return n.guard.Now() }

// Do puts cmd through the log of shard, wherever that is led.
func (n *Node) Do(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error) {
	if n.router != nil {
		res, err := n.router.Do(ctx, shard, cmd)
		return outcome(res, err)
	}
	res, err := n.host.Do(ctx, shard, cmd)
	return outcome(res, err)
}

// DoAll puts several commands through the logs of their shards at once.
func (n *Node) DoAll(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome {
	var all []rpc.Outcome
	if n.router != nil {
		all = n.router.DoAll(ctx, cmds)
	} else {
		all = (&local{n}).Propose(ctx, cmds)
	}
	for i := range all {
		all[i].Result, all[i].Err = outcome(all[i].Result, all[i].Err)
	}
	return all
}

// outcome says in the API's terms what came of a command.
func outcome(res fsm.Result, err error) (fsm.Result, error) {
	if err != nil {
		return fsm.Result{}, backendError(err)
	}
	if res.Refusal != nil && res.Refusal.Code == fsm.StaleTerm {
		return fsm.Result{}, &rpc.Unavailable{Reason: "the shard's leader has changed", RetryAfter: retryAfter}
	}
	return res, nil
}

// View calls fn with the shard's committed rows, all of one moment: of the replica here, or of another node's.
func (n *Node) View(ctx context.Context, shard uint32, stale bool, fn func(fsm.Reader) error) error {
	if s, _ := n.host.StatusOf(shard); n.router != nil && !slices.Contains(s.Conf.Voters, s.ReplicaID) {
		return n.router.View(ctx, shard, stale, n.readersOf(shard), fn)
	}
	return backendError((&local{n}).View(ctx, shard, stale, fn))
}

// readersOf are the other stores that can read a shard, its leader's first.
func (n *Node) readersOf(shard uint32) (stores []string) {
	add := func(store string) {
		if store != "" && store != n.dir.Ident().StoreUUID && !slices.Contains(stores, store) {
			stores = append(stores, store)
		}
	}
	add(n.leaderOf(shard))
	placed := n.placement.stores(shard)
	for _, id := range slices.Sorted(maps.Keys(placed)) {
		add(placed[id])
	}
	return stores
}

// snapshot reads the shard's rows as they stand.
func (n *Node) snapshot(shard uint32, fn func(fsm.Reader) error) (err error) {
	snap, err := n.engine.NewSnapshot()
	if err != nil {
		return err
	}
	// Also when a row that cannot be read panics: an open snapshot holds compactions back.
	defer func() { err = errors.Join(err, snap.Close()) }()
	r := store.NewReader(snap, shard)
	return errors.Join(fn(r), r.Err())
}

// Poll waits for work, of this node's shards and of the others'.
func (n *Node) Poll(ctx context.Context, req rpc.PollRequest) ([]*storagev1.Execution, error) {
	if n.poller != nil {
		return n.poller.Poll(ctx, req)
	}
	leases, err := n.dispatcher.Poll(ctx, dispatch.PollRequest{
		ClaimID: req.ClaimID, Worker: req.Worker, Queues: req.Queues, Max: req.Max, LeaseMS: req.LeaseMS, Wait: req.Wait,
	})
	switch {
	case err == nil:
		return leases, nil
	case errors.Is(err, dispatch.ErrTooManyPolls):
		return nil, &rpc.Overloaded{Reason: err.Error(), RetryAfter: time.Second}
	case errors.Is(err, dispatch.ErrClaimInUse):
		return nil, &rpc.Refused{Refusal: &fsm.Refusal{Code: fsm.AlreadyExists, Field: "claim_id", Message: err.Error()}}
	case errors.Is(err, dispatch.ErrInvalidPoll):
		return nil, &rpc.Refused{Refusal: &fsm.Refusal{Code: fsm.InvalidArgument, Message: err.Error()}}
	default:
		return nil, backendError(err)
	}
}

// Release gives leases back, uncounted.
func (n *Node) Release(leases []*storagev1.Execution) {
	if n.poller != nil {
		n.poller.Release(leases)
		return
	}
	n.dispatcher.Release(leases)
}

// backendError says in the API's terms what the replicas answered.
func backendError(err error) error {
	var notLeader *replica.NotLeaderError
	switch {
	case errors.As(err, &notLeader):
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: retryAfter}
	case errors.Is(err, replica.ErrAmbiguous):
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: retryAfter, Ambiguous: true}
	case errors.Is(err, store.ErrReplaced), errors.Is(err, replica.ErrNoReplica):
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: retryAfter}
	case errors.Is(err, replica.ErrOverloaded):
		return &rpc.Overloaded{Reason: err.Error(), RetryAfter: shedRetryAfter}
	case errors.Is(err, replica.ErrStopped):
		return &rpc.Unavailable{Reason: "the node is stopping", RetryAfter: time.Second}
	case errors.Is(err, replica.ErrTooLarge):
		return &rpc.Refused{Refusal: &fsm.Refusal{Code: fsm.InvalidArgument, Message: err.Error()}}
	default:
		return err
	}
}
