package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

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
	absent := fsm.Identity{Tenant: defaultName, JobID: "absent"}
	token := leaseToken{shard: s.shardOf(absent), fencing: stale.FencingNumber}
	if s.shardOf(absent) != s.b.ShardOf(defaultName, "j") {
		t.Fatal("choose an id of the shard that granted the token")
	}
	_, err = s.finish(&carillonv1.Lease{ExecutionId: "default~absent~1~s~1", LeaseToken: token.String()}, &carillonv1.Released{})
	wantCode(t, err, connect.CodeNotFound)
}

// Fencing numbers are those of a shard: a token of another one is none of this execution's, though the numbers agree.
func TestTokensOfAnotherShardAreRefused(t *testing.T) {
	s := newScene(t, 2)
	lease := s.claimOne(&carillonv1.JobSpec{Id: "j"})
	own := must(parseLeaseToken(lease.LeaseToken))
	foreign := leaseToken{shard: 3 - own.shard, fencing: own.fencing}.String()
	released := &carillonv1.Released{}

	_, err := s.finish(&carillonv1.Lease{ExecutionId: lease.ExecutionId, LeaseToken: foreign}, released)
	wantViolation(t, err, "lease_token")
	_, err = s.heartbeatExecution(t.Context(), &carillonv1.HeartbeatExecutionRequest{Id: lease.ExecutionId, LeaseToken: foreign})
	wantViolation(t, err, "lease_token")
	beats := must(s.heartbeat(t.Context(), &carillonv1.HeartbeatRequest{Items: []*carillonv1.HeartbeatItem{
		{ExecutionId: lease.ExecutionId, LeaseToken: foreign}, {ExecutionId: lease.ExecutionId, LeaseToken: lease.LeaseToken},
	}})).Results
	if beats[0].Error.GetField() != "lease_token" || beats[1].Status != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK {
		t.Errorf("heartbeats: %v", beats)
	}
	reports := must(s.complete(t.Context(), &carillonv1.CompleteRequest{Items: []*carillonv1.CompleteItem{
		{ExecutionId: lease.ExecutionId, LeaseToken: foreign, Outcome: &carillonv1.CompleteItem_Released{Released: released}},
	}})).Results
	if reports[0].GetError().GetField() != "lease_token" {
		t.Errorf("reports: %v", reports)
	}
	must(s.finish(lease, &carillonv1.Succeeded{}))
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
	want := s.b.NowMS() + 60_000
	s.b.pass(5000)
	// The retry of the report is the same report, however late it comes.
	must(s.finish(other, &carillonv1.Failed{RetryAfter: durationpb.New(time.Minute)}))
	// I4: another outcome under the same token is a conflict, and changes nothing.
	_, err = s.finish(other, &carillonv1.Succeeded{})
	wantCode(t, err, connect.CodeAlreadyExists)
	if e := s.execution(other.ExecutionId); e.NextTime.AsTime().UnixMilli() != want {
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

	for _, path := range []string{"/v1/workers/claim", "/carillon.v1.WorkerService/Claim"} {
		s = newScene(t, 1)
		s.create(&carillonv1.JobSpec{Id: "j", Schedule: in(0)})
		s.b.pass(1)
		ctx, cancel := context.WithCancel(t.Context())
		r = httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(`{"worker":"w","queues":["default"]}`))
		r.Header.Set("Content-Type", "application/json")
		s.ServeHTTP(vanishingReader{httptest.NewRecorder(), cancel}, r)
		if len(s.b.released) != 1 {
			t.Errorf("%s: gone after the answer went into a buffer: %d released", path, len(s.b.released))
		}
	}
}

// A caller that has read its whole answer may close the connection before the handler has returned; what it was given is its.
func TestLeasesOfQuickReadersAreTheirs(t *testing.T) {
	s := newScene(t, 1)
	const jobs = 50 // more than a buffer holds
	for i := range jobs {
		s.create(&carillonv1.JobSpec{Id: fmt.Sprint(i), Schedule: in(0)})
	}
	s.b.pass(1)
	ctx, cancel := context.WithCancel(t.Context())
	body := strings.NewReader(`{"worker":"w","queues":["default"],"max_executions":1000}`)
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/workers/claim", body)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.ServeHTTP(vanishingReader{w, cancel}, r)
	if w.Code != 200 || w.Body.Len() <= bufferedBytes || len(s.b.released) != 0 {
		t.Errorf("%d, %d bytes, %d released", w.Code, w.Body.Len(), len(s.b.released))
	}
}

// vanishingReader is a caller that goes away before it has read the answer that its connection's buffer holds.
type vanishingReader struct {
	http.ResponseWriter
	cancel context.CancelFunc
}

func (v vanishingReader) Write(b []byte) (int, error) {
	v.cancel()
	return v.ResponseWriter.Write(b)
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

// What a claim cannot deliver is known before payloads are read.
func TestPayloadsThatDoNotFitAreNotRead(t *testing.T) {
	sized := func(n int, bytes uint64) (list []*storagev1.Execution) {
		for range n {
			list = append(list, &storagev1.Execution{Template: &storagev1.Template{BlobVersion: 1, BlobSize: bytes}})
		}
		return list
	}
	for _, c := range []struct {
		executions []*storagev1.Execution
		want       int
	}{
		{nil, 0},
		{sized(1000, 1<<20), maxClaimBytes >> 20},
		{sized(3, 1<<20), 3},
		{sized(2, 2*maxClaimBytes), 1},
	} {
		if got := fitting(c.executions); got != c.want {
			t.Errorf("of %d executions %d fit, want %d", len(c.executions), got, c.want)
		}
	}
}
