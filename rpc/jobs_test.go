package rpc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// I3: the same key with another id is another operation; with another body a conflict; a retried update whose version
// moved on gets the first answer.
func TestI3Keys(t *testing.T) {
	s := newScene(t, 4)
	for _, id := range []string{"a", "b"} {
		must(s.createJob(t.Context(), &carillonv1.CreateJobRequest{
			IdempotencyKey: "k", Job: &carillonv1.JobSpec{Id: id, Schedule: in(time.Hour)},
		}))
	}
	update := func(key string, version uint64, priority uint32) (*carillonv1.UpdateJobResponse, error) {
		return s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{
			Id: "a", Job: &carillonv1.JobPatch{Priority: &priority}, ExpectedVersion: version, IdempotencyKey: key,
		})
	}
	answer := must(update("u", 1, 7))
	must(update("", 2, 8))
	if again := must(update("u", 1, 7)); !proto.Equal(again, answer) || again.Job.Version != 2 {
		t.Errorf("the retry got %v, not %v", again, answer)
	}
	// The version is what the caller expects, not what it asks for.
	if again := must(update("u", 3, 7)); !proto.Equal(again, answer) {
		t.Errorf("the retry with a fresh version got %v, not %v", again, answer)
	}
	_, err := update("u", 1, 9)
	if got := conflictFields(t, err); !slices.Equal(got, []string{"priority"}) {
		t.Errorf("the conflict names %v", got)
	}
	_, err = update("v", 1, 7)
	wantCode(t, err, connect.CodeAborted)
	// A key counts for its method.
	must(s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{Id: "a", IdempotencyKey: "u"}))
	must(s.resumeJob(t.Context(), &carillonv1.ResumeJobRequest{Id: "a", IdempotencyKey: "u"}))
	trigger := &carillonv1.TriggerJobRequest{Id: "a", IdempotencyKey: "any text ~ at all"}
	one, two := must(s.triggerJob(t.Context(), trigger)), must(s.triggerJob(t.Context(), trigger))
	if one.ExecutionId != two.ExecutionId {
		t.Errorf("one trigger made %s and %s", one.ExecutionId, two.ExecutionId)
	}
	if e := s.execution(one.ExecutionId); e.Kind != carillonv1.ExecutionKind_EXECUTION_KIND_TRIGGER {
		t.Errorf("triggered %v", e)
	}
	remove := &carillonv1.DeleteJobRequest{Id: "a", IdempotencyKey: "u"}
	if a, b := must(s.deleteJob(t.Context(), remove)), must(s.deleteJob(t.Context(), remove)); !proto.Equal(a, b) {
		t.Errorf("one delete answered %v and %v", a, b)
	}
	if e := s.execution(one.ExecutionId); e.State != carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED {
		t.Errorf("after the delete the trigger's execution is %v", e.State)
	}
}

// A job whose occurrence has fired is listed as exhausted, with what says where its execution waits.
func TestExhaustedJobsAreListedWithTheirQueue(t *testing.T) {
	s := newScene(t, 2)
	s.create(&carillonv1.JobSpec{Id: "a", Queue: "mail", FairnessKey: "f", Priority: new(uint32(9)), Schedule: in(0)})
	s.b.pass(1)
	res := must(s.listJobs(t.Context(), &carillonv1.ListJobsRequest{State: carillonv1.JobState_JOB_STATE_EXHAUSTED}))
	if len(res.Jobs) != 1 {
		t.Fatalf("listed: %v", res.Jobs)
	}
	if j := res.Jobs[0]; j.Queue != "mail" || j.FairnessKey != "f" || j.GetPriority() != 9 {
		t.Errorf("listed: %v", j)
	}
	if e := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{JobId: "a"})).Executions; len(e) != 1 ||
		e[0].State != carillonv1.ExecutionState_EXECUTION_STATE_READY {
		t.Errorf("its executions: %v", e)
	}
}

// Lists are walked page by page: each job once, whatever the page size and the number of shards, only those that match.
func TestListsPageOverShards(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := newScene(t, 33)
	want := map[string]bool{}
	for i := range 200 {
		id := fmt.Sprintf("%c-%d", 'a'+i%3, i)
		tenant := []string{"test", "test-1"}[i%2]
		s.create(&carillonv1.JobSpec{
			Id: id, Tenant: tenant, Queue: fmt.Sprint("q", i%2), Schedule: in(time.Hour),
			Labels: map[string]string{"third": fmt.Sprint(i % 3), "l": "x"},
		})
		want[id] = tenant == "test" && i%3 == 0
	}
	walk := func(req *carillonv1.ListJobsRequest) map[string]int {
		got := map[string]int{}
		for {
			req.PageSize = int32(1 + rnd.IntN(20))
			res := must(s.listJobs(t.Context(), req))
			if len(res.Jobs) > int(req.PageSize) {
				t.Fatalf("a page of %d has %d jobs", req.PageSize, len(res.Jobs))
			}
			for _, j := range res.Jobs {
				got[j.Id]++
			}
			if req.PageToken = res.NextPageToken; req.PageToken == "" {
				return got
			}
		}
	}
	got := walk(&carillonv1.ListJobsRequest{Tenant: "test", IdPrefix: "a-", Label: []string{"third=0", "l"}, Queue: "q0"})
	for id, in := range want {
		if in != (got[id] == 1) || got[id] > 1 {
			t.Errorf("%s was listed %d times, want %v", id, got[id], in)
		}
	}
	if got := walk(&carillonv1.ListJobsRequest{Tenant: "test", State: carillonv1.JobState_JOB_STATE_PAUSED}); len(got) != 0 {
		t.Errorf("paused: %v", got)
	}
	page := must(s.listJobs(t.Context(), &carillonv1.ListJobsRequest{Tenant: "test", PageSize: 1}))
	_, err := s.listJobs(t.Context(), &carillonv1.ListJobsRequest{Tenant: "test-1", PageSize: 1, PageToken: page.NextPageToken})
	wantViolation(t, err, "page_token")
	seen := map[string]int{}
	for token := ""; ; {
		res := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{
			Tenant: "test", State: carillonv1.ExecutionState_EXECUTION_STATE_WAITING, PageSize: 7, PageToken: token,
		}))
		for _, e := range res.Executions {
			seen[e.JobId]++
		}
		if token = res.NextPageToken; token == "" {
			break
		}
	}
	if len(seen) != 100 || slices.Max(slices.Collect(func(yield func(int) bool) {
		for _, n := range seen {
			if !yield(n) {
				return
			}
		}
	})) != 1 {
		t.Errorf("%d executions listed: %v", len(seen), seen)
	}
}

