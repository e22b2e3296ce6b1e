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
	l, start, err := s.createDue(ctx, &r)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, time.Until(start.Add(-workersAhead))); err != nil {
		return nil, err
	}
	from, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	s.log.Info("jobs fall due", "n", s.n, "over", s.span.String())
	var beside []func(context.Context) error
	if other != nil {
		beside = append(beside, func(ctx context.Context) error { return other.run(ctx, start, l.finished) })
	}
	nothing := func(context.Context) error { return nil }
	end, err := s.drive(ctx, newWorkers(s.consumers, l, pace), start.Add(s.span), nothing, beside...)
	if err != nil {
		return nil, err
	}
	to, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	r.cost(from, to, s.n)
	r.judge(l.close())
	r.JobsPerSecond = perSecond(s.n-r.Lost, end.Sub(start))
	r.LatenessMS = quantiles(l.lateness())
	if other != nil {
		r.OvertakenMS = overtaking(l.receipts())
		other.report(&r)
	}
	return []Result{r}, nil
}

// createDue creates the jobs, and returns their ledger and when the first is due. How far ahead that must be is foreseen
// from the speed of the warm-up.
func (s *session) createDue(ctx context.Context, r *Result) (*ledger, time.Time, error) {
	speed, err := s.warmUp(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	foreseen := time.Duration(foresight * float64(s.n) / speed * float64(time.Second))
	start := time.Now().Add(foreseen + s.waits.lead + workersAhead)
	l := newLedger(s.plan(s.n, uniform(start, s.span, s.n)), s.n)
	s.log.Info("jobs are created", "n", s.n, "due", start.UTC().Format(time.RFC3339))
	from, err := s.usage(ctx)
	if err != nil {
		return nil, start, err
	}
	if err := createBatches(ctx, s.producers, &creates{plan: l.plan, ledger: l, print: &s.print}); err != nil {
		return nil, start, err
	}
	elapsed := time.Since(from.at)
	to, err := s.usage(ctx)
	if err != nil {
		return nil, start, err
	}
	if late := time.Since(start.Add(-workersAhead)); late > 0 {
		return nil, start, fmt.Errorf("create %d jobs: took %v, %v longer than foreseen: they are due already", s.n, elapsed, late)
	}
	c := phaseCost(from, to, s.n)
	r.CreateJobsPerSecond = perSecond(s.n, elapsed)
	r.CreateCPUMicrosPerJob, r.CreateKeysPerJob = c.cpu, c.keys
	return l, start, nil
}
