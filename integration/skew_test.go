package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Any node tells which tenants have most jobs, over all shards, whoever leads them.
func TestSkewBetweenTenantsIsShown(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "8")
	due := soon(time.Hour)
	for tenant, n := range map[string]int{"small": 5, "middle": 20, "large": 60} {
		for i := range n {
			f.nodes[i%3].create(&carillonv1.JobSpec{Tenant: tenant, Id: fmt.Sprint("job-", i), Schedule: at(due)})
		}
	}
	call(t, f.nodes[0].jobs().DeleteJob, &carillonv1.DeleteJobRequest{Tenant: "large", Id: "job-0"})
	f.nodes[0].create(&carillonv1.JobSpec{Tenant: "large", Id: "job-60", Schedule: at(due)})
	for i, s := range f.nodes {
		// Leaderships may move between nodes right after the start: a shard without a leader that answers is not counted.
		what := fmt.Sprintf("n%d counts every shard", i+1)
		s.awaitStatus(30*time.Second, what, func(*carillonv1.GetClusterResponse) bool {
			got := call(t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{TopTenants: 10})
			return got.GetUncountedShards() == 0 && tenantsText(got) == "large=60 middle=20 small=5"
		})
		two := call(t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{TopTenants: 2})
		if got := tenantsText(two); got != "large=60 middle=20" {
			t.Errorf("the two largest are %s", got)
		}
		if got := s.status(); len(got.GetTenants()) != 0 || got.GetUncountedShards() != 0 {
			t.Errorf("tenants without having been asked for: %v", got)
		}
	}
	const largest = `"tenants":[{"tenant":"large","jobs":"60"}]`
	if code, body := f.nodes[1].get("/v1/cluster?top_tenants=1"); code != 200 || !strings.Contains(body, largest) {
		t.Errorf("over REST: %d %s", code, body)
	}
	if code, body := f.nodes[1].get("/v1/cluster?top_tenants=101"); code != 400 || !strings.Contains(body, `"field":"top_tenants"`) {
		t.Errorf("too many over REST: %d %s", code, body)
	}
	out := f.nodes[2].cli("cluster", "status", "--tenants")
	for _, want := range []string{"; tenant large has 60 of 85 jobs (70 %)", "TENANT  JOBS\nlarge   60\nmiddle  20\nsmall   5\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the status lacks %q:\n%s", want, out)
		}
	}
}

func tenantsText(c *carillonv1.GetClusterResponse) string {
	var list []string
	for _, l := range c.GetTenants() {
		text := fmt.Sprintf("%s=%d", l.GetTenant(), l.GetJobs())
		if l.GetMore() {
			text += "+"
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}
