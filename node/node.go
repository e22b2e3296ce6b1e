// Package node is one process of Carillon: it assembles control plane, replicas, dispatcher, clock guard and API, and is
// the imperative shell around the state machine.
//
// Run is what `carillon serve` calls. Every goroutine belongs to the errgroup in Run or to a component's own Run; the first
// error ends all of them and the process, since a node never serves what it cannot vouch for.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/clock"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/node/route"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/sync/errgroup"
)

const (
	// beatInterval is how often the replicas' loop must prove that it is alive to keep the store's lease.
	beatInterval = 2 * time.Second
	// controlTimeout bounds a lone node's calls to the control plane at its start.
	controlTimeout = 20 * time.Second
	// loneLogBytes is how much of the raft logs a node keeps that nobody lacks: short enough that most of it is gone before
	// its memtable is flushed. What a peer lacks is kept up to memberLogBytes.
	loneLogBytes   = 16 << 20
	memberLogBytes = 256 << 20
	// handOverTimeout bounds the transfer of leaderships when a node stops.
	handOverTimeout = 5 * time.Second
	// exitStoreFailed is the process's exit code when the store can no longer be trusted.
	exitStoreFailed = 70
)

// Node is one process of a cluster.
type Node struct {
	cfg     Config
	logger  *slog.Logger
	started time.Time

	dir    *DataDir
	etcd   *control.Server
	plane  control.Plane
	keeper *control.Keeper
	nodeID uint64
	slots  *slotMap

	engine     *store.Pebble
	guard      *clock.Guard
	host       *replica.Host
	dispatcher *dispatch.Dispatcher
	settings   *settings
	tasks      *tasks
	alarms     *alarms
	metrics    *metrics
	verifier   *verifier
	verdicts   verdicts
	web        *web
	api        http.Handler
	parts      *parts

	// Of a node that is one of several; inner is nil otherwise.
	inner     *inner
	router    *route.Router
	poller    *route.Poller
	placement *placement
	// controller is nil until the node is assembled.
	controller *control.Controller
	leaders    leaderCache
	// member: it belongs to a cluster; registered: the control plane knows its store; serving: its replicas run.
	member, registered, serving atomic.Bool
	// interestGrown wakes tellInterest; snapshots are to be sent; receiving holds a token while one comes in.
	interestGrown chan struct{}
	snapshots     chan snapshotJob
	receiving     chan struct{}
	traffic       traffic
	// aliveAsked is when the replicas' loop was asked whether it comes round, since started and monotonic; 0 if it has
	// answered.
	aliveAsked atomic.Int64
}

// parts are the node's goroutines: the first error ends them all.
type parts struct {
	group *errgroup.Group
	ctx   context.Context
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

// Run runs a node until ctx ends, then stops it gracefully.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	n := &Node{
		cfg: cfg, logger: cfg.Logger, started: time.Now(), metrics: newMetrics(), interestGrown: make(chan struct{}, 1),
		snapshots: make(chan snapshotJob, 1), receiving: make(chan struct{}, 1),
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
	if !n.cfg.clustered() {
		return n.web.bound(n.web.listener)
	}
	public, err := n.openInner(n.web.listener)
	if err != nil {
		return err
	}
	return n.web.bound(public)
}

