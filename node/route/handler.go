package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1/clusterv1connect"
	"github.com/carillon-scheduler/carillon/proto/codec"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Member is what package node answers by itself. Its methods must be safe for concurrent use.
type Member interface {
	Probe(ctx context.Context, req *clusterv1.ProbeRequest) (*clusterv1.ProbeResponse, error)
	Join(ctx context.Context, req *clusterv1.JoinRequest) (*clusterv1.JoinResponse, error)
	NodeStatus(ctx context.Context, req *clusterv1.NodeStatusRequest) (*clusterv1.NodeStatusResponse, error)
	// Verification is what this node's replica of a shard found at a Verify command.
	Verification(ctx context.Context, req *clusterv1.VerificationRequest) (*clusterv1.VerificationResponse, error)
	// Transfer hands leaderships of this node over, and returns one reason for each that has not gone when ctx ends.
	Transfer(ctx context.Context, req *clusterv1.TransferRequest) (*clusterv1.TransferResponse, error)
}

// HandlerConfig is what NewHandler needs.
type HandlerConfig struct {
	// Self is this node's store uuid.
	Self string
	// Local returns what serves proposals and polls; nil while the node starts. It is asked with every call.
	Local func() Local
	// Suspects says of which stores it is to be taken that they do not hear this node; nil: of none. It is asked with every poll.
	Suspects func(store string) bool
	// Relayer returns what asks other nodes for a third one; nil while the node starts. It is asked with every poll to relay.
	Relayer func() Relayer
	Member  Member
	Logger  *slog.Logger
}

// NewHandler returns the called side, and the path below which it is to be mounted on the cluster's listener. It serves
// from this node alone. It goes on until the server that it is mounted on stops.
func NewHandler(cfg HandlerConfig) (path string, handler http.Handler) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{cfg: cfg}
	path, inner := clusterv1connect.NewNodeServiceHandler(s,
		connect.WithCodec(codec.Proto{}),
		connect.WithCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxMessageBytes),
		connect.WithRecover(s.recovered),
	)
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(inner, w, r) })
}

// server implements the service.
type server struct{ cfg HandlerConfig }

var _ clusterv1connect.NodeServiceHandler = (*server)(nil)

// delivery is one call's way back: it notices an answer that could not be written.
type delivery struct {
	http.ResponseWriter
	written int
	err     error
	// undo gives back what the answer grants; nil: nothing.
	undo func()
}

type deliveryKey struct{}

func (d *delivery) Write(b []byte) (int, error) {
	n, err := d.ResponseWriter.Write(b)
	d.written += n
	if err != nil {
		d.err = err
	}
	return n, err
}

// Unwrap lets http.ResponseController reach the server's writer.
func (d *delivery) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// serve serves a call and gives leases back whose answer did not leave. A small answer stands in a buffer until this
// returns: of a caller that is gone only the context tells.
func (s *server) serve(inner http.Handler, w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == clusterv1connect.NodeServiceRowsProcedure {
		serveRows(inner, w, r)
		return
	}
	d := &delivery{ResponseWriter: w}
	inner.ServeHTTP(d, r.WithContext(context.WithValue(r.Context(), deliveryKey{}, d)))
	isGone := d.err != nil || d.written <= bufferedBytes && r.Context().Err() != nil
	if d.undo != nil && isGone {
		d.undo()
	}
}

// recovered answers for a handler that panicked.
func (s *server) recovered(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
	s.cfg.Logger.Error("handler panicked", slog.String("procedure", spec.Procedure), slog.Any("panic", p),
		slog.String("stack", string(debug.Stack())))
	return connect.NewError(connect.CodeInternal, errors.New("internal error"))
}

// local returns what serves a call that is meant for store.
func (s *server) local(store string) (Local, error) {
	if store != s.cfg.Self {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this is store %s, not %s", s.cfg.Self, store))
	}
	if local := s.cfg.Local(); local != nil {
		return local, nil
	}
	return nil, connect.NewError(connect.CodeUnavailable, errors.New("the node is starting"))
}

