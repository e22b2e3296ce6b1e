package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// zoneOf is whose clock a schedule goes by; nil, for UTC, if it has none, or one that the zone data does not know any more.
func zoneOf(s *storagev1.Schedule) *cron.Zone {
	name := s.GetCron().GetZone()
	if name == "" {
		return nil
	}
	zone, err := cron.LoadZone(name)
	if err != nil {
		return nil
	}
	return zone
}

// localOf is what the clock of a zone shows, with its offset; nil is UTC.
func localOf(zone *cron.Zone, ms int64) string {
	at := time.UnixMilli(ms).UTC()
	if zone != nil {
		_, offset := zone.Local(at)
		at = at.In(time.FixedZone("", offset))
	}
	return at.Format(time.RFC3339Nano)
}

// instantsOf puts instants in place of what the clock of a job's zone shows. The job may be missing: who asks finds that out.
func (s *server) instantsOf(
	ctx context.Context, ref jobRef, fromLocal, toLocal string, from, to **timestamppb.Timestamp,
) error {
	if fromLocal == "" && toLocal == "" {
		return nil
	}
	var v violations
	begin, _ := v.civil("from_local", fromLocal, *from)
	end, wholeDay := v.civil("to_local", toLocal, *to)
	if err := v.err(); err != nil {
		return err
	}
	zone, err := cron.LoadZone("UTC")
	if err != nil {
		return err
	}
	err = s.backend.View(ctx, s.backend.ShardOf(ref.tenant, ref.id), true, func(r fsm.Reader) error {
		if view, ok := fsm.GetJob(r, ref.tenant, ref.id); ok && zoneOf(view.Job.Schedule) != nil {
			zone = zoneOf(view.Job.Schedule)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if fromLocal != "" {
		first, _ := zone.Instants(begin)
		*from = timestamppb.New(first)
	}
	switch {
	case wholeDay:
		next, _ := zone.Instants(end + daySeconds)
		*to = timestamppb.New(next.Add(-time.Millisecond))
	case toLocal != "":
		_, last := zone.Instants(end)
		*to = timestamppb.New(last)
	}
	return nil
}

const daySeconds = 24 * 60 * 60

// civil reads a day, or a day and a time, that takes the place of an instant.
func (v *violations) civil(field, text string, other *timestamppb.Timestamp) (c cron.Civil, isDay bool) {
	if text == "" {
		return 0, false
	}
	if other != nil {
		v.add(field, "is given together with the instant that it stands for: one of them is enough")
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil && at.Year() >= cron.FirstYear && at.Year() <= cron.LastYear {
			return cron.Civil(at.Unix()), layout == time.DateOnly
		}
	}
	v.add(field, "is %q; it must be like 2026-03-08 or 2026-03-08T02:30, in the years %d to %d", cutText(text, 64), cron.FirstYear, cron.LastYear)
	return 0, false
}