// run starts everything, serves until ctx ends or a part fails, and stops in reverse: first no new calls, while leaderships go
// to others, then no new entries.
func (n *Node) run(ctx context.Context) error {
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	group, groupCtx := errgroup.WithContext(background)
	n.parts = &parts{group, groupCtx}
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	stop := context.AfterFunc(groupCtx, stopServing) // a part that failed ends the node
	defer stop()
	front := new(errgroup.Group)
	front.Go(func() error {
		defer stopServing()
		return n.web.serve(serving, n.cfg.ShutdownTimeout/2)
	})
	if n.inner != nil {
		n.parts.start("port", n.inner.mux.Run)
		n.parts.start("other nodes' calls", n.inner.serve)
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
	stopBackground()
	err = errors.Join(err, group.Wait())
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
		{"settings", n.settings.run},
		{"tasks", n.tasks.run},
		{"tenants' deletions", n.resumeDeletions},
		{"housekeeping", n.housekeep},
		{"looks at rows", n.verifier.run},
		{"verification", n.verifyQuietly},
		{"slot map", n.watchMap},
		{"address", n.announce},
		{"alarms", n.watchAlarms},
	} {
		n.parts.start(part.name, part.run)
	}
	n.serving.Store(true)
	if n.inner != nil {
		n.inner.local.Store(&local{n.host, n.dispatcher})
		for _, p := range n.inner.transport.Peers() { // what was noticed before there was anybody to tell
			if p.Suspect {
				n.suspect(p.Store, true)
			}
		}
		n.parts.start("leases of other nodes", n.poller.Run)
		n.parts.start("interest", n.tellInterest)
		n.parts.start("loop's age", n.watchLoop)
		n.parts.start("snapshots", n.sendSnapshots)
		n.parts.start("placement", n.placement.run)
		n.parts.start("leaderships of a held clock", n.yieldWhileHeld)
		n.parts.start("controller", n.controller.Run)
	}
	// Long polls end at once, so that the calls under way can finish in time.
	context.AfterFunc(serving, n.dispatcher.Stop)
	n.logger.Info("serving", "address", n.web.listener.Addr().String(), "data", filepath.Clean(n.cfg.DataDir),
		"shards", len(n.slots.shards), "version", Version)
	n.web.open(routes(n.api, n.metrics.register(n), n.notReady))
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

// open brings up everything that serve needs. Until it is done callers are told to wait.
func (n *Node) open(ctx context.Context) (err error) {
	opening, openCtx := errgroup.WithContext(ctx)
	opening.Go(func() error { return n.openControl(openCtx) })
	opening.Go(n.openStore)
	if err := opening.Wait(); err != nil {
		return err
	}
	if n.plane, err = control.NewEtcd(control.EtcdConfig{Server: n.etcd, Logger: n.logger}); err != nil {
		return err
	}
	if n.inner == nil {
		err = n.startAlone(ctx)
	} else {
		err = n.startAmongOthers(ctx)
	}
	if err != nil {
		return err
	}
	if have := len(n.slots.shards); have != n.cfg.Shards {
		n.logger.Info("the number of shards stands since the first start", "shards", have, "asked", n.cfg.Shards)
	}
	if err := n.dir.MarkFormed(); err != nil {
		return err
	}
	return n.assemble()
}

func (n *Node) openStore() (err error) {
	n.engine, err = store.OpenPebble(n.dir.PebbleDir(), store.Options{
		CacheBytes: n.cfg.CacheBytes, MemTableBytes: uint64(n.cfg.MemTableBytes), Logger: n.logger, OnFatal: n.fatal,
	})
	return err
}

// runReplicas has the replicas work until ctx ends. What they fail with is the store's: a write, a sync or a row.
func (n *Node) runReplicas(ctx context.Context) error {
	err := n.host.Run(ctx)
	if err != nil {
		n.fatal(err)
	}
	return nil
}

// fatal ends the process: the store cannot vouch for what it would answer from here on, and its locks may be held.
func (n *Node) fatal(err error) {
	n.logger.Error("the store has failed; the process ends", "error", err)
	os.Exit(exitStoreFailed)
}

// assemble makes the parts and ties them together.
func (n *Node) assemble() error {
	replicas, lastStampMS, err := n.loadReplicas()
	if err != nil {
		return err
	}
	clocks := clock.Config{
		StepLimit: n.cfg.ClockStepLimit, Hold: n.cfg.ClockHold, Logger: n.logger, Changed: n.clockChanged,
	}
	if n.inner != nil {
		clocks.Peers = n.peerClocks
	}
	n.guard, err = clock.New(clocks, lastStampMS)
	if err != nil {
		return err
	}
	n.alarms = &alarms{logger: n.logger, now: n.guard.Now}
	n.keeper = control.NewKeeper(control.KeeperConfig{
		Plane:      n.plane,
		Granted:    func(shard uint32, epoch uint64) { n.host.LeaseHeld(shard, epoch) },
		Superseded: func(shard uint32, r control.LeaderRecord) { n.host.HigherEpoch(shard, r.Epoch) },
		Logger:     n.logger,
	})
	n.settings, n.tasks, n.verifier = newSettings(n), newTasks(n), newVerifier(n.logger)
	dispatching := dispatch.Config{Logger: n.logger}
	if n.inner != nil {
		dispatching.Hint = n.hint
	}
	if n.dispatcher, err = dispatch.New(dispatching, dispatchHost{n}); err != nil {
		return err
	}
	hosting := replica.HostConfig{
		Config: replica.Config{
			Store:       n.dir.Ident().StoreUUID,
			OpenMachine: func(shard uint32, rows fsm.Reader) replica.Machine { return fsm.Open(shard, rows) },
			Cache:       store.NewCache(n.cfg.RowCacheBytes, fsm.KindReady, fsm.KindLeased),
			LogBytes:    loneLogBytes,
			Logger:      n.logger,
			Hooks:       n.metrics.hooks(),
			Patience:    patience,
		},
		Now: n.guard.Now, Keeper: n.keeper, Listener: listener{n}, OnVerify: n.verifier.ask, StopTimeout: n.cfg.ShutdownTimeout / 3,
	}
	if n.inner != nil {
		n.placement, n.controller = newPlacement(n), n.newController()
		hosting.LogBytes, hosting.LogTailBytes = memberLogBytes, loneLogBytes
		hosting.Send, hosting.SendSnapshot, hosting.OnChanged = n.inner.transport.Send, n.sendSnapshot, n.placement.changed
	}
	if n.host, err = replica.NewHost(hosting, n.engine, replicas); err != nil {
		return err
	}
	if n.inner != nil {
		if err := n.openRoutes(); err != nil {
			return err
		}
	}
	n.api, err = rpc.NewHandler(n, rpc.Options{
		Logger: n.logger, CORSOrigins: n.cfg.CORSOrigins, Ready: n.readiness,
		MaxPayloadBytes: n.cfg.MaxPayloadBytes, Metrics: n.metrics,
	})
	return err
}

// loadReplicas reads the replicas of this store, and the newest stamp in their logs.
func (n *Node) loadReplicas() (replicas []replica.ReplicaState, lastStampMS int64, err error) {
	if replicas, err = replica.LoadAll(n.engine); err != nil {
		return nil, 0, err
	}
	if n.inner == nil && len(replicas) < len(n.slots.shards) {
		return nil, 0, fmt.Errorf("open store: the slot map has %d shards but %d replicas are in %s; "+
			"restore the directory from a backup", len(n.slots.shards), len(replicas), n.dir.PebbleDir())
	}
	for _, state := range replicas {
		r := store.NewReader(n.engine, state.Shard)
		lastStampMS = max(lastStampMS, fsm.ReadMeta(r).GetClockMs())
		if err := r.Err(); err != nil {
			return nil, 0, err
		}
	}
	return replicas, lastStampMS, nil
}

// announce writes the address file once the node can take part: scripts wait for it.
func (n *Node) announce(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(n.notReady()) > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	n.logger.Info("ready", "after", time.Since(n.started).Round(time.Millisecond).String())
	return n.web.publish(n.cfg.DataDir)
}

// close lets go of what open took, in reverse.
func (n *Node) close() error {
	var errs []error
	if n.etcd != nil {
		n.etcd.Close()
	}
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

// beat keeps the store's lease alive for as long as the loop that does the work comes round.
func (n *Node) beat(ctx context.Context) error {
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	for {
		if n.serving.Load() { // until then nothing is led that a living process could let down
			if err := n.host.Alive(ctx); err != nil {
				return err
			}
		}
		n.plane.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watchMap compares the map this node works with to the control plane's, and says when that is missing or another.
func (n *Node) watchMap(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		m, err := n.plane.Map(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, control.ErrNoMap):
			n.alarms.set("slot-map", true, "the control plane has lost the slot map; the node goes on with its own copy")
		case err != nil:
			n.alarms.set("control-plane", true, err.Error())
		default:
			n.alarms.set("control-plane", false, "")
			now, err := newSlotMap(m)
			differs := err != nil || !now.equal(n.slots)
			n.alarms.set("slot-map", differs, "the control plane's slot map is not the one this node works with")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// notReady says why this node cannot take part yet; nothing when it can.
func (n *Node) notReady() []string {
	var reasons []string
	self := n.dir.Ident().StoreUUID
	missing := 0
	all := n.host.Status()
	for _, s := range all {
		if !s.Established && (s.LeaderStore == "" || s.LeaderStore == self) {
			missing++
		}
	}
	if missing > 0 {
		reasons = append(reasons, fmt.Sprintf("%d of %d shards have no established leader", missing, len(all)))
	}
	if err := n.dispatcher.Ready(); err != nil {
		reasons = append(reasons, err.Error())
	}
	if !n.guard.MayFire() {
		reasons = append(reasons, "the clock is held: "+n.guard.State().String())
	}
	return reasons
}

// readiness is notReady as one error.
func (n *Node) readiness() error {
	if reasons := n.notReady(); len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "; "))
	}
	return nil
}

func (n *Node) clockChanged() {
	if n.alarms == nil || n.dispatcher == nil {
		return
	}
	n.alarms.set("clock", !n.guard.MayFire(), n.guard.State().String())
	n.dispatcher.ClockChanged()
}

// openRoutes makes what takes calls to other nodes.
func (n *Node) openRoutes() error {
	stores, err := n.loadStores()
	if err != nil {
		return err
	}
	n.inner.setStores(stores)
	n.router = route.New(route.Config{
		Self: n.dir.Ident().StoreUUID, Local: &local{n.host, n.dispatcher}, Dial: n.inner.addr, HTTP: n.inner.client,
		Leader: n.leaderOf, Logger: n.logger,
	})
	n.poller = route.NewPoller(n.router, route.PollerConfig{
		Leaders: n.leaderStores, ShardOf: n.slots.shardOf, Interested: n.interested,
	})
	return nil
}
