package rpc

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

const oneJob = `{"schedule":{"delay":"1s"}}`

// zip compresses text as a body is.
func zip(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A caller that announces much and then falls silent gives its room back, through each way in.
func TestSilentCallersKeepNoRoom(t *testing.T) {
	s := newTestServer(t, newFakeBackend(1))
	s.maxSilence = 20 * time.Millisecond
	srv := httptest.NewServer(s)
	defer srv.Close()
	for _, path := range []string{"/v1/jobs:batchCreate", carillonv1connect.JobServiceBatchCreateJobsProcedure} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", path, maxBatchBytes)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != 503 || !strings.Contains(string(body), "nothing of the message arrived") {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	srv.Close() // waits for the handlers
	if left := s.inflight.Load(); left != 0 {
		t.Errorf("%d bytes left behind", left)
	}
}

// A message that was watched while it arrived may wait as long as it likes afterwards.
func TestCallsAreNotHurriedOnceTheirMessageIsThere(t *testing.T) {
	b := newFakeBackend(1)
	s := newTestServer(t, b)
	s.maxSilence = 30 * time.Millisecond
	srv := httptest.NewServer(s)
	defer srv.Close()
	b.onPoll = func(PollRequest) {
		waited := make(chan struct{})
		time.AfterFunc(4*s.maxSilence, func() { close(waited) })
		<-waited
	}
	body := `{"worker":"w","queues":["q"]` + strings.Repeat(" ", 2*quietBytes) + `}`
	res, err := http.Post(srv.URL+"/v1/workers/claim", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		text, _ := io.ReadAll(res.Body)
		t.Errorf("%d %s", res.StatusCode, text)
	}
}

// A caller that does not read its answer does not keep it, nor the leases in it.
func TestAnswersThatAreNotTakenAreGivenUp(t *testing.T) {
	b := newFakeBackend(1)
	s := newTestServer(t, b)
	s.maxDelivery = 50 * time.Millisecond
	const jobs = 100 // of a quarter of a megabyte: more than sockets hold
	for i := range jobs {
		_, err := s.createJob(t.Context(), &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{
			Id: fmt.Sprint(i), Schedule: in(0), Payload: make([]byte, DefaultMaxPayloadBytes),
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	b.pass(1)
	srv := httptest.NewServer(s)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const claim = `{"worker":"w","queues":["default"],"max_executions":1000}`
	fmt.Fprintf(conn, "POST /v1/workers/claim HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(claim), claim)
	if _, err := conn.Read(make([]byte, 1)); err != nil { // its answer is on the way
		t.Fatal(err)
	}
	srv.Close() // waits for the handlers, but not for this caller
	if len(b.released) != jobs {
		t.Errorf("%d of %d leases released", len(b.released), jobs)
	}
}

// What is not announced counts as it arrives, and what is compressed as what it may become, until that is known.
func TestRoomIsTakenForWhatIsNotAnnounced(t *testing.T) {
	b := newFakeBackend(1)
	s := newTestServer(t, b)
	post := func(path string, body io.Reader, encoding string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest("POST", path, body), httptest.NewRecorder()
		r.Header.Set("Content-Type", "application/json")
		if encoding != "" {
			r.Header.Set("Content-Encoding", encoding)
		}
		s.ServeHTTP(w, r)
		return w
	}
	unannounced := func(text string) io.Reader { return io.MultiReader(strings.NewReader(text)) }
	const create = carillonv1connect.JobServiceCreateJobProcedure
	job := `{"job":` + oneJob + `}`
	s.inflight.Store(maxInflightBytes - 5)
	for _, w := range []*httptest.ResponseRecorder{
		post("/v1/jobs", unannounced(oneJob), ""), post(create, unannounced(job), ""),
		post(create, bytes.NewReader(zip(t, []byte(job))[:4]), "gzip"),
	} {
		if w.Code != 429 || !strings.Contains(w.Body.String(), "resource_exhausted") {
			t.Errorf("without room: %d %s", w.Code, w.Body)
		}
	}
	s.inflight.Store(0)
	var waiting int64
	b.onPoll = func(PollRequest) { waiting = s.inflight.Load() }
	body := zip(t, []byte(`{"worker":"w","queues":["q"]}`))
	for _, w := range []*httptest.ResponseRecorder{
		post("/v1/jobs", unannounced(oneJob), ""), post(create, unannounced(job), ""),
		post(carillonv1connect.WorkerServiceClaimProcedure, bytes.NewReader(body), "gzip"),
	} {
		if w.Code != 200 {
			t.Errorf("with room: %d %s", w.Code, w.Body)
		}
	}
	if waiting != int64(len(body)) || s.inflight.Load() != 0 {
		t.Errorf("a claim of %d bytes takes room for %d while it waits; %d left behind", len(body), waiting, s.inflight.Load())
	}
}

// Messages of many empty messages would fill the memory many times over before their items are counted.
func TestPartsAreBounded(t *testing.T) {
	s := newTestServer(t, newFakeBackend(1))
	post := func(path, kind, encoding string, body []byte) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest("POST", path, bytes.NewReader(body)), httptest.NewRecorder()
		r.Header.Set("Content-Type", kind)
		if encoding != "" {
			r.Header.Set("Content-Encoding", encoding)
		}
		s.ServeHTTP(w, r)
		return w
	}
	const procedure = carillonv1connect.JobServiceBatchCreateJobsProcedure
	items := bytes.Repeat([]byte{1<<3 | 2, 0}, maxParts+1)
	objects := []byte(`{"items":[` + strings.Repeat("{},", maxParts) + "{}]}")
	for name, w := range map[string]*httptest.ResponseRecorder{
		"binary":  post(procedure, "application/proto", "", items),
		"gzip":    post(procedure, "application/proto", "gzip", zip(t, items)),
		"json":    post(procedure, "application/json", "", objects),
		"rest":    post("/v1/jobs:batchCreate", "application/json", "", objects),
		"quoting": post("/v1/jobs:batchCreate", "application/json", "", append([]byte(`{"request_id":"\\\"",`), objects[1:]...)),
	} {
		if w.Code != 400 || !strings.Contains(w.Body.String(), "more than 200000 messages") {
			t.Errorf("%s: %d %.200s", name, w.Code, w.Body)
		}
	}
	// Braces in strings are no messages, and below the bound it is the field's own limit that is named.
	for name, body := range map[string]string{
		"in a string": `{"items":[{"job":{"schedule":{"delay":"1s"},"payload_ref":"` + strings.Repeat("{", maxParts+1) + `"}}]}`,
		"few":         `{"items":[` + strings.Repeat("{},", maxBatchItems) + "{}]}",
	} {
		if w := post("/v1/jobs:batchCreate", "application/json", "", []byte(body)); strings.Contains(w.Body.String(), "messages") {
			t.Errorf("%s: %d %.200s", name, w.Code, w.Body)
		}
	}
}

// A batch whose caller has gone is not worked through to its end.
func TestGoneCallersProposeNoMore(t *testing.T) {
	s := newTestServer(t, newFakeBackend(1))
	ctx, cancel := context.WithCancel(t.Context())
	all := make([]*chunk, 3*maxProposalsPerShard)
	for i := range all {
		all[i] = &chunk{shard: 1, items: []int{i}}
	}
	proposed := 0
	failed := map[int]error{}
	s.proposeChunks(ctx, all, func(*chunk) *storagev1.Command {
		if proposed++; proposed == maxProposalsPerShard {
			cancel()
		}
		return &storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{}}}}
	}, func(i int, _ fsm.Item, err error) { failed[i] = err })
	if proposed != maxProposalsPerShard || len(failed) != len(all) || failed[len(all)-1] != context.Canceled {
		t.Errorf("%d chunks proposed, %d answered, the last with %v", proposed, len(failed), failed[len(all)-1])
	}
}

// Who sends a message that is too large, and looks for the answer when all of it is sent, finds it, up to a bound.
func TestTooLargeMessagesGetTheirAnswer(t *testing.T) {
	s := newTestServer(t, newFakeBackend(1))
	srv := httptest.NewServer(s)
	defer srv.Close()
	const chunk = 1 << 20
	blank := bytes.Repeat([]byte(" "), chunk)
	for _, c := range []struct {
		path    string
		chunks  int
		chunked bool
		status  int
	}{
		{"/v1/jobs", 2, false, 413},
		{"/v1/jobs", 8, false, 413},
		{"/v1/jobs", 8, true, 413},
		{"/v1/jobs:batchCreate", 33, false, 413},
		{"/v1/jobs:batchCreate", 33, true, 413},
		{"/v1/jobs", maxDrainBytes / chunk, false, 413},
		{carillonv1connect.JobServiceCreateJobProcedure, 8, false, 400},
		{carillonv1connect.JobServiceCreateJobProcedure, 8, true, 429},
	} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		length := fmt.Sprintf("Content-Length: %d", c.chunks*chunk)
		if c.chunked {
			length = "Transfer-Encoding: chunked"
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n%s\r\n\r\n", c.path, length)
		for range c.chunks {
			part := blank
			if c.chunked {
				part = fmt.Appendf(nil, "%x\r\n%s\r\n", chunk, blank)
			}
			if _, err := conn.Write(part); err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
		}
		if c.chunked {
			fmt.Fprint(conn, "0\r\n\r\n")
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != c.status || !strings.Contains(string(body), `"code"`) {
			t.Errorf("%+v: %d %s, %v", c, res.StatusCode, body, err)
		}
	}
}
