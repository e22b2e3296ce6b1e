package rpc

import (
	"context"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) createJob(ctx context.Context, req *carillonv1.CreateJobRequest) (*carillonv1.CreateJobResponse, error) {
	now := s.backend.NowMS()
	create, err := s.createOf(ctx, req, now, "", 0)
	if err != nil {
		return nil, err
	}
	create.Horizon, create.HorizonFromMs = horizonOf(create.Schedule, now)
	cmd := callOf(ctx).command()
	cmd.CreateJobs = &storagev1.CreateJobs{Items: []*storagev1.CreateJob{create}}
	items, err := s.proposeItems(ctx, s.backend.ShardOf(create.Tenant, create.JobId), cmd, 1)
	if err != nil {
		return nil, err
	}
	if refusal := items[0].Refusal; refusal != nil {
		return nil, s.createConflict(ctx, create, refusal)
	}
	r := receiptOf(create, &items[0])
	times := firstTimes(create.Schedule, items[0].CreatedMS, items[0].FirstMS)
	return &carillonv1.CreateJobResponse{
		Id: r.Id, Tenant: r.Tenant, Incarnation: r.Incarnation, Version: r.Version, CreateTime: r.CreateTime, NextTime: r.NextTime,
		NextTimes: times.next, FiresPerDay: times.firesPerDay,
	}, nil
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
	results := make([]carillonv1.BatchCreateJobsResult, len(req.Items))
	res := &carillonv1.BatchCreateJobsResponse{Results: make([]*carillonv1.BatchCreateJobsResult, len(req.Items))}
	for i, item := range req.Items {
		res.Results[i] = &results[i]
		var err error
		if err = ctx.Err(); err != nil {
			return nil, err
		}
		if creates[i], err = s.createOf(ctx, item, now, req.RequestId, i); err != nil {
			results[i].Result = &carillonv1.BatchCreateJobsResult_Error{Error: itemError(err)}
		} else if s.backend.NowMS() <= now+batchHorizonMS {
			creates[i].Horizon, creates[i].HorizonFromMs = horizonOf(creates[i].Schedule, now)
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

func receiptOf(c *storagev1.CreateJob, item *fsm.Item) *carillonv1.JobReceipt {
	first := item.FirstMS
	if first == 0 {
		// It was not known yet when the job was accepted.
		if t := timetableOf(c.Schedule, item.CreatedMS); t != nil {
			first, _ = t.after(item.CreatedMS)
		}
	}
	return &carillonv1.JobReceipt{
		Id: c.JobId, Tenant: c.Tenant, Incarnation: item.Incarnation, Version: 1, CreateTime: timeOf(item.CreatedMS),
		NextTime: optionalTime(first),
	}
}
