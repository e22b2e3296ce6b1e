package integration

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

// binary is the real thing, built once for all tests. steppedBinary is the same whose wall clock is off by the milliseconds
// in the file stepFile of its working directory: see node/clock.
var binary, steppedBinary string

const stepFile = "clock-step"

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if text := os.Getenv(workerEnv); text != "" {
		return workForever(text)
	}
	flag.Parse()
	// Tests that run in parallel wait for instants and leases far more than they compute; those of clusters have three
	// processes each.
	if err := flag.Set("test.parallel", "5"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "carillon-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary, steppedBinary = filepath.Join(dir, "carillon"), filepath.Join(dir, "carillon-stepped")
	for _, args := range [][]string{
		{"build", "-o", binary, ".."},
		{"build", "-o", steppedBinary, "-ldflags", "-X github.com/carillon-scheduler/carillon/node/clock.stepFile=" + stepFile, ".."},
	} {
		build := exec.Command("go", args...)
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build carillon:", err)
			return 1
		}
	}
	return m.Run()
}

// server is a real process and the clients to talk to it.
type server struct {
	t    *testing.T
	dir  string
	args []string
	addr string
	// binary is another build to run, if it is set.
	binary string
	// clockDir, if set, is where the file is that steps its clock.
	clockDir string
	// smallDisk, if set, is the size in bytes of a disk that the process has to itself.
	smallDisk int
	cmd       *exec.Cmd
	// pid is the process's, for those who look while it may be started anew.
	pid  atomic.Int64
	done chan struct{} // closed when the process has ended
	log  *logTail

	http *http.Client
}

// startServer starts a node on dir (a fresh directory if empty) and waits until it is ready.
func startServer(t *testing.T, dir string, args ...string) *server {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	s := &server{t: t, dir: dir, args: args, addr: freeAddr(t), http: newHTTPClient()}
	t.Cleanup(s.kill)
	s.start()
	return s
}

// step moves its wall clock away from this machine's.
func (s *server) step(by time.Duration) {
	s.t.Helper()
	name := filepath.Join(s.clockDir, stepFile)
	text := []byte(strconv.FormatInt(by.Milliseconds(), 10))
	if err := errors.Join(os.WriteFile(name+".new", text, 0o600), os.Rename(name+".new", name)); err != nil {
		s.t.Fatal(err)
	}
}

// start runs the process and waits until it is ready.
func (s *server) start() {
	s.t.Helper()
	s.launch()
	if err := s.waitReady(30 * time.Second); err != nil {
		s.t.Fatalf("server is not ready: %v\n%s", err, s.log)
	}
}

func (s *server) launch() {
	s.t.Helper()
	s.log = &logTail{}
	s.cmd = exec.Command(binary, append([]string{"serve", "--data", s.dir, "--listen", s.addr}, s.args...)...)
	if s.binary != "" {
		s.cmd.Path = s.binary
	}
	if s.clockDir != "" {
		s.cmd.Path, s.cmd.Dir = steppedBinary, s.clockDir
	}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.smallDisk > 0 {
		s.onSmallDisk()
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.pid.Store(int64(s.cmd.Process.Pid))
	done := make(chan struct{})
	s.done = done
	cmd := s.cmd
	go func() { // ends with the process
		_ = cmd.Wait()
		close(done)
	}()
}

func (s *server) waitReady(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if code, _ := s.get("/readyz"); code == http.StatusOK {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("it has ended: %v", s.cmd.ProcessState)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// nextPort is where freeAddr looks next: below the ports that the system gives to connections going out, one of which could
// otherwise have a server's port while that is down.
var nextPort atomic.Uint32

const lowestPort, highestPort = 15000, 31999

// freeAddr is a loopback address that was free a moment ago; the server keeps it over its restarts.
func freeAddr(t *testing.T) string {
	t.Helper()
	nextPort.CompareAndSwap(0, lowestPort+rand.Uint32N(highestPort-lowestPort))
	for range highestPort - lowestPort {
		port := nextPort.Add(1)
		if port > highestPort {
			nextPort.CompareAndSwap(port, lowestPort)
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if l, err := net.Listen("tcp", addr); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}

func newHTTPClient() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		Protocols:   protocols,
		DialContext: (&net.Dialer{Timeout: time.Second}).DialContext,
	}}
}

// kill ends the process at once, as a crash would.
func (s *server) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGKILL)
	<-s.done
}

// stop asks the process to end and returns its exit code.
func (s *server) stop() int {
	s.t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	return s.exitCode()
}

// exitCode is that of a process that ends by itself.
func (s *server) exitCode() int {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(30 * time.Second):
		s.kill()
		s.t.Fatalf("server did not stop within 30 s\n%s", s.log)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *server) url(path string) string { return "http://" + s.addr + path }

func (s *server) get(path string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url(path), nil)
	res, err := s.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func (s *server) jobs() carillonv1connect.JobServiceClient {
	return carillonv1connect.NewJobServiceClient(s.http, s.url(""))
}

func (s *server) workers() carillonv1connect.WorkerServiceClient {
	return carillonv1connect.NewWorkerServiceClient(s.http, s.url(""))
}

func (s *server) executions() carillonv1connect.ExecutionServiceClient {
	return carillonv1connect.NewExecutionServiceClient(s.http, s.url(""))
}

// logTail keeps the last lines a process wrote.
type logTail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() > 256<<10 {
		rest := bytes.Clone(l.b.Bytes()[l.b.Len()-64<<10:])
		l.b.Reset()
		l.b.Write(rest)
	}
	return l.b.Write(p)
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
