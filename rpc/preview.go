package rpc

import (
	"context"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// maxPreviewSkipped is after how many skipped times a preview ends, so that it takes well below a second.
const maxPreviewSkipped = 100_000

func (s *server) previewSchedule(ctx context.Context, req *carillonv1.PreviewScheduleRequest) (*carillonv1.PreviewScheduleResponse, error) {
	done, err := s.turns.take(ctx, turnPatience)
	if err != nil {
		return nil, err
	}
	defer done()
	var v violations
	now := s.backend.NowMS()
	count := int(req.Count)
	switch {
	case req.Count > maxPreviewed:
		v.add("count", "is %d; it must be 1 to %d, or 0 for %d", req.Count, maxPreviewed, defaultPreviewed)
	case count == 0:
		count = defaultPreviewed
	}
	v.optionalName("job_id", req.JobId)
	after := v.instant("after", req.After, now)
	if req.After == nil {
		after = now
	}
	sched := v.schedule(req.Schedule, now)
	for _, fault := range v.list {
		withoutJob(fault)
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	sched = resolved(sched, now)
	res := &carillonv1.PreviewScheduleResponse{
		Schedule: scheduleOf(sched), ZoneVersion: cron.ZoneVersion(), TooOften: withoutJob(s.oftenFault(sched, now)),
	}
	if req.JobId != "" {
		setOffset(sched, req.JobId)
		res.Offset = optionalDuration(sched.OffsetMs)
	}
	t := timetableOf(sched, now)
	if t == nil {
		if res.Ended = true; sched.AtMs > after {
			res.Times = []*carillonv1.PreviewedTime{firesAt(sched.AtMs, timeOf(sched.AtMs).AsTime().Format(time.RFC3339Nano))}
		}
		return res, nil
	}
	if first, ok := t.after(after); ok {
		rate := t.rate(first)
		res.FiresPerDay, res.FiresPerYear = uint32(rate.BusiestDay), uint64(rate.Year)
	}
	runs := maxRuns(sched)
	left := runs - min(runs, req.Runs)
	switch {
	case runs > 0 && left == 0:
		res.Ended = true
		return res, nil
	case runs > 0:
		count = int(min(uint64(count), left))
	}
	var fired int
	if res.Times, fired, err = t.preview(ctx, count, after); err != nil {
		return nil, err
	}
	last := after
	if n := len(res.Times); n > 0 {
		last = res.Times[n-1].Time.AsTime().UnixMilli()
	}
	_, more := t.after(last)
	res.Ended = !more || runs > 0 && uint64(fired) == left
	return res, nil
}

// withoutJob is a fault of a job's field, nil if there is none, in a request that has a schedule and no job.
func withoutJob(fault *carillonv1.FieldViolation) *carillonv1.FieldViolation {
	if fault != nil {
		fault.Field = strings.TrimPrefix(fault.Field, "job.")
	}
	return fault
}

// resolved is a schedule as the state machine would store it now.
func resolved(s *storagev1.Schedule, nowMS int64) *storagev1.Schedule {
	switch {
	case s.DelayMs != 0:
		return &storagev1.Schedule{AtMs: nowMS + s.DelayMs}
	case s.Every != nil && s.Every.AnchorMs == 0:
		s.Every.AnchorMs = nowMS
	}
	return s
}

// preview is what the schedule does after an instant, until it has fired limit times or ends, and how often it fires.
func (t *timetable) preview(ctx context.Context, limit int, afterMS int64) (out []*carillonv1.PreviewedTime, fired int, err error) {
	if t.every != nil {
		for _, at := range t.times(limit, afterMS, nil) {
			out = append(out, firesAt(at.Time.AsTime().UnixMilli(), at.Local))
		}
		return out, len(out), nil
	}
	skipped := 0
	for e := range t.cron.Walk(time.UnixMilli(afterMS)) {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		out = append(out, previewedOf(&e))
		if e.Verdict != cron.Fires {
			skipped += e.Count
			continue
		}
		if fired++; fired == limit || skipped >= maxPreviewSkipped {
			break
		}
	}
	return out, fired, nil
}

func firesAt(ms int64, local string) *carillonv1.PreviewedTime {
	return &carillonv1.PreviewedTime{
		Verdict: carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES, Time: timeOf(ms), Local: local,
		Rule: carillonv1.FireRule_FIRE_RULE_AS_NAMED, Count: 1,
	}
}

// previewVerdicts and fireRules are package cron's as the API names them.
var (
	previewVerdicts = map[cron.Verdict]carillonv1.PreviewVerdict{
		cron.Fires:    carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES,
		cron.InGap:    carillonv1.PreviewVerdict_PREVIEW_VERDICT_SKIPPED_GAP,
		cron.Excluded: carillonv1.PreviewVerdict_PREVIEW_VERDICT_SKIPPED_EXCLUDED,
	}
	fireRules = map[cron.Rule]carillonv1.FireRule{
		cron.AsNamed: carillonv1.FireRule_FIRE_RULE_AS_NAMED,
		cron.Shifted: carillonv1.FireRule_FIRE_RULE_SHIFTED,
		cron.Second:  carillonv1.FireRule_FIRE_RULE_SECOND_OF_REPEAT,
	}
)

func previewedOf(e *cron.Event) *carillonv1.PreviewedTime {
	out := &carillonv1.PreviewedTime{
		Verdict: previewVerdicts[e.Verdict], Time: timeOf(e.At.UnixMilli()), Count: uint32(e.Count),
		Local: e.At.In(time.FixedZone("", e.OffsetSeconds)).Format(time.RFC3339), Rule: fireRules[e.Rule],
	}
	if e.Verdict == cron.InGap {
		out.Rule = carillonv1.FireRule_FIRE_RULE_UNSPECIFIED
	}
	if e.Named != e.Local {
		out.Named = strings.Replace(e.Named.String(), " ", "T", 1)
	}
	if e.Count > 1 {
		out.LastTime = timeOf(e.LastAt.UnixMilli())
	}
	return out
}
