package rpc

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) getCluster(ctx context.Context, req *carillonv1.GetClusterRequest) (*carillonv1.GetClusterResponse, error) {
	var v violations
	if req.TopTenants > maxTopTenants {
		v.add("top_tenants", "is %d; it must be at most %d", req.TopTenants, maxTopTenants)
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	status, err := s.backend.Cluster(ctx, int(req.TopTenants))
	if err != nil {
		return nil, err
	}
	res := &carillonv1.GetClusterResponse{
		ClusterId: status.ClusterID, Backlog: &carillonv1.Backlog{}, Time: timeOf(s.backend.NowMS()),
		UncountedShards: uint32(status.UncountedShards),
	}
	for _, t := range status.Tenants {
		res.Tenants = append(res.Tenants, &carillonv1.TenantLoad{Tenant: t.Tenant, Jobs: t.Jobs, More: t.More})
	}
	nameOfStore := map[string]string{}
	nodes := map[string]*carillonv1.Node{}
	for _, n := range status.Nodes {
		node := &carillonv1.Node{
			Name: n.Name, StoreId: n.Store, Address: n.Address, Version: n.Version, Ready: n.Ready, ClockHeld: !n.ClockOK, ClockVirtual: n.ClockVirtual,
			StartTime: optionalTime(n.StartedMS), State: storeStates[n.State], SilentSince: optionalTime(n.SilentSinceMS),
			Controller: n.Controller, ControlRole: controlRole(&n), Replicas: uint32(n.Replicas),
		}
		if n.ClockKnown {
			node.ClockOffset = durationpb.New(time.Duration(n.ClockOffsetMS) * time.Millisecond)
		}
		nameOfStore[n.Store], nodes[n.Store] = n.Name, node
		res.Nodes = append(res.Nodes, node)
	}
	slices.SortFunc(res.Nodes, func(a, b *carillonv1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, sh := range status.Shards {
		if node := nodes[sh.LeaderStore]; node != nil {
			node.ShardsLed++
		}
		shard := &carillonv1.Shard{
			Id: sh.ID, Leader: cmp.Or(nameOfStore[sh.LeaderStore], sh.LeaderStore), Epoch: sh.Epoch, Degraded: sh.Degraded,
			Established: sh.Established, AppliedIndex: sh.Applied, Backlog: backlogOf(&sh),
		}
		for _, store := range sh.ReplicaStores {
			shard.Replicas = append(shard.Replicas, cmp.Or(nameOfStore[store], store))
		}
		shard.Members = members(sh.Members, nameOfStore)
		addBacklog(res.Backlog, shard.Backlog)
		res.Shards = append(res.Shards, shard)
	}
	slices.SortFunc(res.Shards, func(a, b *carillonv1.Shard) int { return cmp.Compare(a.Id, b.Id) })
	for _, a := range status.Alarms {
		res.Alarms = append(res.Alarms, &carillonv1.Alarm{
			Name: a.Name, Message: a.Message, Since: optionalTime(a.SinceMS), Node: a.Node,
		})
	}
	return res, nil
}

func controlRole(n *NodeStatus) carillonv1.ControlRole {
	switch {
	case n.EtcdVoter:
		return carillonv1.ControlRole_CONTROL_ROLE_VOTER
	case n.EtcdLearner:
		return carillonv1.ControlRole_CONTROL_ROLE_LEARNER
	}
	return carillonv1.ControlRole_CONTROL_ROLE_UNSPECIFIED
}

// members are a shard's replicas in order of the nodes' names.
func members(from []ReplicaStatus, nameOfStore map[string]string) (list []*carillonv1.Replica) {
	for _, r := range from {
		list = append(list, &carillonv1.Replica{
			Node: cmp.Or(nameOfStore[r.Store], r.Store), Learner: r.Learner, Lag: r.Lag, Snapshot: r.Snapshot, Active: r.Active,
		})
	}
	slices.SortFunc(list, func(a, b *carillonv1.Replica) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

func backlogOf(s *ShardStatus) *carillonv1.Backlog {
	return &carillonv1.Backlog{
		Jobs: s.Jobs, Waiting: s.Waiting, Ready: s.Ready, Leased: s.Leased, Retrying: s.Retrying, Dead: s.Dead, Held: s.Held,
		OldestWaitingTime: optionalTime(s.OldestWaitingMS),
	}
}

// addBacklog adds b to sum; the oldest of both is the oldest.
func addBacklog(sum, b *carillonv1.Backlog) {
	sum.Jobs += b.Jobs
	sum.Waiting += b.Waiting
	sum.Ready += b.Ready
	sum.Leased += b.Leased
	sum.Retrying += b.Retrying
	sum.Dead += b.Dead
	sum.Held += b.Held
	if t := b.OldestWaitingTime; t != nil && (sum.OldestWaitingTime == nil || t.AsTime().Before(sum.OldestWaitingTime.AsTime())) {
		sum.OldestWaitingTime = t
	}
}
