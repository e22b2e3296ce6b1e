package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/clock"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/node/route"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/schedule"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/sync/errgroup"
)

const (
	// loneLogBytes is how much of the raft logs a node keeps that nobody lacks: short enough that most of it is gone before
	// its memtable is flushed. What a peer lacks is kept up to memberLogBytes.
	loneLogBytes   = 16 << 20
	memberLogBytes = 256 << 20
	// expandPace is the least time between two expansions of cron jobs in a shard: under load they grow rather than become
	// many.
	expandPace = 20 * time.Millisecond
	// exitStoreFailed is the process's exit code when the store can no longer be trusted.
	exitStoreFailed = 70
)

// open brings up everything that serve needs. Until it is done callers are told to wait.
func (n *Node) open(ctx context.Context) (err error) {
	opening, openCtx := errgroup.WithContext(ctx)
	opening.Go(func() error { return n.openControl(openCtx) })
	opening.Go(n.openStore)
	if err := opening.Wait(); err != nil {
		return err
	}
	if n.plane, err = control.NewEtcd(control.EtcdConfig{Server: n.etcd.Load(), Remote: n.remote, Logger: n.logger}); err != nil {
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
	defer close(n.storeOpen)
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
func (n *Node) fatal(err error) { fatal(n.logger, err) }

func fatal(logger *slog.Logger, err error) {
	logger.Error("the store has failed; the process ends", "error", err)
	os.Exit(exitStoreFailed)
}

// assemble makes the parts and ties them together.
func (n *Node) assemble() error {
	replicas, lastStampMS, err := n.loadReplicas()
	if err != nil {
		return err
	}
	if err := n.openClock(lastStampMS); err != nil {
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
	if n.dispatcher, err = dispatch.New(n.dispatching(), dispatchHost{n}); err != nil {
		return err
	}
	n.expander = expand.New(n.expanding(), expandHost{n})
	hosting := replica.HostConfig{
		Config: replica.Config{
			Store:       n.dir.Ident().StoreUUID,
			OpenMachine: func(shard uint32, rows fsm.Reader) replica.Machine { return fsm.Open(shard, rows) },
			Cache:       store.NewCache(n.cfg.RowCacheBytes, fsm.KindReady, fsm.KindLeased),
			LogBytes:    loneLogBytes,
			Logger:      n.logger,
			Hooks:       n.metrics.hooks(),
			Patience:    n.patience(),
		},
		Now: n.guard.Now, Keeper: n.keeper, Listener: listener{n}, OnVerify: n.verifier.ask, StopTimeout: n.cfg.ShutdownTimeout / 3,
	}
	if n.inner != nil {
		n.placement, n.controller, n.snapshots = newPlacement(n), n.newController(), newSnapshots(n)
		hosting.LogBytes, hosting.LogTailBytes = memberLogBytes, loneLogBytes
		hosting.Send, hosting.SendSnapshot, hosting.OnChanged = n.inner.transport.Send, n.snapshots.send, n.placement.changed
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
		MaxPayloadBytes: n.cfg.MaxPayloadBytes, MaxFiresPerDay: n.cfg.MaxFiresPerDay, Metrics: n.metrics,
	})
	return err
}

// openClock makes the node's clock: its machine's under guard, unless it is to be a virtual one.
func (n *Node) openClock(lastStampMS int64) error {
	if !n.cfg.VirtualClock.IsZero() {
		n.openVirtualClock(lastStampMS)
		return nil
	}
	clocks := clock.Config{
		StepLimit: n.cfg.ClockStepLimit, Hold: n.cfg.ClockHold, Logger: n.logger, Changed: n.clockChanged,
	}
	if n.inner != nil {
		clocks.Peers = n.peerClocks
	}
	guard, err := clock.New(clocks, lastStampMS)
	n.guard = guard
	return err
}

// cronEvaluator says when cron jobs fire.
var cronEvaluator = expand.Evaluator{ZoneVersion: cron.ZoneVersion(), Horizon: schedule.Horizon, Pass: schedule.Pass}

// expanding configures the expander. A virtual clock waits for it.
func (n *Node) expanding() expand.Config {
	cfg := expand.Config{
		Evaluator: cronEvaluator, Pace: expandPace, Logger: n.logger,
	}
	if n.advancer != nil {
		cfg.Pace, cfg.Settled = 0, n.advancer.changed.poke
	}
	return cfg
}

// dispatching is how the dispatcher is to work here.
func (n *Node) dispatching() dispatch.Config {
	cfg := dispatch.Config{Logger: n.logger}
	if n.inner != nil {
		cfg.Hint = n.hint
	}
	if n.advancer != nil {
		n.advancer.dispatching(&cfg)
	}
	return cfg
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

// openRoutes makes what takes calls to other nodes.
func (n *Node) openRoutes() error {
	stores, err := n.loadStores()
	if err != nil {
		return err
	}
	n.inner.setStores(stores)
	n.router = route.New(route.Config{
		Self: n.dir.Ident().StoreUUID, Local: &local{n}, Dial: n.inner.addr, HTTP: n.inner.client,
		Leader: n.leaderOf, Logger: n.logger,
	})
	n.poller = route.NewPoller(n.router, route.PollerConfig{
		Leaders: n.leaderStores, Stores: n.inner.others, ShardOf: n.slots.shardOf, Interested: n.interested,
	})
	return nil
}
