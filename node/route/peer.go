package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1/clusterv1connect"
	"github.com/carillon-scheduler/carillon/rpc"
)

// peer is another node: where it is, what calls to it may still go, and whether they should.
type peer struct {
	store  string
	addr   string
	client clusterv1connect.NodeServiceClient
	// places has one element per call under way.
	places   chan struct{}
	counters *counters

	mu      sync.Mutex
	breaker breaker
	// suspected: the transport does not hear it, or it does not hear this node.
	suspected bool
	// life ends, and is replaced, when the transport suspects the peer: so do the calls under way.
	life context.Context
	end  context.CancelFunc
}

func newPeer(store, addr string, client clusterv1connect.NodeServiceClient, c *counters) *peer {
	p := &peer{store: store, addr: addr, client: client, places: make(chan struct{}, maxCallsPerPeer), counters: c}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// suspect trips the breaker and ends the calls under way, or closes it.
func (p *peer) suspect(is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.suspected = is
	if !is {
		p.breaker = breaker{}
		return
	}
	p.breaker.trip(time.Now())
	p.end()
	p.life, p.end = context.WithCancel(context.Background())
}

// close ends the calls under way of a peer that is not used any more.
func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// open says whether calls fail at once now.
func (p *peer) open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, open := p.breaker.open(time.Now())
	return open
}

// call makes one call within attemptTimeout. Its error is a *rpc.Unavailable or, if all places are taken, a
// *rpc.Overloaded; it is ambiguous only if the call has left this node and no answer came, or one that does not tell.
// Errors that the peer answered are wrapped, for callers that know them.
func (p *peer) call(ctx context.Context, do func(context.Context) error) error {
	attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	p.mu.Lock()
	wait, open := p.breaker.open(time.Now())
	life := p.life
	p.mu.Unlock()
	if open {
		return p.away(wait)
	}
	stop := context.AfterFunc(life, cancel)
	defer stop()
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	case <-attempt.Done():
		if life.Err() != nil {
			return p.away(minCoolDown)
		}
		return p.full(ctx)
	}
	p.mu.Lock()
	probe, wait, ok := p.breaker.admit(time.Now())
	p.mu.Unlock()
	if !ok {
		return p.away(wait)
	}
	var left atomic.Bool
	began := time.Now()
	err := do(httptrace.WithClientTrace(attempt, &httptrace.ClientTrace{
		// A call may be tried on another connection when the first one proves to be closed before anything was sent.
		GetConn: func(string) { left.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { left.Store(true) },
	}))
	result := judge(ctx, attempt, err, left.Load(), time.Since(began))
	p.counters.calls.Add(1)
	if result == failed || result == unreachable {
		p.counters.callsFailed.Add(1)
	}
	p.mu.Lock()
	p.breaker.done(time.Now(), probe, result)
	p.mu.Unlock()
	if err == nil {
		return nil
	}
	return &callError{err: err, unavailable: rpc.Unavailable{
		Reason:     fmt.Sprintf("call store %s at %s: %v", p.store, p.addr, err),
		RetryAfter: retryAfter, Ambiguous: left.Load() && !harmless(err),
	}}
}

// call makes one call of p.client: see peer.call.
func call[Req, Res any](
	ctx context.Context, p *peer, method func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), req *Req,
) (*Res, error) {
	var res *connect.Response[Res]
	if err := p.call(ctx, func(ctx context.Context) (err error) {
		res, err = method(ctx, connect.NewRequest(req))
		return err
	}); err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// away is the error of a call that the breaker keeps back.
func (p *peer) away(wait time.Duration) error {
	return &rpc.Unavailable{
		Reason:     fmt.Sprintf("store %s at %s does not answer", p.store, p.addr),
		RetryAfter: max(wait, minCoolDown/10),
	}
}

// full is the error of a call that has found no place within its time, or its caller's.
func (p *peer) full(ctx context.Context) error {
	reason := fmt.Sprintf("%d calls to store %s are under way", maxCallsPerPeer, p.store)
	if err := ctx.Err(); err != nil {
		reason = fmt.Sprintf("%s: %v", reason, err)
	}
	return &rpc.Overloaded{Reason: reason, RetryAfter: retryAfter}
}

// callError is a *rpc.Unavailable that also carries what the call returned.
type callError struct {
	unavailable rpc.Unavailable
	err         error
}

func (e *callError) Error() string   { return e.unavailable.Error() }
func (e *callError) Unwrap() []error { return []error{&e.unavailable, e.err} }

// harmless says whether the peer answered that it did nothing: Handler uses these codes before it begins, and only then.
func harmless(err error) bool {
	if !connect.IsWireError(err) {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeAlreadyExists,
		connect.CodeResourceExhausted, connect.CodeUnavailable, connect.CodeUnimplemented:
		return true
	}
	return false
}

// judge says what a call's end tells of the peer. ctx is the caller's, attempt the call's.
func judge(ctx, attempt context.Context, err error, left bool, took time.Duration) callResult {
	switch {
	case err == nil || connect.IsWireError(err):
		return answered
	case errors.Is(ctx.Err(), context.Canceled):
		return undecided
	case ctx.Err() != nil && took < silenceCounts:
		return undecided
	case ctx.Err() != nil:
		return failed
	case !left && (attempt.Err() != nil || isTimeout(err)):
		return unreachable
	}
	return failed
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}
