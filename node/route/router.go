package route

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Router takes commands to the nodes that lead their shards. Its methods are safe for concurrent use.
type Router struct {
	cfg Config
	// disturbed is when a peer was last suspected or this router was made: Unix nanoseconds.
	disturbed atomic.Int64
	counters  counters

	mu    sync.Mutex
	peers map[string]*peer
}

// New returns a router. It makes no call before it is asked to.
func New(cfg Config) *Router {
	r := &Router{cfg: cfg.withDefaults(), peers: map[string]*peer{}}
	r.disturbed.Store(time.Now().UnixNano())
	return r
}

// Do is DoAll for one command. If ctx ends first its error is returned and the outcome is unknown, unless the command
// never left this node.
func (r *Router) Do(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error) {
	out := r.DoAll(ctx, []rpc.ShardCommand{{Shard: shard, Command: cmd}})[0]
	var unavailable *rpc.Unavailable
	if ctx.Err() != nil && errors.As(out.Err, &unavailable) && unavailable.Ambiguous {
		return fsm.Result{}, fmt.Errorf("wait for shard %d: %w", shard, ctx.Err())
	}
	return out.Result, out.Err
}

// DoAll takes commands to their leaders: those for shards led here to the local host, all others in one call per node, at
// once. The outcomes are in the order of the commands, with the errors of rpc.Backend. A command that did nothing because
// its leader was thought to be elsewhere is sent again, at most twice; one whose outcome is unknown never is.
func (r *Router) DoAll(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome {
	b := &batch{r: r, cmds: cmds, outcomes: make([]rpc.Outcome, len(cmds))}
	groups := map[string][]int{}
	for i := range cmds {
		store := r.leader(cmds[i].Shard)
		groups[store] = append(groups[store], i)
	}
	b.send(ctx, groups, 1)
	return b.outcomes
}

// leader is the store to ask first for a shard: without a known leader it is this one, which may know better.
func (r *Router) leader(shard uint32) string {
	if store := r.cfg.Leader(shard); store != "" {
		return store
	}
	return r.cfg.Self
}

// Suspect tells that the transport does not hear a store, or hears it again: calls to it fail at once, or go again.
func (r *Router) Suspect(store string, is bool) {
	r.mu.Lock()
	p := r.peers[store]
	r.mu.Unlock()
	if p == nil && is {
		p, _ = r.peer(store)
	}
	if is {
		r.disturbed.Store(time.Now().UnixNano())
	}
	if p != nil {
		p.suspect(is)
	}
}

// Suspects says whether the transport has told that it does not hear a store, or is not heard by it.
func (r *Router) Suspects(store string) bool {
	r.mu.Lock()
	p := r.peers[store]
	r.mu.Unlock()
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.suspected
}

// anySuspected says whether any store is suspected.
func (r *Router) anySuspected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		p.mu.Lock()
		is := p.suspected
		p.mu.Unlock()
		if is {
			return true
		}
	}
	return false
}

// disturbedWithin says whether a node was lost, or this one started, no longer ago than d: callers of a lost one may have
// come here with claims that they began there.
func (r *Router) disturbedWithin(d time.Duration) bool {
	return time.Since(time.Unix(0, r.disturbed.Load())) < d
}

// Open says whether calls to a store fail at once for now.
func (r *Router) Open(store string) bool {
	r.mu.Lock()
	p := r.peers[store]
	r.mu.Unlock()
	return p != nil && p.open()
}

// NodeStatus asks a store's node for its status.
func (r *Router) NodeStatus(
	ctx context.Context, store string, req *clusterv1.NodeStatusRequest,
) (*clusterv1.NodeStatusResponse, error) {
	p, err := r.peer(store)
	if err != nil {
		return nil, err
	}
	return call(ctx, p, p.client.NodeStatus, req)
}

