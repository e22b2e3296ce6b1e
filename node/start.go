package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
)

// formEvery is how often a node looks whether its cluster has its shards.
const formEvery = 100 * time.Millisecond

// joinAttempts is how often a joiner asks to be admitted before it gives up: once for each other one that may join at the same
// time, and then some.
const joinAttempts = 20

// openControl starts this node's etcd member and returns when it can serve.
func (n *Node) openControl(ctx context.Context) (err error) {
	ident := n.dir.Ident()
	cfg := control.ServerConfig{
		Dir: n.dir.EtcdDir(), Name: control.MemberName(n.cfg.Name, ident.StoreUUID), Token: ident.ClusterID,
		ClientSocket: n.cfg.EtcdSocket, OnFatal: n.fatal, Logger: n.logger,
	}
	if n.inner == nil {
		n.etcd, err = control.OpenServer(ctx, cfg)
	} else {
		cfg.PeerURL, cfg.TLS = peerURL(n.cfg.clusterAddr()), n.dir.TLSFiles()
		n.etcd, err = n.openMember(ctx, cfg)
	}
	if err != nil {
		return err
	}
	n.parts.start("etcd", n.etcd.Run)
	if n.inner != nil {
		handler := n.etcd.PeerHandler()
		n.inner.etcd.Store(&handler)
		n.web.waitFor("a majority of the control plane's members")
	}
	if err := n.etcd.Ready(ctx); err != nil {
		return err
	}
	n.member.Store(true)
	return nil
}

// openMember starts the member of a node that is one of several. What a joiner was told of the others is out of date when
// another one has joined meanwhile: etcd refuses that, nothing has begun, and the node asks again.
func (n *Node) openMember(ctx context.Context, cfg control.ServerConfig) (*control.Server, error) {
	for attempt := 1; ; attempt++ {
		if err := n.admit(ctx, &cfg); err != nil {
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
	admitted, err := n.passGate(ctx)
	if err != nil || admitted.form {
		return err
	}
	if admitted.initialCluster == "" {
		return errors.New("join cluster: it has its three members, and nodes without one are not supported yet")
	}
	if err := n.dir.Adopt(admitted.clusterID); err != nil {
		return err
	}
	n.logger.Info("admitted to the cluster", "cluster", admitted.clusterID)
	cfg.Token, cfg.InitialCluster = admitted.clusterID, admitted.initialCluster
	return nil
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
	n.parts.start("member's record", n.keepMember)
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

// keepMember brings the member's record up to date, and makes it a voter when the cluster has its members.
func (n *Node) keepMember(ctx context.Context) error {
	for {
		err := n.etcd.SetPeerURL(ctx)
		if err == nil {
			break
		}
		n.logger.Debug("member's address waits", "error", err)
		if pause(ctx, placementRetry) != nil {
			return nil
		}
	}
	if err := n.etcd.EnsureVoter(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
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
	})
	if err != nil {
		return fmt.Errorf("register store: %w", err)
	}
	n.nodeID = reg.NodeID
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
