package fsm

import (
	"fmt"
	"maps"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// replay is a reader of the event log: from transitions alone it keeps the states of jobs and executions. That they are
// those of the rows is what makes the log an outbox.
type replay struct {
	jobs       map[string]string
	executions map[Identity]string
	// last is the last offset's clock.
	lastMS int64
}

func newReplay() *replay {
	return &replay{jobs: map[string]string{}, executions: map[Identity]string{}}
}

func jobOf(e *storagev1.Event) string {
	return fmt.Sprintf("%s/%s/%d", e.Tenant, e.JobId, e.Incarnation)
}

func (r *replay) apply(t failer, rec *storagev1.EventRecord) {
	t.Helper()
	if rec.AtMs < r.lastMS {
		t.Fatalf("event record of %d behind one of %d", rec.AtMs, r.lastMS)
	}
	r.lastMS = rec.AtMs
	for _, e := range rec.Events {
		r.event(t, e)
	}
}

func (r *replay) event(t failer, e *storagev1.Event) {
	t.Helper()
	job := jobOf(e)
	id := Identity{e.Tenant, e.JobId, e.Incarnation, e.Kind, e.NominalMs, e.Discriminator}
	switch e.Type {
	case storagev1.EventType_EVENT_TYPE_JOB_CREATED, storagev1.EventType_EVENT_TYPE_JOB_RESUMED:
		r.jobs[job] = "active"
	case storagev1.EventType_EVENT_TYPE_JOB_PAUSED:
		r.jobs[job] = "paused"
	case storagev1.EventType_EVENT_TYPE_JOB_UPDATED:
		// An exhausted job goes on, unless it is said to be exhausted once more.
		if r.jobs[job] == "exhausted" {
			r.jobs[job] = "active"
		}
	case storagev1.EventType_EVENT_TYPE_JOB_EXHAUSTED:
		r.jobs[job] = "exhausted"
	case storagev1.EventType_EVENT_TYPE_JOB_DELETED:
		r.jobs[job] = "deleted"
	case storagev1.EventType_EVENT_TYPE_JOB_SWEPT:
		delete(r.jobs, job)
	case storagev1.EventType_EVENT_TYPE_READY, storagev1.EventType_EVENT_TYPE_HELD:
		r.executions[id] = "ready"
	case storagev1.EventType_EVENT_TYPE_LEASED:
		r.executions[id] = "leased"
	case storagev1.EventType_EVENT_TYPE_RETRYING, storagev1.EventType_EVENT_TYPE_SNOOZED:
		r.executions[id] = "retrying"
	case storagev1.EventType_EVENT_TYPE_DEAD:
		r.executions[id] = "dead"
	case storagev1.EventType_EVENT_TYPE_SUCCEEDED, storagev1.EventType_EVENT_TYPE_CANCELLED,
		storagev1.EventType_EVENT_TYPE_EXPIRED, storagev1.EventType_EVENT_TYPE_PURGED:
		delete(r.executions, id)
	case storagev1.EventType_EVENT_TYPE_SKIPPED:
		if e.ToMs == 0 && r.jobs[job] == "active" { // a one-shot's own; else a range of instants
			r.jobs[job] = "exhausted"
		}
	case storagev1.EventType_EVENT_TYPE_JOB_PARKED, storagev1.EventType_EVENT_TYPE_JOB_RELEASED,
		storagev1.EventType_EVENT_TYPE_PAUSE_BEGAN, storagev1.EventType_EVENT_TYPE_PAUSE_ENDED:
		// The job's state is the same.
	case storagev1.EventType_EVENT_TYPE_LOST, storagev1.EventType_EVENT_TYPE_RELEASED, storagev1.EventType_EVENT_TYPE_REQUEUED,
		storagev1.EventType_EVENT_TYPE_CANCEL_REQUESTED, storagev1.EventType_EVENT_TYPE_LATE_ATTEMPT:
		// What they lead to has an event of its own.
	default:
		t.Fatalf("unknown event %v", e)
	}
}

// compare holds the replayed states against the rows. Executions that have ended are left out: they go with retention.
func (r *replay) compare(t failer, s *memState) {
	t.Helper()
	jobs, executions := map[string]string{}, map[Identity]string{}
	for _, k := range s.keys {
		key := []byte(k)
		switch key[0] {
		case KindJob:
			tenant, jobID, _ := parseJobKey(key, KindJob)
			j := getJob(s, key)
			jobs[fmt.Sprintf("%s/%s/%d", tenant, jobID, j.Incarnation)] = jobState(j.State)
		case KindReady, KindLeased, KindHeld, KindDead, KindTimer:
			if _, e := readHint(s, key); e != nil && e.State != storagev1.ExecutionState_EXECUTION_STATE_WAITING {
				executions[IdentityOf(e)] = state(e.State)
			}
		}
	}
	// A job created over a tombstone replaces it; the events tell of both.
	for job := range r.jobs {
		if _, ok := jobs[job]; !ok && r.jobs[job] == "deleted" {
			delete(r.jobs, job)
		}
	}
	if !maps.Equal(jobs, r.jobs) {
		t.Fatalf("jobs by events %v\nby rows %v", r.jobs, jobs)
	}
	if !maps.Equal(executions, r.executions) {
		t.Fatalf("executions by events %v\nby rows %v", r.executions, executions)
	}
}
