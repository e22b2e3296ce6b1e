package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// scene is a server with its backend, and shorthands for what tests do most.
type scene struct {
	*server
	t *testing.T
	b *fakeBackend
}

func newScene(t *testing.T, shards int) *scene {
	b := newFakeBackend(shards)
	return &scene{server: newTestServer(t, b), t: t, b: b}
}

// create creates a job that must be accepted.
func (s *scene) create(spec *carillonv1.JobSpec) *carillonv1.CreateJobResponse {
	s.t.Helper()
	res, err := s.createJob(s.t.Context(), &carillonv1.CreateJobRequest{Job: spec})
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

// claimAll claims what is ready in queue default.
func (s *scene) claimAll() []*carillonv1.Lease {
	s.t.Helper()
	res, err := s.claim(s.t.Context(), &carillonv1.ClaimRequest{Worker: "w", Queues: []string{defaultName}, MaxExecutions: 1000})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Leases
}

// claimOne creates a job that is due at once and claims its execution.
func (s *scene) claimOne(spec *carillonv1.JobSpec) *carillonv1.Lease {
	s.t.Helper()
	spec.Schedule = in(0)
	s.create(spec)
	s.b.pass(1)
	leases := s.claimAll()
	if len(leases) != 1 {
		s.t.Fatalf("claimed %d leases", len(leases))
	}
	return leases[0]
}

func (s *scene) finish(lease *carillonv1.Lease, outcome any) (*carillonv1.CompleteExecutionResponse, error) {
	req := &carillonv1.CompleteExecutionRequest{Id: lease.ExecutionId, LeaseToken: lease.LeaseToken, Worker: "w"}
	switch o := outcome.(type) {
	case *carillonv1.Succeeded:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Succeeded{Succeeded: o}
	case *carillonv1.Failed:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Failed{Failed: o}
	case *carillonv1.Snoozed:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Snoozed{Snoozed: o}
	case *carillonv1.Released:
		req.Outcome = &carillonv1.CompleteExecutionRequest_Released{Released: o}
	}
	return s.completeExecution(s.t.Context(), req)
}

func (s *scene) execution(id string) *carillonv1.Execution {
	s.t.Helper()
	res, err := s.getExecution(s.t.Context(), &carillonv1.GetExecutionRequest{Id: id})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Execution
}

func (s *scene) job(id string) *carillonv1.Job {
	s.t.Helper()
	res, err := s.getJob(s.t.Context(), &carillonv1.GetJobRequest{Id: id})
	if err != nil {
		s.t.Fatal(err)
	}
	return res.Job
}

// answered is an error of a handler as the caller gets it.
func answered(err error) error {
	if err == nil {
		return nil
	}
	answer, _ := callError(err)
	return answer
}

func wantCode(t *testing.T, err error, code connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(answered(err)) != code {
		t.Errorf("got %v, want %v", err, code)
	}
}

// conflictFields are the fields that a conflict names.
func conflictFields(t *testing.T, err error) []string {
	t.Helper()
	wantCode(t, err, connect.CodeAlreadyExists)
	var connectErr *connect.Error
	if errors.As(answered(err), &connectErr) {
		for _, detail := range connectErr.Details() {
			if c, ok := must(detail.Value()).(*carillonv1.IdempotencyConflict); ok {
				return c.Fields
			}
		}
	}
	return nil
}

// W5: the answer is lost, the caller retries: same key and body, same id and answer. Same key, other body: conflict.
func TestW5RetriedCreate(t *testing.T) {
	s := newScene(t, 8)
	req := func(queue string) *carillonv1.CreateJobRequest {
		return &carillonv1.CreateJobRequest{IdempotencyKey: "k", Job: &carillonv1.JobSpec{Queue: queue, Schedule: in(time.Hour)}}
	}
	s.b.fail, s.b.applied = func(uint32, *storagev1.Command) error { return &Unavailable{Reason: "lost", Ambiguous: true} }, true
	_, err := s.createJob(t.Context(), req("q"))
	wantCode(t, err, connect.CodeUnavailable)
	s.b.fail = nil
	first := must(s.createJob(t.Context(), req("q")))
	s.b.pass(5000)
	// Another node is another server over the same state.
	other := newTestServer(t, s.b)
	if again := must(other.createJob(t.Context(), req("q"))); !proto.Equal(first, again) {
		t.Errorf("the retry got %v, not %v", again, first)
	}
	_, err = s.createJob(t.Context(), req("other"))
	if got := conflictFields(t, err); !slices.Equal(got, []string{"queue"}) {
		t.Errorf("the conflict names %v", got)
	}
}

// What is left out and what is given as its default are the same request.
func TestExplicitDefaultsAreNoDifference(t *testing.T) {
	s := newScene(t, 2)
	priority, jitter := uint32(5), uint32(100)
	short := &carillonv1.JobSpec{Id: "j", Schedule: in(time.Hour)}
	long := &carillonv1.JobSpec{
		Id: "j", Tenant: "default", Queue: "default", Schedule: in(time.Hour), CatchUp: carillonv1.CatchUp_CATCH_UP_ALL,
		Priority: &priority, Lease: durationpb.New(30 * time.Second), Retry: &carillonv1.RetryPolicy{
			MaxAttempts: 5, FirstDelay: durationpb.New(time.Second), FactorThousandths: 2000, MaxDelay: durationpb.New(time.Hour),
			JitterThousandths: &jitter,
		},
	}
	if a, b := s.create(short), s.create(long); !proto.Equal(a, b) {
		t.Errorf("%v and %v", a, b)
	}
}

// The derivations of ids are promises: a retry after an upgrade must meet the same job.
func TestDerivedIdentitiesArePinned(t *testing.T) {
	for got, want := range map[string]string{
		jobIDFromKey("default", "k"):           "2m7um4d4dhgh6s7rxjsejzqjzy",
		jobIDFromBatch("default", "r", 0):      "zc4hd45s453bydxwyvsm7rki2m",
		jobIDFromBatch("default", "r", 1):      "by5mp4hrj5k6i5q3vw65id75bi",
		discriminatorFromKey("plain-key:1"):    "plain-key:1",
		discriminatorFromKey("with a space ~"): "sytbdxvriscdacmzps3k74kbja",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if jobIDFromKey("a", "bc") == jobIDFromKey("ab", "c") {
		t.Error("two identities run together")
	}
}

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

// W7: payloads and results come back unchanged, and an oversized result fails its attempt instead of leaving it stuck.
func TestW7PayloadsAndResults(t *testing.T) {
	s := newScene(t, 4)
	for _, size := range []int{0, 1, 1 << 10, 1<<10 + 1, DefaultMaxPayloadBytes} {
		payload := bytes.Repeat([]byte{0, 0xff, 'a'}, size/3+1)[:size]
		lease := s.claimOne(&carillonv1.JobSpec{Id: fmt.Sprint("j", size), Payload: payload, ContentType: "x/y"})
		if !bytes.Equal(lease.Payload, payload) || lease.ContentType != "x/y" {
			t.Errorf("a payload of %d bytes came as %d bytes", size, len(lease.Payload))
		}
		if got := s.job(lease.JobId); !bytes.Equal(got.Payload, payload) {
			t.Errorf("the job shows %d of %d bytes", len(got.Payload), size)
		}
		must(s.finish(lease, &carillonv1.Succeeded{Result: payload}))
		if e := s.execution(lease.ExecutionId); !bytes.Equal(e.Result, payload) {
			t.Errorf("a result of %d bytes came as %d bytes", size, len(e.Result))
		}
	}
	lease := s.claimOne(&carillonv1.JobSpec{Id: "large"})
	large := &carillonv1.Succeeded{Result: make([]byte, maxResultBytes+1)}
	for range 2 {
		// The retry of the report hears the same.
		_, err := s.finish(lease, large)
		wantViolation(t, err, "succeeded.result")
	}
	e := s.execution(lease.ExecutionId)
	if e.State != carillonv1.ExecutionState_EXECUTION_STATE_RETRYING || !strings.Contains(e.Error, "262145 bytes") {
		t.Errorf("the attempt ended as %v: %s", e.State, e.Error)
	}
	if len(e.Attempts) != 1 || e.Attempts[0].Outcome != carillonv1.Outcome_OUTCOME_FAILED {
		t.Errorf("attempts: %v", e.Attempts)
	}
}

// An error text is cut, not refused: a report must not fail for its wording.
func TestErrorTextsAreCut(t *testing.T) {
	s := newScene(t, 1)
	lease := s.claimOne(&carillonv1.JobSpec{Id: "j"})
	must(s.finish(lease, &carillonv1.Failed{Error: strings.Repeat("é", 3000) + "\xff", NonRetryable: true}))
	e := s.execution(lease.ExecutionId)
	if e.State != carillonv1.ExecutionState_EXECUTION_STATE_DEAD || e.Error != strings.Repeat("é", 2048) {
		t.Errorf("%v, %d bytes of error", e.State, len(e.Error))
	}
	if got := cutText("a\x00\xffb", 100); got != "a��b" {
		t.Errorf("cleaned to %q", got)
	}
}

// W2 and I4: a stale token is refused and told to stop; the same word again gets the same answer, wherever the execution
// has gone since.
func TestW2I4Completions(t *testing.T) {
	s := newScene(t, 2)
	stale := s.claimOne(&carillonv1.JobSpec{Id: "j", Lease: durationpb.New(time.Second)})
	s.b.pass(1500)
	lease := s.claimAll()[0]
	if lease.Attempt != 2 || lease.FencingNumber <= stale.FencingNumber {
		t.Errorf("second lease: %v", lease)
	}
	_, err := s.finish(stale, &carillonv1.Succeeded{})
	wantCode(t, err, connect.CodeFailedPrecondition)
	beat := must(s.heartbeat(t.Context(), &carillonv1.HeartbeatRequest{Items: []*carillonv1.HeartbeatItem{
		{ExecutionId: stale.ExecutionId, LeaseToken: stale.LeaseToken}, {ExecutionId: lease.ExecutionId, LeaseToken: lease.LeaseToken},
		{ExecutionId: lease.ExecutionId, LeaseToken: "nonsense"},
	}})).Results
	if beat[0].Status != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST || beat[1].Status != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK {
		t.Errorf("heartbeats: %v", beat)
	}
	if beat[2].Error.GetField() != "lease_token" {
		t.Errorf("a bad token: %v", beat[2])
	}
	_, err = s.heartbeatExecution(t.Context(), &carillonv1.HeartbeatExecutionRequest{Id: stale.ExecutionId, LeaseToken: stale.LeaseToken})
	wantCode(t, err, connect.CodeFailedPrecondition)
	for range 2 {
		if res := must(s.finish(lease, &carillonv1.Failed{Error: "boom"})); res.State != carillonv1.ExecutionState_EXECUTION_STATE_RETRYING {
			t.Errorf("failed into %v", res.State)
		}
	}
	s.b.pass(5000)
	third := s.claimAll()[0]
	if res := must(s.finish(lease, &carillonv1.Failed{Error: "boom"})); res.State != carillonv1.ExecutionState_EXECUTION_STATE_RETRYING {
		t.Errorf("the retry of the second attempt's report while the third runs: %v", res.State)
	}
	must(s.finish(third, &carillonv1.Succeeded{}))
	history := must(s.getJobHistory(t.Context(), &carillonv1.GetJobHistoryRequest{Id: "j"}))
	if len(history.Executions) != 1 || len(history.Executions[0].Attempts) != 3 || len(history.LateAttempts) != 1 {
		t.Fatalf("history: %v", history)
	}
	if late := history.LateAttempts[0]; late.ExecutionId != stale.ExecutionId || late.FencingNumber != stale.FencingNumber || late.Worker != "w" {
		t.Errorf("late attempt: %v", late)
	}
	_, err = s.finish(&carillonv1.Lease{ExecutionId: someExecution, LeaseToken: stale.LeaseToken}, &carillonv1.Released{})
	wantCode(t, err, connect.CodeNotFound)
}

// W3 and the other outcomes of an attempt.
func TestOutcomes(t *testing.T) {
	s := newScene(t, 1)
	lease := s.claimOne(&carillonv1.JobSpec{Id: "j", Retry: &carillonv1.RetryPolicy{MaxAttempts: 1}})
	if res := must(s.finish(lease, &carillonv1.Released{})); res.State != carillonv1.ExecutionState_EXECUTION_STATE_READY {
		t.Errorf("released into %v", res.State)
	}
	lease = s.claimAll()[0]
	if lease.Attempt != 1 {
		t.Errorf("a released attempt was counted: %v", lease)
	}
	until := timestamppb.New(time.UnixMilli(s.b.NowMS() + 60_000))
	if res := must(s.finish(lease, &carillonv1.Snoozed{Until: until})); res.State != carillonv1.ExecutionState_EXECUTION_STATE_RETRYING {
		t.Errorf("snoozed into %v", res.State)
	}
	if e := s.execution(lease.ExecutionId); !proto.Equal(e.NextTime, until) {
		t.Errorf("snoozed until %v", e.NextTime)
	}
	_, err := s.finish(lease, &carillonv1.Snoozed{})
	wantViolation(t, err, "snoozed.until")
	other := s.claimOne(&carillonv1.JobSpec{Id: "k"})
	must(s.finish(other, &carillonv1.Failed{RetryAfter: durationpb.New(time.Minute)}))
	if e := s.execution(other.ExecutionId); e.NextTime.AsTime().UnixMilli() != s.b.NowMS()+60_000 {
		t.Errorf("retried at %v", e.NextTime.AsTime())
	}
}

// W11: a Claim whose answer is lost and that is retried elsewhere gets the same leases again.
func TestW11RetriedClaim(t *testing.T) {
	s := newScene(t, 4)
	for i := range 5 {
		s.create(&carillonv1.JobSpec{Id: fmt.Sprint(i), Schedule: in(0)})
	}
	s.b.pass(1)
	req := &carillonv1.ClaimRequest{Worker: "w", ClaimId: "c", Queues: []string{defaultName}, MaxExecutions: 3}
	tokens := func(res *carillonv1.ClaimResponse) (list []string) {
		for _, lease := range res.Leases {
			list = append(list, lease.LeaseToken)
		}
		slices.Sort(list)
		return list
	}
	first, second := tokens(must(s.claim(t.Context(), req))), tokens(must(newTestServer(t, s.b).claim(t.Context(), req)))
	if len(first) != 3 || !slices.Equal(first, second) {
		t.Errorf("first %v, then %v", first, second)
	}
}

// A caller that is gone before the answer was handed over does not keep its leases.
func TestLeasesOfVanishedCallersAreReleased(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: in(0)})
	s.b.pass(1)
	ctx, cancel := context.WithCancel(t.Context())
	s.b.onPoll = func(PollRequest) { cancel() }
	req := &carillonv1.ClaimRequest{Worker: "w", Queues: []string{defaultName}}
	_, err := s.claim(ctx, req)
	if !errors.Is(err, context.Canceled) || len(s.b.released) != 1 {
		t.Errorf("gone while waiting: %v, %d released", err, len(s.b.released))
	}

	s = newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: in(0)})
	s.b.pass(1)
	r := httptest.NewRequest("POST", "/v1/workers/claim", strings.NewReader(`{"worker":"w","queues":["default"]}`))
	r.Header.Set("Content-Type", "application/json")
	s.ServeHTTP(brokenWriter{httptest.NewRecorder()}, r)
	if len(s.b.released) != 1 {
		t.Errorf("gone while writing: %d released", len(s.b.released))
	}
}

