package node

import (
	"context"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"
)

// Cluster describes the cluster as this node sees it.
func (n *Node) Cluster(context.Context) (rpc.ClusterStatus, error) {
	ident := n.dir.Ident()
	status := rpc.ClusterStatus{
		ClusterID: ident.ClusterID,
		Version:   Version,
		Alarms:    n.alarms.list(),
		Nodes: []rpc.NodeStatus{{
			ID: n.nodeID, Name: n.cfg.Name, Store: ident.StoreUUID, Address: n.web.listener.Addr().String(), Version: Version,
			StartedMS: n.started.UnixMilli(), Ready: len(n.notReady()) == 0, ClockOK: n.guard.MayFire(),
		}},
	}
	oldest := n.dispatcher.OldestWaiting()
	for _, s := range n.host.Status() {
		r := store.NewReader(n.engine, s.Shard)
		meta := fsm.ReadMeta(r)
		if err := r.Err(); err != nil {
			return rpc.ClusterStatus{}, err
		}
		status.Shards = append(status.Shards, rpc.ShardStatus{
			ID: s.Shard, LeaderStore: s.LeaderStore, Epoch: s.Term, Established: s.Established, Degraded: s.Degraded,
			Applied: s.Applied, Jobs: meta.GetJobs(), Waiting: meta.GetWaiting(), Ready: meta.GetReady(), Leased: meta.GetLeased(),
			Retrying: meta.GetRetrying(), Dead: meta.GetDead(), Held: meta.GetHeld(), OldestWaitingMS: oldest[s.Shard],
			ReplicaStores: []string{ident.StoreUUID},
		})
	}
	return status, nil
}
