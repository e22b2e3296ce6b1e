package fsm

import (
	"bytes"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// firstAnswer looks an idempotency key up: ok when there is an answer already, which may be a conflict.
func (a *apply) firstAnswer(method byte, tenant, jobID, key string, hash []byte, differ func(*storagev1.IdempotencyRecord) []string) (Result, bool) {
	if key == "" {
		return Result{}, false
	}
	row := recordKey(method, tenant, jobID, key)
	value, ok := a.s.Get(row)
	if !ok {
		return Result{}, false
	}
	rec := &storagev1.IdempotencyRecord{}
	mustDecode(row, value, rec.UnmarshalVT)
	if bytes.Equal(rec.Hash, hash) {
		a.meta.DuplicatesTotal++
		return Result{Job: rec.Job, ExecutionID: rec.ExecutionId, Put: rec.Put}, true
	}
	a.meta.ConflictsTotal++
	r := refuse(AlreadyExists, "the idempotency key was used by another request")
	r.Fields = differ(rec)
	return Result{Refusal: r}, true
}

// putRecord keeps an answer for at least recordKeptMS; nothing without a key.
func (a *apply) putRecord(method byte, tenant, jobID, key string, rec *storagev1.IdempotencyRecord) {
	if key == "" {
		return
	}
	rec.RecordedMs = a.meta.ClockMs
	row := recordKey(method, tenant, jobID, key)
	a.s.Set(row, mustEncode(rec.MarshalVT()))
	a.putExpiry(rec.RecordedMs+recordKeptMS, expireRecord, row[1:])
}

// updateDifference names what an update asks differently from the one that its key stands for.
func updateDifference(c *storagev1.UpdateJob, rec *storagev1.IdempotencyRecord) []string {
	var fields []string
	for _, field := range c.Fields {
		if !slices.Contains(rec.Fields, field) || !sameField(field, c, rec.Job) {
			fields = append(fields, field)
		}
	}
	for _, field := range rec.Fields {
		if !slices.Contains(c.Fields, field) {
			fields = append(fields, field)
		}
	}
	if len(fields) == 0 {
		// What is left are payloads, which records do not keep.
		fields = []string{"payload"}
	}
	return fields
}

func sameField(field string, c *storagev1.UpdateJob, j *storagev1.Job) bool {
	t, have := c.Template, j.GetTemplate()
	switch field {
	case "schedule":
		return sameSchedule(c.Schedule, j)
	case "catch_up":
		return c.CatchUp == j.CatchUp
	case "catch_up_window":
		return c.CatchUpWindowMs == j.CatchUpWindowMs
	case "overlap":
		return c.Overlap == j.Overlap
	case "catch_up_per_minute":
		return c.CatchUpPerMinute == j.CatchUpPerMinute
	case "pause_after_failures":
		return c.PauseAfterFailures == j.PauseAfterFailures
	case "labels":
		return sameKeyValues(c.Labels, j.Labels)
	case "state":
		return c.State == j.State
	case "pause_reason":
		return c.PauseReason == j.PauseReason
	case "pause":
		p, have := c.Pause, j.GetPause()
		return p.GetBy() == have.GetBy() && p.GetUntilMs() == have.GetUntilMs() && p.GetResume() == have.GetResume()
	case "queue":
		return t.GetQueue() == have.GetQueue()
	case "priority":
		return t.GetPriority() == have.GetPriority()
	case "fairness_key":
		return t.GetFairnessKey() == have.GetFairnessKey()
	case "headers":
		return sameKeyValues(t.GetHeaders(), have.GetHeaders())
	case "retry":
		return sameRetry(t.GetRetry(), have.GetRetry())
	case "lease":
		return t.GetLeaseMs() == have.GetLeaseMs()
	case "start_deadline":
		return t.GetStartDeadlineMs() == have.GetStartDeadlineMs()
	case "retention":
		return t.GetRetentionMs() == have.GetRetentionMs()
	default:
		return true
	}
}
