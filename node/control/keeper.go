package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// keeperRetry and keeperRetryMax bound the pause before leases are asked for again; it doubles.
	keeperRetry    = 100 * time.Millisecond
	keeperRetryMax = time.Second
)

// KeeperConfig says whom a Keeper works for.
type KeeperConfig struct {
	Plane Plane
	// Granted is called when the control plane has answered for a leadership that is still wanted: its lease is held.
	// It may be called again for the same epoch, after the lease lapsed and was taken again.
	Granted func(shard uint32, epoch uint64)
	// Superseded is called when an epoch stands for a shard, of this store or another, that a leadership of this store
	// must exceed to be wanted: higher than its own, or its own in the name of another store.
	Superseded func(shard uint32, standing LeaderRecord)
	Logger     *slog.Logger
}

// Keeper holds the leader leases of the shards this store leads: it asks for them in batches, again while the control
// plane is away, takes those that lapsed again, and tells at once when a higher epoch stands. Both callbacks run on Run's
// goroutines and must neither block nor call the plane.
type Keeper struct {
	cfg  KeeperConfig
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu. wanted is every leadership to hold, pending those to ask for.
	wanted  map[uint32]uint64
	pending map[uint32]uint64
}

// NewKeeper returns a keeper that wants nothing yet.
func NewKeeper(cfg KeeperConfig) *Keeper {
	return &Keeper{
		cfg:     cfg,
		wake:    make(chan struct{}, 1),
		wanted:  map[uint32]uint64{},
		pending: map[uint32]uint64{},
	}
}

// Acquire says that this store leads shard at epoch from now on and wants its lease. It never blocks.
func (k *Keeper) Acquire(shard uint32, epoch uint64) {
	k.mu.Lock()
	k.wanted[shard], k.pending[shard] = epoch, epoch
	k.mu.Unlock()
	k.poke()
}

// Release says that this store no longer leads shard. The lease stays until it lapses or a higher epoch takes it.
func (k *Keeper) Release(shard uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.wanted, shard)
	delete(k.pending, shard)
}

func (k *Keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run asks and watches until ctx ends; then it returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.cfg.Plane.WatchLeaders(groupCtx, k.observe) })
	group.Go(func() error { return k.ask(groupCtx) })
	err := group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("keep leader leases: %w", err)
}

// ask sends what is pending, one request at a time, so that what arrives meanwhile becomes the next batch.
func (k *Keeper) ask(ctx context.Context) error {
	pause := keeperRetry
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.wake:
		}
		claims := k.takePending()
		if len(claims) == 0 {
			continue
		}
		grants, err := k.cfg.Plane.AcquireLeaders(ctx, claims)
		if err == nil {
			pause = keeperRetry
			for _, g := range grants {
				k.answer(g)
			}
			continue
		}
		k.cfg.Logger.Debug("leader leases not acquired", "shards", len(claims), "error", err)
		k.putBack(claims)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, keeperRetryMax)
		k.poke()
	}
}

func (k *Keeper) takePending() []LeaderClaim {
	k.mu.Lock()
	defer k.mu.Unlock()
	claims := make([]LeaderClaim, 0, len(k.pending))
	for _, shard := range slices.Sorted(maps.Keys(k.pending)) {
		claims = append(claims, LeaderClaim{Shard: shard, Epoch: k.pending[shard]})
	}
	clear(k.pending)
	return claims
}

// putBack makes claims pending again that are still wanted.
func (k *Keeper) putBack(claims []LeaderClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range claims {
		if k.wanted[c.Shard] == c.Epoch {
			k.pending[c.Shard] = c.Epoch
		}
	}
}

func (k *Keeper) answer(g LeaderGrant) {
	k.mu.Lock()
	wanted := k.wanted[g.Shard] == g.Epoch
	if wanted && !g.Held {
		delete(k.wanted, g.Shard)
	}
	k.mu.Unlock()
	switch {
	case !wanted:
	case g.Held:
		k.cfg.Granted(g.Shard, g.Epoch)
	default:
		k.cfg.Superseded(g.Shard, g.Standing)
	}
}

// observe gets every change of a leader record: a lease that lapsed is asked for again, a higher epoch ends ours.
func (k *Keeper) observe(r LeaderRecord) {
	k.mu.Lock()
	epoch, wanted := k.wanted[r.Shard]
	lapsed := wanted && r.Epoch == 0
	superseded := wanted && r.Epoch > epoch
	if lapsed {
		k.pending[r.Shard] = epoch
	}
	if superseded {
		delete(k.wanted, r.Shard)
		delete(k.pending, r.Shard)
	}
	k.mu.Unlock()
	if lapsed {
		k.poke()
	}
	if superseded {
		k.cfg.Superseded(r.Shard, r)
	}
}
