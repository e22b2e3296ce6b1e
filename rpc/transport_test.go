package rpc

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

// api is the handler behind a real HTTP server, which speaks HTTP/1.1 and HTTP/2 without TLS, as the node's does.
type api struct {
	t      *testing.T
	url    string
	client *http.Client
}

func newAPI(t *testing.T, b Backend, opts Options) *api {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = testLogger(t)
	}
	h, err := NewHandler(b, opts)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Config.ErrorLog = slog.NewLogLogger(testLogger(t).Handler(), slog.LevelDebug)
	srv.Start()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.Close()
	})
	return &api{t: t, url: srv.URL, client: &http.Client{Transport: transport}}
}

// One job's whole life, through each of the protocols.
func TestEveryProtocolServesALife(t *testing.T) {
	protocols := map[string][]connect.ClientOption{
		"connect":           nil,
		"connect json":      {connect.WithProtoJSON()},
		"connect with gzip": {connect.WithSendGzip()},
		"grpc":              {connect.WithGRPC()},
		"grpc-web":          {connect.WithGRPCWeb()},
		"grpc-web json":     {connect.WithGRPCWeb(), connect.WithProtoJSON()},
	}
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			b := newFakeBackend(4)
			a := newAPI(t, b, Options{})
			jobs := carillonv1connect.NewJobServiceClient(a.client, a.url, options...)
			workers := carillonv1connect.NewWorkerServiceClient(a.client, a.url, options...)
			executions := carillonv1connect.NewExecutionServiceClient(a.client, a.url, options...)
			payload := []byte("a\x00b\xff")
			created := must(jobs.CreateJob(t.Context(), connect.NewRequest(&carillonv1.CreateJobRequest{
				Job: &carillonv1.JobSpec{Id: "j", Queue: "q", Schedule: in(time.Second), Payload: payload},
			})))
			b.pass(1000)
			claimed := must(workers.Claim(t.Context(), connect.NewRequest(&carillonv1.ClaimRequest{Worker: "w", Queues: []string{"q"}})))
			if len(claimed.Msg.Leases) != 1 || !bytes.Equal(claimed.Msg.Leases[0].Payload, payload) {
				t.Fatalf("claimed %v", claimed.Msg)
			}
			lease := claimed.Msg.Leases[0]
			must(workers.Complete(t.Context(), connect.NewRequest(&carillonv1.CompleteRequest{Items: []*carillonv1.CompleteItem{{
				ExecutionId: lease.ExecutionId, LeaseToken: lease.LeaseToken,
				Outcome: &carillonv1.CompleteItem_Succeeded{Succeeded: &carillonv1.Succeeded{Result: payload}},
			}}})))
			got := must(executions.GetExecution(t.Context(), connect.NewRequest(&carillonv1.GetExecutionRequest{Id: lease.ExecutionId})))
			e := got.Msg.Execution
			if e.State != carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED || !bytes.Equal(e.Result, payload) {
				t.Errorf("ended as %v", e)
			}
			if e.NominalTime.AsTime() != created.Msg.NextTime.AsTime() {
				t.Errorf("nominal %v, promised %v", e.NominalTime.AsTime(), created.Msg.NextTime.AsTime())
			}
			_, err := jobs.GetJob(t.Context(), connect.NewRequest(&carillonv1.GetJobRequest{Id: "unknown"}))
			if connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("an unknown job: %v", err)
			}
			_, err = jobs.CreateJob(t.Context(), connect.NewRequest(&carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: "j"}}))
			wantViolation(t, err, "job.schedule")
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Bad input in the binary encodings, where strings can be anything.
func TestBinaryRefusals(t *testing.T) {
	a := newAPI(t, newFakeBackend(2), Options{})
	for _, option := range []connect.ClientOption{connect.WithClientOptions(), connect.WithGRPC()} {
		// The codec of the handlers does not check UTF-8 either, so that it can send what a broken client might.
		jobs := carillonv1connect.NewJobServiceClient(a.client, a.url, option, connect.WithCodec(binaryCodec{}))
		for field, change := range map[string]func(*carillonv1.JobSpec){
			"job.id":             func(j *carillonv1.JobSpec) { j.Id = "\xff" },
			"job.tenant":         func(j *carillonv1.JobSpec) { j.Tenant = "a\x00" },
			"job.queue":          func(j *carillonv1.JobSpec) { j.Queue = "\xc3\x28" },
			"job.fairness_key":   func(j *carillonv1.JobSpec) { j.FairnessKey = "\xff" },
			"job.content_type":   func(j *carillonv1.JobSpec) { j.ContentType = "\xff" },
			"job.payload_ref":    func(j *carillonv1.JobSpec) { j.PayloadRef = "\x00" },
			"job.labels":         func(j *carillonv1.JobSpec) { j.Labels = map[string]string{"\xff": "v"} },
			"job.labels[k]":      func(j *carillonv1.JobSpec) { j.Labels = map[string]string{"k": "\xff"} },
			"job.headers":        func(j *carillonv1.JobSpec) { j.Headers = map[string]string{"a\x00": "v"} },
			"job.headers[k]":     func(j *carillonv1.JobSpec) { j.Headers = map[string]string{"k": "\x00"} },
			"job.catch_up":       func(j *carillonv1.JobSpec) { j.CatchUp = 99 },
			"job.schedule.at":    func(j *carillonv1.JobSpec) { j.Schedule = at(time.Time{}) },
			"job.schedule.delay": func(j *carillonv1.JobSpec) { j.Schedule = in(-1) },
		} {
			spec := &carillonv1.JobSpec{Id: "j", Schedule: in(time.Hour)}
			change(spec)
			_, err := jobs.CreateJob(t.Context(), connect.NewRequest(&carillonv1.CreateJobRequest{Job: spec}))
			wantViolation(t, err, field)
		}
	}
	ans := a.do("POST", carillonv1connect.JobServiceGetJobProcedure, "\xff\xff", "Content-Type: application/proto")
	a.want(ans, 400, "invalid_argument")
	a.want(a.do("POST", carillonv1connect.JobServiceGetJobProcedure, "{}", "Content-Type: text/plain"), 415)
	a.want(a.do("POST", carillonv1connect.JobServiceGetJobProcedure, `{"colour":1}`), 400, "invalid_argument", "colour")
	a.want(a.do("POST", carillonv1connect.JobServiceGetJobProcedure, "{\"tenant\":\"\xff\"}"), 400, "tenant", "UTF-8")
	a.want(a.do("POST", "/carillon.v1.JobService/Nothing", "{}"), 404)
	a.want(a.do("POST", carillonv1connect.JobServiceGetJobProcedure, `{"id":"j"}`), 404, "not_found")
}

