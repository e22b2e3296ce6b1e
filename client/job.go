package client

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Messages that a producer writes, under short names. Their fields and limits are described in the API.
type (
	// JobSpec is what a producer says of a job, as the API has it. Only its Schedule is required.
	JobSpec = carillonv1.JobSpec
	// RetryPolicy decides on the attempts after a failure.
	RetryPolicy = carillonv1.RetryPolicy
	// Schedule says when a job fires: see At, After, Every and Cron.
	Schedule = carillonv1.Schedule
)

// Job is a job to create. Only its Schedule is required; zero fields take the defaults of the API.
type Job struct {
	// ID is unique in the tenant. Empty: derived from the idempotency key.
	ID string
	// Tenant and Queue are "default" if empty.
	Tenant, Queue string
	Schedule      *Schedule
	// CatchUp says what happens to occurrences that nobody could fire at their time, CatchUpWindow how old they may be.
	CatchUp       carillonv1.CatchUp
	CatchUpWindow time.Duration
	// CatchUpPerMinute is the pace of catching up with all of them; 0: 60. Overlap says what happens to an occurrence that
	// falls due while an earlier one lives. PauseAfterFailures pauses the job after so many dead letters in a row; 0: never.
	// Recurring jobs only.
	CatchUpPerMinute, PauseAfterFailures uint32
	Overlap                              carillonv1.Overlap
	// Payload is given to the worker unchanged. PayloadRef says where it is instead.
	Payload                 []byte
	ContentType, PayloadRef string
	Labels, Headers         map[string]string
	// Priority is 0 to 9, the most urgent; nil: 5.
	Priority    *uint32
	FairnessKey string
	Retry       *RetryPolicy
	// Lease is how long a worker keeps the job without a word.
	Lease                    time.Duration
	StartDeadline, Retention time.Duration
	// IdempotencyKey makes the create safe to repeat from another process. Empty: a random one, kept over the retries of
	// one call.
	IdempotencyKey string
}

// Spec is the job as the API has it.
func (j Job) Spec() *JobSpec {
	return &JobSpec{
		Id: j.ID, Tenant: j.Tenant, Queue: j.Queue, Schedule: j.Schedule, CatchUp: j.CatchUp,
		CatchUpWindow: duration(j.CatchUpWindow), Payload: j.Payload, ContentType: j.ContentType,
		PayloadRef: j.PayloadRef, Labels: j.Labels, Headers: j.Headers, Priority: j.Priority,
		FairnessKey: j.FairnessKey, Retry: j.Retry, Lease: duration(j.Lease),
		StartDeadline: duration(j.StartDeadline), Retention: duration(j.Retention), Overlap: j.Overlap,
		CatchUpPerMinute: j.CatchUpPerMinute, PauseAfterFailures: j.PauseAfterFailures,
	}
}

// duration leaves a zero one unset.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// Receipt is the stable answer to a create: every retry gets the same one, whatever became of the job since.
type Receipt struct {
	ID, Tenant string
	// Incarnation tells apart jobs that had the same id one after the other.
	Incarnation, Version uint64
	// CreateTime is when the job was accepted.
	CreateTime time.Time
	// NextTime is the first nominal time; zero: none.
	NextTime time.Time
}

func newReceipt(r *carillonv1.JobReceipt) Receipt {
	receipt := Receipt{
		ID: r.GetId(), Tenant: r.GetTenant(), Incarnation: r.GetIncarnation(), Version: r.GetVersion(),
		CreateTime: r.GetCreateTime().AsTime(),
	}
	if r.GetNextTime() != nil {
		receipt.NextTime = r.GetNextTime().AsTime()
	}
	return receipt
}

// At is once, at t. An instant in the past fires at once.
func At(t time.Time) *Schedule {
	return &Schedule{When: &carillonv1.Schedule_At{At: timestamppb.New(t)}}
}

// After is once, d after the job was accepted.
func After(d time.Duration) *Schedule {
	return &Schedule{When: &carillonv1.Schedule_Delay{Delay: durationpb.New(d)}}
}

// Every is at regular intervals from the instant the job was accepted. For an anchor, a start, an end or a number of runs
// fill in the message itself.
func Every(interval time.Duration) *Schedule {
	return &Schedule{When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{Interval: durationpb.New(interval)}}}
}

// Cron is whenever one of the patterns says so, on the clock of a zone of the IANA database, like Europe/Berlin; empty: UTC.
// For rules about the jumps of that clock, exclusions, a start, an end, a number of runs or a spread fill in the message
// itself. docs/schedules.md is the whole model.
func Cron(zone string, lines ...string) *Schedule {
	return &Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Zone: zone, Lines: lines}}}
}
