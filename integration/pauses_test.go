package integration

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

func (s *server) pauses() carillonv1connect.PauseServiceClient {
	return carillonv1connect.NewPauseServiceClient(s.http, s.url(""))
}

// pauseKind is a way to pause jobs: those made by spec.
type pauseKind struct {
	name   string
	spec   func(*carillonv1.JobSpec)
	pause  func(s *server, rule carillonv1.CatchUp, until *timestamppb.Timestamp)
	resume func(s *server)
}

// pauseKinds are all of them. Of a job it is the one with the kind's name.
var pauseKinds = []pauseKind{
	{
		"job", func(*carillonv1.JobSpec) {},
		func(s *server, rule carillonv1.CatchUp, until *timestamppb.Timestamp) {
			call(s.t, s.jobs().PauseJob, &carillonv1.PauseJobRequest{
				Id: "job", Reason: "test", PausedBy: "me", Until: until, ResumeRule: rule,
			})
		},
		func(s *server) { call(s.t, s.jobs().ResumeJob, &carillonv1.ResumeJobRequest{Id: "job"}) },
	},
	{
		"queue", func(j *carillonv1.JobSpec) { j.Queue = "frozen" },
		func(s *server, rule carillonv1.CatchUp, until *timestamppb.Timestamp) {
			call(s.t, s.queues().UpdateQueue, &carillonv1.UpdateQueueRequest{Name: "frozen", Queue: &carillonv1.QueuePatch{
				Paused: new(true), PauseReason: new("test"), PausedBy: new("me"), PauseUntil: until, ResumeRule: &rule,
			}})
		},
		func(s *server) {
			call(s.t, s.queues().UpdateQueue, &carillonv1.UpdateQueueRequest{
				Name: "frozen", Queue: &carillonv1.QueuePatch{Paused: new(false)},
			})
		},
	},
	{
		"tenant", func(j *carillonv1.JobSpec) { j.Tenant = "acme" },
		func(s *server, rule carillonv1.CatchUp, until *timestamppb.Timestamp) {
			call(s.t, s.tenants().UpdateTenant, &carillonv1.UpdateTenantRequest{Name: "acme", Tenant: &carillonv1.TenantPatch{
				Paused: new(true), PauseReason: new("test"), PausedBy: new("me"), PauseUntil: until, ResumeRule: &rule,
			}})
		},
		func(s *server) {
			call(s.t, s.tenants().UpdateTenant, &carillonv1.UpdateTenantRequest{
				Name: "acme", Tenant: &carillonv1.TenantPatch{Paused: new(false)},
			})
		},
	},
	{
		"rule", func(j *carillonv1.JobSpec) { j.Labels = map[string]string{"team": "a", "tier": "gold"} },
		func(s *server, rule carillonv1.CatchUp, until *timestamppb.Timestamp) {
			call(s.t, s.pauses().CreatePauseRule, &carillonv1.CreatePauseRuleRequest{Rule: &carillonv1.PauseRule{
				Id: "freeze", Label: []string{"team=a", "tier"}, Reason: "test", PausedBy: "me", Until: until, ResumeRule: rule,
			}})
		},
		func(s *server) {
			call(s.t, s.pauses().DeletePauseRule, &carillonv1.DeletePauseRuleRequest{Id: "freeze"})
		},
	},
}

func (k *pauseKind) job(id string, schedule *carillonv1.Schedule) *carillonv1.JobSpec {
	spec := &carillonv1.JobSpec{Id: id, Schedule: schedule}
	k.spec(spec)
	return spec
}

// settings stores what is to be changed.
func (s *server) settings() {
	s.t.Helper()
	call(s.t, s.queues().CreateQueue, &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "frozen"}})
	call(s.t, s.tenants().CreateTenant, &carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: "acme"}})
}

