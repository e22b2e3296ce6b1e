package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// placeEvery is how often the controller looks, whatever it hears; placePause is the least between two looks.
	placeEvery = 5 * time.Second
	placePause = 200 * time.Millisecond
	// balanceEvery is how often leaderships are balanced; balancePause, while there is more to move.
	balanceEvery = 10 * time.Second
	balancePause = time.Second
	// campaignPause stands before another attempt to become the controller, after one that failed.
	campaignPause = time.Second
	// resignTimeout bounds the farewell of a controller that stops.
	resignTimeout = time.Second
)

// ControllerConfig is what a Controller needs; all of it is required.
type ControllerConfig struct {
	Plane Plane
	// Members is the way to etcd's members just now.
	Members func() Membership
	// Transfer hands a leadership over, or has its leader do it, and returns when that has been begun. It is called on Run's
	// goroutine, with a context that ends with the controller's term.
	Transfer func(ctx context.Context, t Transfer) error
	Logger   *slog.Logger
}

// Controller decides, in one node at a time, where replicas and leaderships go: see Place and BalanceLeaders. Every node
// runs one; those whose store is not the controller wait.
type Controller struct {
	cfg       ControllerConfig
	sightings Sightings
	// balanced is when leaderships were balanced last, and moved whether there was anything to move.
	balanced time.Time
	moved    bool
	wake     chan struct{}
	// active: a term lasts.
	active atomic.Bool
}

// NewController returns a controller that Run runs.
func NewController(cfg ControllerConfig) *Controller {
	return &Controller{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Active says whether this is the controller that acts, as far as it knows. Safe for use by any goroutine.
func (c *Controller) Active() bool { return c.active.Load() }

// Run campaigns, and acts while it is the controller, until ctx ends; then it resigns and returns nil.
func (c *Controller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		term, err := c.cfg.Plane.Campaign(ctx)
		if err != nil {
			c.cfg.Logger.Debug("not the controller", "error", err)
			pause(ctx, campaignPause)
			continue
		}
		c.cfg.Logger.Info("this store is the controller")
		err = c.serve(ctx, term)
		if ctx.Err() == nil {
			c.cfg.Logger.Warn("this store is the controller no more", "reason", err)
		}
		c.resign(ctx, term)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// resign lets another store take over at once. If it does not get through, the lease ends by itself.
func (c *Controller) resign(ctx context.Context, term *Term) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()
	if err := c.cfg.Plane.Resign(ctx, term); err != nil {
		c.cfg.Logger.Debug("controller's term not ended", "error", err)
	}
}

// serve acts for as long as term lasts.
func (c *Controller) serve(ctx context.Context, term *Term) error {
	// What an earlier term has seen is long ago.
	c.sightings, c.balanced, c.moved = Sightings{}, time.Time{}, false
	c.active.Store(true)
	defer c.active.Store(false)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.cfg.Plane.WatchStores(ctx, c.poke) })
	group.Go(func() error { return c.cfg.Plane.WatchShards(ctx, func(Shard) { c.poke() }) })
	group.Go(func() error { return c.cfg.Plane.WatchActual(ctx, func(Actual) { c.poke() }) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-term.Lost():
			return ErrDeposed
		}
	})
	group.Go(func() error {
		for {
			switch err := c.round(ctx, term); {
			case err == nil:
			case errors.Is(err, ErrDeposed):
				return err
			case errors.Is(err, ErrUnavailable):
				c.cfg.Logger.Debug("placement waits", "error", err)
			default:
				c.cfg.Logger.Error("placement stands still", "error", err)
			}
			pause(ctx, placePause)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-c.wake:
			case <-time.After(c.untilNext()):
			}
		}
	})
	return group.Wait()
}

func (c *Controller) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Controller) untilNext() time.Duration {
	if c.moved {
		return balancePause
	}
	return placeEvery
}

// round looks once and does what is to be done.
func (c *Controller) round(ctx context.Context, term *Term) error {
	v, err := c.cfg.Plane.Placement(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	c.sightings.Observe(v.Stores, now)
	if err := c.place(ctx, term, v); err != nil {
		return err
	}
	c.balance(ctx, v, now)
	return c.replaceVoter(ctx, v)
}

func (c *Controller) place(ctx context.Context, term *Term, v View) error {
	plan := Place(v)
	for _, store := range plan.Gone {
		if err := c.cfg.Plane.SetStoreState(ctx, term, store, StoreGone); err != nil {
			return err
		}
		c.cfg.Logger.Warn("store is gone: its node is back with another one", "store", store)
	}
	for _, next := range plan.Changes {
		err := c.cfg.Plane.ChangeShard(ctx, term, next, v.BasisOf(next))
		if errors.Is(err, ErrMoved) {
			continue // the watch that tells of it has this looked at again
		}
		if err != nil {
			return err
		}
		c.cfg.Logger.Info("shard is to change its replicas", "shard", next.ID, "generation", next.Gen, "replicas", fmt.Sprint(next.Replicas))
	}
	return nil
}

// balance moves leaderships, if it is time; those of a store that is to be drained, at any time.
func (c *Controller) balance(ctx context.Context, v View, now time.Time) {
	every := balanceEvery
	if c.moved || drains(v) {
		every = balancePause
	}
	if now.Sub(c.balanced) < every {
		return
	}
	c.balanced, c.moved = now, false
	for _, t := range BalanceLeaders(v) {
		if err := c.cfg.Transfer(ctx, t); err != nil {
			c.cfg.Logger.Debug("leadership not handed over", "shard", t.Shard, "from", t.From, "to", t.To, "error", err)
			return
		}
		c.moved = true
	}
}

// drains says whether a store leads that is to be drained.
func drains(v View) bool {
	draining := map[string]bool{}
	for _, s := range v.Stores {
		draining[s.UUID] = s.State == StoreDraining
	}
	for _, leader := range v.Leaders {
		if draining[leader] {
			return true
		}
	}
	return false
}