// brokenWriter is a connection that is gone.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("connection reset") }

// A claim answers at most 32 MiB, and gives the rest back.
func TestClaimsAreBoundedInBytes(t *testing.T) {
	s := newScene(t, 4)
	const jobs = 150
	for i := range jobs {
		s.create(&carillonv1.JobSpec{Id: fmt.Sprint(i), Schedule: in(0), Payload: make([]byte, DefaultMaxPayloadBytes)})
	}
	s.b.pass(1)
	leases := s.claimAll()
	size := proto.Size(&carillonv1.ClaimResponse{Leases: leases})
	if size > maxClaimBytes || size < maxClaimBytes-DefaultMaxPayloadBytes-4096 || len(leases)+len(s.b.released) != jobs {
		t.Errorf("%d leases of %d bytes, %d released", len(leases), size, len(s.b.released))
	}
}

// A batch answers in its order, whatever the shards; one bad item fails alone, and so does one unavailable shard.
func TestBatchItemsFailAlone(t *testing.T) {
	s := newScene(t, 16)
	const n = 3000
	req := &carillonv1.BatchCreateJobsRequest{RequestId: "r"}
	for i := range n {
		req.Items = append(req.Items, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{
			Id: fmt.Sprint("job-", i), Schedule: in(time.Hour), Payload: []byte(fmt.Sprint(i)),
		}})
	}
	req.Items[7].Job.Queue = "no such name"
	req.Items[8] = nil
	req.Items[9].Job = nil
	down := s.b.ShardOf(defaultName, "job-100")
	s.b.fail = func(shard uint32, _ *storagev1.Command) error {
		if shard == down {
			return &Unavailable{Reason: "no leader", RetryAfter: time.Second}
		}
		return nil
	}
	res := must(s.batchCreateJobs(t.Context(), req))
	failed := 0
	for i, result := range res.Results {
		id := fmt.Sprint("job-", i)
		itemErr := result.GetError()
		switch {
		case i == 7:
			if itemErr.GetField() != "job.queue" || itemErr.GetCode() != "invalid_argument" {
				t.Errorf("bad item: %v", result)
			}
		case i == 8 || i == 9:
			if itemErr.GetField() != "job" {
				t.Errorf("empty item: %v", result)
			}
		case s.b.ShardOf(defaultName, id) == down:
			failed++
			if itemErr.GetCode() != "unavailable" || itemErr.GetRetryAfter().AsDuration() != time.Second {
				t.Errorf("item of the shard without leader: %v", result)
			}
		case result.GetReceipt().GetId() != id:
			t.Errorf("item %d got %v", i, result)
		}
	}
	if failed == 0 {
		t.Error("no item was on the shard without leader")
	}
	s.b.fail = nil
	again := must(s.batchCreateJobs(t.Context(), req))
	for i, result := range res.Results {
		if result.GetReceipt() != nil && !proto.Equal(result, again.Results[i]) {
			t.Errorf("item %d: first %v, then %v", i, result, again.Results[i])
		}
	}
	if got := s.job("job-2999"); string(got.Payload) != "2999" {
		t.Errorf("payload %q", got.Payload)
	}
}

