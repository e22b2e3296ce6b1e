package client

import (
	"context"
	"errors"
	"iter"

	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// CreateQueue stores settings for a queue that has none. The answer names the shards that have not applied them yet.
func (c *Client) CreateQueue(
	ctx context.Context, req *carillonv1.CreateQueueRequest,
) (*carillonv1.CreateQueueResponse, error) {
	return unary(ctx, c, identified, c.queues.CreateQueue, req)
}

// GetQueue reads a queue's settings. ErrNotFound if it has none.
func (c *Client) GetQueue(ctx context.Context, req *carillonv1.GetQueueRequest) (*carillonv1.Queue, error) {
	res, err := unary(ctx, c, identified, c.queues.GetQueue, req)
	return res.GetQueue(), err
}

// ListQueues reads all queues that have settings, page after page: see ListJobs.
func (c *Client) ListQueues(
	ctx context.Context, req *carillonv1.ListQueuesRequest,
) iter.Seq2[*carillonv1.Queue, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.Queue, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.queues.ListQueues, req)
		return res.GetQueues(), res.GetNextPageToken(), err
	})
}

// UpdateQueue changes the named settings. With an expected version it is repeated only if nothing was done, so that its
// own first try is not mistaken for another's.
func (c *Client) UpdateQueue(
	ctx context.Context, req *carillonv1.UpdateQueueRequest,
) (*carillonv1.UpdateQueueResponse, error) {
	return unary(ctx, c, policy{identified: req.GetExpectedVersion() == 0, try: tryTimeout}, c.queues.UpdateQueue, req)
}

// DeleteQueue removes a queue's settings; its jobs and executions stay. It is repeated only if nothing was done.
func (c *Client) DeleteQueue(
	ctx context.Context, req *carillonv1.DeleteQueueRequest,
) (*carillonv1.DeleteQueueResponse, error) {
	return unary(ctx, c, unidentified, c.queues.DeleteQueue, req)
}

// CreateTenant stores settings for a tenant that has none.
func (c *Client) CreateTenant(
	ctx context.Context, req *carillonv1.CreateTenantRequest,
) (*carillonv1.CreateTenantResponse, error) {
	return unary(ctx, c, identified, c.tenants.CreateTenant, req)
}

// GetTenant reads a tenant's settings. ErrNotFound if it has none.
func (c *Client) GetTenant(ctx context.Context, req *carillonv1.GetTenantRequest) (*carillonv1.Tenant, error) {
	res, err := unary(ctx, c, identified, c.tenants.GetTenant, req)
	return res.GetTenant(), err
}

// ListTenants reads all tenants that have settings, page after page: see ListJobs.
func (c *Client) ListTenants(
	ctx context.Context, req *carillonv1.ListTenantsRequest,
) iter.Seq2[*carillonv1.Tenant, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.Tenant, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.tenants.ListTenants, req)
		return res.GetTenants(), res.GetNextPageToken(), err
	})
}

// UpdateTenant changes the named settings: see UpdateQueue.
func (c *Client) UpdateTenant(
	ctx context.Context, req *carillonv1.UpdateTenantRequest,
) (*carillonv1.UpdateTenantResponse, error) {
	return unary(ctx, c, policy{identified: req.GetExpectedVersion() == 0, try: tryTimeout}, c.tenants.UpdateTenant, req)
}

// DeleteTenant deletes all jobs, executions and history of a tenant, then its settings, and waits until the task is
// finished: see RequeueDeadLetters.
func (c *Client) DeleteTenant(ctx context.Context, req *carillonv1.DeleteTenantRequest) (*carillonv1.Task, error) {
	var before *carillonv1.Task
	return c.finish(ctx, func(ctx context.Context) (*carillonv1.Task, error) {
		res, err := unary(ctx, c, task, c.tenants.DeleteTenant, req)
		if before != nil && errors.Is(err, ErrNotFound) {
			// It was there when this call began: it is gone now.
			before.Finished = true
			return before, nil
		}
		if err == nil {
			before = res.GetTask()
			// The version is checked by the first answer; the deletion itself has changed it.
			req = &carillonv1.DeleteTenantRequest{Name: req.GetName()}
		}
		return res.GetTask(), err
	})
}
