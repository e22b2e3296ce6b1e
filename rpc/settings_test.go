package rpc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// The life of a queue's settings: versions grow, retries get the same answer, stale versions are refused.
func TestQueueSettings(t *testing.T) {
	s := newScene(t, 2)
	queue := &carillonv1.Queue{Name: "q", Retention: durationpb.New(time.Hour), Labels: map[string]string{"k": "v"}}
	created := must(s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: queue}))
	if created.Queue.Version != 1 || created.Queue.Retention.AsDuration() != time.Hour {
		t.Errorf("created %v", created)
	}
	if again := must(s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: queue})); !proto.Equal(created, again) {
		t.Errorf("the retry got %v, not %v", again, created)
	}
	_, err := s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "q"}})
	wantCode(t, err, connect.CodeAlreadyExists)
	paused, reason := true, "maintenance"
	updated := must(s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{
		Name: "q", Queue: &carillonv1.QueuePatch{Paused: &paused, PauseReason: &reason}, ExpectedVersion: 1,
	})).Queue
	if !updated.Paused || updated.PauseReason != reason || updated.Retention.AsDuration() != time.Hour || updated.Version != 2 {
		t.Errorf("updated %v", updated)
	}
	_, err = s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{
		Name: "q", Queue: &carillonv1.QueuePatch{Paused: &paused}, ExpectedVersion: 1,
	})
	wantCode(t, err, connect.CodeAborted)
	reset := must(s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{
		Name: "q", Queue: &carillonv1.QueuePatch{}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"retention", "labels", "paused"}},
	})).Queue
	if reset.Paused || reset.PauseReason != "" || reset.Retention != nil || len(reset.Labels) != 0 {
		t.Errorf("reset %v", reset)
	}
	if got := must(s.getQueue(t.Context(), &carillonv1.GetQueueRequest{Name: "q"})); !proto.Equal(got.Queue, reset) {
		t.Errorf("got %v", got)
	}
	_, err = s.deleteQueue(t.Context(), &carillonv1.DeleteQueueRequest{Name: "q", ExpectedVersion: 1})
	wantCode(t, err, connect.CodeAborted)
	must(s.deleteQueue(t.Context(), &carillonv1.DeleteQueueRequest{Name: "q", ExpectedVersion: 3}))
	for _, call := range []error{
		second(s.getQueue(t.Context(), &carillonv1.GetQueueRequest{Name: "q"})),
		second(s.deleteQueue(t.Context(), &carillonv1.DeleteQueueRequest{Name: "q"})),
		second(s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{
			Name: "q", Queue: &carillonv1.QueuePatch{Paused: &paused}, ExpectedVersion: 1,
		})),
		second(s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{Name: "q", Queue: &carillonv1.QueuePatch{Paused: new(false)}})),
		second(s.updateTenant(t.Context(), &carillonv1.UpdateTenantRequest{
			Name: "t", Tenant: &carillonv1.TenantPatch{Retention: durationpb.New(time.Hour)},
		})),
	} {
		wantCode(t, call, connect.CodeNotFound)
	}
}

func second[T any](_ T, err error) error { return err }

// An update without an expected version wins against one that came between.
func TestSettingsUpdatesStartOver(t *testing.T) {
	version, tries := uint64(1), 0
	get := func(context.Context, string) (*storagev1.QueueSettings, error) {
		return &storagev1.QueueSettings{Version: version}, nil
	}
	put := func(_ context.Context, q *storagev1.QueueSettings, expected uint64) (*storagev1.QueueSettings, error) {
		if tries++; tries < 3 {
			version++
		}
		if expected != version {
			return nil, &Refused{&fsm.Refusal{Code: fsm.Aborted, Version: version}}
		}
		return q, nil
	}
	same := func(q *storagev1.QueueSettings) *storagev1.QueueSettings { return q }
	if _, err := replaceSettings(t.Context(), "q", 0, get, put, same); err != nil || tries != 3 {
		t.Errorf("after %d tries: %v", tries, err)
	}
	if _, err := replaceSettings(t.Context(), "q", 1, get, put, same); !refusedWith(err, fsm.Aborted) {
		t.Errorf("a stale version: %v", err)
	}
}

// L5: deleting tenant test leaves test-1 alone; its creates are refused from then on.
func TestL5DeleteTenant(t *testing.T) {
	s := newScene(t, 4)
	for _, tenant := range []string{"test", "test-1"} {
		must(s.createTenant(t.Context(), &carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: tenant}}))
		for i := range 20 {
			s.create(&carillonv1.JobSpec{Id: fmt.Sprint(i), Tenant: tenant, Schedule: in(time.Hour)})
		}
	}
	res := must(s.deleteTenant(t.Context(), &carillonv1.DeleteTenantRequest{Name: "test"}))
	if !res.Task.Finished || res.Task.DoneCount == 0 {
		t.Errorf("deleted: %v", res)
	}
	for tenant, want := range map[string]int{"test": 0, "test-1": 20} {
		if got := must(s.listJobs(t.Context(), &carillonv1.ListJobsRequest{Tenant: tenant})); len(got.Jobs) != want {
			t.Errorf("%s has %d jobs, want %d", tenant, len(got.Jobs), want)
		}
	}
	_, err := s.createJob(t.Context(), &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Tenant: "test", Schedule: in(1)}})
	wantCode(t, err, connect.CodeFailedPrecondition)
	paused := true
	updated := must(s.updateTenant(t.Context(), &carillonv1.UpdateTenantRequest{Name: "test-1", Tenant: &carillonv1.TenantPatch{Paused: &paused}}))
	if got := must(s.getTenant(t.Context(), &carillonv1.GetTenantRequest{Name: "test-1"})); !got.Tenant.Paused || !proto.Equal(got.Tenant, updated.Tenant) {
		t.Errorf("paused: %v", got)
	}
	_, err = s.deleteTenant(t.Context(), &carillonv1.DeleteTenantRequest{Name: "nobody"})
	wantCode(t, err, connect.CodeNotFound)
}

