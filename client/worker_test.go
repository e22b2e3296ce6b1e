package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	leased    = carillonv1.ExecutionState_EXECUTION_STATE_LEASED
	ready     = carillonv1.ExecutionState_EXECUTION_STATE_READY
	retrying  = carillonv1.ExecutionState_EXECUTION_STATE_RETRYING
	succeeded = carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED
	dead      = carillonv1.ExecutionState_EXECUTION_STATE_DEAD
	cancelled = carillonv1.ExecutionState_EXECUTION_STATE_CANCELLED
)

func TestWorkerGetsWhatTheProducerGaveAndReturnsItsResult(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		payload := []byte("a\x00b\xff")
		at := time.Now().Add(time.Minute)
		id := create(t, c, client.Job{
			ID: "a", Tenant: "acme", Queue: "mail", Schedule: client.At(at), Payload: payload,
			Headers: map[string]string{"traceparent": "00-1"}, ContentType: "x/y", Priority: new(uint32(9)),
		})
		stop := work(t, c, client.WorkerConfig{Queues: []string{"mail"}},
			func(_ context.Context, e *client.Execution) ([]byte, error) {
				if e.ID != id || e.JobID != "a" || e.Tenant != "acme" || e.Queue != "mail" || e.Attempt != 1 ||
					e.FencingNumber != 1 || e.ContentType != "x/y" || e.Headers["traceparent"] != "00-1" ||
					e.Priority != 9 || !e.NominalTime.Equal(at) || e.ReceivedTime.Before(at) {
					t.Errorf("received %+v", e)
				}
				return append(e.Payload, 0), nil
			})
		e := until(t, s, id, succeeded)
		stop()
		if want := append(payload, 0); !bytes.Equal(e.GetResult(), want) || e.GetAttempts()[0].GetWorker() != "w1" {
			t.Errorf("result %q by %s", e.GetResult(), e.GetAttempts()[0].GetWorker())
		}
	})
}

func TestConcurrencyIsABoundAndIsUsed(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		var ids []string
		for i := range 50 {
			ids = append(ids, create(t, c, client.Job{ID: fmt.Sprint(i)}))
		}
		var running, most atomic.Int32
		began := time.Now()
		stop := work(t, c, client.WorkerConfig{Concurrency: 10},
			func(context.Context, *client.Execution) ([]byte, error) {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				return nil, nil
			})
		for _, id := range ids {
			until(t, s, id, succeeded)
		}
		stop()
		if took := time.Since(began); most.Load() != 10 || took > 6*time.Second {
			t.Errorf("at most %d ran at once, all took %s", most.Load(), took)
		}
		if calls := s.Calls("Complete"); calls > 20 {
			t.Errorf("50 completions took %d calls", calls)
		}
	})
}

func TestClaimWhoseAnswerIsLostIsRepeatedUnderItsId_W11(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		var ids []string
		for i := range 5 {
			ids = append(ids, create(t, c, client.Job{ID: fmt.Sprint(i), Retry: &client.RetryPolicy{MaxAttempts: 1}}))
		}
		s.After(func(_ context.Context, call clienttest.Call) error {
			if call.Method == "Claim" && call.N <= 3 {
				return clienttest.Fail(connect.CodeUnavailable, "the answer is lost")
			}
			return nil
		})
		var runs atomic.Int32
		stop := work(t, c, client.WorkerConfig{}, func(_ context.Context, e *client.Execution) ([]byte, error) {
			runs.Add(1)
			return nil, nil
		})
		for _, id := range ids {
			if e := until(t, s, id, succeeded); e.GetAttemptsTotal() != 1 {
				t.Errorf("%s had %d attempts", id, e.GetAttemptsTotal())
			}
		}
		stop()
		if runs.Load() != 5 {
			t.Errorf("5 executions ran %d times", runs.Load())
		}
	})
}

