package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// demoTimeout bounds the part of the demo that runs jobs, which takes about seven seconds.
const demoTimeout = 20 * time.Second

func (p *program) demoCommand() *cli.Command {
	return &cli.Command{
		Name: "demo", Usage: "show the main job: a server, jobs, a worker, a retry and a dead letter",
		Description: "It starts a real server in a temporary directory, and ends by itself within 30 s, leaving nothing.",
		Action: func(c *cli.Context) error {
			if err := checkArguments(c, ""); err != nil {
				return err
			}
			// A closed terminal must not leave the server behind.
			ctx, stop := signal.NotifyContext(c.Context, syscall.SIGHUP)
			defer stop()
			return p.demo(ctx)
		},
	}
}

func (p *program) demo(ctx context.Context) (err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "carillon-demo-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Fprintf(p.stdout, "Starting a server in %s\n", dir)
	server, err := startChild(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	fmt.Fprintf(p.stdout, "It listens at %s after %s.\n\n", server.address, short(time.Since(began)))
	api, err := client.New(server.address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	if err := (&demonstration{api: api, out: p.stdout}).run(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("%w\n%s", err, server.lastWords())
	}
	fmt.Fprintf(p.stdout, "\nThat took %s. For a server of your own: %s serve\n", short(time.Since(began)), p.name)
	return nil
}

// demonstration schedules jobs, runs them and shows what happened.
type demonstration struct {
	api *client.Client

	mu  sync.Mutex
	out io.Writer
	// left is how many deliveries are to come.
	left int
	done context.CancelFunc
}

// demoJob is a job of the demo and what its worker makes of it.
type demoJob struct {
	client.Job
	what string
	// failures are how many attempts fail before one succeeds; deliveries how many there are in all.
	failures, deliveries int
}

func demoJobs() []demoJob {
	retry := func(attempts uint32) *client.RetryPolicy {
		return &client.RetryPolicy{
			MaxAttempts: attempts, FirstDelay: durationpb.New(time.Second), FactorThousandths: 1000,
			JitterThousandths: new(uint32(0)),
		}
	}
	heartbeat := client.Every(time.Second)
	heartbeat.GetEvery().MaxRuns = 5
	return []demoJob{
		{client.Job{ID: "greeting", Schedule: client.After(time.Second)}, "once, in 1 s", 0, 1},
		{client.Job{ID: "heartbeat", Schedule: heartbeat}, "every second, 5 times", 0, 5},
		{
			client.Job{ID: "flaky", Schedule: client.After(2 * time.Second), Retry: retry(5)},
			"once, in 2 s; fails twice, then succeeds", 2, 3,
		},
		{
			client.Job{ID: "doomed", Schedule: client.After(3 * time.Second), Retry: retry(2)},
			"once, in 3 s; always fails, may be tried twice", 2, 2,
		},
	}
}

func (d *demonstration) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	jobs := demoJobs()
	fmt.Fprintln(d.out, "Jobs in queue demo")
	for _, job := range jobs {
		d.left += job.deliveries
		job.Queue = "demo"
		if _, err := d.api.Create(ctx, job.Job); err != nil {
			return fmt.Errorf("create %s: %w", job.ID, err)
		}
		fmt.Fprintf(d.out, "  %-10s %s\n", job.ID, job.what)
	}
	fmt.Fprintf(d.out, "\nA worker runs them\n  %-12s  %-10s  %-7s  %7s  %s\n", "RECEIVED", "JOB", "ATTEMPT", "LATE", "OUTCOME")
	if err := d.work(ctx, jobs); err != nil {
		return err
	}
	if err := d.deadLetters(ctx); err != nil {
		return err
	}
	return d.history(ctx, "flaky")
}

// work runs a worker until every delivery has come.
func (d *demonstration) work(ctx context.Context, jobs []demoJob) error {
	working, done := context.WithCancel(ctx)
	defer done()
	d.done = done
	failures := make(map[string]int)
	for _, job := range jobs {
		failures[job.ID] = job.failures
	}
	w := client.NewWorker(d.api, client.WorkerConfig{Queues: []string{"demo"}, Name: "demo-worker"},
		func(_ context.Context, e *client.Execution) ([]byte, error) {
			var err error
			if int(e.Attempt) <= failures[e.JobID] {
				err = fmt.Errorf("no luck at attempt %d", e.Attempt)
			}
			d.received(e, err)
			return []byte("done"), err
		})
	if err := w.Run(working); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("run jobs: %d deliveries are missing: %w", d.left, ctx.Err())
	}
	return nil
}

func (d *demonstration) received(e *client.Execution, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	outcome := "succeeded"
	if err != nil {
		outcome = "failed: " + err.Error()
		if e.Attempt >= e.MaxAttempts {
			outcome += "; a dead letter now"
		}
	}
	// A later attempt is late only by the retry policy.
	late := "-"
	if e.Attempt == 1 {
		late = short(e.ReceivedTime.Sub(e.NominalTime))
	}
	fmt.Fprintf(d.out, "  %-12s  %-10s  %-7s  %7s  %s\n", e.ReceivedTime.UTC().Format("15:04:05.000"), e.JobID,
		fmt.Sprintf("%d of %d", e.Attempt, e.MaxAttempts), late, outcome)
	if d.left--; d.left <= 0 {
		d.done()
	}
}

func (d *demonstration) deadLetters(ctx context.Context) error {
	rows := [][]string{{"  JOB", "ATTEMPTS", "ERROR"}}
	for e, err := range d.api.ListExecutions(ctx, &carillonv1.ListExecutionsRequest{
		State: carillonv1.ExecutionState_EXECUTION_STATE_DEAD, PageSize: 10,
	}) {
		if err != nil {
			return fmt.Errorf("list dead letters: %w", err)
		}
		rows = append(rows, []string{"  " + e.GetJobId(), fmt.Sprint(e.GetAttempt()), firstLine(e.GetError())})
	}
	fmt.Fprintln(d.out, "\nDead letters")
	return (&printer{w: d.out}).table(rows)
}

func (d *demonstration) history(ctx context.Context, id string) error {
	fmt.Fprintf(d.out, "\nHistory of %s\n", id)
	for page, err := range d.api.GetJobHistory(ctx, &carillonv1.GetJobHistoryRequest{Id: id}) {
		if err != nil {
			return fmt.Errorf("read history: %w", err)
		}
		rows := historyRows(page)
		for i := range rows {
			rows[i][0] = "  " + rows[i][0]
		}
		if err := (&printer{w: d.out}).table(rows); err != nil {
			return err
		}
	}
	return nil
}

// tail keeps the last lines that a process wrote.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
