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
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/clock"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/sync/errgroup"
)

const (
	// beatInterval is how often the replicas' loop must prove that it is alive to keep the store's lease.
	beatInterval = 2 * time.Second
	// controlTimeout bounds a start's calls to the control plane.
	controlTimeout = 20 * time.Second
	// loneLogBytes is how much of the raft logs a node keeps that has no peers to catch up: short enough that most of it
	// is gone before its memtable is flushed.
	loneLogBytes = 16 << 20
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
	web        *web
	api        http.Handler
}

// Run runs a node until ctx ends, then stops it gracefully.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	n := &Node{cfg: cfg, logger: cfg.Logger, started: time.Now()}
	defer func() { err = errors.Join(err, n.close()) }()
	if n.web, err = listen(n.cfg.Listen, n.logger); err != nil {
		return err
	}
	if n.dir, err = OpenDataDir(n.cfg.DataDir, n.cfg.Name); err != nil {
		return err
	}
	if err := unpublish(n.cfg.DataDir); err != nil {
		return err
	}
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	front := new(errgroup.Group)
	front.Go(func() error {
		defer stopServing()
		return n.web.serve(serving, n.cfg.ShutdownTimeout/2)
	})
	if err := n.open(serving); err != nil {
		stopServing()
		if ctx.Err() != nil {
			err = nil // a stop during the start is a stop
		}
		return errors.Join(err, front.Wait())
	}
	return n.run(serving, stopServing, front)
}

// open brings up everything that run needs. Until it is done callers are told to wait.
func (n *Node) open(ctx context.Context) (err error) {
	n.metrics = newMetrics()
	opening, openCtx := errgroup.WithContext(ctx)
	opening.Go(func() error { return n.openControl(openCtx) })
	opening.Go(n.openStore)
	if err := opening.Wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if err := n.join(ctx); err != nil {
		return err
	}
	return n.assemble()
}

func (n *Node) openControl(ctx context.Context) (err error) {
	ident := n.dir.Ident()
	n.etcd, err = control.StartServer(ctx, control.ServerConfig{
		Dir: n.dir.EtcdDir(), Name: n.cfg.Name, Token: ident.ClusterID, ClientSocket: n.cfg.EtcdSocket, Logger: n.logger,
	})
	return err
}

func (n *Node) openStore() (err error) {
	n.engine, err = store.OpenPebble(n.dir.PebbleDir(), store.Options{
		CacheBytes: n.cfg.CacheBytes, MemTableBytes: uint64(n.cfg.MemTableBytes), Logger: n.logger, OnFatal: n.fatal,
	})
	return err
}

// fatal ends the process: the store cannot vouch for what it would answer from here on, and its locks may be held.
func (n *Node) fatal(err error) {
	n.logger.Error("the store has failed; the process ends", "error", err)
	os.Exit(exitStoreFailed)
}

// join registers the store with the control plane and finds out which shards it holds; the first start makes them.
func (n *Node) join(ctx context.Context) (err error) {
	ident := n.dir.Ident()
	if n.plane, err = control.NewEtcd(control.EtcdConfig{Server: n.etcd, Logger: n.logger}); err != nil {
		return err
	}
	n.slots, err = loadSlotMap(n.engine)
	if err != nil {
		return err
	}
	if n.slots == nil {
		if ident.Formed {
			return fmt.Errorf("open store %s: %w; restore the whole data directory from a backup", n.dir.PebbleDir(), ErrShardsLost)
		}
		if err := n.form(ctx); err != nil {
			return err
		}
	}
	if have := len(n.slots.shards); have != n.cfg.Shards {
		n.logger.Info("the number of shards stands since the first start", "shards", have, "asked", n.cfg.Shards)
	}
	if err := n.dir.MarkFormed(); err != nil {
		return err
	}
	reg, err := n.plane.Register(ctx, control.Store{
		ClusterID: ident.ClusterID, UUID: ident.StoreUUID, Name: n.cfg.Name, Addr: n.web.listener.Addr().String(),
		Boots: ident.Boots, BootID: ident.BootID,
	})
	if err != nil {
		return fmt.Errorf("register store: %w", err)
	}
	n.nodeID = reg.NodeID
	return nil
}

// form makes the shards of a new cluster. Each step finds what an interrupted formation left.
func (n *Node) form(ctx context.Context) error {
	ident := n.dir.Ident()
	if err := n.plane.Bootstrap(ctx, control.Seed{ClusterID: ident.ClusterID, Shards: n.cfg.Shards, Stores: []string{ident.StoreUUID}}); err != nil {
		return fmt.Errorf("form cluster: %w", err)
	}
	m, err := n.plane.Map(ctx)
	if err != nil {
		return fmt.Errorf("form cluster: %w", err)
	}
	slots, err := newSlotMap(m)
	if err != nil {
		return fmt.Errorf("form cluster: %w", err)
	}
	var seeds []replica.Seed
	for _, shard := range m.Shards {
		_, stands, err := replica.Load(n.engine, shard.ID)
		if err != nil {
			return err
		}
		var voters []uint64
		own := uint64(0)
		for _, r := range shard.Replicas {
			voters = append(voters, r.RID)
			if r.Store == ident.StoreUUID {
				own = r.RID
			}
		}
		if own != 0 && !stands {
			seeds = append(seeds, replica.Seed{Shard: shard.ID, ID: own, Voters: voters})
		}
	}
	if err := replica.Bootstrap(n.engine, seeds); err != nil {
		return err
	}
	if err := saveSlotMap(n.engine, slots); err != nil {
		return err
	}
	n.slots = slots
	return nil
}