func TestHeartbeatsKeepLeasesAndCarryProgressToTheNextAttempt(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		ids := []string{create(t, c, client.Job{ID: "a"}), create(t, c, client.Job{ID: "b"})}
		stop := work(t, c, client.WorkerConfig{Lease: 30 * time.Second},
			func(_ context.Context, e *client.Execution) ([]byte, error) {
				if e.Attempt == 2 {
					return e.Progress, nil
				}
				time.Sleep(50 * time.Second)
				if !e.Deadline().After(time.Now().Add(19 * time.Second)) {
					t.Errorf("lease ends in %s", time.Until(e.Deadline()))
				}
				// After the last heartbeat, and before the failure.
				if err := e.SetProgress([]byte("half of " + e.JobID)); err != nil {
					t.Error(err)
				}
				return nil, errors.New("no")
			})
		for _, id := range ids {
			e := until(t, s, id, succeeded)
			if string(e.GetResult()) != "half of "+e.GetJobId() {
				t.Errorf("progress %q", e.GetResult())
			}
		}
		stop()
		// One every ten seconds for both together, and at most one each with the progress.
		if calls := s.Calls("Heartbeat"); calls < 5 || calls > 7 {
			t.Errorf("%d heartbeat calls", calls)
		}
	})
}

// A beat that hangs is one call's trouble: the next claim's short lease lives, whatever becomes of the long one's beat.
func TestABeatThatHangsKeepsNoOtherBack(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		long := create(t, c, client.Job{ID: "long", Lease: time.Hour})
		hangs := make(chan struct{}, 100)
		s.Before(func(ctx context.Context, call clienttest.Call) error {
			if req, ok := call.Request.(*carillonv1.HeartbeatRequest); ok && req.GetItems()[0].GetExecutionId() == long {
				hangs <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		shortDone := make(chan struct{})
		stop := work(t, c, client.WorkerConfig{Concurrency: 2}, func(ctx context.Context, e *client.Execution) ([]byte, error) {
			if e.ID == long {
				<-shortDone
				return nil, ctx.Err()
			}
			defer close(shortDone)
			for range 30 {
				time.Sleep(time.Second)
				if left := time.Until(e.Deadline()); left <= 0 {
					t.Errorf("the short lease ended %s ago", -left)
				}
			}
			return nil, ctx.Err()
		})
		<-hangs
		until(t, s, create(t, c, client.Job{ID: "short", Lease: 3 * time.Second}), succeeded)
		until(t, s, long, succeeded)
		stop()
	})
}

func TestProgressHasALimit(t *testing.T) {
	var e client.Execution
	if err := e.SetProgress(make([]byte, client.MaxProgress)); err != nil {
		t.Error(err)
	}
	if err := e.SetProgress(make([]byte, client.MaxProgress+1)); err == nil {
		t.Error("more than the limit was taken")
	}
}

func TestLostLeaseEndsTheHandlersContext_W2(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a"})
		causes := make(chan error, 2)
		stop := work(t, c, client.WorkerConfig{}, func(ctx context.Context, e *client.Execution) ([]byte, error) {
			if e.Attempt == 2 {
				return []byte("second"), nil
			}
			s.Take(id)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		})
		e := until(t, s, id, succeeded)
		if cause := <-causes; !errors.Is(cause, client.ErrLeaseLost) {
			t.Errorf("cause is %v", cause)
		}
		stop()
		if string(e.GetResult()) != "second" || e.GetAttempts()[0].GetOutcome() != carillonv1.Outcome_OUTCOME_LOST {
			t.Errorf("execution %v", e)
		}
	})
}

func TestCancelEndsTheHandlersContext_W4(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a"})
		causes := make(chan error, 1)
		stop := work(t, c, client.WorkerConfig{}, func(ctx context.Context, e *client.Execution) ([]byte, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		})
		until(t, s, id, leased)
		began := time.Now()
		if _, err := c.CancelExecution(t.Context(), &carillonv1.CancelExecutionRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
		if cause := <-causes; !errors.Is(cause, client.ErrCancelled) || time.Since(began) > 10*time.Second {
			t.Errorf("cause is %v after %s", cause, time.Since(began))
		}
		until(t, s, id, cancelled)
		stop()
	})
}

func explode() { panic("boom") }

func TestPanicIsAFailureThatTellsWhere(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a", Retry: &client.RetryPolicy{MaxAttempts: 1}})
		stop := work(t, c, client.WorkerConfig{}, func(context.Context, *client.Execution) ([]byte, error) {
			explode()
			return nil, nil
		})
		e := until(t, s, id, dead)
		stop()
		lines := strings.Split(e.GetError(), "\n")
		if lines[0] != "panic: boom" || !strings.Contains(lines[1], "explode") || len(lines) > 21 {
			t.Errorf("error is %s", e.GetError())
		}
	})
}

