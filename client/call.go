package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
)

// policy is how a call may be repeated.
type policy struct {
	// identified: sending it twice does what sending it once does. Without that it is repeated only if the server, or a
	// refused connection, says that nothing was done.
	identified bool
	// try bounds one try.
	try time.Duration
	// counted: the retry budget knows of it already.
	counted bool
	// retrying, if set, is told on the caller's goroutine what failed before each retry, and where and when that will be.
	retrying func(failed *Error, address string, delay time.Duration)
}

var (
	identified   = policy{identified: true, try: tryTimeout}
	unidentified = policy{try: tryTimeout}
	// merged is for creates, each of which counts as a call.
	merged = policy{identified: true, try: tryTimeout, counted: true}
	// task is for bulk operations, which the server waits for.
	task = policy{identified: true, try: taskTimeout}
	// advance waits for the server, which takes a part of the way at a time.
	advance = policy{try: advanceTimeout}
	// verification reads every row of a shard.
	verification = policy{identified: true, try: verificationTimeout}
)

type method[Req, Res any] = func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// unary makes a call and repeats it, as p allows, until it has an answer, its context or the default timeout ends, or the
// retry budget is spent. Errors are *Error.
func unary[Req, Res any](ctx context.Context, c *Client, p policy, call method[Req, Res], req *Req) (*Res, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if !p.counted {
		c.budget.called()
	}
	for tries := 1; ; tries++ {
		at := c.endpoints.current(time.Now())
		res, err := try(withEndpoint(ctx, c.endpoints.urls[at]), p.try, call, req)
		if err == nil {
			return res, nil
		}
		failed := newError(err)
		if failed.elsewhere() && !errors.Is(ctx.Err(), context.Canceled) {
			c.endpoints.leave(at, time.Now())
		}
		if !failed.mayRepeat(p.identified) || ctx.Err() != nil {
			return nil, failed
		}
		delay := backoff(tries, failed.RetryAfter)
		if failed.elsewhere() && tries < len(c.endpoints.urls) {
			delay = 0
		}
		if p.retrying != nil {
			p.retrying(failed, c.endpoints.urls[c.endpoints.current(time.Now())].String(), delay)
		}
		if err := c.beforeRetry(ctx, delay, failed); err != nil {
			return nil, err
		}
	}
}

func try[Req, Res any](ctx context.Context, limit time.Duration, call method[Req, Res], req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	res, err := call(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// beforeRetry takes a retry from the budget and waits. It fails, with what failed, if there must be no retry.
func (c *Client) beforeRetry(ctx context.Context, delay time.Duration, failed *Error) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= delay {
		return failed
	}
	if !c.budget.retry() {
		return fmt.Errorf("retry budget is spent: %w", failed)
	}
	c.options.logger.Debug("retrying call", "delay", delay, "error", failed)
	if !sleep(ctx, delay) {
		return failed
	}
	return nil
}

// bounded gives ctx the default deadline if it has none.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.options.timeout)
}

// backoff is the delay after so many tries; never less than the server asks for.
func backoff(tries int, hint time.Duration) time.Duration {
	delay := lastDelay
	if tries < 10 {
		delay = min(lastDelay, firstDelay<<(tries-1))
	}
	delay = max(delay, hint)
	// Callers that failed together must not come back together.
	return delay + rand.N(delay/2+1)
}

// sleep waits for d, and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
