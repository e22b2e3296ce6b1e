package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// programWorker is a "carillon work" in a process of its own.
type programWorker struct {
	t   *testing.T
	cmd *exec.Cmd
	log *logTail
}

// work runs script in a shell for each execution of a queue named like the worker.
func (s *server) work(name, script string, flags ...string) *programWorker {
	s.t.Helper()
	args := append([]string{"work", "--addr", s.addr, "--queue", name, "--name", name}, flags...)
	return s.startWorker(append(args, "--", "sh", "-c", script)...)
}

func (s *server) startWorker(args ...string) *programWorker {
	s.t.Helper()
	w := &programWorker{t: s.t, log: &logTail{}}
	w.cmd = exec.Command(binary, args...)
	w.cmd.Stdout, w.cmd.Stderr = w.log, w.log
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		w.signal(syscall.SIGCONT)
		w.signal(syscall.SIGKILL)
		if w.cmd.ProcessState == nil {
			_ = w.cmd.Wait() // it was killed
		}
		if s.t.Failed() {
			s.t.Logf("worker's log:\n%s", w.log)
		}
	})
	return w
}

// signal fails only if the process has ended.
func (w *programWorker) signal(sig os.Signal) { _ = w.cmd.Process.Signal(sig) }

// ends waits for the process, which is to end by itself, and returns its exit code.
func (w *programWorker) ends() int {
	w.t.Helper()
	timer := time.AfterFunc(30*time.Second, func() { w.signal(syscall.SIGKILL) })
	defer timer.Stop()
	_ = w.cmd.Wait() // the state says it
	return w.cmd.ProcessState.ExitCode()
}

// fifo is a named pipe through which a script tells something.
func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// said is what a script has written to a named pipe, once it has.
func said(t *testing.T, name string) string {
	t.Helper()
	body, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(body))
}

