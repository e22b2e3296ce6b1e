package clienttest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

type scheduleService struct{ *Server }

// compile makes a schedule that says when a cron job fires; its error is that of the call.
func compile(c *carillonv1.Cron) (*cron.Schedule, error) {
	spec := cron.Spec{
		Lines: c.GetLines(), Zone: cmp.Or(c.GetZone(), "UTC"),
		Rules: cron.Rules{Gap: cron.Gap(max(c.GetGap(), 1) - 1), Repeat: cron.Repeat(max(c.GetRepeat(), 1) - 1)},
		Exclude: cron.Exclusions{
			Dates: c.GetExclude().GetDates(), Weekdays: c.GetExclude().GetWeekdays(), Lines: c.GetExclude().GetLines(),
		},
	}
	if c.GetStart() != nil {
		spec.Start = c.GetStart().AsTime()
	}
	if c.GetEnd() != nil {
		spec.End = c.GetEnd().AsTime()
	}
	s, err := cron.Compile(spec)
	if err != nil {
		return nil, invalid("job.schedule.cron", err.Error())
	}
	return s, nil
}

// next is a recurring job's first occurrence after an instant; ok is false if there is none. The lock is held.
func (j *job) next(after time.Time) (at time.Time, ok bool) {
	if every := j.GetSchedule().GetEvery(); every != nil {
		return after.Add(every.GetInterval().AsDuration()), true
	}
	if j.cron == nil {
		return time.Time{}, false
	}
	o, ok := j.cron.Next(after)
	return o.At, ok
}

// showTimes shows a cron job's five times after an instant. The lock is held.
func (j *job) showTimes(after time.Time) {
	j.NextTimes = nil
	if j.cron == nil {
		return
	}
	j.FiresPerDay = uint32(j.cron.PerDay(after).BusiestDay)
	for len(j.NextTimes) < 5 {
		o, ok := j.cron.Next(after)
		if !ok {
			break
		}
		after = o.At
		j.NextTimes = append(j.NextTimes, &carillonv1.FireTime{Time: timestamppb.New(o.At), Local: localOf(&o)})
	}
}

// local is what the clock of a job's zone shows at an instant.
func (j *job) local(t *timestamppb.Timestamp) string {
	at := t.AsTime()
	if j.cron != nil {
		_, offset := j.cron.Zone().Local(at)
		at = at.In(time.FixedZone("", offset))
	}
	return at.Format(time.RFC3339Nano)
}

func localOf(o *cron.Occurrence) string {
	return o.At.In(time.FixedZone("", o.OffsetSeconds)).Format(time.RFC3339)
}

// PreviewSchedule knows no spread, and no bounds of intervals.
func (s scheduleService) PreviewSchedule(
	_ context.Context, req *connect.Request[carillonv1.PreviewScheduleRequest],
) (*connect.Response[carillonv1.PreviewScheduleResponse], error) {
	after := time.Now()
	if req.Msg.GetAfter() != nil {
		after = req.Msg.GetAfter().AsTime()
	}
	c := req.Msg.GetSchedule().GetCron()
	if c == nil {
		return connect.NewResponse(previewOf(req.Msg, after)), nil
	}
	compiled, err := compile(c)
	if err != nil {
		return nil, err
	}
	rate := compiled.PerDay(after)
	res := &carillonv1.PreviewScheduleResponse{
		Schedule: req.Msg.GetSchedule(), ZoneVersion: cron.ZoneVersion(), FiresPerDay: uint32(rate.BusiestDay), FiresPerYear: uint64(rate.Year),
		Ended: true,
	}
	if most := req.Msg.GetSchedule().GetMaxFiresPerDay(); most > 0 && most < res.GetFiresPerDay() {
		res.TooOften = &carillonv1.FieldViolation{
			Field: "schedule.max_fires_per_day", Description: fmt.Sprintf("is %d, but it fires %d times on its busiest day", most, res.GetFiresPerDay()),
		}
	}
	left := cmp.Or(int(req.Msg.GetCount()), 10)
	for e := range compiled.Walk(after) {
		if e.Verdict == cron.Fires {
			left--
		}
		if left < 0 {
			res.Ended = false
			break
		}
		t := &carillonv1.PreviewedTime{
			Verdict: map[cron.Verdict]carillonv1.PreviewVerdict{cron.Fires: 1, cron.InGap: 2, cron.Excluded: 3}[e.Verdict],
			Rule:    carillonv1.FireRule(e.Rule + 1), Time: timestamppb.New(e.At), Local: localOf(&e.Occurrence),
			LastTime: timestamppb.New(e.LastAt), Count: uint32(e.Count),
		}
		if e.Named != e.Local {
			t.Named = strings.Replace(e.Named.String(), " ", "T", 1)
		}
		res.Times = append(res.Times, t)
	}
	return connect.NewResponse(res), nil
}

// ZonesChanged lets ListZoneChanges list changes.
func (s *Server) ZonesChanged(changes ...*carillonv1.ZoneChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zoneChanges = changes
}

func (s scheduleService) ListZoneChanges(
	_ context.Context, req *connect.Request[carillonv1.ListZoneChangesRequest],
) (*connect.Response[carillonv1.ListZoneChangesResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*carillonv1.ZoneChange
	for _, z := range s.zoneChanges {
		if req.Msg.GetAllTenants() || z.GetTenant() == cmp.Or(req.Msg.GetTenant(), "default") {
			all = append(all, z)
		}
	}
	res := &carillonv1.ListZoneChangesResponse{}
	res.Changes, res.NextPageToken = page(all, req.Msg.GetPageSize(), req.Msg.GetPageToken())
	return connect.NewResponse(proto.CloneOf(res)), nil
}

// previewOf is the preview of a schedule in UTC.
func previewOf(req *carillonv1.PreviewScheduleRequest, after time.Time) *carillonv1.PreviewScheduleResponse {
	res := &carillonv1.PreviewScheduleResponse{Schedule: req.GetSchedule()}
	fires := func(at time.Time) {
		res.Times = append(res.Times, &carillonv1.PreviewedTime{
			Verdict: carillonv1.PreviewVerdict_PREVIEW_VERDICT_FIRES, Rule: carillonv1.FireRule_FIRE_RULE_AS_NAMED,
			Time: timestamppb.New(at), Local: at.UTC().Format(time.RFC3339), Count: 1,
		})
	}
	every := req.GetSchedule().GetEvery()
	if every == nil {
		if res.Ended = true; req.GetSchedule().GetAt().AsTime().After(after) {
			fires(req.GetSchedule().GetAt().AsTime())
		}
		return res
	}
	interval, at := every.GetInterval().AsDuration(), after
	if every.GetAnchor() != nil {
		at = every.GetAnchor().AsTime()
	}
	at = at.Add((after.Sub(at)/interval + 1) * interval)
	for range cmp.Or(req.GetCount(), 10) {
		fires(at)
		at = at.Add(interval)
	}
	return res
}
