package rpc

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	created   = carillonv1.PutOutcome_PUT_OUTCOME_CREATED
	changed   = carillonv1.PutOutcome_PUT_OUTCOME_CHANGED
	unchanged = carillonv1.PutOutcome_PUT_OUTCOME_UNCHANGED
)

func (s *scene) put(id string, job *carillonv1.JobSpec) *carillonv1.PutJobResponse {
	s.t.Helper()
	return must(s.putJob(s.t.Context(), &carillonv1.PutJobRequest{Id: id, Job: job}))
}

// A put that says the same in other words, or that leaves out what is the default, changes nothing; each field changes the job,
// and what is left out goes back to its default.
func TestPutIsTheWholeDefinition(t *testing.T) {
	s := newScene(t, 4)
	spec := func(change func(*carillonv1.JobSpec)) *carillonv1.JobSpec {
		job := &carillonv1.JobSpec{Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{
			Lines: []string{"0 9 * * *"}, Zone: "Europe/Berlin",
		}}}}
		change(job)
		return job
	}
	same := func(*carillonv1.JobSpec) {}
	if res := s.put("j", spec(same)); res.Outcome != created || res.Job.Version != 1 || res.Job.NextTime == nil {
		t.Fatalf("got %v", res)
	}
	version, next := uint64(1), s.job("j").NextTime.AsTime()
	for name, change := range map[string]func(*carillonv1.JobSpec){
		"queue":        func(j *carillonv1.JobSpec) { j.Queue = "other" },
		"priority":     func(j *carillonv1.JobSpec) { j.Priority = new(uint32(0)) },
		"payload":      func(j *carillonv1.JobSpec) { j.Payload = make([]byte, 2000) },
		"payload ref":  func(j *carillonv1.JobSpec) { j.PayloadRef = "s3://x" },
		"content type": func(j *carillonv1.JobSpec) { j.ContentType = "text/plain" },
		"labels":       func(j *carillonv1.JobSpec) { j.Labels = map[string]string{"a": "b"} },
		"headers":      func(j *carillonv1.JobSpec) { j.Headers = map[string]string{"a": "b"} },
		"retry":        func(j *carillonv1.JobSpec) { j.Retry = &carillonv1.RetryPolicy{MaxAttempts: 2} },
		"lease":        func(j *carillonv1.JobSpec) { j.Lease = durationOf(60_000) },
		"deadline":     func(j *carillonv1.JobSpec) { j.StartDeadline = durationOf(60_000) },
		"retention":    func(j *carillonv1.JobSpec) { j.Retention = durationOf(7_200_000) },
		"fairness":     func(j *carillonv1.JobSpec) { j.FairnessKey = "f" },
		"catch-up":     func(j *carillonv1.JobSpec) { j.CatchUp = carillonv1.CatchUp_CATCH_UP_NONE },
		"window":       func(j *carillonv1.JobSpec) { j.CatchUpWindow = durationOf(60_000) },
		"overlap":      func(j *carillonv1.JobSpec) { j.Overlap = carillonv1.Overlap_OVERLAP_SKIP },
		"failures":     func(j *carillonv1.JobSpec) { j.PauseAfterFailures = 3 },
		"zone":         func(j *carillonv1.JobSpec) { j.Schedule.GetCron().Zone = "Asia/Tokyo" },
		"spread":       func(j *carillonv1.JobSpec) { j.Schedule.Spread = durationOf(60_000) },
	} {
		for _, step := range []struct {
			change func(*carillonv1.JobSpec)
			want   carillonv1.PutOutcome
		}{{change, changed}, {change, unchanged}, {same, changed}, {same, unchanged}} {
			res := s.put("j", spec(step.change))
			if step.want == changed {
				version++
			}
			if res.Outcome != step.want || res.Job.Version != version {
				t.Errorf("%s: %v at version %d, want %v at %d", name, res.Outcome, res.Job.Version, step.want, version)
			}
		}
	}
	if res := s.put("j", spec(func(j *carillonv1.JobSpec) {
		j.Id, j.Tenant, j.Queue, j.Priority, j.Overlap = "j", "default", "default", new(uint32(5)), carillonv1.Overlap_OVERLAP_ALLOW
	})); res.Outcome != unchanged {
		t.Errorf("with its defaults spelled out it is %v", res.Outcome)
	}
	if got := s.job("j").NextTime.AsTime(); !got.Equal(next) {
		t.Errorf("its next occurrence moved from %v to %v", next, got)
	}
}

