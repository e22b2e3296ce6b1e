package rpc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// nullBackend accepts everything and does nothing, so that what is measured are the handlers.
type nullBackend struct{ *fakeBackend }

func (nullBackend) Do(_ context.Context, _ uint32, cmd *storagev1.Command) (fsm.Result, error) {
	return fsm.Result{Items: make([]fsm.Item, len(cmd.CreateJobs.GetItems())+len(cmd.Completions.GetItems()))}, nil
}

func benchBatch(n int) *carillonv1.BatchCreateJobsRequest {
	req := &carillonv1.BatchCreateJobsRequest{RequestId: "r"}
	for i := range n {
		req.Items = append(req.Items, &carillonv1.CreateJobRequest{IdempotencyKey: fmt.Sprint("key-", i), Job: &carillonv1.JobSpec{
			Tenant: fmt.Sprint("tenant-", i%100), Queue: fmt.Sprint("queue-", i%8), Schedule: in(time.Hour), Payload: make([]byte, 100),
		}})
	}
	return req
}

// One job in a batch of 1,000: validation, identity, hash, grouping by shard, result.
func BenchmarkBatchCreate(b *testing.B) {
	h, err := NewHandler(nullBackend{newFakeBackend(64)}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, req := h.(*server), benchBatch(1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.batchCreateJobs(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

// One batch of 10,000 cron jobs, of which each has its own schedule, or all have one.
func BenchmarkBatchCreateCron(b *testing.B) {
	for name, lineOf := range map[string]func(i int) string{
		"distinct": func(i int) string { return fmt.Sprintf("%d %d %d * *", i%60, i/60%24, 1+i/1440) },
		"one":      func(int) string { return "0 8 * * MON-FRI" },
	} {
		b.Run(name, func(b *testing.B) {
			h, err := NewHandler(nullBackend{newFakeBackend(64)}, Options{MaxFiresPerDay: 1000})
			if err != nil {
				b.Fatal(err)
			}
			req := benchBatch(10_000)
			for i, item := range req.Items {
				item.Job.Schedule = cronJob(&carillonv1.Cron{Lines: []string{lineOf(i)}, Zone: "America/New_York"})
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h.(*server).batchCreateJobs(b.Context(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Decoding a batch of 1,000 jobs, with the generated code and with the reflective one it replaces.
func BenchmarkDecodeBatch(b *testing.B) {
	data, err := proto.Marshal(benchBatch(1000))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := (binaryCodec{}).Unmarshal(data, &carillonv1.BatchCreateJobsRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("reflective", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := proto.Unmarshal(data, &carillonv1.BatchCreateJobsRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Previews of 1,000 times: of an ordinary schedule; of one that skips much; of the largest, with all its exclusions.
func BenchmarkPreview(b *testing.B) {
	h, err := NewHandler(nullBackend{newFakeBackend(1)}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, fill := range map[string]func(*carillonv1.Cron){
		"ordinary": func(c *carillonv1.Cron) { c.Lines = []string{"*/5 9-17 * * MON-FRI"} },
		"skips": func(c *carillonv1.Cron) {
			c.Lines = []string{"* * * * * *"}
			c.Exclude = &carillonv1.Exclusions{Lines: []string{"0-58 * * * * *", "59 1-59 * * * *", "59 0 1-23 * * *"}}
		},
		"large": heavy(250),
	} {
		b.Run(name, func(b *testing.B) {
			c := &carillonv1.Cron{Zone: "America/New_York"}
			fill(c)
			req := &carillonv1.PreviewScheduleRequest{Schedule: cronJob(c), Count: 1000}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h.(*server).previewSchedule(b.Context(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What a GetJob costs besides the read: the next times and the fires per day.
func BenchmarkShowTimes(b *testing.B) {
	row := &storagev1.Job{NextMs: startMS, Schedule: &storagev1.Schedule{Cron: &storagev1.Cron{Lines: []string{"*/5 9-17 * * MON-FRI"}, Zone: "America/New_York"}}}
	b.ReportAllocs()
	for b.Loop() {
		showTimes(&carillonv1.Job{State: carillonv1.JobState_JOB_STATE_ACTIVE}, row)
	}
}
