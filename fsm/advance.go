package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// dueTimer is a timer row that is due, copied out of the index.
type dueTimer struct {
	key, value []byte
	timerKey
}

// advance fires what is due at the entry's own stamp, oldest first: at most limit timers and MaxBatch executions.
func (a *apply) advance(c *storagev1.Advance) Result {
	if r := validDemand(c.Demand); r != nil {
		return Result{Refusal: r}
	}
	limit := int(c.Limit)
	if limit <= 0 || limit > MaxBatch {
		limit = MaxBatch
	}
	end := timerStart(a.stamp + 1)
	due := a.dueTimers(end, limit+1)
	a.advancing = true
	// As if all of it were popped: what is put back, or stays, lowers the mark again.
	if bytes.Compare(a.m.timersFrom, end) < 0 {
		a.m.timersFrom, a.meta.LowWaterMs = end, a.stamp+1
	}
	d := newMatcher(c.Demand)
	fired := 0
	for fired < min(limit, len(due)) && a.work < MaxBatch {
		if t := &due[fired]; !a.dropped[string(t.key)] {
			a.fire(t, d)
		}
		fired++
	}
	a.advancing, a.dropped = false, nil
	if fired < len(due) {
		a.lowerTimers(due[fired].atMS, due[fired].key)
	}
	return Result{Fired: fired, MoreDue: bytes.Compare(a.m.timersFrom, end) < 0}
}

func (a *apply) dueTimers(end []byte, limit int) []dueTimer {
	var due []dueTimer
	if bytes.Compare(a.m.timersFrom, end) >= 0 {
		return nil
	}
	a.s.Scan(a.m.timersFrom, end, func(key, value []byte) bool {
		if due == nil {
			due = make([]dueTimer, 0, 16)
		}
		n := len(key)
		row := append(append(make([]byte, 0, n+len(value)), key...), value...)
		t := dueTimer{key: row[:n:n], value: row[n:]}
		var ok bool
		if t.timerKey, ok = parseTimerKey(t.key); !ok {
			panic(corrupt(t.key))
		}
		due = append(due, t)
		return len(due) < limit
	})
	return due
}

func (a *apply) fire(t *dueTimer, d *matcher) {
	switch t.kind {
	case TimerOneShot:
		a.fireOneShot(t, d)
	case TimerRecurring:
		a.fireRecurring(t, d)
	case TimerExpand:
		a.fireExpand(t)
	case TimerRetry:
		a.fireRetry(t, d)
	case TimerLeaseEnd:
		a.endLeases(t, d)
	case TimerStartDeadline:
		a.fireStartDeadline(t)
	case TimerPauseEnd:
		a.firePauseEnd(t)
	case TimerResume:
		a.fireResume(t)
	}
}

// decode decodes the execution in a timer's row, whose copy is its own.
func (t *dueTimer) decode() *storagev1.Execution {
	return decodeNamed(t.key, t.value, &t.id)
}

func (a *apply) fireOneShot(t *dueTimer, d *matcher) {
	a.work++
	a.dropWaiting(t.key)
	e := t.decode()
	if late := a.stamp - e.NominalMs; late > missedAfterMS && a.skipMissed(e) {
		return
	}
	a.meta.FiredTotal++
	if e.Late = a.stamp-e.NominalMs > missedAfterMS; e.Late {
		a.meta.LateTotal++
	}
	a.admit(e, d)
}

// skipMissed skips a one-shot that was missed if its job's catch-up rule says so.
func (a *apply) skipMissed(e *storagev1.Execution) bool {
	key := JobKey(e.Tenant, e.JobId)
	j := a.job(key)
	if j == nil || j.Incarnation != e.Incarnation {
		panic(corrupt(key))
	}
	if !skipsMissed(j, e.NominalMs, a.stamp) {
		return false
	}
	j.State = storagev1.JobState_JOB_STATE_EXHAUSTED
	a.s.Set(key, mustEncode(j.MarshalVT()))
	a.countSkipped(whySkippedMissed, 1)
	a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_SKIPPED)
	return true
}

// skipsMissed says whether a one-shot's rule skips it when it fires as late as now.
func skipsMissed(j *storagev1.Job, nominalMS, nowMS int64) bool {
	return catchUpOf(j) == storagev1.CatchUp_CATCH_UP_NONE || nominalMS < windowStart(j, nowMS)
}

// job reads a job's row; nil when there is none.
func (a *apply) job(key []byte) *storagev1.Job {
	return getJob(a.s, key)
}

func getJob(r Reader, key []byte) *storagev1.Job {
	value, ok := r.Get(key)
	if !ok {
		return nil
	}
	j := &storagev1.Job{}
	if j.UnmarshalVTUnsafe(value) != nil {
		panic(corrupt(key))
	}
	return j
}

func (a *apply) fireRetry(t *dueTimer, d *matcher) {
	a.work++
	a.dropRetrying(t.key, &t.id)
	a.admit(t.decode(), d)
}

// fireStartDeadline expires an execution that is ready or held and has never started. Deadlines of others stay in the
// index until they pop: to remove each at its lease would cost every execution a write.
func (a *apply) fireStartDeadline(t *dueTimer) {
	a.work++
	a.s.Delete(t.key)
	if value, ok := a.s.Get(t.value); ok {
		if e := decodeExecution(t.value, value); e.FirstStartedMs == 0 {
			a.dropReady(t.value, false)
			a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_EXPIRED)
		}
		return
	}
	held := identKey(KindHeld, &t.id)
	if value, ok := a.s.Get(held); ok {
		if e := decodeNamed(held, value, &t.id); e.FirstStartedMs == 0 {
			a.dropHeld(held)
			a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_EXPIRED)
		}
	}
}

// matcher gives what becomes ready to waiting polls, in their order.
type matcher struct {
	byQueue map[string][]*wish
}

type wish struct {
	*storagev1.Demand
	left uint32
}

func validDemand(demand []*storagev1.Demand) *Refusal {
	if len(demand) > MaxBatch {
		return refuseField("demand", "more than %d", MaxBatch)
	}
	for _, d := range demand {
		if r := validLease(d.ClaimId, d.LeaseMs); r != nil {
			return r
		}
	}
	return nil
}

func validLease(claimID string, leaseMS int64) *Refusal {
	if claimID == "" || len(claimID) > maxNameBytes {
		return refuseField("claim_id", "malformed")
	}
	if leaseMS < 0 || leaseMS > maxLeaseMS {
		return refuseField("lease", "out of range")
	}
	return nil
}

func newMatcher(demand []*storagev1.Demand) *matcher {
	if len(demand) == 0 {
		return nil
	}
	m := &matcher{byQueue: make(map[string][]*wish, len(demand))}
	for _, d := range demand {
		w := &wish{Demand: d, left: d.Max}
		for _, queue := range d.Queues {
			m.byQueue[queue] = append(m.byQueue[queue], w)
		}
	}
	return m
}

// match takes one execution off the first demand that wants e; nil when none does, or its queue or tenant is paused.
func (d *matcher) match(m *Machine, e *storagev1.Execution) *wish {
	if d == nil {
		return nil
	}
	queue := e.Template.GetQueue()
	wishes := d.byQueue[queue]
	for len(wishes) > 0 && wishes[0].left == 0 {
		wishes = wishes[1:]
		d.byQueue[queue] = wishes
	}
	if len(wishes) == 0 || m.paused(e) {
		return nil
	}
	wishes[0].left--
	return wishes[0]
}
