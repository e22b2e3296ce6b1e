package rpc

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/schedule"
)

const (
	// shownTimes is how many times answers show, and shownInError how many a refusal does.
	shownTimes   = 5
	shownInError = 3

	dayMS = 24 * 60 * 60 * 1000

	// horizonInstants is how many instants after now a cron job's command carries, and horizonSlackMS how far before this
	// node's clock it begins, so that it begins before the stamp of the entry that accepts it.
	horizonInstants = 16
	horizonSlackMS  = 10_000
	// batchHorizonMS is how long a batch may evaluate schedules for its commands. The leader's evaluator does it for the
	// jobs that are left.
	batchHorizonMS = 250
)

// timetable is the instants of a recurring schedule: every has an anchor, or cron is set.
type timetable struct {
	every *storagev1.Every
	cron  *cron.Schedule
}

// timetableOf returns nil for one-shots, and for what this version cannot evaluate any more. An interval without anchor is
// taken to begin now.
func timetableOf(s *storagev1.Schedule, nowMS int64) *timetable {
	if c := s.GetCron(); c != nil {
		compiled, err := schedule.Compile(c)
		if err != nil {
			return nil
		}
		return &timetable{cron: compiled}
	}
	e := s.GetEvery()
	if e == nil {
		return nil
	}
	if e.AnchorMs == 0 {
		e = e.CloneVT()
		e.AnchorMs = nowMS
	}
	return &timetable{every: e}
}

// after is the first nominal instant after another; ok is false if there is none.
func (t *timetable) after(ms int64) (at int64, ok bool) {
	if t.every != nil {
		return fsm.EveryAfter(t.every, ms)
	}
	o, ok := t.cron.Next(time.UnixMilli(ms))
	return o.At.UnixMilli(), ok
}

// times are the n first times after an instant. known, in order, are those that are known already: all after that instant
// up to the last of them.
func (t *timetable) times(n int, afterMS int64, known []int64) []*carillonv1.FireTime {
	var out []*carillonv1.FireTime
	add := func(at int64) bool {
		out = append(out, &carillonv1.FireTime{Time: timeOf(at), Local: t.local(at)})
		afterMS = at
		return len(out) < n
	}
	for _, at := range known {
		if len(out) < n {
			add(at)
		}
	}
	if len(out) < n {
		t.all(afterMS)(add)
	}
	return out
}

// all are the nominal instants after another.
func (t *timetable) all(afterMS int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		if t.every != nil {
			for at, ok := fsm.EveryAfter(t.every, afterMS); ok && yield(at); {
				at, ok = fsm.EveryAfter(t.every, at)
			}
			return
		}
		for o := range t.cron.All(time.UnixMilli(afterMS)) {
			if !yield(o.At.UnixMilli()) {
				return
			}
		}
	}
}

// local is what the schedule's clock shows, with its offset.
func (t *timetable) local(ms int64) string {
	if t.every != nil {
		return localOf(nil, ms)
	}
	return localOf(t.cron.Zone(), ms)
}

// firstAfter is the first time of a recurring schedule after an instant; 0 if there is none, and for one-shots.
func firstAfter(s *storagev1.Schedule, ms int64) int64 {
	t := timetableOf(s, ms)
	if t == nil {
		return 0
	}
	if at, ok := t.after(ms); ok {
		return at
	}
	return 0
}

// rate estimates how often the schedule fires in the 365 days from an instant on.
func (t *timetable) rate(fromMS int64) cron.Rate {
	if e := t.every; e != nil {
		up := func(span int64) int { return int((span + e.IntervalMs - 1) / e.IntervalMs) }
		return cron.Rate{BusiestDay: up(dayMS), Year: up(365 * dayMS)}
	}
	return t.cron.PerDay(time.UnixMilli(fromMS))
}

// upcoming is what answers about one job show of its times.
type upcoming struct {
	next        []*carillonv1.FireTime
	firesPerDay uint32
}

// show are the first times after an instant: see times.
func (t *timetable) show(n int, afterMS int64, known []int64) (out upcoming) {
	if out.next = t.times(n, afterMS, known); len(out.next) > 0 {
		out.firesPerDay = uint32(t.rate(out.next[0].Time.AsTime().UnixMilli()).BusiestDay)
	}
	return out
}

// maxRuns is how often a schedule fires at most; 0: there is no bound.
func maxRuns(s *storagev1.Schedule) uint64 {
	return s.GetEvery().GetMaxRuns() + s.GetCron().GetMaxRuns()
}

// runsLeft is how many times are shown of a schedule that has had runs.
func runsLeft(s *storagev1.Schedule, runs uint64) int {
	limit := maxRuns(s)
	if limit == 0 {
		return shownTimes
	}
	return int(min(shownTimes, limit-min(limit, runs)))
}