// awaitGone waits until a process has ended.
func awaitGone(t *testing.T, pid string) {
	t.Helper()
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatal(err)
	}
	await(t, 10*time.Second, "process "+pid+" is gone", func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// A grandchild that ignores what can be ignored and holds no pipe; its number goes to $1.
const grandchild = `(trap '' TERM HUP; exec sleep 1000 </dev/null >/dev/null 2>&1) & echo $! > %[1]s; `

func TestWorkRunsAProgramPerExecution(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	script := `case $CARILLON_JOB_ID in
		ok) cat; echo " $CARILLON_QUEUE $CARILLON_ATTEMPT $CARILLON_HEADER_TRACE";;
		bad) echo no luck >&2; exit 3;;
		later) exit 75;;
		hopeless) exit 65;;
		signalled) kill -SEGV $$;;
		missing) nosuchcommand 2>&-;;
		long) head -c 262145 /dev/zero;;
	esac`
	once := &carillonv1.RetryPolicy{MaxAttempts: 1}
	for _, id := range []string{"ok", "bad", "later", "hopeless", "signalled", "missing", "long"} {
		spec := &carillonv1.JobSpec{Id: id, Queue: "run", Schedule: in(0), Retry: once}
		switch id {
		case "ok":
			spec.Payload, spec.Headers = []byte("hello"), map[string]string{"trace": "t1"}
		case "hopeless":
			spec.Retry = nil
		}
		s.create(spec)
	}
	w := s.work("run", script, "--concurrency", "3", "--fatal-exit", "65", "--tempfail-delay", "1h")
	tests := []struct {
		id    string
		state carillonv1.ExecutionState
		text  string
	}{
		{"bad", deadState, "exit status 3: no luck"},
		{"hopeless", deadState, "exit status 65"},
		{"signalled", deadState, "signal: segmentation fault"},
		{"missing", deadState, "exit status 127 (a command was not found)"},
		{"long", deadState, "result is too long: 262145 bytes of standard output, 262144 are the most"},
		{"later", carillonv1.ExecutionState_EXECUTION_STATE_RETRYING, ""},
		{"ok", succeededState, ""},
	}
	for _, test := range tests {
		await(t, 30*time.Second, test.id+" has ended", func() bool { return s.onlyExecution(test.id).GetState() == test.state })
		if e := s.onlyExecution(test.id); !strings.HasPrefix(e.GetError(), test.text) || e.GetAttempt() != 1 {
			t.Errorf("%s: attempt %d, %q; want %q", test.id, e.GetAttempt(), e.GetError(), test.text)
		}
	}
	if e := s.execution(s.onlyExecution("ok").GetId()); string(e.GetResult()) != "hello run 1 t1\n" {
		t.Errorf("result %q", e.GetResult())
	}
	if next := s.onlyExecution("later").GetNextTime().AsTime(); time.Until(next) < 50*time.Minute {
		t.Errorf("after exit code 75 the next attempt comes at %v", next)
	}
	if !strings.Contains(w.log.String(), `line="no luck"`) {
		t.Errorf("the log has no line of standard error")
	}
	w.signal(syscall.SIGTERM)
	if code := w.ends(); code != 0 {
		t.Errorf("the worker ended with %d", code)
	}
}

// A worker is killed while its program runs: the program dies with it, and another gets the execution within one lease.
func TestW1KilledWorkOfAProgram(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w1", Queue: "w1", Schedule: in(0), Lease: durationpb.New(2 * time.Second)})
	pid := fifo(t)
	w := s.work("w1", "echo $$ > "+pid+"; exec sleep 1000")
	program := said(t, pid)
	w.signal(syscall.SIGKILL)
	killed := time.Now()
	awaitGone(t, program)
	second := s.claimOne("second", "w1")
	if away := time.Since(killed); away > 2*time.Second+slack {
		t.Errorf("it was available again after %v; its lease is 2 s", away)
	}
	s.complete(succeeded(second, "second", ""), succeededState)
	a := s.onlyExecution("w1").GetAttempts()
	if len(a) != 2 || a[0].GetOutcome() != carillonv1.Outcome_OUTCOME_LOST || a[0].GetWorker() != "w1" {
		t.Errorf("attempts are %v; want the first lost", a)
	}
}

// A worker is frozen beyond its lease, and a second one claims. When it thaws its program is stopped; or it has ended
// meanwhile, and what it did is refused.
func TestW2FrozenWorkOfAProgram(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	for name, rest := range map[string]string{"stopped": "exec sleep 1000", "ended": "exit 0"} {
		s.create(&carillonv1.JobSpec{Id: name, Queue: name, Schedule: in(0), Lease: durationpb.New(time.Second)})
		pid, goOn := fifo(t), fifo(t)
		w := s.work(name, "echo $$ > "+pid+"; cat "+goOn+"; "+rest)
		program := said(t, pid)
		w.signal(syscall.SIGSTOP)
		second := call(t, s.workers().Claim, &carillonv1.ClaimRequest{
			Worker: "second", Queues: []string{name}, Wait: durationpb.New(20 * time.Second), Lease: durationpb.New(time.Minute),
		}).GetLeases()[0]
		if err := os.WriteFile(goOn, []byte("go on"), 0); err != nil {
			t.Fatal(err)
		}
		if name == "ended" {
			awaitGone(t, program)
		}
		w.signal(syscall.SIGCONT)
		awaitGone(t, program)
		w.signal(syscall.SIGTERM)
		if code := w.ends(); code != 0 {
			t.Errorf("%s: the worker ended with %d", name, code)
		}
		s.complete(succeeded(second, "second", "mine"), succeededState)
		if e := s.execution(second.GetExecutionId()); string(e.GetResult()) != "mine" || e.GetAttemptsTotal() != 2 {
			t.Errorf("%s: the execution is %v; want the second worker's", name, e)
		}
		late := s.history("", name).GetLateAttempts()
		if want := map[string]int{"stopped": 0, "ended": 1}[name]; len(late) != want {
			t.Errorf("%s: late attempts are %v; want %d", name, late, want)
		}
	}
}

// A worker is told to stop in the middle of a job that may be tried once: with a second signal its program is interrupted and
// the execution is back at once, uncounted; otherwise it goes on to its end.
func TestW3StoppedWorkOfAProgram(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{
		Id: "w3", Queue: "w3", Schedule: in(0), Retry: &carillonv1.RetryPolicy{MaxAttempts: 1}, Lease: durationpb.New(2 * time.Second),
	})
	began, goOn := fifo(t), fifo(t)
	script := fmt.Sprintf("echo $$ > %s; cat %s; echo ' done'", began, goOn)
	w := s.work("w3", script, "--grace", "1h")
	program := said(t, began)
	w.signal(syscall.SIGTERM)
	await(t, 10*time.Second, "it has heard the first signal", func() bool { return strings.Contains(w.log.String(), "stopping:") })
	w.signal(syscall.SIGTERM)
	if code := w.ends(); code != 0 {
		t.Errorf("the worker ended with %d", code)
	}
	awaitGone(t, program)
	if e := s.onlyExecution("w3"); e.GetState() != readyState || e.GetAttempt() != 0 {
		t.Fatalf("after the stop it is %v at attempt %d; want ready, nothing counted", e.GetState(), e.GetAttempt())
	}

	w = s.work("w3", script, "--grace", "1h")
	said(t, began)
	w.signal(syscall.SIGTERM)
	pause(t, 5*time.Second) // the work: longer than two leases
	if err := os.WriteFile(goOn, []byte("worked"), 0); err != nil {
		t.Fatal(err)
	}
	if code := w.ends(); code != 0 {
		t.Errorf("the worker ended with %d", code)
	}
	e := s.execution(s.onlyExecution("w3").GetId())
	if e.GetState() != succeededState || string(e.GetResult()) != "worked done\n" || e.GetAttempt() != 1 {
		t.Errorf("it ended as %v", e)
	}
}

