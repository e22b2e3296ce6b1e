package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// jobsOf is a shard with jobs of some tenants, one of each also deleted.
func jobsOf(t *testing.T, jobs map[string]int) fsm.Reader {
	t.Helper()
	engine := store.OpenMemory()
	b := engine.NewBatch()
	for tenant, n := range jobs {
		for i := range n + 1 {
			j := &storagev1.Job{Version: 1, Incarnation: 1 << 40, State: storagev1.JobState_JOB_STATE_ACTIVE, CreateHash: make([]byte, 8)}
			if i == n {
				j.State = storagev1.JobState_JOB_STATE_DELETED
			}
			value, err := j.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			b.Set(store.AppendKey(nil, 3, fsm.JobKey(tenant, fmt.Sprintf("job-%03d", i))), value)
		}
	}
	if _, err := engine.Commit(b, false); err != nil {
		t.Fatal(err)
	}
	return store.NewReader(engine, 3)
}

func loadsText(c *clusterv1.ShardTenants) string {
	var list []string
	for _, l := range c.GetLoads() {
		list = append(list, loadText(l.GetTenant(), l.GetJobs(), l.GetMore()))
	}
	if c.GetMore() {
		list = append(list, "...")
	}
	return strings.Join(list, " ")
}

func loadText(tenant string, jobs uint64, more bool) string {
	if more {
		return fmt.Sprintf("%s=%d+", tenant, jobs)
	}
	return fmt.Sprintf("%s=%d", tenant, jobs)
}

// A shard's jobs are counted in steps, up to a limit or until the time is up; what was cut off is said.
func TestShardsAreCountedUpToALimit(t *testing.T) {
	r := jobsOf(t, map[string]int{"a": 5, "b": 60, "b-1": 2, "c": 20})
	const rows = 5 + 60 + 2 + 20 + 4
	for _, c := range []struct {
		limit, step, goOn int
		want              string
	}{
		{1000, 1000, 1000, "b=60 c=20 a=5 b-1=2"},
		{1000, 7, 1000, "b=60 c=20 a=5 b-1=2"},
		{rows, 7, 1000, "b=60 c=20 a=5 b-1=2"},
		{rows - 1, 7, 1000, "b=60 c=20+ a=5 b-1=2 ..."},
		{10, 4, 1000, "a=5 b=4+ ..."},
		{1000, 10, 2, "b=14+ a=5 ..."},
		{1000, 10, 0, "..."},
	} {
		asked := 0
		got := countShard(r, c.limit, c.step, func() bool { asked++; return asked <= c.goOn })
		if loadsText(got) != c.want {
			t.Errorf("%d jobs in steps of %d, %d times: %s, want %s", c.limit, c.step, c.goOn, loadsText(got), c.want)
		}
	}
	many := map[string]int{}
	for i := range maxToldTenants + 1 {
		many[fmt.Sprintf("t-%04d", i)] = 1
	}
	got := countShard(jobsOf(t, many), maxCountedJobs, countStep, func() bool { return true })
	if len(got.Loads) != maxToldTenants || !got.More {
		t.Errorf("%d tenants are told, more: %v", len(got.Loads), got.More)
	}
}

// Tenants are summed over the shards, most jobs first. Where a shard was not counted to its end, those of its tenants that
// it does not tell, and the one within which counting ended, may have more.
func TestTenantsAreSummedOverShards(t *testing.T) {
	load := func(tenant string, jobs uint64) *clusterv1.TenantLoad {
		return &clusterv1.TenantLoad{Tenant: tenant, Jobs: jobs}
	}
	whole := &clusterv1.ShardTenants{Loads: []*clusterv1.TenantLoad{load("a", 5), load("b", 3), load("c", 1)}}
	cut := &clusterv1.ShardTenants{More: true, Loads: []*clusterv1.TenantLoad{load("b", 9), {Tenant: "c", Jobs: 4, More: true}}}
	for _, c := range []struct {
		name      string
		counts    map[uint32]*clusterv1.ShardTenants
		top       int
		want      string
		uncounted int
	}{
		{"whole", map[uint32]*clusterv1.ShardTenants{1: whole, 2: whole}, 10, "a=10 b=6 c=2", 0},
		{"the first", map[uint32]*clusterv1.ShardTenants{1: whole, 2: whole}, 2, "a=10 b=6", 0},
		{"cut", map[uint32]*clusterv1.ShardTenants{1: whole, 2: cut}, 10, "b=12 a=5+ c=5+", 1},
		{"no leader", map[uint32]*clusterv1.ShardTenants{1: whole}, 10, "a=5+ b=3+ c=1+", 1},
		{"not counted", map[uint32]*clusterv1.ShardTenants{1: nil, 2: nil}, 10, "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, uncounted := sumTenants([]uint32{1, 2}, c.counts, c.top)
			var got []string
			for _, l := range list {
				got = append(got, loadText(l.Tenant, l.Jobs, l.More))
			}
			if strings.Join(got, " ") != c.want || uncounted != c.uncounted {
				t.Errorf("%v, %d uncounted", got, uncounted)
			}
		})
	}
}