// Items of a batch without a key are safe to retry under the batch's request id.
func TestBatchRequestIDIsAKey(t *testing.T) {
	s := newScene(t, 4)
	req := func(id string) *carillonv1.BatchCreateJobsRequest {
		batch := batchOf(5)
		batch.RequestId = id
		batch.Items[4].IdempotencyKey = "own"
		return batch
	}
	a, b := must(s.batchCreateJobs(t.Context(), req("r"))), must(s.batchCreateJobs(t.Context(), req("r")))
	if !proto.Equal(a, b) {
		t.Errorf("first %v, then %v", a, b)
	}
	c, d := must(s.batchCreateJobs(t.Context(), req(""))), must(s.batchCreateJobs(t.Context(), req("")))
	for i := range c.Results {
		if same := c.Results[i].GetReceipt().Id == d.Results[i].GetReceipt().Id; same != (i == 4) {
			t.Errorf("item %d without request id: %v, then %v", i, c.Results[i], d.Results[i])
		}
	}
}

// A batch goes to each shard in bounded chunks that keep its order.
func TestChunksAreBounded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	sizes, shards := make([]int, 10_000), make([]uint32, 10_000)
	for i := range sizes {
		sizes[i], shards[i] = rnd.IntN(1<<14), uint32(rnd.IntN(5))
	}
	sizes[500] = maxChunkBytes + 1
	seen, last := map[int]bool{}, map[uint32]int{}
	for _, c := range chunks(len(sizes), func(i int) (uint32, int, bool) { return shards[i], sizes[i], i%10 != 0 }) {
		total := 0
		for _, i := range c.items {
			if i%10 == 0 || shards[i] != c.shard || seen[i] || i < last[c.shard] {
				t.Fatalf("item %d of shard %d is in a chunk of shard %d", i, shards[i], c.shard)
			}
			seen[i], last[c.shard], total = true, i, total+sizes[i]
		}
		if len(c.items) == 0 || len(c.items) > fsm.MaxBatch || total > maxChunkBytes && len(c.items) > 1 {
			t.Errorf("a chunk of %d items, %d bytes", len(c.items), total)
		}
	}
	if len(seen) != 9000 {
		t.Errorf("%d items are in chunks", len(seen))
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

// W4: cancelling is terminal; a holder is told by its next heartbeat.
func TestW4Cancel(t *testing.T) {
	s := newScene(t, 2)
	s.create(&carillonv1.JobSpec{Id: "later", Schedule: in(time.Hour)})
	waiting := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{JobId: "later"})).Executions[0]
	for range 2 {
		res, err := s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: waiting.Id, Reason: "not needed"})
		if err != nil || res.Execution.State != carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED {
			t.Errorf("cancelled: %v, %v", res, err)
		}
	}
	lease := s.claimOne(&carillonv1.JobSpec{Id: "now"})
	res := must(s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: lease.ExecutionId}))
	if !res.Execution.CancelRequested || res.Execution.State != carillonv1.ExecutionState_EXECUTION_STATE_LEASED {
		t.Errorf("asked to stop: %v", res.Execution)
	}
	beat := must(s.heartbeatExecution(t.Context(), &carillonv1.HeartbeatExecutionRequest{Id: lease.ExecutionId, LeaseToken: lease.LeaseToken}))
	if beat.Status != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED {
		t.Errorf("told %v", beat.Status)
	}
	_, err := s.finish(lease, &carillonv1.Succeeded{})
	wantCode(t, err, connect.CodeFailedPrecondition)
	if e := s.execution(lease.ExecutionId); e.State != carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED {
		t.Errorf("ended as %v", e.State)
	}
	_, err = s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: someExecution})
	wantCode(t, err, connect.CodeNotFound)
	done := s.claimOne(&carillonv1.JobSpec{Id: "done"})
	must(s.finish(done, &carillonv1.Succeeded{}))
	_, err = s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: done.ExecutionId})
	wantCode(t, err, connect.CodeFailedPrecondition)
}

