package fsm

import (
	"bytes"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// An execution has one row, and its state decides where it stands. put… functions write the row at its new place, drop…
// functions remove it from the old one; both keep the counters, so that a transition is one drop and one put.

// decodeExecution decodes a row and shares value, which must stay as it is: what Get returned, or a copy. Names that its
// key carries are filled in by the caller.
func decodeExecution(key, value []byte) *storagev1.Execution {
	e := &storagev1.Execution{}
	if e.UnmarshalVTUnsafe(value) != nil {
		panic(corrupt(key))
	}
	return e
}

// decodeNamed decodes a row whose key carries the names and the nominal instant.
func decodeNamed(key, value []byte, id *Identity) *storagev1.Execution {
	e := decodeExecution(key, value)
	name(e, id)
	return e
}

// name fills in what encodeNamed left out.
func name(e *storagev1.Execution, id *Identity) {
	e.Tenant, e.JobId = id.Tenant, id.JobID
	if e.NominalMs == 0 {
		e.NominalMs = id.NominalMS
	}
}

// encodeNamed encodes a row whose key carries the names and the nominal instant: they are a good part of what a job costs
// on disk.
func encodeNamed(e *storagev1.Execution) []byte {
	tenant, jobID, nominal := e.Tenant, e.JobId, e.NominalMs
	e.Tenant, e.JobId, e.NominalMs = "", "", 0
	value := mustEncode(e.MarshalVT())
	e.Tenant, e.JobId, e.NominalMs = tenant, jobID, nominal
	return value
}

// putTimer writes a timer row and lets scans start no later than there.
func (a *apply) putTimer(atMS int64, key, value []byte, kind TimerKind, queue string) {
	a.s.Set(key, value)
	a.lowerTimers(atMS, key)
	a.effects.Timers = append(a.effects.Timers, TimerRef{AtMS: atMS, Kind: kind, Queue: queue})
}

func (a *apply) lowerTimers(atMS int64, key []byte) {
	if bytes.Compare(key, a.m.timersFrom) < 0 {
		a.m.timersFrom = key
		a.meta.LowWaterMs = atMS
	}
}

func (a *apply) putExpiry(atMS int64, what byte, ref []byte) {
	key := expiryKey(atMS, what, ref)
	a.s.Set(key, []byte{})
	if bytes.Compare(key, a.m.expiryFrom) < 0 {
		a.m.expiryFrom = key
	}
}

// putWaiting writes a one-shot's execution before its time.
func (a *apply) putWaiting(e *storagev1.Execution) {
	e.State = storagev1.ExecutionState_EXECUTION_STATE_WAITING
	key := timerJobKey(e.NominalMs, TimerOneShot, e.Tenant, e.JobId)
	a.putTimer(e.NominalMs, key, encodeNamed(e), TimerOneShot, e.Template.GetQueue())
	a.meta.Waiting++
}

func (a *apply) dropWaiting(key []byte) {
	a.s.Delete(key)
	a.meta.Waiting--
}

func (a *apply) putReady(e *storagev1.Execution) {
	e.State = storagev1.ExecutionState_EXECUTION_STATE_READY
	e.ReadyMs = a.meta.ClockMs
	key := ReadyKey(e)
	a.s.Set(key, mustEncode(e.MarshalVT()))
	a.meta.Ready++
	a.emit(storagev1.EventType_EVENT_TYPE_READY, e)
	t := e.Template
	a.effects.Ready = append(a.effects.Ready, ReadyRef{
		Key: key, Queue: t.GetQueue(), Priority: t.GetPriority(), Tenant: e.Tenant, FairnessKey: t.GetFairnessKey(),
		NominalMS: e.NominalMs, ReadyMS: e.ReadyMs,
	})
}

// dropReady removes a ready row; picked says that the dispatcher knows, because it chose it.
func (a *apply) dropReady(key []byte, picked bool) {
	a.s.Delete(key)
	a.meta.Ready--
	if !picked {
		a.effects.Unready = append(a.effects.Unready, key)
	}
}

// putHeld sets e aside until its job is resumed, and no rule pauses it any more.
func (a *apply) putHeld(e *storagev1.Execution) {
	e.State = storagev1.ExecutionState_EXECUTION_STATE_READY
	e.ReadyMs = a.meta.ClockMs
	id := IdentityOf(e)
	a.s.Set(identKey(KindHeld, &id), encodeNamed(e))
	a.meta.Held++
	a.emit(storagev1.EventType_EVENT_TYPE_HELD, e)
}

func (a *apply) dropHeld(key []byte) {
	a.s.Delete(key)
	a.meta.Held--
}

// putRetrying lets e wait until an instant; event is RETRYING or SNOOZED.
func (a *apply) putRetrying(e *storagev1.Execution, atMS int64, event storagev1.EventType) {
	e.State = storagev1.ExecutionState_EXECUTION_STATE_RETRYING
	e.ReadyMs = atMS
	id := IdentityOf(e)
	a.putTimer(atMS, timerIdentKey(atMS, TimerRetry, &id), encodeNamed(e), TimerRetry, e.Template.GetQueue())
	a.s.Set(identKey(KindRetrying, &id), appendTime(make([]byte, 0, 8), atMS))
	a.meta.Retrying++
	a.emit(event, e)
}

func (a *apply) dropRetrying(key []byte, id *Identity) {
	a.s.Delete(key)
	a.s.Delete(identKey(KindRetrying, id))
	a.meta.Retrying--
}

// dropLease ends e's lease; the attempt was recorded before.
func (a *apply) dropLease(e *storagev1.Execution) {
	a.s.Delete(LeasedKey(e.Fencing))
	a.meta.Leased--
	a.effects.Ended = append(a.effects.Ended, a.leaseRef(e))
	e.Fencing, e.Worker, e.ClaimId = 0, "", ""
	e.LeasedMs, e.LeaseLengthMs, e.DeadlineMs = 0, 0, 0
	e.CancelRequested = false
}

func (a *apply) leaseRef(e *storagev1.Execution) LeaseRef {
	return LeaseRef{Fencing: e.Fencing, ExecutionID: ExecutionID(e), ClaimID: e.ClaimId, Queue: e.Template.GetQueue()}
}

// putDead sets e aside as a dead letter.
func (a *apply) putDead(e *storagev1.Execution) {
	e.State = storagev1.ExecutionState_EXECUTION_STATE_DEAD
	e.FinishedMs = a.meta.ClockMs
	e.ExpiresMs = e.FinishedMs + a.m.deadRetention(e)
	id := IdentityOf(e)
	key := identKey(KindDead, &id)
	a.s.Set(key, encodeNamed(e))
	a.putExpiry(e.ExpiresMs, expireDead, key[1:])
	a.meta.Dead++
	a.meta.DeadTotal++
	a.emit(storagev1.EventType_EVENT_TYPE_DEAD, e)
	a.tell(e)
}

func (a *apply) dropDead(key []byte, e *storagev1.Execution) {
	a.s.Delete(key)
	a.s.Delete(expiryKey(e.ExpiresMs, expireDead, key[1:]))
	a.meta.Dead--
	e.ExpiresMs = 0
}

// putEnded writes e's last row. state is none of those that have a place of their own.
func (a *apply) putEnded(e *storagev1.Execution, state storagev1.ExecutionState) {
	e.State = state
	e.FinishedMs = a.meta.ClockMs
	id := IdentityOf(e)
	a.s.Set(endedKey(a.bucket(e), &id, kindChar(e.Kind)), encodeNamed(e))
	a.emit(endedEvent(state), e)
	a.tell(e)
}

// bucket is the history bucket of what ends now under e's retention.
func (a *apply) bucket(e *storagev1.Execution) uint32 {
	return expiryBucket(a.meta.ClockMs, a.m.retention(e.Tenant, e.Template))
}

func endedEvent(state storagev1.ExecutionState) storagev1.EventType {
	switch state {
	case storagev1.ExecutionState_EXECUTION_STATE_SUCCEEDED:
		return storagev1.EventType_EVENT_TYPE_SUCCEEDED
	case storagev1.ExecutionState_EXECUTION_STATE_EXPIRED:
		return storagev1.EventType_EVENT_TYPE_EXPIRED
	case storagev1.ExecutionState_EXECUTION_STATE_SKIPPED:
		return storagev1.EventType_EVENT_TYPE_SKIPPED
	default:
		return storagev1.EventType_EVENT_TYPE_CANCELLED
	}
}

// expiryBucket is the hour since 1970 at which a retention that starts now is over, rounded up: to the hour up to a day, to
// the day up to 30 days, to 60 days above, so that few buckets are live at any time.
func expiryBucket(nowMS, retentionMS int64) uint32 {
	unit := int64(1)
	switch {
	case retentionMS > 30*dayMS:
		unit = 60 * 24
	case retentionMS > dayMS:
		unit = 24
	}
	hours := (max(nowMS, 0) + retentionMS + hourMS - 1) / hourMS
	return uint32((hours + unit - 1) / unit * unit)
}

// admit decides where an execution goes that could run now: cancelled or held by its job's stop marker, cancelled as it has to
// give way to a later one, expired by its
// start deadline, leased to a waiting poll, or ready.
func (a *apply) admit(e *storagev1.Execution, d *matcher) {
	if !a.mayStart(e) {
		return
	}
	if w := d.match(a.m, e); w != nil {
		a.lease(e, w.ClaimId, w.Worker, w.LeaseMs)
		return
	}
	a.armStartDeadline(e)
	a.putReady(e)
}

// mayStart says whether e may be leased; if not it was put where it belongs. The caller has dropped e's old row.
func (a *apply) mayStart(e *storagev1.Execution) bool {
	switch stop := a.m.stopOf(e); {
	case stop == storagev1.JobState_JOB_STATE_DELETED:
		a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED)
		return false
	case stop == storagev1.JobState_JOB_STATE_PAUSED || a.ruledExecution(e):
		a.armStartDeadline(e)
		a.putHeld(e)
		return false
	}
	if a.superseded(e) {
		a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_CANCELLED)
		return false
	}
	if deadline, ok := startDeadline(e); ok && a.stamp >= deadline {
		a.putEnded(e, storagev1.ExecutionState_EXECUTION_STATE_EXPIRED)
		return false
	}
	return true
}

// startDeadline is when e expires unless it has started.
func startDeadline(e *storagev1.Execution) (atMS int64, ok bool) {
	limit := e.Template.GetStartDeadlineMs()
	return e.NominalMs + e.OffsetMs + limit, limit > 0 && e.FirstStartedMs == 0
}

func (a *apply) armStartDeadline(e *storagev1.Execution) {
	if at, ok := startDeadline(e); ok {
		id := IdentityOf(e)
		a.putTimer(at, timerIdentKey(at, TimerStartDeadline, &id), ReadyKey(e), TimerStartDeadline, "")
	}
}
