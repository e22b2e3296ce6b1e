package client_test

import (
	"bytes"
	"context"
	stdlog "log"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
)

// A worker that finds no server says so at once and where it tries next, then keeps quiet until one answers.
func TestWorkerSaysThatNoServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := clienttest.NewServer()
		var log bytes.Buffer
		var mu sync.Mutex
		logger := slog.New(slog.NewTextHandler(locked{&mu, &log}, nil))
		c, err := client.New("10.0.0.1:1,10.0.0.2:2", client.WithTransport(s), client.WithLogger(logger))
		if err != nil {
			t.Fatal(err)
		}
		s.Before(func(context.Context, clienttest.Call) error { return clienttest.Fail(connect.CodeUnavailable, "away") })
		stop := work(t, c, client.WorkerConfig{}, func(context.Context, *client.Execution) ([]byte, error) { return nil, nil })
		time.Sleep(time.Millisecond)
		said := func() string {
			mu.Lock()
			defer mu.Unlock()
			return log.String()
		}
		first := said()
		for _, part := range []string{"level=WARN", "claim failed, trying until one is answered", "away", "next=http://10.0.0.2:2", "delay=0s"} {
			if !strings.Contains(first, part) {
				t.Errorf("after a millisecond the log has no %q: %s", part, first)
			}
		}
		time.Sleep(30 * time.Second)
		if now := said(); now != first || s.Calls("Claim") < 5 {
			t.Errorf("after %d claims the log has more: %s", s.Calls("Claim"), now)
		}
		s.Before(nil)
		id := create(t, c, client.Job{ID: "a"})
		until(t, s, id, succeeded)
		stop()
		if now := said(); strings.Count(now, "\n") != 2 || !strings.Contains(now, "level=INFO msg=\"claims are answered again\"") {
			t.Errorf("when it was over the log had: %s", now)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Whoever gives no logger hears of it by the program's own.
func TestWorkersLogByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		before, flags := slog.Default(), stdlog.Flags()
		slog.SetDefault(slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)))
		defer func() {
			slog.SetDefault(before)
			stdlog.SetOutput(os.Stderr) // the other default had it redirected
			stdlog.SetFlags(flags)
		}()
		s := clienttest.NewServer()
		s.Before(func(context.Context, clienttest.Call) error { return clienttest.Fail(connect.CodeUnavailable, "away") })
		c := newClient(t, s)
		stop := work(t, c, client.WorkerConfig{}, func(context.Context, *client.Execution) ([]byte, error) { return nil, nil })
		time.Sleep(time.Millisecond)
		stop()
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(log.String(), "claim failed") {
			t.Errorf("the program's log has: %s", &log)
		}
	})
}
