package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// KiB limits of the API at their defaults.
const (
	maxPayload = 256 << 10
	maxResult  = 256 << 10
)

// everyByte is n opaque bytes, NULs and bytes that are no UTF-8 among them.
func everyByte(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// Payloads and results at their limits come back unchanged; just over them they are refused with the field named, and
// nothing is stuck.
func TestW7PayloadAndResultAtTheLimit(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	over := &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: "over", Schedule: in(0), Payload: everyByte(maxPayload + 1)}}
	err := refused(t, connect.CodeInvalidArgument, s.jobs().CreateJob, over)
	if got := detail[*carillonv1.FieldViolation](t, err).GetField(); got != "job.payload" {
		t.Errorf("the refusal names %q; want job.payload", got)
	}
	batch := call(t, s.jobs().BatchCreateJobs, &carillonv1.BatchCreateJobsRequest{Items: []*carillonv1.CreateJobRequest{
		over,
		{Job: &carillonv1.JobSpec{Id: "fits", Schedule: in(0), Payload: everyByte(maxPayload), Retry: &carillonv1.RetryPolicy{
			FirstDelay: durationpb.New(0),
		}}},
	}}).GetResults()
	if e := batch[0].GetError(); e.GetCode() != "invalid_argument" || e.GetField() != "job.payload" || batch[1].GetReceipt() == nil {
		t.Errorf("the batch answers %v", batch)
	}
	if got := s.job("fits").GetPayload(); !bytes.Equal(got, everyByte(maxPayload)) {
		t.Errorf("the job reads back with another payload, of %d bytes", len(got))
	}

	lease := s.claimOne("w", "default")
	if !bytes.Equal(lease.GetPayload(), everyByte(maxPayload)) {
		t.Errorf("the worker got another payload, of %d bytes", len(lease.GetPayload()))
	}
	tooLarge := succeeded(lease, "w", string(everyByte(maxResult+1)))
	err = refused(t, connect.CodeInvalidArgument, s.workers().CompleteExecution, tooLarge)
	if got := detail[*carillonv1.FieldViolation](t, err).GetField(); got != "succeeded.result" {
		t.Errorf("the refusal names %q; want succeeded.result", got)
	}
	again := s.claimOne("w", "default") // long before the lease would have ended
	if again.GetAttempt() != 2 {
		t.Fatalf("the next lease is attempt %d", again.GetAttempt())
	}
	s.complete(succeeded(again, "w", string(everyByte(maxResult))), succeededState)
	e := s.execution(again.GetExecutionId())
	if !bytes.Equal(e.GetResult(), everyByte(maxResult)) {
		t.Errorf("the result reads back as %d other bytes", len(e.GetResult()))
	}
	first := e.GetAttempts()[0]
	if first.GetOutcome() != carillonv1.Outcome_OUTCOME_FAILED || !strings.Contains(first.GetError(), "result") {
		t.Errorf("the attempt with the oversized result is recorded as %v", first)
	}
}

// NUL and bytes that are no UTF-8 are refused in every text, by every protocol.
func TestW7TextsAreText(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	for _, bad := range []string{"a\x00b", "a\xffb", "\xed\xa0\x80"} {
		for field, set := range map[string]func(*carillonv1.CreateJobRequest){
			"job.id":           func(r *carillonv1.CreateJobRequest) { r.Job.Id = bad },
			"job.tenant":       func(r *carillonv1.CreateJobRequest) { r.Job.Tenant = bad },
			"job.queue":        func(r *carillonv1.CreateJobRequest) { r.Job.Queue = bad },
			"idempotency_key":  func(r *carillonv1.CreateJobRequest) { r.IdempotencyKey = bad },
			"job.content_type": func(r *carillonv1.CreateJobRequest) { r.Job.ContentType = bad },
			"job.payload_ref":  func(r *carillonv1.CreateJobRequest) { r.Job.PayloadRef = bad },
			"job.fairness_key": func(r *carillonv1.CreateJobRequest) { r.Job.FairnessKey = bad },
			"job.labels":       func(r *carillonv1.CreateJobRequest) { r.Job.Labels = map[string]string{bad: "v"} },
			"job.labels[k]":    func(r *carillonv1.CreateJobRequest) { r.Job.Labels = map[string]string{"k": bad} },
			"job.headers":      func(r *carillonv1.CreateJobRequest) { r.Job.Headers = map[string]string{bad: "v"} },
			"job.headers[k]":   func(r *carillonv1.CreateJobRequest) { r.Job.Headers = map[string]string{"k": bad} },
		} {
			req := &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Schedule: in(time.Hour)}}
			set(req)
			// The generated client refuses to send this; others do not.
			body, err := req.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			status, answer := s.send(http.MethodPost, "/carillon.v1.JobService/CreateJob", "application/proto", body)
			if status != http.StatusBadRequest || !strings.Contains(answer, field+" ") {
				t.Errorf("%s = %q: %d %s; want 400 and the field", field, bad, status, answer)
			}
		}
	}
	if n := s.backlog().GetJobs(); n != 0 {
		t.Errorf("%d jobs were accepted", n)
	}
	for _, field := range []string{"id", "tenant", "queue", "fairnessKey", "payloadRef", "contentType"} {
		body := fmt.Sprintf(`{%q: "a\u0000b", "schedule": {"delay": "3600s"}}`, field)
		if status, answer := s.send(http.MethodPost, "/v1/jobs", "application/json", []byte(body)); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
}