func TestHandlerThatEndsItsGoroutineFailsTheAttempt(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a", Retry: &client.RetryPolicy{MaxAttempts: 1}})
		stop := work(t, c, client.WorkerConfig{Concurrency: 1}, func(_ context.Context, e *client.Execution) ([]byte, error) {
			if e.ID == id {
				runtime.Goexit()
			}
			return nil, nil
		})
		if e := until(t, s, id, dead); e.GetError() != "the handler ended its goroutine instead of returning" {
			t.Errorf("error is %s", e.GetError())
		}
		until(t, s, create(t, c, client.Job{ID: "b"}), succeeded) // its place is free
		stop()
	})
}

func TestHandlersErrorDecidesWhatComesNext(t *testing.T) {
	no := errors.New("no")
	tests := []struct {
		name  string
		err   error
		state carillonv1.ExecutionState
		// next is the delay until the next attempt, 0: none.
		next time.Duration
		text string
	}{
		{"plain: by the retry policy", no, retrying, time.Second, "no"},
		{"retry after", fmt.Errorf("busy: %w", client.RetryAfter(no, time.Hour)), retrying, time.Hour, "busy: no"},
		{"not retryable", client.NonRetryable(no), dead, 0, "no"},
		{"snooze", client.SnoozeUntil(time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)), retrying, 24 * time.Hour, ""},
		{"snooze for a while", fmt.Errorf("busy: %w", client.SnoozeFor(time.Hour)), retrying, time.Hour, ""},
		{"text that is none, and long", errors.New("\xff\x00" + strings.Repeat("ä", 4000)), retrying, time.Second,
			"\uFFFD\uFFFD" + strings.Repeat("ä", 2045)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
				id := create(t, c, client.Job{ID: "a"})
				began := time.Now()
				stop := work(t, c, client.WorkerConfig{}, func(context.Context, *client.Execution) ([]byte, error) {
					return nil, test.err
				})
				e := until(t, s, id, test.state)
				stop()
				if test.next > 0 && !e.GetNextTime().AsTime().Equal(began.Add(test.next)) {
					t.Errorf("next attempt at %s, want in %s", e.GetNextTime().AsTime(), test.next)
				}
				if e.GetError() != test.text {
					t.Errorf("error is %q, want %q", e.GetError(), test.text)
				}
			})
		})
	}
}

func TestStoppingWorkerGivesBackUncounted_W3(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a", Retry: &client.RetryPolicy{MaxAttempts: 1}})
		stop := work(t, c, client.WorkerConfig{Grace: -1}, func(ctx context.Context, _ *client.Execution) ([]byte, error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), client.ErrShutdown) {
				t.Errorf("cause is %v", context.Cause(ctx))
			}
			// The lease is kept until the handler ends, however long that takes.
			time.Sleep(2 * time.Minute)
			if s.Execution(id).GetState() != leased {
				t.Error("the lease was given up while the handler ran")
			}
			return nil, ctx.Err()
		})
		until(t, s, id, leased)
		stop()
		e := s.Execution(id)
		if e.GetState() != ready || e.GetAttempt() != 0 ||
			e.GetAttempts()[0].GetOutcome() != carillonv1.Outcome_OUTCOME_RELEASED {
			t.Errorf("execution %v", e)
		}
		if beats := s.Calls("Heartbeat"); beats < 11 {
			t.Errorf("%d heartbeats in two minutes", beats)
		}
		stop = work(t, c, client.WorkerConfig{}, func(_ context.Context, e *client.Execution) ([]byte, error) {
			return fmt.Append(nil, e.Attempt), nil
		})
		if e := until(t, s, id, succeeded); string(e.GetResult()) != "1" {
			t.Errorf("ran as attempt %s", e.GetResult())
		}
		stop()
	})
}

func TestStoppingWorkerLetsHandlersFinishWithinTheGrace(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a"})
		stop := work(t, c, client.WorkerConfig{Grace: 10 * time.Second},
			func(ctx context.Context, _ *client.Execution) ([]byte, error) {
				time.Sleep(9 * time.Second)
				return []byte("done"), ctx.Err()
			})
		until(t, s, id, leased)
		create(t, c, client.Job{ID: "later", Schedule: client.After(time.Second)})
		stop()
		if e := s.Execution(id); e.GetState() != succeeded {
			t.Errorf("execution %v", e)
		}
		if claims := s.Calls("Claim"); claims > 3 {
			t.Errorf("%d claims", claims)
		}
	})
}

