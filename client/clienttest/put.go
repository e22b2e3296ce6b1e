package clienttest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/cron"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// PutJob makes a changed job anew, with the next version; what waits of it goes.
func (s jobService) PutJob(
	_ context.Context, req *connect.Request[carillonv1.PutJobRequest],
) (*connect.Response[carillonv1.PutJobResponse], error) {
	r := req.Msg
	spec := proto.CloneOf(r.GetJob())
	if spec.GetSchedule().GetWhen() == nil {
		return nil, invalid("job.schedule", "must be set")
	}
	spec.Id, spec.Tenant = r.GetId(), orDefault(cmp.Or(r.GetTenant(), spec.GetTenant()))
	spec.Queue = orDefault(spec.GetQueue())
	var cronSchedule *cron.Schedule
	if c := spec.GetSchedule().GetCron(); c != nil {
		var err error
		if cronSchedule, err = compile(c); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := name{spec.GetTenant(), spec.GetId()}
	old := s.jobs[key]
	if old != nil && old.GetState() == carillonv1.JobState_JOB_STATE_DELETED {
		old = nil
	}
	version, outcome := uint64(1), carillonv1.PutOutcome_PUT_OUTCOME_CREATED
	switch {
	case old == nil && r.GetExpectedVersion() != 0:
		return nil, Fail(connect.CodeNotFound, "no such job")
	case old == nil:
	case r.GetMustNotExist(), r.GetExpectedVersion() != 0 && r.GetExpectedVersion() != old.GetVersion():
		return nil, Fail(connect.CodeAborted, "expected_version is stale", &carillonv1.VersionConflict{CurrentVersion: old.GetVersion()})
	case proto.Equal(old.spec, spec):
		version, outcome = old.GetVersion(), carillonv1.PutOutcome_PUT_OUTCOME_UNCHANGED
	default:
		version, outcome = old.GetVersion()+1, carillonv1.PutOutcome_PUT_OUTCOME_CHANGED
		if r.GetValidateOnly() {
			break
		}
		s.executions = slices.DeleteFunc(s.executions, func(e *execution) bool {
			return e == old.pending && e.GetState() == carillonv1.ExecutionState_EXECUTION_STATE_WAITING
		})
	}
	if r.GetValidateOnly() {
		return connect.NewResponse(&carillonv1.PutJobResponse{Job: planned(key, spec, cronSchedule), Outcome: outcome}), nil
	}
	if outcome != carillonv1.PutOutcome_PUT_OUTCOME_UNCHANGED {
		s.accept(key, spec, cronSchedule)
	}
	j := s.jobs[key]
	j.Version = version
	if old != nil {
		j.State, j.PauseReason = old.GetState(), old.GetPauseReason()
	}
	job := proto.CloneOf(j.Job)
	job.Payload = nil
	return connect.NewResponse(&carillonv1.PutJobResponse{Job: job, Outcome: outcome}), nil
}

// planned is a job as it would be, from a server that nobody sees.
func planned(key name, spec *carillonv1.JobSpec, cronSchedule *cron.Schedule) *carillonv1.Job {
	s := NewServer()
	s.accept(key, spec, cronSchedule)
	job := s.jobs[key].Job
	if at := job.GetSchedule().GetAt(); at != nil && !at.AsTime().After(time.Now()) {
		job.NextTime = nil
	}
	return job
}
