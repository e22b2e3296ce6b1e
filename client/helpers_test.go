package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// in runs a test in a bubble with its own clock, with a server in memory and a client of it. A bubble ends only when every
// goroutine in it has, so that each of these tests is also one for leaks.
func in(t *testing.T, test func(t *testing.T, s *clienttest.Server, c *client.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := clienttest.NewServer()
		c := newClient(t, s)
		test(t, s, c)
	})
}

func newClient(t *testing.T, s *clienttest.Server, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New("", append([]client.Option{client.WithTransport(s)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func now() *client.Schedule { return client.After(0) }

// create accepts a job that is due at once, and returns its execution's id.
func create(t *testing.T, c *client.Client, job client.Job) string {
	t.Helper()
	if job.Schedule == nil {
		job.Schedule = now()
	}
	receipt, err := c.Create(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range c.ListExecutions(t.Context(), &carillonv1.ListExecutionsRequest{
		Tenant: receipt.Tenant, JobId: receipt.ID,
	}) {
		if err != nil {
			t.Fatal(err)
		}
		return e.GetId()
	}
	t.Fatalf("job %s has no execution", receipt.ID)
	return ""
}

// work runs a worker until the returned function is called, which waits for its end.
func work(t *testing.T, c *client.Client, config client.WorkerConfig, h client.Handler) (stop func()) {
	t.Helper()
	if config.Queues == nil {
		config.Queues = []string{"default"}
	}
	config.Name = "w1"
	w := client.NewWorker(c, config, h)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("worker ended with %v", err)
		}
	}
}

// until waits for an execution's state, for at most an hour of the bubble's time.
func until(t *testing.T, s *clienttest.Server, id string, state carillonv1.ExecutionState) *carillonv1.Execution {
	t.Helper()
	for deadline := time.Now().Add(time.Hour); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if e := s.Execution(id); e.GetState() == state {
			return e
		}
	}
	t.Fatalf("execution %s is %s, want %s", id, s.Execution(id).GetState(), state)
	return nil
}
