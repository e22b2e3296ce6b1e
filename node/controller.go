package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

const (
	// leadersFor is for how long what is known of the leaders is taken for true without looking again.
	leadersFor = 50 * time.Millisecond
	// moveTimeout bounds the hand-over of one leadership for balance.
	moveTimeout = 2 * time.Second
)

// newController makes the controller, which acts while this node is it.
func (n *Node) newController() *control.Controller {
	return control.NewController(control.ControllerConfig{Plane: n.plane, Transfer: n.moveLeadership, Logger: n.logger})
}

// moveLeadership has a leadership handed over for balance, unless the one that is to get it would only hold it.
func (n *Node) moveLeadership(ctx context.Context, t control.Transfer) error {
	for _, p := range n.inner.transport.Peers() {
		if p.Store == t.To && (p.Suspect || p.Clock.Known && !p.Clock.OK) {
			return fmt.Errorf("hand over shard %d: store %s is suspect or its clock is held", t.Shard, t.To)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	reason := n.transferLeads(ctx, t.From, []*clusterv1.Handover{{Shard: t.Shard, ToStore: t.To}})[0]
	if reason != "" {
		return fmt.Errorf("hand over shard %d to store %s: %s", t.Shard, t.To, reason)
	}
	n.logger.Info("leadership handed over for balance", "shard", t.Shard, "from", t.From, "to", t.To)
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
