package clienttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// job is a job with what its create said.
type job struct {
	*carillonv1.Job
	spec    *carillonv1.JobSpec
	receipt *carillonv1.JobReceipt
	pending *execution
	// cron is set for jobs with such a schedule.
	cron *cron.Schedule
}

// execution is an execution with what a worker needs of its job, and its lease.
type execution struct {
	*carillonv1.Execution
	job     *job
	dueAt   time.Time
	fencing uint64
	claimID string
	lease   time.Duration
}

type jobService struct{ *Server }

func (s jobService) CreateJob(
	_ context.Context, req *connect.Request[carillonv1.CreateJobRequest],
) (*connect.Response[carillonv1.CreateJobResponse], error) {
	r, err := s.create(req.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&carillonv1.CreateJobResponse{
		Id: r.GetId(), Tenant: r.GetTenant(), Incarnation: r.GetIncarnation(), Version: r.GetVersion(),
		CreateTime: r.GetCreateTime(), NextTime: r.GetNextTime(), NextTimes: r.GetNextTimes(), FiresPerDay: r.GetFiresPerDay(),
	}), nil
}

func (s jobService) BatchCreateJobs(
	_ context.Context, req *connect.Request[carillonv1.BatchCreateJobsRequest],
) (*connect.Response[carillonv1.BatchCreateJobsResponse], error) {
	res := &carillonv1.BatchCreateJobsResponse{}
	for i, item := range req.Msg.GetItems() {
		if item.GetIdempotencyKey() == "" && req.Msg.GetRequestId() != "" {
			item.IdempotencyKey = fmt.Sprintf("%s/%d", req.Msg.GetRequestId(), i)
		}
		result := &carillonv1.BatchCreateJobsResult{}
		r, err := s.create(item)
		if err != nil {
			result.Result = &carillonv1.BatchCreateJobsResult_Error{Error: itemError(err)}
		} else {
			result.Result = &carillonv1.BatchCreateJobsResult_Receipt{Receipt: r}
		}
		res.Results = append(res.Results, result)
	}
	return connect.NewResponse(res), nil
}

// itemError is a call's error as that of a batch's item.
func itemError(err error) *carillonv1.ItemError {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return &carillonv1.ItemError{Code: "unknown", Message: err.Error()}
	}
	item := &carillonv1.ItemError{Code: failed.Code().String(), Message: failed.Message()}
	for _, d := range failed.Details() {
		switch v, err := d.Value(); d := v.(type) {
		case *carillonv1.FieldViolation:
			item.Field = d.GetField()
		case *carillonv1.IdempotencyConflict:
			item.Field = strings.Join(d.GetFields(), ",")
		case *carillonv1.RetryHint:
			item.RetryAfter = d.GetRetryAfter()
		default:
			if err != nil {
				panic(err)
			}
		}
	}
	return item
}

func (s *Server) create(req *carillonv1.CreateJobRequest) (*carillonv1.JobReceipt, error) {
	spec := proto.CloneOf(req.GetJob())
	if spec.GetSchedule().GetWhen() == nil {
		return nil, invalid("job.schedule", "must be set")
	}
	var cronSchedule *cron.Schedule
	if c := spec.GetSchedule().GetCron(); c != nil {
		var err error
		if cronSchedule, err = compile(c); err != nil {
			return nil, err
		}
	}
	if strings.ContainsAny(spec.GetQueue(), " \x00") || !utf8.ValidString(spec.GetQueue()) {
		return nil, invalid("job.queue", "must be 1 to 128 characters of [A-Za-z0-9._:@+{}-]")
	}
	spec.Tenant, spec.Queue = orDefault(spec.GetTenant()), orDefault(spec.GetQueue())
	s.mu.Lock()
	defer s.mu.Unlock()
	id := spec.GetId()
	if id == "" {
		id = "key-" + req.GetIdempotencyKey()
		if req.GetIdempotencyKey() == "" {
			id = fmt.Sprintf("made-%d", len(s.jobs)+1)
		}
	}
	key := name{spec.GetTenant(), id}
	if old := s.jobs[key]; old != nil {
		if !proto.Equal(old.spec, spec) {
			return nil, Fail(connect.CodeAlreadyExists, "job exists with another body",
				&carillonv1.IdempotencyConflict{Fields: differing(old.spec, spec)})
		}
		return old.receipt, nil
	}
	return s.accept(key, spec, cronSchedule), nil
}

func invalid(field, description string) error {
	return Fail(connect.CodeInvalidArgument, field+": "+description,
		&carillonv1.FieldViolation{Field: field, Description: description})
}

