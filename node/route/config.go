package route

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/rpc"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Limits that are not for configuration.
const (
	// maxAttempts is how often a command is sent: once, and twice more to where a hint points.
	maxAttempts = 3
	// attemptTimeout bounds one call to a peer, so that a dead one does not eat its caller's deadline.
	attemptTimeout = 2 * time.Second
	// answerMargin is how much earlier than its caller's deadline a called node answers with what it knows by then.
	answerMargin = 100 * time.Millisecond
	// maxCallsPerPeer bounds the calls to one peer that are under way; more wait for a place, up to attemptTimeout.
	maxCallsPerPeer = 512
	// maxCallCommands and maxCallBytes cap the commands of one call; what is beyond goes in further calls beside it.
	maxCallCommands = 1024
	maxCallBytes    = 4 << 20
	// maxHandovers bounds the leaderships that one call hands over.
	maxHandovers = 1024
	// maxAnswerBytes cuts the answer of a poll: leases beyond it are given back.
	maxAnswerBytes = 32 << 20
	// maxMessageBytes bounds a message on either side. The largest are the outcomes of maxCallCommands commands.
	maxMessageBytes = 128 << 20
	// bufferedBytes is what an HTTP server holds back until a handler returns: an answer up to it has not left before.
	bufferedBytes = 4 << 10

	// failuresToTrip consecutive failures open a peer's breaker, for minCoolDown at first and maxCoolDown at most.
	failuresToTrip = 3
	minCoolDown    = 200 * time.Millisecond
	maxCoolDown    = 2 * time.Second
	// silenceCounts is how long a call must have gone unanswered when its caller's deadline passed, to count as a failure
	// of the peer rather than of a short deadline.
	silenceCounts = 500 * time.Millisecond

	// retryAfter is what a caller is told to wait for another leader, overloadRetryAfter when a queue is full, and
	// stoppedRetryAfter when this node stops.
	retryAfter         = 100 * time.Millisecond
	overloadRetryAfter = time.Second
	stoppedRetryAfter  = time.Second
)

// Local is what this node does by itself for the shards that it leads. Its methods must be safe for concurrent use.
type Local interface {
	// Propose puts commands into the logs of their shards and waits for what comes of them. Outcomes are in the order of
	// the commands, with the errors of package replica; one that is not known when ctx ends is replica.ErrAmbiguous.
	Propose(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome
	// Poll, Held and Release are dispatch.Dispatcher's.
	Poll(ctx context.Context, req dispatch.PollRequest) ([]*storagev1.Execution, error)
	Held(claimID string) ([]*storagev1.Execution, error)
	Release(leases []*storagev1.Execution)
}

// Config is what New needs. All but Scheme and Logger are required.
type Config struct {
	// Self is this node's store uuid.
	Self  string
	Local Local
	// Dial returns where a store's node serves its cluster listener, host:port; false for a store that is not known.
	Dial func(store string) (addr string, ok bool)
	// HTTP makes the calls. It should bound the time to connect.
	HTTP *http.Client
	// Scheme is "https" unless it is set: nodes speak TLS, tests do not.
	Scheme string
	// Leader returns the store that leads the shard as far as this node knows, else empty. It must be cheap.
	Leader func(shard uint32) (store string)
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Scheme == "" {
		c.Scheme = "https"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
