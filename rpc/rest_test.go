package rpc

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// answer is a REST answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request over HTTP/1.1. body is JSON unless a header says otherwise ("Name: value"); an empty one is none.
func (a *api) do(method, path, body string, headers ...string) answer {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// json decodes an answer that must be 200.
func (a *api) json(ans answer) map[string]any {
	a.t.Helper()
	if ans.status != http.StatusOK {
		a.t.Fatalf("got %d: %s", ans.status, ans.body)
	}
	m := map[string]any{}
	if err := json.Unmarshal([]byte(ans.body), &m); err != nil {
		a.t.Fatalf("%v in %s", err, ans.body)
	}
	return m
}

// want checks status and, for each text, that the body contains it.
func (a *api) want(ans answer, status int, texts ...string) {
	a.t.Helper()
	if ans.status != status {
		a.t.Errorf("got %d, want %d: %s", ans.status, status, ans.body)
	}
	for _, text := range texts {
		if !strings.Contains(ans.body, text) {
			a.t.Errorf("%q is not in the answer: %s", text, ans.body)
		}
	}
}

// The same life through REST, with nothing but JSON.
func TestRESTServesALife(t *testing.T) {
	b := newFakeBackend(4)
	a := newAPI(t, b, Options{})
	receipt := a.json(a.do("POST", "/v1/jobs", `{"queue":"q","schedule":{"delay":"1.5s"},"payload":"aGk=","labels":{"k":"v"}}`,
		"Idempotency-Key: key 1"))
	id := receipt["id"].(string)
	if receipt["createTime"] != "2026-01-01T00:00:00Z" || receipt["nextTime"] != "2026-01-01T00:00:01.500Z" {
		t.Errorf("times are not RFC 3339: %v", receipt)
	}
	again := a.json(a.do("POST", "/v1/jobs?idempotency_key=key+1", `{"queue":"q","schedule":{"delay":"1.5s"},"payload":"aGk=","labels":{"k":"v"}}`))
	if fmt.Sprint(again) != fmt.Sprint(receipt) {
		t.Errorf("the retry got %v, not %v", again, receipt)
	}
	job := a.json(a.do("GET", "/v1/jobs/"+id, ""))
	if job["id"] != id || job["payload"] != "aGk=" || job["state"] != "JOB_STATE_ACTIVE" {
		t.Errorf("the answer is not the job itself: %v", job)
	}
	job = a.json(a.do("PATCH", "/v1/jobs/"+id+"?expected_version=1", `{"priority":9}`))
	if job["version"] != "2" || job["priority"] != 9.0 {
		t.Errorf("patched: %v", job)
	}
	a.json(a.do("POST", "/v1/jobs/"+id+"/pause", ""))
	a.json(a.do("POST", "/v1/jobs/"+id+"/resume", `{}`))
	b.pass(1500)
	claimed := a.json(a.do("POST", "/v1/workers/claim", `{"worker":"w","queues":["q"],"lease":"10s"}`))
	lease := claimed["leases"].([]any)[0].(map[string]any)
	execution, token := lease["executionId"].(string), lease["leaseToken"].(string)
	beat := a.json(a.do("POST", "/v1/executions/"+execution+"/heartbeat", fmt.Sprintf(`{"leaseToken":%q,"extend":"60s"}`, token)))
	if beat["status"] != "HEARTBEAT_STATUS_OK" {
		t.Errorf("heartbeat: %v", beat)
	}
	complete := fmt.Sprintf(`{"lease_token":%q,"succeeded":{"result":"b2s="}}`, token)
	done := a.json(a.do("POST", "/v1/executions/"+execution+"/complete", complete))
	if done["state"] != "EXECUTION_STATE_SUCCEEDED" {
		t.Errorf("completed: %v", done)
	}
	history := a.json(a.do("GET", "/v1/jobs/"+id+"/history?page_size=10", ""))
	if len(history["executions"].([]any)) != 1 {
		t.Errorf("history: %v", history)
	}
	list := a.json(a.do("GET", "/v1/jobs?label=k%3Dv&label=k&pageSize=5&state=JOB_STATE_EXHAUSTED", ""))
	if len(list["jobs"].([]any)) != 1 {
		t.Errorf("list: %v", list)
	}
	deleted := a.json(a.do("DELETE", "/v1/jobs/"+id+"?expected_version=4", "", "Idempotency-Key: d"))
	if deleted["state"] != "JOB_STATE_DELETED" {
		t.Errorf("deleted: %v", deleted)
	}
	a.want(a.do("GET", "/v1/jobs/"+id, ""), 404, `"code":"not_found"`)
	// Ids may hold what has a meaning in URLs.
	a.json(a.do("POST", "/v1/jobs", `{"id":"a:b+c{d}","schedule":{"delay":"1s"}}`))
	if got := a.json(a.do("GET", "/v1/jobs/a%3Ab+c%7Bd%7D", "")); got["id"] != "a:b+c{d}" {
		t.Errorf("got %v", got)
	}
}

// The whole table of what REST refuses, and how.
func TestRESTRefusals(t *testing.T) {
	a := newAPI(t, newFakeBackend(2), Options{})
	job := func(fields string) string { return `{"schedule":{"delay":"1s"},` + fields + `}` }
	for _, c := range []struct {
		name, method, path, body, header string
		status                           int
		texts                            []string
	}{
		{"unknown path", "GET", "/v1/nothing", "", "", 404, []string{`"not_found"`}},
		{"root", "GET", "/", "", "", 404, []string{`"not_found"`, "no such path: /; the API is below /v1, such as GET /v1/jobs"}},
		{"no version", "POST", "/jobs", "{}", "", 404, []string{`"not_found"`, "no such path: /jobs; did you mean /v1/jobs?"}},
		{"no version, wrong verb", "PUT", "/jobs/a", "{}", "", 404, []string{"did you mean /v1/jobs/a?"}},
		{"unknown procedure", "POST", "/carillon.v1.JobService/Create", "{}", "", 404,
			[]string{`"unimplemented"`, "no such procedure: /carillon.v1.JobService/Create"}},
		{"path with dots", "GET", "/../jobs", "", "", 404, []string{`"not_found"`}},
		{"trailing slash", "GET", "/v1/jobs/", "", "", 400, []string{`"field":"id"`}},
		{"wrong verb", "PUT", "/v1/jobs", "", "", 405, []string{"GET", "POST"}},
		{"form", "POST", "/v1/jobs", "a=b", "Content-Type: application/x-www-form-urlencoded", 415, []string{"application/json"}},
		{"no content type", "POST", "/v1/jobs", "{}", "Content-Type: ", 415, nil},
		{"other charset", "POST", "/v1/jobs", "{}", "Content-Type: application/json; charset=latin1", 415, nil},
		{"compressed", "POST", "/v1/jobs", "{}", "Content-Encoding: gzip", 415, nil},
		{"no JSON", "POST", "/v1/jobs", "hello", "", 400, []string{"cannot be read"}},
		{"two documents", "POST", "/v1/jobs", `{} {}`, "", 400, []string{"cannot be read"}},
		{"unknown field", "POST", "/v1/jobs", job(`"colour":"red"`), "", 400, []string{`"field":"job.colour"`, "unknown field; known here: id, tenant, queue"}},
		{"unknown nested field", "POST", "/v1/jobs", job(`"retry":{"often":true}`), "", 400, []string{"often"}},
		{"field given twice", "POST", "/v1/jobs", job(`"queue":"a","queue":"b"`), "", 400, []string{"queue"}},
		{"two schedules", "POST", "/v1/jobs", `{"schedule":{"delay":"1s","at":"2026-01-01T00:00:00Z"}}`, "", 400, []string{"when"}},
		{"wrong type", "POST", "/v1/jobs", job(`"queue":7`), "", 400, []string{`"field":"job.queue"`}},
		{"no instant", "POST", "/v1/jobs", `{"schedule":{"at":"tomorrow"}}`, "", 400, []string{"tomorrow"}},
		{"year 1", "POST", "/v1/jobs", `{"schedule":{"at":"0001-01-01T00:00:00Z"}}`, "", 400, []string{`"field":"job.schedule.at"`}},
		{"year 9999", "POST", "/v1/jobs", `{"schedule":{"at":"9999-12-31T23:59:59Z"}}`, "", 400, []string{`"field":"job.schedule.at"`}},
		{"year 10000", "POST", "/v1/jobs", `{"schedule":{"at":"10000-01-01T00:00:00Z"}}`, "", 400, []string{"RFC 3339"}},
		{"negative delay", "POST", "/v1/jobs", `{"schedule":{"delay":"-0.000000001s"}}`, "", 400, []string{`"field":"job.schedule.delay"`}},
		{"endless delay", "POST", "/v1/jobs", `{"schedule":{"delay":"315576000000s"}}`, "", 400, []string{`"field":"job.schedule.delay"`}},
		{"no schedule", "POST", "/v1/jobs", `{}`, "", 400, []string{`"field":"job.schedule"`}},
		{"empty body", "POST", "/v1/jobs", ``, "", 400, []string{`"field":"job"`}},
		{"end before start", "POST", "/v1/jobs", `{"schedule":{"every":{"interval":"60s","start":"2027-01-01T00:00:00Z","end":"2026-01-01T00:00:00Z"}}}`,
			"", 400, []string{`"field":"job.schedule.every.end"`}},
		{"not base64", "POST", "/v1/jobs", job(`"payload":"?"`), "", 400, []string{`"field":"job.payload"`}},
		{"invalid UTF-8", "POST", "/v1/jobs", job("\"labels\":{\"k\":\"\xff\"}"), "", 400, []string{`"field":"job.labels"`, "UTF-8"}},
		{"invalid UTF-8 in a list", "POST", "/v1/workers/claim", "{\"queues\":[\"a\",\"\xff\"]}", "", 400, []string{`"field":"queues[1]"`}},
		{"half a pair", "POST", "/v1/jobs", job(`"labels":{"k":"a\ud800"}`), "", 400,
			[]string{`"field":"job.labels.k"`, `has \\ud800, half of a surrogate pair`}},
		{"half a pair at the end", "POST", "/v1/jobs:batchCreate", `{"items":[{},{"job":{"id":"\ud800"}}]}`, "", 400,
			[]string{`"field":"items[1].job.id"`, `has \\ud800`}},
		{"invalid UTF-8 inside", "POST", "/v1/jobs:batchCreate", "{\"items\":[{\"job\":{\"id\":\"\xc3\"}}]}", "", 400,
			[]string{`"field":"items[0].job.id"`}},
		{"NUL in an id", "POST", "/v1/jobs", job(`"id":"a\u0000b"`), "", 400, []string{`"field":"job.id"`}},
		{"NUL in a header", "POST", "/v1/jobs", job(`"headers":{"k":"\u0000"}`), "", 400, []string{`"field":"job.headers[k]"`}},
		{"two faults", "POST", "/v1/jobs", job(`"id":"~","queue":"~"`), "", 400, []string{`"job.id"`, `"job.queue"`, "and 1 more"}},
		{"two keys", "POST", "/v1/jobs?idempotency_key=a", job(`"queue":"q"`), "Idempotency-Key: b", 400, []string{`"field":"idempotency_key"`}},
		{"unknown query", "GET", "/v1/jobs?colour=red", "", "", 400, []string{`"field":"colour"`}},
		{"query that is no text", "GET", "/v1/jobs?%ff=red", "", "", 400, []string{"\"field\":\"\ufffd\"", "is not a query parameter"}},
		{"query twice", "GET", "/v1/jobs?tenant=a&tenant=b", "", "", 400, []string{`"field":"tenant"`}},
		{"query no number", "GET", "/v1/jobs?page_size=x", "", "", 400, []string{`"field":"page_size"`}},
		{"query no count", "GET", "/v1/cluster?top_tenants=-1", "", "", 400, []string{`"field":"top_tenants"`}},
		{"query too large a count", "GET", "/v1/cluster?topTenants=101", "", "", 400, []string{`"field":"top_tenants"`}},
		{"query no bool", "GET", "/v1/jobs?stale=1", "", "", 400, []string{`"field":"stale"`}},
		{"query no state", "GET", "/v1/jobs?state=BUSY", "", "", 400, []string{`"field":"state"`, "JOB_STATE_ACTIVE"}},
		{"malformed query", "GET", "/v1/jobs?a=%zz", "", "", 400, []string{"query"}},
		{"malformed page token", "GET", "/v1/jobs?page_token=x", "", "", 400, []string{`"field":"page_token"`}},
		{"body where none belongs", "DELETE", "/v1/jobs/j", "{}", "", 400, []string{"takes no body"}},
		{"query where all is in the body", "POST", "/v1/workers/claim?worker=w", "{}", "", 400, []string{`"field":"worker"`}},
		{"other id in the body", "POST", "/v1/jobs/a/pause", `{"id":"b"}`, "", 400, []string{`"field":"id"`}},
		{"bad id in the path", "GET", "/v1/jobs/a%00b", "", "", 400, []string{`"field":"id"`}},
		{"bad token", "POST", "/v1/executions/" + someExecution + "/complete", `{"leaseToken":"x","released":{}}`, "", 400, []string{`"field":"lease_token"`}},
		{"no outcome", "POST", "/v1/executions/" + someExecution + "/complete", `{"leaseToken":"` + leaseToken{1, 1}.String() + `"}`, "", 400,
			[]string{`"field":"outcome"`}},
		{"nothing to change", "PATCH", "/v1/jobs/j", `{}`, "", 400, []string{`"field":"job"`}},
		{"unknown field to change", "PATCH", "/v1/jobs/j?update_mask=colour", `{}`, "", 400, []string{`"field":"update_mask"`}},
		{"state that cannot be set", "PATCH", "/v1/jobs/j", `{"state":"JOB_STATE_DELETED"}`, "", 400, []string{`"field":"job.state"`}},
		{"queue reset", "PATCH", "/v1/jobs/j?update_mask=queue", `{}`, "", 400, []string{`"field":"job.queue"`}},
		{"ids and filter", "POST", "/v1/dead-letters/purge", `{"executionIds":["` + someExecution + `"],"filter":{}}`, "", 400, []string{`"field":"filter"`}},
		{"neither ids nor filter", "POST", "/v1/dead-letters/purge", `{}`, "", 400, []string{`"field":"filter"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var headers []string
			if c.header != "" {
				headers = append(headers, c.header)
			}
			inner := &api{t: t, url: a.url, client: a.client}
			ans := inner.do(c.method, c.path, c.body, headers...)
			inner.want(ans, c.status, c.texts...)
			if got := ans.header.Get("Content-Type"); got != "application/json" {
				t.Errorf("the error's content type is %q", got)
			}
		})
	}
	a.json(a.do("GET", "/v1/cluster?top_tenants=100", ""))
}

// Whatever bytes come as a body, the answer is JSON with a sensible status, and nothing panics.
func FuzzRESTBody(f *testing.F) {
	for _, body := range []string{`{"schedule":{"delay":"1s"}}`, `{"items":[{}]}`, `{"worker":"w","queues":["q"]}`, "{\"id\":\"\xff\"}", `{`, `null`, `[]`} {
		for path := range 4 {
			f.Add(body, byte(path))
		}
	}
	b := newFakeBackend(2)
	metrics := &recorder{}
	h, err := NewHandler(b, Options{Logger: slog.New(slog.DiscardHandler), Metrics: metrics})
	if err != nil {
		f.Fatal(err)
	}
	paths := []string{"/v1/jobs", "/v1/jobs:batchCreate", "/v1/workers/claim", "/v1/executions/" + someExecution + "/complete"}
	f.Fuzz(func(t *testing.T, body string, path byte) {
		r := httptest.NewRequest("POST", paths[int(path)%len(paths)], strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if !json.Valid(w.Body.Bytes()) || w.Code >= 500 {
			t.Errorf("%d %s for %q", w.Code, w.Body, body)
		}
	})
}
