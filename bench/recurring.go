package bench

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	recurringWorkload = "recurring"
	recurringSpan     = 2 * time.Minute
	recurringInterval = time.Minute
	// cronZone is where cron jobs have their calendar: one whose clock is not UTC.
	cronZone = "Europe/Berlin"
	// memoryLooks is how often memory is looked at over the run, its start and its end included.
	memoryLooks = 11
	// diskNoise is by how much the data grows and shrinks without any lasting cause: logs are begun, merged and dropped.
	diskNoise = 200 << 20
)

// recurrence says when the jobs of a plan recur: each runs times, an interval apart, first within an interval from start on.
// Those with an interval of their own are due evenly over it; cron jobs all name the same instants, and their spread has
// them due at times that follow from their ids.
type recurrence struct {
	start    time.Time
	interval time.Duration
	runs     int
	cron     bool
}

// newRecurringPlan makes a plan of n jobs that recur.
func newRecurringPlan(seed uint64, n int, queuePrefix string, r recurrence) *plan {
	p := newPlan(seed, n, queuePrefix, uniform(r.start, r.interval, n))
	p.recurs = &r
	first := p.due
	p.due = func(item int) int64 {
		job, run := p.job(item), item/n
		at := first(job)
		if r.cron {
			at = r.start.UnixMilli() + spreadOf(p.key(job), r.interval)
		}
		return at + int64(run)*r.interval.Milliseconds()
	}
	return p
}

// spreadOf is how many milliseconds after its nominal times the job of an id is due, as docs/schedules.md has it. It is
// computed here anew: the server is not trusted.
func spreadOf(id string, window time.Duration) int64 {
	share, _ := bits.Mul64(xxhash.Sum64String("spread\x00"+id), uint64(window.Milliseconds()))
	return int64(share)
}

// nominal is the instant that an occurrence due at dueMS stands for.
func (r *recurrence) nominal(dueMS int64) int64 {
	if !r.cron {
		return dueMS
	}
	since := dueMS - r.start.UnixMilli()
	return dueMS - since%r.interval.Milliseconds()
}

// schedule has its first occurrence at the nominal instant firstMS, and its last runs-1 intervals later.
func (r *recurrence) schedule(firstMS int64) *carillonv1.Schedule {
	start := timestamppb.New(r.start)
	end := timestamppb.New(r.start.Add(time.Duration(r.runs)*r.interval - time.Millisecond))
	if r.cron {
		return &carillonv1.Schedule{Spread: durationpb.New(r.interval), When: &carillonv1.Schedule_Cron{
			Cron: &carillonv1.Cron{Lines: []string{r.line()}, Zone: cronZone, Start: start, End: end}}}
	}
	return &carillonv1.Schedule{When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{
		Interval: durationpb.New(r.interval), Anchor: timestamppb.New(time.UnixMilli(firstMS)), Start: start, End: end}}}
}

// line is a cron pattern that names the interval's instants.
func (r *recurrence) line() string {
	if r.interval == time.Minute {
		return "* * * * *"
	}
	return fmt.Sprintf("*/%d * * * * *", r.interval/time.Second)
}

// validateRecurring names the field that does not go with recurring jobs, or that is for them only.
func (c *Config) validateRecurring() error {
	if c.Workload != recurringWorkload {
		switch {
		case c.Cron:
			return fmt.Errorf("cron: is for %s only", recurringWorkload)
		case c.Interval != 0:
			return fmt.Errorf("interval: is for %s only", recurringWorkload)
		}
		return nil
	}
	s := newSession(*c, findWorkload(recurringWorkload))
	switch {
	case c.Rate != 0:
		return fmt.Errorf("rate: %s has n jobs an interval", recurringWorkload)
	case s.interval < time.Second || s.interval%time.Second != 0 || time.Minute%s.interval != 0:
		return fmt.Errorf("interval: %v is no whole number of seconds that divides a minute", s.interval)
	case s.span%s.interval != 0:
		return fmt.Errorf("for: %v is no whole number of intervals of %v", s.span, s.interval)
	case int64(s.n)*int64(s.span/s.interval) > MaxN:
		return fmt.Errorf("n: %d jobs have more than %d occurrences in %v", s.n, MaxN, s.span)
	}
	return nil
}

// runRecurring creates jobs that recur, and measures how their occurrences are run: each must come once.
func runRecurring(ctx context.Context, s *session) ([]Result, error) {
	r := s.result(s.n)
	r.Variant = "every"
	if s.cron {
		r.Variant = "cron"
	}
	recurring := func(n int, from time.Time) *plan {
		start := from.Truncate(s.interval).Add(s.interval)
		return newRecurringPlan(s.seed(), n, s.queuePrefix, recurrence{start, s.interval, int(s.span / s.interval), s.cron})
	}
	speed, err := s.warmUpWith(ctx, func(n int) *plan { return recurring(n, time.Now().Add(storeAhead)) })
	if err != nil {
		return nil, err
	}
	p := recurring(s.n, s.foresee(speed))
	l, start := newLedger(p, p.items()), p.recurs.start
	if err := s.createDue(ctx, &r, l, start); err != nil {
		return nil, err
	}
	before, err := s.disk()
	if err != nil {
		return nil, err
	}
	m := &memoryCourse{session: s}
	run, err := s.measureDue(ctx, &r, l, start, duePace, func(ctx context.Context) error { return m.watch(ctx, start) })
	if err != nil {
		return nil, err
	}
	r.recurred(l)
	r.ServerRSSCourseMB = m.megabytes
	if expanded, ok := run.grown(metricExpansions); ok && s.cron {
		r.ExpansionsPerSecond = ratio(expanded, run.to.at.Sub(run.from.at).Seconds())
	}
	if s.fleet == nil {
		return []Result{r}, nil
	}
	after, _, err := s.settled(ctx)
	r.DiskBytesPerJob = diskPerItem(before, after, p.items())
	return []Result{r}, err
}

// diskPerItem is what each of items takes on the disk; nil if what it grew by may be noise.
func diskPerItem(before, after int64, items int) *float64 {
	if after-before < diskNoise {
		return nil
	}
	return ratio(float64(after-before), float64(items))
}

// disk is what the data of the server takes; 0 where it cannot be seen.
func (s *session) disk() (int64, error) {
	if s.fleet == nil {
		return 0, nil
	}
	return diskBytes(s.fleet.dir)
}

// recurred fills in how the first occurrences of all jobs compare with the last ones.
func (r *Result) recurred(l *ledger) {
	n, items := l.plan.n, l.plan.items()
	r.Occurrences = &items
	r.FirstLatenessMS = quantiles(l.latenessOf(0, n))
	r.LastLatenessMS = quantiles(l.latenessOf(items-n, items))
	if r.FirstLatenessMS != nil && r.LastLatenessMS != nil {
		r.DriftMS = rounded(r.LastLatenessMS.P50 - r.FirstLatenessMS.P50)
	}
}

// memoryCourse is the server's memory over a run. Its caller runs watch, and reads megabytes afterwards.
type memoryCourse struct {
	session   *session
	megabytes []float64
}

// watch looks memoryLooks times, evenly over the session's span from start on, or until ctx ends.
func (m *memoryCourse) watch(ctx context.Context, start time.Time) error {
	for k := range memoryLooks {
		at := start.Add(m.session.span * time.Duration(k) / (memoryLooks - 1))
		if wait(ctx, time.Until(at)) != nil {
			return nil // the run is over
		}
		u, err := m.session.usage(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if mb := megabytes(u.rssBytes); mb != nil {
			m.megabytes = append(m.megabytes, *mb)
		}
	}
	return nil
}
