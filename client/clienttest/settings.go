package clienttest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// sorted is the values of m by key.
func sorted[T any](m map[string]T) []T {
	var all []T
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
}

// patch copies the fields that from has, or that paths name, to those of the same name.
func patch(to, from protoreflect.Message, paths []string) {
	for i := range from.Descriptor().Fields().Len() {
		f := from.Descriptor().Fields().Get(i)
		switch target := to.Descriptor().Fields().ByName(f.Name()); {
		case from.Has(f):
			to.Set(target, from.Get(f))
		case slices.Contains(paths, string(f.Name())):
			to.Clear(target)
		}
	}
}

func missing(what, id string) error {
	return Fail(connect.CodeNotFound, fmt.Sprintf("%s %q not found", what, id))
}

func stale(current uint64) error {
	return Fail(connect.CodeAborted, "expected_version is stale", &carillonv1.VersionConflict{CurrentVersion: current})
}

type queueService struct{ *Server }

func (s queueService) CreateQueue(
	_ context.Context, req *connect.Request[carillonv1.CreateQueueRequest],
) (*connect.Response[carillonv1.CreateQueueResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := proto.CloneOf(req.Msg.GetQueue())
	if s.queues[q.GetName()] != nil {
		return nil, Fail(connect.CodeAlreadyExists, "queue exists with other settings")
	}
	q.Version, q.CreateTime, q.UpdateTime = 1, timestamppb.Now(), timestamppb.Now()
	s.queues[q.GetName()] = q
	return connect.NewResponse(&carillonv1.CreateQueueResponse{Queue: q}), nil
}

func (s queueService) GetQueue(
	_ context.Context, req *connect.Request[carillonv1.GetQueueRequest],
) (*connect.Response[carillonv1.GetQueueResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[req.Msg.GetName()]
	if q == nil {
		return nil, missing("queue", req.Msg.GetName())
	}
	return connect.NewResponse(&carillonv1.GetQueueResponse{Queue: proto.CloneOf(q)}), nil
}

func (s queueService) ListQueues(
	_ context.Context, req *connect.Request[carillonv1.ListQueuesRequest],
) (*connect.Response[carillonv1.ListQueuesResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queues := map[string]*carillonv1.Queue{}
	for name, q := range s.queues {
		queues[name] = proto.CloneOf(q)
		queues[name].Backlog = &carillonv1.QueueBacklog{}
	}
	for _, e := range s.executions {
		if e.dueAt.After(time.Now()) || !s.claimable(e, []string{e.GetQueue()}) {
			continue
		}
		q := queues[e.GetQueue()]
		if q == nil {
			q = &carillonv1.Queue{Name: e.GetQueue(), Backlog: &carillonv1.QueueBacklog{}}
			queues[e.GetQueue()] = q
		}
		q.Backlog.Ready++
		if old := q.GetBacklog().GetOldestReadyTime(); old == nil || e.dueAt.Before(old.AsTime()) {
			q.Backlog.OldestReadyTime = timestamppb.New(e.dueAt)
		}
	}
	res := &carillonv1.ListQueuesResponse{}
	res.Queues, res.NextPageToken = page(sorted(queues), req.Msg.GetPageSize(), req.Msg.GetPageToken())
	return connect.NewResponse(res), nil
}

func (s queueService) UpdateQueue(
	_ context.Context, req *connect.Request[carillonv1.UpdateQueueRequest],
) (*connect.Response[carillonv1.UpdateQueueResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[req.Msg.GetName()]
	if q == nil && req.Msg.GetQueue().GetPaused() {
		q = &carillonv1.Queue{Name: req.Msg.GetName(), CreateTime: timestamppb.Now(), UpdateTime: timestamppb.Now()}
		s.queues[q.GetName()] = q
	}
	if q == nil {
		return nil, missing("queue", req.Msg.GetName())
	}
	if v := req.Msg.GetExpectedVersion(); v != 0 && v != q.GetVersion() {
		return nil, stale(q.GetVersion())
	}
	patch(q.ProtoReflect(), req.Msg.GetQueue().ProtoReflect(), req.Msg.GetUpdateMask().GetPaths())
	if !q.GetPaused() {
		q.PauseReason, q.PausedBy, q.PauseUntil, q.ResumeRule = "", "", nil, carillonv1.CatchUp_CATCH_UP_UNSPECIFIED
	}
	q.Version++
	return connect.NewResponse(&carillonv1.UpdateQueueResponse{Queue: proto.CloneOf(q)}), nil
}

func (s queueService) DeleteQueue(
	_ context.Context, req *connect.Request[carillonv1.DeleteQueueRequest],
) (*connect.Response[carillonv1.DeleteQueueResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[req.Msg.GetName()] == nil {
		return nil, missing("queue", req.Msg.GetName())
	}
	delete(s.queues, req.Msg.GetName())
	return connect.NewResponse(&carillonv1.DeleteQueueResponse{}), nil
}

type tenantService struct{ *Server }

func (s tenantService) CreateTenant(
	_ context.Context, req *connect.Request[carillonv1.CreateTenantRequest],
) (*connect.Response[carillonv1.CreateTenantResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := proto.CloneOf(req.Msg.GetTenant())
	if s.tenants[t.GetName()] != nil {
		return nil, Fail(connect.CodeAlreadyExists, "tenant exists with other settings")
	}
	t.Version, t.CreateTime, t.UpdateTime = 1, timestamppb.Now(), timestamppb.Now()
	s.tenants[t.GetName()] = t
	return connect.NewResponse(&carillonv1.CreateTenantResponse{Tenant: t}), nil
}

func (s tenantService) GetTenant(
	_ context.Context, req *connect.Request[carillonv1.GetTenantRequest],
) (*connect.Response[carillonv1.GetTenantResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[req.Msg.GetName()]
	if t == nil {
		return nil, missing("tenant", req.Msg.GetName())
	}
	return connect.NewResponse(&carillonv1.GetTenantResponse{Tenant: proto.CloneOf(t)}), nil
}

func (s tenantService) ListTenants(
	_ context.Context, req *connect.Request[carillonv1.ListTenantsRequest],
) (*connect.Response[carillonv1.ListTenantsResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := &carillonv1.ListTenantsResponse{}
	res.Tenants, res.NextPageToken = page(sorted(s.tenants), req.Msg.GetPageSize(), req.Msg.GetPageToken())
	return connect.NewResponse(proto.CloneOf(res)), nil
}

func (s tenantService) UpdateTenant(
	_ context.Context, req *connect.Request[carillonv1.UpdateTenantRequest],
) (*connect.Response[carillonv1.UpdateTenantResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[req.Msg.GetName()]
	if t == nil && req.Msg.GetTenant().GetPaused() {
		t = &carillonv1.Tenant{Name: req.Msg.GetName(), CreateTime: timestamppb.Now(), UpdateTime: timestamppb.Now()}
		s.tenants[t.GetName()] = t
	}
	if t == nil {
		return nil, missing("tenant", req.Msg.GetName())
	}
	if v := req.Msg.GetExpectedVersion(); v != 0 && v != t.GetVersion() {
		return nil, stale(t.GetVersion())
	}
	patch(t.ProtoReflect(), req.Msg.GetTenant().ProtoReflect(), req.Msg.GetUpdateMask().GetPaths())
	if !t.GetPaused() {
		t.PauseReason, t.PausedBy, t.PauseUntil, t.ResumeRule = "", "", nil, carillonv1.CatchUp_CATCH_UP_UNSPECIFIED
	}
	t.Version++
	return connect.NewResponse(&carillonv1.UpdateTenantResponse{Tenant: proto.CloneOf(t)}), nil
}

// DeleteTenant takes two calls: the first answers a task that is not finished.
func (s tenantService) DeleteTenant(
	_ context.Context, req *connect.Request[carillonv1.DeleteTenantRequest],
) (*connect.Response[carillonv1.DeleteTenantResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[req.Msg.GetName()]
	if t == nil {
		return nil, missing("tenant", req.Msg.GetName())
	}
	if v := req.Msg.GetExpectedVersion(); v != 0 && v != t.GetVersion() {
		return nil, stale(t.GetVersion())
	}
	res := &carillonv1.DeleteTenantResponse{Task: &carillonv1.Task{
		Id: "delete-" + t.GetName(), Finished: t.GetDeleting(), CreateTime: timestamppb.Now(), UpdateTime: timestamppb.Now(),
	}}
	for key := range s.jobs {
		if key.tenant == t.GetName() {
			delete(s.jobs, key)
			res.Task.DoneCount++
		}
	}
	if t.GetDeleting() {
		delete(s.tenants, t.GetName())
	}
	t.Deleting = true
	t.Version++
	return connect.NewResponse(res), nil
}

type clusterService struct{ *Server }

func (s clusterService) GetCluster(
	_ context.Context, req *connect.Request[carillonv1.GetClusterRequest],
) (*connect.Response[carillonv1.GetClusterResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	backlog := &carillonv1.Backlog{Jobs: uint64(len(s.jobs))}
	now := time.Now()
	for _, e := range s.executions {
		switch e.GetState() {
		case waiting, ready:
			if e.dueAt.After(now) {
				backlog.Waiting++
				continue
			}
			backlog.Ready++
			if oldest := backlog.GetOldestWaitingTime(); oldest == nil || e.dueAt.Before(oldest.AsTime()) {
				backlog.OldestWaitingTime = timestamppb.New(e.dueAt)
			}
		case leased:
			backlog.Leased++
		case retrying:
			backlog.Retrying++
		case dead:
			backlog.Dead++
		default:
		}
	}
	return connect.NewResponse(&carillonv1.GetClusterResponse{
		ClusterId: "fake", Time: timestamppb.New(now), Backlog: backlog, Tenants: s.topTenants(int(req.Msg.GetTopTenants())),
		Nodes: []*carillonv1.Node{{
			Name: "n1", StoreId: "s1", Address: "127.0.0.1:7070", Version: "dev", Ready: true, ShardsLed: 1,
			StartTime: timestamppb.New(now), State: carillonv1.StoreState_STORE_STATE_UP, Replicas: 1, Controller: true,
			ControlRole: carillonv1.ControlRole_CONTROL_ROLE_VOTER,
		}},
		Shards: []*carillonv1.Shard{{
			Id: 0, Leader: "n1", Epoch: 1, Replicas: []string{"n1"}, Established: true, AppliedIndex: 7, Backlog: backlog,
			Members: []*carillonv1.Replica{{Node: "n1", Active: true}},
		}},
	}), nil
}

// topTenants are the n tenants with most jobs.
func (s clusterService) topTenants(n int) (top []*carillonv1.TenantLoad) {
	jobs := map[string]uint64{}
	for key := range s.jobs {
		jobs[key.tenant]++
	}
	for tenant, count := range jobs {
		top = append(top, &carillonv1.TenantLoad{Tenant: tenant, Jobs: count})
	}
	slices.SortFunc(top, func(a, b *carillonv1.TenantLoad) int {
		return cmp.Or(cmp.Compare(b.GetJobs(), a.GetJobs()), cmp.Compare(a.GetTenant(), b.GetTenant()))
	})
	return top[:min(n, len(top))]
}
