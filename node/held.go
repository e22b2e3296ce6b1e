package node

import (
	"context"
	"time"
)

const (
	// peerClockFresh is for how long what a peer's beat said of its clock counts.
	peerClockFresh = time.Second
	// yieldEvery is how often a node whose clock is held looks whether it leads something.
	yieldEvery = 500 * time.Millisecond
)

// peerClocks is how far the other nodes' clocks are ahead of this one's, of those that can be believed just now.
func (n *Node) peerClocks() (offsets []time.Duration) {
	for _, p := range n.inner.transport.Peers() {
		if !p.Suspect && p.SilentFor < peerClockFresh && p.Clock.Known && p.Clock.OK {
			offsets = append(offsets, p.Clock.ClockOffset)
		}
	}
	return offsets
}

// yieldWhileHeld gives the leaderships of this node to others while its clock is held: they fire on time, it would not.
func (n *Node) yieldWhileHeld(ctx context.Context) error {
	for pause(ctx, yieldEvery) == nil {
		if n.guard.MayFire() {
			continue
		}
		well := map[string]bool{}
		for _, p := range n.inner.transport.Peers() {
			well[p.Store] = !p.Suspect && p.SilentFor < peerClockFresh && p.Clock.OK
		}
		for _, s := range n.host.Status() {
			if !s.Leader {
				continue
			}
			for _, r := range n.placement.voters(s) {
				if well[r.Store] {
					n.logger.Info("leadership is handed over while the clock is held", "shard", s.Shard, "to", r.Store)
					n.host.TransferLeader(s.Shard, r.RID)
					break
				}
			}
		}
	}
	return nil
}