// A message beyond its limit is refused before it is read where its length is announced, and while it is read where not.
func TestMessagesAreBounded(t *testing.T) {
	a := newAPI(t, newFakeBackend(2), Options{})
	big := `{"schedule":{"delay":"1s"},"payload":"` + strings.Repeat("A", 3<<20) + `"}`
	a.want(a.do("POST", "/v1/jobs", big), 413, "invalid_argument", "larger than")
	a.want(a.do("POST", carillonv1connect.JobServiceCreateJobProcedure, big), 400, "invalid_argument", "at most")
	chunked := func(path string) answer {
		req, err := http.NewRequestWithContext(t.Context(), "POST", a.url+path, io.MultiReader(strings.NewReader(big)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := a.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return answer{res.StatusCode, res.Header, string(text)}
	}
	a.want(chunked("/v1/jobs"), 413, "invalid_argument")
	a.want(chunked(carillonv1connect.JobServiceCreateJobProcedure), 429, "resource_exhausted", "larger than")
	batch := `{"items":[{"job":{"schedule":{"delay":"1s"}}}],"request_id":"` + strings.Repeat("A", 32<<20) + `"}`
	a.want(a.do("POST", "/v1/jobs:batchCreate", batch), 413)
	a.want(a.do("POST", "/v1/jobs:batchCreate", batch[len(batch)-100:]), 400)
	a.json(a.do("GET", "/v1/cluster", ""))
}

// What a node works on at once is bounded; beyond it calls are shed with a hint, in their protocol's form.
func TestBytesUnderWayAreBounded(t *testing.T) {
	b := newFakeBackend(1)
	h, err := NewHandler(b, Options{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := h.(*server)
	post := func(path string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest("POST", path, strings.NewReader(`{"schedule":{"delay":"1s"}}`)), httptest.NewRecorder()
		r.Header.Set("Content-Type", "application/json")
		s.ServeHTTP(w, r)
		return w
	}
	s.inflight.Store(maxInflightBytes)
	for _, path := range []string{"/v1/jobs", carillonv1connect.JobServiceCreateJobProcedure} {
		if w := post(path); w.Code != 429 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "resource_exhausted") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	s.inflight.Store(0)
	if w := post("/v1/jobs"); w.Code != 200 || s.inflight.Load() != 0 {
		t.Errorf("with room again: %d, %d bytes left behind", w.Code, s.inflight.Load())
	}
}

// Every refusal of the backend has its code, its details and its HTTP status.
func TestErrorsAreMapped(t *testing.T) {
	refuse := func(code fsm.Code) error {
		return &Refused{&fsm.Refusal{Code: code, Message: "because", Field: "state", Fields: []string{"queue"}, Version: 7}}
	}
	for _, c := range []struct {
		err        error
		code       connect.Code
		status     int
		retryAfter string
		text       string
	}{
		{refuse(fsm.InvalidArgument), connect.CodeInvalidArgument, 400, "", `"@type":"carillon.v1.FieldViolation","field":"state"`},
		{refuse(fsm.NotFound), connect.CodeNotFound, 404, "", "because"},
		{refuse(fsm.AlreadyExists), connect.CodeAlreadyExists, 409, "", `"@type":"carillon.v1.IdempotencyConflict","fields":["queue"]`},
		{refuse(fsm.Aborted), connect.CodeAborted, 409, "", `"@type":"carillon.v1.VersionConflict","currentVersion":"7"`},
		{refuse(fsm.FailedPrecondition), connect.CodeFailedPrecondition, 412, "", "because"},
		{refuse(fsm.ResourceExhausted), connect.CodeResourceExhausted, 429, "1", "RetryHint"},
		{refuse(fsm.StaleTerm), connect.CodeUnavailable, 503, "1", `"retryAfter":"0.100s"`},
		{refuse(fsm.Moved), connect.CodeUnavailable, 503, "1", "RetryHint"},
		{refuse(200), connect.CodeInternal, 500, "", "internal error"},
		{&Unavailable{Reason: "no leader", RetryAfter: 1200 * time.Millisecond}, connect.CodeUnavailable, 503, "2", `"retryAfter":"1.200s"`},
		{fmt.Errorf("wrapped: %w", &Unavailable{Reason: "lost", Ambiguous: true}), connect.CodeUnavailable, 503, "", "same identity"},
		{&Overloaded{Reason: "queue full", RetryAfter: 5 * time.Second}, connect.CodeResourceExhausted, 429, "5", "RetryHint"},
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded, 504, "", "outcome is unknown"},
		{context.Canceled, connect.CodeCanceled, 499, "", ""},
		{errors.New("secret path /var/lib"), connect.CodeInternal, 500, "", "internal error"},
	} {
		t.Run(fmt.Sprint(c.err), func(t *testing.T) {
			b := newFakeBackend(1)
			b.fail = func(uint32, *storagev1.Command) error { return c.err }
			a := newAPI(t, b, Options{})
			ans := a.do("POST", "/v1/jobs", `{"schedule":{"delay":"1s"}}`)
			a.want(ans, c.status, c.text, fmt.Sprintf(`"code":%q`, c.code))
			if strings.Contains(ans.body, "secret") {
				t.Errorf("an unknown error is shown to the caller: %s", ans.body)
			}
			if got := ans.header.Get("Retry-After"); got != c.retryAfter {
				t.Errorf("Retry-After is %q, want %q", got, c.retryAfter)
			}
			jobs := carillonv1connect.NewJobServiceClient(a.client, a.url)
			_, err := jobs.CreateJob(t.Context(), connect.NewRequest(&carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Schedule: in(1)}}))
			if connect.CodeOf(err) != c.code {
				t.Errorf("Connect: got %v, want %v", err, c.code)
			}
		})
	}
	for code := fsm.InvalidArgument; code <= fsm.Moved; code++ {
		if httpStatus[connectCodes[code]] == 0 {
			t.Errorf("refusal %d has no code or no HTTP status", code)
		}
	}
}

// recorder keeps what the metrics hook was told.
type recorder struct {
	mu    sync.Mutex
	calls []string
}

func (r *recorder) Called(procedure, code string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, procedure+" "+code)
}

