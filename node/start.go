package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
)

// formEvery is how often a node looks whether its cluster has its shards.
const formEvery = 100 * time.Millisecond

// joinAttempts is how often a joiner asks to be admitted before it gives up: once for each other one that may join at the same
// time, and then some.
const joinAttempts = 20

// openControl starts this node's etcd member and returns when it can serve; of a node that needs none, it finds those of
// others.
func (n *Node) openControl(ctx context.Context) error {
	cfg := n.memberConfig()
	if n.inner == nil {
		etcd, err := control.OpenServer(ctx, cfg)
		if err != nil {
			return err
		}
		return n.runMember(ctx, etcd)
	}
	for {
		etcd, err := n.openMember(ctx, cfg)
		switch {
		case err != nil:
			return err
		case etcd == nil:
			n.member.Store(true)
			return nil
		}
		if err := n.runMember(ctx, etcd); !errors.Is(err, control.ErrRemoved) {
			return err
		}
		n.logger.Warn("this node's member of the control plane was removed while the node was away; it asks to join anew")
		if err := n.dropMember(etcd); err != nil {
			return err
		}
	}
}

// dropMember ends a member that was removed from its cluster and makes room for another one.
func (n *Node) dropMember(etcd *control.Server) error {
	n.inner.etcd.Store(nil)
	n.etcd.Store(nil)
	etcd.Close()
	return control.SetAside(n.dir.EtcdDir())
}

func (n *Node) memberConfig() control.ServerConfig {
	ident := n.dir.Ident()
	cfg := control.ServerConfig{
		Dir: n.dir.EtcdDir(), Name: control.MemberName(n.cfg.Name, ident.StoreUUID), Token: ident.ClusterID,
		ClientSocket: n.cfg.EtcdSocket, OnFatal: n.fatal, Logger: n.logger,
	}
	if n.inner != nil {
		cfg.PeerURL, cfg.TLS = peerURL(n.cfg.clusterAddr()), n.dir.TLSFiles()
	}
	return cfg
}

// runMember has a member that has begun work for this node, and returns when it can serve.
func (n *Node) runMember(ctx context.Context, etcd *control.Server) error {
	n.etcd.Store(etcd)
	if n.inner != nil {
		handler := etcd.PeerHandler()
		n.inner.etcd.Store(&handler)
		n.web.waitFor("a majority of the control plane's members")
	}
	if err := etcd.Ready(ctx); err != nil {
		return err
	}
	n.parts.start("etcd", etcd.Run)
	n.member.Store(true)
	return nil
}

// openMember starts the member of a node that is one of several; nil: the cluster has enough of them, and n.remote reaches
// them. What a joiner was told of the others is out of date when another one has joined meanwhile: etcd refuses that,
// nothing has begun, and the node asks again.
func (n *Node) openMember(ctx context.Context, cfg control.ServerConfig) (*control.Server, error) {
	for attempt := 1; ; attempt++ {
		if err := n.admit(ctx, &cfg); err != nil || n.remote != nil {
			return nil, err
		}
		server, err := control.OpenServer(ctx, cfg)
		if err == nil {
			return server, nil
		}
		holds, holdsErr := control.HoldsMember(cfg.Dir)
		if holdsErr != nil || holds || cfg.InitialCluster == "" || attempt == joinAttempts {
			return nil, errors.Join(err, holdsErr)
		}
		n.logger.Debug("member not started, asking to join again", "error", err)
		if err := pause(ctx, probeEvery); err != nil {
			return nil, err
		}
	}
}

// admit passes the start gate, if the node has no member yet.
func (n *Node) admit(ctx context.Context, cfg *control.ServerConfig) error {
	holds, err := control.HoldsMember(cfg.Dir)
	if err != nil || holds {
		return err
	}
	if err := n.recallStores(ctx); err != nil {
		return err
	}
	admitted, err := n.passGate(ctx)
	if err == nil && admitted.form && n.dir.Ident().Formed {
		return fmt.Errorf("form cluster: the store in %s has shards of cluster %s, but no peer knows of it and its control plane's data is gone; "+
			"start a node that has that data, or restore the whole directory from a backup", n.cfg.DataDir, n.dir.Ident().ClusterID)
	}
	if err != nil || admitted.form {
		return err
	}
	if err := n.dir.Adopt(admitted.clusterID); err != nil {
		return err
	}
	n.logger.Info("admitted to the cluster", "cluster", admitted.clusterID, "member", admitted.initialCluster != "")
	cfg.Token, cfg.InitialCluster = admitted.clusterID, admitted.initialCluster
	if admitted.initialCluster != "" {
		return nil
	}
	n.remote, err = control.OpenRemote(control.RemoteConfig{Endpoints: admitted.members, TLS: cfg.TLS, Logger: n.logger})
	return err
}

