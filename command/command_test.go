//go:build unix

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell is a runner of a script, and its log.
func shell(t *testing.T, script string, change func(*Config)) (*Runner, *bytes.Buffer) {
	t.Helper()
	log := new(bytes.Buffer)
	config := Config{Args: []string{"sh", "-c", script}, KillAfter: time.Minute, Logger: slog.New(slog.NewTextHandler(log, nil))}
	if change != nil {
		change(&config)
	}
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return r, log
}

func run(t *testing.T, script string, e *client.Execution, change func(*Config)) ([]byte, error) {
	t.Helper()
	r, _ := shell(t, script, change)
	return r.Handle(t.Context(), e)
}

func TestPayloadIsInputAndOutputIsTheResult(t *testing.T) {
	payload := []byte("hello\x00Ada\xff")
	got, err := run(t, "cat", &client.Execution{Payload: payload}, nil)
	if err != nil || !bytes.Equal(got, payload) {
		t.Errorf("result %q, %v", got, err)
	}
	if got, err := run(t, "exit 0", &client.Execution{Payload: make([]byte, 1<<20)}, nil); err != nil || len(got) != 0 {
		t.Errorf("input that is not read: %q, %v", got, err)
	}
}

func TestEnvironmentTellsOfTheExecution(t *testing.T) {
	t.Setenv("CARILLON_HEADER_OLD", "of another execution")
	t.Setenv("CARILLON_TENANT", "of the command line")
	t.Setenv("LIKE_ANY", "other")
	e := &client.Execution{
		ID: "acme~j~1~s~5", JobID: "j", Tenant: "acme", Queue: "mail", Attempt: 2, MaxAttempts: 5, FencingNumber: 1 << 63,
		NominalTime: time.Date(2026, 1, 31, 9, 0, 0, 5e6, time.UTC), ContentType: "text/plain", PayloadRef: "s3://b/k",
		Headers:  map[string]string{"trace-id": "a=b\nc", "x-ä": "1", "Same": "2", "same": "3"},
		Priority: 9, Kind: carillonv1.ExecutionKind_EXECUTION_KIND_TRIGGER, JobVersion: 7,
	}
	got, err := run(t, "env | grep -v '^PWD=\\|^_=\\|^SHLVL=\\|^PATH=' | grep 'CARILLON\\|LIKE_ANY\\|^c$' | sort", e,
		func(c *Config) { c.Address = "127.0.0.1:1" })
	if err != nil {
		t.Fatal(err)
	}
	want := `CARILLON_ADDR=127.0.0.1:1
CARILLON_ATTEMPT=2
CARILLON_CONTENT_TYPE=text/plain
CARILLON_EXECUTION_ID=acme~j~1~s~5
CARILLON_FENCING=9223372036854775808
CARILLON_HEADERS={"Same":"2","same":"3","trace-id":"a=b\nc","x-ä":"1"}
CARILLON_HEADER_TRACE_ID=a=b
CARILLON_HEADER_X__=1
CARILLON_JOB_ID=j
CARILLON_JOB_VERSION=7
CARILLON_KIND=trigger
CARILLON_MAX_ATTEMPTS=5
CARILLON_NOMINAL_TIME=2026-01-31T09:00:00.005Z
CARILLON_PAYLOAD_REF=s3://b/k
CARILLON_PRIORITY=9
CARILLON_QUEUE=mail
CARILLON_TENANT=acme
LIKE_ANY=other
c
`
	if string(got) != want {
		t.Errorf("environment\n%s", got)
	}
}

func TestExitCodesDecide(t *testing.T) {
	tests := []struct {
		script, want string
	}{
		{"exit 1", "exit status 1"},
		{"echo first >&2; echo no luck >&2; exit 3", "exit status 3: no luck\nstandard error:\nfirst\nno luck"},
		{"echo only >&2; exit 3", "exit status 3: only"},
		{"kill -9 $$", "signal: killed"},
		{"nosuchcommand 2>&-", "exit status 127 (a command was not found)"},
		{"/dev/null 2>&-", "exit status 126 (a command cannot be executed)"},
	}
	for _, test := range tests {
		_, err := run(t, test.script, &client.Execution{}, nil)
		if err == nil || err.Error() != test.want {
			t.Errorf("%s: %v; want %s", test.script, err, test.want)
		}
	}
}

