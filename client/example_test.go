package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// A producer creates a job, and creates it again: the receipt is the same. Another job under the same id is a conflict that
// names the difference.
func ExampleClient_Create() {
	// Against a real server: client.New("127.0.0.1:7070").
	c, err := client.New("", client.WithTransport(clienttest.NewServer()))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx := context.Background()
	job := client.Job{ID: "welcome-ada", Queue: "mail", Schedule: client.After(time.Hour), Payload: []byte("hello Ada")}
	first, err := c.Create(ctx, job)
	if err != nil {
		log.Fatal(err)
	}
	again, err := c.Create(ctx, job)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the same receipt:", first == again)

	job.Payload = []byte("hello Eve")
	_, err = c.Create(ctx, job)
	var failed *client.Error
	if errors.Is(err, client.ErrAlreadyExists) && errors.As(err, &failed) {
		fmt.Println("it differs in:", failed.Fields)
	}
	// Output:
	// the same receipt: true
	// it differs in: [payload]
}

// A worker runs executions until its context ends. The first attempt fails and is retried.
func ExampleWorker() {
	c, err := client.New("", client.WithTransport(clienttest.NewServer()))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_, err = c.Create(context.Background(), client.Job{ID: "greeting", Queue: "mail", Schedule: client.After(0)})
	if err != nil {
		log.Fatal(err)
	}

	// In a program: signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM).
	ctx, stop := context.WithCancel(context.Background())
	w := client.NewWorker(c, client.WorkerConfig{Queues: []string{"mail"}, Concurrency: 50},
		func(_ context.Context, e *client.Execution) ([]byte, error) {
			fmt.Printf("%s, attempt %d\n", e.JobID, e.Attempt)
			if e.Attempt == 1 {
				return nil, client.RetryAfter(errors.New("the mail server is busy"), 10*time.Millisecond)
			}
			stop()
			return []byte("sent"), nil
		})
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// greeting, attempt 1
	// greeting, attempt 2
}

// Lists are sequences: pages are read as the loop goes on.
func ExampleClient_ListJobs() {
	c, err := client.New("", client.WithTransport(clienttest.NewServer()))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	for _, id := range []string{"report-eu", "report-us", "backup"} {
		if _, err := c.Create(ctx, client.Job{ID: id, Schedule: client.Every(24 * time.Hour)}); err != nil {
			log.Fatal(err)
		}
	}
	for job, err := range c.ListJobs(ctx, &carillonv1.ListJobsRequest{IdPrefix: "report-"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(job.GetId(), job.GetState())
	}
	// Output:
	// report-eu JOB_STATE_ACTIVE
	// report-us JOB_STATE_ACTIVE
}

// A cron job fires on the clock of its zone. A preview shows what that clock's jumps do, before there is a job.
func ExampleCron() {
	c, err := client.New("", client.WithTransport(clienttest.NewServer()))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	schedule := client.Cron("America/New_York", "30 2 * * *")
	schedule.GetCron().Gap = carillonv1.Gap_GAP_SKIP
	preview, err := c.PreviewSchedule(ctx, &carillonv1.PreviewScheduleRequest{
		Schedule: schedule, Count: 2, After: timestamppb.New(time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC)),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range preview.GetTimes() {
		fmt.Println(t.GetLocal(), t.GetVerdict())
	}
	_, err = c.Create(ctx, client.Job{ID: "nightly", Schedule: schedule, Overlap: carillonv1.Overlap_OVERLAP_SKIP})
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Create(ctx, client.Job{Schedule: client.Cron("", "0 0 31 2 *")})
	fmt.Println("refused:", errors.Is(err, client.ErrInvalid))
	// Output:
	// 2026-03-07T02:30:00-05:00 PREVIEW_VERDICT_FIRES
	// 2026-03-08T03:00:00-04:00 PREVIEW_VERDICT_SKIPPED_GAP
	// 2026-03-09T02:30:00-04:00 PREVIEW_VERDICT_FIRES
	// refused: true
}
