package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

var march = time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)

// startVirtual starts a server whose time stands still at an instant.
func startVirtual(t *testing.T, at time.Time) *server {
	t.Helper()
	return startServer(t, "", "--shards", "4", "--virtual-clock", at.Format(time.RFC3339))
}

// advance moves a server's virtual clock to an instant and says how many have fired.
func (s *server) advance(to time.Time) (fired uint64) {
	s.t.Helper()
	for {
		res := call(s.t, s.cluster().AdvanceClock, &carillonv1.AdvanceClockRequest{
			Goal: &carillonv1.AdvanceClockRequest_To{To: timestamppb.New(to)},
		})
		fired += res.GetFired()
		if res.GetDone() {
			return fired
		}
	}
}

// clock is what a server says of its clock.
func (s *server) clock() *carillonv1.Clock {
	s.t.Helper()
	return call(s.t, s.cluster().GetClock, &carillonv1.GetClockRequest{}).GetClock()
}

// fails runs a command that must fail so, and returns what it prints.
func fails(t *testing.T, code int, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, args...)
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("carillon %s: exit code %d, want %d\n%s", strings.Join(args, " "), got, code, out)
	}
	return string(out)
}

// An hourly job over 36 hours that take no time, with workers that wait: exactly the right occurrences, each started at its
// own time, and the server goes on from there after a restart.
func TestVirtualClockOver36Hours(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	s.create(&carillonv1.JobSpec{Id: "hourly", Schedule: every(time.Hour, march), Lease: durationpb.New(day)})
	for half := range 2 {
		var claims errgroup.Group
		for i := range 18 {
			claims.Go(func() error {
				worker := fmt.Sprint("w", i)
				res, err := try(s.workers().Claim, &carillonv1.ClaimRequest{
					Worker: worker, MaxExecutions: 1, Queues: []string{"default"}, Wait: durationpb.New(25 * time.Second),
				})
				if err != nil || len(res.GetLeases()) != 1 {
					return fmt.Errorf("worker %s got %v, %w", worker, res, err)
				}
				_, err = try(s.workers().CompleteExecution, succeeded(res.GetLeases()[0], worker, ""))
				return err
			})
		}
		await(t, 10*time.Second, "18 claims wait", func() bool { return s.metric("carillon_polls_waiting") == 18 })
		if out := s.cli("clock", "advance", "18h"); !strings.Contains(out, "fired     18\n") {
			t.Errorf("half %d: %s", half, out)
		}
		if err := claims.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	h := s.history("", "hourly")
	if len(h.GetExecutions()) != 36 || len(h.GetVerdicts()) != 0 {
		t.Fatalf("%d executions and the verdicts %v; want 36 and none", len(h.GetExecutions()), h.GetVerdicts())
	}
	started := map[time.Time]bool{}
	for _, e := range h.GetExecutions() {
		nominal := e.GetNominalTime().AsTime()
		started[nominal] = true
		if start := e.GetStartTime().AsTime(); !start.Equal(nominal) || e.GetState() != succeededState || e.GetAttemptsTotal() != 1 {
			t.Errorf("%v started at %v: %v", nominal, start, e)
		}
	}
	for at := march.Add(time.Hour); !at.After(march.Add(36 * time.Hour)); at = at.Add(time.Hour) {
		if !started[at] {
			t.Errorf("none for %v", at)
		}
	}

	if code := s.stop(); code != 0 {
		t.Errorf("stopped with %d", code)
	}
	s.start()
	if c := s.clock(); !c.GetVirtual() || !c.GetTime().AsTime().Equal(march.Add(36*time.Hour)) ||
		!c.GetNextDueTime().AsTime().Equal(march.Add(37*time.Hour)) {
		t.Errorf("after a restart the clock is %v", c)
	}
	if !strings.Contains(s.log.String(), "goes on where the log ends") {
		t.Errorf("it does not say that it goes on where the log ends:\n%s", s.log)
	}
	if out := fails(t, 6, "clock", "set", "2026-03-09T11:59:59Z", "--addr", s.addr); !strings.Contains(out, "does not go back") {
		t.Errorf("set back: %s", out)
	}
}

// What other timers do on the way happens at its own time too, without anybody who waits for it.
func TestVirtualClockMovesLeasesRetriesAndDeadlines(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	s.create(&carillonv1.JobSpec{
		Id: "hourly", Queue: "nobody", Schedule: every(time.Hour, march), StartDeadline: durationpb.New(10 * time.Minute),
	})
	s.create(&carillonv1.JobSpec{Id: "once", Schedule: in(time.Minute), Lease: durationpb.New(30 * time.Second), Retry: &carillonv1.RetryPolicy{
		MaxAttempts: 3, FirstDelay: durationpb.New(time.Minute), FactorThousandths: 1000, JitterThousandths: new(uint32(0)),
	}})
	s.nothing("default")
	at := march.Add(time.Minute)
	s.advance(at)
	if got := s.claimOne("w", "default").GetDeadline().AsTime(); !got.Equal(at.Add(30 * time.Second)) {
		t.Errorf("leased at %v until %v", at, got)
	}
	at = at.Add(29 * time.Second)
	s.advance(at)
	if e := s.onlyExecution("once"); e.GetState() != leasedState {
		t.Errorf("before the lease ends: %v", e)
	}
	at = at.Add(time.Second)
	s.advance(at)
	if e := s.onlyExecution("once"); e.GetState() != readyState || e.GetAttempts()[0].GetOutcome() != carillonv1.Outcome_OUTCOME_LOST ||
		!e.GetAttempts()[0].GetEndTime().AsTime().Equal(at) {
		t.Errorf("when the lease has ended: %v", e)
	}
	s.complete(failed(s.claimOne("w", "default"), "w", "no luck"), retryingState)
	s.advance(at.Add(59 * time.Second))
	s.nothing("default")
	at = at.Add(time.Minute)
	s.advance(at)
	s.complete(succeeded(s.claimOne("w", "default"), "w", ""), succeededState)
	if e := s.onlyExecution("once"); e.GetAttemptsTotal() != 3 || !e.GetFinishTime().AsTime().Equal(at) {
		t.Errorf("in the end: %v", e)
	}

	s.advance(march.Add(36 * time.Hour))
	expired := 0
	for _, e := range s.history("", "hourly").GetExecutions() {
		nominal, end := e.GetNominalTime().AsTime(), e.GetFinishTime().AsTime()
		if e.GetState() == readyState && nominal.Equal(march.Add(36*time.Hour)) {
			continue
		}
		expired++
		if e.GetState() != carillonv1.ExecutionState_EXECUTION_STATE_EXPIRED || !end.Equal(nominal.Add(10*time.Minute)) {
			t.Errorf("%v ended at %v: %v", nominal, end, e)
		}
	}
	if expired != 35 {
		t.Errorf("%d have expired; want 35", expired)
	}
}

// Jobs of every minute over an hour, in one go, while others are created: nothing is missed, coalesced or fired twice.
func TestVirtualClockOverManyJobs(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	const jobs = 50
	first := func(i int) time.Time { return march.Add(time.Duration(i)*1200*time.Millisecond + 600*time.Millisecond) }
	s.createMany(jobs, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{
			Id: fmt.Sprint("job-", i), Schedule: every(time.Minute, first(i)),
		}
	})
	var others errgroup.Group
	others.Go(func() error {
		for i := range 100 {
			_, err := try(s.jobs().CreateJob, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: fmt.Sprint("other-", i), Schedule: in(0)}})
			if err != nil {
				return err
			}
		}
		return nil
	})
	s.advance(march.Add(time.Hour))
	if err := others.Wait(); err != nil {
		t.Fatal(err)
	}
	s.advance(march.Add(time.Hour + time.Second)) // with the last of the others
	if fired := s.metric("carillon_fired_total"); fired != jobs*60+1+100 {
		t.Errorf("%v have fired; want %d", fired, jobs*60+1+100)
	}
	for _, i := range []int{0, 1, 25, 49} {
		h := s.history("", fmt.Sprint("job-", i))
		seen := map[time.Time]bool{}
		for _, e := range h.GetExecutions() {
			seen[e.GetNominalTime().AsTime()] = true
		}
		for k := range 60 {
			if want := first(i).Add(time.Duration(k) * time.Minute); !seen[want] {
				t.Errorf("job-%d: none for %v", i, want)
			}
		}
		if len(h.GetVerdicts()) != 0 || len(h.GetExecutions()) != len(seen) {
			t.Errorf("job-%d: %d executions, verdicts %v", i, len(h.GetExecutions()), h.GetVerdicts())
		}
	}
}

