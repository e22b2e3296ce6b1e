package fsm

import (
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// maxPreviewHeld is how many held executions a preview counts.
const maxPreviewHeld = 1000

// ResumePreview is what resuming a job would do.
type ResumePreview struct {
	// Fired occurrences would run, Skipped would not, by why.
	Fired   uint64
	Skipped map[string]uint64
	// Held executions would go on: those that are ready and held, or would be as soon as somebody asked for them. More: not all
	// were counted.
	Held uint64
	More bool
	// StoppedBy are the pauses that would stop the job all the same: queue:NAME, tenant:NAME, rule:ID. As long as there is one
	// nothing is decided: the numbers are those of the rule that was asked for, if the last of them ended now.
	StoppedBy []string
}

// CountInstants says how many nominal instants of a schedule lie in (fromMS, toMS], or that there are more than it counted.
type CountInstants func(s *storagev1.Schedule, fromMS, toMS int64) (n uint64, more bool, err error)

// CountEvery counts the instants of an interval schedule.
func CountEvery(e *storagev1.Every, fromMS, toMS int64) uint64 {
	first, ok := gridFrom(e, fromMS+1)
	last, any := gridUpTo(e, toMS)
	if !ok || !any {
		return 0
	}
	return gridCount(e, first, last)
}

// PreviewResume says what a resume by a rule, unspecified: that of the job's pause, or the job's own, would do at nowMS. ok is
// false when there is no such job. It decides as Apply does: see goOn and fireOneShot.
func PreviewResume(
	r Reader, tenant, jobID string, rule storagev1.CatchUp, nowMS int64, count CountInstants,
) (p ResumePreview, ok bool, err error) {
	j := getJob(r, JobKey(tenant, jobID))
	if j == nil || j.State == storagev1.JobState_JOB_STATE_DELETED {
		return p, false, nil
	}
	p.Skipped = map[string]uint64{}
	p.StoppedBy = NewStops(r, tenant).Of(j)
	if j.State != storagev1.JobState_JOB_STATE_PAUSED && !j.Parked {
		return p, true, nil
	}
	p.held(r, tenant, jobID)
	p.ready(r, tenant, jobID, j)
	if isOneShot(j) {
		p.oneShot(j, nowMS)
		return p, true, nil
	}
	if rule == storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		rule = j.Pause.GetResume()
	}
	return p, true, p.recurring(j, rule, nowMS, count)
}

func (p *ResumePreview) held(r Reader, tenant, jobID string) {
	prefix := namedKey(KindHeld, tenant, jobID)
	r.Scan(prefix, PrefixEnd(prefix), func(_, _ []byte) bool {
		p.More = p.Held == maxPreviewHeld
		if !p.More {
			p.Held++
		}
		return !p.More
	})
}

// ready counts what became ready before the pause and nobody has tried to start since: it is held only then.
func (p *ResumePreview) ready(r Reader, tenant, jobID string, j *storagev1.Job) {
	c := &chronicle{
		finder: newFinder(r, 0), q: OccurrenceQuery{Tenant: tenant, JobID: jobID, AllKinds: true}, j: j, limit: maxPreviewHeld,
		seeks: maxHistoryRows,
	}
	c.ready()
	p.Held += uint64(min(len(c.items), maxPreviewHeld))
	p.More = p.More || c.end != nil || len(c.items) > maxPreviewHeld
}

// oneShot is for one that was paused before its time.
func (p *ResumePreview) oneShot(j *storagev1.Job, nowMS int64) {
	at := j.Schedule.GetAtMs()
	switch {
	case j.Template == nil || at > nowMS:
	case nowMS-at > missedAfterMS && skipsMissed(j, at, nowMS):
		p.Skipped[whySkippedMissed] = 1
	default:
		p.Fired = 1
	}
}

func (p *ResumePreview) recurring(j *storagev1.Job, rule storagev1.CatchUp, nowMS int64, count CountInstants) error {
	left := runsLeft(j)
	due := nowMS - offsetOf(j)
	if left == 0 || due <= j.WatermarkMs {
		return nil
	}
	if rule == storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
		rule = catchUpOf(j)
	}
	total, more, err := count(j.Schedule, j.WatermarkMs, due)
	p.More = p.More || more
	if err != nil || total == 0 {
		return err
	}
	young := total // those inside the window
	if start := windowStart(j, nowMS); start > j.WatermarkMs {
		if young, _, err = count(j.Schedule, min(start-1, due), due); err != nil {
			return err
		}
	}
	switch {
	case rule == storagev1.CatchUp_CATCH_UP_NONE:
		p.skip(whySkippedPaused, total)
	case young == 0:
		p.skip(whySkippedWindow, total)
	case rule == storagev1.CatchUp_CATCH_UP_ALL:
		p.skip(whySkippedWindow, total-min(young, total))
		p.Fired = min(young, left)
	default:
		p.skip(whyCoalesced, total-1)
		p.Fired = 1
	}
	return nil
}

func (p *ResumePreview) skip(why string, n uint64) {
	if n > 0 {
		p.Skipped[why] += n
	}
}
