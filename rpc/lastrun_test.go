package rpc

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// newest is the last execution of a job's schedule that history has; nil if it has none.
func (s *scene) newest(id string) (last *carillonv1.Execution) {
	for _, e := range must(s.getJobHistory(s.t.Context(), &carillonv1.GetJobHistoryRequest{Id: id, PageSize: 1000})).Executions {
		isLater := last == nil || e.NominalTime.AsTime().After(last.NominalTime.AsTime())
		if e.Kind == carillonv1.ExecutionKind_EXECUTION_KIND_SCHEDULE && isLater {
			last = e
		}
	}
	return last
}

// A job's last run is the newest execution that its history has, whatever happens to job and executions.
func TestLastRunIsTheNewestOfHistory(t *testing.T) {
	const minute = int64(time.Minute / time.Millisecond)
	for seed := range uint64(20) {
		s, draw := newScene(t, 1), rand.New(rand.NewPCG(seed, 1))
		s.create(&carillonv1.JobSpec{
			Id: "j", Retry: &carillonv1.RetryPolicy{MaxAttempts: 2}, Overlap: carillonv1.Overlap(draw.IntN(6)),
			Schedule: cronJob(&carillonv1.Cron{Lines: []string{"*/10 * * * *"}, Zone: "Europe/Berlin"}),
			CatchUp:  carillonv1.CatchUp(draw.IntN(4)),
		})
		var leases []*carillonv1.Lease
		for step := range 100 {
			switch draw.IntN(8) {
			case 0, 1, 2:
				s.b.pass(draw.Int64N(25 * minute))
			case 3:
				leases = append(leases, s.claimAll()...)
			case 4, 5:
				if len(leases) > 0 {
					i := draw.IntN(len(leases))
					// A lease that has been lost is refused; that is part of what happens.
					_, err := s.finish(leases[i], []any{&carillonv1.Succeeded{}, &carillonv1.Failed{Error: "no"}}[draw.IntN(2)])
					t.Logf("step %d: finish: %v", step, err)
					leases = slices.Delete(leases, i, i+1)
				}
			case 6:
				_, err := s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{Id: "j", ResumeRule: none})
				t.Logf("step %d: pause: %v", step, err)
			case 7:
				_, err := s.resumeJob(t.Context(), &carillonv1.ResumeJobRequest{Id: "j"})
				t.Logf("step %d: resume: %v", step, err)
			}
			want, got := s.newest("j"), s.job("j").LastRun
			if want == nil && got == nil {
				continue
			}
			if got.GetExecutionId() != want.GetId() || got.State != want.State || !got.Time.AsTime().Equal(want.NominalTime.AsTime()) ||
				got.Local != want.NominalLocal || got.Removed {
				t.Fatalf("seed %d, step %d: the last run is %v, and history's newest %v", seed, step, got, want)
			}
		}
	}
}

// What retention has removed is said to be gone; what never was is not.
func TestLastRunThatIsRemoved(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{
		Id: "j", Retention: durationpb.New(time.Hour),
		Schedule: every(&carillonv1.Every{Interval: durationpb.New(time.Hour), MaxRuns: 1}),
	})
	if run := s.job("j").LastRun; run != nil {
		t.Errorf("before it ran: %v", run)
	}
	s.b.pass(time.Hour.Milliseconds())
	must(s.finish(s.claimAll()[0], &carillonv1.Succeeded{}))
	if run := s.job("j").LastRun; run.GetVerdict() != carillonv1.Verdict_VERDICT_FIRED || run.FinishTime == nil ||
		run.State != carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED {
		t.Errorf("after it ran: %v", run)
	}
	s.b.pass(72 * time.Hour.Milliseconds())
	for range 10 {
		s.b.shard(1).apply(s.b.now, &storagev1.Command{Housekeep: &storagev1.Housekeep{Limit: 100}})
	}
	if run := s.job("j").LastRun; !run.GetRemoved() || run.Time != nil {
		t.Errorf("after its retention: %v", run)
	}
}

// What stops a job besides its own pause is said wherever it is shown, and by its resume.
func TestWhatStopsAJob(t *testing.T) {
	s := newScene(t, 4)
	for _, id := range []string{"a", "b"} {
		s.create(&carillonv1.JobSpec{
			Id: id, Queue: "q-" + id, Labels: map[string]string{"team": id}, Schedule: every(&carillonv1.Every{Interval: durationOf(60_000)}),
		})
	}
	yes := true
	must(s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{Name: "q-a", Queue: &carillonv1.QueuePatch{Paused: &yes}}))
	must(s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: &carillonv1.PauseRule{Id: "r", Label: []string{"team=a"}}}))
	for _, sh := range s.b.shards {
		sh.apply(s.b.now, &storagev1.Command{PutQueue: s.b.queues["q-a"]})
		sh.apply(s.b.now, &storagev1.Command{PutPauseRule: s.b.rules["r"]})
	}
	want := []string{"queue:q-a", "rule:r"}
	must(s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{Id: "a"}))
	if got := must(s.resumeJob(t.Context(), &carillonv1.ResumeJobRequest{Id: "a"})).Job; !slices.Equal(got.StoppedBy, want) {
		t.Errorf("resumed: %v", got.StoppedBy)
	}
	if a, b := s.job("a"), s.job("b"); !slices.Equal(a.StoppedBy, want) || b.StoppedBy != nil {
		t.Errorf("a is stopped by %v, b by %v", a.StoppedBy, b.StoppedBy)
	}
	for _, job := range must(s.listJobs(t.Context(), &carillonv1.ListJobsRequest{})).Jobs {
		if job.Id == "a" && !slices.Equal(job.StoppedBy, want) || job.Id == "b" && job.StoppedBy != nil {
			t.Errorf("in a list %s is stopped by %v", job.Id, job.StoppedBy)
		}
	}
	must(s.deleteJob(t.Context(), &carillonv1.DeleteJobRequest{Id: "a"}))
	wantCode(t, second(s.resumeJob(t.Context(), &carillonv1.ResumeJobRequest{Id: "a"})), 5)
}
