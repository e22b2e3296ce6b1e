package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Create accepts a job and returns its receipt once it is durable. It is sent again, under one identity, until it is
// answered, ctx or the default timeout ends, or the retry budget is spent. Concurrent creates share requests; what job
// refers to must not be changed before the call returns. Errors are *Error: ErrInvalid, ErrAlreadyExists, ErrOverloaded,
// ErrUnavailable among them.
func (c *Client) Create(ctx context.Context, job Job) (Receipt, error) {
	receipt, err := c.CreateJob(ctx, job.Spec(), WithIdempotencyKey(job.IdempotencyKey))
	if err != nil {
		return Receipt{}, err
	}
	return newReceipt(receipt), nil
}

// CreateOption changes how CreateJob creates.
type CreateOption func(*carillonv1.CreateJobRequest)

// WithIdempotencyKey makes the create safe to repeat from another process: the same key and the same job get the same
// receipt, the same key and another job ErrAlreadyExists.
func WithIdempotencyKey(key string) CreateOption {
	return func(r *carillonv1.CreateJobRequest) { r.IdempotencyKey = key }
}

// CreateJob is Create in the words of the API. Without an idempotency key it gets a random one. A job with an id is its own
// identity while it stands; its key keeps a late retry from creating it again after another caller has deleted it.
func (c *Client) CreateJob(
	ctx context.Context, job *JobSpec, opts ...CreateOption,
) (*carillonv1.JobReceipt, error) {
	req := &carillonv1.CreateJobRequest{Job: job}
	for _, opt := range opts {
		opt(req)
	}
	req.IdempotencyKey = keyOr(req.GetIdempotencyKey())
	if !c.options.merge {
		return c.createOne(ctx, identified, req)
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	c.budget.called()
	for tries := 1; ; tries++ {
		got := c.createMerged(ctx, req)
		if got.refused == nil {
			return got.receipt, got.err
		}
		failed := got.refused
		if !failed.mayRepeat(true) {
			return nil, failed
		}
		if err := c.beforeRetry(ctx, backoff(tries, failed.RetryAfter), failed); err != nil {
			return nil, err
		}
	}
}

func (c *Client) createOne(
	ctx context.Context, p policy, req *carillonv1.CreateJobRequest,
) (*carillonv1.JobReceipt, error) {
	res, err := unary(ctx, c, p, c.jobs.CreateJob, req)
	if err != nil {
		return nil, err
	}
	return &carillonv1.JobReceipt{
		Id: res.GetId(), Tenant: res.GetTenant(), Incarnation: res.GetIncarnation(), Version: res.GetVersion(),
		CreateTime: res.GetCreateTime(), NextTime: res.GetNextTime(), NextTimes: res.GetNextTimes(),
		FiresPerDay: res.GetFiresPerDay(),
	}, nil
}

// pendingCreate is one caller's create on its way through the merger.
type pendingCreate struct {
	ctx     context.Context
	request *carillonv1.CreateJobRequest
	size    int
	// settled has room for the one answer, so that settling never waits for a caller that has left.
	settled chan created
}

// created has one of a receipt; the item's own error, which may be repeated; and an error that is final.
type created struct {
	receipt *carillonv1.JobReceipt
	refused *Error
	err     error
}

func (p *pendingCreate) bytes() int { return p.size }

// createMerged sends req in a batch and waits for its part of the answer.
func (c *Client) createMerged(ctx context.Context, req *carillonv1.CreateJobRequest) created {
	p := &pendingCreate{ctx: ctx, request: req, size: req.SizeVT() + 8, settled: make(chan created, 1)}
	if err := c.creates.add(p); err != nil {
		return created{err: err}
	}
	select {
	case got := <-p.settled:
		return got
	case <-ctx.Done():
		return created{err: newError(ctx.Err())}
	}
}

// sendCreates settles a batch, within the latest deadline among its callers. Those that have left are not sent.
func (c *Client) sendCreates(batch []*pendingCreate) {
	waiting := batch[:0:0]
	var latest time.Time
	for _, p := range batch {
		if p.ctx.Err() != nil {
			p.settled <- created{err: newError(p.ctx.Err())}
			continue
		}
		// CreateJob bounds every context.
		deadline, _ := p.ctx.Deadline()
		if deadline.After(latest) {
			latest = deadline
		}
		waiting = append(waiting, p)
	}
	if len(waiting) == 0 {
		return
	}
	ctx, cancel := context.WithDeadline(c.closed, latest)
	defer cancel()
	c.createBatch(ctx, waiting)
}

// createBatch sends a batch. If the server refuses it whole, its halves are tried, so that what is wrong with one caller's
// job (text that is no UTF-8 cannot even be decoded) does not fail another's.
func (c *Client) createBatch(ctx context.Context, batch []*pendingCreate) {
	if len(batch) == 1 {
		receipt, err := c.createOne(ctx, merged, batch[0].request)
		batch[0].settled <- created{receipt: receipt, err: err}
		return
	}
	req := &carillonv1.BatchCreateJobsRequest{Items: make([]*carillonv1.CreateJobRequest, len(batch))}
	for i, p := range batch {
		req.Items[i] = p.request
	}
	res, err := unary(ctx, c, merged, c.jobs.BatchCreateJobs, req)
	if err == nil && len(res.GetResults()) != len(batch) {
		err = fmt.Errorf("create jobs: %d results for %d items", len(res.GetResults()), len(batch))
	}
	var failed *Error
	switch {
	case err == nil:
		for i, result := range res.GetResults() {
			receipt, refused := createResult(result)
			batch[i].settled <- created{receipt: receipt, refused: refused}
		}
	case errors.As(err, &failed) && failed.answered && failed.Code == connect.CodeInvalidArgument:
		half := len(batch) / 2
		c.createBatch(ctx, batch[:half])
		c.createBatch(ctx, batch[half:])
	default:
		for _, p := range batch {
			p.settled <- created{err: err}
		}
	}
}

func createResult(result *carillonv1.BatchCreateJobsResult) (*carillonv1.JobReceipt, *Error) {
	if failed := result.GetError(); failed != nil {
		return nil, newItemError(failed)
	}
	if result.GetReceipt() == nil {
		return nil, newItemError(&carillonv1.ItemError{Code: "internal", Message: "neither receipt nor error"})
	}
	return result.GetReceipt(), nil
}

// CreateResult is the receipt or the error of one item of a batch.
type CreateResult struct {
	Receipt Receipt
	// Err is an *Error, or nil.
	Err error
}

// BatchCreateJobs accepts up to 10,000 jobs or 32 MiB in one request and returns a result per item, in their order. Items
// without idempotency key get a random one in req, unless it has a request id, so that req may be sent again after an
// error. Items that the server could not take now (ErrOverloaded, ErrUnavailable) are not repeated here. The error is that
// of the whole call.
func (c *Client) BatchCreateJobs(ctx context.Context, req *carillonv1.BatchCreateJobsRequest) ([]CreateResult, error) {
	for _, item := range req.GetItems() {
		// An item takes its identity from the request's id and its place there, unless it has a key.
		if req.GetRequestId() == "" {
			item.IdempotencyKey = keyOr(item.GetIdempotencyKey())
		}
	}
	res, err := unary(ctx, c, policy{identified: true, try: 4 * tryTimeout}, c.jobs.BatchCreateJobs, req)
	if err != nil {
		return nil, err
	}
	if len(res.GetResults()) != len(req.GetItems()) {
		return nil, fmt.Errorf("create jobs: %d results for %d items", len(res.GetResults()), len(req.GetItems()))
	}
	results := make([]CreateResult, len(res.GetResults()))
	for i, result := range res.GetResults() {
		receipt, refused := createResult(result)
		if refused != nil {
			results[i].Err = refused
			continue
		}
		results[i].Receipt = newReceipt(receipt)
	}
	return results, nil
}
