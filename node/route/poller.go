package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// PollerConfig is what NewPoller needs; Interested may be nil, and Stores: there are none.
type PollerConfig struct {
	// Leaders are the stores that lead a shard as far as this node knows. It must be cheap.
	Leaders func() []string
	// Stores are the other stores of the cluster. It is asked when a leader is not heard.
	Stores func() []string
	// ShardOf returns the shard of a job.
	ShardOf func(tenant, jobID string) uint32
	// Interested is called when Interest has grown, for the leaders to be told at once. It must not block.
	Interested func()
}

// Poller serves the polls that come to this node from all leaders. Its methods are safe for concurrent use; Run must run
// for leases of other nodes to be given back.
//
// A poll asks one leader at a time, each for what is still lacking, so that it never has more leases than it asked for.
// It uses its claim id at each of them.
type Poller struct {
	cfg      PollerConfig
	router   *Router
	local    Local
	self     string
	log      *slog.Logger
	hints    *hints
	claims   claims
	releases releases
	// turn makes polls begin at different leaders.
	turn atomic.Uint64
	// recheckAfter is the constant, except in tests.
	recheckAfter time.Duration
}

// NewPoller returns a poller that calls through router.
func NewPoller(router *Router, cfg PollerConfig) *Poller {
	if cfg.Stores == nil {
		cfg.Stores = func() []string { return nil }
	}
	return &Poller{
		cfg: cfg, router: router, local: router.cfg.Local, self: router.cfg.Self, log: router.cfg.Logger,
		hints: newHints(cfg.Interested), claims: newClaims(time.Now()),
		releases:     releases{wake: make(chan struct{}, 1), pending: map[string][]*clusterv1.LeaseRef{}},
		recheckAfter: recheckAfter,
	}
}

// Hinted takes in that a leader has work in queues: one waiting poll of each is woken to get it.
func (p *Poller) Hinted(store string, queues []string) {
	if store != p.self {
		p.router.counters.hints.Add(uint64(len(queues)))
		p.hints.mark(store, queues)
	}
}

// Interest is the queues of waiting polls, sorted, those that waited until a second ago included.
func (p *Poller) Interest() []string { return p.hints.interest(time.Now()) }

// Poll returns at least one lease, or none when the wait is over, and never more than req.Max. A retry of a claim gets
// the leases that are live under it. If ctx ends first, what was got is given back and ctx's error returned. Errors are
// those of rpc.Backend. The executions are shared and must not be changed.
func (p *Poller) Poll(ctx context.Context, req rpc.PollRequest) ([]*storagev1.Execution, error) {
	if p.cutOff() {
		return nil, errCutOff
	}
	f := &filling{p: p, ctx: ctx, req: &req, until: time.Now().Add(req.Wait)}
	others := p.others(p.turn.Add(1))
	if len(others) == 0 && !p.router.anySuspected() { // also a node on its own
		err := f.askHere(ctx, req.Max, req.Wait)
		return f.got, pollError(err)
	}
	if p.claims.maybeRetried(req.ClaimID, time.Now()) || p.router.disturbedWithin(claimMemory) {
		if leases, err := p.held(ctx, &req, others); err != nil || len(leases) > 0 {
			return leases, pollError(err)
		}
	}
	err := f.fill(others)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		p.Release(f.got)
		return nil, pollError(err)
	}
	return f.got, nil
}

// errCutOff sends a worker to another node.
var errCutOff = &rpc.Unavailable{Reason: "this node leads no shard and does not hear those that do", RetryAfter: retryAfter}

// cutOff says whether this node has nobody to ask: a worker that stayed here would get nothing, however much there is to do.
func (p *Poller) cutOff() bool {
	if !p.router.anySuspected() {
		return false
	}
	return !slices.ContainsFunc(p.cfg.Leaders(), func(store string) bool { return store == p.self || !p.router.Suspects(store) })
}

// Disturbed has waiting polls look anew at who can be asked: a store is suspected, or no longer.
func (p *Poller) Disturbed() { p.hints.wakeAll() }

