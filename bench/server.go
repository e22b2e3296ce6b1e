package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	startLimit = 2 * time.Minute  // from start to the address file; a large store may take its time
	stopLimit  = 60 * time.Second // from SIGTERM to the end
	readyEvery = 10 * time.Millisecond
)

// server is a real server in a process of its own, with default settings on a temporary directory.
type server struct {
	binary string
	dir    string
	addr   string
	args   []string
	cmd    *exec.Cmd
	output *tail
	reaper errgroup.Group
	// exited is closed when the process has ended; exitErr says how.
	exited  chan struct{}
	exitErr error
}

// start starts the process and returns once it says where it serves. A second start, after kill, serves on the same
// address and data.
func (s *server) start(ctx context.Context) error {
	file := filepath.Join(s.dir, "address")
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start server: %w", err)
	}
	// Not CommandContext: when ctx ends, close still stops the server in order.
	s.cmd = exec.Command(s.binary, append([]string{"serve", "--data", s.dir, "--listen", s.addr}, s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	s.exited = make(chan struct{})
	cmd, exited := s.cmd, s.exited
	s.reaper.Go(func() error { // ends with the process, which kill and stop see to
		defer close(exited)
		s.exitErr = cmd.Wait()
		return nil
	})
	return s.awaitAddress(ctx, file)
}

func (s *server) awaitAddress(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		if b, err := os.ReadFile(file); err == nil && len(bytes.TrimSpace(b)) > 0 {
			s.addr = string(bytes.TrimSpace(b))
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("start server: it ended (%v); its last output:\n%s", s.exitErr, s.output)
		case <-ctx.Done():
			return fmt.Errorf("start server: no address in %s: %w; its last output:\n%s", file, ctx.Err(), s.output)
		case <-poll.C:
		}
	}
}

// ready returns once the server says that it fires and serves: a server that has only just begun to listen may refuse.
func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	url := "http://" + s.addr + "/readyz"
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("await ready server: %w", err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			if err := resp.Body.Close(); err != nil {
				return fmt.Errorf("await ready server: %w", err)
			}
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-s.exited:
			return fmt.Errorf("await ready server: it ended (%v); its last output:\n%s", s.exitErr, s.output)
		case <-ctx.Done():
			return fmt.Errorf("await ready server: %w; its last answer: %w; its last output:\n%s", ctx.Err(), err, s.output)
		case <-time.After(readyEvery):
		}
	}
}

// kill ends the process at once, as a crash does.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill server: %w", err)
	}
	<-s.exited
	return nil
}

// stop stops the server in order.
func (s *server) stop() error {
	if s.exited == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop server: %w", err)
	}
	select {
	case <-s.exited:
	case <-time.After(stopLimit):
		return errors.Join(fmt.Errorf("stop server: still there after %v; its last output:\n%s", stopLimit, s.output), s.kill())
	}
	if s.exitErr != nil {
		return fmt.Errorf("stop server: it ended with %w; its last output:\n%s", s.exitErr, s.output)
	}
	return nil
}

// pid is the server's process id.
func (s *server) pid() int { return s.cmd.Process.Pid }

// tailBytes bounds how much of the server's output is kept for error messages.
const tailBytes = 8 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