// send sends raw bytes and returns status and body.
func (s *server) send(method, path, contentType string, body []byte) (int, string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url(path), bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if len(body) > 1<<20 {
		req.Header.Set("Expect", "100-continue") // as curl does: a refusal comes before the body has gone out
	}
	res, err := http1.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// http1 is what most scripts speak.
var http1 = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: callTimeout}}

// What is malformed, oversized or absurd is answered with a precise error that names the field, and the server goes on.
func TestBadInputIsNamed(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	const (
		post  = http.MethodPost
		plain = "application/json"
		ok    = `"schedule": {"delay": "1s"}`
	)
	job := func(fields string) string { return "{" + fields + "}" }
	for _, c := range []struct {
		name, method, path, contentType, body string
		status                                int
		says                                  string
	}{
		{"empty body", post, "/v1/jobs", plain, ``, 400, "job"},
		{"no schedule", post, "/v1/jobs", plain, `{}`, 400, "job.schedule"},
		{"cut short", post, "/v1/jobs", plain, `{"schedule":`, 400, "job.schedule"},
		{"not an object", post, "/v1/jobs", plain, `[1]`, 400, ""},
		{"two documents", post, "/v1/jobs", plain, job(ok) + job(ok), 400, ""},
		{"deep nesting", post, "/v1/jobs", plain, strings.Repeat(`{"schedule":`, 20_000), 400, "schedule"},
		{"invalid UTF-8", post, "/v1/jobs", plain, job("\"id\": \"a\xff\", " + ok), 400, "UTF-8"},
		{"unknown field", post, "/v1/jobs", plain, job(`"scheduel": {}, ` + ok), 400, "scheduel"},
		{"unknown nested field", post, "/v1/jobs", plain, `{"schedule": {"after": "1s"}}`, 400, "job.schedule.after"},
		{"cron, which comes later", post, "/v1/jobs", plain, `{"schedule": {"cron": "* * * * *"}}`, 400, "cron"},
		{"unknown query parameter", post, "/v1/jobs?colour=red", plain, job(ok), 400, "colour"},
		{"two schedules", post, "/v1/jobs", plain, `{"schedule": {"delay": "1s", "at": "2030-01-01T00:00:00Z"}}`, 400, "at"},
		{"negative delay", post, "/v1/jobs", plain, `{"schedule": {"delay": "-1s"}}`, 400, "job.schedule.delay"},
		{"slightly negative delay", post, "/v1/jobs", plain, `{"schedule": {"delay": "-0.000000001s"}}`, 400, "job.schedule.delay"},
		{"endless delay", post, "/v1/jobs", plain, `{"schedule": {"delay": "315576000000s"}}`, 400, "job.schedule.delay"},
		{"delay is no duration", post, "/v1/jobs", plain, `{"schedule": {"delay": "soon"}}`, 400, "job.schedule.delay"},
		{"year 1", post, "/v1/jobs", plain, `{"schedule": {"at": "0001-01-01T00:00:00Z"}}`, 400, "job.schedule.at"},
		{"year 9999", post, "/v1/jobs", plain, `{"schedule": {"at": "9999-12-31T23:59:59Z"}}`, 400, "job.schedule.at"},
		{"30 February", post, "/v1/jobs", plain, `{"schedule": {"at": "2030-02-30T00:00:00Z"}}`, 400, "job.schedule.at"},
		{"interval too short", post, "/v1/jobs", plain, `{"schedule": {"every": {"interval": "0.999s"}}}`, 400, "job.schedule.every.interval"},
		{"interval negative", post, "/v1/jobs", plain, `{"schedule": {"every": {"interval": "-60s"}}}`, 400, "job.schedule.every.interval"},
		{"interval missing", post, "/v1/jobs", plain, `{"schedule": {"every": {}}}`, 400, "job.schedule.every.interval"},
		{"start after end", post, "/v1/jobs", plain,
			`{"schedule": {"every": {"interval": "1s", "start": "2040-01-01T00:00:00Z", "end": "2030-01-01T00:00:00Z"}}}`, 400, "job.schedule.every"},
		{"ended before now", post, "/v1/jobs", plain, `{"schedule": {"every": {"interval": "1s", "end": "2001-01-01T00:00:00Z"}}}`, 400, "job.schedule"},
		{"priority 10", post, "/v1/jobs", plain, job(`"priority": 10, ` + ok), 400, "job.priority"},
		{"priority -1", post, "/v1/jobs", plain, job(`"priority": -1, ` + ok), 400, "priority"},
		{"priority 1e400", post, "/v1/jobs", plain, job(`"priority": 1e400, ` + ok), 400, "priority"},
		{"no such rule", post, "/v1/jobs", plain, job(`"catchUp": "CATCH_UP_SOMETIMES", ` + ok), 400, "catch"},
		{"payload is no base64", post, "/v1/jobs", plain, job(`"payload": "!", ` + ok), 400, "payload"},
		{"long id", post, "/v1/jobs", plain, job(`"id": "` + strings.Repeat("x", 129) + `", ` + ok), 400, "job.id"},
		{"separator in id", post, "/v1/jobs", plain, job(`"id": "a~b", ` + ok), 400, "job.id"},
		{"wrong content type", post, "/v1/jobs", "text/plain", job(ok), 415, "application/json"},
		{"form", post, "/v1/jobs", "application/x-www-form-urlencoded", "schedule=now", 415, "application/json"},
		{"oversized body", post, "/v1/jobs", plain, job(`"payload": "` + strings.Repeat("A", 40<<20) + `", ` + ok), 413, ""},
		{"10,001 items", post, "/v1/jobs:batchCreate", plain,
			`{"items": [` + strings.Repeat(`{"job": {`+ok+`}},`, 10_000) + `{"job": {` + ok + `}}]}`, 400, "items"},
		{"no items", post, "/v1/jobs:batchCreate", plain, `{}`, 400, "items"},
		{"no worker", post, "/v1/workers/claim", plain, `{"queues": ["q"]}`, 400, "worker"},
		{"no queues", post, "/v1/workers/claim", plain, `{"worker": "w"}`, 400, "queues"},
		{"claims 1,001", post, "/v1/workers/claim", plain, `{"worker": "w", "queues": ["q"], "maxExecutions": 1001}`, 400, "max_executions"},
		{"waits 61 s", post, "/v1/workers/claim", plain, `{"worker": "w", "queues": ["q"], "wait": "61s"}`, 400, "wait"},
		{"not an execution", post, "/v1/executions/garbage/complete", plain, `{"leaseToken": "x", "succeeded": {}}`, 400, "id"},
		{"not a token", post, "/v1/executions/default~j~1~s~1/complete", plain, `{"leaseToken": "x", "succeeded": {}}`, 400, "lease_token"},
		{"page size", http.MethodGet, "/v1/jobs?page_size=1001", "", ``, 400, "page_size"},
		{"page token", http.MethodGet, "/v1/jobs?page_token=garbage", "", ``, 400, "page_token"},
		{"patch of nothing", http.MethodPatch, "/v1/jobs/j", plain, `{}`, 400, ""},
		{"patch of the id", http.MethodPatch, "/v1/jobs/j", plain, `{"id": "k"}`, 400, "id"},
		{"no such job", http.MethodGet, "/v1/jobs/nobody", "", ``, 404, "nobody"},
		{"no such path", http.MethodGet, "/v1/jbos", "", ``, 404, "/v1/jbos"},
		{"no such verb", http.MethodPut, "/v1/queues/q", plain, `{}`, 405, "PATCH"},
		{"Connect: malformed", post, "/carillon.v1.JobService/CreateJob", plain, `{"job":`, 400, ""},
		{"Connect: no protobuf", post, "/carillon.v1.JobService/CreateJob", "application/proto", "\xff\xff\xff", 400, ""},
		{"Connect: negative delay", post, "/carillon.v1.JobService/CreateJob", plain, `{"job": {"schedule": {"delay": "-1s"}}}`, 400, "job.schedule.delay"},
	} {
		status, answer := s.send(c.method, c.path, c.contentType, []byte(c.body))
		if status != c.status || !strings.Contains(answer, c.says) {
			t.Errorf("%s: %d %.300s\nwant %d and %q", c.name, status, answer, c.status, c.says)
		}
	}
	select {
	case <-s.done:
		t.Fatalf("the server has ended\n%s", s.log)
	default:
	}
	if strings.Contains(s.log.String(), "panic") {
		t.Errorf("the server's log has a panic:\n%s", s.log)
	}
	if n := s.backlog().GetJobs(); n != 0 {
		t.Errorf("%d of the bad jobs were accepted", n)
	}
	if status, answer := s.send(post, "/v1/jobs", plain, []byte(job(ok))); status != http.StatusOK {
		t.Errorf("a good job is answered with %d %s", status, answer)
	}
}
