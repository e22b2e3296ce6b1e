package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// claim leases the ready executions that the dispatcher picked. Picks that are gone, or paused, are passed over.
func (a *apply) claim(c *storagev1.Claim) Result {
	if r := validLease(c.ClaimId, c.LeaseMs); r != nil {
		return Result{Refusal: r}
	}
	if len(c.Picks) > MaxBatch {
		return Result{Refusal: refuseField("picks", "more than %d", MaxBatch)}
	}
	for _, key := range c.Picks {
		if len(key) == 0 || key[0] != KindReady {
			continue
		}
		value, ok := a.s.Get(key)
		if !ok {
			continue
		}
		e := decodeExecution(key, value)
		if a.m.paused(e) {
			continue
		}
		a.dropReady(key, true)
		if a.mayStart(e) {
			a.lease(e, c.ClaimId, c.Worker, c.LeaseMs)
		}
	}
	return Result{}
}

// lease grants e to a worker under the next fencing number. The caller has dropped e's old row.
func (a *apply) lease(e *storagev1.Execution, claimID, worker string, leaseMS int64) {
	if leaseMS == 0 {
		leaseMS = e.Template.GetLeaseMs()
	}
	if leaseMS == 0 {
		leaseMS = defaultLeaseMS
	}
	a.meta.Fencing++
	e.State = storagev1.ExecutionState_EXECUTION_STATE_LEASED
	e.Attempt++
	e.Fencing, e.ClaimId, e.Worker = a.meta.Fencing, claimID, worker
	e.LeasedMs = a.meta.ClockMs
	e.LeaseLengthMs, e.DeadlineMs = leaseMS, a.stamp+leaseMS
	e.CancelRequested = false
	if e.FirstStartedMs == 0 {
		e.FirstStartedMs = e.LeasedMs
		if e.Kind != storagev1.ExecutionKind_EXECUTION_KIND_BACKFILL { // late by what was asked for
			a.effects.LatenessMS = append(a.effects.LatenessMS, e.LeasedMs-e.NominalMs-e.OffsetMs)
		}
	}
	a.putLease(e)
	a.meta.Leased++
	a.emit(storagev1.EventType_EVENT_TYPE_LEASED, e)
	a.leases = append(a.leases, e)
	if a.firstFencing == 0 {
		a.firstFencing, a.leaseEndMS = e.Fencing, e.DeadlineMs
	}
	a.lastFencing = e.Fencing
	a.leaseEndMS = min(a.leaseEndMS, e.DeadlineMs)
}

func (a *apply) putLease(e *storagev1.Execution) {
	a.s.Set(LeasedKey(e.Fencing), mustEncode(e.MarshalVT()))
}

// leased returns the execution that is leased under a fencing number; nil when no lease with it is valid.
func (a *apply) leased(fencing uint64, id *Identity) *storagev1.Execution {
	key := LeasedKey(fencing)
	value, ok := a.s.Get(key)
	if !ok {
		return nil
	}
	if e := decodeExecution(key, value); IdentityOf(e) == *id {
		return e
	}
	return nil
}

func (a *apply) heartbeats(c *storagev1.Heartbeats) Result {
	if len(c.Items) > MaxBatch {
		return Result{Refusal: refuseField("items", "more than %d", MaxBatch)}
	}
	items := make([]Item, len(c.Items))
	for i, item := range c.Items {
		items[i] = a.heartbeat(item)
	}
	return Result{Items: items}
}

// heartbeat extends a lease. Only the row's deadline moves: the timer that finds it re-arms.
func (a *apply) heartbeat(h *storagev1.Heartbeat) Item {
	id, err := ParseExecutionID(h.ExecutionId)
	switch {
	case err != nil:
		return Item{Refusal: refuseField("execution_id", "malformed")}
	case h.ExtendMs < 0 || h.ExtendMs > maxLeaseMS:
		return Item{Refusal: refuseField("extend", "out of range")}
	case len(h.Progress) > maxProgressBytes:
		return Item{Refusal: refuseField("progress", "more than %d bytes", maxProgressBytes)}
	}
	e := a.leased(h.Fencing, &id)
	if e == nil {
		return a.heartbeatStale(h, &id)
	}
	if a.superseded(e) {
		a.cancel(LeasedKey(h.Fencing), e, "")
	}
	if h.ExtendMs != 0 {
		e.LeaseLengthMs = h.ExtendMs
	}
	e.DeadlineMs = max(e.DeadlineMs, a.stamp+e.LeaseLengthMs)
	if h.HasProgress {
		e.Progress = h.Progress
	}
	a.putLease(e)
	return Item{DeadlineMS: e.DeadlineMs, CancelRequested: e.CancelRequested, State: e.State}
}