// assemble makes the parts and ties them together.
func (n *Node) assemble() error {
	replicas, lastStampMS, err := n.loadReplicas()
	if err != nil {
		return err
	}
	n.guard, err = clock.New(clock.Config{
		StepLimit: n.cfg.ClockStepLimit, Hold: n.cfg.ClockHold, Logger: n.logger, Changed: n.clockChanged,
	}, lastStampMS)
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
	n.settings, n.tasks = newSettings(n), newTasks(n)
	if n.dispatcher, err = dispatch.New(dispatch.Config{Logger: n.logger}, dispatchHost{n}); err != nil {
		return err
	}
	n.host, err = replica.NewHost(replica.HostConfig{
		Config: replica.Config{
			Store:       n.dir.Ident().StoreUUID,
			OpenMachine: func(shard uint32, rows fsm.Reader) replica.Machine { return fsm.Open(shard, rows) },
			Cache:       store.NewCache(n.cfg.RowCacheBytes, fsm.KindReady, fsm.KindLeased),
			LogBytes:    loneLogBytes,
			Logger:      n.logger,
			Hooks:       n.metrics.hooks(),
			Patience:    patience,
		},
		Now: n.guard.Now, Keeper: n.keeper, Listener: listener{n}, StopTimeout: n.cfg.ShutdownTimeout / 3,
	}, n.engine, replicas)
	if err != nil {
		return err
	}
	n.api, err = rpc.NewHandler(n, rpc.Options{
		Logger: n.logger, CORSOrigins: n.cfg.CORSOrigins, Ready: n.readiness,
		MaxPayloadBytes: n.cfg.MaxPayloadBytes, Metrics: n.metrics,
	})
	return err
}

// loadReplicas reads the replicas of this store, and the newest stamp in their logs.
func (n *Node) loadReplicas() (replicas []replica.ReplicaState, lastStampMS int64, err error) {
	for _, shard := range n.slots.shards {
		state, ok, err := replica.Load(n.engine, shard)
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			return nil, 0, fmt.Errorf("open store: shard %d is in the slot map but its replica is not in %s; "+
				"restore the directory from a backup", shard, n.dir.PebbleDir())
		}
		replicas = append(replicas, state)
		r := store.NewReader(n.engine, shard)
		lastStampMS = max(lastStampMS, fsm.ReadMeta(r).GetClockMs())
		if err := r.Err(); err != nil {
			return nil, 0, err
		}
	}
	return replicas, lastStampMS, nil
}

// run serves until serving ends. The order of the end is the reverse of the start: first no new calls, which is when front
// is done, then no new entries.
func (n *Node) run(serving context.Context, stopServing func(), front *errgroup.Group) error {
	registry := n.metrics.register(n)
	background, stopBackground := context.WithCancel(context.WithoutCancel(serving))
	defer stopBackground()
	group, groupCtx := errgroup.WithContext(background)
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"replicas", n.host.Run},
		{"etcd", n.etcd.Run},
		{"control plane", n.plane.Run},
		{"leader leases", n.keeper.Run},
		{"clock guard", n.guard.Run},
		{"dispatcher", n.dispatcher.Run},
		{"settings", n.settings.run},
		{"tasks", n.tasks.run},
		{"tenants' deletions", n.resumeDeletions},
		{"housekeeping", n.housekeep},
		{"heartbeat", n.beat},
		{"slot map", n.watchMap},
		{"address", n.announce},
	} {
		group.Go(func() error {
			if err := part.run(groupCtx); err != nil && groupCtx.Err() == nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
			return nil
		})
	}
	stop := context.AfterFunc(groupCtx, stopServing) // a part that failed ends the node
	defer stop()
	// Long polls end at once, so that the calls under way can finish in time.
	stopPolls := context.AfterFunc(serving, n.dispatcher.Stop)
	defer stopPolls()
	n.logger.Info("serving", "address", n.web.listener.Addr().String(), "data", filepath.Clean(n.cfg.DataDir),
		"shards", len(n.slots.shards), "version", Version)
	n.web.open(routes(n.api, registry, n.notReady))
	err := front.Wait()
	stopBackground()
	err = errors.Join(err, group.Wait())
	n.logger.Info("stopped")
	return err
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
		if err := n.host.Alive(ctx); err != nil {
			return err
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
	established := 0
	for _, s := range n.host.Status() {
		if s.Established {
			established++
		}
	}
	if missing := len(n.slots.shards) - established; missing > 0 {
		reasons = append(reasons, fmt.Sprintf("%d of %d shards have no established leader", missing, len(n.slots.shards)))
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
