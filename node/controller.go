package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
)

const (
	// controlEvery is how often the controller compares what is with what should be, balanceEvery how often a node looks
	// whether leaderships of its own should be elsewhere.
	controlEvery = time.Second
	balanceEvery = 5 * time.Second
	// leadersFor is for how long what is known of the leaders is taken for true without looking again.
	leadersFor = 50 * time.Millisecond
)

// control is the controller, while this node is it: it declares lost stores gone and says where replicas have to go.
func (n *Node) control(ctx context.Context) error {
	for ctx.Err() == nil {
		term, err := n.plane.Campaign(ctx)
		if err != nil {
			if pause(ctx, controlEvery) != nil {
				return nil
			}
			continue
		}
		n.logger.Info("this node is the controller")
		n.holdTerm(ctx, term)
	}
	return nil
}

// holdTerm controls until the term or ctx ends.
func (n *Node) holdTerm(ctx context.Context, term *control.Term) {
	tick := time.NewTicker(controlEvery)
	defer tick.Stop()
	seen := storesSeen{}
	for {
		if err := n.controlOnce(ctx, term, seen); err != nil && ctx.Err() == nil {
			n.logger.Debug("control waits", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-term.Lost():
			return
		case <-tick.C:
		}
	}
}

func (n *Node) controlOnce(ctx context.Context, term *control.Term, seen storesSeen) error {
	view, err := n.view(ctx, seen)
	if err != nil {
		return err
	}
	plan := control.Place(view)
	for _, store := range plan.Gone {
		n.logger.Info("store is declared gone: its node is back with another one", "store", store)
		if err := n.plane.SetStoreState(ctx, term, store, control.StoreGone); err != nil {
			return err
		}
	}
	for _, next := range plan.Changes {
		if err := n.plane.ChangeShard(ctx, term, next, next.Gen-1); err != nil {
			var gen *control.GenError
			if errors.As(err, &gen) {
				continue // the view was older than what stands
			}
			return err
		}
	}
	return nil
}

// storesSeen is since when stores have been as they are.
type storesSeen map[string]sighting

type sighting struct {
	live  bool
	since time.Time
}

// view is the cluster as a controller sees it.
func (n *Node) view(ctx context.Context, seen storesSeen) (control.View, error) {
	stores, err := n.plane.Stores(ctx)
	if err != nil {
		return control.View{}, err
	}
	now := time.Now()
	v := control.View{Leaders: map[uint32]string{}, Actual: map[uint32]control.Actual{}}
	for _, s := range stores {
		at, known := seen[s.UUID]
		if !known || at.live != s.Live {
			at = sighting{s.Live, now}
			seen[s.UUID] = at
		}
		is := control.StoreView{StoreRecord: s, For: now.Sub(at.since)}
		if s.Live && s.Boots == 1 {
			is.For = time.Since(time.Time{}) // it has not come back from anything that could happen again
		}
		v.Stores = append(v.Stores, is)
	}
	n.placement.mu.Lock()
	defer n.placement.mu.Unlock()
	for _, s := range n.placement.wanted {
		v.Wanted = append(v.Wanted, s)
	}
	slices.SortFunc(v.Wanted, func(a, b control.Shard) int { return int(a.ID) - int(b.ID) })
	for shard, a := range n.placement.actual {
		v.Actual[shard] = a
	}
	for _, s := range n.host.Status() {
		if s.LeaderStore != "" {
			v.Leaders[s.Shard] = s.LeaderStore
		}
	}
	return v, nil
}

// balanceLeaders hands over those leaderships of this node that should be elsewhere. Every node decides by the same rule.
func (n *Node) balanceLeaders(ctx context.Context) error {
	seen := storesSeen{}
	for pause(ctx, balanceEvery) == nil {
		view, err := n.view(ctx, seen)
		if err != nil {
			continue // the control plane is away: nothing is moved
		}
		self := n.dir.Ident().StoreUUID
		for _, t := range control.BalanceLeaders(view) {
			if t.From != self {
				continue
			}
			for _, r := range view.Actual[t.Shard].Voters {
				if r.Store == t.To {
					n.logger.Info("leadership is handed over for balance", "shard", t.Shard, "to", t.To)
					n.host.TransferLeader(t.Shard, r.RID)
				}
			}
		}
	}
	return nil
}

// leaderCache is the stores that lead a shard, as far as this one knows.
type leaderCache struct {
	mu     sync.Mutex
	at     time.Time
	stores []string
}

// leaderStores are the stores that lead a shard as far as this node knows. The slice must not be changed.
func (n *Node) leaderStores() []string {
	c := &n.leaders
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.at) > leadersFor {
		c.at = now
		var stores []string
		for _, s := range n.host.Status() {
			if s.LeaderStore != "" && !slices.Contains(stores, s.LeaderStore) {
				stores = append(stores, s.LeaderStore)
			}
		}
		c.stores = stores
	}
	return c.stores
}

// leaderOf is the store that leads a shard as far as this node knows, else empty.
func (n *Node) leaderOf(shard uint32) string {
	s, _ := n.host.StatusOf(shard)
	return s.LeaderStore
}

// setStores is told which stores there are.
func (n *Node) setStores(stores []control.StoreRecord) {
	n.inner.setStores(stores)
	if err := n.saveStores(stores); err != nil {
		n.fatal(fmt.Errorf("keep addresses of stores: %w", err))
	}
}
