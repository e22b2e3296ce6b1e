package integration

import (
	"regexp"
	"strings"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// columns are the blanks between a table's columns: as many as the widest cell asks for.
var columns = regexp.MustCompile(" {2,}")

// prints runs a command and looks for what it must print, two blanks standing for any number between columns.
func (s *server) prints(want string, args ...string) {
	s.t.Helper()
	if out := s.cli(args...); !strings.Contains(columns.ReplaceAllString(out, "  "), columns.ReplaceAllString(want, "  ")) {
		s.t.Errorf("carillon %s: %s\nwant %q", strings.Join(args, " "), out, want)
	}
}

// What people ask of recurring jobs day by day, on the command line: all by the server's clock, which is virtual here, and by that
// of the job's zone.
func TestEverydayQuestions(t *testing.T) {
	t.Parallel()
	s := startVirtual(t, march)
	s.cli("jobs", "create", "--id", "nightly", "--cron", "30 2 * * *", "--zone", newYork, "--label", "team=a")
	s.cli("jobs", "create", "--id", "soon", "--at", "+5m")

	// A queue without settings is paused for a day and a half of the server's time.
	s.prints("paused until    2026-03-09T12:00:00Z", "queues", "pause", "default", "--until", "36h")
	s.prints("paused until  2026-03-08T01:00:00Z", "tenants", "pause", "default", "--until", "+1h")
	s.prints("nightly  default  active (queue paused, tenant paused)  cron", "jobs", "list")
	s.prints("stopped by  queue:default, tenant:default", "jobs", "get", "soon")
	s.cli("jobs", "pause", "nightly")
	s.prints("active (queue paused, tenant paused)", "jobs", "resume", "nightly")
	s.cli("tenants", "resume", "default")
	s.cli("queues", "resume", "default")
	if out := s.cli("jobs", "get", "nightly"); strings.Contains(out, "stopped by") || strings.Contains(out, "last run") {
		t.Errorf("nothing stops it, and it has not run: %s", out)
	}

	// Both have fired; what is ready goes on when a paused job is resumed.
	s.cli("clock", "advance", "8h")
	s.cli("jobs", "pause", "nightly")
	s.prints("ready      1\n", "jobs", "resume", "nightly", "--dry-run")
	s.cli("jobs", "resume", "nightly")
	s.prints("2026-03-08T07:00:00Z  2026-03-08T03:00:00-04:00  fired, ready", "jobs", "get", "nightly")
	for range 2 {
		leases := call(t, s.workers().Claim, &carillonv1.ClaimRequest{Worker: "w", MaxExecutions: 1, Queues: []string{"default"}}).GetLeases()
		if len(leases) != 1 {
			t.Fatalf("got %v", leases)
		}
		call(t, s.workers().CompleteExecution, succeeded(leases[0], "w", ""))
	}
	s.prints("2026-03-08T07:00:00Z  2026-03-08T03:00:00-04:00  fired, succeeded", "jobs", "get", "nightly")

	const row = "2026-03-08T07:00:00Z  2026-03-08T03:00:00-04:00  fired"
	for _, from := range []string{"2026-03-08", "2026-03-08T02:30", "2026-03-08 03:00:00", "-2h", "2026-03-08T07:00:00Z"} {
		s.prints(row, "jobs", "occurrences", "nightly", "--from", from, "--to", "2026-03-08")
	}
	if out := s.cli("jobs", "occurrences", "nightly", "--from", "2026-03-09", "--to", "2026-03-09"); strings.Contains(out, row) {
		t.Errorf("another day has %s", out)
	}
	if out := s.cli("jobs", "occurrences", "soon"); strings.Contains(out, "may be missing") || strings.Contains(out, "not computed") {
		t.Errorf("everything is known: %s", out)
	}
	s.prints("2026-03-08T07:00:00Z  2026-03-08T03:00:00-04:00  schedule  succeeded", "jobs", "history", "nightly")
	s.prints("finished  true", "jobs", "backfill", "nightly", "--from", "2026-03-06", "--to", "2026-03-07")

	s.prints("2026-03-09T06:30:00Z  2026-03-09T02:30:00-04:00  Mon  fires\n", "schedule", "preview", "--job", "nightly", "-n", "1")
	s.prints("2026-03-29T01:00:00Z  2026-03-29T03:00:00+02:00  Sun  fires in place of 02:30:00, which does not exist: the clock goes forward\n",
		"schedule", "preview", "--job", "nightly", "--zone", "Europe/Berlin", "-n", "1", "--after", "2026-03-28T12:00:00Z")
	for _, c := range []struct{ says, args string }{
		{"a job with this schedule would be refused: --max-fires-per-day is 1, but it fires 48 times", "schedule preview --cron @hourly --cron */30|*|*|*|* --max-fires-per-day 1"},
		{`--zone is refused: zone "Mars/Olympus" is unknown`, "jobs create --cron @daily --zone Mars/Olympus"},
		{"--until is 2026-03-08T07:00:00Z, which has passed", "pause create --label team=a --until -1h"},
		{"--to is 2026-03-10T03:59:59Z, which is in the future", "jobs backfill nightly --from 2026-03-09 --to 2026-03-09"},
	} {
		args := strings.Fields(c.args + " --addr " + s.addr)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "|", " ")
		}
		if out := fails(t, 2, args...); !strings.Contains(out, c.says) {
			t.Errorf("%s: %s; want %q", c.args, out, c.says)
		}
	}
	if now := s.clock().GetTime().AsTime(); !now.Equal(march.Add(8 * time.Hour)) {
		t.Errorf("it is %s", now)
	}
}