// startAlone finds or makes the shards of a node of its own.
func (n *Node) startAlone(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if err := n.loadSlots(); err != nil {
		return err
	}
	if n.slots == nil {
		ident := n.dir.Ident()
		seed := control.Seed{ClusterID: ident.ClusterID, Shards: n.cfg.Shards, Stores: []string{ident.StoreUUID}}
		if err := n.plane.Bootstrap(ctx, seed); err != nil {
			return fmt.Errorf("form cluster: %w", err)
		}
		m, err := n.plane.Map(ctx)
		if err != nil {
			return fmt.Errorf("form cluster: %w", err)
		}
		if err := n.makeReplicas(m); err != nil {
			return err
		}
	}
	if err := n.register(ctx); err != nil {
		return err
	}
	n.startSession()
	return nil
}

// startAmongOthers registers the store and finds the shards; where the cluster has none yet, it makes them once there are
// enough stores.
func (n *Node) startAmongOthers(ctx context.Context) error {
	if err := n.loadSlots(); err != nil {
		return err
	}
	n.web.waitFor("the control plane")
	for {
		err := n.register(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, control.ErrUnavailable) {
			return err
		}
		if err := pause(ctx, formEvery); err != nil {
			return err
		}
	}
	n.registered.Store(true)
	n.startSession()
	if n.remote == nil {
		n.parts.start("member's record", n.keepMember)
	} else {
		n.parts.start("member in reserve", n.standBy)
	}
	if n.slots != nil {
		return nil
	}
	m, err := n.awaitMap(ctx)
	if err != nil {
		return err
	}
	return n.makeReplicas(m)
}

// startSession keeps the store's lease from now on.
func (n *Node) startSession() {
	n.parts.start("control plane", n.plane.Run)
	n.parts.start("heartbeat", n.beat)
}

// loadSlots reads the slot map kept on this store. One that had shards and has none is not to make new ones.
func (n *Node) loadSlots() (err error) {
	if n.slots, err = loadSlotMap(n.engine); err != nil {
		return err
	}
	if n.slots == nil && n.dir.Ident().Formed {
		return fmt.Errorf("open store %s: %w; restore the whole data directory from a backup", n.dir.PebbleDir(), ErrShardsLost)
	}
	return nil
}

func (n *Node) register(ctx context.Context) error {
	ident := n.dir.Ident()
	reg, err := n.plane.Register(ctx, control.Store{
		ClusterID: ident.ClusterID, UUID: ident.StoreUUID, Name: n.cfg.Name, Addr: n.address(), Boots: ident.Boots, BootID: ident.BootID,
		Level: fsm.MaxLevel,
	})
	if err != nil {
		return fmt.Errorf("register store: %w", err)
	}
	n.nodeID.Store(reg.NodeID)
	return nil
}

// awaitMap returns the slot map when the cluster has one. A node that was told its peers makes it when as many stores are
// there as a shard has replicas; whoever is first decides.
func (n *Node) awaitMap(ctx context.Context) (*control.Map, error) {
	ident := n.dir.Ident()
	need := min(control.MaxReplicas, len(n.cfg.Peers))
	for {
		m, err := n.plane.Map(ctx)
		if err == nil {
			return m, nil
		}
		if !errors.Is(err, control.ErrNoMap) && !errors.Is(err, control.ErrUnavailable) {
			return nil, fmt.Errorf("form cluster: %w", err)
		}
		stores, err := n.plane.Stores(ctx)
		var live []string
		for _, s := range stores {
			if s.Live && s.State == control.StoreUp {
				live = append(live, s.UUID)
			}
		}
		n.web.waitFor(fmt.Sprintf("the cluster's shards, which are made when %d nodes are there; there are %d", need, len(live)))
		if err == nil && need > 0 && len(live) >= need {
			err = n.plane.Bootstrap(ctx, control.Seed{ClusterID: ident.ClusterID, Shards: n.cfg.Shards, Stores: live})
			if err == nil {
				continue
			}
		}
		if err != nil && !errors.Is(err, control.ErrUnavailable) {
			return nil, fmt.Errorf("form cluster: %w", err)
		}
		if err := pause(ctx, formEvery); err != nil {
			return nil, err
		}
	}
}

// makeReplicas writes the first rows of the shards that were placed here when the cluster was formed, and keeps the map. It
// finds what an interrupted formation left. Replicas that came later are made by placement.
func (n *Node) makeReplicas(m *control.Map) error {
	slots, err := newSlotMap(m)
	if err != nil {
		return fmt.Errorf("form cluster: %w", err)
	}
	var seeds []replica.Seed
	for _, shard := range m.Shards {
		seed, ok := seedOf(shard, n.dir.Ident().StoreUUID)
		if !ok {
			continue
		}
		_, stands, err := replica.Load(n.engine, shard.ID)
		if err != nil {
			return err
		}
		if !stands {
			seeds = append(seeds, seed)
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

// seedOf is the replica that a shard, as it was first placed, has on a store.
func seedOf(shard control.Shard, store string) (replica.Seed, bool) {
	seed := replica.Seed{Shard: shard.ID}
	for _, r := range shard.Replicas {
		seed.Voters = append(seed.Voters, r.RID)
		if r.Store == store {
			seed.ID = r.RID
		}
	}
	return seed, shard.Gen == 1 && seed.ID != 0
}

// pause returns after d, or with ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
