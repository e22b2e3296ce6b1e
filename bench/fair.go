package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

const (
	rivalTenants = 10
	priorities   = 10
	// fairFrom is which part of the deliveries is left out at the start, when not everything is ready.
	fairFrom = 0.02
)

// priorityWeights are what docs/dispatch.md declares for priorities 0 to 9.
var priorityWeights = [priorities]float64{2, 3, 5, 7, 10, 15, 22, 33, 50, 75}

// rivalOf is the tenant of job i: eleven of twenty are the flood's.
func rivalOf(i int) int { return max(0, i/priorities%20-rivalTenants) }

// rivalPriority is the priority of job i.
func rivalPriority(i int) uint32 { return uint32(i % priorities) }

// Share is what one party had of the turns, and for how long its jobs waited.
type Share struct {
	Of string `json:"of"`
	// Declared and Had are in percent.
	Declared float64    `json:"declared_percent"`
	Had      float64    `json:"had_percent"`
	WaitMS   *Quantiles `json:"wait_ms"`
}

func (s *Share) words() string {
	return fmt.Sprintf("%s %% of %s %% declared, wait %s", number(&s.Had, ""), number(&s.Declared, ""), spread(s.WaitMS))
}

// runFair lets all jobs become ready before workers come, and counts who is served while everybody waits.
func runFair(ctx context.Context, s *session) ([]Result, error) {
	r := s.result(s.n)
	speed, err := s.warmUp(ctx)
	if err != nil {
		return nil, err
	}
	start := s.foresee(speed)
	p := s.plan(s.n, at(start))
	p.rivals = true
	l := newLedger(p, s.n)
	if err := s.createDue(ctx, &r, l, start); err != nil {
		return nil, err
	}
	if err := s.allReady(ctx, start); err != nil {
		return nil, err
	}
	if _, err := s.measureDue(ctx, &r, l, time.Now(), duePace); err != nil {
		return nil, err
	}
	r.fairness(l)
	return []Result{r}, nil
}

// allReady waits until all jobs due at start wait for workers: as many at least, and no more than a look before.
func (s *session) allReady(ctx context.Context, start time.Time) error {
	if err := wait(ctx, time.Until(start)); err != nil {
		return err
	}
	for before := 0.0; time.Since(start) < s.waits.stall; {
		u, err := s.usage(ctx)
		if err != nil {
			return err
		}
		ready := u.metrics[metricReady]
		if ready >= float64(s.n) && ready == before {
			return nil
		}
		before = ready
		if err := wait(ctx, s.waits.calm); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d jobs are not ready %v after they were due", s.n, s.waits.stall)
}

// served is one delivery.
type served struct{ item, waitUS int }

// fairness fills in the shares over the stretch in which each tenant had something of each priority.
func (r *Result) fairness(l *ledger) {
	var all []served
	left := map[[2]int]int{}
	for i, a := range l.settled() {
		if a.attempt != 0 {
			all = append(all, served{i, int(a.latenessUS)})
			left[party(i)]++
		}
	}
	slices.SortFunc(all, func(a, b served) int { return cmp.Compare(a.waitUS, b.waitUS) })
	from := int(fairFrom * float64(len(all)))
	end := 0
	for ; end < len(all); end++ {
		who := party(all[end].item)
		if left[who]--; left[who] == 0 {
			break
		}
	}
	if end <= from {
		return // too few jobs, or somebody was served alone
	}
	stretch, sum := all[from:end], 0.0
	for _, w := range priorityWeights {
		sum += w
	}
	for p := priorities - 1; p >= 0; p-- {
		r.share("priority "+strconv.Itoa(p), stretch, 100*priorityWeights[p]/sum, func(i int) bool { return int(rivalPriority(i)) == p })
	}
	for t := range rivalTenants {
		name := tenantName(t)
		if t == 0 {
			name += ", which floods"
		}
		r.share("tenant "+name, stretch, 100.0/rivalTenants, func(i int) bool { return rivalOf(i) == t })
	}
}

// party is an item's tenant and priority.
func party(i int) [2]int { return [2]int{rivalOf(i), int(rivalPriority(i))} }

// share adds the share of those in the stretch that are of one party.
func (r *Result) share(of string, stretch []served, declared float64, is func(item int) bool) {
	var waits []int32
	for _, d := range stretch {
		if is(d.item) {
			waits = append(waits, int32(d.waitUS))
		}
	}
	had := 100 * float64(len(waits)) / float64(len(stretch))
	r.Shares = append(r.Shares, Share{Of: of, Declared: *rounded(declared), Had: *rounded(had), WaitMS: quantiles(waits)})
	worst := max(value(r.UnfairPercent), 100*math.Abs(had-declared)/declared)
	r.UnfairPercent = rounded(worst)
}

func byUnfairness(r *Result) float64 { return value(r.UnfairPercent) }