// tally counts a job's executions, and the instants that verdicts cover, by why.
func (s *server) tally(tenant, id string) (executions int, why map[string]uint64) {
	s.t.Helper()
	why = map[string]uint64{}
	req := &carillonv1.GetJobHistoryRequest{Tenant: tenant, Id: id, PageSize: 1000}
	for {
		h := call(s.t, s.jobs().GetJobHistory, req)
		executions += len(h.GetExecutions())
		for _, v := range h.GetVerdicts() {
			why[v.GetWhy()] += v.GetCount()
		}
		if req.PageToken = h.GetNextPageToken(); req.PageToken == "" {
			return executions, why
		}
	}
}

// Minutely jobs are paused over two hours, each in another way, by one rule after the other: nothing of them is decided
// meanwhile, and what they missed goes by the rule. The second time the pause ends by itself.
func TestR3PausesOfEveryKind(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	s.settings()
	now := march
	minutely := &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Lines: []string{"* * * * *"}}}}
	type pausedJob struct {
		kind, tenant, id string
	}
	var jobs []pausedJob
	for _, k := range pauseKinds {
		jobs = append(jobs, pausedJob{k.name, k.job("", nil).GetTenant(), k.name})
		s.create(k.job(k.name, minutely))
		if k.name != "job" {
			jobs = append(jobs, pausedJob{k.name, k.job("", nil).GetTenant(), k.name + "-every"})
			s.create(k.job(k.name+"-every", every(time.Minute, march)))
		}
	}
	for round, c := range []struct {
		rule             carillonv1.CatchUp
		itself           bool
		runs             int // of the 120 that fall due meanwhile
		skipped, covered uint64
	}{
		{carillonv1.CatchUp_CATCH_UP_NONE, false, 0, 120, 0},
		{carillonv1.CatchUp_CATCH_UP_LATEST, true, 1, 0, 119},
		{carillonv1.CatchUp_CATCH_UP_ALL, false, 120, 0, 0},
		{carillonv1.CatchUp_CATCH_UP_UNSPECIFIED, true, 1, 0, 119}, // latest, the jobs' own
	} {
		until, end := (*timestamppb.Timestamp)(nil), now.Add(2*time.Hour+30*time.Second)
		if c.itself {
			until = timestamppb.New(end)
		}
		type counts struct {
			runs             int
			skipped, covered uint64
		}
		count := func(j pausedJob) counts {
			runs, why := s.tally(j.tenant, j.id)
			return counts{runs, why["skipped_paused"], why["coalesced"]}
		}
		before := map[pausedJob]counts{}
		for _, k := range pauseKinds {
			k.pause(s, c.rule, until)
		}
		for _, j := range jobs {
			before[j] = count(j)
		}
		s.advance(end.Add(-time.Second))
		for _, j := range jobs {
			job := call(t, s.jobs().GetJob, &carillonv1.GetJobRequest{Id: j.id, Tenant: j.tenant}).GetJob()
			if got := count(j); got != before[j] {
				t.Errorf("round %d, %s: in the pause %+v, before it %+v", round, j.id, got, before[j])
			}
			if job.GetParked() != (j.kind != "job") {
				t.Errorf("round %d, %s: in the pause it is %v", round, j.id, job)
			}
			preview := call(t, s.jobs().PreviewResume, &carillonv1.PreviewResumeRequest{Id: j.id, Tenant: j.tenant, ResumeRule: c.rule})
			if preview.GetFired() != uint64(c.runs) {
				t.Errorf("round %d, %s: %d are to run, previewed is %v", round, j.id, c.runs, preview)
			}
		}
		if _, code := s.verify(); code != 0 {
			t.Errorf("round %d: the check of the rows ends with %d", round, code)
		}
		s.advance(end)
		for _, k := range pauseKinds {
			if !c.itself || k.name == "rule" {
				k.resume(s)
			}
		}
		now = end.Add(9*time.Minute + 30*time.Second)
		s.advance(now)
		for _, j := range jobs {
			got, was := count(j), before[j]
			want := counts{was.runs + c.runs + 10, was.skipped + c.skipped, was.covered + c.covered}
			if got != want {
				t.Errorf("round %d, %s: %+v; want %+v", round, j.id, got, want)
			}
		}
	}
	if parked := s.metric("carillon_jobs_parked"); parked != 0 {
		t.Errorf("%v jobs are parked at the end", parked)
	}
	if _, code := s.verify(); code != 0 {
		t.Errorf("the check of the rows ends with %d", code)
	}
}