// pollError says in the API's terms why a poll has no answer.
func pollError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, dispatch.ErrTooManyPolls):
		return &rpc.Overloaded{Reason: err.Error(), RetryAfter: overloadRetryAfter}
	case errors.Is(err, dispatch.ErrClaimInUse):
		return &rpc.Refused{Refusal: &fsm.Refusal{Code: fsm.AlreadyExists, Field: "claim_id", Message: err.Error()}}
	case errors.Is(err, dispatch.ErrInvalidPoll):
		return &rpc.Refused{Refusal: &fsm.Refusal{Code: fsm.InvalidArgument, Message: err.Error()}}
	}
	return apiError(err, true)
}

// held returns the live leases of a claim, asking every leader that can be asked, at once.
func (p *Poller) held(ctx context.Context, req *rpc.PollRequest, others []string) ([]*storagev1.Execution, error) {
	got, err := p.local.Held(req.ClaimID)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var wait errgroup.Group
	for _, store := range others {
		wait.Go(func() error {
			peer, err := p.router.peer(store)
			if err != nil {
				return nil
			}
			res, err := call(ctx, peer, peer.client.Held, &clusterv1.HeldRequest{Store: store, From: p.self, ClaimId: req.ClaimID})
			if err != nil {
				p.log.Debug("leases of a claim not asked for", slog.String("store", store), slog.Any("error", err))
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, res.Executions...)
			return nil
		})
	}
	_ = wait.Wait() // what cannot be reached cannot be asked
	return got[:min(len(got), req.Max)], ctx.Err()
}

// others are the other leaders, beginning with another one for each turn.
func (p *Poller) others(turn uint64) []string {
	var list []string
	for _, store := range p.cfg.Leaders() {
		if store != p.self {
			list = append(list, store)
		}
	}
	return rotated(list, turn)
}

func rotated(list []string, turn uint64) []string {
	if len(list) < 2 {
		return list
	}
	at := int(turn % uint64(len(list)))
	return append(append(make([]string, 0, len(list)), list[at:]...), list[:at]...)
}

// filling is one poll on its way through the leaders.
type filling struct {
	p     *Poller
	ctx   context.Context
	req   *rpc.PollRequest
	until time.Time
	got   []*storagev1.Execution
	// asked are the other leaders that were asked before it waits.
	asked []string
}

// lacks is how many more leases it may take on.
func (f *filling) lacks() int { return f.req.Max - len(f.got) }

// fill takes what is there, or waits for the first. Those that are known to have something are asked in turn, this node
// among them, so that much work here does not starve theirs; for the same reason all are asked once in a while.
func (f *filling) fill(others []string) error {
	var first []string
	if f.p.hints.neglected(f.req.Queues, time.Now(), neglectAfter) {
		first = append(slices.Clone(others), f.p.self)
	} else {
		first = rotated(append(f.p.hints.known(f.req.Queues), f.p.self), f.p.turn.Load())
	}
	if err := f.askAll(first); err != nil {
		return err
	}
	for _, store := range others {
		if len(f.got) > 0 {
			break
		}
		if err := f.askOnce(store); err != nil {
			return err
		}
	}
	if len(f.got) > 0 || f.req.Wait <= 0 {
		return nil
	}
	return f.wait()
}

// askOnce asks a leader that has not been asked yet.
func (f *filling) askOnce(store string) error {
	if slices.Contains(f.asked, store) {
		return nil
	}
	return f.ask(store)
}

// ask takes from one leader, without waiting, what is still lacking. Errors are this node's own or the caller's: a peer
// that does not answer is passed over, unless nothing else was got and it may have leased something.
func (f *filling) ask(store string) error {
	lacks := f.lacks()
	if lacks <= 0 {
		return nil
	}
	if store == f.p.self {
		return f.askHere(f.ctx, lacks, 0)
	}
	if err := f.ctx.Err(); err != nil {
		return err
	}
	f.asked = append(f.asked, store)
	f.p.hints.clear(store, f.req.Queues)
	leases, err := f.p.askPeer(f.ctx, store, f.req, lacks)
	if err != nil {
		f.p.log.Debug("leader not polled", slog.String("store", store), slog.Any("error", err))
		var unavailable *rpc.Unavailable
		if errors.As(err, &unavailable) && unavailable.Ambiguous && len(f.got) == 0 {
			return unavailable // it may have leased something: "nothing" would be wrong, and a retry of the claim finds it
		}
		return nil
	}
	f.got = append(f.got, leases...)
	if len(leases) == lacks {
		f.p.hints.mark(store, f.req.Queues) // there may be more
	}
	return nil
}

