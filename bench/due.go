package bench

import (
	"context"
	"fmt"
	"time"
)

const (
	// duePace lets the workers of a heavy load ask for batches; it is part of the lateness they measure.
	duePace = 10 * time.Millisecond
	// foresight is how much longer than the warm-up's speed promises the creates may take.
	foresight = 1.5
	// workersAhead is how long before the first job is due the workers begin to wait.
	workersAhead = time.Second
)

func runDue(ctx context.Context, s *session) ([]Result, error) {
	return s.duePhases(ctx, duePace, nil)
}

func runLateness(ctx context.Context, s *session) ([]Result, error) {
	return s.duePhases(ctx, 0, nil)
}

// runBurst lets all jobs fall due within one second, and meanwhile makes other calls.
func runBurst(ctx context.Context, s *session) ([]Result, error) {
	p := &prober{api: s.observers, session: s}
	if err := p.prepare(ctx); err != nil {
		return nil, err
	}
	return s.duePhases(ctx, duePace, p)
}

// duePhases creates the session's jobs, due evenly over its span, and then measures how they are run. other, if not nil,
// makes other calls from when the first job is due until the last is completed.
func (s *session) duePhases(ctx context.Context, pace time.Duration, other *prober) ([]Result, error) {
	r := s.result(s.n)
	speed, err := s.warmUp(ctx)
	if err != nil {
		return nil, err
	}
	start := s.foresee(speed)
	l := newLedger(s.plan(s.n, uniform(start, s.span, s.n)), s.n)
	if err := s.createDue(ctx, &r, l, start); err != nil {
		return nil, err
	}
	var beside []func(context.Context) error
	if other != nil {
		beside = append(beside, func(ctx context.Context) error { return other.run(ctx, start, l.finished) })
	}
	if _, err := s.measureDue(ctx, &r, l, start, pace, beside...); err != nil {
		return nil, err
	}
	if other != nil {
		r.OvertakenMS = overtaking(l.receipts())
		other.report(&r)
	}
	return []Result{r}, nil
}

// foresee is when the first of the session's jobs can be due that are still to be created, by the speed of the warm-up.
func (s *session) foresee(speed float64) time.Time {
	creates := time.Duration(foresight * float64(s.n) / speed * float64(time.Second))
	return time.Now().Add(creates + s.waits.lead + workersAhead)
}

// createDue creates the jobs of l, the first of which is due at start.
func (s *session) createDue(ctx context.Context, r *Result, l *ledger, start time.Time) error {
	s.log.Info("jobs are created", "n", s.n, "due", start.UTC().Format(time.RFC3339))
	from, err := s.usage(ctx)
	if err != nil {
		return err
	}
	if err := createBatches(ctx, s.producers, &creates{plan: l.plan, ledger: l, print: &s.print}); err != nil {
		return err
	}
	elapsed := time.Since(from.at)
	to, err := s.usage(ctx)
	if err != nil {
		return err
	}
	if late := time.Since(start.Add(-workersAhead)); late > 0 {
		return fmt.Errorf("create %d jobs: took %v, %v longer than foreseen: they are due already", s.n, elapsed, late)
	}
	c := phase{from, to}.cost(s.n)
	r.CreateJobsPerSecond = perSecond(s.n, elapsed)
	r.CreateCPUMicrosPerJob, r.CreateKeysPerJob = c.cpu, c.keys
	return nil
}

// measureDue lets workers run the jobs of l, due over the session's span from start on, and beside meanwhile. It fills in
// what that cost, what became of the jobs and how late they were.
func (s *session) measureDue(ctx context.Context, r *Result, l *ledger, start time.Time, pace time.Duration,
	beside ...func(context.Context) error) (p phase, err error) {
	if err := wait(ctx, time.Until(start.Add(-workersAhead))); err != nil {
		return p, err
	}
	if p.from, err = s.usage(ctx); err != nil {
		return p, err
	}
	s.log.Info("jobs fall due", "n", s.n, "over", s.span.String())
	nothing := func(context.Context) error { return nil }
	end, err := s.drive(ctx, newWorkers(s.consumers, l, pace), start.Add(s.span), nothing, beside...)
	if err != nil {
		return p, err
	}
	if p.to, err = s.usage(ctx); err != nil {
		return p, err
	}
	items := l.plan.items()
	r.cost(p, items)
	r.judge(l.close())
	r.JobsPerSecond = perSecond(items-r.Lost, end.Sub(start))
	r.LatenessMS = quantiles(l.lateness())
	return p, nil
}
