package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	batchCallers = 8
	batchItems   = 1000
	// retryLimit bounds for how long one create is sent again after refusals and lost answers.
	retryLimit = 60 * time.Second
	// retryPause is the wait between tries where the server names none.
	retryPause = 20 * time.Millisecond
)

// creates is where the outcome of creates is written: the ledger that awaits the jobs, if any, and the print of all jobs
// that must be found when the server is asked for them.
type creates struct {
	plan   *plan
	ledger *ledger // nil: these jobs are not due within the run
	print  *fingerprint
}

func (c *creates) accepted(i int, tenant, id string) {
	c.print.add(tenant, id)
	if c.ledger != nil {
		c.ledger.created(i, accepted)
	}
}

func (c *creates) settled(i int, s jobState) {
	if c.ledger != nil {
		c.ledger.created(i, s)
	}
}

// createBatches creates all jobs of the plan with concurrent batches and insists: what is refused for now or whose answer
// is lost is sent again with its identity, so that afterwards every job is acknowledged.
func createBatches(ctx context.Context, a *api, c *creates) error {
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range batchCallers {
		group.Go(func() error {
			b := newBatch(c, batchItems)
			for {
				first := int(next.Add(batchItems)) - batchItems
				if first >= c.plan.n {
					return nil
				}
				if err := b.insist(ctx, a, first, min(first+batchItems, c.plan.n)); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// batch is one caller's request, whose messages are used again from call to call.
type batch struct {
	creates *creates
	slots   []*carillonv1.CreateJobRequest
	request *carillonv1.BatchCreateJobsRequest
	// numbers are the jobs in the request; after send those that were not accepted, refusals saying why.
	numbers  []int
	refusals []refusal
}

// refusal is why a job was not accepted, for now.
type refusal struct {
	code, message string
	// after is how long to wait before the next try, if hinted.
	after  time.Duration
	hinted bool
}

// newBatch makes room for batches of up to size jobs.
func newBatch(c *creates, size int) *batch {
	b := &batch{creates: c, request: &carillonv1.BatchCreateJobsRequest{}}
	for range size {
		b.slots = append(b.slots, &carillonv1.CreateJobRequest{})
	}
	return b
}

// load puts jobs first..end-1 into the request.
func (b *batch) load(first, end int) {
	b.numbers = b.numbers[:0]
	for i := first; i < end; i++ {
		b.creates.plan.fill(b.slots[i-first], i)
		b.numbers = append(b.numbers, i)
	}
	b.request.Items = append(b.request.Items[:0], b.slots[:end-first]...)
}

// insist creates jobs first..end-1 whatever it takes, for at most retryLimit.
func (b *batch) insist(ctx context.Context, a *api, first, end int) error {
	b.load(first, end)
	for start := time.Now(); ; {
		if err := b.send(ctx, a); err != nil {
			return fmt.Errorf("create jobs %d to %d: %w", first, end-1, err)
		}
		if len(b.numbers) == 0 {
			return nil
		}
		last := b.refusals[len(b.refusals)-1]
		if time.Since(start) > retryLimit {
			return fmt.Errorf("create jobs %d to %d: not accepted within %v: %s: %s", first, end-1, retryLimit, last.code, last.message)
		}
		if err := wait(ctx, max(last.after, retryPause)); err != nil {
			return err
		}
	}
}

// send makes one call and notes what was accepted. What may be sent again stays loaded, with its refusals; an error is
// final.
func (b *batch) send(ctx context.Context, a *api) error {
	b.refusals = b.refusals[:0]
	resp, err := a.jobs.BatchCreateJobs(ctx, connect.NewRequest(b.request))
	if err != nil && worthRetrying(ctx, err) {
		hint, hinted := retryHint(err)
		for range b.numbers {
			b.refusals = append(b.refusals, refusal{connect.CodeOf(err).String(), err.Error(), hint, hinted})
		}
		return nil
	}
	if err != nil {
		return err
	}
	results := resp.Msg.GetResults()
	if len(results) != len(b.numbers) {
		return fmt.Errorf("%d results for %d items", len(results), len(b.numbers))
	}
	kept, items := 0, b.request.Items
	for k, r := range results {
		i := b.numbers[k]
		receipt, refused := r.GetReceipt(), r.GetError()
		switch {
		case receipt.GetId() != "":
			b.creates.accepted(i, receipt.GetTenant(), receipt.GetId())
			continue
		case refused == nil:
			return fmt.Errorf("job %d: neither a receipt nor an error", i)
		case !retryableCode(refused.GetCode()):
			return fmt.Errorf("job %d: %s: %s %s", i, refused.GetCode(), refused.GetField(), refused.GetMessage())
		}
		b.refusals = append(b.refusals, refusal{refused.GetCode(), refused.GetMessage(),
			refused.GetRetryAfter().AsDuration(), refused.GetRetryAfter() != nil})
		b.numbers[kept], items[kept] = i, items[k]
		kept++
	}
	b.numbers, b.request.Items = b.numbers[:kept], items[:kept]
	return nil
}

// createEach creates all jobs of the plan one by one, by concurrent producers; one is called with the job's number and its
// request, which it may keep until it returns.
func createEach(ctx context.Context, producers int, p *plan,
	one func(ctx context.Context, i int, req *carillonv1.CreateJobRequest) error) error {
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range producers {
		group.Go(func() error {
			req := &carillonv1.CreateJobRequest{}
			for {
				i := int(next.Add(1)) - 1
				if i >= p.n {
					return nil
				}
				p.fill(req, i)
				if err := one(ctx, i, req); err != nil {
					return fmt.Errorf("create job %d: %w", i, err)
				}
			}
		})
	}
	return group.Wait()
}

// createOne creates a job by a call of its own, again as long as that may help, and returns its id.
func createOne(ctx context.Context, a *api, c *creates, i int, req *carillonv1.CreateJobRequest) (id string, err error) {
	for start := time.Now(); ; {
		resp, err := a.jobs.CreateJob(ctx, connect.NewRequest(req))
		if err == nil {
			c.accepted(i, resp.Msg.GetTenant(), resp.Msg.GetId())
			return resp.Msg.GetId(), nil
		}
		if !worthRetrying(ctx, err) || time.Since(start) > retryLimit {
			return "", err
		}
		hint, _ := retryHint(err)
		if err := wait(ctx, max(hint, retryPause)); err != nil {
			return "", err
		}
	}
}

// worthRetrying is true of refusals for now, and of failures on the way, after which the same call may succeed.
func worthRetrying(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	return !connect.IsWireError(err) || retryableCode(connect.CodeOf(err).String())
}

func retryableCode(code string) bool {
	return code == "unavailable" || code == "resource_exhausted" || code == "deadline_exceeded"
}

// retryHint is the wait that an error's details ask for; named is false if they do not.
func retryHint(err error) (hint time.Duration, named bool) {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return 0, false
	}
	for _, d := range ce.Details() {
		if value, err := d.Value(); err == nil {
			if h, ok := value.(*carillonv1.RetryHint); ok {
				return h.GetRetryAfter().AsDuration(), true
			}
		}
	}
	return 0, false
}

// wait pauses for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
