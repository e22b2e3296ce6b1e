package client

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// The messages a producer writes, under short names. Their fields and limits are described in the API.
type (
	// JobSpec is what a producer says of a job. Only its Schedule is required.
	JobSpec = carillonv1.JobSpec
	// RetryPolicy decides on the attempts after a failure.
	RetryPolicy = carillonv1.RetryPolicy
	// Schedule says when a job fires: see At, In and Every.
	Schedule = carillonv1.Schedule
	// Receipt is the stable answer to a create.
	Receipt = carillonv1.JobReceipt
	// Job is a job as it stands.
	Job = carillonv1.Job
)

// At is once, at t. An instant in the past fires at once.
func At(t time.Time) *Schedule {
	return &Schedule{When: &carillonv1.Schedule_At{At: timestamppb.New(t)}}
}

// In is once, d after the job was accepted.
func In(d time.Duration) *Schedule {
	return &Schedule{When: &carillonv1.Schedule_Delay{Delay: durationpb.New(d)}}
}

// Every is at regular intervals from the instant the job was accepted. For an anchor, a start, an end or a number of runs
// fill in the message itself.
func Every(interval time.Duration) *Schedule {
	return &Schedule{When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{Interval: durationpb.New(interval)}}}
}
