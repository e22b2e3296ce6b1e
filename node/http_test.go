package node

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Health and metrics are beside the API, which gets every other path as it was sent: "." and ".." are ids, too.
func TestPathsReachTheAPIAsTheyAre(t *testing.T) {
	var got string
	api := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.EscapedPath() })
	h := routes(api, prometheus.NewRegistry(), func() []string { return []string{"it starts"} })
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
