package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
	"golang.org/x/sync/errgroup"
)

const (
	// placementRetry is the pause after a step that did not get through, and how often everything is compared anew whatever
	// was heard.
	placementRetry = time.Second
	placementEvery = 5 * time.Second
)

// placement makes this store's replicas what the control plane wants, and tells it how the groups led here are.
type placement struct {
	n    *Node
	wake wake

	mu sync.Mutex
	// Guarded by mu: shards as they are wanted and as they are; what the leaders here have come to and not yet told.
	wanted    map[uint32]control.Shard
	actual    map[uint32]control.Actual
	unpublish map[uint32]control.Actual
	storesDue bool
	// told is the generation the replicas were last told of; of run only.
	told map[uint32]uint64
}

func newPlacement(n *Node) *placement {
	return &placement{
		n: n, wake: newWake(), storesDue: true, wanted: map[uint32]control.Shard{},
		actual: map[uint32]control.Actual{}, unpublish: map[uint32]control.Actual{}, told: map[uint32]uint64{},
	}
}

// note changes what is known, and has run look.
func (p *placement) note(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	p.wake.poke()
}

// changed is told by the replicas that a group led here is as wanted.
func (p *placement) changed(shard uint32, term, gen uint64, conf replica.Conf) {
	p.note(func() {
		want := p.wanted[shard]
		want.ID = shard
		p.unpublish[shard] = control.ActualOf(want, p.actual[shard], term, gen, conf.Voters, conf.Learners)
	})
}

// run follows the control plane until ctx ends.
func (p *placement) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return p.n.plane.WatchShards(ctx, func(s control.Shard) { p.note(func() { p.wanted[s.ID] = s }) })
	})
	group.Go(func() error {
		return p.n.plane.WatchActual(ctx, func(a control.Actual) { p.note(func() { p.actual[a.Shard] = a }) })
	})
	group.Go(func() error {
		return p.n.plane.WatchStores(ctx, func() { p.note(func() { p.storesDue = true }) })
	})
	group.Go(func() error { return p.follow(ctx) })
	if err := group.Wait(); ctx.Err() == nil {
		return fmt.Errorf("follow placement: %w", err)
	}
	return nil
}

func (p *placement) follow(ctx context.Context) error {
	tick := time.NewTicker(placementEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
		case <-tick.C:
		}
		steps := []error{p.learnStores(ctx), p.reconcile(ctx), p.publish(ctx)}
		err := errors.Join(steps...)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if errors.Is(err, control.ErrStoreGone) {
			return fmt.Errorf("%w: start the node with an empty data directory if it is to come back", err)
		}
		if err := besidesUnavailable(steps); err != nil {
			p.n.logger.Warn("placement waits", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(placementRetry):
			p.wake.poke()
		}
	}
}

// besidesUnavailable joins those errors that are not about a control plane that is away: that has an alarm of its own.
func besidesUnavailable(errs []error) error {
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, control.ErrUnavailable) })...)
}

// learnStores asks for the stores if they may have changed.
func (p *placement) learnStores(ctx context.Context) error {
	p.mu.Lock()
	due := p.storesDue
	p.storesDue = false
	p.mu.Unlock()
	if !due {
		return nil
	}
	stores, err := p.n.plane.Stores(ctx)
	if err != nil {
		p.mu.Lock()
		p.storesDue = true
		p.mu.Unlock()
		return err
	}
	for _, s := range stores {
		if s.UUID == p.n.dir.Ident().StoreUUID && s.State == control.StoreGone {
			return control.ErrStoreGone
		}
	}
	p.n.setStores(stores)
	return nil
}

// reconcile makes the replicas of this store those that are wanted.
func (p *placement) reconcile(ctx context.Context) error {
	p.mu.Lock()
	wanted, actual := maps.Clone(p.wanted), maps.Clone(p.actual)
	p.mu.Unlock()
	var errs []error
	for _, shard := range slices.Sorted(maps.Keys(wanted)) {
		if err := p.reconcileShard(ctx, wanted[shard], actual[shard]); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (p *placement) reconcileShard(ctx context.Context, want control.Shard, is control.Actual) error {
	standing, _ := p.n.host.StatusOf(want.ID)
	duty := control.DutyOf(want, is, p.n.dir.Ident().StoreUUID, standing.ReplicaID, standing.Gen)
	if duty.Remove {
		p.n.logger.Info("replica is not wanted any more and is removed", "shard", want.ID, "replica", standing.ReplicaID)
		delete(p.told, want.ID)
		if err := p.n.host.Remove(ctx, want.ID); err != nil {
			return fmt.Errorf("remove replica of shard %d: %w", want.ID, err)
		}
	}
	if duty.Add != 0 {
		if err := p.add(ctx, want.ID, duty.Add, want.Gen); err != nil {
			return err
		}
		delete(p.told, want.ID)
	}
	if duty.Stands && p.told[want.ID] < want.Gen {
		w := replica.Wanted{Gen: want.Gen}
		for _, r := range want.Replicas {
			w.Replicas = append(w.Replicas, replica.Placed{ID: r.RID, Store: r.Store})
		}
		p.n.host.Want(want.ID, w)
		p.told[want.ID] = want.Gen
	}
	return nil
}

// add makes an empty replica, which its group's leader fills.
func (p *placement) add(ctx context.Context, shard uint32, id, gen uint64) error {
	err := replica.CreateLearner(p.n.engine, shard, id, gen)
	if err != nil && !errors.Is(err, replica.ErrReplicaStands) {
		return err
	}
	state, ok, err := replica.Load(p.n.engine, shard)
	if err != nil {
		return err
	}
	if !ok || state.ID != id {
		return fmt.Errorf("add replica %d of shard %d: another one stands here still", id, shard)
	}
	if err := p.n.host.Add(ctx, state); err != nil && !errors.Is(err, replica.ErrReplicaStands) {
		return err
	}
	p.n.logger.Info("replica made", "shard", shard, "replica", id)
	return nil
}

// publish tells how the groups led here are.
func (p *placement) publish(ctx context.Context) error {
	p.mu.Lock()
	var actuals []control.Actual
	for _, shard := range slices.Sorted(maps.Keys(p.unpublish)) {
		actuals = append(actuals, p.unpublish[shard])
	}
	p.mu.Unlock()
	if len(actuals) == 0 {
		return nil
	}
	if _, err := p.n.plane.PublishShards(ctx, actuals); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range actuals {
		if now := p.unpublish[a.Shard]; now.Epoch == a.Epoch && now.Gen == a.Gen {
			delete(p.unpublish, a.Shard)
		}
	}
	return nil
}

// replicas counts those that stores are to have.
func (p *placement) replicas() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := map[string]int{}
	for _, s := range p.wanted {
		for _, r := range s.Replicas {
			count[r.Store]++
		}
	}
	return count
}

// stores are those of a group's replicas by their ids, as far as they are known.
func (p *placement) stores(shard uint32) map[uint64]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := map[uint64]string{}
	for _, list := range [][]control.Replica{p.actual[shard].Voters, p.actual[shard].Learners, p.wanted[shard].Replicas} {
		for _, r := range list {
			if r.Store != "" {
				at[r.RID] = r.Store
			}
		}
	}
	return at
}

// voters are a replica's voters with their stores, as far as these are known.
func (p *placement) voters(s replica.Status) (voters []control.Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range [][]control.Replica{p.actual[s.Shard].Voters, p.wanted[s.Shard].Replicas} {
		for _, r := range list {
			if r.Store != "" && slices.Contains(s.Conf.Voters, r.RID) {
				voters = append(voters, r)
			}
		}
	}
	return voters
}