// Probe, Join and NodeStatus are the node's.
func (s *server) Probe(
	ctx context.Context, req *connect.Request[clusterv1.ProbeRequest],
) (*connect.Response[clusterv1.ProbeResponse], error) {
	return response(s.cfg.Member.Probe(ctx, req.Msg))
}

func (s *server) Join(
	ctx context.Context, req *connect.Request[clusterv1.JoinRequest],
) (*connect.Response[clusterv1.JoinResponse], error) {
	return response(s.cfg.Member.Join(ctx, req.Msg))
}

func (s *server) NodeStatus(
	ctx context.Context, req *connect.Request[clusterv1.NodeStatusRequest],
) (*connect.Response[clusterv1.NodeStatusResponse], error) {
	return response(s.cfg.Member.NodeStatus(ctx, req.Msg))
}

// Transfer answers with what is known a little before the caller's deadline.
func (s *server) Transfer(
	ctx context.Context, call *connect.Request[clusterv1.TransferRequest],
) (*connect.Response[clusterv1.TransferResponse], error) {
	if _, err := s.local(call.Msg.Store); err != nil {
		return nil, err
	}
	if n := len(call.Msg.Handovers); n > maxHandovers {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%d handovers; at most %d are allowed", n, maxHandovers))
	}
	ctx, cancel := early(ctx)
	defer cancel()
	return response(s.cfg.Member.Transfer(ctx, call.Msg))
}

// Verification implements the service.
func (s *server) Verification(
	ctx context.Context, call *connect.Request[clusterv1.VerificationRequest],
) (*connect.Response[clusterv1.VerificationResponse], error) {
	if _, err := s.local(call.Msg.Store); err != nil {
		return nil, err
	}
	return response(s.cfg.Member.Verification(ctx, call.Msg))
}

func response[T any](msg *T, err error) (*connect.Response[T], error) {
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(msg), nil
}

// Propose implements the service.
func (s *server) Propose(
	ctx context.Context, call *connect.Request[clusterv1.ProposeRequest],
) (*connect.Response[clusterv1.ProposeResponse], error) {
	req := call.Msg
	local, err := s.local(req.Store)
	if err != nil {
		return nil, err
	}
	if n := len(req.Commands); n > maxCallCommands {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%d commands; at most %d are allowed", n, maxCallCommands))
	}
	cmds := make([]rpc.ShardCommand, len(req.Commands))
	for i, c := range req.Commands {
		if c.Command == nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("command %d is missing", i))
		}
		cmds[i] = rpc.ShardCommand{Shard: c.Shard, Command: c.Command}
	}
	ctx, cancel := early(ctx)
	defer cancel()
	res := &clusterv1.ProposeResponse{Outcomes: make([]*clusterv1.Outcome, len(cmds))}
	for i, o := range local.Propose(ctx, cmds) {
		if o.Err != nil && encodeFailure(o.Err).Kind == clusterv1.FailureKind_FAILURE_KIND_INTERNAL {
			s.cfg.Logger.Error("forwarded command failed", slog.Any("shard", cmds[i].Shard), slog.Any("error", o.Err))
		}
		res.Outcomes[i] = encodeOutcome(&o)
	}
	return connect.NewResponse(res), nil
}

// early ends a little before the caller's deadline, so that the outcomes that are known by then still reach it: one shard
// that stands still must not make the others' unknown.
func early(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, attemptTimeout)
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, left-min(answerMargin, left/4))
}

