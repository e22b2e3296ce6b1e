package node

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Health and metrics are beside the API, which gets every other path as it was sent: "." and ".." are ids, too.
func TestPathsReachTheAPIAsTheyAre(t *testing.T) {
	var got string
	api := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.EscapedPath() })
	h := routes(api, prometheus.NewRegistry(), func() []string { return []string{"it starts"} }, "")
	ask := func(method, path string) int {
		w := httptest.NewRecorder()
		got = "nothing"
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w.Code
	}
	for _, path := range []string{"/v1/jobs/.", "/v1/jobs/..", "/v1/jobs/%2e%2E", "/v1/jobs/../pause", "/v1//jobs", "/healthz/", "/"} {
		if code := ask(http.MethodGet, path); code != http.StatusOK || got != path {
			t.Errorf("%s: %d, the API got %s", path, code, got)
		}
	}
	if ask(http.MethodPost, "/healthz"); got != "/healthz" {
		t.Errorf("a POST is no health check, but the API got %s", got)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200} {
		if code := ask(http.MethodGet, path); code != want || got != "nothing" {
			t.Errorf("%s: %d, want %d; the API got %s", path, code, want, got)
		}
	}
}

// Before the node can serve, the port answers: alive, not ready and why, and calls may be repeated.
func TestAStartingNodeSaysWhatItWaitsFor(t *testing.T) {
	front := &web{}
	ask := func(path string) (int, string) {
		w := httptest.NewRecorder()
		front.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if code, _ := ask("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	front.waitFor("n3 at c:1 does not answer")
	for _, path := range []string{"/readyz", "/v1/jobs", "/metrics"} {
		if code, body := ask(path); code != http.StatusServiceUnavailable || !strings.Contains(body, "n3 at c:1 does not answer") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	front.open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	if code, _ := ask("/v1/jobs"); code != http.StatusTeapot {
		t.Errorf("once it serves: %d", code)
	}
}
