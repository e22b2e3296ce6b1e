package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Handler runs one execution. ctx ends when the lease is lost, the execution is cancelled or the worker has stopped for
// longer than its grace; context.Cause tells which. A nil error completes the execution with result; another fails the
// attempt, unless it is made by NonRetryable, RetryAfter, SnoozeUntil, SnoozeFor or Release. A panic is a failure. A handler must end when ctx
// does: the worker keeps its lease until then.
type Handler func(ctx context.Context, e *Execution) (result []byte, err error)

// WorkerConfig says what a worker takes and how. Only Queues is required.
type WorkerConfig struct {
	// Queues to take from, 1 to 64.
	Queues []string
	// Name is shown in history. Default: host name and process id.
	Name string
	// Concurrency is how many handlers run at once. Default: 10.
	Concurrency int
	// ClaimBatch is how many executions one call asks for at most, 1 to 1,000. Default: Concurrency, at most 1,000.
	ClaimBatch int
	// Lease is how long an execution stays with a worker that has fallen silent, 1 s to 24 h. Default: each job's own.
	Lease time.Duration
	// Wait is how long a call waits for work, at most 60 s. Default: 30 s.
	Wait time.Duration
	// Gate, if it is set, is asked before each claim how many of the free places may be filled now, for a worker that depends
	// on something which may be away. It waits until that is at least one or ctx ends; after another answer it is asked again
	// a second later. What a claim brings that was sent before is given to the handler all the same: see Release.
	Gate func(ctx context.Context, free int) int
	// Grace is how long handlers may go on after Run's context has ended. Default: 20 s; negative: none.
	Grace time.Duration
	// Hurry ends what is left of the grace when it is closed, or at once if it was closed before: for a second signal. It
	// does not stop a worker by itself. Default: nil, never.
	Hurry <-chan struct{}
	// Logger is told of lost leases, panics and calls that fail; of claims the first time and when one is answered again.
	// Default: the client's if it was given one, else slog.Default().
	Logger *slog.Logger
}

// Worker claims executions and runs them. Make it with NewWorker.
type Worker struct {
	client  *Client
	config  WorkerConfig
	handler Handler
	// invalid is what is wrong with the configuration, or nil.
	invalid error
}

// NewWorker makes a worker of config's queues. If config is beyond a limit, Run says so.
func NewWorker(c *Client, config WorkerConfig, handler Handler) *Worker {
	if config.Name == "" {
		config.Name = defaultName()
	}
	if config.Concurrency == 0 {
		config.Concurrency = 10
	}
	if config.ClaimBatch == 0 {
		config.ClaimBatch = min(config.Concurrency, 1000)
	}
	if config.Wait == 0 {
		config.Wait = 30 * time.Second
	}
	if config.Grace == 0 {
		config.Grace = 20 * time.Second
	}
	if config.Logger == nil {
		config.Logger = c.options.workerLogger
	}
	return &Worker{client: c, config: config, handler: handler, invalid: config.validate()}
}

func (c WorkerConfig) validate() error {
	switch {
	case len(c.Queues) < 1 || len(c.Queues) > 64:
		return fmt.Errorf("queues: want 1 to 64, have %d", len(c.Queues))
	case c.Concurrency < 1 || c.Concurrency > 100_000:
		return fmt.Errorf("concurrency: want 1 to 100,000, is %d", c.Concurrency)
	case c.ClaimBatch < 1 || c.ClaimBatch > 1000:
		return fmt.Errorf("claim batch: want 1 to 1,000, is %d", c.ClaimBatch)
	case c.Lease != 0 && (c.Lease < time.Second || c.Lease > 24*time.Hour):
		return fmt.Errorf("lease: want 1 s to 24 h, is %s", c.Lease)
	case c.Wait < 0 || c.Wait > time.Minute:
		return fmt.Errorf("wait: want at most 60 s, is %s", c.Wait)
	}
	return nil
}

// defaultName is the host's name, as far as names allow its characters, and the process id.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	host = strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z') {
			return r
		}
		return '-'
	}, host)
	return fmt.Sprintf("%.100s-%d", host, os.Getpid())
}

