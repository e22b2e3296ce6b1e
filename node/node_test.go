package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// running is a node in this process.
type running struct {
	t    testing.TB
	addr string
	stop func()
}

func runNode(t testing.TB, dir string, change func(*Config)) *running {
	t.Helper()
	cfg := DefaultConfig()
	cfg.DataDir, cfg.Listen, cfg.Shards = dir, "127.0.0.1:0", 4
	cfg.CacheBytes, cfg.MemTableBytes = 8<<20, 4<<20
	cfg.Logger = slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if change != nil {
		change(&cfg)
	}
	_ = os.Remove(filepath.Join(dir, "address"))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	n := &running{t: t, stop: func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("node: %v", err)
		}
		ended <- nil
	}}
	t.Cleanup(n.stop)
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(filepath.Join(dir, "address")); err == nil {
			n.addr = strings.TrimSpace(string(b))
			if code, _ := n.call("GET", "/readyz", nil); code == http.StatusOK {
				return n
			}
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("node ended: %v", err)
		case <-deadline:
			_, why := n.call("GET", "/readyz", nil)
			t.Fatalf("node is not ready: %v", why)
		case <-tick.C:
		}
	}
}

// call makes a REST call and returns the status and the decoded answer.
func (n *running) call(method, path string, body any) (int, map[string]any) {
	n.t.Helper()
	return n.callWithin(method, path, 0, body)
}

// callWithin tells the server how long it has; 0: nothing.
func (n *running) callWithin(method, path string, limit time.Duration, body any) (int, map[string]any) {
	n.t.Helper()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			n.t.Fatal(err)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, "http://"+n.addr+path, in)
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if limit > 0 {
		req.Header.Set("Connect-Timeout-Ms", fmt.Sprint(limit.Milliseconds()))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, map[string]any{"error": err.Error()}
	}
	defer res.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		n.t.Fatalf("%s %s: answer is not JSON: %v", method, path, err)
	}
	return res.StatusCode, out
}

func (n *running) must(method, path string, body any) map[string]any {
	n.t.Helper()
	code, out := n.call(method, path, body)
	if code != http.StatusOK {
		n.t.Fatalf("%s %s: %d %v", method, path, code, out)
	}
	return out
}

// testLog writes a node's log to the test's.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// TestLifeOfOneJob is the first slice: create, fire, claim, complete, history, through REST, raft, Pebble and a restart.
func TestLifeOfOneJob(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := t.TempDir()
	n := runNode(t, dir, nil)
	created := n.must("POST", "/v1/jobs", map[string]any{
		"id": "welcome", "queue": "mail", "schedule": map[string]any{"delay": "0.2s"}, "payload": "aGVsbG8=",
	})
	if created["id"] != "welcome" || created["version"] != "1" {
		t.Fatalf("receipt is %v", created)
	}
	claimed := n.must("POST", "/v1/workers/claim", map[string]any{
		"worker": "w1", "claimId": "c1", "queues": []string{"mail"}, "maxExecutions": 10, "wait": "5s",
	})
	leases, _ := claimed["leases"].([]any)
	if len(leases) != 1 {
		t.Fatalf("claimed %v", claimed)
	}
	lease := leases[0].(map[string]any)
	if lease["payload"] != "aGVsbG8=" || lease["jobId"] != "welcome" {
		t.Fatalf("lease is %v", lease)
	}
	done := n.must("POST", fmt.Sprintf("/v1/executions/%s/complete", lease["executionId"]), map[string]any{
		"leaseToken": lease["leaseToken"], "succeeded": map[string]any{"result": "c2VudA=="},
	})
	if done["state"] != "EXECUTION_STATE_SUCCEEDED" {
		t.Fatalf("completed: %v", done)
	}
	before := n.must("GET", "/v1/jobs/welcome/history", nil)
	n.stop()
	http.DefaultClient.CloseIdleConnections()

	n = runNode(t, dir, nil)
	after := n.must("GET", "/v1/jobs/welcome/history", nil)
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("history before the restart:\n%v\nafter it:\n%v", before, after)
	}
	job := n.must("GET", "/v1/jobs/welcome", nil)
	if job["state"] != "JOB_STATE_EXHAUSTED" {
		t.Errorf("job is %v", job)
	}
	n.stop()
	http.DefaultClient.CloseIdleConnections()
}

// TestSettingsCostWhatTheyChange: a change of one queue's settings is one command a shard, whatever else stands there, and a
// restart proposes none again.
// A database that was removed is not replaced by an empty one, as if there had been no jobs.
func TestLostShardsAreNoFirstStart(t *testing.T) {
	dir := t.TempDir()
	runNode(t, dir, nil).stop()
	if err := os.RemoveAll(filepath.Join(dir, pebbleDir)); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.DataDir, cfg.Listen, cfg.Logger = dir, "127.0.0.1:0", slog.New(slog.DiscardHandler)
	for range 2 { // nor by the second try
		if err := Run(t.Context(), cfg); !errors.Is(err, ErrShardsLost) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestSettingsCostWhatTheyChange(t *testing.T) {
	dir := t.TempDir()
	n := runNode(t, dir, nil)
	const queues = 20
	for i := range queues {
		n.must("POST", "/v1/queues", map[string]any{"name": fmt.Sprintf("q%d", i)})
	}
	before := n.metric("carillon_raft_commands_total")
	n.must("PATCH", "/v1/queues/q7", map[string]any{"paused": true})
	if got := n.metric("carillon_raft_commands_total") - before; got > 8 {
		t.Errorf("a change of one queue took %v commands on 4 shards", got)
	}
	n.stop()
	http.DefaultClient.CloseIdleConnections()
	n = runNode(t, dir, nil)
	if got := n.metric("carillon_raft_commands_total"); got > 8 {
		t.Errorf("the restart proposed %v commands on 4 shards", got)
	}
	if q := n.must("GET", "/v1/queues/q7", nil); q["paused"] != true {
		t.Errorf("queue is %v", q)
	}
}

// TestDeleteTenant: unknown ones are not found, one is deleted once, and repeating it is no new deletion.
func TestDeleteTenant(t *testing.T) {
	n := runNode(t, t.TempDir(), nil)
	if code, out := n.call("DELETE", "/v1/tenants/nobody", nil); code != http.StatusNotFound {
		t.Fatalf("delete of an unknown tenant: %d %v", code, out)
	}
	n.must("POST", "/v1/jobs", map[string]any{"id": "a", "tenant": "acme", "schedule": map[string]any{"delay": "3600s"}})
	n.must("DELETE", "/v1/tenants/acme", nil) // without settings of its own, but with a job
	if code, _ := n.call("GET", "/v1/jobs/a?tenant=acme", nil); code != http.StatusNotFound {
		if _, job := n.call("GET", "/v1/jobs/a?tenant=acme", nil); job["state"] != "JOB_STATE_DELETED" {
			t.Errorf("the job stands: %v", job)
		}
	}
	if code, out := n.call("DELETE", "/v1/tenants/acme", nil); code != http.StatusNotFound {
		t.Errorf("delete of a deleted tenant: %d %v", code, out)
	}
}

// metric reads one metric without labels.
func (n *running) metric(name string) float64 {
	n.t.Helper()
	res, err := http.Get("http://" + n.addr + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return v
		}
	}
	n.t.Fatalf("no metric %s", name)
	return 0
}
