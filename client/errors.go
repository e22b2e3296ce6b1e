package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// What a call's error is, for errors.Is. The details stand in the *Error, for errors.As.
var (
	// ErrInvalid: a field is malformed or beyond its limit; see Error.Violations.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotFound: no such job, execution, queue or tenant.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyExists: the id or idempotency key was used with another body; see Error.Fields.
	ErrAlreadyExists = errors.New("already exists")
	// ErrVersionConflict: the expected version is not the current one; see Error.CurrentVersion.
	ErrVersionConflict = errors.New("version conflict")
	// ErrFailedPrecondition: the state forbids it.
	ErrFailedPrecondition = errors.New("failed precondition")
	// ErrStaleLease: the lease token is no longer good: another holds the execution, or it has ended. It is an
	// ErrFailedPrecondition too.
	ErrStaleLease = fmt.Errorf("stale lease: %w", ErrFailedPrecondition)
	// ErrOverloaded: the server sheds load; nothing was done.
	ErrOverloaded = errors.New("overloaded")
	// ErrUnavailable: no node could serve the call, and what was left of its time or of the retry budget allowed no further
	// try. A try that found no end before the deadline is context.DeadlineExceeded instead. Unless Error.NotApplied says
	// otherwise, either may have been applied: repeat it with the same identity.
	ErrUnavailable = errors.New("unavailable")
	// ErrUnauthenticated: no credentials, or ones that are not accepted.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrPermissionDenied: the credentials do not allow it.
	ErrPermissionDenied = errors.New("permission denied")
)

// kinds is the inverse of the server's table of errors. A deadline that passed is the context's error whoever says so first:
// the server is told of it and may.
var kinds = map[connect.Code]error{
	connect.CodeInvalidArgument:    ErrInvalid,
	connect.CodeNotFound:           ErrNotFound,
	connect.CodeAlreadyExists:      ErrAlreadyExists,
	connect.CodeAborted:            ErrVersionConflict,
	connect.CodeFailedPrecondition: ErrFailedPrecondition,
	connect.CodeResourceExhausted:  ErrOverloaded,
	connect.CodeUnavailable:        ErrUnavailable,
	connect.CodeDeadlineExceeded:   context.DeadlineExceeded,
	connect.CodeUnauthenticated:    ErrUnauthenticated,
	connect.CodePermissionDenied:   ErrPermissionDenied,
}

// Error is how a call, or an item of a batch, failed.
type Error struct {
	// Code is Connect's.
	Code connect.Code
	// Message is one sentence for a person.
	Message string
	// Violations are the fields at fault of an ErrInvalid.
	Violations []Violation
	// Fields are those in which the two requests of an ErrAlreadyExists differ, as far as the server can tell.
	Fields []string
	// CurrentVersion is the version that stands, of an ErrVersionConflict.
	CurrentVersion uint64
	// RetryAfter is how long to wait at least before the next try; 0: the server does not say.
	RetryAfter time.Duration
	// NotApplied: the call certainly did nothing.
	NotApplied bool

	// kind is a sentinel beyond the code's own, or nil.
	kind error
	// answered: the server said it, not the way to it.
	answered bool
	cause    error
}

// Violation names a field of a request and what is wrong with it.
type Violation struct {
	Field, Description string
}

// Error names the code, the message and the fields at fault.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Code.String())
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	for _, v := range e.Violations {
		// Servers may have said it all in the message.
		if !strings.Contains(e.Message, v.Description) || !strings.Contains(e.Message, v.Field) {
			fmt.Fprintf(&b, "; %s: %s", v.Field, v.Description)
		}
	}
	if len(e.Fields) > 0 {
		fmt.Fprintf(&b, " (differs in %s)", strings.Join(e.Fields, ", "))
	}
	if said := fmt.Sprintf("version %d", e.CurrentVersion); e.CurrentVersion > 0 && !strings.Contains(e.Message, said) {
		fmt.Fprintf(&b, " (current version is %d)", e.CurrentVersion)
	}
	return b.String()
}

// Is matches the sentinels above.
func (e *Error) Is(target error) bool {
	return target == kinds[e.Code] || e.kind != nil && errors.Is(e.kind, target)
}

// Unwrap is the transport's or the context's error, if that is what it was.
func (e *Error) Unwrap() error { return e.cause }

// newError reads what Connect says of a failed call.
func newError(err error) *Error {
	e := &Error{Code: connect.CodeOf(err), Message: err.Error(), cause: err, answered: connect.IsWireError(err)}
	var refused *net.OpError
	e.NotApplied = errors.As(err, &refused) && refused.Op == "dial"
	var said *connect.Error
	if !errors.As(err, &said) {
		switch {
		case errors.Is(err, context.Canceled):
			e.Code = connect.CodeCanceled
		case errors.Is(err, context.DeadlineExceeded):
			e.Code = connect.CodeDeadlineExceeded
		}
		return e
	}
	e.Message = said.Message()
	for _, detail := range said.Details() {
		value, err := detail.Value()
		if err != nil {
			// A detail of a newer server: the code and message still stand.
			continue
		}
		switch d := value.(type) {
		case *carillonv1.FieldViolation:
			e.Violations = append(e.Violations, Violation{Field: d.GetField(), Description: d.GetDescription()})
		case *carillonv1.IdempotencyConflict:
			e.Fields = d.GetFields()
		case *carillonv1.VersionConflict:
			e.CurrentVersion = d.GetCurrentVersion()
		case *carillonv1.RetryHint:
			e.RetryAfter, e.NotApplied = d.GetRetryAfter().AsDuration(), true
		}
	}
	return e
}

// newItemError reads why one item of a batch failed. A code that this library does not know is CodeUnknown.
func newItemError(item *carillonv1.ItemError) *Error {
	e := &Error{Code: connect.CodeUnknown, Message: item.GetMessage(), answered: true}
	if err := e.Code.UnmarshalText([]byte(item.GetCode())); err != nil {
		e.Code, e.Message = connect.CodeUnknown, item.GetCode()+": "+item.GetMessage()
	}
	if item.GetRetryAfter() != nil {
		e.RetryAfter, e.NotApplied = item.GetRetryAfter().AsDuration(), true
	}
	switch field := item.GetField(); {
	case field == "":
	case e.Code == connect.CodeInvalidArgument:
		e.Violations = []Violation{{Field: field, Description: item.GetMessage()}}
	case e.Code == connect.CodeAlreadyExists:
		e.Fields = []string{field}
	}
	return e
}

// ofLease marks a failed precondition of a heartbeat or completion as what it is.
func (e *Error) ofLease() *Error {
	if e.Code == connect.CodeFailedPrecondition {
		e.kind = ErrStaleLease
	}
	return e
}

// elsewhere reports whether another node may do better.
func (e *Error) elsewhere() bool {
	switch e.Code {
	case connect.CodeUnavailable:
		return true
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled, connect.CodeDeadlineExceeded:
		return !e.answered
	default:
		return false
	}
}

// mayRepeat reports whether the call may be sent again. One without identity may only if it was not applied.
func (e *Error) mayRepeat(identified bool) bool {
	if !identified && !e.NotApplied {
		return false
	}
	switch e.Code {
	case connect.CodeUnavailable:
		return true
	case connect.CodeResourceExhausted, connect.CodeDeadlineExceeded:
		// Said by this side it is about the size of a message, or about the time of this try.
		return e.answered || e.Code == connect.CodeDeadlineExceeded
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled:
		// The connection broke, or the server reset it, while the answer was read.
		return !e.answered
	default:
		return false
	}
}
