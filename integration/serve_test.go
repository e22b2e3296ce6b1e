package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// serveFails runs the server, which must end by itself, and returns its exit code and what it said.
func serveFails(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{"serve"}, args...)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() < 0 {
		t.Fatalf("serve %v: %v; want an exit code\n%s", args, err, out)
	}
	return exit.ExitCode(), string(out)
}

// Starts that must not happen are refused with a message that says what is wrong and what to do, and harm nothing.
func TestServeRefusals(t *testing.T) {
	t.Parallel()
	running := startServer(t, "", "--shards", "2")
	running.create(&carillonv1.JobSpec{Id: "j", Schedule: in(time.Hour)})
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "FORMAT"), []byte("999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"a second server on the same data", []string{"--data", running.dir, "--listen", "127.0.0.1:0"}, 1,
			[]string{running.dir, "in use", fmt.Sprint(running.cmd.Process.Pid)}},
		{"a newer format", []string{"--data", newer, "--listen", "127.0.0.1:0"}, 1, []string{newer, "newer", "999"}},
		{"data that is a file", []string{"--data", file, "--listen", "127.0.0.1:0"}, 1, []string{file}},
		{"an address others reach", []string{"--data", t.TempDir(), "--listen", "0.0.0.0:0"}, 2, []string{"--listen", "--insecure", "0.0.0.0"}},
		{"every address", []string{"--data", t.TempDir(), "--listen", ":7070"}, 2, []string{"--listen", "--insecure"}},
		{"a name that is not looked up", []string{"--data", t.TempDir(), "--listen", "example.com:7070"}, 2, []string{"--listen", "--insecure"}},
		{"no port", []string{"--data", t.TempDir(), "--listen", "127.0.0.1"}, 2, []string{"--listen", "port"}},
		{"a port in use", []string{"--data", t.TempDir(), "--listen", running.addr}, 1, []string{running.addr, "in use", "--listen"}},
		{"no shards", []string{"--data", t.TempDir(), "--shards", "0"}, 2, []string{"--shards"}},
		{"an unknown flag", []string{"--colour", "red"}, 2, []string{"colour"}},
		{"an argument", []string{"now"}, 2, []string{"now"}},
	} {
		code, said := serveFails(t, c.args...)
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s", c.name, code, c.code, said)
		}
		for _, want := range c.says {
			if !strings.Contains(said, want) {
				t.Errorf("%s: it does not say %q:\n%s", c.name, want, said)
			}
		}
		if strings.Contains(said, "goroutine ") || strings.Contains(said, "panic") {
			t.Errorf("%s: it panicked:\n%s", c.name, said)
		}
	}
	if running.job("j").GetId() != "j" {
		t.Error("the running server has lost its job")
	}
	if b, err := os.ReadFile(filepath.Join(newer, "FORMAT")); err != nil || string(b) != "999\n" {
		t.Errorf("the newer format's stamp is now %q (%v)", b, err)
	}
}

// With --insecure every address is served.
func TestServeInsecure(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "2")
	if code := s.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.args = append(s.args, "--listen", "0.0.0.0:"+port, "--insecure")
	s.start()
}

// unstopped is a load that counts what was acknowledged until it is told that the server was stopped.
type unstopped struct {
	s                   *server
	stopped             chan struct{}
	accepted, completed atomic.Int64
}

// repeat takes steps until the server was stopped. A server that goes does not answer, or says so; nothing else may come.
func (l *unstopped) repeat(step func(i int) error) func() error {
	return func() error {
		for i := 0; ; i++ {
			err := step(i)
			select {
			case <-l.stopped:
				return nil
			default:
			}
			switch connect.CodeOf(err) {
			case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeUnknown, connect.CodeDeadlineExceeded:
			default:
				if err != nil {
					return err
				}
			}
		}
	}
}

func (l *unstopped) create(id string) error {
	_, err := try(l.s.jobs().CreateJob, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Id: id, Schedule: in(0)}})
	if err == nil {
		l.accepted.Add(1)
	}
	return err
}

