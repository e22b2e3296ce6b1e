package rpc

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// timeOf is an instant of the records, which count milliseconds since 1970, as the API shows it.
func timeOf(ms int64) *timestamppb.Timestamp {
	seconds := ms / 1000
	rest := ms % 1000
	if rest < 0 {
		seconds, rest = seconds-1, rest+1000
	}
	return &timestamppb.Timestamp{Seconds: seconds, Nanos: int32(rest) * int32(time.Millisecond)}
}

// optionalTime is timeOf for fields where 0 means unset.
func optionalTime(ms int64) *timestamppb.Timestamp {
	if ms == 0 {
		return nil
	}
	return timeOf(ms)
}

// durationOf is a length in milliseconds as the API shows it.
func durationOf(ms int64) *durationpb.Duration {
	return &durationpb.Duration{Seconds: ms / 1000, Nanos: int32(ms%1000) * int32(time.Millisecond)}
}

// optionalDuration is durationOf for fields where 0 means unset.
func optionalDuration(ms int64) *durationpb.Duration {
	if ms == 0 {
		return nil
	}
	return durationOf(ms)
}

func mapOf(pairs []*storagev1.KeyValue) map[string]string {
	if len(pairs) == 0 {
		return nil
	}
	m := make(map[string]string, len(pairs))
	for _, kv := range pairs {
		m[kv.Key] = kv.Value
	}
	return m
}

func scheduleOf(s *storagev1.Schedule) *carillonv1.Schedule {
	if s == nil {
		return nil
	}
	out := &carillonv1.Schedule{Spread: optionalDuration(s.SpreadMs), MaxFiresPerDay: s.MaxFiresPerDay}
	switch {
	case s.Every != nil:
		e := s.Every
		out.When = &carillonv1.Schedule_Every{Every: &carillonv1.Every{
			Interval: durationOf(e.IntervalMs), Anchor: optionalTime(e.AnchorMs), Start: optionalTime(e.StartMs),
			End: optionalTime(e.EndMs), MaxRuns: e.MaxRuns,
		}}
	case s.Cron != nil:
		out.When = &carillonv1.Schedule_Cron{Cron: cronOf(s.Cron)}
	default:
		out.When = &carillonv1.Schedule_At{At: timeOf(s.AtMs)}
	}
	return out
}

func cronOf(c *storagev1.Cron) *carillonv1.Cron {
	out := &carillonv1.Cron{
		Lines: c.Lines, Zone: c.Zone, Gap: carillonv1.Gap(c.Gap) + carillonv1.Gap_GAP_SHIFT,
		Repeat: carillonv1.Repeat(c.Repeat) + carillonv1.Repeat_REPEAT_FIRST, Start: optionalTime(c.StartMs), End: optionalTime(c.EndMs),
		MaxRuns: c.MaxRuns,
	}
	if len(c.ExcludeDates) > 0 || c.ExcludeWeekdays != "" || len(c.ExcludeLines) > 0 {
		out.Exclude = &carillonv1.Exclusions{Dates: c.ExcludeDates, Weekdays: c.ExcludeWeekdays, Lines: c.ExcludeLines}
	}
	return out
}

func retryOf(r *storagev1.RetryPolicy) *carillonv1.RetryPolicy {
	if r == nil {
		return nil
	}
	jitter := r.JitterThousandths
	return &carillonv1.RetryPolicy{
		MaxAttempts: r.MaxAttempts, FirstDelay: durationOf(r.FirstDelayMs), FactorThousandths: r.FactorThousandths,
		MaxDelay: durationOf(r.MaxDelayMs), JitterThousandths: &jitter,
	}
}

// jobOf is a job as the API shows it, without its payload.
func jobOf(view *fsm.JobView) *carillonv1.Job {
	out := jobOfRow(jobRef{view.Tenant, view.JobID}, view.Job)
	out.State = jobStates[view.State]
	out.NextTime = optionalTime(view.NextMS)
	return out
}

// jobOfResult is the job that an update or delete answered.
func jobOfResult(ref jobRef, result *fsm.Result) *carillonv1.Job {
	out := jobOfRow(ref, result.Job)
	showTimes(out, result.Job)
	return out
}

// jobOfRow shows a job's row, its template included. Of a one-shot that has fired the template is gone from the row, but
// not where its execution went: queue, priority and fairness key.
func jobOfRow(ref jobRef, j *storagev1.Job) *carillonv1.Job {
	t := j.GetTemplate()
	out := &carillonv1.Job{
		Id: ref.id, Tenant: ref.tenant, Queue: cmp.Or(t.GetQueue(), j.Queue), Schedule: scheduleOf(j.Schedule), CatchUp: carillonv1.CatchUp(j.CatchUp),
		CatchUpWindow: optionalDuration(j.CatchUpWindowMs), ContentType: t.GetContentType(), PayloadRef: t.GetPayloadRef(),
		Labels: mapOf(j.Labels), Headers: mapOf(t.GetHeaders()), FairnessKey: cmp.Or(t.GetFairnessKey(), j.FairnessKey), Retry: retryOf(t.GetRetry()),
		Lease: optionalDuration(t.GetLeaseMs()), StartDeadline: optionalDuration(t.GetStartDeadlineMs()),
		Retention: optionalDuration(t.GetRetentionMs()), Version: j.Version, Incarnation: j.Incarnation,
		State: jobStates[j.State], CreateTime: timeOf(j.CreatedMs), UpdateTime: timeOf(max(j.CreatedMs, j.UpdatedMs)),
		NextTime: optionalTime(j.NextMs), Runs: j.Runs, PauseReason: j.PauseReason,
		PausedBy: j.GetPause().GetBy(), PauseUntil: optionalTime(j.GetPause().GetUntilMs()),
		ResumeRule: carillonv1.CatchUp(j.GetPause().GetResume()), Parked: j.Parked,
	}
	switch {
	case t != nil:
		out.Priority = &t.Priority
	case j.Queue != "":
		out.Priority = &j.Priority
	}
	if isRecurring(out.Schedule) {
		out.Overlap = carillonv1.Overlap(cmp.Or(j.Overlap, storagev1.Overlap_OVERLAP_ALLOW))
		out.PauseAfterFailures = j.PauseAfterFailures
		if out.CatchUp == carillonv1.CatchUp_CATCH_UP_ALL {
			out.CatchUpPerMinute = j.CatchUpPerMinute
		}
	}
	return out
}

