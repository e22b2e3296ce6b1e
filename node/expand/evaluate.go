package expand

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// horizon is how many instants an expansion adds, and maxHorizon how many a job may have in all.
	horizon    = 16
	maxHorizon = 64
	// enoughAhead: a job that knows more instants than that needs no expansion.
	enoughAhead = 4
	// passStep is how many instants one expansion counts at most. What is left of a long outage is the next one's.
	passStep = 100_000
	// passChunk is how many of them are counted before the time that was taken is looked at.
	passChunk = 500
	// maxBatch and maxBatchBytes bound what one command carries.
	maxBatch      = 1000
	maxBatchBytes = 256 << 10
)

// Evaluator says when a calendar schedule fires. Package schedule is the one that nodes use.
type Evaluator struct {
	// ZoneVersion is that of the zone data it goes by. Of two versions the later in the alphabet is the newer.
	ZoneVersion string
	// Horizon returns the next n instants after fromMS, and what is skipped among them.
	Horizon func(c *storagev1.Cron, fromMS int64, n int) (*storagev1.Horizon, error)
	// Pass counts the instants in (fromMS, untilMS], at most limit of them; more says that it ended there.
	Pass func(c *storagev1.Cron, fromMS, untilMS int64, limit int) (firstMS, lastMS int64, count uint64, more bool, err error)
}

// Batch is what came of evaluating jobs: the items of one Expand command, and what became of the others.
type Batch struct {
	Items []*storagev1.ExpandJob
	// of are the jobs of the items, and further those of them that will need another expansion at once.
	of      []job
	further map[fsm.JobRef]bool
	// settled need nothing; failed could not be evaluated, err says why the first of them; left were not looked at.
	settled, failed, left []job
	err                   error
}

// Command is the command to propose; nil if there is nothing to propose.
func (b *Batch) Command() *storagev1.Command {
	if len(b.Items) == 0 {
		return nil
	}
	return &storagev1.Command{Expand: &storagev1.Expand{Items: b.Items}}
}

// Err says why jobs could not be evaluated, if there were any.
func (b *Batch) Err() error {
	if b.err == nil {
		return nil
	}
	return fmt.Errorf("evaluate %d cron jobs: the first: %w", len(b.failed), b.err)
}

// Evaluate reads jobs and says what is to be proposed for them at nowMS, the disciplined clock. It looks at one job at
// least, and ends after that when enough says so.
func (e *Evaluator) Evaluate(rows fsm.Reader, jobs []job, nowMS int64, enough func() bool) *Batch {
	b := &Batch{further: map[fsm.JobRef]bool{}}
	bytes := 0
	for i, j := range jobs {
		if i > 0 && (bytes > maxBatchBytes || enough()) {
			b.left = jobs[i:]
			break
		}
		row := fsm.ReadJob(rows, j.ref.Tenant, j.ref.JobID)
		x := expansion{Evaluator: e, job: row, nowMS: nowMS, enough: enough}
		item, err := x.run()
		switch {
		case err != nil:
			b.failed = append(b.failed, j)
			if b.err == nil {
				b.err = fmt.Errorf("job %q of tenant %q: %w", j.ref.JobID, j.ref.Tenant, err)
			}
		case item == nil:
			b.settled = append(b.settled, j)
		default:
			item.Tenant, item.JobId, item.Incarnation, item.Version = j.ref.Tenant, j.ref.JobID, row.Incarnation, row.Version
			bytes += item.SizeVT()
			b.Items, b.of = append(b.Items, item), append(b.of, j)
			if x.more {
				b.further[j.ref] = true
			}
		}
	}
	return b
}

// expansion is the evaluation of one job.
type expansion struct {
	*Evaluator
	job    *storagev1.Job
	nowMS  int64
	enough func() bool
	// more: the job needs another expansion at once, as this one does not say all.
	more bool
}

