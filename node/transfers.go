package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

const (
	// handoverLook is how often a node that hands leaderships over looks whether they have gone, handoverAgain after how many
	// looks it tries again: raft gives an attempt up after an election timeout.
	handoverLook  = 20 * time.Millisecond
	handoverAgain = 60
)

// Transfer hands over leaderships of this node: see clusterv1. It ends with ctx at the latest.
func (n *Node) Transfer(ctx context.Context, req *clusterv1.TransferRequest) (*clusterv1.TransferResponse, error) {
	return &clusterv1.TransferResponse{Reasons: n.handOverLeads(ctx, req.GetHandovers())}, nil
}

// handOverLeads hands over leaderships of this node, all at once, and waits until they have gone or ctx ends. It returns in
// order why each has not gone; empty: it has.
func (n *Node) handOverLeads(ctx context.Context, handovers []*clusterv1.Handover) []string {
	reasons := make([]string, len(handovers))
	tick := time.NewTicker(handoverLook)
	defer tick.Stop()
	for look := 0; ; look++ {
		waiting := false
		for i, h := range handovers {
			to, reason := n.handover(h)
			if reasons[i] = reason; to == 0 {
				continue
			}
			waiting = true
			if look%handoverAgain == 0 {
				n.host.TransferLeader(h.GetShard(), to)
			}
		}
		if !waiting {
			return reasons
		}
		select {
		case <-ctx.Done():
			return reasons
		case <-tick.C:
		}
	}
}

// handover says how a leadership stands that is to be handed over: to is the replica that is to get it, 0 if there is nothing
// to be done; reason says why it is not where it should be.
func (n *Node) handover(h *clusterv1.Handover) (to uint64, reason string) {
	s, ok := n.host.StatusOf(h.GetShard())
	switch {
	case !ok:
		return 0, "the node called has no replica of it"
	case s.LeaderStore == h.GetToStore():
		return 0, ""
	case !s.Leader && s.LeaderStore != "":
		return 0, "another node leads it by now"
	}
	to = n.voterOn(s, h.GetToStore())
	switch {
	case to == 0:
		return 0, "there is no replica with a vote on that node"
	case !s.Leader:
		return to, "nobody leads it at the moment"
	case !s.Established:
		return to, "its leader is not established yet"
	}
	return to, "the other replica has not caught up, or does not answer"
}

// voterOn is the id of a group's voter on a store; 0 if there is none.
func (n *Node) voterOn(s replica.Status, store string) uint64 {
	stores := n.replicaStores(s)
	for _, id := range s.Conf.Voters {
		if stores[id] == store {
			return id
		}
	}
	return 0
}

// transferLeads has the node of a store hand leaderships over, this one or another. The reasons are as of handOverLeads.
func (n *Node) transferLeads(ctx context.Context, from string, handovers []*clusterv1.Handover) []string {
	if from == n.dir.Ident().StoreUUID {
		return n.handOverLeads(ctx, handovers)
	}
	reasons, err := n.router.Transfer(ctx, from, handovers)
	if err != nil {
		return slices.Repeat([]string{fmt.Sprintf("its leader's node cannot be asked: %v", err)}, len(handovers))
	}
	return reasons
}
