package fsm

import (
	"bytes"
	"fmt"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// MaxBackfill is the most occurrences of one backfill, and MaxBackfillInTurn of one that makes them in turn: its row lists
	// those that wait.
	MaxBackfill       = 100_000
	MaxBackfillInTurn = 1000
	// backfillKeptMS is how long an ended backfill is kept, so that repeating it makes nothing: as long as what it made.
	backfillKeptMS = maxRetentionMS
)

// BackfillTaskID is the task of a backfill of a job's incarnation.
func BackfillTaskID(tenant, jobID string, incarnation uint64, id string) string {
	return fmt.Sprintf("backfill~%s~%s~%d~%s", tenant, jobID, incarnation, id)
}

// ReadTask returns a bulk operation as it stands; nil if there is none of the id.
func ReadTask(r Reader, id string) *storagev1.Task {
	key := TaskKey(id)
	value, ok := r.Get(key)
	if !ok {
		return nil
	}
	t := &storagev1.Task{}
	mustDecode(key, value, t.UnmarshalVT)
	return t
}

// startBackfill accepts a backfill of the nominal instants from..to of a recurring job. It goes by the schedule that the job
// has now; each execution gets the settings that the job has when it is made. The same id again finds it as it stands.
func (a *apply) startBackfill(c *storagev1.StartBackfill) Result {
	if r := a.validBackfill(c); r != nil {
		return Result{Refusal: r}
	}
	j := a.job(JobKey(c.Tenant, c.JobId))
	if j == nil || j.State == storagev1.JobState_JOB_STATE_DELETED || a.m.tenantGone(c.Tenant) {
		return Result{Refusal: refuse(NotFound, "no job %q", c.JobId)}
	}
	id := BackfillTaskID(c.Tenant, c.JobId, j.Incarnation, c.Id)
	if old := a.task(id); old != nil {
		if bytes.Equal(old.Backfill.GetHash(), c.Hash) {
			a.meta.DuplicatesTotal++
			return Result{Task: old}
		}
		a.meta.ConflictsTotal++
		r := refuse(AlreadyExists, "backfill %q is another one", c.Id)
		r.Fields = backfillDifference(c, old.Backfill)
		return Result{Refusal: r}
	}
	switch {
	case isOneShot(j):
		return Result{Refusal: refuse(FailedPrecondition, "a one-shot has no occurrences to backfill: trigger it")}
	case j.Schedule.Cron != nil && c.ExpectedVersion != j.Version:
		return Result{Refusal: refuse(Moved, "the job is at version %d", j.Version)}
	}
	if e := j.Schedule.Every; e != nil {
		first, ok := gridFrom(e, c.FromMs)
		last, okLast := gridUpTo(e, c.ToMs)
		if n := gridCount(e, first, last); ok && okLast && n > uint64(c.Max) {
			return Result{Refusal: refuseField("max_occurrences", "is %d, and the range has %d", c.Max, n)}
		}
	}
	t := &storagev1.Task{
		Id: id, Kind: storagev1.TaskKind_TASK_KIND_BACKFILL, Filter: &storagev1.Filter{Tenant: c.Tenant, JobId: c.JobId},
		CreatedMs: a.meta.ClockMs, UpdatedMs: a.meta.ClockMs,
		Backfill: &storagev1.Backfill{
			Id: c.Id, Hash: c.Hash, Incarnation: j.Incarnation, Schedule: j.Schedule, FromMs: c.FromMs, ToMs: c.ToMs, Max: c.Max,
			InTurn: c.InTurn, HasPriority: c.HasPriority, Priority: c.Priority, HandedMs: c.FromMs - 1,
		},
	}
	a.putTask(t)
	a.effects.TasksStarted = true
	return Result{Task: t}
}

func (a *apply) validBackfill(c *storagev1.StartBackfill) *Refusal {
	if r := validJobName(c.Tenant, c.JobId); r != nil {
		return r
	}
	most := uint32(MaxBackfill)
	if c.InTurn {
		most = MaxBackfillInTurn
	}
	switch {
	case !isID(c.Id):
		return refuseField("backfill_id", "malformed")
	case len(c.Hash) == 0:
		return refuseField("hash", "missing")
	case !isInstant(c.FromMs) || c.FromMs > c.ToMs:
		return refuseField("from", "out of range")
	case c.ToMs > a.stamp:
		return refuseField("to", "is in the future")
	case c.Max == 0 || c.Max > most:
		return refuseField("max_occurrences", "is %d; it must be 1 to %d", c.Max, most)
	case c.Priority > maxPriority:
		return refuseField("priority", "more than %d", maxPriority)
	}
	return nil
}