// Transfer has a store's node hand leaderships over, at most 1,024. The reasons say, in the order of the handovers, why
// each has not gone within the time of one call; empty: it has.
func (r *Router) Transfer(ctx context.Context, store string, handovers []*clusterv1.Handover) (reasons []string, err error) {
	p, err := r.peer(store)
	if err != nil {
		return nil, err
	}
	res, err := call(ctx, p, p.client.Transfer, &clusterv1.TransferRequest{Store: store, From: r.cfg.Self, Handovers: handovers})
	switch {
	case err != nil:
		return nil, err
	case len(res.Reasons) != len(handovers):
		return nil, fmt.Errorf("call store %s: %d reasons for %d handovers", store, len(res.Reasons), len(handovers))
	}
	return res.Reasons, nil
}

// Verification asks a store's node what its replica of a shard found at a Verify command.
func (r *Router) Verification(ctx context.Context, store string, shard uint32, id string) (*clusterv1.VerificationResponse, error) {
	p, err := r.peer(store)
	if err != nil {
		return nil, err
	}
	return call(ctx, p, p.client.Verification, &clusterv1.VerificationRequest{Store: store, From: r.cfg.Self, Shard: shard, Id: id})
}

// peer returns the store's peer where it is now.
func (r *Router) peer(store string) (*peer, error) {
	addr, ok := r.cfg.Dial(store)
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.peers[store]
	switch {
	case p != nil && ok && p.addr == addr:
		return p, nil
	case p != nil:
		p.close()
		delete(r.peers, store)
	}
	if !ok {
		return nil, &rpc.Unavailable{Reason: fmt.Sprintf("the address of store %s is not known", store), RetryAfter: retryAfter}
	}
	p = newPeer(store, addr, NewClient(r.cfg.HTTP, r.cfg.Scheme, addr), &r.counters)
	r.peers[store] = p
	return p, nil
}

// batch is the commands of one DoAll. Every index belongs to one group at a time, whose goroutine alone writes its outcome.
type batch struct {
	r        *Router
	cmds     []rpc.ShardCommand
	outcomes []rpc.Outcome
}

// send takes groups of commands, by index, each to its store, and returns when all have an outcome.
func (b *batch) send(ctx context.Context, groups map[string][]int, attempt int) {
	var wait errgroup.Group
	var last func()
	for store, at := range groups {
		for piece := range b.pieces(store, at) {
			if last != nil {
				one := last
				wait.Go(func() error { one(); return nil })
			}
			last = func() { b.sendTo(ctx, store, piece, attempt) }
		}
	}
	if last != nil {
		last() // on this goroutine: most batches have one group
	}
	_ = wait.Wait() // none returns an error
}

// pieces cuts what goes to another node into calls.
func (b *batch) pieces(store string, at []int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		if store == b.r.cfg.Self || len(at) == 1 {
			yield(at)
			return
		}
		from, bytes := 0, 0
		for n, i := range at {
			size := b.cmds[i].Command.SizeVT()
			if n > from && (n-from == maxCallCommands || bytes+size > maxCallBytes) {
				if !yield(at[from:n]) {
					return
				}
				from, bytes = n, 0
			}
			bytes += size
		}
		yield(at[from:])
	}
}

// sendTo sends commands to one store and, those that did nothing there, on to where the answer points.
func (b *batch) sendTo(ctx context.Context, store string, at []int, attempt int) {
	cmds := b.cmds
	if len(at) < len(cmds) {
		cmds = make([]rpc.ShardCommand, len(at))
		for k, i := range at {
			cmds[k] = b.cmds[i]
		}
	}
	var again map[string][]int
	for k, out := range b.r.propose(ctx, store, cmds) {
		i := at[k]
		if attempt < maxAttempts && ctx.Err() == nil {
			if next := b.r.next(store, cmds[k].Shard, &out); next != "" {
				if again == nil {
					again = map[string][]int{}
				}
				again[next] = append(again[next], i)
				b.r.counters.commandsAgain.Add(1)
				continue
			}
		}
		b.outcomes[i] = b.r.settle(store, out)
	}
	if again != nil {
		b.send(ctx, again, attempt+1)
	}
}

