package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// GetExecution reads an execution with its attempts and result. ErrNotFound also after its retention.
func (c *Client) GetExecution(
	ctx context.Context, req *carillonv1.GetExecutionRequest,
) (*carillonv1.Execution, error) {
	res, err := unary(ctx, c, identified, c.executions.GetExecution, req)
	return res.GetExecution(), err
}

// ListExecutions reads the executions that req selects, page after page: see ListJobs. Dead letters are those in state
// DEAD.
func (c *Client) ListExecutions(
	ctx context.Context, req *carillonv1.ListExecutionsRequest,
) iter.Seq2[*carillonv1.Execution, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.Execution, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.executions.ListExecutions, req)
		return res.GetExecutions(), res.GetNextPageToken(), err
	})
}

// CancelExecution ends an execution, or asks the worker that holds it to stop. Repeating it changes nothing.
func (c *Client) CancelExecution(
	ctx context.Context, req *carillonv1.CancelExecutionRequest,
) (*carillonv1.Execution, error) {
	res, err := unary(ctx, c, identified, c.executions.CancelExecution, req)
	return res.GetExecution(), err
}

// RequeueDeadLetters makes dead letters ready again and waits until the task is finished. If ctx or the default timeout
// ends first, the task goes on: the answer so far comes with the error, and req, which has the task's id, asks again.
func (c *Client) RequeueDeadLetters(
	ctx context.Context, req *carillonv1.RequeueDeadLettersRequest,
) (*carillonv1.Task, error) {
	req.RequestId = keyOr(req.GetRequestId())
	return c.finish(ctx, func(ctx context.Context) (*carillonv1.Task, error) {
		res, err := unary(ctx, c, task, c.executions.RequeueDeadLetters, req)
		return res.GetTask(), err
	})
}

// PurgeDeadLetters removes dead letters for good and waits until the task is finished: see RequeueDeadLetters.
func (c *Client) PurgeDeadLetters(
	ctx context.Context, req *carillonv1.PurgeDeadLettersRequest,
) (*carillonv1.Task, error) {
	req.RequestId = keyOr(req.GetRequestId())
	return c.finish(ctx, func(ctx context.Context) (*carillonv1.Task, error) {
		res, err := unary(ctx, c, task, c.executions.PurgeDeadLetters, req)
		return res.GetTask(), err
	})
}

// finish asks for a task until it is finished. With an error comes the last answer, or nil.
func (c *Client) finish(
	ctx context.Context, ask func(context.Context) (*carillonv1.Task, error),
) (*carillonv1.Task, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var last *carillonv1.Task
	for asked := 1; ; asked++ {
		got, err := ask(ctx)
		if err != nil {
			return last, err
		}
		if last = got; got.GetFinished() {
			return got, nil
		}
		if !sleep(ctx, backoff(asked, 0)) {
			return last, newError(ctx.Err())
		}
	}
}
