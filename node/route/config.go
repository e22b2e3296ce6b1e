package route

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/rpc"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Local is what this node does by itself, for the shards that it leads or has a replica of. Its methods must be safe for
// concurrent use.
type Local interface {
	// Propose puts commands into the logs of their shards and waits for what comes of them. Outcomes are in the order of
	// the commands, with the errors of package replica; one that is not known when ctx ends is replica.ErrAmbiguous.
	Propose(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome
	// Poll, Held and Release are dispatch.Dispatcher's.
	Poll(ctx context.Context, req dispatch.PollRequest) ([]*storagev1.Execution, error)
	Held(claimID string) ([]*storagev1.Execution, error)
	Release(leases []*storagev1.Execution)
	// View is rpc.Backend's, of this node's own replica; it fails if there is none, or none that has ever been filled.
	View(ctx context.Context, shard uint32, stale bool, fn func(fsm.Reader) error) error
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
