package rpc

import (
	"context"
	"errors"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// jobRef names a job.
type jobRef struct{ tenant, id string }

// job checks a job's id and tenant.
func (v *violations) job(id, tenant string) jobRef {
	v.name("id", id)
	v.optionalName("tenant", tenant)
	if tenant == "" {
		tenant = defaultName
	}
	return jobRef{tenant: tenant, id: id}
}

func (s *server) getJob(ctx context.Context, req *carillonv1.GetJobRequest) (*carillonv1.GetJobResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	if err := v.err(); err != nil {
		return nil, err
	}
	var found *carillonv1.Job
	var row *storagev1.Job
	err := s.backend.View(ctx, s.backend.ShardOf(ref.tenant, ref.id), req.Stale, func(r fsm.Reader) error {
		found = nil
		view, ok := fsm.GetJob(r, ref.tenant, ref.id)
		if !ok || view.State == storagev1.JobState_JOB_STATE_DELETED {
			return nil
		}
		found, row = jobOf(&view), view.Job
		found.Payload = view.Payload
		found.StoppedBy = stoppedBy(fsm.NewStops(r, ref.tenant), &view)
		found.LastRun = lastRunOf(r, &view)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, notFound("no job %q in tenant %q", ref.id, ref.tenant)
	}
	showTimes(found, row)
	return &carillonv1.GetJobResponse{Job: found}, nil
}

// stoppedBy names the pauses that stop a job which its own state does not stop for good.
func stoppedBy(stops *fsm.Stops, view *fsm.JobView) []string {
	if view.State != storagev1.JobState_JOB_STATE_ACTIVE && view.State != storagev1.JobState_JOB_STATE_PAUSED {
		return nil
	}
	return stops.Of(view.Job)
}

func lastRunOf(r fsm.Reader, view *fsm.JobView) *carillonv1.LastRun {
	last, removed := fsm.LastRun(r, view)
	switch {
	case removed:
		return &carillonv1.LastRun{Removed: true}
	case last == nil:
		return nil
	}
	e := executionOf(last, fsm.ExecutionID(last), false)
	return &carillonv1.LastRun{
		Time: e.NominalTime, Local: localOf(zoneOf(view.Job.Schedule), last.NominalMs), State: e.State, Verdict: verdictWith(last),
		ExecutionId: e.Id, StartTime: e.StartTime, FinishTime: e.FinishTime, Error: e.Error,
	}
}

func (s *server) updateJob(ctx context.Context, req *carillonv1.UpdateJobRequest) (*carillonv1.UpdateJobResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	v.key("idempotency_key", req.IdempotencyKey)
	update, err := s.updateOf(ctx, &v, ref, req)
	if err != nil {
		return nil, err
	}
	var job *carillonv1.Job
	err = s.withPayload(ctx, update, func(update *storagev1.UpdateJob) (err error) {
		job, err = s.proposeUpdate(ctx, ref, update, "update", req.IdempotencyKey)
		return err
	})
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		return nil, &Refused{ofJob(refused.Refusal)}
	}
	if err != nil {
		return nil, err
	}
	return &carillonv1.UpdateJobResponse{Job: job}, nil
}

// updateOf validates and translates an update, with the horizon of its schedule.
func (s *server) updateOf(
	ctx context.Context, v *violations, ref jobRef, req *carillonv1.UpdateJobRequest,
) (*storagev1.UpdateJob, error) {
	done, err := s.turns.takeFor(ctx, req.GetJob().GetSchedule())
	if err != nil {
		return nil, err
	}
	defer done()
	update := s.patch(v, req)
	if err := v.err(); err != nil {
		return nil, err
	}
	update.ExpectedVersion = req.ExpectedVersion
	update.Tenant, update.JobId = ref.tenant, ref.id
	if update.Schedule != nil {
		setOffset(update.Schedule, ref.id)
	}
	update.Hash = hashUpdate(update)
	now := s.backend.NowMS()
	if err := s.tooOften(update.Schedule, now); err != nil {
		return nil, err
	}
	update.Horizon, update.HorizonFromMs = horizonOf(update.Schedule, now)
	return update, nil
}

func (s *server) pauseJob(ctx context.Context, req *carillonv1.PauseJobRequest) (*carillonv1.PauseJobResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	v.key("idempotency_key", req.IdempotencyKey)
	v.text("reason", req.Reason, maxReasonBytes)
	v.text("paused_by", req.PausedBy, maxPausedByBytes)
	pause := &storagev1.Pause{
		// Whether it has passed is the state machine's to say: the retry of a pause that is over gets the first answer.
		By: req.PausedBy, UntilMs: v.instant("until", req.Until, s.backend.NowMS()),
		Resume: v.resumeRule("resume_rule", req.ResumeRule),
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	update := &storagev1.UpdateJob{
		Fields: []string{"state", "pause_reason", "pause"}, State: storagev1.JobState_JOB_STATE_PAUSED,
		PauseReason: req.Reason, Pause: pause, ExpectedVersion: req.ExpectedVersion,
	}
	job, err := s.proposeUpdate(ctx, ref, update, "pause", req.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return &carillonv1.PauseJobResponse{Job: job}, nil
}

func (s *server) resumeJob(ctx context.Context, req *carillonv1.ResumeJobRequest) (*carillonv1.ResumeJobResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	v.key("idempotency_key", req.IdempotencyKey)
	rule := v.resumeRule("resume_rule", req.ResumeRule)
	if err := v.err(); err != nil {
		return nil, err
	}
	update := &storagev1.UpdateJob{
		Fields: []string{"state"}, State: storagev1.JobState_JOB_STATE_ACTIVE, ExpectedVersion: req.ExpectedVersion,
	}
	if rule != storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		update.Fields, update.Pause = append(update.Fields, "pause"), &storagev1.Pause{Resume: rule}
	}
	// What else stops the job is read first: a resume that was accepted has its answer.
	var stopped []string
	err := s.backend.View(ctx, s.backend.ShardOf(ref.tenant, ref.id), false, func(r fsm.Reader) error {
		stopped = nil
		if view, ok := fsm.GetJob(r, ref.tenant, ref.id); ok {
			stopped = stoppedBy(fsm.NewStops(r, ref.tenant), &view)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	job, err := s.proposeUpdate(ctx, ref, update, "resume", req.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	job.StoppedBy = stopped
	return &carillonv1.ResumeJobResponse{Job: job}, nil
}

// proposeUpdate gives an update its identity and proposes it. A key counts for its method: the state machine knows one
// kind of update only.
func (s *server) proposeUpdate(
	ctx context.Context, ref jobRef, update *storagev1.UpdateJob, method, key string,
) (*carillonv1.Job, error) {
	update.Tenant, update.JobId = ref.tenant, ref.id
	if update.Hash == nil {
		update.Hash = hashUpdate(update)
	}
	if key != "" {
		update.IdempotencyKey = method + ":" + key
	}
	cmd := callOf(ctx).command()
	cmd.UpdateJob = update
	result, err := s.propose(ctx, s.backend.ShardOf(ref.tenant, ref.id), cmd)
	if err != nil {
		return nil, err
	}
	return jobOfResult(ref, &result), nil
}

func (s *server) deleteJob(ctx context.Context, req *carillonv1.DeleteJobRequest) (*carillonv1.DeleteJobResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	v.key("idempotency_key", req.IdempotencyKey)
	if err := v.err(); err != nil {
		return nil, err
	}
	shard := s.backend.ShardOf(ref.tenant, ref.id)
	remove := &storagev1.DeleteJob{
		Tenant: ref.tenant, JobId: ref.id, IdempotencyKey: req.IdempotencyKey, ExpectedVersion: req.ExpectedVersion,
	}
	remove.Hash = hashOf("delete", &storagev1.DeleteJob{Tenant: ref.tenant, JobId: ref.id})
	var result fsm.Result
	err := untilFound(func() error {
		err := s.backend.View(ctx, shard, false, func(r fsm.Reader) error {
			remove = remove.CloneVT()
			// What is beyond the limit is cancelled by the job's marker when it is next touched.
			remove.Hints, _ = fsm.LiveExecutionKeys(r, ref.tenant, ref.id, fsm.MaxBatch)
			return nil
		})
		if err != nil {
			return err
		}
		cmd := callOf(ctx).command()
		cmd.DeleteJob = remove
		result, err = s.propose(ctx, shard, cmd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &carillonv1.DeleteJobResponse{Job: jobOfResult(ref, &result)}, nil
}

// untilFound tries again, at most maxTries times, when what was found for the command has moved on.
func untilFound(try func() error) error {
	var err error
	for range maxTries {
		if err = try(); !refusedWith(err, fsm.Moved) {
			return err
		}
	}
	return err
}

func (s *server) triggerJob(ctx context.Context, req *carillonv1.TriggerJobRequest) (*carillonv1.TriggerJobResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	v.key("idempotency_key", req.IdempotencyKey)
	if err := v.err(); err != nil {
		return nil, err
	}
	trigger := &storagev1.TriggerJob{Tenant: ref.tenant, JobId: ref.id, Discriminator: discriminatorFromKey(req.IdempotencyKey)}
	if trigger.Discriminator == "" {
		trigger.Discriminator = newID()
	}
	trigger.Hash = hashOf("trigger", trigger)
	cmd := callOf(ctx).command()
	cmd.TriggerJob = trigger
	result, err := s.propose(ctx, s.backend.ShardOf(ref.tenant, ref.id), cmd)
	if err != nil {
		return nil, err
	}
	return &carillonv1.TriggerJobResponse{ExecutionId: result.ExecutionID}, nil
}
