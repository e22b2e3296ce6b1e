package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// GetJob reads a job, with its payload. ErrNotFound also if it was deleted.
func (c *Client) GetJob(ctx context.Context, req *carillonv1.GetJobRequest) (*carillonv1.Job, error) {
	res, err := unary(ctx, c, identified, c.jobs.GetJob, req)
	return res.GetJob(), err
}

// ListJobs reads the jobs that req selects, page after page, until they or the caller's loop end. After an error, the last
// pair, there is nothing more. The deadline of ctx is that of the whole list; the default timeout that of each page.
func (c *Client) ListJobs(ctx context.Context, req *carillonv1.ListJobsRequest) iter.Seq2[*carillonv1.Job, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.Job, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.jobs.ListJobs, req)
		return res.GetJobs(), res.GetNextPageToken(), err
	})
}

// UpdateJob changes the named fields of a job and returns it, without payload. req gets a random idempotency key if it has
// none. ErrVersionConflict if req.ExpectedVersion is not the current one.
func (c *Client) UpdateJob(ctx context.Context, req *carillonv1.UpdateJobRequest) (*carillonv1.Job, error) {
	req.IdempotencyKey = keyOr(req.GetIdempotencyKey())
	res, err := unary(ctx, c, identified, c.jobs.UpdateJob, req)
	return res.GetJob(), err
}

// PutJob makes a job be what req says: it creates it, or replaces its whole definition, or changes nothing. req gets a random
// idempotency key if it has none. ErrVersionConflict if req.ExpectedVersion is not the current one, or req.MustNotExist does not
// hold.
func (c *Client) PutJob(ctx context.Context, req *carillonv1.PutJobRequest) (*carillonv1.PutJobResponse, error) {
	req.IdempotencyKey = keyOr(req.GetIdempotencyKey())
	return unary(ctx, c, identified, c.jobs.PutJob, req)
}

// PauseJob stops a job's firing and holds its ready executions. req gets a random idempotency key if it has none.
func (c *Client) PauseJob(ctx context.Context, req *carillonv1.PauseJobRequest) (*carillonv1.Job, error) {
	req.IdempotencyKey = keyOr(req.GetIdempotencyKey())
	res, err := unary(ctx, c, identified, c.jobs.PauseJob, req)
	return res.GetJob(), err
}

// ResumeJob undoes a pause. req gets a random idempotency key if it has none.
func (c *Client) ResumeJob(ctx context.Context, req *carillonv1.ResumeJobRequest) (*carillonv1.Job, error) {
	req.IdempotencyKey = keyOr(req.GetIdempotencyKey())
	res, err := unary(ctx, c, identified, c.jobs.ResumeJob, req)
	return res.GetJob(), err
}

// PreviewResume says what resuming a job would do now.
func (c *Client) PreviewResume(
	ctx context.Context, req *carillonv1.PreviewResumeRequest,
) (*carillonv1.PreviewResumeResponse, error) {
	return unary(ctx, c, identified, c.jobs.PreviewResume, req)
}

// DeleteJob cancels what waits of a job, tells what runs to stop, and returns the tombstone. req gets a random idempotency
// key if it has none.
func (c *Client) DeleteJob(ctx context.Context, req *carillonv1.DeleteJobRequest) (*carillonv1.Job, error) {
	req.IdempotencyKey = keyOr(req.GetIdempotencyKey())
	res, err := unary(ctx, c, identified, c.jobs.DeleteJob, req)
	return res.GetJob(), err
}

// TriggerJob makes one execution now, apart from the schedule, and returns its id. req gets a random idempotency key if it
// has none.
func (c *Client) TriggerJob(ctx context.Context, req *carillonv1.TriggerJobRequest) (string, error) {
	req.IdempotencyKey = keyOr(req.GetIdempotencyKey())
	res, err := unary(ctx, c, identified, c.jobs.TriggerJob, req)
	return res.GetExecutionId(), err
}

// GetJobHistory reads what became of a job's occurrences, page after page: see ListJobs.
func (c *Client) GetJobHistory(
	ctx context.Context, req *carillonv1.GetJobHistoryRequest,
) iter.Seq2[*carillonv1.GetJobHistoryResponse, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.GetJobHistoryResponse, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.jobs.GetJobHistory, req)
		return []*carillonv1.GetJobHistoryResponse{res}, res.GetNextPageToken(), err
	})
}

// ListOccurrences reads a job's nominal instants with their verdicts, page after page: see ListJobs.
func (c *Client) ListOccurrences(
	ctx context.Context, req *carillonv1.ListOccurrencesRequest,
) iter.Seq2[*carillonv1.ListOccurrencesResponse, error] {
	req = proto.CloneOf(req)
	return pages(req.GetPageToken(), func(token string) ([]*carillonv1.ListOccurrencesResponse, string, error) {
		req.PageToken = token
		res, err := unary(ctx, c, identified, c.jobs.ListOccurrences, req)
		return []*carillonv1.ListOccurrencesResponse{res}, res.GetNextPageToken(), err
	})
}

// BackfillJob runs past occurrences of a job and returns how far that is; it does not wait for those that go one after the other.
// req gets a random backfill id if it has none, so that repeating the call with the same request is safe and asks again.
func (c *Client) BackfillJob(ctx context.Context, req *carillonv1.BackfillJobRequest) (*carillonv1.Task, error) {
	req.BackfillId = keyOr(req.GetBackfillId())
	res, err := unary(ctx, c, task, c.jobs.BackfillJob, req)
	return res.GetTask(), err
}

// CancelBackfill ends a backfill: what it has not made yet is not made. Repeating it changes nothing.
func (c *Client) CancelBackfill(ctx context.Context, req *carillonv1.CancelBackfillRequest) (*carillonv1.Task, error) {
	res, err := unary(ctx, c, identified, c.jobs.CancelBackfill, req)
	return res.GetTask(), err
}

// pages is the items of the pages that read returns, from that of token until one has no next. Each range begins there.
func pages[T any](token string, read func(token string) (items []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for at := token; ; {
			items, next, err := read(at)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			at = next
		}
	}
}