// askHere polls the local dispatcher.
func (f *filling) askHere(ctx context.Context, lacks int, wait time.Duration) error {
	leases, err := f.p.local.Poll(ctx, dispatch.PollRequest{
		ClaimID: f.req.ClaimID, Worker: f.req.Worker, Queues: f.req.Queues, Max: lacks, LeaseMS: f.req.LeaseMS, Wait: wait,
	})
	if errors.Is(err, dispatch.ErrClaimInUse) && len(f.got) > 0 {
		return nil // another call of the claim waits here; this one has something to answer
	}
	f.got = append(f.got, leases...)
	return err
}

// wait waits at the local dispatcher, and goes to a leader that hints meanwhile. The two never overlap, so that both
// together do not bring more than was asked for.
func (f *filling) wait() error {
	w := f.p.hints.enter(f.req.Queues)
	defer f.p.hints.leave(w)
	for early := 0; early < maxEarlyEnds; {
		left := time.Until(f.until)
		if left <= 0 {
			return nil
		}
		recheck := f.p.recheckAfter
		if f.p.router.anySuspected() {
			if recheck = min(recheck, disturbedRecheck); f.p.cutOff() {
				return errCutOff
			}
		}
		ctx, cancel := context.WithCancel(f.ctx)
		f.p.hints.arm(w, cancel)
		began := time.Now()
		err := f.askHere(ctx, f.lacks(), min(left, recheck))
		woken := f.p.hints.disarm(w)
		cancel()
		switch {
		case len(f.got) > 0:
			return nil
		case f.ctx.Err() != nil:
			return f.ctx.Err()
		case !woken && err != nil:
			return err
		case woken:
			early, err = 0, f.askAll(rotated(f.p.hints.known(f.req.Queues), f.p.turn.Add(1)))
		case time.Since(began) < min(left, recheck):
			early++
		case time.Until(f.until) > 0 && f.p.hints.neglected(f.req.Queues, time.Now(), recheck):
			early, err = 0, f.askAll(f.p.others(f.p.turn.Add(1)))
		}
		if err != nil || len(f.got) > 0 {
			return err
		}
	}
	return nil
}

// askAll takes from one leader after the other until nothing is lacking.
func (f *filling) askAll(stores []string) error {
	for _, store := range stores {
		if err := f.ask(store); err != nil {
			return err
		}
	}
	return nil
}

// askPeer polls another leader without waiting, through a third node if this one does not hear it. The call goes on when the caller leaves, so that what it brings is known
// and can be given back; if its answer is lost it is made once more, which finds the same leases.
func (p *Poller) askPeer(ctx context.Context, store string, req *rpc.PollRequest, most int) ([]*storagev1.Execution, error) {
	via := p.via(store)
	peer, err := p.router.peer(via)
	if err != nil {
		return nil, err
	}
	p.router.counters.polls.Add(1)
	if via != store {
		p.router.counters.relayed.Add(1)
	}
	p.claims.remember(req.ClaimID, time.Now())
	ctx = context.WithoutCancel(ctx)
	msg := &clusterv1.PollRequest{
		Store: store, From: p.self, ClaimId: req.ClaimID, Worker: req.Worker, Queues: req.Queues, Max: uint32(most), LeaseMs: req.LeaseMS,
		Relay: via != store,
	}
	res, err := call(ctx, peer, peer.client.Poll, msg)
	var unavailable *rpc.Unavailable
	if errors.As(err, &unavailable) && unavailable.Ambiguous {
		doubt := unavailable
		if res, err = call(ctx, peer, peer.client.Poll, msg); err != nil {
			return nil, doubt
		}
	}
	switch {
	case err != nil:
		return nil, err
	case len(res.Executions) > most:
		p.Release(res.Executions)
		return nil, fmt.Errorf("poll store %s: %d leases for %d", store, len(res.Executions), most)
	}
	p.router.counters.leases.Add(uint64(len(res.Executions)))
	return res.Executions, nil
}
