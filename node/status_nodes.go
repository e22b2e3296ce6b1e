package node

import (
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// silentAfter is how long nothing must have been heard of a node to be shown as silent: beats come five times a second.
const silentAfter = time.Second

// describeNodes adds to a status what this node knows of the others: what is wanted of their stores, how their clocks are,
// who is silent, and lost stores that have not been replaced yet.
func (n *Node) describeNodes(status *rpc.ClusterStatus) {
	if n.inner == nil {
		for i := range status.Nodes {
			status.Nodes[i].State, status.Nodes[i].Replicas = rpc.StateUp, len(status.Shards)
			status.Nodes[i].ClockKnown = true
		}
		return
	}
	replicas := n.placement.replicas()
	records := map[string]control.StoreRecord{}
	shown := map[string]bool{}
	for _, s := range status.Nodes {
		shown[s.Store] = true
	}
	for _, s := range n.inner.records() {
		records[s.UUID] = s
		if s.State == control.StoreGone && replicas[s.UUID] > 0 && !shown[s.UUID] {
			status.Nodes = append(status.Nodes, rpc.NodeStatus{ID: s.NodeID, Name: s.Name, Store: s.UUID, Address: s.Addr})
		}
	}
	for i := range status.Nodes {
		one := &status.Nodes[i]
		one.State, one.Replicas = storeState(records[one.Store].State), replicas[one.Store]
		one.ClockKnown = one.Store == n.dir.Ident().StoreUUID // its offset from itself is none
	}
	for _, p := range n.inner.transport.Peers() {
		for i := range status.Nodes {
			one := &status.Nodes[i]
			if one.Store != p.Store {
				continue
			}
			one.ClockKnown, one.ClockOffsetMS = p.Clock.Known, p.Clock.ClockOffset.Milliseconds()
			if p.SilentFor >= silentAfter {
				one.SilentSinceMS = n.guard.Now() - p.SilentFor.Milliseconds()
				one.ClockKnown = false
			}
		}
	}
}

// describeControl says what this node's part in the control plane is.
func (n *Node) describeControl(s *clusterv1.NodeStatus) {
	if etcd := n.etcd.Load(); etcd != nil {
		self := etcd.MemberID()
		for _, m := range etcd.LocalMembers() {
			if m.ID == self {
				s.EtcdVoter, s.EtcdLearner = !m.Learner, m.Learner
			}
		}
	}
	s.Controller = n.controller != nil && n.controller.Active()
}

// replicaProgress is what this node knows of the replicas of a group that it leads.
func (n *Node) replicaProgress(s replica.Status, all []replica.Progress) (list []*clusterv1.ReplicaProgress) {
	if len(all) == 0 {
		return nil
	}
	stores := n.replicaStores(s)
	for _, p := range all {
		list = append(list, &clusterv1.ReplicaProgress{
			Store: stores[p.ReplicaID], ReplicaId: p.ReplicaID, Match: p.Match, Lag: p.Lag, Learner: p.Learner,
			Snapshot: p.Snapshot, Active: p.Active,
		})
	}
	return list
}

// replicaStores are the stores of a group's replicas by their ids, as far as they are known.
func (n *Node) replicaStores(s replica.Status) map[uint64]string {
	if n.inner == nil {
		return map[uint64]string{s.ReplicaID: n.dir.Ident().StoreUUID}
	}
	return n.placement.stores(s.Shard)
}

// voting are the ids of a group's voters: of both configurations while one follows on another, since both have a say then.
func voting(c replica.Conf) []uint64 {
	ids := slices.Clone(c.Voters)
	for _, id := range c.Outgoing {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// members are a shard's replicas as its leader sees them.
func members(s *clusterv1.ShardStatus) (list []rpc.ReplicaStatus) {
	for _, p := range s.GetProgress() {
		list = append(list, rpc.ReplicaStatus{
			Store: p.GetStore(), Learner: p.GetLearner(), Lag: p.GetLag(), Snapshot: p.GetSnapshot(), Active: p.GetActive(),
		})
	}
	return list
}