// showTimes adds the next times to the answer of a call about one job: those that its row knows, and what follows them.
func showTimes(job *carillonv1.Job, j *storagev1.Job) {
	t := timetableOf(j.GetSchedule(), j.GetCreatedMs())
	if t == nil || job.State != carillonv1.JobState_JOB_STATE_ACTIVE {
		return
	}
	after, known := j.NextMs-1, j.Horizon.GetNextMs()
	if j.NextMs == 0 {
		// It waits for its horizon.
		after, known = j.WatermarkMs, nil
	}
	for len(known) > 0 && known[0] <= after {
		known = known[1:]
	}
	s := t.show(runsLeft(j.Schedule, j.Runs+uint64(len(j.QueuedMs))), after, known)
	if job.NextTimes, job.FiresPerDay = s.next, s.firesPerDay; len(s.next) > 0 {
		job.NextTime = s.next[0].Time
	}
}

// firstTimes is what a create answers: the same at each retry, whatever became of the job since. firstMS is the first
// nominal; 0: it was not known then.
func firstTimes(s *storagev1.Schedule, createdMS, firstMS int64) (out upcoming) {
	t := timetableOf(s, createdMS)
	if t == nil {
		return out
	}
	after := createdMS
	if firstMS != 0 {
		after = firstMS - 1
	}
	return t.show(runsLeft(s, 0), after, nil)
}

// tooOften refuses a schedule that fires more often on its busiest day than it, or the server, allows.
func (s *server) tooOften(sched *storagev1.Schedule, nowMS int64) error {
	if fault := s.oftenFault(sched, nowMS); fault != nil {
		return invalidArgument([]*carillonv1.FieldViolation{fault})
	}
	return nil
}

// oftenFault says why a schedule is refused for how often it fires; nil if it is not.
func (s *server) oftenFault(sched *storagev1.Schedule, nowMS int64) *carillonv1.FieldViolation {
	if s.allows(sched, 1<<63) {
		return nil // there is no bound
	}
	t := timetableOf(sched, nowMS)
	if t == nil || t.cron != nil && s.allows(sched, uint64(t.cron.MostPerDay())) {
		return nil
	}
	first, ok := t.after(nowMS)
	if !ok {
		return nil // the state machine refuses it
	}
	fires := uint64(t.rate(first).BusiestDay)
	if s.allows(sched, fires) {
		return nil
	}
	var next []string
	for _, at := range t.times(shownInError, nowMS, nil) {
		next = append(next, at.Local)
	}
	const format = "it fires %d times on its busiest day, next at %s"
	var v violations
	if own := uint64(sched.MaxFiresPerDay); own > 0 && fires > own {
		v.add(pathMaxFires, "is %d, but "+format, own, fires, strings.Join(next, ", "))
	} else {
		v.add(pathSchedule, format+"; this server allows %d a day", fires, strings.Join(next, ", "), s.maxFires)
	}
	return v.list[0]
}

// allows says whether neither the schedule's own bound nor the server's is below a number of fires per day.
func (s *server) allows(sched *storagev1.Schedule, fires uint64) bool {
	own := uint64(sched.GetMaxFiresPerDay())
	return (own == 0 || fires <= own) && (s.maxFires == 0 || fires <= s.maxFires)
}

// isAccepted says whether this very create was accepted before: then it has its answer, whatever the bounds are now.
func (s *server) isAccepted(ctx context.Context, c *storagev1.CreateJob) (accepted bool) {
	err := s.backend.View(ctx, s.backend.ShardOf(c.Tenant, c.JobId), true, func(r fsm.Reader) error {
		view, ok := fsm.GetJob(r, c.Tenant, c.JobId)
		accepted = ok && (bytes.Equal(view.Job.CreateHash, c.Hash) || bytes.Equal(view.Job.PutHash, c.Hash))
		return nil
	})
	return err == nil && accepted
}

// horizonOf is what a command says of a schedule's next instants; nil for those that are no cron schedules.
func horizonOf(s *storagev1.Schedule, nowMS int64) (h *storagev1.Horizon, fromMS int64) {
	c := s.GetCron()
	if c == nil {
		return nil, 0
	}
	fromMS = nowMS - horizonSlackMS
	_, _, past, _, err := schedule.Pass(c, fromMS, nowMS, schedule.MaxHorizon-horizonInstants)
	if err == nil {
		h, err = schedule.Horizon(c, fromMS, horizonInstants+int(past))
	}
	if err != nil {
		panic(fmt.Sprintf("evaluate a schedule that compiled: %v", err))
	}
	return h, fromMS
}