// What the version of a put asks for, and what cannot be put.
func TestPutConditions(t *testing.T) {
	s := newScene(t, 4)
	put := func(req *carillonv1.PutJobRequest) error {
		if req.Job == nil {
			req.Job = &carillonv1.JobSpec{Schedule: in(time.Hour)}
		}
		_, err := s.putJob(t.Context(), req)
		return err
	}
	wantCode(t, put(&carillonv1.PutJobRequest{Id: "j", ExpectedVersion: 1}), connect.CodeNotFound)
	must(0, put(&carillonv1.PutJobRequest{Id: "j", MustNotExist: true, IdempotencyKey: "k"}))
	must(0, put(&carillonv1.PutJobRequest{Id: "j", MustNotExist: true, IdempotencyKey: "k"}))
	wantCode(t, put(&carillonv1.PutJobRequest{Id: "j", MustNotExist: true}), connect.CodeAborted)
	wantCode(t, put(&carillonv1.PutJobRequest{Id: "j", ExpectedVersion: 2}), connect.CodeAborted)
	must(0, put(&carillonv1.PutJobRequest{Id: "j", ExpectedVersion: 1}))
	err := put(&carillonv1.PutJobRequest{Id: "j", IdempotencyKey: "k", Job: &carillonv1.JobSpec{Schedule: in(time.Hour), Queue: "q"}})
	if got := conflictFields(t, err); fmt.Sprint(got) != "[queue]" {
		t.Errorf("the conflict names %v", got)
	}
	wantCode(t, put(&carillonv1.PutJobRequest{Id: "j", Job: &carillonv1.JobSpec{
		Schedule: every(&carillonv1.Every{Interval: durationOf(60_000)}),
	}}), connect.CodeFailedPrecondition)
	wantViolation(t, put(&carillonv1.PutJobRequest{Job: &carillonv1.JobSpec{Schedule: in(0)}}), "id")
	wantViolation(t, put(&carillonv1.PutJobRequest{Id: "j", Job: &carillonv1.JobSpec{Id: "k", Schedule: in(0)}}), "job.id")
	wantViolation(t, put(&carillonv1.PutJobRequest{Id: "j", Tenant: "a", Job: &carillonv1.JobSpec{Tenant: "b", Schedule: in(0)}}), "job.tenant")
	wantViolation(t, put(&carillonv1.PutJobRequest{Id: "j", Job: &carillonv1.JobSpec{}}), "job.schedule")
	wantViolation(t, put(&carillonv1.PutJobRequest{Id: "j", ExpectedVersion: 1, MustNotExist: true}), "must_not_exist")
	_, err = s.putJob(t.Context(), &carillonv1.PutJobRequest{Id: "j"})
	wantViolation(t, err, "job")
}

