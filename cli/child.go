package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How long a child server may take to listen and to stop.
const (
	childStart = 10 * time.Second
	childStop  = 5 * time.Second
)

// child is a server in a process of its own, of this same binary.
type child struct {
	cmd     *exec.Cmd
	address string
	log     tail
	// exited is closed when the process has ended, after ended was set to how.
	exited chan struct{}
	ended  error
	reaper sync.WaitGroup
}

// startChild starts a server on dir and waits until it listens. It fails, and leaves no process, if that does not happen.
func startChild(ctx context.Context, dir string) (*child, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	s := &child{
		cmd:    exec.Command(binary, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--log-level", "warn"),
		exited: make(chan struct{}),
	}
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = ownGroup()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	s.reaper.Go(func() {
		s.ended = s.cmd.Wait()
		close(s.exited)
	})
	if err := s.listening(ctx, filepath.Join(dir, "address")); err != nil {
		return nil, errors.Join(fmt.Errorf("start server: %w\n%s", err, s.lastWords()), s.stop())
	}
	return s, nil
}

// listening waits for the file in which a server says where it listens.
func (s *child) listening(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, childStart)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		body, err := os.ReadFile(file)
		if s.address = strings.TrimSpace(string(body)); err == nil && s.address != "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.exited:
			return fmt.Errorf("it ended: %w", s.ended)
		case <-ctx.Done():
			return fmt.Errorf("it does not listen: %w", ctx.Err())
		}
	}
}

// stop ends the process, in order if it will, and waits for it.
func (s *child) stop() error {
	defer s.reaper.Wait()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop server: %w", err)
	}
	timer := time.NewTimer(childStop)
	defer timer.Stop()
	select {
	case <-s.exited:
		return nil
	case <-timer.C:
	}
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill server: %w", err)
	}
	<-s.exited
	return nil
}

func (s *child) lastWords() string { return s.log.String() }
