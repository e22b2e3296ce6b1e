package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const relaySecret = "0123456789abcdef0123456789abcdef"

// relay posts the executions of a queue named like the worker to url.
func (s *server) relay(name, url string, flags ...string) *programWorker {
	s.t.Helper()
	secret := filepath.Join(s.t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(relaySecret+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	args := []string{"relay", "--addr", s.addr, "--queue", name, "--name", name, "--url", url, "--secret-file", secret}
	return s.startWorker(append(args, flags...)...)
}

// isSigned verifies a request as docs/workers.md says.
func isSigned(h http.Header, body []byte) bool {
	mac := hmac.New(sha256.New, []byte(relaySecret))
	mac.Write([]byte(h.Get("Webhook-Id") + "." + h.Get("Webhook-Timestamp") + "."))
	mac.Write(body)
	return h.Get("Webhook-Signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func TestRelayCompletesByStatus(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if !isSigned(req.Header, body) {
			http.Error(w, "not signed", http.StatusUnauthorized)
			return
		}
		switch job := req.Header.Get("Carillon-Job-Id"); job {
		case "ok":
			fmt.Fprintf(w, "%s for %s", body, req.Header.Get("Carillon-Header-Trace"))
		case "gone":
			http.Error(w, "not here any more", http.StatusGone)
		case "busy":
			w.Header().Set("Retry-After", "1800")
			w.WriteHeader(http.StatusTooManyRequests)
		case "broken":
			w.WriteHeader(http.StatusInternalServerError)
		case "moved":
			http.Redirect(w, req, "/elsewhere", http.StatusPermanentRedirect)
		case "long":
			_, _ = w.Write(make([]byte, 256<<10+1))
		}
	}))
	defer receiver.Close()
	once := &carillonv1.RetryPolicy{MaxAttempts: 1}
	for _, id := range []string{"ok", "gone", "busy", "broken", "moved", "long"} {
		spec := &carillonv1.JobSpec{Id: id, Queue: "hooks", Schedule: in(0), Retry: once}
		switch id {
		case "ok":
			spec.Payload, spec.Headers = []byte("hello"), map[string]string{"trace": "t1"}
		case "gone", "busy":
			spec.Retry = nil
		}
		s.create(spec)
	}
	w := s.relay("hooks", receiver.URL, "--allow-private")
	tests := []struct {
		id    string
		state carillonv1.ExecutionState
		text  string
	}{
		{"gone", deadState, "410 Gone: not here any more"},
		{"broken", deadState, "500 Internal Server Error"},
		{"moved", deadState, `308 Permanent Redirect: redirect to "/elsewhere" is not followed`},
		{"long", deadState, "result is too long"},
		{"busy", carillonv1.ExecutionState_EXECUTION_STATE_RETRYING, "429 Too Many Requests"},
		{"ok", succeededState, ""},
	}
	for _, test := range tests {
		await(t, 30*time.Second, test.id+" has ended", func() bool { return s.onlyExecution(test.id).GetState() == test.state })
		if e := s.onlyExecution(test.id); !strings.HasPrefix(e.GetError(), test.text) || e.GetAttempt() != 1 {
			t.Errorf("%s: attempt %d, %q; want %q", test.id, e.GetAttempt(), e.GetError(), test.text)
		}
	}
	if e := s.execution(s.onlyExecution("ok").GetId()); string(e.GetResult()) != "hello for t1" {
		t.Errorf("result %q", e.GetResult())
	}
	if next := time.Until(s.onlyExecution("busy").GetNextTime().AsTime()); next < 25*time.Minute || next > 30*time.Minute {
		t.Errorf("after Retry-After the next attempt comes in %v", next)
	}
	w.signal(syscall.SIGTERM)
	if code := w.ends(); code != 0 {
		t.Errorf("the relay ended with %d", code)
	}
}

// A host that fails is left alone: few attempts are spent on finding that out, and when it is back everything goes on.
func TestRelayStopsClaimingWhileTheHostIsDown(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	var up atomic.Bool
	var requests atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer receiver.Close()
	const jobs = 100
	s.createMany(jobs, func(i int) *carillonv1.JobSpec {
		retry := &carillonv1.RetryPolicy{MaxAttempts: 3, FirstDelay: durationpb.New(100 * time.Millisecond)}
		return &carillonv1.JobSpec{Id: fmt.Sprint("down-", i), Queue: "down", Schedule: in(0), Retry: retry}
	})
	metrics := freeAddr(t)
	s.relay("down", receiver.URL, "--allow-private", "--concurrency", "4", "--breaker-failures", "3", "--breaker-pause", "1s",
		"--metrics-listen", metrics)
	state := func() string { return metric(t, metrics, "carillon_relay_breaker_state") }
	await(t, 20*time.Second, "the breaker is open", func() bool { return state() == "2" })
	await(t, 20*time.Second, "it has probed twice", func() bool {
		opened := metric(t, metrics, "carillon_relay_breaker_opened_total")
		return opened != "" && opened >= "3"
	})
	// Those that opened it, those beside them, and a probe a second.
	if n := requests.Load(); n > 15 {
		t.Errorf("%d requests while the host was down", n)
	}
	for _, e := range s.list(&carillonv1.ListExecutionsRequest{Queue: "down", PageSize: 1000}) {
		failed := 0
		for _, a := range s.execution(e.GetId()).GetAttempts() {
			if a.GetOutcome() == carillonv1.Outcome_OUTCOME_FAILED {
				failed++
			}
		}
		if failed > 1 {
			t.Errorf("%s has failed %d times", e.GetId(), failed)
		}
	}
	up.Store(true)
	await(t, 30*time.Second, "all have succeeded", func() bool {
		return len(s.list(&carillonv1.ListExecutionsRequest{Queue: "down", State: succeededState, PageSize: 1000})) == jobs
	})
	if got := state(); got != "0" {
		t.Errorf("the breaker's state is %s", got)
	}
}

