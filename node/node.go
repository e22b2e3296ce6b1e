// Package node is one process of Carillon: it assembles control plane, replicas, dispatcher, clock guard and API, and is
// the imperative shell around the state machine.
//
// Run is what `carillon serve` calls. Every goroutine belongs to one of the node's errgroups or to a component's own Run; the
// first error ends all of them and the process, since a node never serves what it cannot vouch for.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/node/clock"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/node/route"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/sync/errgroup"
)

const (
	// controlTimeout bounds a lone node's calls to the control plane at its start.
	controlTimeout = 20 * time.Second
	// handOverTimeout bounds the transfer of leaderships when a node stops.
	handOverTimeout = 5 * time.Second
)

// Node is one process of a cluster.
type Node struct {
	cfg     Config
	logger  *slog.Logger
	started time.Time

	dir *DataDir
	// etcd is this node's member, nil until it has one; remote reaches the members of others, and is nil with a member from
	// the start.
	etcd   atomic.Pointer[control.Server]
	remote *control.Remote
	plane  control.Plane
	keeper *control.Keeper
	nodeID atomic.Uint64
	slots  *slotMap

	engine *store.Pebble
	// storeOpen is closed when engine is there, or cannot be.
	storeOpen chan struct{}
	guard     timekeeper
	// advancer is nil unless the clock is a virtual one.
	advancer   *advancer
	host       *replica.Host
	dispatcher *dispatch.Dispatcher
	expander   *expand.Expander
	settings   *settings
	tasks      *tasks
	alarms     *alarms
	metrics    *metrics
	verifier   *verifier
	verdicts   verdicts
	web        *web
	api        http.Handler
	// parts end first; links, by which this node is reached and answers, when they have.
	parts, links *parts

	// Of a node that is one of several; inner is nil otherwise.
	inner     *inner
	router    *route.Router
	poller    *route.Poller
	placement *placement
	// controller is nil until the node is assembled.
	controller *control.Controller
	// known are the stores that were known before this start, of a node that has to ask others.
	known   []control.StoreRecord
	leads   *leads
	leaders leaderCache
	// member: it belongs to a cluster; registered: the control plane knows its store; serving: its replicas run.
	member, registered, serving atomic.Bool
	// interestGrown wakes tellInterest; receiving holds a token while a snapshot comes in.
	interestGrown wake
	snapshots     *snapshots
	receiving     chan struct{}
	traffic       traffic
	// aliveAsked is when the replicas' loop was asked whether it comes round, since started and monotonic; 0 if it has
	// answered.
	aliveAsked atomic.Int64
}

// timekeeper is the node's clock: the guard of its machine's, or a virtual one.
type timekeeper interface {
	// Now is in milliseconds since 1970 UTC and never goes back.
	Now() int64
	// MayFire says whether time may make anything due; State says why not.
	MayFire() bool
	State() clock.State
	// Run watches the clock until ctx ends.
	Run(ctx context.Context) error
}

// parts are goroutines of the node: the first error ends them all.
type parts struct {
	group *errgroup.Group
	ctx   context.Context
	stop  context.CancelFunc
}

func newParts() *parts {
	ctx, stop := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	return &parts{group, ctx, stop}
}