// A panic costs its call only; it is counted, logged with its stack and answered as internal.
func TestPanicsBecomeInternalErrors(t *testing.T) {
	b := newFakeBackend(1)
	b.fail = func(uint32, *storagev1.Command) error { panic("broken invariant") }
	var log bytes.Buffer
	metrics := &recorder{}
	a := newAPI(t, b, Options{Metrics: metrics, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	a.want(a.do("POST", "/v1/jobs", `{"schedule":{"delay":"1s"}}`, "X-Request-Id: r-1"), 500, `"internal"`)
	a.want(a.do("POST", carillonv1connect.JobServiceCreateJobProcedure, `{"job":{"schedule":{"delay":"1s"}}}`), 500, `"internal"`)
	for _, text := range []string{"broken invariant", "request_id=r-1", "fake_test.go"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("the log does not have %q", text)
		}
	}
	b.fail = nil
	a.json(a.do("GET", "/v1/jobs", ""))
	want := []string{
		carillonv1connect.JobServiceCreateJobProcedure + " internal", carillonv1connect.JobServiceCreateJobProcedure + " internal",
		carillonv1connect.JobServiceListJobsProcedure + " ok",
	}
	if !slices.Equal(metrics.calls, want) {
		t.Errorf("counted %v", metrics.calls)
	}
}

// A request id and a trace go from the headers into the command, and the id back to the caller.
func TestRequestIdentityReachesTheLog(t *testing.T) {
	b := newFakeBackend(1)
	var seen *storagev1.Command
	b.fail = func(_ uint32, cmd *storagev1.Command) error {
		seen = cmd
		return nil
	}
	a := newAPI(t, b, Options{})
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	ans := a.do("POST", "/v1/jobs", `{"schedule":{"delay":"1s"}}`, "X-Request-Id: r-1", "Traceparent: 00-"+trace+"-00f067aa0ba902b7-01")
	if ans.header.Get("X-Request-Id") != "r-1" || seen.RequestId != "r-1" || seen.TraceId != trace {
		t.Errorf("answered %v, commanded %v", ans.header, seen)
	}
	ans = a.do("POST", "/v1/jobs", `{"schedule":{"delay":"1s"}}`, "Traceparent: nonsense", "X-Request-Id: "+strings.Repeat("x", 500))
	if id := ans.header.Get("X-Request-Id"); len(id) != 16 || seen.RequestId != "" || seen.TraceId != "" {
		t.Errorf("answered %v, commanded %v", ans.header, seen)
	}
}

func TestHealthAndReflection(t *testing.T) {
	var reason error
	a := newAPI(t, newFakeBackend(1), Options{Ready: func() error { return reason }})
	health := grpchealth.NewClient(a.client, a.url)
	for _, service := range []string{"", "carillon.v1.JobService"} {
		res, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: service})
		if err != nil || res.Status != grpchealth.StatusServing {
			t.Errorf("%q: %v, %v", service, res, err)
		}
	}
	if _, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: "nothing"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("an unknown service: %v", err)
	}
	reason = errors.New("clock held")
	if res, err := health.Check(t.Context(), &grpchealth.CheckRequest{}); err != nil || res.Status != grpchealth.StatusNotServing {
		t.Errorf("not ready: %v, %v", res, err)
	}
	stream := grpcreflect.NewClient(a.client, a.url, connect.WithGRPC()).NewStream(t.Context())
	names, err := stream.ListServices()
	if err != nil || len(names) != len(serviceNames())+1 {
		t.Errorf("reflection lists %v, %v", names, err)
	}
	if files, err := stream.FileContainingSymbol("carillon.v1.WorkerService"); err != nil || len(files) == 0 {
		t.Errorf("reflection has no schema of WorkerService: %v", err)
	}
	if _, err := stream.Close(); err != nil {
		t.Error(err)
	}
}

