package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// completion is an attempt's end on its way to the server.
type completion struct {
	item *carillonv1.CompleteItem
	size int
	// settled has room for the one answer.
	settled chan error
}

func (c *completion) bytes() int { return c.size }

// settle tells the server how an attempt ended, until it is answered or the run's work ends. An answer that the item can
// never be taken as it is, a result that is too long say, fails the attempt instead, so that it is not left hanging.
func (r *run) settle(item *carillonv1.CompleteItem) {
	log := r.log.With("execution", item.GetExecutionId())
	for tries := 1; ; tries++ {
		err := r.completeMerged(item)
		var failed *Error
		switch {
		case err == nil:
			return
		case r.work.Err() != nil:
			log.Warn("completion not delivered", "error", err)
			return
		case errors.Is(err, ErrStaleLease), errors.Is(err, ErrAlreadyExists), errors.Is(err, ErrNotFound):
			log.Warn("completion refused", "error", err)
			return
		case errors.Is(err, ErrInvalid) && item.GetSucceeded() != nil:
			log.Warn("result refused", "error", err)
			text := errorText(fmt.Errorf("result of %d bytes refused: %w", len(item.GetSucceeded().GetResult()), err))
			item.Outcome = &carillonv1.CompleteItem_Failed{Failed: &carillonv1.Failed{Error: text}}
		case isFinal(err):
			log.Error("completion refused", "error", err)
			return
		}
		errors.As(err, &failed)
		var hint time.Duration
		if failed != nil {
			hint = failed.RetryAfter
		}
		sleep(r.work, backoff(tries, hint))
	}
}

func (r *run) completeMerged(item *carillonv1.CompleteItem) error {
	c := &completion{item: item, size: item.SizeVT() + 8, settled: make(chan error, 1)}
	if err := r.completions.add(c); err != nil {
		return err
	}
	return <-c.settled
}

// sendCompletions settles a batch.
func (r *run) sendCompletions(batch []*completion) {
	req := &carillonv1.CompleteRequest{
		Worker: r.worker.config.Name, Items: make([]*carillonv1.CompleteItem, len(batch)),
	}
	for i, c := range batch {
		req.Items[i] = c.item
	}
	ctx, cancel := context.WithTimeout(r.work, 2*tryTimeout)
	defer cancel()
	client := r.worker.client
	res, err := unary(ctx, client, identified, client.workers.Complete, req)
	if err == nil && len(res.GetResults()) != len(batch) {
		err = fmt.Errorf("complete executions: %d results for %d items", len(res.GetResults()), len(batch))
	}
	// Refused whole for one of them: each must hear what is wrong with its own.
	var failed *Error
	if len(batch) > 1 && errors.As(err, &failed) && failed.answered && failed.Code == connect.CodeInvalidArgument {
		half := len(batch) / 2
		r.sendCompletions(batch[:half])
		r.sendCompletions(batch[half:])
		return
	}
	for i, c := range batch {
		switch {
		case err != nil:
			c.settled <- err
		case res.GetResults()[i].GetError() != nil:
			c.settled <- newItemError(res.GetResults()[i].GetError()).ofLease()
		default:
			c.settled <- nil
		}
	}
}
