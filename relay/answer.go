package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/carillon-scheduler/carillon/client"
)

// answer is what became of a request.
type answer struct {
	// err is why there is no answer, or not all of one.
	err error
	// sent: the host may have got the request.
	sent bool
	// status is 0 if there was no answer; text is the status in words.
	status         int
	text, location string
	body           []byte
	retryAfter     time.Duration
	hasRetryAfter  bool
}

// What an answer says of the host, as the breaker's error.
var (
	errUnavailable = errors.New("host is unavailable")
	// errInterrupted: nothing.
	errInterrupted = errors.New("interrupted")
)

// verdict is nil if the host does its work, also when it refuses this execution.
func (a answer) verdict() error {
	if a.err != nil || retryable(a.status) {
		return errUnavailable
	}
	return nil
}

// retryable reports whether a status says that the same request may succeed later.
func retryable(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// outcome is what a handler says of an answer.
func (r *Relay) outcome(ctx context.Context, a answer, verdict error) ([]byte, error) {
	switch {
	case errors.Is(verdict, errInterrupted):
		return nil, fmt.Errorf("stopped, %w", context.Cause(ctx))
	case a.err != nil && !a.sent:
		return nil, fmt.Errorf("%w: nothing was sent: %w", client.SnoozeFor(r.config.Pause), a.err)
	case a.err != nil:
		return nil, a.err
	case a.status >= 200 && a.status < 300 && len(a.body) > client.MaxResult:
		return nil, fmt.Errorf("result is too long: more than %d bytes with status %d", client.MaxResult, a.status)
	case a.status >= 200 && a.status < 300:
		return a.body, nil
	case a.status < 400:
		return nil, fmt.Errorf("%s: redirect to %q is not followed", a.text, a.location)
	}
	err := errors.New(a.text + firstWords(a.body))
	switch {
	case !retryable(a.status):
		return nil, client.NonRetryable(err)
	case a.hasRetryAfter:
		return nil, client.RetryAfter(err, a.retryAfter)
	}
	return nil, err
}

// firstWords is the begin of an answer as one line of an error.
func firstWords(body []byte) string {
	const most = 512
	text := strings.ToValidUTF8(string(body[:min(len(body), most)]), "")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if text == "" {
		return ""
	}
	return ": " + text
}

// retryAfter reads how long an answer asks to wait, at most limit: seconds, or a date, which is by the answer's own clock if
// it says what that is.
func retryAfter(h http.Header, now time.Time, limit time.Duration) (time.Duration, bool) {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 63); err == nil {
		if seconds > uint64(limit/time.Second) {
			return limit, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	if theirs, err := http.ParseTime(h.Get("Date")); err == nil {
		now = theirs
	}
	return max(0, min(limit, at.Sub(now))), true
}