// Poll implements the service.
func (s *server) Poll(
	ctx context.Context, call *connect.Request[clusterv1.PollRequest],
) (*connect.Response[clusterv1.PollResponse], error) {
	req := call.Msg
	if req.Relay {
		return s.relay(ctx, req)
	}
	local, err := s.local(req.Store)
	if err != nil {
		return nil, err
	}
	if s.cfg.Suspects != nil && s.cfg.Suspects(req.From) {
		// A node that is cut off in one direction asks again and again: what it leased would be lost on its way, until the leases end.
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the asking node does not hear this one"))
	}
	leases, err := local.Poll(ctx, dispatch.PollRequest{
		ClaimID: req.ClaimId, Worker: req.Worker, Queues: req.Queues, Max: int(min(req.Max, dispatch.MaxLeasesPerPoll+1)),
		LeaseMS: req.LeaseMs, Wait: time.Duration(req.WaitMs) * time.Millisecond,
	})
	if err != nil {
		return nil, connect.NewError(pollCode(err), err)
	}
	if fit := fitting(leases); fit < len(leases) {
		local.Release(leases[fit:])
		leases = leases[:fit]
	}
	undeliverable(ctx, local.Release, leases)
	return connect.NewResponse(&clusterv1.PollResponse{Executions: leases}), nil
}

// fitting is how many of the executions an answer can hold: at least one.
func fitting(executions []*storagev1.Execution) int {
	size := 0
	for i, e := range executions {
		if size += e.SizeVT(); size > maxAnswerBytes && i > 0 {
			return i
		}
	}
	return len(executions)
}

// pollCode is how the errors of a poll travel; decodePollError is its inverse.
func pollCode(err error) connect.Code {
	switch {
	case errors.Is(err, dispatch.ErrTooManyPolls):
		return connect.CodeResourceExhausted
	case errors.Is(err, dispatch.ErrClaimInUse):
		return connect.CodeAlreadyExists
	case errors.Is(err, dispatch.ErrInvalidPoll):
		return connect.CodeInvalidArgument
	case errors.Is(err, replica.ErrStopped):
		return connect.CodeUnavailable
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeInternal
}

// undeliverable has leases given back if the answer does not leave.
func undeliverable(ctx context.Context, release func([]*storagev1.Execution), leases []*storagev1.Execution) {
	if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok && len(leases) > 0 {
		d.undo = func() { release(leases) }
	}
}

// Held implements the service. Leases that are only looked at are not given back if the answer does not leave.
func (s *server) Held(
	_ context.Context, call *connect.Request[clusterv1.HeldRequest],
) (*connect.Response[clusterv1.HeldResponse], error) {
	req := call.Msg
	local, err := s.local(req.Store)
	if err != nil {
		return nil, err
	}
	leases, err := local.Held(req.ClaimId)
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&clusterv1.HeldResponse{Executions: leases[:fitting(leases)]}), nil
}

// Release implements the service.
func (s *server) Release(
	_ context.Context, call *connect.Request[clusterv1.ReleaseRequest],
) (*connect.Response[clusterv1.ReleaseResponse], error) {
	req := call.Msg
	local, err := s.local(req.Store)
	if err != nil {
		return nil, err
	}
	leases := make([]*storagev1.Execution, len(req.Leases))
	for i, l := range req.Leases {
		leases[i] = &storagev1.Execution{
			Tenant: l.Tenant, JobId: l.JobId, Incarnation: l.Incarnation, Kind: l.Kind, NominalMs: l.NominalMs,
			Discriminator: l.Discriminator, Fencing: l.Fencing, Worker: l.Worker, ClaimId: l.ClaimId,
		}
	}
	local.Release(leases)
	return connect.NewResponse(&clusterv1.ReleaseResponse{}), nil
}

// encodeLease names a lease as Release needs it.
func encodeLease(e *storagev1.Execution) *clusterv1.LeaseRef {
	return &clusterv1.LeaseRef{
		Tenant: e.Tenant, JobId: e.JobId, Incarnation: e.Incarnation, Kind: e.Kind, NominalMs: e.NominalMs,
		Discriminator: e.Discriminator, Fencing: e.Fencing, Worker: e.Worker, ClaimId: e.ClaimId,
	}
}