// differing names the top-level fields in which two jobs differ.
func differing(a, b *carillonv1.JobSpec) []string {
	var fields []string
	ra, rb := a.ProtoReflect(), b.ProtoReflect()
	for i := range ra.Descriptor().Fields().Len() {
		f := ra.Descriptor().Fields().Get(i)
		if !ra.Get(f).Equal(rb.Get(f)) {
			fields = append(fields, string(f.Name()))
		}
	}
	return fields
}

// accept stores a new job. The lock is held.
func (s *Server) accept(key name, spec *carillonv1.JobSpec, cronSchedule *cron.Schedule) *carillonv1.JobReceipt {
	now := time.Now()
	j := &job{spec: spec, cron: cronSchedule, Job: &carillonv1.Job{
		Id: key.id, Tenant: key.tenant, Queue: spec.GetQueue(), Schedule: proto.CloneOf(spec.GetSchedule()),
		CatchUp: spec.GetCatchUp(), Payload: spec.GetPayload(), ContentType: spec.GetContentType(),
		PayloadRef: spec.GetPayloadRef(), Labels: spec.GetLabels(), Headers: spec.GetHeaders(),
		Priority: spec.Priority, FairnessKey: spec.GetFairnessKey(), Retry: proto.CloneOf(spec.GetRetry()),
		Lease: spec.GetLease(), Retention: spec.GetRetention(), Overlap: spec.GetOverlap(), CatchUpPerMinute: spec.GetCatchUpPerMinute(),
		PauseAfterFailures: spec.GetPauseAfterFailures(),
		Version:            1, Incarnation: uint64(len(s.jobs) + 1), State: carillonv1.JobState_JOB_STATE_ACTIVE,
		CreateTime: timestamppb.New(now), UpdateTime: timestamppb.New(now),
	}}
	if j.Priority == nil {
		j.Priority = new(uint32(5))
	}
	if j.Retry == nil {
		j.Retry = &carillonv1.RetryPolicy{}
	}
	j.Retry.MaxAttempts = cmp.Or(j.Retry.GetMaxAttempts(), 5)
	due := now
	switch when := j.GetSchedule().GetWhen().(type) {
	case *carillonv1.Schedule_At:
		due = when.At.AsTime()
	case *carillonv1.Schedule_Delay:
		due = now.Add(when.Delay.AsDuration())
		j.Schedule = &carillonv1.Schedule{When: &carillonv1.Schedule_At{At: timestamppb.New(due)}}
	case *carillonv1.Schedule_Every, *carillonv1.Schedule_Cron:
		due, _ = j.next(now)
		j.showTimes(now)
	}
	s.expect(j, due)
	j.receipt = &carillonv1.JobReceipt{
		Id: key.id, Tenant: key.tenant, Incarnation: j.GetIncarnation(), Version: 1, CreateTime: j.GetCreateTime(),
		NextTime: j.GetNextTime(), NextTimes: j.GetNextTimes(), FiresPerDay: j.GetFiresPerDay(),
	}
	s.jobs[key] = j
	return j.receipt
}

// expect makes the execution of a job's next occurrence. The lock is held.
func (s *Server) expect(j *job, due time.Time) {
	j.NextTime = timestamppb.New(due)
	j.pending = s.addExecution(j, due, carillonv1.ExecutionKind_EXECUTION_KIND_SCHEDULE, "s")
}

func (s *Server) addExecution(j *job, due time.Time, kind carillonv1.ExecutionKind, letter string) *execution {
	e := &execution{job: j, dueAt: due, Execution: &carillonv1.Execution{
		Id:    fmt.Sprintf("%s~%s~%d~%s~%d", j.GetTenant(), j.GetId(), j.GetIncarnation(), letter, due.UnixMilli()),
		JobId: j.GetId(), Tenant: j.GetTenant(), Queue: j.GetQueue(), Kind: kind, NominalTime: timestamppb.New(due),
		State: carillonv1.ExecutionState_EXECUTION_STATE_WAITING, NextTime: timestamppb.New(due),
		Priority: j.GetPriority(), JobVersion: j.GetVersion(), Incarnation: j.GetIncarnation(),
		MaxAttempts: j.GetRetry().GetMaxAttempts(),
	}}
	s.executions = append(s.executions, e)
	s.wake()
	return e
}

// wake tells waiting claims to look again. The lock is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// find is a live job. The lock is held.
func (s *Server) find(tenant, id string) (*job, error) {
	j := s.jobs[name{orDefault(tenant), id}]
	if j == nil || j.GetState() == carillonv1.JobState_JOB_STATE_DELETED {
		return nil, Fail(connect.CodeNotFound, fmt.Sprintf("job %q not found", id))
	}
	return j, nil
}

