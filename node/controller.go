package node

import (
	"context"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// moveTimeout bounds the hand-over of one leadership for balance.
const moveTimeout = 2 * time.Second

// newController makes the controller, which acts while this node is it.
func (n *Node) newController() *control.Controller {
	return control.NewController(control.ControllerConfig{
		Plane: n.plane, Members: n.members, Transfer: n.moveLeadership, Logger: n.logger,
	})
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

// setStores is told which stores there are.
func (n *Node) setStores(stores []control.StoreRecord) {
	n.inner.setStores(stores)
	if err := n.saveStores(stores); err != nil {
		n.fatal(fmt.Errorf("keep addresses of stores: %w", err))
	}
}
