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