// A running execution is cancelled: its program hears of it within one heartbeat, and nothing of its group is left.
func TestW4CancelledWorkOfAProgram(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w4", Queue: "w4", Schedule: in(0), Lease: durationpb.New(3 * time.Second)})
	child, ready, heard := fifo(t), fifo(t), fifo(t)
	s.work("w4", "trap 'echo interrupted > "+heard+"; exit 1' TERM; "+fmt.Sprintf(grandchild, child)+
		"echo > "+ready+"; while :; do sleep 0.01; done", "--kill-after", "500ms")
	pid := said(t, child)
	said(t, ready)
	id := s.onlyExecution("w4").GetId()
	call(t, s.executions().CancelExecution, &carillonv1.CancelExecutionRequest{Id: id})
	began := time.Now()
	said(t, heard)
	if took := time.Since(began); took > time.Second+slack {
		t.Errorf("the program heard of it after %v; a heartbeat comes each second", took)
	}
	await(t, 10*time.Second, "it is cancelled", func() bool { return s.execution(id).GetState() == cancelledState })
	awaitGone(t, pid)
}

// All servers are away for longer than the lease while a program works, and its success is accepted.
func TestW13OutageUnderAProgram(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	s.create(&carillonv1.JobSpec{Id: "w13", Queue: "w13", Schedule: in(0), Lease: durationpb.New(2 * time.Second)})
	began, goOn := fifo(t), fifo(t)
	s.work("w13", fmt.Sprintf("echo > %s; cat %s", began, goOn))
	said(t, began)
	s.kill()
	pause(t, 4*time.Second) // the outage
	if err := os.WriteFile(goOn, []byte("worked"), 0); err != nil {
		t.Fatal(err)
	}
	s.start()
	await(t, 30*time.Second, "it has succeeded", func() bool { return s.onlyExecution("w13").GetState() == succeededState })
	if e := s.onlyExecution("w13"); e.GetAttemptsTotal() != 1 {
		t.Errorf("%d attempts; want 1", e.GetAttemptsTotal())
	}
}
