package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
)

func TestDemoEndsByItselfAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var out, errs bytes.Buffer
	began := time.Now()
	code := Run(t.Context(), []string{"carillon", "demo"}, nil, &out, &errs)
	if code != 0 || errs.Len() > 0 {
		t.Fatalf("exit %d: %s\n%s", code, errs.String(), out.String())
	}
	for _, want := range []string{"greeting", "heartbeat", "no luck at attempt 2; a dead letter now", "History of flaky"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

const demoText = `Jobs in queue demo
  greeting   once, in 1 s
  heartbeat  every second, 5 times
  flaky      once, in 2 s; fails twice, then succeeds
  doomed     once, in 3 s; always fails, may be tried twice

A worker runs them
  RECEIVED      JOB         ATTEMPT     LATE  OUTCOME
  00:00:01.000  greeting    1 of 5        0s  succeeded
  00:00:01.000  heartbeat   1 of 5        0s  succeeded
`

func TestDemoShowsWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, err := client.New("", client.WithTransport(clienttest.NewServer()))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := (&demonstration{api: api, out: &out}).run(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if err := api.Close(); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); len(got) < len(demoText) || sortLines(got[:len(demoText)]) != sortLines(demoText) {
			t.Errorf("it shows\n%s", got)
		}
	})
}

// sortLines makes what happens at one instant comparable.
func sortLines(s string) string {
	lines := strings.Split(s, "\n")
	if n := len(lines); n > 3 && lines[n-3] > lines[n-2] {
		lines[n-3], lines[n-2] = lines[n-2], lines[n-3]
	}
	return strings.Join(lines, "\n")
}