// propose makes one attempt at one store, this one or another.
func (r *Router) propose(ctx context.Context, store string, cmds []rpc.ShardCommand) []rpc.Outcome {
	if store == r.cfg.Self {
		return r.cfg.Local.Propose(ctx, cmds)
	}
	p, err := r.peer(store)
	if err != nil {
		return all(len(cmds), err)
	}
	req := &clusterv1.ProposeRequest{Store: store, From: r.cfg.Self, Commands: make([]*clusterv1.ShardCommand, len(cmds))}
	for i := range cmds {
		req.Commands[i] = &clusterv1.ShardCommand{Shard: cmds[i].Shard, Command: cmds[i].Command}
	}
	r.counters.commands.Add(uint64(len(cmds)))
	res, err := call(ctx, p, p.client.Propose, req)
	switch {
	case err != nil:
		return all(len(cmds), err)
	case len(res.Outcomes) != len(cmds):
		return all(len(cmds), fmt.Errorf("call store %s: %d outcomes for %d commands", store, len(res.Outcomes), len(cmds)))
	}
	outcomes := make([]rpc.Outcome, len(cmds))
	for i, o := range res.Outcomes {
		outcomes[i] = decodeOutcome(o)
	}
	return outcomes
}

// all is the same error n times.
func all(n int, err error) []rpc.Outcome { return slices.Repeat([]rpc.Outcome{{Err: err}}, n) }

// next is where a command that did nothing at store should be tried again; empty if nowhere, or if it may have done
// something.
func (r *Router) next(store string, shard uint32, out *rpc.Outcome) string {
	var notLeader *replica.NotLeaderError
	var unavailable *rpc.Unavailable
	hint := ""
	switch {
	case out.Err == nil && (out.Result.Refusal == nil || out.Result.Refusal.Code != fsm.StaleTerm):
		return ""
	case out.Err == nil, errors.Is(out.Err, replica.ErrNoReplica), errors.Is(out.Err, replica.ErrStopped):
	case errors.As(out.Err, &notLeader):
		hint = notLeader.Store
	case errors.As(out.Err, &unavailable) && !unavailable.Ambiguous:
	default:
		return ""
	}
	if hint == "" {
		hint = r.cfg.Leader(shard)
	}
	if hint == store {
		return ""
	}
	return hint
}

// settle says in the API's terms what came of a command at store.
func (r *Router) settle(store string, out rpc.Outcome) rpc.Outcome {
	switch {
	case out.Err != nil:
		out.Err = apiError(out.Err, store == r.cfg.Self)
	case out.Result.Refusal != nil && out.Result.Refusal.Code == fsm.StaleTerm:
		return rpc.Outcome{Err: &rpc.Unavailable{Reason: "the shard's leader has changed", RetryAfter: retryAfter}}
	}
	return out
}

// apiError says in the API's terms what a replica, here or elsewhere, answered; what it does not know it leaves.
func apiError(err error, here bool) error {
	var notLeader *replica.NotLeaderError
	var unavailable *rpc.Unavailable
	switch {
	case errors.As(err, &unavailable):
		return unavailable // without what the call returned
	case errors.As(err, &notLeader), errors.Is(err, replica.ErrNoReplica), errors.Is(err, replica.ErrStopped) && !here:
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: retryAfter}
	case errors.Is(err, replica.ErrAmbiguous):
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: retryAfter, Ambiguous: true}
	case errors.Is(err, replica.ErrOverloaded):
		return &rpc.Overloaded{Reason: err.Error(), RetryAfter: overloadRetryAfter}
	case errors.Is(err, replica.ErrStopped):
		return &rpc.Unavailable{Reason: "the node is stopping", RetryAfter: stoppedRetryAfter}
	case errors.Is(err, replica.ErrTooLarge):
		return &rpc.Refused{Refusal: &fsm.Refusal{Code: fsm.InvalidArgument, Message: err.Error()}}
	}
	return err
}
