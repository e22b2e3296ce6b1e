// Package relay posts executions to a URL: a Relay's Handle and Gate are those of a client.Worker, which makes whatever listens
// there a worker. It knows nothing of claims, leases and heartbeats, which are the worker's. "carillon relay" is its one user. A
// Relay is safe for concurrent use and has no goroutines of its own.
package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/client"
)

// Config says where executions go, and how. All but Secrets, AllowPrivate and MaxRedirects is required.
type Config struct {
	// URL to post to, http or https.
	URL string
	// Secrets sign each request, in the form in which ParseSecret returns them; a receiver may verify any of the signatures.
	// None: requests are not signed.
	Secrets [][]byte
	// Timeout is how long an answer may take.
	Timeout time.Duration
	// AllowPrivate lets requests go to addresses that are not public: loopback, private, link-local and so on.
	AllowPrivate bool
	// MaxRedirects is how many redirects of one request are followed, if they ask for the same request elsewhere.
	MaxRedirects int
	// MaxRetryAfter bounds what an answer's Retry-After asks for.
	MaxRetryAfter time.Duration
	// Failures in a row open the breaker: no request is sent for Pause, and then one to see.
	Failures int
	Pause    time.Duration
	// Logger is told how each execution ended, and of the breaker's states.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Timeout <= 0:
		return fmt.Errorf("timeout: must be positive, is %s", c.Timeout)
	case c.MaxRedirects < 0 || c.MaxRedirects > 10:
		return fmt.Errorf("max-redirects: want 0 to 10, is %d", c.MaxRedirects)
	case c.MaxRetryAfter < 0 || c.MaxRetryAfter > 7*24*time.Hour:
		return fmt.Errorf("max-retry-after: want 0 to 7 days, is %s", c.MaxRetryAfter)
	case c.Failures < 1 || c.Failures > 1000:
		return fmt.Errorf("breaker-failures: want 1 to 1,000, is %d", c.Failures)
	case c.Pause < time.Millisecond:
		return fmt.Errorf("breaker-pause: want at least 1ms, is %s", c.Pause)
	}
	return nil
}

// Relay posts executions. Make it with New.
type Relay struct {
	config  Config
	url     *url.URL
	http    *http.Client
	breaker *breaker
	metrics *metrics
}

// New makes a relay. It fails if the configuration is wrong, and names the field.
func New(config Config) (*Relay, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	u, err := url.Parse(config.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("url: %w", err)
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return nil, fmt.Errorf("url: want one that begins with https:// or http://, is %q", u.Redacted())
	case u.Fragment != "":
		return nil, fmt.Errorf("url: a fragment is not sent: %q", u.Redacted())
	}
	config.Logger = config.Logger.With("host", u.Host)
	r := &Relay{config: config, url: u, breaker: newBreaker(u.Host, config), http: newHTTPClient(config)}
	r.metrics = newMetrics(u.Host, r.breaker)
	return r, nil
}

// Collectors are the relay's metrics.
func (r *Relay) Collectors() []prometheus.Collector { return r.metrics.all() }

// Gate is the worker's: it admits nothing while the breaker is open, and one execution to see whether the host is back.
func (r *Relay) Gate(ctx context.Context, free int) int { return r.breaker.gate(ctx, free) }

// Close drops idle connections.
func (r *Relay) Close() { r.http.CloseIdleConnections() }

// errTimeout is why a request's context ends after the timeout.
var errTimeout = errors.New("no answer in time")

// Handle is a client.Handler. It posts the execution, and completes it by the answer's status: see docs/workers.md.
func (r *Relay) Handle(ctx context.Context, e *client.Execution) ([]byte, error) {
	done, probe, err := r.breaker.allow()
	if err != nil {
		return nil, client.Release(err)
	}
	began := time.Now()
	limited, cancel := context.WithTimeoutCause(ctx, r.config.Timeout, errTimeout)
	defer cancel()
	a := r.post(limited, e)
	verdict := a.verdict()
	if ctx.Err() != nil && a.err != nil {
		// It was interrupted, which says nothing of the host.
		verdict = errInterrupted
	}
	done(verdict)
	r.metrics.answered(a, time.Since(began))
	result, err := r.outcome(ctx, a, verdict)
	if probe && errors.Is(verdict, errUnavailable) {
		// It is the host that is away: one execution after the other would use up its attempts to find that out.
		err = fmt.Errorf("%w: probe failed: %w", client.SnoozeFor(max(r.config.Pause, a.retryAfter)), err)
	}
	log := r.config.Logger.With("execution", e.ID, "attempt", e.Attempt, "took", time.Since(began).Round(time.Millisecond))
	if err != nil {
		log.Warn("not delivered", "status", a.status, "error", err)
	} else {
		log.Info("delivered", "status", a.status)
	}
	return result, err
}

// post sends the request and reads the answer.
func (r *Relay) post(ctx context.Context, e *client.Execution) answer {
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url.String(), bytes.NewReader(e.Payload))
	if err != nil {
		return answer{err: fmt.Errorf("make request: %w", err)}
	}
	setHeaders(req.Header, e)
	sign(req.Header, r.config.Secrets, e.ID, time.Now(), e.Payload)
	res, err := r.http.Do(req)
	if err != nil {
		return answer{err: because(ctx, err), sent: sent.Load()}
	}
	defer res.Body.Close()
	a := answer{sent: true, status: res.StatusCode, text: res.Status, location: res.Header.Get("Location")}
	a.retryAfter, a.hasRetryAfter = retryAfter(res.Header, time.Now(), r.config.MaxRetryAfter)
	a.body, err = io.ReadAll(io.LimitReader(res.Body, client.MaxResult+1))
	if err != nil {
		a.err = fmt.Errorf("read answer: %w", because(ctx, err))
	}
	return a
}

// because is err, or why the context ended if that is what it says, without the URL, which may have a password.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