// What the worker makes of these errors is its own: see client.
func TestExitCodesThatAreNoOrdinaryFailures(t *testing.T) {
	fatal := func(c *Config) { c.FatalCodes, c.TempFailDelay = []int{65, 78}, time.Hour }
	want := fmt.Sprintf("%T", client.SnoozeFor(0))
	if _, err := run(t, "exit 75", &client.Execution{}, fatal); fmt.Sprintf("%T", err) != want || err.Error() != "snoozed for 1h0m0s" {
		t.Errorf("exit code 75 is %T %v", err, err)
	}
	want = fmt.Sprintf("%T", client.NonRetryable(nil))
	if _, err := run(t, "echo bad data >&2; exit 78", &client.Execution{}, fatal); fmt.Sprintf("%T", err) != want ||
		err.Error() != "exit status 78: bad data" {
		t.Errorf("exit code 78 is %T %v", err, err)
	}
	if _, err := run(t, "exit 64", &client.Execution{}, fatal); fmt.Sprintf("%T", err) == want {
		t.Errorf("exit code 64 is %T", err)
	}
}

func TestResultHasALimit_W7(t *testing.T) {
	write := func(n int) string { return fmt.Sprintf("head -c %d /dev/zero; echo done >&2", n) }
	if got, err := run(t, write(client.MaxResult), &client.Execution{}, nil); err != nil || len(got) != client.MaxResult {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_, err := run(t, write(client.MaxResult+1), &client.Execution{}, nil)
	if err == nil || err.Error() != "result is too long: 262145 bytes of standard output, 262144 are the most" {
		t.Errorf("beyond it: %v", err)
	}
	if _, err := run(t, write(64<<20), &client.Execution{}, nil); err == nil || !strings.Contains(err.Error(), "67108864 bytes") {
		t.Errorf("far beyond it: %v", err)
	}
}

func TestStandardErrorGoesToTheLogLineByLine(t *testing.T) {
	r, log := shell(t, `printf 'one\ntwo\r\n\n' >&2; head -c 5000 /dev/zero | tr '\0' x >&2`, nil)
	if _, err := r.Handle(t.Context(), &client.Execution{ID: "acme~j~1~s~5", Attempt: 3}); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "msg=stderr") {
			_, rest, _ := strings.Cut(strings.TrimSpace(line), "msg=stderr ")
			lines = append(lines, rest)
		}
	}
	of := "execution=acme~j~1~s~5 attempt=3 line="
	want := []string{of + "one", of + "two", of + `""`, of + strings.Repeat("x", maxLine), of + strings.Repeat("x", 5000-maxLine)}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("log has\n%s", strings.Join(lines, "\n"))
	}
}

func TestLastWordsAreTheEndOfAllLines(t *testing.T) {
	_, err := run(t, "seq 100000 >&2; exit 1", &client.Execution{}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "exit status 1: 100000\nstandard error:\n") ||
		!strings.HasSuffix(err.Error(), "\n99999\n100000") || len(err.Error()) > maxLastWords+100 {
		t.Errorf("error is %v", err)
	}
}

// stopping is a run of a script that says when it is under way by making the file READY, and is stopped for a cause then.
func stopping(t *testing.T, script string, cause error, change func(*Config)) error {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	r, _ := shell(t, "READY="+ready+"\n"+script, change)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.Handle(ctx, &client.Execution{})
		ended <- err
	}()
	if _, err := os.ReadFile(ready); err != nil { // until the script has written to it
		t.Fatal(err)
	}
	cancel(cause)
	return <-ended
}

func TestStopIsForwardedToTheGroup(t *testing.T) {
	err := stopping(t, `trap 'echo interrupted >&2; exit 9' TERM; echo > $READY; while :; do sleep 0.01; done`, client.ErrCancelled, nil)
	if !errors.Is(err, client.ErrCancelled) || !strings.Contains(err.Error(), "exit status 9: interrupted") {
		t.Errorf("error is %v", err)
	}
	// A shell dies at once; what it had started has its time, and its last word is heard.
	err = stopping(t, `sh -c 'trap "echo tidied up >&2; exit 0" TERM; echo > '$READY'; while :; do sleep 0.01; done'; :`, client.ErrShutdown, nil)
	if !errors.Is(err, client.ErrShutdown) || !strings.Contains(err.Error(), "signal: terminated: tidied up") {
		t.Errorf("error is %v", err)
	}
}

