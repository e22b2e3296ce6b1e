package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The phases of peak, in its unit of a second, and how much more is offered in the middle one.
const (
	calmBefore = 5
	peakLength = 10
	calmAfter  = 35
	peakFactor = 10
	// rateUnits is how many units of the rate are offered in all.
	rateUnits = calmBefore + peakFactor*peakLength + calmAfter
)

const (
	// peakCallers with peakItems each have more under way than the server lets wait.
	peakCallers = 192
	peakItems   = 1000
	// peakDelay is from when a job is to be offered until it is due.
	peakDelay = 2 * time.Second
	// unsentAfter is how late a batch may be offered; a later one is counted as unsent instead.
	unsentAfter = time.Second
	// peakLimitUS is the p99 lateness at which the server counts as recovered: 1 s.
	peakLimitUS = 1_000_000
)

// runPeak offers jobs due two seconds ahead at the rate, at ten times the rate, and at the rate again, whether the server
// keeps up or not. What is refused is not offered again; what is accepted must be run.
func runPeak(ctx context.Context, s *session) ([]Result, error) {
	unit := s.waits.peakUnit
	perUnit := int(float64(s.rate) * unit.Seconds())
	if s.n > 0 {
		perUnit = s.n / rateUnits
	}
	perUnit = max(1, perUnit)
	n := perUnit * rateUnits
	if _, err := s.warmUp(ctx); err != nil {
		return nil, err
	}
	start := time.Now().Add(workersAhead)
	offered := offers(start, perUnit, unit)
	l := newLedger(s.plan(n, func(i int) int64 { return offered(i).Add(peakDelay).UnixMilli() }), -1)
	r := s.result(n)
	from, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	o := &offering{api: s.producers, creates: &creates{plan: l.plan, ledger: l, print: &s.print}, at: offered, items: min(peakItems, max(1, int(float64(perUnit)/unit.Seconds()/10)))}
	last := offered(n - 1).Add(peakDelay)
	end, err := s.drive(ctx, newWorkers(s.consumers, l, duePace), last, func(ctx context.Context) error {
		if err := o.run(ctx); err != nil {
			return err
		}
		l.expect(l.mayArrive())
		return nil
	})
	if err != nil {
		return nil, err
	}
	to, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	t := l.close()
	r.judge(t)
	r.cost(phase{from, to}, t.completed)
	r.JobsPerSecond = perSecond(t.completed, end.Sub(start))
	receipts := l.receipts()
	r.LatenessMS = quantiles(l.lateness())
	peakEnd := start.Add((calmBefore+peakLength)*unit + peakDelay)
	r.RecoverySeconds = rounded(recovery(receipts, peakEnd.UnixMilli(), peakLimitUS))
	r.Shed, r.ShedWithoutHint, r.Unsent = &t.shed, &o.hintless, &o.unsent
	return []Result{r}, nil
}

// offers says when each job is to be offered, at perUnit jobs a unit in the calm phases.
func offers(start time.Time, perUnit int, unit time.Duration) func(i int) time.Time {
	units := func(i, rate int) time.Duration { return time.Duration(float64(i) / float64(rate) * float64(unit)) }
	before, peak := calmBefore*perUnit, peakFactor*peakLength*perUnit
	return func(i int) time.Time {
		switch {
		case i < before:
			return start.Add(units(i, perUnit))
		case i < before+peak:
			return start.Add(calmBefore*unit + units(i-before, peakFactor*perUnit))
		default:
			return start.Add((calmBefore+peakLength)*unit + units(i-before-peak, perUnit))
		}
	}
}

// offering sends each job once, at its time.
type offering struct {
	api     *api
	creates *creates
	at      func(i int) time.Time
	items   int // of a batch: at most what a tenth of a second brings in a calm phase

	mu       sync.Mutex
	unsent   int
	hintless int // refused without a time to wait
}

func (o *offering) run(ctx context.Context) error {
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range peakCallers {
		group.Go(func() error {
			b := newBatch(o.creates, o.items)
			for {
				first := int(next.Add(int64(o.items))) - o.items
				if first >= o.creates.plan.n {
					return nil
				}
				if err := o.offer(ctx, b, first, min(first+o.items, o.creates.plan.n)); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// offer sends jobs first..end-1 when the last of them is to be offered.
func (o *offering) offer(ctx context.Context, b *batch, first, end int) error {
	planned := o.at(end - 1)
	if time.Since(planned) > unsentAfter {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.unsent += end - first
		return nil
	}
	if err := wait(ctx, time.Until(planned)); err != nil {
		return err
	}
	b.load(first, end)
	if err := b.send(ctx, o.api); err != nil {
		return fmt.Errorf("offer jobs %d to %d: %w", first, end-1, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, i := range b.numbers {
		refused := b.refusals[k]
		if refused.code == "resource_exhausted" { // certain: it was not accepted
			o.creates.settled(i, shed)
		} else {
			o.creates.settled(i, unknown)
		}
		if !refused.hinted {
			o.hintless++
		}
	}
	return nil
}
