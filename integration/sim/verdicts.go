package sim

import (
	"bytes"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/schedule"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// series is what a recurring job's instants were and are to be: S4, each of them gets exactly one verdict, in their order,
// whatever the cluster went through.
type series struct {
	incarnation uint64
	schedule    *storagev1.Schedule
	// Up to afterMS every instant has its verdict; runs of them became executions.
	afterMS int64
	runs    uint64
	// parked: a pause of its queue, its tenant or a rule stops it.
	paused, parked bool
}

// next is the first instant without a verdict; ok is false when there is none, or the runs are used up.
func (s *series) next(c *cluster) (at int64, ok bool) {
	limit := s.schedule.GetEvery().GetMaxRuns() + s.schedule.GetCron().GetMaxRuns()
	if limit != 0 && s.runs >= limit {
		return 0, false
	}
	return s.after(c, s.afterMS)
}

// after is the first instant after ms.
func (s *series) after(c *cluster, ms int64) (at int64, ok bool) {
	if e := s.schedule.GetEvery(); e != nil {
		past := (ms - e.AnchorMs) % e.IntervalMs
		if past < 0 {
			past += e.IntervalMs
		}
		return ms + e.IntervalMs - past, true
	}
	compiled, err := schedule.Compile(s.schedule.GetCron())
	if err != nil {
		c.fail("compile: %w", err)
		return 0, false
	}
	o, ok := compiled.Next(time.UnixMilli(ms))
	return o.At.UnixMilli(), ok
}

// jobVersion names a version of a job.
type jobVersion struct {
	jobID                string
	incarnation, version uint64
}

// schedules are those that an entry's commands gave jobs, by the version that they made.
func (in *entry) schedules(cmd *storagev1.Command, stampMS int64, r fsm.Result) {
	for k, item := range cmd.GetCreateJobs().GetItems() {
		if got := r.Items[k]; got.Refusal == nil && !got.Duplicate {
			s := item.Schedule.CloneVT()
			if s.Every != nil && s.Every.AnchorMs == 0 {
				s.Every.AnchorMs = stampMS
			}
			in.given[jobVersion{item.JobId, got.Incarnation, 1}] = s
		}
	}
	if u := cmd.UpdateJob; u != nil && r.Refusal == nil {
		in.given[jobVersion{u.JobId, r.Job.Incarnation, r.Job.Version}] = r.Job.Schedule
	}
	if p := cmd.PutJob; p != nil && r.Refusal == nil {
		in.given[jobVersion{p.Job.JobId, r.Job.Incarnation, r.Job.Version}] = r.Job.Schedule
	}
}

// changed follows what a transition of a job means for its instants.
func (in *entry) changed(ev *storagev1.Event) {
	s, given := in.s.series[ev.JobId], in.given[jobVersion{ev.JobId, ev.Incarnation, ev.JobVersion}]
	switch ev.Type {
	case storagev1.EventType_EVENT_TYPE_JOB_DELETED:
		delete(in.s.series, ev.JobId)
		return
	case storagev1.EventType_EVENT_TYPE_JOB_EXHAUSTED:
		if s == nil || s.incarnation != ev.Incarnation {
			return
		}
		// An update may exhaust the job under its new schedule, and says so before it tells of itself.
		s.reschedule(in.c, given, in.stampMS)
		if at, ok := s.next(in.c); ok {
			in.c.fail("S4: shard %d: %s is exhausted, and fires at %d", in.shard, ev.JobId, at)
		}
		return
	case storagev1.EventType_EVENT_TYPE_JOB_CREATED:
		s = nil
	case storagev1.EventType_EVENT_TYPE_JOB_PARKED, storagev1.EventType_EVENT_TYPE_JOB_RELEASED:
		if s != nil && s.incarnation == ev.Incarnation {
			s.parked = ev.Type == storagev1.EventType_EVENT_TYPE_JOB_PARKED
		}
		return
	case storagev1.EventType_EVENT_TYPE_JOB_PAUSED:
		if s != nil {
			s.paused = true
		}
	case storagev1.EventType_EVENT_TYPE_JOB_RESUMED:
		if s != nil {
			s.paused = false
		}
	case storagev1.EventType_EVENT_TYPE_JOB_UPDATED:
	default:
		return
	}
	switch {
	case s != nil:
		s.reschedule(in.c, given, in.stampMS)
	case isRecurring(given):
		in.s.series[ev.JobId] = &series{incarnation: ev.Incarnation, schedule: given, afterMS: in.stampMS}
	}
}

func isRecurring(s *storagev1.Schedule) bool { return s.GetEvery() != nil || s.GetCron() != nil }

// reschedule follows a change of the schedule, if given is another one. Unless it goes on with what has come, it begins now.
func (s *series) reschedule(c *cluster, given *storagev1.Schedule, stampMS int64) {
	if !isRecurring(given) || sameSchedule(s.schedule, given) {
		return
	}
	if !s.continues(c, given, stampMS) {
		s.afterMS = max(s.afterMS, stampMS)
	}
	s.schedule = given
}

// continues says whether given names the instants up to now that have no verdict, as the schedule so far does.
func (s *series) continues(c *cluster, given *storagev1.Schedule, stampMS int64) bool {
	first, ok := s.next(c)
	covers := func(x *storagev1.Schedule) bool { return x.GetCron().GetEndMs() == 0 || x.Cron.EndMs >= stampMS }
	return ok && first <= stampMS && covers(s.schedule) && covers(given) && sameSchedule(unbounded(s.schedule), unbounded(given))
}

// unbounded is a schedule that has neither an end nor a number of runs.
func unbounded(s *storagev1.Schedule) *storagev1.Schedule {
	s = s.CloneVT()
	if s.Cron != nil {
		s.Cron.EndMs, s.Cron.MaxRuns = 0, 0
	}
	if s.Every != nil {
		s.Every.MaxRuns = 0
	}
	return s
}

func sameSchedule(a, b *storagev1.Schedule) bool {
	encodedA, errA := a.MarshalVT()
	encodedB, errB := b.MarshalVT()
	return errA == nil && errB == nil && bytes.Equal(encodedA, encodedB)
}

// accepted takes in an instant that became an execution, passed one that got none, or a range of them.
func (in *entry) accepted(id fsm.Identity) {
	if s := in.s.series[id.JobID]; s != nil && s.incarnation == id.Incarnation && id.Kind == storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE {
		in.verdict(s, id.JobID, id.NominalMS, id.NominalMS, 1)
		s.runs++
	}
}

func (in *entry) passed(ev *storagev1.Event) {
	s := in.s.series[ev.JobId]
	if s == nil || s.incarnation != ev.Incarnation {
		return
	}
	if at, ok := s.after(in.c, ev.NominalMs-1); ok && at == ev.NominalMs { // else it is excluded, and none of them
		in.verdict(s, ev.JobId, ev.NominalMs, ev.ToMs, ev.Count)
	}
}

// verdict checks that the instants from..to are the next ones that have none.
func (in *entry) verdict(s *series, jobID string, from, to int64, count uint64) {
	first, ok := s.next(in.c)
	last := first
	for n := uint64(1); ok && n < count; n++ {
		last, ok = s.after(in.c, last)
	}
	if !ok || first != from || last != to {
		in.c.fail("S4: shard %d: a verdict on %d..%d of %s, %d instants; all up to %d have theirs, %d is next",
			in.shard, from, to, jobID, count, s.afterMS, first)
	}
	s.afterMS = max(s.afterMS, to)
}

// overdue: S4, nothing that fell due before an instant is without its verdict.
func (m *model) overdue(beforeMS int64) {
	for _, shard := range m.c.shardIDs() {
		for id, s := range m.shards[shard].series {
			if at, ok := s.next(m.c); ok && !s.paused && !s.parked && at < beforeMS {
				m.c.fail("S4: shard %d: %s has no verdict on %d, which fell due before %d", shard, id, at, beforeMS)
			}
		}
	}
}