// heartbeatStale refuses a heartbeat under a token that is not valid. It is recorded by its event alone, each time: what a
// worker that was frozen says first tells when it woke up, and no row of its own is worth a look-up. A token that was never
// granted is no holder's.
func (a *apply) heartbeatStale(h *storagev1.Heartbeat, id *Identity) Item {
	a.meta.StaleTotal++
	if h.Fencing != 0 && h.Fencing <= a.meta.Fencing {
		ev := a.emitJob(storagev1.EventType_EVENT_TYPE_LATE_ATTEMPT, id.Tenant, id.JobID, id.Incarnation, 0)
		ev.Kind, ev.NominalMs, ev.Discriminator, ev.Fencing = id.Kind, id.NominalMS, id.Discriminator, h.Fencing
	}
	return Item{Refusal: refuse(FailedPrecondition, "the lease has ended: stop")}
}

// endLeases looks at the leases of one entry. Those whose end has come are lost; for the others the timer re-arms.
func (a *apply) endLeases(t *dueTimer, d *matcher) {
	last, ok := decodeU64(t.value)
	if !ok {
		panic(corrupt(t.key))
	}
	a.s.Delete(t.key)
	left := MaxBatch - a.work
	var lost []*storagev1.Execution
	var firstLive, lastLive, cut uint64
	var nextMS int64
	a.s.Scan(LeasedKey(t.first), LeasedKey(last+1), func(key, value []byte) bool {
		if left == 0 {
			cut, _ = decodeU64(key[1:])
			return false
		}
		left--
		a.work++
		e := decodeExecution(key, bytes.Clone(value))
		end := a.leaseEnd(e)
		if a.stamp >= end {
			lost = append(lost, e)
			return true
		}
		if firstLive == 0 {
			firstLive, nextMS = e.Fencing, end
		}
		lastLive, nextMS = e.Fencing, min(nextMS, end)
		return true
	})
	a.work++
	for _, e := range lost {
		a.lose(e, d)
	}
	if cut != 0 {
		// The rest is looked at by the next advance: it is due already.
		a.putTimer(t.atMS, timerLeaseKey(t.atMS, cut), t.value, TimerLeaseEnd, "")
	}
	if firstLive != 0 {
		nextMS = max(nextMS, a.stamp+leaseEndGrainMS)
		a.putTimer(nextMS, timerLeaseKey(nextMS, firstLive), encodeU64(lastLive), TimerLeaseEnd, "")
	}
}

// leaseEnd is when a lease is over. An outage of the servers never expires a living worker: a leadership grants each
// lease its full length anew.
func (a *apply) leaseEnd(e *storagev1.Execution) int64 {
	return max(e.DeadlineMs, a.meta.LeaderSinceMs+e.LeaseLengthMs)
}

// errorLeaseLost is the error of an execution whose last lease ended without a word. It stands in rows: a promise, on which
// replicas of different versions must agree; a change needs a level.
const errorLeaseLost = "lease lost"

// lose ends a lease whose holder gave no word: the attempt counts, the next one is ready at once.
func (a *apply) lose(e *storagev1.Execution, d *matcher) {
	a.meta.LostTotal++
	a.emit(storagev1.EventType_EVENT_TYPE_LOST, e)
	at := a.recordAttempt(e, storagev1.Outcome_OUTCOME_LOST, "", 0)
	cancelled := e.CancelRequested
	a.dropLease(e)
	switch {
	case cancelled:
		at.State = storagev1.ExecutionState_EXECUTION_STATE_CANCELLED
		a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED)
	case budgetSpent(e):
		e.Error = errorLeaseLost
		at.State = storagev1.ExecutionState_EXECUTION_STATE_DEAD
		a.putDead(e)
	default:
		a.meta.RetriedTotal++
		a.again(e, at, d)
	}
}

func budgetSpent(e *storagev1.Execution) bool {
	return e.Attempt-e.BudgetBase >= max(e.Template.GetRetry().GetMaxAttempts(), 1)
}

// recordAttempt appends how e's delivery ended. The first and last attempts are kept; the total is exact.
func (a *apply) recordAttempt(e *storagev1.Execution, outcome storagev1.Outcome, message string, digest uint64) *storagev1.Attempt {
	at := &storagev1.Attempt{
		Number: e.Attempt, Fencing: e.Fencing, Worker: e.Worker, StartedMs: e.LeasedMs, EndedMs: a.meta.ClockMs,
		Outcome: outcome, Error: message, Digest: digest,
	}
	if len(e.Attempts) >= maxKeptAttempts {
		e.Attempts = append(e.Attempts[:maxKeptAttempts/2], e.Attempts[maxKeptAttempts/2+1:]...)
	}
	e.Attempts = append(e.Attempts, at)
	e.AttemptsTotal++
	return at
}
