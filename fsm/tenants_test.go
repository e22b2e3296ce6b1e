package fsm

import (
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Counting in small steps adds up to what a look at every row finds, tombstones left out, and to the shard's own counter.
func TestTenantsAreCounted(t *testing.T) {
	r := recordLog(5, 300)
	want, all, deleted := map[string]uint64{}, uint64(0), 0
	r.s.Scan([]byte{KindJob}, PrefixEnd([]byte{KindJob}), func(key, value []byte) bool {
		tenant, _, ok := parseJobKey(key, KindJob)
		j := &storagev1.Job{}
		if err := j.UnmarshalVT(value); err != nil || !ok {
			t.Fatal(err)
		}
		if j.State == storagev1.JobState_JOB_STATE_DELETED {
			deleted++
			return true
		}
		want[tenant]++
		all++
		return true
	})
	if len(want) < 2 || deleted == 0 || all != ReadMeta(r.s).GetJobs() {
		t.Fatalf("jobs of %d tenants, %d in all, %d deleted: the log does not serve", len(want), all, deleted)
	}
	for _, budget := range []int{1, 3, 1 << 20} {
		got := map[string]uint64{}
		for _, c := range pages(t, func(cursor []byte) ([]TenantJobs, []byte) { return CountTenants(r.s, cursor, budget) }) {
			got[c.Tenant] += c.Jobs
		}
		for tenant, n := range want {
			if got[tenant] != n {
				t.Errorf("%d rows at a time: %d jobs of %s, want %d", budget, got[tenant], tenant, n)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d rows at a time: %v, want %v", budget, got, want)
		}
	}
}

// What cannot be read is no state.
func TestStateOfABrokenRow(t *testing.T) {
	for _, row := range [][]byte{{0x80}, {0x08}, {0x0a, 1, 1}} {
		if _, ok := stateOfRow(row); ok {
			t.Errorf("%x has a state", row)
		}
	}
}