// An update that has to read before it writes may lose against others again and again. That is a conflict only for a caller
// who said which version it means.
func TestCallersWithoutAVersionHaveNoConflict(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: in(time.Hour)})
	tries := 0
	s.b.fail = func(uint32, *storagev1.Command) error {
		tries++
		return &Refused{&fsm.Refusal{Code: fsm.Aborted, Message: "the job is at version 7", Version: 7}}
	}
	req := &carillonv1.UpdateJobRequest{Id: "j", Job: &carillonv1.JobPatch{Payload: []byte("x")}}
	_, err := s.updateJob(t.Context(), req)
	wantCode(t, answered(err), connect.CodeUnavailable)
	if tries != maxTries {
		t.Errorf("%d tries", tries)
	}
	req.ExpectedVersion = 3
	_, err = s.updateJob(t.Context(), req)
	wantCode(t, answered(err), connect.CodeAborted)
	if tries != maxTries+1 {
		t.Errorf("%d tries", tries)
	}
}

// An update changes the named fields and no others; payload, content type and reference are named one by one.
func TestUpdatesNameTheirFields(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{
		Id: "j", Schedule: in(time.Hour), Payload: []byte("p"), ContentType: "a/b", Labels: map[string]string{"k": "v"},
		StartDeadline: durationpb.New(time.Hour),
	})
	update := func(patch *carillonv1.JobPatch, mask ...string) *carillonv1.Job {
		t.Helper()
		req := &carillonv1.UpdateJobRequest{Id: "j", Job: patch}
		if mask != nil {
			req.UpdateMask = &fieldmaskpb.FieldMask{Paths: mask}
		}
		if _, err := s.updateJob(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		return s.job("j")
	}
	text := func(s string) *string { return &s }
	j := update(&carillonv1.JobPatch{ContentType: text("c/d")})
	if string(j.Payload) != "p" || j.ContentType != "c/d" {
		t.Errorf("a new content type: %v", j)
	}
	large := bytes.Repeat([]byte("large"), 1000)
	if j = update(&carillonv1.JobPatch{Payload: large}); !bytes.Equal(j.Payload, large) || j.ContentType != "c/d" {
		t.Errorf("a new payload: %v", j)
	}
	if j = update(&carillonv1.JobPatch{ContentType: text("e/f")}); !bytes.Equal(j.Payload, large) || j.ContentType != "e/f" {
		t.Errorf("a new content type of a large payload: %v", j.ContentType)
	}
	if j = update(&carillonv1.JobPatch{PayloadRef: text("s3://x"), ContentType: text("g/h")}); len(j.Payload) != 0 || j.PayloadRef != "s3://x" {
		t.Errorf("a reference instead: %v", j)
	}
	if j = update(&carillonv1.JobPatch{Payload: []byte("back")}); string(j.Payload) != "back" || j.PayloadRef != "" || j.ContentType != "g/h" {
		t.Errorf("a payload again: %v", j)
	}
	if j = update(&carillonv1.JobPatch{}, "labels", "start_deadline"); len(j.Labels) != 0 || j.StartDeadline != nil {
		t.Errorf("reset: %v", j)
	}
	priority := uint32(0)
	if j = update(&carillonv1.JobPatch{Priority: &priority, FairnessKey: text("ignored")}, "priority"); j.GetPriority() != 0 || j.FairnessKey != "" {
		t.Errorf("masked: %v", j)
	}
	if j = update(&carillonv1.JobPatch{}, "priority"); j.GetPriority() != defaultPriority {
		t.Errorf("reset priority: %v", j)
	}
	paused := carillonv1.JobState_JOB_STATE_PAUSED
	if j = update(&carillonv1.JobPatch{State: &paused, PauseReason: text("why")}); j.State != paused || j.PauseReason != "why" {
		t.Errorf("paused: %v", j)
	}
	_, err := s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "j", Job: &carillonv1.JobPatch{Payload: []byte("p"), PayloadRef: text("r")}})
	wantViolation(t, err, "job.payload_ref")
	_, err = s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "nobody", Job: &carillonv1.JobPatch{ContentType: text("c/d")}})
	wantCode(t, err, connect.CodeNotFound)
}