// Settings are listed by name, each once, whatever comes and goes between the pages.
func TestSettingsArePaged(t *testing.T) {
	s := newScene(t, 1)
	for i := range 10 {
		must(s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: fmt.Sprint("q", i)}}))
		must(s.createTenant(t.Context(), &carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: fmt.Sprint("t", i)}}))
	}
	var names []string
	token := ""
	for page := 0; page == 0 || token != ""; page++ {
		res := must(s.listQueues(t.Context(), &carillonv1.ListQueuesRequest{PageSize: 3, PageToken: token}))
		for _, q := range res.Queues {
			names = append(names, q.Name)
		}
		if token = res.NextPageToken; page == 0 {
			must(s.deleteQueue(t.Context(), &carillonv1.DeleteQueueRequest{Name: "q2"}))
			must(s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "q00"}}))
			_, err := s.listTenants(t.Context(), &carillonv1.ListTenantsRequest{PageSize: 3, PageToken: token})
			wantViolation(t, err, "page_token")
		}
	}
	if got := fmt.Sprint(names); got != "[q0 q1 q2 q3 q4 q5 q6 q7 q8 q9]" {
		t.Errorf("listed %s", got)
	}
	if res := must(s.listTenants(t.Context(), &carillonv1.ListTenantsRequest{})); len(res.Tenants) != 10 || res.NextPageToken != "" {
		t.Errorf("all on one page: %v", res)
	}
}

// The cluster at a glance: names in place of stores, sums over the shards.
func TestCluster(t *testing.T) {
	s := newScene(t, 1)
	s.b.cluster = ClusterStatus{
		ClusterID: "c",
		Nodes:     []NodeStatus{{Name: "b", Store: "s2", ClockOK: true}, {Name: "a", Store: "s1", Ready: true, StartedMS: 5}},
		Shards: []ShardStatus{
			{ID: 2, LeaderStore: "s1", ReplicaStores: []string{"s1", "s2"}, Epoch: 3, Ready: 1, Jobs: 2, OldestWaitingMS: 2000},
			{ID: 1, LeaderStore: "s1", Ready: 4, OldestWaitingMS: 1000, Established: true},
			{ID: 3},
		},
		Alarms:          []Alarm{{Name: "slot_map_missing", Message: "The slot map is missing.", SinceMS: 7}},
		Tenants:         []TenantLoad{{Tenant: "big", Jobs: 9, More: true}, {Tenant: "small", Jobs: 1}},
		UncountedShards: 1,
	}
	res := must(s.getCluster(t.Context(), &carillonv1.GetClusterRequest{}))
	if a := res.Nodes[0]; a.Name != "a" || a.ShardsLed != 2 || !a.Ready || !a.ClockHeld || res.Nodes[1].ShardsLed != 0 {
		t.Errorf("nodes %v", res.Nodes)
	}
	if sh := res.Shards[1]; sh.Id != 2 || sh.Leader != "a" || fmt.Sprint(sh.Replicas) != "[a b]" || sh.Epoch != 3 || res.Shards[2].Leader != "" {
		t.Errorf("shards %v", res.Shards)
	}
	if b := res.Backlog; b.Ready != 5 || b.Jobs != 2 || b.OldestWaitingTime.AsTime().UnixMilli() != 1000 {
		t.Errorf("backlog %v", res.Backlog)
	}
	if len(res.Tenants) != 0 {
		t.Errorf("tenants %v, without having been asked for", res.Tenants)
	}
	res = must(s.getCluster(t.Context(), &carillonv1.GetClusterRequest{TopTenants: 1}))
	if l := res.Tenants[0]; len(res.Tenants) != 1 || l.Tenant != "big" || l.Jobs != 9 || !l.More || res.UncountedShards != 1 {
		t.Errorf("tenants %v, %d shards uncounted", res.Tenants, res.UncountedShards)
	}
	if a := res.Alarms[0]; a.Name != "slot_map_missing" || a.Since.AsTime().UnixMilli() != 7 {
		t.Errorf("alarms %v", res.Alarms)
	}
}

// What has no settings can be paused: they come into being with the pause.
func TestPausesOfWhatHasNoSettings(t *testing.T) {
	s := newScene(t, 2)
	yes, why := true, "why"
	q := must(s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{
		Name: "q", Queue: &carillonv1.QueuePatch{Paused: &yes, PauseReason: &why},
	})).Queue
	if !q.Paused || q.PauseReason != why || q.Version != 1 || q.Name != "q" {
		t.Errorf("queue %v", q)
	}
	tenant := must(s.updateTenant(t.Context(), &carillonv1.UpdateTenantRequest{
		Name: "t", Tenant: &carillonv1.TenantPatch{Paused: &yes, PauseReason: &why},
	})).Tenant
	if !tenant.Paused || tenant.PauseReason != why || tenant.Version != 1 || tenant.Name != "t" {
		t.Errorf("tenant %v", tenant)
	}
}
