package integration

import (
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Tenant `test` is deleted while `test-1` and others around it exist: only `test` is affected, in every kind of row.
func TestL5DeletedTenantTakesNothingElse(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	tenants := []string{"tes", "test", "test-1", "test1", "test.", "Test"}
	held := map[string]*carillonv1.Lease{}
	for _, tenant := range tenants {
		call(t, s.tenants().CreateTenant, &carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: tenant}})
		held[tenant] = fill(s, tenant)
	}
	all := map[string][]string{}
	for _, tenant := range tenants {
		all[tenant] = inventory(s, tenant)
		if len(all[tenant]) < 10 {
			t.Fatalf("tenant %s has only %v", tenant, all[tenant])
		}
	}
	var task *carillonv1.Task
	await(t, 30*time.Second, "the deletion has finished", func() bool {
		task = call(t, s.tenants().DeleteTenant, &carillonv1.DeleteTenantRequest{Name: "test"}).GetTask()
		return task.GetFinished()
	})
	// What a worker holds is told to stop, as when its job is deleted; how it ends is all that is left.
	if got := s.heartbeat(held["test"], "w").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED {
		t.Errorf("the heartbeat of what runs says %v; want CANCEL_REQUESTED", got)
	}
	if got := s.heartbeat(held["test-1"], "w").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK {
		t.Errorf("the heartbeat of tenant test-1 says %v; want OK", got)
	}
	s.complete(failed(held["test"], "w", "stopped"), cancelledState)
	left := held["test"].GetExecutionId() + " " + cancelledState.String()
	for _, restart := range []bool{false, true} {
		if restart {
			s.kill()
			s.start()
		}
		if got := inventory(s, "test"); !slices.Equal(got, []string{"execution " + left, "history " + left}) {
			t.Errorf("of tenant test is left %v", got)
		}
		for _, tenant := range tenants {
			if got := inventory(s, tenant); tenant != "test" && !slices.Equal(got, all[tenant]) {
				t.Errorf("tenant %s had\n%v\nand now has\n%v", tenant, all[tenant], got)
			}
		}
	}
	names := []string{}
	for _, tenant := range call(t, s.tenants().ListTenants, &carillonv1.ListTenantsRequest{}).GetTenants() {
		names = append(names, tenant.GetName())
	}
	if slices.Contains(names, "test") || len(names) != len(tenants)-1 {
		t.Errorf("tenants are %v", names)
	}
}

// fill gives a tenant jobs and executions in every state, and returns the lease of the one that runs.
func fill(s *server, tenant string) (running *carillonv1.Lease) {
	s.t.Helper()
	queue := "q:" + tenant
	once := &carillonv1.RetryPolicy{MaxAttempts: 1}
	for _, id := range []string{"succeeds", "dies", "leased"} {
		s.create(&carillonv1.JobSpec{Tenant: tenant, Id: id, Queue: queue, Schedule: in(0), Retry: once})
		lease := s.claimOne("w", queue)
		switch id {
		case "succeeds":
			s.complete(succeeded(lease, "w", "done"), succeededState)
		case "dies":
			s.complete(failed(lease, "w", "boom"), deadState)
		case "leased":
			running = lease
		}
	}
	s.create(&carillonv1.JobSpec{Tenant: tenant, Id: "retries", Queue: queue, Schedule: in(0)})
	retrying := failed(s.claimOne("w", queue), "w", "later")
	retrying.GetFailed().RetryAfter = in(time.Hour).GetDelay()
	s.complete(retrying, retryingState)
	s.create(&carillonv1.JobSpec{Tenant: tenant, Id: "ready", Queue: queue, Schedule: in(0)})
	s.create(&carillonv1.JobSpec{Tenant: tenant, Id: "waits", Queue: queue, Schedule: in(time.Hour), Payload: make([]byte, 4096)})
	s.create(&carillonv1.JobSpec{Tenant: tenant, Id: "recurs", Queue: queue, Schedule: every(time.Hour, soon(0))})
	call(s.t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{Tenant: tenant, Id: "recurs", IdempotencyKey: "k"})
	await(s.t, 10*time.Second, "the ready one is", func() bool {
		return len(s.list(&carillonv1.ListExecutionsRequest{Tenant: tenant, State: readyState})) == 1
	})
	return running
}

// inventory is what can be read of a tenant.
func inventory(s *server, tenant string) []string {
	s.t.Helper()
	found := []string{}
	req := &carillonv1.ListJobsRequest{Tenant: tenant}
	for {
		page := call(s.t, s.jobs().ListJobs, req)
		for _, j := range page.GetJobs() {
			found = append(found, "job "+j.GetId()+" "+j.GetState().String())
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	for _, e := range s.list(&carillonv1.ListExecutionsRequest{Tenant: tenant}) {
		found = append(found, "execution "+e.GetId()+" "+e.GetState().String())
	}
	for _, id := range []string{"succeeds", "dies", "leased", "retries", "ready", "waits", "recurs"} {
		res, err := try(s.jobs().GetJobHistory, &carillonv1.GetJobHistoryRequest{Tenant: tenant, Id: id})
		if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			s.t.Fatal(err)
		}
		for _, e := range res.GetExecutions() {
			found = append(found, "history "+e.GetId()+" "+e.GetState().String())
		}
	}
	slices.Sort(found)
	return found
}
