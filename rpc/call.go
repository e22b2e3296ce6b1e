package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// Metrics is told of each call. Implementations must be safe for concurrent use and must not block.
type Metrics interface {
	// Called reports a finished call: code is "ok" or a Connect code in lower case.
	Called(procedure, code string, took time.Duration)
}

// call is one HTTP request on its way through the handlers. It is the response writer, too, so that an answer that could
// not be written is noticed. Not safe for concurrent use; handlers run on the request's goroutine.
type call struct {
	http.ResponseWriter
	writeErr error
	written  int
	// body is where the request's message comes from.
	body intake
	// maxDelivery is how long writing a part of the answer may take.
	maxDelivery time.Duration

	// requestID is the caller's, or made here; it stands in the log and in the answer.
	requestID string
	// givenID is the caller's only: it goes into the events of what the call did.
	givenID string
	traceID string
	// undelivered, if set, undoes what a handler granted when its answer could not be written.
	undelivered func()
}

type callKey struct{}

// callOf returns the call that ctx belongs to.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// newCall takes identity and trace from the request's headers. Malformed ones are ignored: they are for people.
func newCall(w http.ResponseWriter, r *http.Request) *call {
	c := &call{ResponseWriter: w}
	var v violations
	if id := r.Header.Get("X-Request-Id"); id != "" {
		if v.key("X-Request-Id", id); len(v.list) == 0 {
			c.requestID, c.givenID = id, id
		}
	}
	if c.requestID == "" {
		c.requestID = newID()
	}
	c.traceID = traceID(r.Header.Get("Traceparent"))
	w.Header().Set("X-Request-Id", c.requestID)
	return c
}

// traceID returns the trace id of a W3C traceparent, or nothing.
func traceID(traceparent string) string {
	// version "-" 32 hex digits "-" 16 hex digits "-" flags
	if len(traceparent) < 55 || traceparent[2] != '-' || traceparent[35] != '-' {
		return ""
	}
	id := traceparent[3:35]
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return id
}

// Write gives up on a caller that does not take a large answer: what the answer holds must not stay for ever.
func (c *call) Write(b []byte) (int, error) {
	if len(b) > quietBytes && c.maxDelivery > 0 {
		control := http.NewResponseController(c.ResponseWriter)
		if control.SetWriteDeadline(time.Now().Add(c.maxDelivery)) == nil {
			// What the caller sends next has all the time again; a broken connection tells itself.
			defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
		}
	}
	n, err := c.ResponseWriter.Write(b)
	c.written += n
	if err != nil {
		c.writeErr = err
	}
	return n, err
}

// Flush is needed by the gRPC protocols.
func (c *call) Flush() {
	if err := http.NewResponseController(c.ResponseWriter).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		c.writeErr = err
	}
}

// Unwrap lets http.ResponseController reach the server's writer.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// command starts a command that carries the call's identity into the events.
func (c *call) command() *storagev1.Command {
	return &storagev1.Command{RequestId: c.givenID, TraceId: c.traceID}
}

// observed wraps a handler: a panic becomes an internal error, errors become Connect's, and the call is counted.
func observed[Req, Res any](
	s *server, procedure string, handle func(context.Context, *Req) (*Res, error),
) func(context.Context, *Req) (*Res, error) {
	return func(ctx context.Context, req *Req) (res *Res, err error) {
		start := time.Now()
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("handler panicked", slog.String("procedure", procedure), slog.Any("panic", p),
					slog.String("request_id", callOf(ctx).requestID), slog.String("stack", string(debug.Stack())))
				res, err = nil, connect.NewError(connect.CodeInternal, errors.New("internal error"))
			}
			err = s.finish(ctx, procedure, start, err)
		}()
		callOf(ctx).body.complete()
		return handle(ctx, req)
	}
}

// finish maps the error of a call, counts and logs it.
func (s *server) finish(ctx context.Context, procedure string, start time.Time, err error) error {
	took, code := time.Since(start), "ok"
	var answer error
	if err != nil {
		connectErr, known := callError(err)
		if !known {
			s.log.Error("call failed", slog.String("procedure", procedure),
				slog.String("request_id", callOf(ctx).requestID), slog.Any("error", err))
		}
		answer, code = connectErr, connectErr.Code().String()
	}
	if s.metrics != nil {
		s.metrics.Called(procedure, code, took)
	}
	if s.log.Enabled(ctx, slog.LevelDebug) {
		s.log.LogAttrs(ctx, slog.LevelDebug, "call", slog.String("procedure", procedure), slog.String("code", code),
			slog.Duration("took", took), slog.String("request_id", callOf(ctx).requestID))
	}
	return answer
}
