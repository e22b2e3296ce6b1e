package sim

import (
	"maps"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// fixed are rows that stay as they are.
type fixed map[string][]byte

func (f fixed) Get(key []byte) (value []byte, ok bool) {
	value, ok = f[string(key)]
	return value, ok
}

func (f fixed) Scan(start, end []byte, fn func(key, value []byte) bool) {
	for _, key := range slices.Sorted(maps.Keys(f)) {
		if key >= string(start) && key < string(end) && !fn([]byte(key), f[key]) {
			return
		}
	}
}

// What is leased while its queue, its tenant or its job is paused is noticed, unless the entry has a pause or a resume in it.
func TestWhatIsLeasedWhilePausedIsNoticed(t *testing.T) {
	encode := func(m interface{ MarshalVT() ([]byte, error) }) []byte {
		value, err := m.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	paused := storagev1.JobState_JOB_STATE_PAUSED
	job := encode(&storagev1.Job{Version: 1, Incarnation: 1, State: paused, Schedule: &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: 1000}}})
	claim := &storagev1.Command{Claim: &storagev1.Claim{}}
	resume := &storagev1.Command{UpdateJob: &storagev1.UpdateJob{}}
	for name, test := range map[string]struct {
		rows  fixed
		cmds  []*storagev1.Command
		fails bool
	}{
		"nothing is paused": {fixed{}, []*storagev1.Command{claim}, false},
		"another queue": {
			fixed{string(fsm.QueueKey("q1")): encode(&storagev1.QueueSettings{Name: "q1", Paused: true})}, []*storagev1.Command{claim}, false,
		},
		"its queue": {
			fixed{string(fsm.QueueKey("q0")): encode(&storagev1.QueueSettings{Name: "q0", Paused: true})}, []*storagev1.Command{claim}, true,
		},
		"its queue's pause is over": {
			fixed{string(fsm.QueueKey("q0")): encode(&storagev1.QueueSettings{Name: "q0", Paused: true, Pause: &storagev1.Pause{Over: true}})},
			[]*storagev1.Command{claim}, false,
		},
		"its tenant": {
			fixed{string(fsm.TenantKey(tenant)): encode(&storagev1.TenantSettings{Name: tenant, Paused: true})},
			[]*storagev1.Command{claim}, true,
		},
		"its job":              {fixed{string(fsm.JobKey(tenant, "job")): job}, []*storagev1.Command{claim}, true},
		"its job, by an entry": {fixed{string(fsm.JobKey(tenant, "job")): job}, []*storagev1.Command{claim, resume}, false},
	} {
		c := newCluster(Config{Seed: 1})
		in := entry{c: c, shard: 1}
		in.stopped(&storagev1.Entry{Commands: test.cmds}, test.rows, []*storagev1.Execution{{
			Tenant: tenant, JobId: "job", Incarnation: 1, Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, NominalMs: 1000,
			Template: &storagev1.Template{Queue: "q0"},
		}})
		if (c.err != nil) != test.fails {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}