func TestVirtualClockIsRefused(t *testing.T) {
	t.Parallel()
	const at = "2026-03-08T00:00:00Z"
	for _, args := range [][]string{
		{"--peers", "n1=127.0.0.1:7070,n2=127.0.0.1:7071,n3=127.0.0.1:7072", "--cluster-secret-file", "f"},
		{"--join", "127.0.0.1:7070", "--cluster-secret-file", "f"},
	} {
		out := fails(t, 2, append([]string{"serve", "--data", t.TempDir(), "--virtual-clock", at}, args...)...)
		if !strings.Contains(out, "--virtual-clock: is for a development server that is alone") {
			t.Errorf("with %v: %s", args, out)
		}
	}
	s := startServer(t, "", "--shards", "2")
	for _, args := range [][]string{{"advance", "1h"}, {"set", "2100-01-01T00:00:00Z"}} {
		if out := fails(t, 6, append([]string{"clock", "--addr", s.addr}, args...)...); !strings.Contains(out, "--virtual-clock") {
			t.Errorf("carillon clock %v: %s", args, out)
		}
	}
	if out := s.cli("clock", "show"); !strings.Contains(out, "the machine's") || s.metric("carillon_clock_virtual") != 0 {
		t.Errorf("carillon clock show: %s", out)
	}
}

