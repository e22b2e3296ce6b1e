package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// waits are the pauses of a run, shorter in tests.
type waits struct {
	// lead is the least time between the last create and the first job due.
	lead time.Duration
	// stall is how long nothing may be received or completed, once jobs are due, before the run gives up: longer than a
	// lease, so that what a lost lease holds up still comes.
	stall time.Duration
	// settle is how long workers go on after the last job, to catch what comes twice.
	settle time.Duration
	// calm is the time between two looks at a server that comes to rest.
	calm time.Duration
	// firing is how long jobs fall due around a crash.
	firing time.Duration
	// idle is how long a server is left alone, after its start and the last create, before it counts as idle.
	idle time.Duration
	// peakUnit is the unit of peak's phases.
	peakUnit time.Duration
}

var defaultWaits = waits{
	lead:     3 * time.Second,
	stall:    40 * time.Second,
	settle:   time.Second,
	calm:     2 * time.Second,
	firing:   30 * time.Second,
	idle:     10 * time.Second,
	peakUnit: time.Second,
}

// session is one run of one workload: the server under test and the sizes to use.
type session struct {
	log   *slog.Logger
	waits waits
	n     int
	rate  int
	span  time.Duration
	// interval and cron are of recurring.
	interval time.Duration
	cron     bool
	fleet    *fleet // nil with a target
	bases    []string
	// producers, consumers and observers each have a connection of their own.
	producers, consumers, observers *api
	// print is of all jobs acknowledged in this session.
	print       fingerprint
	queuePrefix string
	blank       Result
}

// runOnce starts a server if there is none to use, runs w on it, and puts everything away.
func runOnce(ctx context.Context, c Config, w *workload) (results []Result, err error) {
	s := newSession(c, w)
	ctx, cancel := context.WithTimeout(ctx, s.limit())
	defer cancel()
	if c.Target == "" {
		if s.fleet, err = newFleet(c.Binary, max(1, c.Nodes), c.Shards); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.fleet.close()) }()
		if err := s.fleet.start(ctx); err != nil {
			return nil, err
		}
		s.bases = s.fleet.bases()
	} else {
		if s.bases, err = parseTargets(c.Target); err != nil {
			return nil, fmt.Errorf("target: %w", err)
		}
		s.queuePrefix = "bench-" + strconv.FormatUint(rand.Uint64(), 36) + "-"
	}
	s.connect()
	defer s.disconnect()
	if c.Target != "" {
		if err := s.countNodes(ctx); err != nil {
			return nil, err
		}
	}
	return w.run(ctx, s)
}

// newSession fills in the workload's defaults. A rate and a span make a number of jobs; a number and a span are one too.
func newSession(c Config, w *workload) *session {
	s := &session{log: c.Log, waits: defaultWaits, n: w.n, rate: w.rate, span: w.span,
		interval: cmp.Or(c.Interval, recurringInterval), cron: c.Cron}
	if c.waits != nil {
		s.waits = *c.waits
	}
	if c.For != 0 && w.span != 0 {
		s.span = c.For
	}
	if c.Rate != 0 {
		s.rate = c.Rate
	}
	switch {
	case c.N != 0:
		s.n = c.N
	case s.rate != 0 && s.span != 0:
		s.n = max(1, int(float64(s.rate)*s.span.Seconds()))
	}
	if c.N != 0 && s.rate != 0 && s.span != 0 && c.For == 0 {
		s.span = max(time.Second, time.Duration(float64(c.N)/float64(s.rate)*float64(time.Second)))
	}
	s.blank = Result{Workload: w.name, Nodes: max(1, c.Nodes), Settings: settings(&c)}
	return s
}

// limit bounds a run: generous, so that a slow server is measured and a stuck one is given up.
func (s *session) limit() time.Duration {
	return 10*time.Minute + 4*s.span + time.Duration(s.n)*time.Millisecond/2
}

func (s *session) connect() {
	s.producers, s.consumers, s.observers = newAPI(s.bases), newAPI(s.bases), newAPI(s.bases)
}