func (s jobService) GetJob(
	_ context.Context, req *connect.Request[carillonv1.GetJobRequest],
) (*connect.Response[carillonv1.GetJobResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(req.Msg.GetTenant(), req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	res := proto.CloneOf(j.Job)
	res.StoppedBy, res.LastRun = s.stoppedBy(j), s.lastRun(j)
	return connect.NewResponse(&carillonv1.GetJobResponse{Job: res}), nil
}

// stoppedBy names the pauses that stop a job besides its own. The lock is held.
func (s *Server) stoppedBy(j *job) (by []string) {
	if s.queues[j.GetQueue()].GetPaused() {
		by = append(by, "queue:"+j.GetQueue())
	}
	if s.tenants[j.GetTenant()].GetPaused() {
		by = append(by, "tenant:"+j.GetTenant())
	}
	for _, rule := range sorted(s.rules) {
		if hasLabels(j.GetLabels(), rule.GetLabel()) && (rule.GetTenant() == "" || rule.GetTenant() == j.GetTenant()) {
			by = append(by, "rule:"+rule.GetId())
		}
	}
	return by
}

// lastRun is the newest execution of a job's schedule that has begun. The lock is held.
func (s *Server) lastRun(j *job) (last *carillonv1.LastRun) {
	for _, e := range s.executions {
		if e.job == j && e.GetKind() == carillonv1.ExecutionKind_EXECUTION_KIND_SCHEDULE && e.GetAttempt() > 0 {
			last = &carillonv1.LastRun{
				Time: e.GetNominalTime(), Local: j.local(e.GetNominalTime()), State: e.GetState(), Verdict: carillonv1.Verdict_VERDICT_FIRED,
				ExecutionId: e.GetId(), StartTime: e.GetStartTime(), FinishTime: e.GetFinishTime(), Error: e.GetError(),
			}
		}
	}
	return last
}

func (s jobService) ListJobs(
	_ context.Context, req *connect.Request[carillonv1.ListJobsRequest],
) (*connect.Response[carillonv1.ListJobsResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*carillonv1.Job
	for _, j := range s.jobs {
		if j.GetTenant() == orDefault(req.Msg.GetTenant()) && strings.HasPrefix(j.GetId(), req.Msg.GetIdPrefix()) &&
			(req.Msg.GetQueue() == "" || req.Msg.GetQueue() == j.GetQueue()) &&
			j.GetState() != carillonv1.JobState_JOB_STATE_DELETED &&
			(req.Msg.GetState() == 0 || req.Msg.GetState() == j.GetState()) && hasLabels(j.GetLabels(), req.Msg.GetLabel()) {
			listed := proto.CloneOf(j.Job)
			listed.Payload, listed.NextTimes, listed.FiresPerDay, listed.StoppedBy = nil, nil, 0, s.stoppedBy(j)
			all = append(all, listed)
		}
	}
	slices.SortFunc(all, func(a, b *carillonv1.Job) int { return strings.Compare(a.GetId(), b.GetId()) })
	res := &carillonv1.ListJobsResponse{}
	res.Jobs, res.NextPageToken = page(all, req.Msg.GetPageSize(), req.Msg.GetPageToken())
	return connect.NewResponse(res), nil
}

// hasLabels says whether labels have all that filters name: "key=value", or "key" for any value.
func hasLabels(labels map[string]string, filters []string) bool {
	for _, filter := range filters {
		key, value, exact := strings.Cut(filter, "=")
		if have, ok := labels[key]; !ok || exact && have != value {
			return false
		}
	}
	return true
}

// page cuts a list; its token is the index of the next item.
func page[T any](all []T, size int32, token string) ([]T, string) {
	var from int
	if token != "" {
		if _, err := fmt.Sscanf(token, "%d", &from); err != nil {
			panic(err)
		}
	}
	end := min(len(all), from+int(cmp.Or(size, 100)))
	if end < len(all) {
		return all[from:end], fmt.Sprint(end)
	}
	return all[min(from, end):end], ""
}

// change changes a job under its expected version.
func (s *Server) change(tenant, id string, expected uint64, f func(*job)) (*carillonv1.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(tenant, id)
	if err != nil {
		return nil, err
	}
	if expected != 0 && expected != j.GetVersion() {
		return nil, Fail(connect.CodeAborted, "expected_version is stale",
			&carillonv1.VersionConflict{CurrentVersion: j.GetVersion()})
	}
	f(j)
	j.Version++
	j.UpdateTime = timestamppb.Now()
	s.wake()
	res := proto.CloneOf(j.Job)
	res.Payload = nil
	return res, nil
}

func (s jobService) UpdateJob(
	_ context.Context, req *connect.Request[carillonv1.UpdateJobRequest],
) (*connect.Response[carillonv1.UpdateJobResponse], error) {
	r := req.Msg
	j, err := s.change(r.GetTenant(), r.GetId(), r.GetExpectedVersion(), func(j *job) {
		patch(j.ProtoReflect(), r.GetJob().ProtoReflect(), r.GetUpdateMask().GetPaths())
		if r.GetJob().GetSchedule() != nil {
			// The occurrence that is pending stays: the times after it are not known.
			j.NextTimes, j.FiresPerDay = nil, 0
		}
	})
	return connect.NewResponse(&carillonv1.UpdateJobResponse{Job: j}), err
}

func (s jobService) PauseJob(
	_ context.Context, req *connect.Request[carillonv1.PauseJobRequest],
) (*connect.Response[carillonv1.PauseJobResponse], error) {
	r := req.Msg
	j, err := s.change(r.GetTenant(), r.GetId(), r.GetExpectedVersion(), func(j *job) {
		j.State, j.PauseReason = carillonv1.JobState_JOB_STATE_PAUSED, r.GetReason()
		j.PausedBy, j.PauseUntil, j.ResumeRule = r.GetPausedBy(), r.GetUntil(), r.GetResumeRule()
	})
	return connect.NewResponse(&carillonv1.PauseJobResponse{Job: j}), err
}

func (s jobService) ResumeJob(
	_ context.Context, req *connect.Request[carillonv1.ResumeJobRequest],
) (*connect.Response[carillonv1.ResumeJobResponse], error) {
	r := req.Msg
	var stopped []string
	j, err := s.change(r.GetTenant(), r.GetId(), r.GetExpectedVersion(), func(j *job) {
		j.State, j.PauseReason = carillonv1.JobState_JOB_STATE_ACTIVE, ""
		j.PausedBy, j.PauseUntil, j.ResumeRule = "", nil, carillonv1.CatchUp_CATCH_UP_UNSPECIFIED
		stopped = s.stoppedBy(j)
	})
	if err == nil {
		j.StoppedBy = stopped
	}
	return connect.NewResponse(&carillonv1.ResumeJobResponse{Job: j}), err
}

// PreviewResume says of each job that one would run and two would not.
func (s jobService) PreviewResume(
	_ context.Context, req *connect.Request[carillonv1.PreviewResumeRequest],
) (*connect.Response[carillonv1.PreviewResumeResponse], error) {
	return connect.NewResponse(&carillonv1.PreviewResumeResponse{
		Fired: 1, Skipped: []*carillonv1.SkippedCount{{Why: "coalesced", Count: 2}}, StoppedBy: []string{"queue:" + req.Msg.GetId()},
	}), nil
}

func (s jobService) DeleteJob(
	_ context.Context, req *connect.Request[carillonv1.DeleteJobRequest],
) (*connect.Response[carillonv1.DeleteJobResponse], error) {
	r := req.Msg
	j, err := s.change(r.GetTenant(), r.GetId(), r.GetExpectedVersion(), func(j *job) {
		j.State, j.NextTime = carillonv1.JobState_JOB_STATE_DELETED, nil
	})
	return connect.NewResponse(&carillonv1.DeleteJobResponse{Job: j}), err
}

func (s jobService) TriggerJob(
	_ context.Context, req *connect.Request[carillonv1.TriggerJobRequest],
) (*connect.Response[carillonv1.TriggerJobResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(req.Msg.GetTenant(), req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	e := s.addExecution(j, time.Now(), carillonv1.ExecutionKind_EXECUTION_KIND_TRIGGER, "t")
	return connect.NewResponse(&carillonv1.TriggerJobResponse{ExecutionId: e.GetId()}), nil
}

func (s jobService) GetJobHistory(
	_ context.Context, req *connect.Request[carillonv1.GetJobHistoryRequest],
) (*connect.Response[carillonv1.GetJobHistoryResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, err := s.find(req.Msg.GetTenant(), req.Msg.GetId())
	if err != nil {
		return nil, err
	}
	var all []*carillonv1.Execution
	for _, e := range s.executions {
		if e.job == j {
			all = append(all, proto.CloneOf(e.Execution))
			all[len(all)-1].NominalLocal = j.local(e.GetNominalTime())
		}
	}
	res := &carillonv1.GetJobHistoryResponse{}
	res.Executions, res.NextPageToken = page(all, req.Msg.GetPageSize(), req.Msg.GetPageToken())
	return connect.NewResponse(res), nil
}
