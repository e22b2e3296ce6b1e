package rpc

import (
	"cmp"
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) putJob(ctx context.Context, req *carillonv1.PutJobRequest) (*carillonv1.PutJobResponse, error) {
	now := s.backend.NowMS()
	put, err := s.putOf(ctx, req, now)
	if err != nil {
		return nil, err
	}
	ref := jobRef{put.Job.Tenant, put.Job.JobId}
	if req.ValidateOnly {
		return s.planPut(ctx, ref, put, now)
	}
	cmd := callOf(ctx).command()
	cmd.PutJob = put
	result, err := s.propose(ctx, s.backend.ShardOf(ref.tenant, ref.id), cmd)
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		return nil, &Refused{ofJob(refused.Refusal)}
	}
	if err != nil {
		return nil, err
	}
	return &carillonv1.PutJobResponse{Job: jobOfResult(ref, &result), Outcome: putOutcomes[result.Put]}, nil
}

// putOf validates and translates a put, with the horizon of its schedule.
func (s *server) putOf(ctx context.Context, req *carillonv1.PutJobRequest, now int64) (*storagev1.PutJob, error) {
	done, err := s.turns.takeFor(ctx, req.GetJob().GetSchedule())
	if err != nil {
		return nil, err
	}
	defer done()
	var v violations
	job := v.putSpec(req)
	create := s.jobSpec(&v, job, now)
	v.key("idempotency_key", req.IdempotencyKey)
	if req.MustNotExist && req.ExpectedVersion != 0 {
		v.add("must_not_exist", "excludes expected_version")
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	setOffset(create.Schedule, create.JobId)
	create.Hash = hashCreate(create)
	if err := s.tooOften(create.Schedule, now); err != nil && !s.isAccepted(ctx, create) {
		return nil, err
	}
	put := &storagev1.PutJob{Job: create, MustNotExist: req.MustNotExist}
	put.Hash = hashOf("put", put)
	put.IdempotencyKey, put.ExpectedVersion = req.IdempotencyKey, req.ExpectedVersion
	create.Horizon, create.HorizonFromMs = horizonOf(create.Schedule, now)
	return put, nil
}

// planPut answers what a put would do, and does nothing.
func (s *server) planPut(ctx context.Context, ref jobRef, put *storagev1.PutJob, nowMS int64) (*carillonv1.PutJobResponse, error) {
	var result fsm.Result
	err := s.backend.View(ctx, s.backend.ShardOf(ref.tenant, ref.id), false, func(r fsm.Reader) error {
		result = fsm.PlanPut(r, put, nowMS)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case result.Refusal != nil:
		return nil, &Refused{ofJob(result.Refusal)}
	}
	job := jobOfResult(ref, &result)
	job.Payload = put.Job.Template.Payload
	return &carillonv1.PutJobResponse{Job: job, Outcome: putOutcomes[result.Put]}, nil
}

// putSpec is the job that is put, with the id and the tenant of the request; its own may be left out.
func (v *violations) putSpec(req *carillonv1.PutJobRequest) *carillonv1.JobSpec {
	v.name("id", req.Id)
	v.optionalName("tenant", req.Tenant)
	if req.Job == nil {
		return nil
	}
	if id := req.Job.Id; id != "" && id != req.Id {
		v.add("job.id", "is %q; the id of the call is %q", id, req.Id)
	}
	if tenant := req.Job.Tenant; tenant != "" && req.Tenant != "" && tenant != req.Tenant {
		v.add("job.tenant", "is %q; the tenant of the call is %q", tenant, req.Tenant)
	}
	job := proto.CloneOf(req.Job)
	job.Id, job.Tenant = req.Id, cmp.Or(req.Tenant, job.Tenant)
	return job
}

var putOutcomes = map[storagev1.PutOutcome]carillonv1.PutOutcome{
	storagev1.PutOutcome_PUT_OUTCOME_CREATED:   carillonv1.PutOutcome_PUT_OUTCOME_CREATED,
	storagev1.PutOutcome_PUT_OUTCOME_CHANGED:   carillonv1.PutOutcome_PUT_OUTCOME_CHANGED,
	storagev1.PutOutcome_PUT_OUTCOME_UNCHANGED: carillonv1.PutOutcome_PUT_OUTCOME_UNCHANGED,
}
