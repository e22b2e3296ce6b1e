package rpc

import (
	"context"
	"errors"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) createJob(ctx context.Context, req *carillonv1.CreateJobRequest) (*carillonv1.CreateJobResponse, error) {
	create, err := s.createWithHorizon(ctx, req)
	if err != nil {
		return nil, err
	}
	cmd := callOf(ctx).command()
	cmd.CreateJobs = &storagev1.CreateJobs{Items: []*storagev1.CreateJob{create}}
	items, err := s.proposeItems(ctx, s.backend.ShardOf(create.Tenant, create.JobId), cmd, 1)
	if err != nil {
		return nil, err
	}
	if refusal := items[0].Refusal; refusal != nil {
		return nil, s.createConflict(ctx, create, refusal)
	}
	times := firstTimes(create.Schedule, items[0].CreatedMS, items[0].FirstMS)
	if items[0].FirstMS == 0 && len(times.next) > 0 {
		items[0].FirstMS = times.next[0].Time.AsTime().UnixMilli()
	}
	r := receiptOf(create, &items[0])
	return &carillonv1.CreateJobResponse{
		Id: r.Id, Tenant: r.Tenant, Incarnation: r.Incarnation, Version: r.Version, CreateTime: r.CreateTime, NextTime: r.NextTime,
		NextTimes: times.next, FiresPerDay: times.firesPerDay,
	}, nil
}

// createWithHorizon is createOf for a call of its own, with the horizon.
func (s *server) createWithHorizon(ctx context.Context, req *carillonv1.CreateJobRequest) (*storagev1.CreateJob, error) {
	done, err := s.turns.takeFor(ctx, req.GetJob().GetSchedule())
	if err != nil {
		return nil, err
	}
	defer done()
	now := s.backend.NowMS()
	create, err := s.createOf(ctx, req, now, "", 0)
	if err != nil {
		return nil, err
	}
	create.Horizon, create.HorizonFromMs = horizonOf(create.Schedule, now)
	return create, nil
}

func (s *server) batchCreateJobs(ctx context.Context, req *carillonv1.BatchCreateJobsRequest) (*carillonv1.BatchCreateJobsResponse, error) {
	var v violations
	v.batch(len(req.Items))
	v.key("request_id", req.RequestId)
	if err := v.err(); err != nil {
		return nil, err
	}
	now := s.backend.NowMS()
	creates := make([]*storagev1.CreateJob, len(req.Items))
	// firsts are the first times after now of the jobs whose horizon is left to the leader's evaluator.
	firsts := make([]int64, len(req.Items))
	results := make([]carillonv1.BatchCreateJobsResult, len(req.Items))
	res := &carillonv1.BatchCreateJobsResponse{Results: make([]*carillonv1.BatchCreateJobsResult, len(req.Items))}
	for i, item := range req.Items {
		res.Results[i] = &results[i]
		var err error
		if err = ctx.Err(); err != nil {
			return nil, err
		}
		creates[i], firsts[i], err = s.batchItem(ctx, item, now, req.RequestId, i)
		switch {
		case errors.Is(err, errTurns):
			return nil, err
		case err != nil:
			results[i].Result = &carillonv1.BatchCreateJobsResult_Error{Error: itemError(err)}
		}
	}
	all := chunks(len(creates), func(i int) (place, int, bool) {
		c := creates[i]
		if c == nil {
			return place{}, 0, false
		}
		return place{s.backend.ShardOf(c.Tenant, c.JobId), c.Template.GetPriority()}, c.SizeVT(), true
	})
	call := callOf(ctx)
	var lastErr error
	var lastItem *carillonv1.ItemError
	s.proposeChunks(ctx, all, func(c *chunk) *storagev1.Command {
		cmd := call.command()
		items := make([]*storagev1.CreateJob, len(c.items))
		for k, i := range c.items {
			items[k] = creates[i]
		}
		cmd.CreateJobs = &storagev1.CreateJobs{Items: items}
		return cmd
	}, func(i int, item fsm.Item, err error) {
		if err == nil && item.Refusal != nil {
			refusal := item.Refusal
			if onlyIdentityDiffers(refusal) {
				refusal = existsFromAnother(creates[i].JobId)
			}
			err = refusalError(ofJob(refusal))
		}
		if err == nil && item.FirstMS == 0 {
			item.FirstMS, err = s.firstOf(ctx, creates[i], req.Items[i], item.CreatedMS, now, firsts[i])
		}
		if err != nil {
			if err != lastErr { // a chunk's items share theirs: an overloaded server refuses cheaply
				lastErr, lastItem = err, itemError(err)
			}
			results[i].Result = &carillonv1.BatchCreateJobsResult_Error{Error: lastItem}
			return
		}
		results[i].Result = &carillonv1.BatchCreateJobsResult_Receipt{Receipt: receiptOf(creates[i], &item)}
	})
	return res, nil
}

