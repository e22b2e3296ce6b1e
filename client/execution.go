package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Why a handler's context ended, as context.Cause tells.
var (
	// ErrLeaseLost: the server has given the execution to another, or it has ended. What the handler does now is no use.
	ErrLeaseLost = errors.New("lease is lost")
	// ErrCancelled: somebody cancelled the execution.
	ErrCancelled = errors.New("execution is cancelled")
	// ErrShutdown: the worker stops and its grace is over. An error returned now gives the execution back uncounted.
	ErrShutdown = errors.New("worker stops")
)

// Execution is one delivery to a handler. Its exported fields are not used by the library after that.
type Execution struct {
	// ID is the execution's: the same for all its attempts.
	ID, JobID, Tenant, Queue string
	// Attempt counts from 1; released deliveries do not count.
	Attempt, MaxAttempts uint32
	// FencingNumber only grows from delivery to delivery of an execution: hand it to your own store to refuse what a stale
	// holder writes.
	FencingNumber uint64
	// NominalTime is the instant the execution stands for.
	NominalTime time.Time
	// ReceivedTime is when this worker received it, by its own clock.
	ReceivedTime time.Time
	Payload      []byte
	ContentType  string
	PayloadRef   string
	Headers      map[string]string
	Priority     uint32
	Kind         carillonv1.ExecutionKind
	JobVersion   uint64
	// Progress is what the previous attempt reported last; nil: nothing.
	Progress []byte

	token string
	lease time.Duration
	// ahead is by how much the server's clock was ahead of this worker's when the execution was received, or a little less.
	ahead time.Duration
	// cancel ends the handler's context.
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	deadline time.Time
	progress []byte
	// changes counts SetProgress, reported those that the server has.
	changes, reported uint64
}

func newExecution(l *carillonv1.Lease, now time.Time) *Execution {
	lease := l.GetLeaseLength().AsDuration()
	e := &Execution{
		ID: l.GetExecutionId(), JobID: l.GetJobId(), Tenant: l.GetTenant(), Queue: l.GetQueue(),
		Attempt: l.GetAttempt(), MaxAttempts: l.GetMaxAttempts(), FencingNumber: l.GetFencingNumber(),
		NominalTime: l.GetNominalTime().AsTime(), ReceivedTime: now,
		Payload: l.GetPayload(), ContentType: l.GetContentType(), PayloadRef: l.GetPayloadRef(),
		Headers: l.GetHeaders(), Priority: l.GetPriority(), Kind: l.GetKind(), JobVersion: l.GetJobVersion(),
		Progress: l.GetProgress(),
		token:    l.GetLeaseToken(), lease: lease, deadline: now.Add(lease),
	}
	if l.GetDeadline() != nil {
		e.ahead = l.GetDeadline().AsTime().Add(-lease).Sub(now)
	}
	return e
}

// Deadline is when the lease ends unless a heartbeat extends it, by this worker's clock. An outage of the servers extends
// it beyond that: only they say that a lease is lost.
func (e *Execution) Deadline() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.deadline
}

// SetProgress keeps b, of which it makes a copy, for the next attempt, should there be one; the next heartbeat carries it.
// It fails if b is longer than MaxProgress.
func (e *Execution) SetProgress(b []byte) error {
	if len(b) > MaxProgress {
		return fmt.Errorf("set progress: %d bytes are more than %d", len(b), MaxProgress)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.progress = append([]byte{}, b...)
	e.changes++
	return nil
}

// beat is the execution's next heartbeat, and how many changes of progress it carries.
func (e *Execution) beat() (*carillonv1.HeartbeatItem, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	item := &carillonv1.HeartbeatItem{ExecutionId: e.ID, LeaseToken: e.token}
	if e.changes > e.reported {
		item.Progress = e.progress
	}
	return item, e.changes
}

// beaten notes an accepted heartbeat that was sent at a time.
func (e *Execution) beaten(sent time.Time, changes uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deadline, e.reported = sent.Add(e.lease), changes
}

func (e *Execution) hasNews() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changes > e.reported
}

// NonRetryable makes err one that no further attempt can help: the execution becomes a dead letter at once.
func NonRetryable(err error) error { return &nonRetryable{err} }

type nonRetryable struct{ error }

func (e *nonRetryable) Unwrap() error { return e.error }

// RetryAfter makes the next attempt after err come after d, at most 7 days, instead of the retry policy's delay.
func RetryAfter(err error, d time.Duration) error { return &retryAfter{err, d} }

type retryAfter struct {
	error
	delay time.Duration
}

func (e *retryAfter) Unwrap() error { return e.error }

// Release as a handler's error gives the execution back as if it had not been claimed: it is ready again at once, for any
// worker, and the attempt is not counted. A worker that does so lest it work now needs a Gate, or claims it again.
func Release(err error) error { return &released{err} }

type released struct{ error }

func (e *released) Unwrap() error { return e.error }

// SnoozeUntil as a handler's error says that nothing failed but it is not the time yet: the next attempt comes at t. It
// never makes a dead letter.
func SnoozeUntil(t time.Time) error { return &snoozed{until: t} }

// SnoozeFor is SnoozeUntil, d after the handler's end, by the server's clock.
func SnoozeFor(d time.Duration) error { return &snoozed{delay: d} }

type snoozed struct {
	// until is the instant, or zero.
	until time.Time
	delay time.Duration
}

func (s *snoozed) Error() string {
	if s.until.IsZero() {
		return "snoozed for " + s.delay.String()
	}
	return "snoozed until " + s.until.UTC().Format(time.RFC3339Nano)
}

// of is until when e is snoozed at now.
func (s *snoozed) of(e *Execution, now time.Time) time.Time {
	if s.until.IsZero() {
		return now.Add(e.ahead).Add(max(0, s.delay))
	}
	return s.until
}