// run returns what to propose; nil: nothing.
func (x *expansion) run() (*storagev1.ExpandJob, error) {
	j := x.job
	if j.GetSchedule().GetCron() == nil {
		return nil, nil
	}
	h := j.Horizon
	known, from := h.GetNextMs(), max(h.GetToMs(), j.WatermarkMs)
	isActive := j.State == storagev1.JobState_JOB_STATE_ACTIVE
	switch {
	case fsm.IsOlder(j, x.ZoneVersion): // all of it is found anew
		known, from = nil, j.WatermarkMs
	case !isActive || h.GetEnded() || len(known) > enoughAhead:
		return nil, nil
	}
	var p passed
	if isActive { // what a pause holds up is decided when it ends
		var err error
		if p, err = x.passOver(known, from); err != nil {
			return nil, err
		}
	}
	if p.count > 0 {
		return x.replace(p)
	}
	next, err := x.Horizon(j.Schedule.Cron, from, min(horizon, maxHorizon-len(known)))
	if err != nil {
		return nil, err
	}
	x.more = !next.Ended && len(known)+len(next.NextMs) <= enoughAhead
	return &storagev1.ExpandJob{FromMs: from, Horizon: next}, nil
}

// replace is an expansion that passes over missed instants.
func (x *expansion) replace(p passed) (*storagev1.ExpandJob, error) {
	item := &storagev1.ExpandJob{
		FromMs: x.job.WatermarkMs, PassedFromMs: p.first, PassedToMs: p.last, PassedCount: p.count,
	}
	n := horizon
	if x.more { // as little as shows that there is more
		n = 1
	}
	next, err := x.Horizon(x.job.Schedule.Cron, p.last, n)
	if err != nil {
		return nil, err
	}
	item.Horizon = next
	x.more = x.more || !next.Ended && len(next.NextMs) <= enoughAhead
	return item, nil
}

// passed are missed instants that get no execution.
type passed struct {
	first, last int64
	count       uint64
}

// passOver says which instants the job's catch-up rule passes over: the known ones, and those after from up to where the
// rule ends. None, if none of those after from was missed: what is known is the state machine's to decide.
func (x *expansion) passOver(known []int64, from int64) (passed, error) {
	until, keepFrom := fsm.PassOver(x.job, x.nowMS)
	if until <= from {
		return passed{}, nil
	}
	p, err := x.count(from, until)
	if err != nil || p.count == 0 {
		return passed{}, err
	}
	if !x.more && p.last >= keepFrom {
		if p, err = x.withoutLast(from, p); err != nil {
			return passed{}, err
		}
	}
	if n := len(known); n > 0 {
		p.first, p.last, p.count = known[0], max(known[n-1], p.last), p.count+uint64(n)
	}
	return p, nil
}

// count counts the instants in (from, until], as far as one step goes.
func (x *expansion) count(from, until int64) (p passed, err error) {
	for {
		first, last, n, more, err := x.Pass(x.job.Schedule.Cron, from, until, passChunk)
		if err != nil {
			return passed{}, err
		}
		if n > 0 {
			if p.count == 0 {
				p.first = first
			}
			p.last, p.count, from = last, p.count+n, last
		}
		if !more {
			return p, nil
		}
		if p.count+passChunk > passStep || x.enough() {
			x.more = true
			return p, nil
		}
	}
}

// withoutLast leaves the last of the instants in (from, p.last] out. The one before it is looked for from near by: they are
// about as far apart as they were on the average.
func (x *expansion) withoutLast(from int64, p passed) (passed, error) {
	if p.count == 1 {
		return passed{}, nil
	}
	for width := (p.last-p.first)/int64(p.count-1) + 1; ; width *= 2 {
		begin := max(from, p.last-1-width)
		_, last, n, more, err := x.Pass(x.job.Schedule.Cron, begin, p.last-1, passStep)
		if err != nil {
			return passed{}, err
		}
		if more {
			return passed{}, fmt.Errorf("more than %d instants within %d ms", passStep, width)
		}
		if n > 0 {
			return passed{p.first, last, p.count - 1}, nil
		}
		if begin == from {
			return passed{}, fmt.Errorf("counted %d instants after %d and found none before the last", p.count, from)
		}
	}
}
