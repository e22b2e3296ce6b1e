package rpc

import (
	"context"
	"strconv"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) listZoneChanges(
	ctx context.Context, req *carillonv1.ListZoneChangesRequest,
) (*carillonv1.ListZoneChangesResponse, error) {
	var v violations
	limit := v.pageSize(req.PageSize)
	v.optionalName("tenant", req.Tenant)
	if req.Tenant != "" && req.AllTenants {
		v.add("all_tenants", "is set together with tenant %q", req.Tenant)
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	tenant := req.Tenant
	if tenant == "" && !req.AllTenants {
		tenant = defaultName
	}
	now := s.backend.NowMS()
	list := listing[*carillonv1.ZoneChange]{
		id:     listID("zone changes", tenant, strconv.FormatBool(req.AllTenants)),
		shards: s.backend.Shards(), stale: req.Stale, limit: limit,
		read: func(r fsm.Reader, cursor []byte, limit int) shardPage[*carillonv1.ZoneChange] {
			views, next := fsm.ZoneChanges(r, tenant, cursor, limit, maxRowsPerPage)
			page := shardPage[*carillonv1.ZoneChange]{next: next}
			for i := range views {
				page.items = append(page.items, zoneChangeOf(&views[i], now))
			}
			return page
		},
	}
	changes, next, err := list.page(ctx, s, req.PageToken)
	if err != nil {
		return nil, err
	}
	return &carillonv1.ListZoneChangesResponse{Changes: changes, NextPageToken: next}, nil
}

func zoneChangeOf(view *fsm.JobView, nowMS int64) *carillonv1.ZoneChange {
	z := view.Job.ZoneChange
	t := timetableOf(view.Job.Schedule, nowMS)
	fireTime := func(ms int64) *carillonv1.FireTime {
		if ms == 0 {
			return nil
		}
		at := &carillonv1.FireTime{Time: timeOf(ms)}
		if t != nil { // else this version does not know the zone
			at.Local = t.local(ms)
		}
		return at
	}
	return &carillonv1.ZoneChange{
		JobId: view.JobID, Tenant: view.Tenant, Zone: view.Job.Schedule.GetCron().GetZone(),
		FromVersion: z.GetFromVersion(), ToVersion: z.GetToVersion(), ChangeTime: timeOf(z.GetChangedMs()),
		OldNext: fireTime(z.GetOldNextMs()), NewNext: fireTime(z.GetNewNextMs()),
	}
}