// Workers claim as fast as they can while jobs are paused, each in another way: once the call has returned nothing of them
// starts any more, and nothing is lost.
func TestR6NothingStartsAfterAPause(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.settings()
	const oneShots, recurring = 100, 10
	begin := soon(time.Second)
	total := 0
	for _, k := range pauseKinds {
		if k.name == "job" {
			s.create(k.job("job", every(time.Second, begin)))
			continue
		}
		for i := range oneShots {
			s.create(k.job(fmt.Sprint(k.name, "-", i), at(begin.Add(time.Duration(i)*20*time.Millisecond))))
			total++
		}
		for i := range recurring {
			s.create(k.job(fmt.Sprint(k.name, "-every-", i), every(time.Second, begin.Add(time.Duration(i)*100*time.Millisecond))))
		}
	}
	var stop atomic.Bool
	var workers errgroup.Group
	for i := range 4 {
		workers.Go(func() error {
			worker := fmt.Sprint("w", i)
			for !stop.Load() {
				res, err := try(s.workers().Claim, &carillonv1.ClaimRequest{
					Worker: worker, MaxExecutions: 8, Queues: []string{"default", "frozen"}, Wait: durationpb.New(200 * time.Millisecond),
				})
				if err != nil {
					return err
				}
				for _, l := range res.GetLeases() {
					if _, err := try(s.workers().CompleteExecution, succeeded(l, worker, "")); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	pauseUntil(t, begin.Add(700*time.Millisecond))
	returned := map[string]time.Time{}
	for _, k := range pauseKinds {
		k.pause(s, carillonv1.CatchUp_CATCH_UP_LATEST, nil)
		returned[k.name] = time.Now()
	}
	pauseUntil(t, begin.Add(3500*time.Millisecond))
	started := 0
	for _, tenant := range []string{"default", "acme"} {
		for _, e := range s.list(&carillonv1.ListExecutionsRequest{Tenant: tenant}) {
			kind, _, _ := strings.Cut(e.GetJobId(), "-")
			for _, a := range e.GetAttempts() {
				started++
				if late := a.GetStartTime().AsTime().Sub(returned[kind]); late > 0 {
					t.Errorf("%s started %v after the pause of its %s", e.GetId(), late, kind)
				}
			}
		}
	}
	if started < 20 || s.metric("carillon_jobs_parked") == 0 || s.metric("carillon_executions_held") == 0 {
		t.Errorf("%d attempts until the pauses, %v jobs parked, %v executions held: nothing was seen", started,
			s.metric("carillon_jobs_parked"), s.metric("carillon_executions_held"))
	}
	for _, k := range pauseKinds {
		k.resume(s)
	}
	await(t, 20*time.Second, "all one-shots have run", func() bool {
		n := 0
		for _, tenant := range []string{"default", "acme"} {
			all := s.list(&carillonv1.ListExecutionsRequest{Tenant: tenant, State: succeededState})
			n += len(slices.DeleteFunc(all, func(e *carillonv1.Execution) bool {
				return e.GetJobId() == "job" || strings.Contains(e.GetJobId(), "every")
			}))
		}
		return n == total
	})
	stop.Store(true)
	if err := workers.Wait(); err != nil {
		t.Error(err)
	}
	if _, code := s.verify(); code != 0 {
		t.Errorf("the check of the rows ends with %d", code)
	}
}
