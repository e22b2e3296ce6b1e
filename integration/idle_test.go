package integration

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// metric is the value of a metric without labels.
func (s *server) metric(name string) float64 {
	s.t.Helper()
	_, body := s.get("/metrics")
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				s.t.Fatalf("%s: %v", name, err)
			}
			return value
		}
	}
	s.t.Fatalf("there is no metric %s", name)
	return 0
}

// cpu is the processor time that the server has used.
func (s *server) cpu() time.Duration {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	// The name, in parentheses, may have spaces. utime and stime are the 12th and 13th fields after it, in hundredths.
	_, after, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(after)
	total := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			s.t.Fatal(err)
		}
		total += n
	}
	return time.Duration(total) * 10 * time.Millisecond
}

// 20,000 jobs are an hour away (a million: `carillon bench idle`): no timer row is read, neither at the start nor while
// time goes by, and hardly any processor time is used. A job that is due among them is fired by the wheel alone.
func TestIdleServerReadsNoTimers(t *testing.T) {
	s := startServer(t, "")
	const n = 20_000
	s.createMany(n, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: fmt.Sprint("far-", i), Schedule: in(time.Hour + time.Duration(i)*time.Millisecond)}
	})
	s.kill()
	s.start()
	const timers = "carillon_timer_rows_read_total"
	read, scanned, spent := s.metric(timers), s.metric("carillon_store_scanned_rows_total"), s.cpu()
	pause(t, 4*time.Second) // what is measured
	spent = s.cpu() - spent
	if got := s.metric(timers); got != read || got > 100 {
		t.Errorf("%v timer rows were read at the start and %v while idle; all are an hour away", read, got-read)
	}
	if got := s.metric("carillon_store_scanned_rows_total"); got != scanned {
		t.Errorf("the state machines walked %v rows while idle", got-scanned)
	}
	t.Logf("idle: %v of processor time in 4 s", spent)
	if spent > 400*time.Millisecond {
		t.Errorf("idle it used %v of processor time in 4 s", spent)
	}

	s.create(&carillonv1.JobSpec{Id: "due", Schedule: in(500 * time.Millisecond)})
	lease := s.claimOne("w", "default")
	if late := time.Since(lease.GetNominalTime().AsTime()); lease.GetJobId() != "due" || late > time.Second {
		t.Errorf("%s came %v late", lease.GetJobId(), late)
	}
	s.complete(succeeded(lease, "w", ""), succeededState)
	if got := s.metric(timers); got != read {
		t.Errorf("firing one job read %v timer rows", got-read)
	}
	if b := s.backlog(); b.GetWaiting() != n {
		t.Errorf("%d jobs wait; want %d", b.GetWaiting(), n)
	}
}