// A cron job of every minute, and one on the night on which New York's clocks jump: each fires at its own time, which is when
// nobody takes it within its start deadline.
func TestVirtualClockOverCronJobs(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march.Add(-day))
	cron := func(id, line, zone string) {
		s.create(&carillonv1.JobSpec{
			Id: id, StartDeadline: durationpb.New(time.Second),
			Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Lines: []string{line}, Zone: zone}}},
		})
	}
	cron("night", "30 2 * * *", "America/New_York")
	s.advance(march)
	cron("minutely", "* * * * *", "")
	s.advance(march.Add(36*time.Hour + time.Second))
	wants := map[string][]time.Time{"night": {
		time.Date(2026, 3, 7, 7, 30, 0, 0, time.UTC), time.Date(2026, 3, 8, 7, 0, 0, 0, time.UTC), time.Date(2026, 3, 9, 6, 30, 0, 0, time.UTC),
	}}
	for at := march.Add(time.Minute); !at.After(march.Add(36 * time.Hour)); at = at.Add(time.Minute) {
		wants["minutely"] = append(wants["minutely"], at)
	}
	for id, want := range wants {
		h := s.history("", id)
		ended := map[time.Time]time.Time{}
		for _, e := range h.GetExecutions() {
			ended[e.GetNominalTime().AsTime()] = e.GetFinishTime().AsTime()
		}
		for _, at := range want {
			if got := ended[at]; !got.Equal(at.Add(time.Second)) {
				t.Errorf("%s: that for %v ended at %v", id, at, got)
			}
		}
		if len(h.GetExecutions()) != len(want) || len(ended) != len(want) {
			t.Errorf("%s: %d executions; want %d", id, len(h.GetExecutions()), len(want))
		}
		for _, v := range h.GetVerdicts() {
			if v.GetFrom().AsTime().Before(march.Add(7*time.Hour)) || v.GetTo().AsTime().After(march.Add(8*time.Hour)) {
				t.Errorf("%s: %v", id, v)
			}
		}
	}
	if late := s.metric("carillon_late_total"); late != 0 {
		t.Errorf("%v were late", late)
	}
}