// R2: a hundred callers put one id at once. One occurrence is pending, of the definition that came last.
func TestR2ConcurrentPuts(t *testing.T) {
	s := newScene(t, 4)
	start := time.UnixMilli(startMS)
	var callers sync.WaitGroup
	var mu sync.Mutex
	next := map[uint64]time.Time{}
	for i := range 100 {
		callers.Go(func() {
			res, err := s.putJob(t.Context(), &carillonv1.PutJobRequest{Id: "j", Job: &carillonv1.JobSpec{
				Schedule: every(&carillonv1.Every{
					Interval: durationOf(3_600_000), Anchor: timestamppb.New(start.Add(time.Duration(i+1) * time.Minute / 2)),
				}),
			}})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			next[res.Job.Version] = res.Job.NextTime.AsTime()
		})
	}
	callers.Wait()
	if len(next) != 100 || !s.job("j").NextTime.AsTime().Equal(next[100]) {
		t.Fatalf("%d versions, the last is due at %v; pending is %v", len(next), next[100], s.job("j").NextTime.AsTime())
	}
	s.b.pass(next[100].Sub(start).Milliseconds())
	list := must(s.listOccurrences(t.Context(), &carillonv1.ListOccurrencesRequest{Id: "j"})).Occurrences
	if len(list) != 2 || !list[0].Time.AsTime().Equal(next[100]) || !list[1].Time.AsTime().Equal(next[100].Add(time.Hour)) {
		t.Errorf("it fired for %v; want %v once", list, next[100])
	}
}

// REST: the body is the job, and a repeated PUT changes nothing.
func TestPutOverREST(t *testing.T) {
	a := newAPI(t, newFakeBackend(2), Options{})
	for _, want := range []carillonv1.PutOutcome{created, unchanged} {
		res := a.json(a.do("PUT", "/v1/jobs/j?tenant=t", `{"queue":"q","schedule":{"every":{"interval":"60s"}}}`, "Idempotency-Key: "+want.String()))
		if job := res["job"].(map[string]any); res["outcome"] != want.String() || job["tenant"] != "t" || job["nextTime"] == nil {
			t.Errorf("got %v, want %v", res, want)
		}
	}
	a.want(a.do("PUT", "/v1/jobs/j", `{"id":"k"}`), 400, `"field":"job.id"`)
}

// A put that only validates says what it would do and what the job would be, and does nothing.
func TestPutThatOnlyValidates(t *testing.T) {
	s := newScene(t, 4)
	spec := &carillonv1.JobSpec{
		Payload: make([]byte, 2000), Labels: map[string]string{"a": "b"},
		Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Lines: []string{"0,30 9 * * *"}}}},
	}
	ask := func(req *carillonv1.PutJobRequest) (*carillonv1.PutJobResponse, error) {
		req.Id, req.Job, req.ValidateOnly = "j", spec, true
		return s.putJob(t.Context(), req)
	}
	plan := must(ask(&carillonv1.PutJobRequest{MustNotExist: true}))
	_, err := s.getJob(t.Context(), &carillonv1.GetJobRequest{Id: "j"})
	wantCode(t, err, connect.CodeNotFound)
	put := s.put("j", spec)
	if plan.Outcome != created || len(plan.Job.Payload) != 2000 || plan.Job.Schedule.GetCron().Lines[0] != "*/30 9 * * *" {
		t.Errorf("planned %v", plan)
	}
	if got, want := fmt.Sprint(plan.Job.NextTimes), fmt.Sprint(put.Job.NextTimes); got != want || len(put.Job.NextTimes) == 0 {
		t.Errorf("planned %s, is %s", got, want)
	}
	if plan = must(ask(&carillonv1.PutJobRequest{})); plan.Outcome != unchanged || plan.Job.Version != 1 {
		t.Errorf("planned %v", plan)
	}
	spec.Queue = "other"
	if plan = must(ask(&carillonv1.PutJobRequest{ExpectedVersion: 1})); plan.Outcome != changed || plan.Job.Queue != "other" {
		t.Errorf("planned %v", plan)
	}
	if job := s.job("j"); job.Version != 1 || job.Queue != "default" {
		t.Errorf("the job is %v", job)
	}
	_, err = ask(&carillonv1.PutJobRequest{MustNotExist: true})
	wantCode(t, err, connect.CodeAborted)
	spec.Schedule = &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Lines: []string{"0 0 31 2 *"}}}}
	_, err = ask(&carillonv1.PutJobRequest{})
	wantViolation(t, err, "job.schedule.cron.lines[0]")
	spec.Schedule = in(time.Hour)
	_, err = ask(&carillonv1.PutJobRequest{})
	wantCode(t, err, connect.CodeFailedPrecondition)
}