// Browsers of other origins may call only where the operator allowed theirs.
func TestCORSIsOffByDefault(t *testing.T) {
	preflight := []string{"Origin: https://console.example", "Access-Control-Request-Method: PATCH",
		"Access-Control-Request-Headers: content-type,idempotency-key"}
	closed := newAPI(t, newFakeBackend(1), Options{})
	if ans := closed.do("OPTIONS", "/v1/jobs/j", "", preflight...); ans.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("without the option: %v", ans.header)
	}
	open := newAPI(t, newFakeBackend(1), Options{CORSOrigins: []string{"https://console.example"}})
	if ans := open.do("OPTIONS", "/v1/jobs/j", "", preflight...); ans.header.Get("Access-Control-Allow-Origin") != "https://console.example" {
		t.Errorf("with the option: %d %v", ans.status, ans.header)
	}
	if ans := open.do("OPTIONS", "/v1/jobs/j", "", "Origin: https://evil.example", "Access-Control-Request-Method: PATCH"); ans.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin: %v", ans.header)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, n := range []int{-1, LargestMaxPayloadBytes + 1} {
		if _, err := NewHandler(newFakeBackend(1), Options{MaxPayloadBytes: n}); err == nil {
			t.Errorf("MaxPayloadBytes %d was accepted", n)
		}
	}
	a := newAPI(t, newFakeBackend(1), Options{MaxPayloadBytes: 2})
	a.json(a.do("POST", "/v1/jobs", `{"schedule":{"delay":"1s"},"payload":"`+base64.StdEncoding.EncodeToString([]byte("ab"))+`"}`))
	a.want(a.do("POST", "/v1/jobs", `{"schedule":{"delay":"1s"},"payload":"`+base64.StdEncoding.EncodeToString([]byte("abc"))+`"}`), 400, "job.payload")
}