// batchItem is createOf for an item of a batch: with the horizon, or with its first time after nowMS if the batch has taken long.
func (s *server) batchItem(
	ctx context.Context, req *carillonv1.CreateJobRequest, nowMS int64, requestID string, index int,
) (c *storagev1.CreateJob, firstMS int64, err error) {
	done, err := s.turns.takeFor(ctx, req.GetJob().GetSchedule())
	if err != nil {
		return nil, 0, err
	}
	defer done()
	if c, err = s.createOf(ctx, req, nowMS, requestID, index); err != nil {
		return nil, 0, err
	}
	if s.backend.NowMS() > nowMS+batchHorizonMS {
		return c, firstAfter(c.Schedule, nowMS), nil
	}
	c.Horizon, c.HorizonFromMs = horizonOf(c.Schedule, nowMS)
	return c, 0, nil
}

// createOf validates a create and gives it its identity: the id as given, or derived from its key, or from the batch's
// request id and its index there, or made. The horizon is left to the caller: it is no part of what was asked for.
func (s *server) createOf(
	ctx context.Context, req *carillonv1.CreateJobRequest, nowMS int64, requestID string, index int,
) (*storagev1.CreateJob, error) {
	var v violations
	create := s.jobSpec(&v, req.GetJob(), nowMS)
	key := req.GetIdempotencyKey()
	v.key("idempotency_key", key)
	if err := v.err(); err != nil {
		return nil, err
	}
	keyHash := uint64(0)
	switch {
	case create.JobId != "" && key != "":
		keyHash = hashKey(key)
	case create.JobId != "" && requestID != "":
		keyHash = hashKey(jobIDFromBatch(create.Tenant, requestID, index))
	case create.JobId != "":
	case key != "":
		create.JobId, keyHash = jobIDFromKey(create.Tenant, key), keyInID
	case requestID != "":
		create.JobId, keyHash = jobIDFromBatch(create.Tenant, requestID, index), keyInID
	default:
		create.JobId = newID()
	}
	setOffset(create.Schedule, create.JobId)
	create.Hash = hashCreate(create)
	create.KeyHash = keyHash // not part of the body
	if err := s.tooOften(create.Schedule, nowMS); err != nil && !s.isAccepted(ctx, create) {
		return nil, err
	}
	return create, nil
}

// batch checks the number of a batch's items.
func (v *violations) batch(n int) {
	if n < 1 || n > maxBatchItems {
		v.add("items", "has %d items; 1 to %d are allowed", n, maxBatchItems)
	}
}

// firstOf is the first time of a job that was accepted without one, 0 if there is none. known is the first after nowMS, if
// that is known; a create that was accepted before this call has another.
func (s *server) firstOf(
	ctx context.Context, c *storagev1.CreateJob, req *carillonv1.CreateJobRequest, createdMS, nowMS, known int64,
) (int64, error) {
	if nowMS <= createdMS && createdMS < known {
		return known, nil
	}
	// The job is accepted: all that is left is to wait.
	done, err := s.turns.await(ctx, req.GetJob().GetSchedule())
	if err != nil {
		return 0, err
	}
	defer done()
	return firstAfter(c.Schedule, createdMS), nil
}

// receiptOf is the receipt of an accepted create.
func receiptOf(c *storagev1.CreateJob, item *fsm.Item) *carillonv1.JobReceipt {
	return &carillonv1.JobReceipt{
		Id: c.JobId, Tenant: c.Tenant, Incarnation: item.Incarnation, Version: 1, CreateTime: timeOf(item.CreatedMS),
		NextTime: optionalTime(item.FirstMS),
	}
}