// What the leader found may move before the command is applied: the call looks again, a few times.
func TestMovedIsTriedAgain(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: in(time.Hour)})
	id := must(s.listExecutions(t.Context(), &carillonv1.ListExecutionsRequest{JobId: "j"})).Executions[0].Id
	tries := 0
	s.b.fail = func(_ uint32, cmd *storagev1.Command) error {
		if tries++; tries < maxTries {
			cmd.CancelExecution.Hint = nil
		}
		return nil
	}
	if _, err := s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: id}); err != nil || tries != maxTries {
		t.Errorf("after %d tries: %v", tries, err)
	}
	s.b.fail = func(uint32, *storagev1.Command) error {
		return &Refused{&fsm.Refusal{Code: fsm.Moved, Message: "moved"}}
	}
	_, err := s.cancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: id})
	wantCode(t, err, connect.CodeUnavailable)
}

// Dead letters are requeued and purged by id at once, by filter as a task that can be asked for again.
func TestDeadLetters(t *testing.T) {
	s := newScene(t, 4)
	kill := func(id, text string) string {
		lease := s.claimOne(&carillonv1.JobSpec{Id: id})
		must(s.finish(lease, &carillonv1.Failed{Error: text, NonRetryable: true}))
		return lease.ExecutionId
	}
	a, b, c := kill("a", "disk full"), kill("b", "disk full"), kill("c", "other")
	byID := must(s.requeueDeadLetters(t.Context(), &carillonv1.RequeueDeadLettersRequest{ExecutionIds: []string{a, someExecution}}))
	if byID.Task.DoneCount != 1 || byID.Task.SeenCount != 2 || !byID.Task.Finished {
		t.Errorf("by id: %v", byID)
	}
	if e := s.execution(a); e.State != carillonv1.ExecutionState_EXECUTION_STATE_READY {
		t.Errorf("requeued into %v", e.State)
	}
	req := &carillonv1.PurgeDeadLettersRequest{RequestId: "p", Filter: &carillonv1.DeadLetterFilter{ErrorContains: "full"}}
	first := must(s.purgeDeadLetters(t.Context(), req))
	s.b.pass(1000)
	if again := must(s.purgeDeadLetters(t.Context(), req)); !proto.Equal(first, again) || first.Task.DoneCount != 1 || first.Task.Id != "p" {
		t.Errorf("first %v, then %v", first, again)
	}
	_, err := s.getExecution(t.Context(), &carillonv1.GetExecutionRequest{Id: b})
	wantCode(t, err, connect.CodeNotFound)
	if e := s.execution(c); e.State != carillonv1.ExecutionState_EXECUTION_STATE_DEAD {
		t.Errorf("another dead letter is %v", e.State)
	}
	// The same request id for another operation is another task.
	if res := must(s.requeueDeadLetters(t.Context(), &carillonv1.RequeueDeadLettersRequest{RequestId: "p", Filter: &carillonv1.DeadLetterFilter{}})); res.Task.DoneCount != 1 {
		t.Errorf("requeued by filter: %v", res)
	}
}
