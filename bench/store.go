package bench

import (
	"context"
	"fmt"
	"math"
	"time"
)

const (
	// storeAhead and storeSpan are when the stored jobs are due: none within the run.
	storeAhead = 24 * time.Hour
	storeSpan  = 24 * time.Hour
	// settleLooks and settleLimit: memory and disk count once they have changed by less than a hundredth in
	// each of settleLooks looks.
	settleLooks = 5
	settleLimit = 3 * time.Minute
	// firingJobs are due one after the other around the crash, to see when the server fires again.
	firingJobs  = 3000
	crashAfter  = 2 * time.Second
	crashRetry  = 2 * time.Millisecond
	firingAhead = 2 * time.Second
)

// runStore fills a server with jobs of the far future, and measures its memory and disk, and how long it takes from a start
// after kill -9 until it fires again.
func runStore(ctx context.Context, s *session) ([]Result, error) {
	r := s.result(s.n)
	if err := s.fill(ctx, &r); err != nil {
		return nil, err
	}
	if err := s.crash(ctx, &r); err != nil {
		return nil, err
	}
	s.log.Info("all jobs are looked for")
	return []Result{r}, s.audit(ctx, &r)
}

// fill creates the jobs and measures what they take.
func (s *session) fill(ctx context.Context, r *Result) error {
	empty, err := diskBytes(s.fleet.dir)
	if err != nil {
		return err
	}
	from, err := s.usage(ctx)
	if err != nil {
		return err
	}
	due := uniform(time.Now().Add(storeAhead), storeSpan, s.n)
	if err := createBatches(ctx, s.producers, &creates{plan: s.plan(s.n, due), print: &s.print}); err != nil {
		return err
	}
	elapsed := time.Since(from.at)
	created, err := s.usage(ctx)
	if err != nil {
		return err
	}
	s.log.Info("jobs are created", "n", s.n, "took", elapsed.String())
	full, memory, err := s.settled(ctx)
	if err != nil {
		return err
	}
	r.cost(phase{from, created}, s.n)
	r.JobsPerSecond = perSecond(s.n, elapsed)
	r.DiskBytesPerJob = ratio(float64(full-empty), float64(s.n))
	r.ServerRSSMB = megabytes(memory)
	return nil
}

// settled waits until the server's disk and memory have come to rest, for at most settleLimit, and returns both in bytes.
func (s *session) settled(ctx context.Context) (disk, memory int64, err error) {
	calm := 0
	for start := time.Now(); calm < settleLooks && time.Since(start) < settleLimit; {
		if err := wait(ctx, s.waits.calm); err != nil {
			return 0, 0, err
		}
		nowDisk, err := diskBytes(s.fleet.dir)
		if err != nil {
			return 0, 0, err
		}
		u, err := s.usage(ctx)
		if err != nil {
			return 0, 0, err
		}
		if near(nowDisk, disk) && near(u.rssBytes, memory) {
			calm++
		} else {
			calm = 0
		}
		disk, memory = nowDisk, u.rssBytes
	}
	return disk, memory, nil
}

// near is true of figures that differ by less than a hundredth.
func near(a, b int64) bool { return math.Abs(float64(a-b)) < 0.01*float64(b) }

// crash kills the server while jobs fall due, starts it again, and measures the time from its start until the first receipt.
func (s *session) crash(ctx context.Context, r *Result) error {
	start := time.Now().Add(firingAhead)
	l := newLedger(s.plan(firingJobs, uniform(start, s.waits.firing, firingJobs)), firingJobs)
	if err := createBatches(ctx, s.producers, &creates{plan: l.plan, ledger: l, print: &s.print}); err != nil {
		return err
	}
	w := newWorkers(s.consumers, l, 0)
	w.retryPause = crashRetry
	var restarted time.Time
	_, err := s.drive(ctx, w, start.Add(s.waits.firing), func(ctx context.Context) error {
		if err := wait(ctx, time.Until(start.Add(crashAfter))); err != nil {
			return err
		}
		if err := s.fleet.kill(); err != nil {
			return err
		}
		s.log.Info("server is killed and starts again")
		restarted = time.Now()
		return s.fleet.restart(ctx)
	})
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	r.judge(l.close())
	r.RestartSeconds = firstAfter(l.receipts(), restarted)
	return nil
}

// firstAfter is how many seconds after t the first receipt lies; nil if there is none.
func firstAfter(receipts []receipt, t time.Time) *float64 {
	first := int64(math.MaxInt64)
	for _, r := range receipts {
		if at := r.atUS(); at >= t.UnixMicro() {
			first = min(first, at)
		}
	}
	if first == math.MaxInt64 {
		return nil
	}
	return rounded(float64(first-t.UnixMicro()) / 1e6)
}