// jobStates are the states of a job's row as the API names them.
var jobStates = map[storagev1.JobState]carillonv1.JobState{
	storagev1.JobState_JOB_STATE_ACTIVE:    carillonv1.JobState_JOB_STATE_ACTIVE,
	storagev1.JobState_JOB_STATE_PAUSED:    carillonv1.JobState_JOB_STATE_PAUSED,
	storagev1.JobState_JOB_STATE_DELETED:   carillonv1.JobState_JOB_STATE_DELETED,
	storagev1.JobState_JOB_STATE_EXHAUSTED: carillonv1.JobState_JOB_STATE_EXHAUSTED,
}

// executionOf is an execution as the API shows it. The states, kinds and outcomes of records and API have the same
// numbers; a test says so.
func executionOf(e *storagev1.Execution, id string, withResult bool) *carillonv1.Execution {
	out := &carillonv1.Execution{
		Id: id, JobId: e.JobId, Tenant: e.Tenant, Queue: e.Template.GetQueue(), Kind: carillonv1.ExecutionKind(e.Kind),
		NominalTime: timeOf(e.NominalMs), State: carillonv1.ExecutionState(e.State), Attempt: e.Attempt,
		AttemptsTotal: e.AttemptsTotal, StartTime: optionalTime(e.FirstStartedMs), FinishTime: optionalTime(e.FinishedMs),
		Error: e.Error, Priority: e.Template.GetPriority(), CancelRequested: e.CancelRequested, JobVersion: e.JobVersion,
		Incarnation: e.Incarnation, MaxAttempts: e.Template.GetRetry().GetMaxAttempts(), Progress: e.Progress,
		Discriminator: e.Discriminator,
	}
	due := e.NominalMs + e.OffsetMs
	for _, a := range e.Attempts {
		out.Attempts = append(out.Attempts, attemptOf(a, due))
	}
	if e.FirstStartedMs != 0 {
		out.Lateness = durationOf(max(0, e.FirstStartedMs-due))
	}
	if withResult {
		out.Result = e.Result
	}
	switch e.State {
	case storagev1.ExecutionState_EXECUTION_STATE_WAITING:
		out.NextTime = timeOf(due)
	case storagev1.ExecutionState_EXECUTION_STATE_RETRYING:
		out.NextTime = optionalTime(e.ReadyMs)
	case storagev1.ExecutionState_EXECUTION_STATE_LEASED:
		out.Worker, out.Deadline = e.Worker, optionalTime(e.DeadlineMs)
		// The running attempt has no record yet: it is written when it ends.
		out.Attempts = append(out.Attempts, &carillonv1.Attempt{
			Number: e.Attempt, FencingNumber: e.Fencing, Worker: e.Worker, StartTime: optionalTime(e.LeasedMs),
			Lateness: durationOf(max(0, e.LeasedMs-due)),
		})
		out.AttemptsTotal++
	}
	return out
}

func attemptOf(a *storagev1.Attempt, dueMS int64) *carillonv1.Attempt {
	return &carillonv1.Attempt{
		Number: a.Number, FencingNumber: a.Fencing, Worker: a.Worker, StartTime: optionalTime(a.StartedMs),
		EndTime: optionalTime(a.EndedMs), Outcome: carillonv1.Outcome(a.Outcome), Error: a.Error,
		Lateness: durationOf(max(0, a.StartedMs-dueMS)),
	}
}

func verdictOf(r *storagev1.RangeVerdict) *carillonv1.RangeVerdict {
	return &carillonv1.RangeVerdict{
		From: timeOf(r.FromMs), To: timeOf(r.ToMs), Count: r.Count, Why: r.Why, RecordTime: optionalTime(r.RecordedMs),
	}
}

// historyOf is a page of a job's history.
func historyOf(h *fsm.History, list uint64, shard uint32) *carillonv1.GetJobHistoryResponse {
	out := &carillonv1.GetJobHistoryResponse{}
	for _, e := range h.Executions {
		out.Executions = append(out.Executions, executionOf(e, fsm.ExecutionID(e), false))
	}
	for _, r := range h.Verdicts {
		out.Verdicts = append(out.Verdicts, verdictOf(r))
	}
	for _, late := range h.Late {
		out.LateAttempts = append(out.LateAttempts, lateOf(late))
	}
	if h.Next != nil {
		out.NextPageToken = pageToken{list: list, shard: shard, cursor: h.Next}.String()
	}
	return out
}

// lateOf is a late attempt's row: an execution's identity with the one attempt that was refused.
func lateOf(e *storagev1.Execution) *carillonv1.LateAttempt {
	out := &carillonv1.LateAttempt{ExecutionId: fsm.ExecutionID(e)}
	for _, a := range e.Attempts {
		out.FencingNumber, out.Worker, out.Outcome, out.Error = a.Fencing, a.Worker, carillonv1.Outcome(a.Outcome), a.Error
		out.RecordTime = optionalTime(a.EndedMs)
	}
	return out
}
