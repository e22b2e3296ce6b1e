package node

import (
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/sync/errgroup"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// statusTimeout is how long another node may take to say how it is.
const statusTimeout = 2 * time.Second

// Cluster describes the cluster as this node sees it: itself, what the other nodes say of themselves, and every shard as
// its leader describes it, or else as whoever has it does.
func (n *Node) Cluster(ctx context.Context, topTenants int) (rpc.ClusterStatus, error) {
	ident := n.dir.Ident()
	req := &clusterv1.NodeStatusRequest{CountTenants: topTenants > 0}
	own, err := n.NodeStatus(ctx, req)
	if err != nil {
		return rpc.ClusterStatus{}, err
	}
	status := rpc.ClusterStatus{ClusterID: ident.ClusterID, Version: Version}
	answers := append([]*clusterv1.NodeStatusResponse{own}, n.askStatus(ctx, req)...)
	shards := map[uint32]rpc.ShardStatus{}
	counts := map[uint32]*clusterv1.ShardTenants{}
	for _, a := range answers {
		status.Nodes = append(status.Nodes, nodeStatus(a.GetNode()))
		for _, alarm := range a.GetAlarms() {
			status.Alarms = append(status.Alarms, rpc.Alarm{
				Name: alarm.GetName(), Message: alarm.GetMessage(), SinceMS: alarm.GetSinceMs(), Node: a.GetNode().GetName(),
			})
		}
		for _, s := range a.GetShards() {
			one := shardStatus(s)
			if standing, ok := shards[one.ID]; !ok || one.Established || !standing.Established && one.Applied > standing.Applied {
				shards[one.ID], counts[one.ID] = one, s.GetTenants()
			}
		}
	}
	for _, s := range shards {
		status.Shards = append(status.Shards, s)
	}
	if topTenants > 0 {
		status.Tenants, status.UncountedShards = sumTenants(n.slots.shards, counts, topTenants)
	}
	n.describeNodes(&status)
	slices.SortFunc(status.Shards, func(a, b rpc.ShardStatus) int { return int(a.ID) - int(b.ID) })
	slices.SortFunc(status.Nodes, func(a, b rpc.NodeStatus) int { return int(a.ID) - int(b.ID) })
	return status, nil
}

// askStatus asks all other nodes at once; one that does not answer is shown as not ready.
func (n *Node) askStatus(ctx context.Context, req *clusterv1.NodeStatusRequest) []*clusterv1.NodeStatusResponse {
	if n.inner == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	stores := n.inner.others()
	answers := make([]*clusterv1.NodeStatusResponse, len(stores))
	group := new(errgroup.Group)
	for i, store := range stores {
		group.Go(func() error {
			res, err := n.router.NodeStatus(ctx, store, req)
			if err != nil {
				res = &clusterv1.NodeStatusResponse{Node: n.inner.known(store)}
			}
			answers[i] = res
			return nil
		})
	}
	_ = group.Wait() // nobody fails
	return answers
}

func nodeStatus(s *clusterv1.NodeStatus) rpc.NodeStatus {
	return rpc.NodeStatus{
		ID: s.GetId(), Name: s.GetName(), Store: s.GetStore(), Address: s.GetAddress(), Version: s.GetVersion(),
		StartedMS: s.GetStartedMs(), Ready: s.GetReady(), ClockOK: s.GetClockOk(), ClockVirtual: s.GetClockVirtual(),
		EtcdVoter: s.GetEtcdVoter(), EtcdLearner: s.GetEtcdLearner(), Controller: s.GetController(),
	}
}

func shardStatus(s *clusterv1.ShardStatus) rpc.ShardStatus {
	return rpc.ShardStatus{
		ID: s.GetId(), LeaderStore: s.GetLeaderStore(), ReplicaStores: s.GetReplicaStores(), Epoch: s.GetEpoch(),
		Established: s.GetEstablished(), Degraded: s.GetDegraded(), Applied: s.GetApplied(), Jobs: s.GetJobs(),
		Waiting: s.GetWaiting(), Ready: s.GetReady(), Leased: s.GetLeased(), Retrying: s.GetRetrying(), Dead: s.GetDead(),
		Held: s.GetHeld(), OldestWaitingMS: s.GetOldestWaitingMs(), Members: members(s),
	}
}

// NodeStatus describes this node and the replicas on it.
func (n *Node) NodeStatus(ctx context.Context, req *clusterv1.NodeStatusRequest) (*clusterv1.NodeStatusResponse, error) {
	ident := n.dir.Ident()
	res := &clusterv1.NodeStatusResponse{Node: &clusterv1.NodeStatus{
		Id: n.nodeID.Load(), Name: n.cfg.Name, Store: ident.StoreUUID, Address: n.address(), Version: Version,
		StartedMs: n.started.UnixMilli(), Boot: ident.Boots,
	}}
	if !n.serving.Load() {
		return res, nil
	}
	res.Node.Ready, res.Node.ClockOk, res.Node.NowMs = len(n.notReady()) == 0, n.guard.MayFire(), n.guard.Now()
	res.Node.ClockVirtual = n.advancer != nil
	n.describeControl(res.Node)
	for _, a := range n.alarms.list() {
		res.Alarms = append(res.Alarms, &clusterv1.Alarm{Name: a.Name, Message: a.Message, SinceMs: a.SinceMS})
	}
	oldest := n.dispatcher.OldestWaiting()
	progress, err := n.host.Progress(ctx)
	if err != nil {
		return nil, err
	}
	var led []*clusterv1.ShardStatus
	for _, s := range n.host.Status() {
		one, err := n.replicaStatus(s)
		if err != nil {
			return nil, err
		}
		one.Progress = n.replicaProgress(s, progress[s.Shard])
		one.OldestWaitingMs = oldest[s.Shard]
		res.Shards = append(res.Shards, one)
		if s.Leader && s.Established {
			led = append(led, one)
		}
	}
	if req.GetCountTenants() {
		if err := n.countTenants(ctx, led); err != nil {
			return nil, err
		}
	}
	if n.inner != nil {
		for _, p := range n.inner.transport.Peers() {
			res.Peers = append(res.Peers, &clusterv1.PeerStatus{
				Store: p.Store, Connected: p.Connected, SilentMs: p.SilentFor.Milliseconds(), Suspect: p.Suspect,
				BreakerOpen: n.router.Open(p.Store), ClockKnown: p.Clock.Known, ClockOffsetMs: p.Clock.ClockOffset.Milliseconds(),
			})
		}
	}
	return res, nil
}

func (n *Node) replicaStatus(s replica.Status) (*clusterv1.ShardStatus, error) {
	r := store.NewReader(n.engine, s.Shard)
	meta := fsm.ReadMeta(r)
	if err := r.Err(); err != nil {
		return nil, err
	}
	one := &clusterv1.ShardStatus{
		Id: s.Shard, LeaderStore: s.LeaderStore, Epoch: s.Term, Established: s.Established, Degraded: s.Degraded,
		Applied: s.Applied, Jobs: meta.GetJobs(), Waiting: meta.GetWaiting(), Ready: meta.GetReady(), Leased: meta.GetLeased(),
		Retrying: meta.GetRetrying(), Dead: meta.GetDead(), Held: meta.GetHeld(), ReplicaId: s.ReplicaID, Committed: s.Commit,
		LastIndex: s.LogLast, Generation: s.Gen, ClockMs: meta.GetClockMs(),
	}
	if n.inner == nil {
		one.ReplicaStores = []string{n.dir.Ident().StoreUUID}
		return one, nil
	}
	stores := n.replicaStores(s)
	for _, id := range voting(s.Conf) {
		one.ReplicaStores = append(one.ReplicaStores, stores[id])
	}
	for _, id := range s.Conf.Learners {
		one.LearnerStores = append(one.LearnerStores, stores[id])
	}
	return one, nil
}

// address is where this node is reached.
func (n *Node) address() string {
	if n.inner != nil {
		return n.cfg.clusterAddr()
	}
	return n.web.listener.Addr().String()
}
