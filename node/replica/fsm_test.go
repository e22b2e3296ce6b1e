package replica

import (
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func openFSM(shard uint32, rows fsm.Reader) Machine { return fsm.Open(shard, rows) }

// do proposes a command and returns its result.
func (s *solo) do(cmd *storagev1.Command) fsm.Result {
	s.t.Helper()
	var result fsm.Result
	s.core.Propose(Proposal{Shard: 1, Command: cmd, Done: func(r fsm.Result, err error) {
		if err != nil {
			s.t.Error(err)
		}
		result = r
	}})
	s.settle()
	return result
}

// The leader applies commands as its callers made them, everybody else as they are decoded from the log: rows and hash
// chain are the same, and so are those after a restart in the middle.
func TestDecodedEntriesGiveTheLeadersState(t *testing.T) {
	s := newSolo(t, func(c *Config) { c.OpenMachine = openFSM }).established()
	term := uint64(6)
	for round := range 3 {
		create := &storagev1.CreateJobs{}
		for i := range 20 {
			create.Items = append(create.Items, &storagev1.CreateJob{
				Tenant: "t", JobId: fmt.Sprintf("job-%d-%d", round, i), Hash: make([]byte, 16),
				Schedule: &storagev1.Schedule{AtMs: s.stamp + int64(i)}, CatchUp: storagev1.CatchUp_CATCH_UP_ALL,
				Labels: []*storagev1.KeyValue{},
				Template: &storagev1.Template{
					Queue: "q", Payload: []byte{}, ContentType: "text/plain", LeaseMs: 1000, RetentionMs: 1000,
					Retry: &storagev1.RetryPolicy{MaxAttempts: 3, FirstDelayMs: 1, FactorThousandths: 2000, MaxDelayMs: 10},
				},
			})
		}
		for i, item := range s.do(&storagev1.Command{CreateJobs: create}).Items {
			if item.Refusal != nil {
				t.Fatalf("create %d: %+v", i, item.Refusal)
			}
		}
		s.stamp += 100
		fired := s.do(&storagev1.Command{Advance: &storagev1.Advance{Limit: 100, Demand: []*storagev1.Demand{{
			ClaimId: fmt.Sprint("claim", round), Worker: "w", Queues: []string{"q"}, Max: 15,
		}}}})
		if len(fired.Leases) != 15 {
			t.Fatalf("%d leases", len(fired.Leases))
		}
		done := &storagev1.Completions{}
		for i, e := range fired.Leases {
			outcome := []storagev1.Outcome{storagev1.Outcome_OUTCOME_SUCCEEDED, storagev1.Outcome_OUTCOME_FAILED}[i%2]
			done.Items = append(done.Items, &storagev1.Completion{
				ExecutionId: fsm.IdentityOf(e).String(), Fencing: e.Fencing, Outcome: outcome, Worker: "w", Result: []byte{},
			})
		}
		for i, item := range s.do(&storagev1.Command{Completions: done}).Items {
			if item.Refusal != nil {
				t.Fatalf("complete %d: %+v", i, item.Refusal)
			}
		}
		led := s.core.all[0].applied
		s.engine = s.engine.Crash(s.engine.Unsynced())
		states, err := loadAll(s.engine, 1)
		if err != nil {
			t.Fatal(err)
		}
		if states[0].applied != led {
			t.Fatalf("on disk %+v, the leader had %+v", states[0].applied, led)
		}
		if err := checkReplay(s.engine, states[0], openFSM); err != nil {
			t.Fatal(err)
		}
		term++
		s.open(func(c *Config) { c.OpenMachine = openFSM })
		s.settle()
		s.core.LeaseHeld(1, term)
		s.settle()
	}
}

// updateAndRetry updates a job under an idempotency key, crashes with each choice of what survives of the unsynced writes,
// retries the update and returns how its answer differs from the first one.
func updateAndRetry(t *testing.T, faults Faults) error {
	t.Helper()
	configure := func(c *Config) { c.OpenMachine, c.Faults = openFSM, faults }
	update := &storagev1.Command{UpdateJob: &storagev1.UpdateJob{
		Tenant: "t", JobId: "j", IdempotencyKey: "key", Hash: make([]byte, 16), Fields: []string{"labels"},
		Labels: []*storagev1.KeyValue{{Key: "a", Value: "b"}},
	}}
	for keep, more := 0, true; more; keep++ {
		s := newSolo(t, configure).established()
		s.do(&storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{
			Tenant: "t", JobId: "j", Hash: make([]byte, 16), Schedule: &storagev1.Schedule{AtMs: s.stamp + 1000},
			Template: &storagev1.Template{
				Queue: "q", LeaseMs: 1000, RetentionMs: 1000,
				Retry: &storagev1.RetryPolicy{MaxAttempts: 3, FirstDelayMs: 1, FactorThousandths: 2000, MaxDelayMs: 10},
			},
		}}}})
		first := s.do(update)
		if first.Refusal != nil {
			t.Fatalf("update: %+v", first.Refusal)
		}
		more = keep < s.engine.Unsynced()
		s.engine = s.engine.Crash(keep)
		s.open(configure)
		s.settle()
		s.core.LeaseHeld(1, s.core.all[0].hard.term)
		s.settle()
		if again := s.do(update); again.Refusal != nil || again.Job.GetVersion() != first.Job.GetVersion() {
			return fmt.Errorf("%d unsynced commits kept: the retry got %+v, version %d; first was version %d",
				keep, again.Refusal, again.Job.GetVersion(), first.Job.GetVersion())
		}
	}
	return nil
}

// An update that was answered is not applied a second time, whatever the crash after it left.
func TestRetriedUpdateGetsItsFirstAnswerAfterAnyCrash(t *testing.T) {
	if err := updateAndRetry(t, Faults{}); err != nil {
		t.Fatal(err)
	}
}

func TestPlantedFaultIdempotencyApartIsCaught(t *testing.T) {
	err := updateAndRetry(t, Faults{IdempotencyApart: true})
	if err == nil {
		t.Fatal("the record was lost without a complaint")
	}
	t.Log(err)
}
