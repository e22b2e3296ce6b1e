package rpc

import (
	"fmt"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// moveZones puts newer zone data into force in which every job's next times are an hour later.
func (s *scene) moveZones(tenant string, ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		shard := s.b.ShardOf(tenant, id)
		expand := &storagev1.Command{}
		err := s.b.View(s.t.Context(), shard, false, func(r fsm.Reader) error {
			j := fsm.ReadJob(r, tenant, id)
			h := j.Horizon.CloneVT()
			h.ZoneVersion = "2099z"
			for i := range h.NextMs {
				h.NextMs[i] += 3_600_000
			}
			h.ToMs += 3_600_000
			expand.Expand = &storagev1.Expand{Items: []*storagev1.ExpandJob{{
				Tenant: tenant, JobId: id, Incarnation: j.Incarnation, Version: j.Version, FromMs: j.WatermarkMs, Horizon: h,
			}}}
			return nil
		})
		if err != nil {
			s.t.Fatal(err)
		}
		res, err := s.b.Do(s.t.Context(), shard, expand)
		if err != nil || res.Items[0].Refusal != nil {
			s.t.Fatal(res, err)
		}
	}
}

func TestZoneChanges(t *testing.T) {
	s := newScene(t, 3)
	daily := &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{Lines: []string{"0 9 * * *"}, Zone: "Europe/Berlin"}}}
	var ids []string
	for i := range 7 {
		ids = append(ids, fmt.Sprint("job-", i))
		s.create(&carillonv1.JobSpec{Id: ids[i], Schedule: daily})
	}
	s.create(&carillonv1.JobSpec{Id: "still", Schedule: daily})
	s.create(&carillonv1.JobSpec{Id: "theirs", Tenant: "other", Schedule: daily})
	s.moveZones("default", ids...)
	s.moveZones("other", "theirs")

	all := func(req *carillonv1.ListZoneChangesRequest) (found []*carillonv1.ZoneChange) {
		t.Helper()
		for {
			res, err := s.listZoneChanges(t.Context(), req)
			if err != nil || len(res.Changes) > int(req.PageSize) {
				t.Fatal(res, err)
			}
			found = append(found, res.Changes...)
			if req.PageToken = res.NextPageToken; req.PageToken == "" {
				return found
			}
		}
	}
	var listed []string
	for _, z := range all(&carillonv1.ListZoneChangesRequest{PageSize: 2}) {
		listed = append(listed, z.JobId)
		was, is := z.OldNext, z.NewNext
		if z.Tenant != "default" || z.Zone != "Europe/Berlin" || z.ToVersion != "2099z" || z.FromVersion == "" || z.ChangeTime == nil ||
			was.Local != "2026-01-01T09:00:00+01:00" || is.Local != "2026-01-01T10:00:00+01:00" || is.Time.Seconds-was.Time.Seconds != 3600 {
			t.Errorf("%v", z)
		}
	}
	if slices.Sort(listed); !slices.Equal(listed, ids) {
		t.Errorf("listed %v", listed)
	}
	if got := all(&carillonv1.ListZoneChangesRequest{PageSize: 100, AllTenants: true}); len(got) != 8 {
		t.Errorf("of all tenants: %v", got)
	}
	if got := all(&carillonv1.ListZoneChangesRequest{PageSize: 100, Tenant: "other"}); len(got) != 1 || got[0].JobId != "theirs" {
		t.Errorf("of the other tenant: %v", got)
	}
	_, err := s.listZoneChanges(t.Context(), &carillonv1.ListZoneChangesRequest{Tenant: "a", AllTenants: true})
	wantViolation(t, err, "all_tenants")

	// Another schedule has nothing of it.
	if _, err := s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "job-3", Job: &carillonv1.JobPatch{Schedule: hourly()}}); err != nil {
		t.Fatal(err)
	}
	if got := all(&carillonv1.ListZoneChangesRequest{PageSize: 100}); len(got) != 6 {
		t.Errorf("after an update: %v", got)
	}
}