func TestClaimThatTheEndInterruptsIsSettled_W3(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		var stop func()
		stopping := make(chan struct{})
		s.After(func(ctx context.Context, call clienttest.Call) error {
			// The worker is stopped when the leases are granted but have not arrived.
			if call.Method == "Claim" && call.N == 2 {
				close(stopping)
				<-ctx.Done()
			}
			return nil
		})
		stop = work(t, c, client.WorkerConfig{}, func(context.Context, *client.Execution) ([]byte, error) {
			t.Error("the handler was called")
			return nil, nil
		})
		time.Sleep(31 * time.Second) // The second long poll has begun.
		together := client.At(time.Now().Add(time.Second))
		ids := []string{create(t, c, client.Job{ID: "a", Schedule: together}), create(t, c, client.Job{ID: "b", Schedule: together})}
		<-stopping
		stop()
		for _, id := range ids {
			if e := s.Execution(id); e.GetState() != ready || e.GetAttempt() != 0 {
				t.Errorf("execution %v", e)
			}
		}
	})
}

func TestClaimThatFailedIsSettledWhenTheEndComesBeforeItsNextTry_W3(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a"})
		var lossless atomic.Bool
		s.After(func(_ context.Context, call clienttest.Call) error {
			if call.Method == "Claim" && !lossless.Load() {
				return clienttest.Fail(connect.CodeUnavailable, "lost")
			}
			return nil
		})
		var log bytes.Buffer
		var mu sync.Mutex
		failed := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(log.String(), `msg="claim failed"`)
		}
		config := client.WorkerConfig{Logger: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil))}
		stop := work(t, c, config, func(context.Context, *client.Execution) ([]byte, error) {
			t.Error("the handler was called")
			return nil, nil
		})
		for !failed() {
			time.Sleep(time.Millisecond)
		}
		lossless.Store(true) // Only the worker's last word gets an answer.
		stop()
		if e := s.Execution(id); e.GetState() != ready || e.GetAttempt() != 0 {
			t.Errorf("execution %v", e)
		}
	})
}

// locked is a writer that its reader can lock.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func TestWorkGoesOnWhileTheServersAreAway_W13(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a"})
		var down, up time.Time
		var mu sync.Mutex
		s.Before(func(context.Context, clienttest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if time.Now().After(down) && time.Now().Before(up) {
				return clienttest.Fail(connect.CodeUnavailable, "down")
			}
			return nil
		})
		stop := work(t, c, client.WorkerConfig{}, func(ctx context.Context, _ *client.Execution) ([]byte, error) {
			mu.Lock()
			down, up = time.Now(), time.Now().Add(10*time.Minute)
			mu.Unlock()
			select {
			case <-time.After(5 * time.Minute):
			case <-ctx.Done():
				t.Errorf("interrupted: %v", context.Cause(ctx))
			}
			return []byte("done"), nil
		})
		e := until(t, s, id, succeeded)
		stop()
		if late := e.GetFinishTime().AsTime().Sub(up); e.GetAttemptsTotal() != 1 || late > 10*time.Second {
			t.Errorf("completed %s after the servers were back, %d attempts", late, e.GetAttemptsTotal())
		}
	})
}

func TestResultThatIsTooLongFailsTheAttempt_W7(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a", Retry: &client.RetryPolicy{MaxAttempts: 1}})
		stop := work(t, c, client.WorkerConfig{}, func(context.Context, *client.Execution) ([]byte, error) {
			return make([]byte, 256<<10+1), nil
		})
		e := until(t, s, id, dead)
		stop()
		if !strings.Contains(e.GetError(), "result of 262145 bytes refused") {
			t.Errorf("error is %q", e.GetError())
		}
	})
}

func TestClaimThatIsRefusedForGoodEndsTheWorker(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(context.Context, clienttest.Call) error {
			return clienttest.Fail(connect.CodeInvalidArgument, "queues[0]: bad")
		})
		w := client.NewWorker(c, client.WorkerConfig{Queues: []string{"bad queue"}}, nil)
		if err := w.Run(t.Context()); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestWorkerConfigNamesTheFieldAtFault(t *testing.T) {
	tests := map[string]client.WorkerConfig{
		"queues":      {},
		"concurrency": {Queues: []string{"q"}, Concurrency: -1},
		"claim batch": {Queues: []string{"q"}, ClaimBatch: 1001},
		"lease":       {Queues: []string{"q"}, Lease: time.Millisecond},
		"wait":        {Queues: []string{"q"}, Wait: 61 * time.Second},
	}
	c := newClient(t, clienttest.NewServer())
	for field, config := range tests {
		if err := client.NewWorker(c, config, nil).Run(t.Context()); err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
