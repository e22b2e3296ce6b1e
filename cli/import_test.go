package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

// lines is a file of n jobs, every other one without id.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		id := ""
		if i%2 == 0 {
			id = fmt.Sprintf(`"id":"job-%d",`, i)
		}
		fmt.Fprintf(&b, "{%s\"schedule\":{\"delay\":\"3600s\"}}\n", id)
	}
	return b.String()
}

func jobsOf(t *testing.T, server *clienttest.Server) int {
	t.Helper()
	c, err := client.New("", client.WithTransport(server))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range c.ListJobs(t.Context(), &carillonv1.ListJobsRequest{PageSize: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestImportThatWasInterruptedGoesOnAndDuplicatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "jobs.ndjson")
		if err := os.WriteFile(file, []byte(lines(3500)), 0o600); err != nil {
			t.Fatal(err)
		}
		server := clienttest.NewServer()
		// The second batch is applied, but its answer and all later ones are lost.
		server.After(func(_ context.Context, call clienttest.Call) error {
			if call.N >= 2 {
				return clienttest.Fail(connect.CodeUnavailable, "gone")
			}
			return nil
		})
		got := session(t.Context(), server, []string{"jobs", "import", file, "--timeout", "2s"}, nil)
		if !strings.Contains(got, "exit 5") {
			t.Errorf("the first import says %s", got)
		}
		server.After(nil)
		for range 2 {
			got = session(t.Context(), server, []string{"jobs", "import", file}, nil)
			if got != "accepted  3500\nbad       0\n" {
				t.Errorf("a later import says %s", got)
			}
		}
		if n := jobsOf(t, server); n != 3500 {
			t.Errorf("3,500 lines made %d jobs", n)
		}
	})
}

func TestImportSendsAgainWhatIsShedForAsLongAsThereIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := clienttest.NewServer()
		var shed atomic.Int32
		server.Before(func(_ context.Context, call clienttest.Call) error {
			if shed.Add(1) <= 5 {
				return clienttest.Fail(connect.CodeResourceExhausted, "full", hint(time.Second))
			}
			return nil
		})
		got := session(t.Context(), server, []string{"jobs", "import", "-"}, strings.NewReader(lines(10)))
		if !strings.Contains(got, "accepted  10\n") || strings.Contains(got, "exit") {
			t.Errorf("the import says %s", got)
		}
	})
}

// slowIntake takes 6 s for a batch. Of its first it takes nothing, of its second the first half.
type slowIntake struct {
	carillonv1connect.UnimplementedJobServiceHandler
	calls int
}

func (s *slowIntake) BatchCreateJobs(
	_ context.Context, req *connect.Request[carillonv1.BatchCreateJobsRequest],
) (*connect.Response[carillonv1.BatchCreateJobsResponse], error) {
	time.Sleep(6 * time.Second)
	s.calls++
	res := new(carillonv1.BatchCreateJobsResponse)
	for i := range req.Msg.GetItems() {
		result := new(carillonv1.BatchCreateJobsResult)
		if s.calls == 1 || s.calls == 2 && i >= len(req.Msg.GetItems())/2 {
			full := &carillonv1.ItemError{Code: "resource_exhausted", Message: "full"}
			result.Result = &carillonv1.BatchCreateJobsResult_Error{Error: full}
		} else {
			result.Result = &carillonv1.BatchCreateJobsResult_Receipt{Receipt: &carillonv1.JobReceipt{Id: "a"}}
		}
		res.Results = append(res.Results, result)
	}
	return connect.NewResponse(res), nil
}

// Do serves a request in the caller's goroutine.
func (s *slowIntake) Do(req *http.Request) (*http.Response, error) {
	_, handler := carillonv1connect.NewJobServiceHandler(s)
	out := httptest.NewRecorder()
	handler.ServeHTTP(out, req.Clone(req.Context()))
	return out.Result(), nil
}

// The timeout is for what makes no progress: a batch that got part through as it passed has made some.
func TestImportGoesOnAfterABatchThatGotPartThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, err bytes.Buffer
		p := &program{stdin: strings.NewReader(lines(10)), stdout: &out, stderr: &err, transport: new(slowIntake)}
		code := p.run(t.Context(), []string{"carillon", "jobs", "import", "-", "--timeout", "10s"})
		if want := "accepted  10\nbad       0\n"; code != 0 || out.String() != want {
			t.Errorf("exit %d, the import says %s%s", code, out.String(), err.String())
		}
	})
}

// endless is a file that never ends. It counts what is read.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(b []byte) (int, error) {
	const line = "{\"schedule\":{\"delay\":\"3600s\"}}\n"
	n := 0
	for n+len(line) <= len(b) {
		n += copy(b[n:], line)
	}
	e.read.Add(int64(n))
	return n, nil
}

func TestImportReadsNoFurtherThanTheServerTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := clienttest.NewServer()
		server.Before(func(ctx context.Context, _ clienttest.Call) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		in := new(endless)
		got := session(ctx, server, []string{"jobs", "import", "-", "--timeout", "1m"}, in)
		if !strings.HasSuffix(got, "exit 130\n") {
			t.Errorf("the import says %s", got)
		}
		if n := in.read.Load(); n > 1<<20 {
			t.Errorf("%d bytes were read while nothing was taken", n)
		}
	})
}

func TestImportRefusesLinesThatAreTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := clienttest.NewServer()
		long := `{"id":"long","schedule":{"delay":"1s"},"payload":"` + strings.Repeat("A", importLineBytes) + "\"}\n"
		in := io.MultiReader(strings.NewReader(lines(1)), strings.NewReader(long), strings.NewReader(lines(2)))
		got := session(t.Context(), server, []string{"jobs", "import", "-"}, in)
		want := "accepted  3\nbad       1\n! line 2: line is longer than 2097152 bytes\n! carillon: 1 bad lines\nexit 1\n"
		if got != want {
			t.Errorf("the import says %s", got)
		}
	})
}
