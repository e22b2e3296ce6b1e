package node

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var march = time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)

func runVirtual(t *testing.T, dir string, at time.Time) *running {
	t.Helper()
	return runNode(t, dir, func(c *Config) { c.VirtualClock = at })
}

// advance goes by d and returns the answer, which must be that it is done.
func (n *running) advance(d time.Duration) map[string]any {
	n.t.Helper()
	res := n.must("POST", "/v1/clock/advance", map[string]any{"by": fmt.Sprintf("%ds", int64(d.Seconds()))})
	if res["done"] != true {
		n.t.Fatalf("advance by %v: %v", d, res)
	}
	return res
}

// stands is where the clock stands.
func (n *running) stands() string {
	n.t.Helper()
	return n.must("GET", "/v1/clock", nil)["clock"].(map[string]any)["time"].(string)
}

func TestVirtualClockAcrossRestarts(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := t.TempDir()
	n := runVirtual(t, dir, march)
	if got := n.stands(); got != "2026-03-08T00:00:00Z" {
		t.Fatalf("it begins at %s", got)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if res := n.must("GET", path, nil); res["note"] != "the clock is virtual: nothing falls due by itself" {
			t.Errorf("%s says %v", path, res)
		}
	}
	// Nothing is due on the way: the log remembers the time all the same.
	n.advance(36 * time.Hour)
	n.stop()
	http.DefaultClient.CloseIdleConnections()
	n = runVirtual(t, dir, march)
	if got := n.stands(); got != "2026-03-09T12:00:00Z" {
		t.Errorf("after a restart it stands at %s", got)
	}
	code, res := n.call("POST", "/v1/clock/advance", map[string]any{"to": "2026-03-09T11:59:59Z"})
	if code != http.StatusPreconditionFailed {
		t.Errorf("set back: %d %v", code, res)
	}
	n.must("POST", "/v1/clock/advance", map[string]any{"to": "2026-03-09T12:00:00Z"})
	n.stop()
	http.DefaultClient.CloseIdleConnections()
	n = runVirtual(t, dir, march.AddDate(1, 0, 0))
	if got := n.stands(); got != "2027-03-08T00:00:00Z" {
		t.Errorf("started a year later it stands at %s", got)
	}
	n.stop()
	http.DefaultClient.CloseIdleConnections()
}

func TestOnlyAVirtualClockIsAdvanced(t *testing.T) {
	n := runNode(t, t.TempDir(), nil)
	code, res := n.call("POST", "/v1/clock/advance", map[string]any{"by": "1s"})
	if code != http.StatusPreconditionFailed || res["message"] !=
		"this server keeps its machine's time; only one that was started with --virtual-clock can be advanced" {
		t.Errorf("%d %v", code, res)
	}
	if res := n.must("GET", "/readyz", nil); res["note"] != nil {
		t.Errorf("/readyz says %v", res)
	}
	clock := n.must("GET", "/v1/clock", nil)["clock"].(map[string]any)
	if clock["virtual"] == true || clock["nextDueTime"] != nil {
		t.Errorf("the clock is %v", clock)
	}
}

// What is due on the way fires, what is due after it waits; retention goes by the clock too.
func TestAdvanceClockFiresAndForgets(t *testing.T) {
	n := runVirtual(t, t.TempDir(), march)
	n.must("POST", "/v1/jobs", map[string]any{"id": "first", "schedule": map[string]any{"delay": "3600s"}, "retention": "7200s"})
	n.must("POST", "/v1/jobs", map[string]any{"id": "second", "schedule": map[string]any{"delay": "3601s"}})
	if res := n.advance(time.Hour); res["fired"] != "1" || res["clock"].(map[string]any)["nextDueTime"] != "2026-03-08T01:00:01Z" {
		t.Fatalf("answered %v", res)
	}
	claimed := n.must("POST", "/v1/workers/claim", map[string]any{
		"worker": "w1", "claimId": "c1", "queues": []string{"default"}, "maxExecutions": 10, "lease": "3600s",
	})
	leases, _ := claimed["leases"].([]any)
	if len(leases) != 1 {
		t.Fatalf("claimed %v", claimed)
	}
	lease := leases[0].(map[string]any)
	if lease["jobId"] != "first" || lease["nominalTime"] != "2026-03-08T01:00:00Z" {
		t.Errorf("claimed %v", lease)
	}
	n.must("POST", fmt.Sprintf("/v1/executions/%s/complete", lease["executionId"]), map[string]any{
		"leaseToken": lease["leaseToken"], "succeeded": map[string]any{},
	})
	n.advance(time.Hour)
	if code, res := n.call("GET", "/v1/jobs/first", nil); code != http.StatusOK {
		t.Errorf("within its retention the job is gone: %d %v", code, res)
	}
	n.advance(2 * time.Hour)
	if code, res := n.call("GET", "/v1/jobs/first", nil); code != http.StatusNotFound {
		t.Errorf("after its retention the job stands: %d %v", code, res)
	}
}

// A call that has little time says how far it has come.
func TestAdvanceClockReturnsBeforeItsDeadline(t *testing.T) {
	n := runVirtual(t, t.TempDir(), march)
	n.must("POST", "/v1/jobs", map[string]any{"id": "often", "schedule": map[string]any{"every": map[string]any{"interval": "1s"}}})
	req := map[string]any{"to": "2026-03-08T01:00:00Z"}
	fired, calls := 0, 0
	for done := false; !done; calls++ {
		code, res := n.callWithin("POST", "/carillon.v1.ClusterService/AdvanceClock", 200*time.Millisecond, req)
		if code != http.StatusOK {
			t.Fatalf("%d %v", code, res)
		}
		var some int
		if _, err := fmt.Sscan(fmt.Sprint(res["fired"]), &some); err == nil {
			fired += some
		}
		done = res["done"] == true
		if at := res["clock"].(map[string]any)["time"].(string); res["goal"] != req["to"] || done != (at == req["to"]) {
			t.Fatalf("answered %v", res)
		}
	}
	if fired != 3600 || calls < 2 {
		t.Errorf("%d fired with %d calls; want %d", fired, calls, 3600)
	}
}
