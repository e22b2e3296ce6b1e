package rpc

import (
	"context"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// patch validates and translates what an update changes. Only the named fields are set, so that the hash is over them.
func (s *server) patch(v *violations, req *carillonv1.UpdateJobRequest) *storagev1.UpdateJob {
	p := req.Job
	if p == nil {
		v.add("job", "is required")
		return nil
	}
	u := &storagev1.UpdateJob{Template: &storagev1.Template{}, Fields: v.mask("job", req.UpdateMask, p.ProtoReflect())}
	for _, field := range u.Fields {
		s.patchField(v, u, p, field)
	}
	s.payload(v, u.Template.Payload, u.Template.ContentType, u.Template.PayloadRef)
	if u.CatchUp != 0 && u.CatchUp != storagev1.CatchUp_CATCH_UP_ALL && p.GetCatchUpPerMinute() != 0 {
		v.add(pathPerMinute, "goes with CATCH_UP_ALL only")
	}
	if u.State == storagev1.JobState_JOB_STATE_ACTIVE && p.GetPauseReason() != "" {
		v.add(pathPauseReason, "goes with a pause, not with a resume")
	}
	return u
}

// patchField sets one named field. Absent ones take their default, except those that have none.
func (s *server) patchField(v *violations, u *storagev1.UpdateJob, p *carillonv1.JobPatch, field string) {
	t := u.Template
	switch field {
	case "queue":
		v.name(pathQueue, p.GetQueue())
		t.Queue = p.GetQueue()
	case "schedule":
		u.Schedule = v.schedule(p.Schedule, s.backend.NowMS())
	case "overlap":
		u.Overlap = v.overlap(p.GetOverlap())
	case "catch_up_per_minute":
		u.CatchUpPerMinute = v.perMinute(p.GetCatchUpPerMinute())
	case "pause_after_failures":
		u.PauseAfterFailures = v.failures(p.GetPauseAfterFailures())
	case "catch_up":
		u.CatchUp = v.catchUpPatch(p)
	case "catch_up_window":
		u.CatchUpWindowMs = v.positive(pathWindow, p.CatchUpWindow, maxWindow)
	case "payload":
		t.Payload = p.Payload
	case "content_type":
		t.ContentType = p.GetContentType()
	case "payload_ref":
		t.PayloadRef = p.GetPayloadRef()
	case "labels":
		u.Labels = v.labels(pathLabels, p.Labels)
	case "headers":
		t.Headers = v.headers(p.Headers)
	case "priority":
		t.Priority = v.priority(p.Priority)
	case "fairness_key":
		v.text(pathFairness, p.GetFairnessKey(), maxFairnessBytes)
		t.FairnessKey = p.GetFairnessKey()
	case "retry":
		t.Retry = v.retry(p.Retry)
	case "lease":
		t.LeaseMs = v.duration(pathLease, p.Lease, defaultLease, minLease, maxLease)
	case "start_deadline":
		t.StartDeadlineMs = v.positive(pathStartDeadline, p.StartDeadline, maxStartDeadline)
	case "retention":
		t.RetentionMs = v.duration(pathRetention, p.Retention, 0, minRetention, maxRetention)
	case "state":
		u.State = v.pauseState(p.GetState())
	case "pause_reason":
		v.text(pathPauseReason, p.GetPauseReason(), maxReasonBytes)
		u.PauseReason = p.GetPauseReason()
	}
}

// catchUpPatch translates a new rule. Reset, it stays unspecified: the default depends on the kind of the job.
func (v *violations) catchUpPatch(p *carillonv1.JobPatch) storagev1.CatchUp {
	rule := p.GetCatchUp()
	if rule == carillonv1.CatchUp_CATCH_UP_UNSPECIFIED {
		if p.Schedule == nil {
			v.add(pathCatchUp, "cannot be reset without a schedule: name the rule")
			return storagev1.CatchUp_CATCH_UP_UNSPECIFIED
		}
		return v.catchUp(rule, p.Schedule)
	}
	return v.catchUp(rule, nil)
}

// pauseState translates the states that an update may set.
func (v *violations) pauseState(state carillonv1.JobState) storagev1.JobState {
	switch state {
	case carillonv1.JobState_JOB_STATE_ACTIVE:
		return storagev1.JobState_JOB_STATE_ACTIVE
	case carillonv1.JobState_JOB_STATE_PAUSED:
		return storagev1.JobState_JOB_STATE_PAUSED
	}
	v.add(pathState, "is %s; an update sets JOB_STATE_ACTIVE or JOB_STATE_PAUSED", state)
	return storagev1.JobState_JOB_STATE_UNSPECIFIED
}

// withPayload runs propose with payload, content type and reference complete, as the state machine replaces all three or
// none: what the update does not name is read first, and holds only for the version it was read at.
func (s *server) withPayload(ctx context.Context, update *storagev1.UpdateJob, propose func(*storagev1.UpdateJob) error) error {
	named := func(field string) bool { return slices.Contains(update.Fields, field) }
	hasPayload, hasType, hasRef := named("payload"), named("content_type"), named("payload_ref")
	if !hasPayload && !hasType && !hasRef {
		return propose(update)
	}
	whole := update.CloneVT()
	whole.Fields = slices.DeleteFunc(whole.Fields, func(f string) bool {
		return f == "payload" || f == "content_type" || f == "payload_ref"
	})
	whole.Fields = append(whole.Fields, "payload")
	if hasType && (hasPayload || hasRef) {
		return propose(whole)
	}
	var err error
	for range maxTries {
		try := whole.CloneVT()
		viewErr := s.backend.View(ctx, s.backend.ShardOf(update.Tenant, update.JobId), false, func(r fsm.Reader) error {
			view, ok := fsm.GetJob(r, update.Tenant, update.JobId)
			if !ok {
				// The state machine says so, or knows the answer to an earlier try.
				return nil
			}
			if !hasType {
				try.Template.ContentType = view.Job.GetTemplate().GetContentType()
			}
			if !hasPayload && !hasRef {
				try.Template.Payload, try.Template.PayloadRef = view.Payload, view.Job.GetTemplate().GetPayloadRef()
			}
			if try.ExpectedVersion == 0 {
				try.ExpectedVersion = view.Job.Version
			}
			return nil
		})
		if viewErr != nil {
			return viewErr
		}
		if err = propose(try); update.ExpectedVersion != 0 || !refusedWith(err, fsm.Aborted) {
			return err
		}
	}
	return keepsChanging(err)
}
