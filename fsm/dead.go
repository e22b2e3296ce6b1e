package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func (a *apply) requeueDead(ids []string) Result { return a.eachDead(ids, a.requeue) }

func (a *apply) purgeDead(ids []string) Result { return a.eachDead(ids, a.purge) }

func (a *apply) eachDead(ids []string, do func(key []byte, e *storagev1.Execution) Item) Result {
	if len(ids) > MaxBatch {
		return Result{Refusal: refuseField("execution_ids", "more than %d", MaxBatch)}
	}
	items := make([]Item, len(ids))
	for i, s := range ids {
		id, err := ParseExecutionID(s)
		if err != nil {
			items[i].Refusal = refuseField("execution_ids", "malformed")
			continue
		}
		key := identKey(KindDead, &id)
		value, ok := a.s.Get(key)
		if !ok {
			items[i].Refusal = refuse(NotFound, "no dead letter %q", s)
			continue
		}
		items[i] = do(key, decodeNamed(key, value, &id))
	}
	return Result{Items: items}
}

// requeue gives a dead letter a fresh budget of attempts; their numbers go on.
func (a *apply) requeue(key []byte, e *storagev1.Execution) Item {
	j := a.job(JobKey(e.Tenant, e.JobId))
	gone := j == nil || j.Incarnation != e.Incarnation || j.State == storagev1.JobState_JOB_STATE_DELETED
	if gone || a.m.stopOf(e) == storagev1.JobState_JOB_STATE_DELETED {
		return Item{State: e.State, Refusal: refuse(FailedPrecondition, "its job was deleted")}
	}
	a.dropDead(key, e)
	e.BudgetBase = e.Attempt
	e.FinishedMs, e.Error = 0, ""
	// Requeued by hand it neither blocks the schedule nor counts for it.
	e.Blocks, e.Tracked = false, false
	a.emit(storagev1.EventType_EVENT_TYPE_REQUEUED, e)
	a.admit(e, nil)
	return Item{State: e.State}
}

// purge removes a dead letter. The job of a one-shot goes with it, unless something that was triggered of it may be alive.
func (a *apply) purge(key []byte, e *storagev1.Execution) Item {
	a.dropDead(key, e)
	a.emit(storagev1.EventType_EVENT_TYPE_PURGED, e)
	if e.OneShot {
		id := IdentityOf(e)
		a.removeOneShot(&id)
	}
	return Item{State: e.State}
}
