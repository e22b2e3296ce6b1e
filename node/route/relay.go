package route

import (
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Relayer asks a leader for a node that does not hear it. Its methods must be safe for concurrent use.
type Relayer interface {
	// Relay makes the poll at req.Store, as from this node; req is its own to change. Its errors are those of the called side.
	Relay(ctx context.Context, req *clusterv1.PollRequest) ([]*storagev1.Execution, error)
	// Release gives leases back whose way ended here.
	Release(leases []*storagev1.Execution)
}

var _ Relayer = (*Poller)(nil)

// via is the store to ask for a leader: itself, or one that is heard if it is not. Two nodes that do not hear each other
// both live and lead as long as a majority hears each of them; what one leads must reach the workers at the other.
func (p *Poller) via(store string) string {
	if !p.router.Suspects(store) {
		return store
	}
	heard := slices.DeleteFunc(p.cfg.Stores(), func(other string) bool { return other == store || p.router.Suspects(other) })
	if len(heard) == 0 {
		return store
	}
	return heard[int(p.turn.Load()%uint64(len(heard)))]
}

// Relay implements Relayer. It asks no fourth node.
func (p *Poller) Relay(ctx context.Context, req *clusterv1.PollRequest) ([]*storagev1.Execution, error) {
	peer, err := p.router.peer(req.Store)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	req.From, req.Relay = p.self, false
	res, err := call(ctx, peer, peer.client.Poll, req)
	if err != nil {
		return nil, relayError(err)
	}
	return res.Executions, nil
}

// relayError passes on what a leader answered, and whether it may have leased something.
func relayError(err error) error {
	var answer *connect.Error
	var unavailable *rpc.Unavailable
	switch {
	case errors.As(err, &unavailable) && unavailable.Ambiguous:
		return connect.NewError(connect.CodeUnknown, err)
	case errors.As(err, &answer):
		return connect.NewError(answer.Code(), err)
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// relay asks another store for a node that does not hear it.
func (s *server) relay(ctx context.Context, req *clusterv1.PollRequest) (*connect.Response[clusterv1.PollResponse], error) {
	var relayer Relayer
	if s.cfg.Relayer != nil {
		relayer = s.cfg.Relayer()
	}
	switch {
	case req.Store == s.cfg.Self:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("a poll to relay is meant for another store"))
	case relayer == nil:
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the node is starting"))
	}
	leases, err := relayer.Relay(ctx, req)
	if err != nil {
		return nil, err
	}
	undeliverable(ctx, relayer.Release, leases)
	return connect.NewResponse(&clusterv1.PollResponse{Executions: leases}), nil
}
