package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// connectCodes maps what the state machine refuses to what callers see. It is the only such table; package client holds
// its inverse.
var connectCodes = map[fsm.Code]connect.Code{
	fsm.InvalidArgument:    connect.CodeInvalidArgument,
	fsm.NotFound:           connect.CodeNotFound,
	fsm.AlreadyExists:      connect.CodeAlreadyExists,
	fsm.Aborted:            connect.CodeAborted,
	fsm.FailedPrecondition: connect.CodeFailedPrecondition,
	fsm.ResourceExhausted:  connect.CodeResourceExhausted,
	// A leadership that has ended applied nothing; the next one will.
	fsm.StaleTerm: connect.CodeUnavailable,
	// What the command was about keeps moving; another try finds it.
	fsm.Moved: connect.CodeUnavailable,
}

// httpStatus is the status of a code in REST. It differs from Connect's where HTTP has a word of its own.
var httpStatus = map[connect.Code]int{
	connect.CodeCanceled:           499,
	connect.CodeInvalidArgument:    http.StatusBadRequest,
	connect.CodeDeadlineExceeded:   http.StatusGatewayTimeout,
	connect.CodeNotFound:           http.StatusNotFound,
	connect.CodeAlreadyExists:      http.StatusConflict,
	connect.CodeAborted:            http.StatusConflict,
	connect.CodeFailedPrecondition: http.StatusPreconditionFailed,
	connect.CodeResourceExhausted:  http.StatusTooManyRequests,
	connect.CodeUnavailable:        http.StatusServiceUnavailable,
	connect.CodeUnimplemented:      http.StatusNotImplemented,
	connect.CodeInternal:           http.StatusInternalServerError,
}

// movedRetryAfter is the hint that goes with a refusal that a new try is likely to pass.
const movedRetryAfter = 100 * time.Millisecond

// invalidArgument says what is wrong with a request, one detail per field.
func invalidArgument(list []*carillonv1.FieldViolation) error {
	first := list[0]
	text := first.Description
	if first.Field != "" {
		text = first.Field + " " + first.Description
	}
	if n := len(list) - 1; n > 0 {
		text = fmt.Sprintf("%s (and %d more)", text, n)
	}
	err := connect.NewError(connect.CodeInvalidArgument, errors.New(text))
	for _, violation := range list {
		addDetail(err, violation)
	}
	return err
}

// invalidField is invalidArgument for one field.
func invalidField(field, format string, args ...any) error {
	var v violations
	v.add(field, format, args...)
	return v.err()
}

func notFound(format string, args ...any) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf(format, args...))
}

// addDetail attaches msg to err. A message of ours always marshals.
func addDetail(err *connect.Error, msg proto.Message) {
	detail, detailErr := connect.NewErrorDetail(msg)
	if detailErr != nil {
		panic(fmt.Sprintf("marshal error detail %T: %v", msg, detailErr))
	}
	err.AddDetail(detail)
}

// addRetryHint says when to try again, in a detail and in the header that HTTP clients know.
func addRetryHint(err *connect.Error, after time.Duration) {
	addDetail(err, &carillonv1.RetryHint{RetryAfter: durationpb.New(after)})
	seconds := max(1, int64(math.Ceil(after.Seconds())))
	err.Meta().Set("Retry-After", strconv.FormatInt(seconds, 10))
}

// refusalError is a refusal as the caller of a whole call sees it.
func refusalError(r *fsm.Refusal) error {
	code, ok := connectCodes[r.Code]
	if !ok {
		return fmt.Errorf("refusal with unknown code %d: %s", r.Code, r.Message)
	}
	if code == connect.CodeInvalidArgument {
		return invalidField(r.Field, "%s", r.Message)
	}
	err := connect.NewError(code, errors.New(r.Message))
	switch code {
	case connect.CodeAlreadyExists:
		addDetail(err, &carillonv1.IdempotencyConflict{Fields: r.Fields})
	case connect.CodeAborted:
		addDetail(err, &carillonv1.VersionConflict{CurrentVersion: r.Version})
	case connect.CodeResourceExhausted, connect.CodeUnavailable:
		addRetryHint(err, movedRetryAfter)
	}
	return err
}

// ofJob is a refusal of a job's field with the path that the field has in the request.
func ofJob(r *fsm.Refusal) *fsm.Refusal {
	if r.Code != fsm.InvalidArgument || r.Field == "" {
		return r
	}
	out := *r
	out.Field = "job." + r.Field
	return &out
}

// callError turns any error of a handler into a *connect.Error. known is false for one that the table does not cover:
// it is answered as internal without its text, which is for the log.
func callError(err error) (answer *connect.Error, known bool) {
	if errors.As(err, &answer) {
		return answer, true
	}
	var (
		unavailable *Unavailable
		overloaded  *Overloaded
		refused     *Refused
	)
	switch {
	case errors.As(err, &unavailable):
		answer = connect.NewError(connect.CodeUnavailable, unavailable)
		if unavailable.Ambiguous {
			// No hint: it would say that nothing was applied.
			answer = connect.NewError(connect.CodeUnavailable,
				fmt.Errorf("%w; it may have been applied: retry with the same identity", unavailable))
		} else {
			addRetryHint(answer, unavailable.RetryAfter)
		}
		return answer, true
	case errors.As(err, &overloaded):
		answer = connect.NewError(connect.CodeResourceExhausted, overloaded)
		addRetryHint(answer, overloaded.RetryAfter)
		return answer, true
	case errors.As(err, &refused):
		if errors.As(refusalError(refused.Refusal), &answer) {
			return answer, true
		}
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, errors.New("the caller went away")), true
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded,
			errors.New("the deadline passed; the outcome is unknown: retry with the same identity")), true
	}
	return connect.NewError(connect.CodeInternal, errors.New("internal error")), false
}

// itemError is an error as the result of one item of a batch.
func itemError(err error) *carillonv1.ItemError {
	answer, _ := callError(err)
	item := &carillonv1.ItemError{Code: answer.Code().String(), Message: answer.Message()}
	for _, detail := range answer.Details() {
		value, err := detail.Value()
		if err != nil {
			panic(fmt.Sprintf("read own error detail: %v", err))
		}
		switch value := value.(type) {
		case *carillonv1.FieldViolation:
			if item.Field == "" {
				item.Field = value.Field
			}
		case *carillonv1.IdempotencyConflict:
			if len(value.Fields) > 0 {
				item.Field = value.Fields[0]
			}
		case *carillonv1.RetryHint:
			item.RetryAfter = value.RetryAfter
		}
	}
	return item
}
