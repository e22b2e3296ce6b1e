package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// What is refused here would break a key or an instant. Package rpc refuses more, earlier and more politely.

func validCreate(c *storagev1.CreateJob) *Refusal {
	if r := validJobName(c.Tenant, c.JobId); r != nil {
		return r
	}
	if len(c.Hash) == 0 {
		return refuseField("hash", "missing")
	}
	if !isDuration(c.CatchUpWindowMs) {
		return refuseField("catch_up_window", "out of range")
	}
	if r := validRecurring(c.Overlap, c.CatchUpPerMinute, c.PauseAfterFailures); r != nil {
		return r
	}
	if c.Horizon != nil {
		if r := validHorizon(c.Horizon, c.HorizonFromMs); r != nil {
			return r
		}
	}
	if c.Template == nil {
		return refuseField("template", "missing")
	}
	return validTemplate(c.Template)
}

func validJobName(tenant, jobID string) *Refusal {
	if !isID(tenant) {
		return refuseField("tenant", "malformed")
	}
	if !isID(jobID) {
		return refuseField("job_id", "malformed")
	}
	return nil
}

func validTemplate(t *storagev1.Template) *Refusal {
	switch {
	case t.Queue == "" || !isName(t.Queue):
		return refuseField("queue", "malformed")
	case t.Priority > maxPriority:
		return refuseField("priority", "more than %d", maxPriority)
	case !isName(t.FairnessKey):
		return refuseField("fairness_key", "malformed")
	case len(t.Payload) > maxPayloadBytes:
		return refuseField("payload", "more than %d bytes", maxPayloadBytes)
	case t.BlobVersion != 0 || t.BlobSize != 0:
		return refuseField("payload", "blob version and size are not a request's")
	case t.LeaseMs < 0 || t.LeaseMs > maxLeaseMS:
		return refuseField("lease", "out of range")
	case !isDuration(t.StartDeadlineMs):
		return refuseField("start_deadline", "out of range")
	case !isDuration(t.RetentionMs):
		return refuseField("retention", "out of range")
	}
	p := t.Retry
	if p.GetFirstDelayMs() < 0 || p.GetFirstDelayMs() > maxRetryMS || p.GetMaxDelayMs() < 0 || p.GetMaxDelayMs() > maxRetryMS ||
		p.GetFactorThousandths() > 100_000 || p.GetJitterThousandths() > 1000 {
		return refuseField("retry", "out of range")
	}
	return nil
}