// start runs a part until the node ends. Names are for errors.
func (p *parts) start(name string, run func(context.Context) error) {
	p.group.Go(func() error {
		if err := run(p.ctx); err != nil && p.ctx.Err() == nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// end stops the parts and returns when they have ended.
func (p *parts) end() error {
	p.stop()
	return p.group.Wait()
}

// Run runs a node until ctx ends, then stops it gracefully.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	n := &Node{
		cfg: cfg, logger: cfg.Logger, started: time.Now(), metrics: newMetrics(), parts: newParts(), links: newParts(),
		interestGrown: newWake(), receiving: make(chan struct{}, 1), leads: newLeads(), storeOpen: make(chan struct{}),
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.bind(); err != nil {
		return err
	}
	return n.run(ctx)
}

// bind takes the port and the data directory.
func (n *Node) bind() (err error) {
	if n.web, err = listen(n.cfg.Listen, n.logger); err != nil {
		return err
	}
	if n.dir, err = OpenDataDir(n.cfg.DataDir, n.cfg.Name); err != nil {
		return err
	}
	if err := unpublish(n.cfg.DataDir); err != nil {
		return err
	}
	most, err := maxConnections()
	if err != nil {
		return err
	}
	if !n.cfg.clustered() {
		n.web.bound(n.web.listener, most)
		return nil
	}
	served, waiting := callersWithin(most)
	public, err := n.openInner(n.web.listener, waiting)
	if err != nil {
		return err
	}
	n.web.bound(public, served)
	return nil
}

// run starts everything, serves until ctx ends or a part fails, and stops in reverse: first no new calls, while leaderships go
// to others, then no new entries, then no answers to other nodes.
func (n *Node) run(ctx context.Context) error {
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	for _, p := range []*parts{n.parts, n.links} {
		stop := context.AfterFunc(p.ctx, stopServing) // a part that failed ends the node
		defer stop()
	}
	front := new(errgroup.Group)
	front.Go(func() error {
		defer stopServing()
		return n.web.serve(serving, n.cfg.ShutdownTimeout/2)
	})
	if n.inner != nil {
		n.links.start("port", n.inner.mux.Run)
		n.links.start("other nodes' calls", n.inner.serve)
		n.parts.start("connections to other nodes", n.inner.transport.Run)
	}
	err := n.open(serving)
	switch {
	case err == nil:
		n.serve(serving)
	case serving.Err() != nil:
		err = nil // a stop during the start is a stop; a part that failed tells why
		fallthrough
	default:
		stopServing()
	}
	leaving := new(errgroup.Group)
	leaving.Go(func() error {
		<-serving.Done() // not later: callers' connections take a second to close, and what falls due here would wait for that
		n.handOver()
		return nil
	})
	err = errors.Join(err, front.Wait(), leaving.Wait())
	err = errors.Join(err, n.parts.end())
	n.closeMember() // other members' streams would be calls without an end
	err = errors.Join(err, n.links.end())
	n.logger.Info("stopped")
	return err
}

// serve starts the parts that do the work and lets callers in.
func (n *Node) serve(serving context.Context) {
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"replicas", n.runReplicas},
		{"leader leases", n.keeper.Run},
		{"clock guard", n.guard.Run},
		{"dispatcher", n.dispatcher.Run},
		{"expander", n.expander.Run},
		{"settings", n.settings.run},
		{"tasks", n.tasks.run},
		{"tenants' deletions", n.resumeDeletions},
		{"housekeeping", n.housekeep},
		{"looks at rows", n.verifier.run},
		{"verification", n.verifyQuietly},
		{"slot map", n.watchMap},
		{"address", n.announce},
		{"alarms", n.watchAlarms},
		{"level", n.raiseLevels},
	} {
		n.parts.start(part.name, part.run)
	}
	n.serving.Store(true)
	if n.inner != nil {
		n.inner.local.Store(&local{n})
		n.inner.transport.SuspectAgain() // what was noticed before there was anybody to tell
		n.parts.start("leases of other nodes", n.poller.Run)
		n.parts.start("interest", n.tellInterest)
		n.parts.start("what is led", n.tellLeads)
		n.parts.start("loop's age", n.watchLoop)
		n.parts.start("snapshots", n.snapshots.run)
		n.parts.start("placement", n.placement.run)
		n.parts.start("leaderships of a held clock", n.yieldWhileHeld)
		n.parts.start("controller", n.controller.Run)
	}
	if n.advancer != nil {
		n.advancer.stopping = serving.Done()
	}
	// Long polls end at once, so that the calls under way can finish in time.
	context.AfterFunc(serving, n.dispatcher.Stop)
	n.logger.Info("serving", "address", n.web.listener.Addr().String(), "data", filepath.Clean(n.cfg.DataDir),
		"shards", len(n.slots.shards), "version", Version)
	n.web.open(routes(n.api, n.metrics.register(n), n.notReady, n.clockNote()))
}

// handOver gives the leaderships to other nodes before this one stops.
func (n *Node) handOver() {
	if n.inner == nil || !n.serving.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(handOverTimeout, n.cfg.ShutdownTimeout/3))
	defer cancel()
	if err := n.host.TransferAll(ctx); err != nil {
		n.logger.Warn("not every leadership could be handed over", "error", err)
	}
}

// close lets go of what open took, in reverse.
func (n *Node) close() error {
	n.parts.stop()
	n.links.stop()
	var errs []error
	if n.remote != nil {
		n.remote.Close()
	}
	n.closeMember()
	if n.engine != nil {
		errs = append(errs, n.engine.Close())
	}
	if n.dir != nil {
		errs = append(errs, n.dir.Close())
	}
	if n.web != nil {
		_ = n.web.listener.Close() // closed already unless the start failed
	}
	return errors.Join(errs...)
}

// closeMember may be called again.
func (n *Node) closeMember() {
	if etcd := n.etcd.Load(); etcd != nil {
		etcd.Close()
	}
}