func backfillDifference(c *storagev1.StartBackfill, b *storagev1.Backfill) (fields []string) {
	for _, f := range [...]struct {
		name string
		same bool
	}{
		{"from", c.FromMs == b.FromMs}, {"to", c.ToMs == b.ToMs}, {"max_occurrences", c.Max == b.Max}, {"overlap", c.InTurn == b.InTurn},
		{"priority", c.HasPriority == b.HasPriority && c.Priority == b.Priority},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// cancelBackfill ends a backfill: what it has not made is not made.
func (a *apply) cancelBackfill(c *storagev1.CancelBackfill) Result {
	if r := validJobName(c.Tenant, c.JobId); r != nil {
		return Result{Refusal: r}
	}
	j := a.job(JobKey(c.Tenant, c.JobId))
	t := a.task(BackfillTaskID(c.Tenant, c.JobId, j.GetIncarnation(), c.Id))
	if j == nil || t == nil {
		return Result{Refusal: refuse(NotFound, "no backfill %q of job %q", c.Id, c.JobId)}
	}
	if !t.Finished {
		t.UpdatedMs = a.meta.ClockMs
		t.Backfill.Cancelled = true
		endBackfill(t)
		a.putTask(t)
	}
	return Result{Task: t}
}

func endBackfill(t *storagev1.Task) {
	t.Backfill.PendingMs, t.Finished = nil, true
}

// stepBackfill takes in the next instants, at most limit: of an interval by arithmetic, of a cron schedule as the leader's
// evaluator hands them in. What does not follow what was taken in before is passed over. more says that some are missing.
func (a *apply) stepBackfill(t *storagev1.Task, c *storagev1.StepTask, limit int) (more bool) {
	b := t.Backfill
	instants, handedMS := c.InstantsMs, c.ToMs
	if b.HandedMs >= b.ToMs {
		return false
	}
	if b.Schedule.Every != nil {
		instants, handedMS = gridAfter(b.Schedule.Every, b.HandedMs, b.ToMs, limit)
	} else if !handsIn(b, c, limit) {
		return true
	}
	j := a.backfillJob(t)
	if j == nil || t.SeenCount+uint64(len(instants)) > uint64(b.Max) {
		// The job is gone. Or the evaluator that counted the instants had other zone data: no more than it said.
		endBackfill(t)
		return false
	}
	b.HandedMs = handedMS
	t.SeenCount += uint64(len(instants))
	if b.InTurn {
		b.PendingMs = append(b.PendingMs, instants...)
	} else {
		for _, at := range instants {
			a.makeBackfill(t, j, at)
		}
	}
	a.goOnBackfill(t, j)
	return b.HandedMs < b.ToMs && !t.Finished
}

// handsIn says whether a step brings the instants that are next.
func handsIn(b *storagev1.Backfill, c *storagev1.StepTask, limit int) bool {
	if c.FromMs != b.HandedMs || c.ToMs <= c.FromMs || c.ToMs > b.ToMs || len(c.InstantsMs) > limit {
		return false
	}
	last := c.FromMs
	for _, at := range c.InstantsMs {
		if at <= last || at > c.ToMs {
			return false
		}
		last = at
	}
	return true
}

// gridAfter lists up to limit nominal instants of e in (after, to]; with fewer, all up to to are handed in.
func gridAfter(e *storagev1.Every, after, to int64, limit int) (instants []int64, handedMS int64) {
	for at, ok := gridFrom(e, after+1); ok && at <= to; at, ok = gridFrom(e, at+1) {
		if len(instants) == limit {
			return instants, instants[limit-1]
		}
		instants = append(instants, at)
	}
	return instants, to
}

// backfillJob is the job of a backfill; nil when it is gone.
func (a *apply) backfillJob(t *storagev1.Task) *storagev1.Job {
	f := t.Filter
	if a.m.tenantGone(f.GetTenant()) {
		return nil
	}
	j := a.job(JobKey(f.GetTenant(), f.GetJobId()))
	if j == nil || j.State == storagev1.JobState_JOB_STATE_DELETED || j.Incarnation != t.Backfill.Incarnation {
		return nil
	}
	return j
}

// goOnBackfill starts the next of those that are made in turn, if none lives, and ends the task when all are made.
func (a *apply) goOnBackfill(t *storagev1.Task, j *storagev1.Job) {
	b := t.Backfill
	if len(b.PendingMs) > 0 && b.LiveMs == 0 {
		next := b.PendingMs[0]
		b.PendingMs, b.LiveMs = b.PendingMs[1:], next
		a.makeBackfill(t, j, next)
	}
	if b.HandedMs >= b.ToMs && len(b.PendingMs) == 0 {
		endBackfill(t)
	}
}

// makeBackfill makes the execution of an instant. All of a backfill are a stream of their own, lest their old instants go
// before what falls due now, and none expires for being late.
func (a *apply) makeBackfill(t *storagev1.Task, j *storagev1.Job, nominal int64) {
	b := t.Backfill
	template := j.Template.CloneVT()
	template.FairnessKey, template.StartDeadlineMs = "backfill:"+b.Id, 0
	if b.HasPriority {
		template.Priority = b.Priority
	}
	t.DoneCount++
	a.meta.FiredTotal++
	a.markPaused(t.Filter.GetTenant(), t.Filter.GetJobId(), j)
	a.work++
	a.admit(&storagev1.Execution{
		Tenant: t.Filter.GetTenant(), JobId: t.Filter.GetJobId(), Incarnation: j.Incarnation, JobVersion: j.Version,
		Kind: storagev1.ExecutionKind_EXECUTION_KIND_BACKFILL, NominalMs: nominal, Discriminator: b.Id, Template: template,
		Tracked: b.InTurn,
	}, nil)
}

// backfilled lets a backfill that goes in turn go on when e has ended.
func (a *apply) backfilled(e *storagev1.Execution) {
	t := a.task(BackfillTaskID(e.Tenant, e.JobId, e.Incarnation, e.Discriminator))
	if t == nil || t.Finished || t.Backfill.GetLiveMs() != e.NominalMs {
		return
	}
	t.UpdatedMs = a.meta.ClockMs
	t.Backfill.LiveMs = 0
	if j := a.backfillJob(t); j != nil {
		a.goOnBackfill(t, j)
	} else {
		endBackfill(t)
	}
	a.putTask(t)
}

// taskKeptMS is how long a task is kept after its end.
func taskKeptMS(t *storagev1.Task) int64 {
	if t.Kind == storagev1.TaskKind_TASK_KIND_BACKFILL {
		return backfillKeptMS
	}
	return recordKeptMS
}
