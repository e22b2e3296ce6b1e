package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// session is the store's lease. It is kept alive and granted again only on beats, so that a process whose working loop is
// stuck loses it even while every other goroutine of it is well.
type session struct {
	ttl   time.Duration
	beats atomic.Uint64

	mu sync.Mutex
	// Guarded by mu. store is set by Register; lease is NoLease while there is none.
	store Store
	lease clientv3.LeaseID
}

func (s *session) current() clientv3.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

func (s *session) identity() (Store, clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store, s.lease
}

func (s *session) set(store Store, lease clientv3.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store, s.lease = store, lease
}

// lost forgets lease if it is the current one, and says whether it was.
func (s *session) lost(lease clientv3.LeaseID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.lease == lease
	if was {
		s.lease = clientv3.NoLease
	}
	return was
}

func (p *Etcd) Beat() { p.session.beats.Add(1) }

func (p *Etcd) Register(ctx context.Context, store Store) (Registration, error) {
	if err := store.validate(); err != nil {
		return Registration{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	registration, err := p.register(ctx, store)
	if err != nil {
		return Registration{}, fmt.Errorf("register store %s: %w", store.UUID, err)
	}
	lease, err := p.grant(ctx, store)
	if err != nil {
		return Registration{}, fmt.Errorf("register store %s: %w", store.UUID, err)
	}
	p.session.set(store, lease)
	return registration, nil
}

func (p *Etcd) register(ctx context.Context, store Store) (Registration, error) {
	key := keyNodes + store.UUID
	for range casAttempts {
		found, err := p.readStore(ctx, key, store)
		if err != nil {
			return Registration{}, err
		}
		next := nodeRecord{
			NodeID: found.node.NodeID, Name: store.Name, Addr: store.Addr, Boots: store.Boots, BootID: store.BootID,
			State: found.node.State, Level: store.Level,
		}
		guards := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", found.nodeRevision)}
		var puts []clientv3.Op
		if next.NodeID == 0 {
			if err := checkLevel(store, found.others); err != nil {
				return Registration{}, err
			}
			next.NodeID = found.lastNode + 1
			guards = append(guards, clientv3.Compare(clientv3.ModRevision(keyNodeAlloc), "=", found.allocRevision))
			puts = append(puts, clientv3.OpPut(keyNodeAlloc, encodeJSON(next.NodeID)))
		}
		puts = append(puts, clientv3.OpPut(key, encodeJSON(next)))
		response, err := p.client.Txn(ctx).If(guards...).Then(puts...).Commit()
		if err != nil {
			return Registration{}, unavailable(err)
		}
		if response.Succeeded {
			return Registration{NodeID: next.NodeID, Boots: found.node.Boots}, nil
		}
	}
	return Registration{}, unavailable(errors.New("other stores register at the same time"))
}

// foundStore is what etcd knows when a store registers.
type foundStore struct {
	node                        nodeRecord
	nodeRevision, allocRevision int64
	lastNode                    uint64
	// others are all stores that are registered.
	others []StoreRecord
}

func (p *Etcd) readStore(ctx context.Context, key string, store Store) (foundStore, error) {
	ops := []clientv3.Op{clientv3.OpGet(keyCluster), clientv3.OpGet(key), clientv3.OpGet(keyNodeAlloc)}
	response, err := p.client.Txn(ctx).Then(append(ops, readStores()...)...).Commit()
	if err != nil {
		return foundStore{}, unavailable(err)
	}
	var found foundStore
	if kvs := response.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
		var cluster clusterRecord
		if err := decodeJSON(keyCluster, kvs[0].Value, &cluster); err != nil {
			return foundStore{}, err
		}
		if cluster.ID != store.ClusterID {
			return foundStore{}, fmt.Errorf("its cluster is %s: %w: %s", store.ClusterID, ErrOtherCluster, cluster.ID)
		}
	}
	if kvs := response.Responses[1].GetResponseRange().Kvs; len(kvs) == 1 {
		if err := decodeJSON(key, kvs[0].Value, &found.node); err != nil {
			return foundStore{}, err
		}
		found.nodeRevision = kvs[0].ModRevision
		if err := checkReturn(store, found.node.store(store.UUID, false)); err != nil {
			return foundStore{}, err
		}
	}
	if kvs := response.Responses[2].GetResponseRange().Kvs; len(kvs) == 1 {
		if err := decodeJSON(keyNodeAlloc, kvs[0].Value, &found.lastNode); err != nil {
			return foundStore{}, err
		}
		found.allocRevision = kvs[0].ModRevision
	}
	found.others, err = decodeStores(response.Responses[3:])
	return found, err
}

// grant gets a new lease and shows the store as live under it.
func (p *Etcd) grant(ctx context.Context, store Store) (clientv3.LeaseID, error) {
	granted, err := p.client.Grant(ctx, int64(p.session.ttl/time.Second))
	if err != nil {
		return clientv3.NoLease, unavailable(err)
	}
	live := encodeJSON(liveRecord{BootID: store.BootID, Addr: store.Addr})
	if _, err := p.client.Put(ctx, keyLive+store.UUID, live, clientv3.WithLease(granted.ID)); err != nil {
		return clientv3.NoLease, unavailable(err)
	}
	return granted.ID, nil
}

// Run keeps the store's lease alive and learns when the controller changes, until ctx ends.
func (p *Etcd) Run(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.keepLease(groupCtx) })
	group.Go(func() error { return p.watchOffice(groupCtx) })
	group.Go(func() error { return p.keepTerm(groupCtx) })
	if err := group.Wait(); ctx.Err() == nil {
		return fmt.Errorf("run control plane: %w", err)
	}
	return nil
}

// keepLease renews the store's lease five times in its life, if there was a beat since the last time.
func (p *Etcd) keepLease(ctx context.Context) error {
	ticker := time.NewTicker(p.session.ttl / 5)
	defer ticker.Stop()
	seen := p.session.beats.Load()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if beats := p.session.beats.Load(); beats != seen {
			seen = beats
			p.renew(ctx)
		}
	}
}

// renew keeps the lease alive, or gets a new one if it has lapsed. Not to reach etcd is no event of its own: it shows in
// Health, and the lease lapses or not.
func (p *Etcd) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.session.ttl/5)
	defer cancel()
	store, lease := p.session.identity()
	if store.UUID == "" {
		return
	}
	if lease != clientv3.NoLease {
		_, err := p.client.KeepAliveOnce(ctx, lease)
		if err == nil {
			return
		}
		if !isLeaseNotFound(err) {
			p.log.Debug("store lease not renewed", "store", store.UUID, "error", err)
			return
		}
		if p.session.lost(lease) {
			p.log.Warn("store lease lapsed", "store", store.UUID)
		}
	}
	lease, err := p.grant(ctx, store)
	if err != nil {
		p.log.Debug("store lease not granted", "store", store.UUID, "error", err)
		return
	}
	p.session.set(store, lease)
	p.log.Info("store lease granted again", "store", store.UUID)
}