func (s *session) disconnect() {
	for _, a := range []*api{s.producers, s.consumers, s.observers} {
		a.close()
	}
}

// countNodes sets how many nodes the results speak of.
func (s *session) countNodes(ctx context.Context) error {
	resp, err := s.observers.cluster.GetCluster(ctx, connect.NewRequest(&carillonv1.GetClusterRequest{}))
	if err != nil {
		return fmt.Errorf("ask target for its nodes: %w", err)
	}
	s.blank.Nodes = max(1, len(resp.Msg.GetNodes()))
	return nil
}

// result begins a result of n jobs.
func (s *session) result(n int) Result {
	r := s.blank
	r.N = n
	return r
}

// usage is what the server and the bench have used so far.
func (s *session) usage(ctx context.Context) (usage, error) {
	var pids []int
	if s.fleet != nil {
		pids = s.fleet.pids()
	}
	return takeUsage(ctx, s.bases, pids)
}

// plan makes a plan of n jobs of this session.
func (s *session) plan(n int, due func(int) int64) *plan {
	return newPlan(s.seed(), n, s.queuePrefix, due)
}

func (s *session) seed() uint64 { return rand.Uint64() }

// farAhead is when jobs are due that no workload waits for.
const farAhead = time.Hour

// warmUp creates some jobs that are not due within the run, and returns how many a second the server accepts.
func (s *session) warmUp(ctx context.Context) (perSecond float64, err error) {
	return s.warmUpWith(ctx, func(n int) *plan { return s.plan(n, at(time.Now().Add(farAhead))) })
}

// warmUpWith does the same with jobs of another plan, for n of them.
func (s *session) warmUpWith(ctx context.Context, jobs func(n int) *plan) (perSecond float64, err error) {
	n := min(20_000, max(1, s.n/20))
	start := time.Now()
	c := &creates{plan: jobs(n), print: &s.print}
	if err := createBatches(ctx, s.producers, c); err != nil {
		return 0, fmt.Errorf("warm up: %w", err)
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// auditQueues are the queues in which audit looks: all, or those of this session if others use the server.
func (s *session) auditQueues() []string {
	if s.queuePrefix == "" {
		return []string{""}
	}
	return s.plan(1, at(time.Time{})).queues
}

// audit adds to r what is missing or too many when the server is asked for all jobs of this session.
func (s *session) audit(ctx context.Context, r *Result) error {
	missing, extra, err := audit(ctx, s.observers, s.auditQueues(), &s.print)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	r.Lost += missing
	r.Duplicates += extra
	if missing+extra > 0 {
		r.Examples = append(r.Examples, fmt.Sprintf("of all jobs listed, %d are missing and %d too many", missing, extra))
	}
	return nil
}

// drive runs w and beside, if any, while work does its part, and until all jobs are completed, or nothing has moved for
// stall after the last is due. It returns the instant of the last completion.
func (s *session) drive(ctx context.Context, w *workers, lastDue time.Time, work func(context.Context) error,
	beside ...func(context.Context) error) (end time.Time, err error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	group, working := errgroup.WithContext(working)
	for _, f := range append(beside, w.run) {
		group.Go(func() error { return f(working) })
	}
	group.Go(func() error {
		defer stop()
		if err := work(working); err != nil {
			return err
		}
		if end, err = s.awaitCompletion(working, w.ledger, lastDue); err != nil {
			return err
		}
		return wait(working, s.waits.settle)
	})
	return end, group.Wait()
}

// awaitCompletion returns when the ledger is finished, with that instant, or has stalled, with the last sign of life.
func (s *session) awaitCompletion(ctx context.Context, l *ledger, lastDue time.Time) (time.Time, error) {
	look := time.NewTicker(s.waits.stall / 40)
	defer look.Stop()
	for {
		select {
		case <-l.finished:
			return l.lastSeen(), nil
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case now := <-look.C:
			if seen := l.lastSeen(); now.Sub(lastDue) > s.waits.stall && now.Sub(seen) > s.waits.stall {
				return seen, nil
			}
		}
	}
}