func TestProgramThatDoesNotStopIsKilled(t *testing.T) {
	err := stopping(t, `trap '' TERM; echo > $READY; while :; do sleep 0.01; done`, client.ErrLeaseLost,
		func(c *Config) { c.KillAfter = 50 * time.Millisecond })
	if !errors.Is(err, client.ErrLeaseLost) || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("error is %v", err)
	}
}

// An exit code is the program's word, also after it was told to stop; but one that asks for a later attempt is not needed.
func TestExitCodeOfAProgramThatWasStopped(t *testing.T) {
	loop := "echo > $READY; while :; do sleep 0.01; done"
	if err := stopping(t, `trap 'exit 0' TERM; `+loop, client.ErrShutdown, nil); err != nil {
		t.Errorf("exit code 0: %v", err)
	}
	if err := stopping(t, `trap 'exit 75' TERM; `+loop, client.ErrShutdown, nil); !errors.Is(err, client.ErrShutdown) {
		t.Errorf("exit code 75: %v", err)
	}
}

func TestTimeoutStopsAProgram(t *testing.T) {
	_, err := run(t, "while :; do sleep 0.01; done", &client.Execution{}, func(c *Config) { c.Timeout = 50 * time.Millisecond })
	if err == nil || err.Error() != "stopped after 50ms: signal: terminated" {
		t.Errorf("error is %v", err)
	}
}

// grandchild starts a process that outlives the program if it is let, and whose number is in the result. It holds no pipe,
// ignores what can be ignored, and its parent has gone.
const grandchild = `(trap '' TERM HUP INT; exec sleep 1000 </dev/null >/dev/null 2>&1) & echo $!`

func TestNothingOfTheGroupSurvives(t *testing.T) {
	got, err := run(t, grandchild, &client.Execution{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	gone(t, string(got))

	file := filepath.Join(t.TempDir(), "pid")
	err = stopping(t, grandchild+" > "+file+"; echo > $READY; wait", client.ErrCancelled,
		func(c *Config) { c.KillAfter = 50 * time.Millisecond })
	if !errors.Is(err, client.ErrCancelled) {
		t.Errorf("error is %v", err)
	}
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	gone(t, string(pid))
}

// gone waits until a process has ended: whoever inherits it may take a moment to notice.
func gone(t *testing.T, text string) {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %d is alive", pid)
}

// What leaves the group is not ended, and does not hold up the execution either.
func TestProcessThatLeavesTheGroupHoldsNothingUp(t *testing.T) {
	left := filepath.Join(t.TempDir(), "left")
	if err := syscall.Mkfifo(left, 0o600); err != nil {
		t.Fatal(err)
	}
	r, log := shell(t, "setsid sh -c 'echo $$ > "+left+"; exec sleep 1000' & cat "+left, nil)
	got, err := r.Handle(t.Context(), &client.Execution{})
	pid, bad := strconv.Atoi(strings.TrimSpace(string(got)))
	if err != nil || bad != nil {
		t.Fatalf("result %q, %v", got, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the process that left: %v", err)
	}
	if !strings.Contains(log.String(), "a process that left the group holds them open") {
		t.Errorf("log is %s", log)
	}
}

func TestProgramThatCannotBeStartedFailsTheAttempt(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Args: []string{name}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Handle(t.Context(), &client.Execution{}); err == nil || !strings.HasPrefix(err.Error(), "start program: ") {
		t.Errorf("error is %v", err)
	}
}

func TestConfigNamesTheFieldAtFault(t *testing.T) {
	args := []string{"sh"}
	tests := map[string]Config{
		"args":           {},
		"timeout":        {Args: args, Timeout: -1},
		"kill-after":     {Args: args, KillAfter: -1},
		"tempfail-delay": {Args: args, TempFailDelay: -1},
		"fatal-exit":     {Args: args, FatalCodes: []int{0}},
	}
	for field, config := range tests {
		if _, err := New(config); err == nil || !strings.HasPrefix(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(Config{Args: args, FatalCodes: []int{75}}); err == nil {
		t.Error("75 is fatal")
	}
	if _, err := New(Config{Args: []string{"no-such-program"}}); err == nil || !strings.HasPrefix(err.Error(), "find program: ") {
		t.Errorf("a program that is not there: %v", err)
	}
}
