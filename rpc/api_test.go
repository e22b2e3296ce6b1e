package rpc

import (
	"fmt"
	"os"
	"strings"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Every call of the proto is served, has a REST route, and stands in docs/api.md with it.
func TestEveryCallIsServedAndDocumented(t *testing.T) {
	s := newTestServer(t, newFakeBackend(1))
	docs, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	routes := map[string]*route{}
	for _, rt := range s.rest.routes {
		routes[rt.method.procedure] = rt
	}
	calls := 0
	for _, file := range apiFiles() {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for k := range service.Methods().Len() {
				calls++
				name := service.Methods().Get(k).Name()
				procedure := fmt.Sprintf("/%s/%s", service.FullName(), name)
				if s.procedures[procedure] == nil || routes[procedure] == nil {
					t.Errorf("%s is not served", procedure)
					continue
				}
				line := fmt.Sprintf("| %s | `%s %s` |", name, routes[procedure].verb, routes[procedure].pattern)
				if !strings.Contains(string(docs), line) {
					t.Errorf("docs/api.md has no line %q", line)
				}
			}
		}
	}
	if calls != len(s.procedures) {
		t.Errorf("%d calls in the proto, %d served", calls, len(s.procedures))
	}
}

// The routes that the product promises, word for word.
func TestPromisedRoutes(t *testing.T) {
	s := newTestServer(t, newFakeBackend(1))
	for want, procedure := range map[string]string{
		"POST /v1/jobs":                      "CreateJob",
		"GET /v1/jobs/{id}":                  "GetJob",
		"PATCH /v1/jobs/{id}":                "UpdateJob",
		"DELETE /v1/jobs/{id}":               "DeleteJob",
		"POST /v1/jobs/{id}/backfill":        "BackfillJob",
		"POST /v1/jobs/{id}/backfill/cancel": "CancelBackfill",
		"PUT /v1/jobs/{id}":                  "PutJob",
		"GET /v1/jobs/{id}/history":          "GetJobHistory",
		"GET /v1/jobs/{id}/occurrences":      "ListOccurrences",
		"POST /v1/workers/claim":             "Claim",
		"POST /v1/executions/{id}/heartbeat": "HeartbeatExecution",
		"POST /v1/executions/{id}/complete":  "CompleteExecution",
	} {
		verb, path, _ := strings.Cut(want, " ")
		rt, _, _ := matchRoute(s.rest.routes, verb, strings.ReplaceAll(path, "{id}", "x"))
		if rt == nil || rt.pattern != path || !strings.HasSuffix(rt.method.procedure, "/"+procedure) {
			t.Errorf("%s is %v", want, rt)
		}
	}
}

// Records and API number their states, kinds, outcomes and rules alike, as the translation takes for granted.
func TestEnumsAgree(t *testing.T) {
	for name, pair := range map[string][2]map[int32]string{
		"state":    {storagev1.ExecutionState_name, carillonv1.ExecutionState_name},
		"kind":     {storagev1.ExecutionKind_name, carillonv1.ExecutionKind_name},
		"outcome":  {storagev1.Outcome_name, carillonv1.Outcome_name},
		"catch-up": {storagev1.CatchUp_name, carillonv1.CatchUp_name},
		"overlap":  {storagev1.Overlap_name, carillonv1.Overlap_name},
	} {
		if fmt.Sprint(pair[0]) != fmt.Sprint(pair[1]) {
			t.Errorf("%s: records have %v, the API has %v", name, pair[0], pair[1])
		}
	}
	for number := range storagev1.JobState_name {
		if _, ok := jobStates[storagev1.JobState(number)]; !ok && number != 0 {
			t.Errorf("job state %d is not translated", number)
		}
	}
}
