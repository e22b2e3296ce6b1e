package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// run is one Run of a worker.
type run struct {
	worker *Worker
	log    *slog.Logger
	slots  *slots
	held   *held
	// unanswered: the last claim failed, and that was told.
	unanswered bool

	// work outlives Run's context: heartbeats and completions go on under it until everything is settled.
	work    context.Context
	endWork context.CancelFunc
	// handling is what handlers' contexts are made of.
	handling    context.Context
	endHandling context.CancelCauseFunc

	completions *merger[*completion]
	// handlers run user code; executions go on until their completion is settled.
	handlers, executions, background sync.WaitGroup
}

func newRun(ctx context.Context, w *Worker) *run {
	r := &run{worker: w, log: w.config.Logger.With("worker", w.config.Name), held: newHeld()}
	r.slots = newSlots(w.config.Concurrency, w.config.ClaimBatch)
	r.work, r.endWork = context.WithCancel(context.WithoutCancel(ctx))
	r.handling, r.endHandling = context.WithCancelCause(r.work)
	r.completions = newMerger(r.sendCompletions, completionLimits)
	return r
}

// start runs what a claim brought.
func (r *run) start(ctx context.Context, leases []*carillonv1.Lease) {
	if ctx.Err() != nil {
		r.release(leases)
		return
	}
	now := time.Now()
	r.slots.take(len(leases))
	for _, lease := range leases {
		e := newExecution(lease, now)
		handling, cancel := context.WithCancelCause(r.handling)
		e.cancel = cancel
		r.held.add(e, now)
		r.handlers.Add(1)
		r.executions.Go(func() { r.execute(handling, e) })
	}
}

// errNotReturned is the failure of a handler that ended its goroutine, as t.FailNow and runtime.Goexit do.
var errNotReturned = errors.New("the handler ended its goroutine instead of returning")

// execute runs the handler and settles the execution. The heartbeats go on until that is done.
func (r *run) execute(ctx context.Context, e *Execution) {
	defer e.cancel(nil)
	defer r.slots.settled()
	defer r.held.remove(e)

	var result []byte
	err := errNotReturned
	defer func() { r.ended(ctx, e, result, err) }() // also if the handler does not return
	result, err = r.handle(ctx, e)
}

// ended settles an execution whose handler has ended.
func (r *run) ended(ctx context.Context, e *Execution, result []byte, err error) {
	cause := context.Cause(ctx)
	r.slots.handled()
	r.handlers.Done()

	if errors.Is(err, errNotReturned) {
		r.log.Error("handler did not return", "execution", e.ID, "attempt", e.Attempt)
	}
	if err != nil && errors.Is(cause, ErrLeaseLost) {
		r.log.Warn("execution abandoned", "execution", e.ID, "attempt", e.Attempt, "error", err)
		return
	}
	item := &carillonv1.CompleteItem{ExecutionId: e.ID, LeaseToken: e.token}
	setOutcome(item, e, result, err, errors.Is(cause, ErrShutdown))
	if err != nil && e.hasNews() {
		// The next attempt is to begin where this one stopped.
		r.beat(r.work, []*Execution{e})
	}
	r.settle(item)
}

// handle calls the handler and makes an error of its panic.
func (r *run) handle(ctx context.Context, e *Execution) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("handler panicked", "execution", e.ID, "attempt", e.Attempt, "panic", p)
			result, err = nil, fmt.Errorf("panic: %v\n%s", p, panicStack())
		}
	}()
	return r.worker.handler(ctx, e)
}

// panicStack is the first lines of the stack below the panic.
func panicStack() string {
	const lines = 20
	stack := strings.Split(string(debug.Stack()), "\n")
	for i, line := range stack {
		// What stands before it is the recovery's own; its second line is the runtime's file.
		if strings.HasPrefix(line, "panic(") && i+2 < len(stack) {
			stack = stack[i+2:]
			break
		}
	}
	return strings.Join(stack[:min(len(stack), lines)], "\n")
}

// setOutcome says how e's attempt ended, as its handler's result has it.
func setOutcome(item *carillonv1.CompleteItem, e *Execution, result []byte, err error, stopping bool) {
	var (
		snooze *snoozed
		after  *retryAfter
		final  *nonRetryable
		back   *released
	)
	switch {
	case err == nil:
		item.Outcome = &carillonv1.CompleteItem_Succeeded{Succeeded: &carillonv1.Succeeded{Result: result}}
	case errors.As(err, &snooze):
		until := timestamppb.New(snooze.of(e, time.Now()))
		item.Outcome = &carillonv1.CompleteItem_Snoozed{Snoozed: &carillonv1.Snoozed{Until: until}}
	case errors.As(err, &final):
		failed := &carillonv1.Failed{Error: errorText(err), NonRetryable: true}
		item.Outcome = &carillonv1.CompleteItem_Failed{Failed: failed}
	case stopping, errors.As(err, &back):
		item.Outcome = &carillonv1.CompleteItem_Released{Released: &carillonv1.Released{}}
	default:
		failed := &carillonv1.Failed{Error: errorText(err)}
		if errors.As(err, &after) {
			failed.RetryAfter = durationpb.New(max(0, min(after.delay, 7*24*time.Hour)))
		}
		item.Outcome = &carillonv1.CompleteItem_Failed{Failed: failed}
	}
}

// errorText is err as the server takes it: UTF-8, without NUL, not too long.
func errorText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\x00", "\uFFFD")
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxErrorBytes {
		// A rune cut in two goes whole.
		text = strings.ToValidUTF8(text[:maxErrorBytes], "")
	}
	return text
}

// release gives leases back that were never started.
func (r *run) release(leases []*carillonv1.Lease) {
	for _, lease := range leases {
		item := &carillonv1.CompleteItem{
			ExecutionId: lease.GetExecutionId(), LeaseToken: lease.GetLeaseToken(),
			Outcome: &carillonv1.CompleteItem_Released{Released: &carillonv1.Released{}},
		}
		r.executions.Go(func() { r.settle(item) })
	}
}

// stop sees a run to its end, see Worker.Run.
func (r *run) stop() {
	grace := time.AfterFunc(max(0, r.worker.config.Grace), func() { r.endHandling(ErrShutdown) })
	r.background.Go(r.hurry)
	r.handlers.Wait()
	grace.Stop()
	drain := time.AfterFunc(drainTimeout, r.endWork)
	r.executions.Wait()
	drain.Stop()
	r.endWork()
	r.completions.close()
	r.background.Wait()
}

// hurry ends the grace when it is told to.
func (r *run) hurry() {
	select {
	case <-r.worker.config.Hurry:
		r.endHandling(ErrShutdown)
	case <-r.work.Done():
	}
}