// metric is the value of a metric at an address; empty: none.
func metric(t *testing.T, addr, name string) string {
	t.Helper()
	res, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + name + `\{[^}]*\} (\S+)$`).FindSubmatch(body)
	if found == nil {
		return ""
	}
	return string(found[1])
}

// An address inside is refused after its name was resolved, and nothing is counted.
func TestRelayRefusesPrivateAddresses(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	var asked atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	defer receiver.Close()
	s.create(&carillonv1.JobSpec{Id: "inside", Queue: "inside", Schedule: in(0), Retry: &carillonv1.RetryPolicy{MaxAttempts: 1}})
	w := s.relay("inside", strings.Replace(receiver.URL, "127.0.0.1", "localhost", 1))
	await(t, 20*time.Second, "it is refused", func() bool { return strings.Contains(w.log.String(), "is not public") })
	await(t, 20*time.Second, "it waits", func() bool {
		return s.onlyExecution("inside").GetState() == carillonv1.ExecutionState_EXECUTION_STATE_RETRYING
	})
	if asked.Load() {
		t.Error("the receiver was asked")
	}
}

// A request under way hears of a cancel within one heartbeat, and of a second signal at once; then the execution is back,
// uncounted, and a relay that is killed loses it as any worker does.
func TestRelayInterruptsRequests(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	arrived, left := make(chan string, 10), make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.ReadAll(req.Body) // only then the server watches the connection
		arrived <- req.Header.Get("Carillon-Attempt")
		<-req.Context().Done()
		left <- req.Header.Get("Carillon-Job-Id")
	}))
	defer receiver.Close()
	s.create(&carillonv1.JobSpec{Id: "w4", Queue: "w4", Schedule: in(0), Lease: durationpb.New(3 * time.Second)})
	s.relay("w4", receiver.URL, "--allow-private", "--timeout", "1h")
	<-arrived
	id := s.onlyExecution("w4").GetId()
	call(t, s.executions().CancelExecution, &carillonv1.CancelExecutionRequest{Id: id})
	began := time.Now()
	<-left
	if took := time.Since(began); took > time.Second+slack {
		t.Errorf("the request ended after %v; a heartbeat comes each second", took)
	}
	await(t, 10*time.Second, "it is cancelled", func() bool { return s.execution(id).GetState() == cancelledState })

	s.create(&carillonv1.JobSpec{
		Id: "w3", Queue: "w3", Schedule: in(0), Retry: &carillonv1.RetryPolicy{MaxAttempts: 2}, Lease: durationpb.New(2 * time.Second),
	})
	w := s.relay("w3", receiver.URL, "--allow-private", "--timeout", "1h", "--grace", "1h")
	<-arrived
	w.signal(syscall.SIGTERM)
	await(t, 10*time.Second, "it has heard the first signal", func() bool { return strings.Contains(w.log.String(), "stopping:") })
	w.signal(syscall.SIGTERM)
	if code := w.ends(); code != 0 {
		t.Errorf("the relay ended with %d", code)
	}
	if e := s.onlyExecution("w3"); e.GetState() != readyState || e.GetAttempt() != 0 {
		t.Fatalf("after the stop it is %v at attempt %d; want ready, nothing counted", e.GetState(), e.GetAttempt())
	}

	w = s.relay("w3", receiver.URL, "--allow-private", "--timeout", "1h")
	if attempt := <-arrived; attempt != "1" {
		t.Errorf("attempt %s after a release", attempt)
	}
	w.signal(syscall.SIGKILL)
	killed := time.Now()
	second := s.claimOne("second", "w3")
	if away := time.Since(killed); away > 2*time.Second+slack || second.GetAttempt() != 2 {
		t.Errorf("attempt %d was available after %v; the lease is 2 s", second.GetAttempt(), away)
	}
	s.complete(succeeded(second, "second", ""), succeededState)
}
