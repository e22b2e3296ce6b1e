package rpc

import (
	"context"
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// completion is one item of a batch of completions on its way.
type completion struct {
	cmd   *storagev1.Completion
	id    fsm.Identity
	shard uint32
	// tooLarge is the answer to a result beyond its limit, whose attempt is recorded as failed: it must not stay stuck
	// until its lease ends.
	tooLarge error

	state storagev1.ExecutionState
	err   error
}

func (s *server) complete(ctx context.Context, req *carillonv1.CompleteRequest) (*carillonv1.CompleteResponse, error) {
	var v violations
	v.batch(len(req.Items))
	v.optionalName("worker", req.Worker)
	if err := v.err(); err != nil {
		return nil, err
	}
	now := s.backend.NowMS()
	all := make([]completion, len(req.Items))
	for i, item := range req.Items {
		all[i].read(s, "execution_id", item.GetExecutionId(), item, req.Worker, now)
	}
	s.proposeCompletions(ctx, all)
	res := &carillonv1.CompleteResponse{Results: make([]*carillonv1.CompleteResult, len(all))}
	for i := range all {
		result := &carillonv1.CompleteResult{ExecutionId: req.Items[i].GetExecutionId()}
		if err := all[i].err; err != nil {
			result.Result = &carillonv1.CompleteResult_Error{Error: itemError(err)}
		} else {
			result.Result = &carillonv1.CompleteResult_State{State: carillonv1.ExecutionState(all[i].state)}
		}
		res.Results[i] = result
	}
	return res, nil
}

func (s *server) completeExecution(
	ctx context.Context, req *carillonv1.CompleteExecutionRequest,
) (*carillonv1.CompleteExecutionResponse, error) {
	var v violations
	if v.optionalName("worker", req.Worker); len(v.list) > 0 {
		return nil, v.err()
	}
	all := make([]completion, 1)
	all[0].read(s, "id", req.Id, req, req.Worker, s.backend.NowMS())
	s.proposeCompletions(ctx, all)
	if err := all[0].err; err != nil {
		return nil, err
	}
	return &carillonv1.CompleteExecutionResponse{State: carillonv1.ExecutionState(all[0].state)}, nil
}

// report is what an item of a batch and a single completion have in common. Exactly one is set.
type report interface {
	GetLeaseToken() string
	GetSucceeded() *carillonv1.Succeeded
	GetFailed() *carillonv1.Failed
	GetSnoozed() *carillonv1.Snoozed
	GetReleased() *carillonv1.Released
}

// read validates and translates a report.
func (c *completion) read(s *server, idField, executionID string, r report, worker string, nowMS int64) {
	var v violations
	h := s.holder(&v, idField, executionID, r.GetLeaseToken())
	c.id, c.shard = h.id, h.shard
	c.cmd = &storagev1.Completion{ExecutionId: executionID, Fencing: h.fencing, Worker: worker}
	switch {
	case r.GetSucceeded() != nil:
		c.succeeded(r.GetSucceeded().Result)
	case r.GetFailed() != nil:
		failed := r.GetFailed()
		c.cmd.Outcome, c.cmd.Error = storagev1.Outcome_OUTCOME_FAILED, cutText(failed.Error, maxErrorBytes)
		if failed.NonRetryable {
			c.cmd.Outcome = storagev1.Outcome_OUTCOME_FAILED_FINAL
		}
		if after := v.duration("failed.retry_after", failed.RetryAfter, 0, 0, maxRetryDelay); failed.RetryAfter != nil {
			c.cmd.RetryAfterMs, c.cmd.HasRetryAfter = after, true
		}
	case r.GetSnoozed() != nil:
		if r.GetSnoozed().Until == nil {
			v.add("snoozed.until", "is required")
		}
		c.cmd.Outcome, c.cmd.UntilMs = storagev1.Outcome_OUTCOME_SNOOZED, v.instant("snoozed.until", r.GetSnoozed().Until, nowMS)
	case r.GetReleased() != nil:
		c.cmd.Outcome = storagev1.Outcome_OUTCOME_RELEASED
	default:
		v.add("outcome", "is required: one of succeeded, failed, snoozed, released")
	}
	c.err = v.err()
}

// succeeded reports a result, or that it is too large: then the attempt has failed, and the worker is told why.
func (c *completion) succeeded(result []byte) {
	if len(result) <= maxResultBytes {
		c.cmd.Outcome, c.cmd.Result = storagev1.Outcome_OUTCOME_SUCCEEDED, result
		return
	}
	text := fmt.Sprintf("result has %d bytes; at most %d are allowed", len(result), maxResultBytes)
	c.cmd.Outcome, c.cmd.Error = storagev1.Outcome_OUTCOME_FAILED, text
	c.tooLarge = invalidField("succeeded.result", "has %d bytes; at most %d are allowed: the attempt is recorded as failed",
		len(result), maxResultBytes)
}

// proposeCompletions proposes what is valid. Those whose lease has gone are looked up, and proposed again with a hint
// where their execution stands, so that a retry gets the first answer.
func (s *server) proposeCompletions(ctx context.Context, all []completion) {
	pending := make([]*completion, 0, len(all))
	for i := range all {
		if all[i].err == nil {
			pending = append(pending, &all[i])
		}
	}
	for try := 0; len(pending) > 0; try++ {
		moved := s.proposeOnce(ctx, pending)
		if try == maxTries {
			break
		}
		pending = s.addHints(ctx, moved)
	}
	for i := range all {
		if all[i].err == nil {
			all[i].err = all[i].tooLarge
		}
	}
}

// proposeOnce proposes each completion once and returns those that need a hint.
func (s *server) proposeOnce(ctx context.Context, pending []*completion) (moved []*completion) {
	parts := chunks(len(pending), func(i int) (place, int, bool) { return place{shard: pending[i].shard}, pending[i].cmd.SizeVT(), true })
	call := callOf(ctx)
	s.proposeChunks(ctx, parts, func(c *chunk) *storagev1.Command {
		cmd := call.command()
		items := make([]*storagev1.Completion, len(c.items))
		for k, i := range c.items {
			items[k] = pending[i].cmd
		}
		cmd.Completions = &storagev1.Completions{Items: items}
		return cmd
	}, func(i int, item fsm.Item, err error) {
		if err == nil && item.Refusal != nil {
			err = &Refused{item.Refusal}
		}
		pending[i].state, pending[i].err = item.State, err
	})
	for _, c := range pending {
		if refusedWith(c.err, fsm.Moved) {
			moved = append(moved, c)
		}
	}
	return moved
}

// addHints finds the executions and returns the completions that can be tried again. What cannot be found has gone with
// its retention, or never was.
func (s *server) addHints(ctx context.Context, moved []*completion) (again []*completion) {
	parts := chunks(len(moved), func(i int) (place, int, bool) { return place{shard: moved[i].shard}, 0, true })
	for _, part := range parts {
		ids := make([]string, len(part.items))
		for k, i := range part.items {
			ids[k] = moved[i].cmd.ExecutionId
		}
		err := s.backend.View(ctx, part.shard, false, func(r fsm.Reader) error {
			fsm.FindAll(r, ids, func(k int, e *storagev1.Execution, key []byte) {
				c := moved[part.items[k]]
				if e == nil {
					c.err = notFound("no execution %q", c.cmd.ExecutionId)
					return
				}
				// The command of the first try may still be in use: it is the log's now.
				c.cmd = c.cmd.CloneVT()
				c.cmd.Hint = append([]byte(nil), key...)
				c.err = nil
				again = append(again, c)
			})
			return nil
		})
		if err != nil {
			for _, i := range part.items {
				moved[i].err = err
			}
		}
	}
	return again
}