func (l *unstopped) work(int) error {
	res, err := try(l.s.workers().Claim, &carillonv1.ClaimRequest{
		Worker: "w", Queues: []string{"default"}, MaxExecutions: 100, Wait: durationpb.New(20 * time.Second),
	})
	if err != nil || len(res.GetLeases()) == 0 {
		return err
	}
	req := &carillonv1.CompleteRequest{Worker: "w"}
	for _, lease := range res.GetLeases() {
		req.Items = append(req.Items, succeed(lease))
	}
	done, err := try(l.s.workers().Complete, req)
	for _, r := range done.GetResults() {
		if r.GetState() == succeededState {
			l.completed.Add(1)
		}
	}
	return err
}

// SIGTERM under load: the server ends with 0 within its timeout, what it acknowledged stands, and leases held go on.
func TestGracefulStopUnderLoad(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4", "--shutdown-timeout", "10s")
	s.create(&carillonv1.JobSpec{Id: "held", Queue: "held", Schedule: in(0), Lease: durationpb.New(time.Minute)})
	held := s.claimOne("w", "held")

	l := &unstopped{s: s, stopped: make(chan struct{})}
	var load errgroup.Group
	for p := range 3 {
		load.Go(l.repeat(func(i int) error { return l.create(fmt.Sprintf("j%d-%d", p, i)) }))
	}
	load.Go(l.repeat(l.work))
	await(t, 20*time.Second, "the load is on", func() bool { return l.completed.Load() > 200 })
	began := time.Now()
	code := s.stop()
	took := time.Since(began)
	close(l.stopped)
	if err := load.Wait(); err != nil {
		t.Errorf("a call failed with %v", err)
	}
	if code != 0 || took > 10*time.Second {
		t.Errorf("it ended with %d after %v; want 0 within 10 s\n%s", code, took, s.log)
	}
	s.start()
	if got := s.backlog().GetJobs(); got < uint64(l.accepted.Load()) {
		t.Errorf("%d jobs after the restart; %d were acknowledged", got, l.accepted.Load())
	}
	if got := len(s.list(&carillonv1.ListExecutionsRequest{State: succeededState, PageSize: 1000})); got < int(l.completed.Load()) {
		t.Errorf("%d executions have succeeded after the restart; %d were acknowledged", got, l.completed.Load())
	}
	if got := s.heartbeat(held, "w").GetStatus(); got != carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK {
		t.Errorf("the heartbeat of the lease held says %v; want OK", got)
	}
	s.complete(succeeded(held, "w", "done"), succeededState)
}

// While it starts, /readyz answers 503 and says why; then 200. /healthz is 200 as soon as anything is.
func TestReadinessTellsTheTruth(t *testing.T) {
	t.Parallel()
	// Many shards, so that there is something to wait for.
	s := &server{t: t, dir: t.TempDir(), args: []string{"--shards", "1024"}, addr: freeAddr(t), http: newHTTPClient()}
	t.Cleanup(s.kill)
	s.launch()
	reasons := map[string]bool{}
	await(t, 60*time.Second, "it is ready", func() bool {
		code, body := s.get("/readyz")
		switch code {
		case 0, http.StatusOK: // nobody listens yet, or ready
		case http.StatusServiceUnavailable:
			var answer struct {
				Status  string
				Reasons []string
			}
			if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Status != "unavailable" || len(answer.Reasons) == 0 {
				t.Fatalf("503 without reasons: %s", body)
			}
			for _, reason := range answer.Reasons {
				reasons[reason] = true
			}
		default:
			t.Fatalf("/readyz answers %d %s", code, body)
		}
		return code == http.StatusOK
	})
	if len(reasons) == 0 {
		t.Error("it was never seen to start: no 503")
	}
	t.Logf("reasons on the way: %v", reasons)
	if code, body := s.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d %s", code, body)
	}
	for _, n := range call(t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{}).GetNodes() {
		if !n.GetReady() {
			t.Errorf("GetCluster shows %s as not ready", n.GetName())
		}
	}
	// It is written by who waits for readiness as this test does.
	await(t, 10*time.Second, "the address file says where it serves", func() bool {
		b, err := os.ReadFile(filepath.Join(s.dir, "address"))
		return err == nil && string(bytes.TrimSpace(b)) == s.addr
	})
}
