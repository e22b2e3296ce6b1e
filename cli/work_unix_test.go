//go:build unix

package cli

import (
	"context"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
)

// These take the process's signals, which no bubble of time bears.

func TestWorkEndsWithTheCodeOfWhatIsWrong(t *testing.T) {
	server := clienttest.NewServer()
	server.Before(func(context.Context, clienttest.Call) error {
		return clienttest.Fail(connect.CodePermissionDenied, "not yours")
	})
	tests := []struct{ line, want string }{
		{"--lease 1ms", "! carillon: run worker: invalid argument: lease: want 1 s to 24 h, is 1ms\nexit 2\n"},
		{"--addr ::", "exit 2\n"},
		{"--lease 1m", "! carillon: claim executions: permission_denied: not yours\nexit 7\n"},
	}
	for _, test := range tests {
		line := "work --queue q --log-level error " + test.line + " -- true"
		if got := session(t.Context(), server, words(line), nil); !strings.HasSuffix(got, test.want) {
			t.Errorf("%s: %s", line, got)
		}
	}
}

// The first signal lets the program finish; a context that ends does, too.
func TestWorkEndsInOrder(t *testing.T) {
	// Whoever listens as well is not ended by a signal.
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGHUP)
	defer stop()
	server := clienttest.NewServer()
	c, err := client.New("", client.WithTransport(server))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx, client.Job{ID: "j", Queue: "q", Schedule: client.After(0), Payload: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	server.Before(func(_ context.Context, call clienttest.Call) error {
		if call.Method == "Complete" {
			return syscall.Kill(syscall.Getpid(), syscall.SIGHUP)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	got := session(ctx, server, words("work --queue q --name w1 -- cat"), nil)
	for _, part := range []string{"program ended", "stopping: what runs may finish", "signal=hangup"} {
		if !strings.Contains(got, part) {
			t.Errorf("the log has no %q: %s", part, got)
		}
	}
	if strings.Contains(got, "\nexit ") || ctx.Err() != nil {
		t.Errorf("it ended with %s", got)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