// Run claims and runs executions until ctx ends or the server refuses the claims for good, which is the error it returns; a
// configuration beyond a limit is an ErrInvalid that names the field.
// Then it claims no more, lets handlers go on for the grace, ends their contexts with ErrShutdown, waits for them, and
// gives back uncounted what they did not finish. It returns nil if ctx ended it, whatever was left. A Worker can be run
// again, and more than once at a time.
func (w *Worker) Run(ctx context.Context) error {
	if w.invalid != nil {
		return fmt.Errorf("run worker: %w: %w", ErrInvalid, w.invalid)
	}
	r := newRun(ctx, w)
	r.background.Go(r.beats)
	err := r.claims(ctx)
	r.stop()
	return err
}

// claims takes executions while there are slots for them. A claim whose answer is lost keeps its id and its size until it
// has one, so that what was leased is not left to expire.
func (r *run) claims(ctx context.Context) error {
	id, n := newKey(), 0 // n is 0 until the claim is sent
	for failures := 0; ; {
		free := r.slots.wait(ctx)
		if ctx.Err() != nil {
			r.reclaim(id, n)
			return nil
		}
		if n == 0 {
			if free = r.gate(ctx, free); free < 1 {
				continue
			}
			n = min(free, r.worker.config.ClaimBatch)
		}
		leases, err := r.claim(ctx, id, n, r.worker.config.Wait)
		switch {
		case err == nil:
			r.sayAnswered()
			id, n, failures = newKey(), 0, 0
			r.start(ctx, leases)
		case ctx.Err() != nil:
			r.reclaim(id, n)
			return nil
		case isFinal(err):
			return fmt.Errorf("claim executions: %w", err)
		default:
			failures++
			r.log.Warn("claim failed", "error", err)
			sleep(ctx, backoff(failures+4, 0))
		}
	}
}

// gate is how many of the free places may be filled; none if ctx has ended.
func (r *run) gate(ctx context.Context, free int) int {
	if r.worker.config.Gate == nil {
		return free
	}
	admitted := min(free, r.worker.config.Gate(ctx, free))
	if admitted < 1 {
		sleep(ctx, gateDelay)
	}
	if ctx.Err() != nil {
		return 0
	}
	return admitted
}

func (r *run) claim(ctx context.Context, id string, n int, wait time.Duration) ([]*carillonv1.Lease, error) {
	req := &carillonv1.ClaimRequest{
		Worker: r.worker.config.Name, ClaimId: id, Queues: r.worker.config.Queues,
		MaxExecutions: uint32(n), Wait: durationpb.New(wait),
	}
	if r.worker.config.Lease > 0 {
		req.Lease = durationpb.New(r.worker.config.Lease)
	}
	ctx, cancel := context.WithTimeout(ctx, wait+3*tryTimeout)
	defer cancel()
	c := r.worker.client
	p := policy{identified: true, try: wait + tryTimeout, retrying: r.sayUnanswered}
	res, err := unary(ctx, c, p, c.workers.Claim, req)
	return res.GetLeases(), err
}

// sayUnanswered tells at once that a claim failed and what comes next, but not again until one was answered. It runs on the
// goroutine of claims.
func (r *run) sayUnanswered(failed *Error, address string, delay time.Duration) {
	if r.unanswered {
		return
	}
	r.unanswered = true
	r.log.Warn("claim failed, trying until one is answered", "error", failed, "next", address, "delay", delay)
}

func (r *run) sayAnswered() {
	if r.unanswered {
		r.unanswered = false
		r.log.Info("claims are answered again")
	}
}

// reclaim asks for what the claim that the end of the run interrupted, if it was sent, may have been granted, to give it
// back at once.
func (r *run) reclaim(id string, n int) {
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(r.work, drainTimeout)
	defer cancel()
	leases, err := r.claim(ctx, id, n, 0)
	if err != nil {
		r.log.Debug("last claim not settled", "error", err)
		return
	}
	r.release(leases)
}

// isFinal reports whether a call must fail again: the request is at fault.
func isFinal(err error) bool {
	var failed *Error
	if !errors.As(err, &failed) || !failed.answered {
		return false
	}
	switch failed.Code {
	case connect.CodeInvalidArgument, connect.CodeUnauthenticated, connect.CodePermissionDenied,
		connect.CodeNotFound, connect.CodeFailedPrecondition, connect.CodeUnimplemented:
		return true
	default:
		return false
	}
}
