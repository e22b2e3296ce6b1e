package rpc

import (
	"context"
	"slices"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) createTenant(ctx context.Context, req *carillonv1.CreateTenantRequest) (*carillonv1.CreateTenantResponse, error) {
	var v violations
	settings := v.tenant(req.Tenant, s.backend.NowMS())
	if err := v.err(); err != nil {
		return nil, err
	}
	created, err := s.backend.PutTenant(ctx, settings, 0)
	pending, err := lagging(err)
	if exists(err) {
		// A retry of the same create gets the same answer.
		standing, getErr := s.backend.Tenant(ctx, settings.Name)
		if getErr != nil {
			return nil, getErr
		}
		if !sameTenant(standing, settings) {
			return nil, err
		}
		created, err = standing, nil
	}
	if err != nil {
		return nil, err
	}
	return &carillonv1.CreateTenantResponse{Tenant: s.tenantOf(created), PendingShards: pending}, nil
}

func (s *server) getTenant(ctx context.Context, req *carillonv1.GetTenantRequest) (*carillonv1.GetTenantResponse, error) {
	var v violations
	if v.name("name", req.Name); len(v.list) > 0 {
		return nil, v.err()
	}
	settings, err := s.backend.Tenant(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	return &carillonv1.GetTenantResponse{Tenant: s.tenantOf(settings)}, nil
}

func (s *server) listTenants(ctx context.Context, req *carillonv1.ListTenantsRequest) (*carillonv1.ListTenantsResponse, error) {
	all, err := s.backend.Tenants(ctx)
	if err != nil {
		return nil, err
	}
	name := func(t *storagev1.TenantSettings) string { return t.Name }
	page, next, err := pageOfSettings("tenants", all, name, req.PageSize, req.PageToken)
	if err != nil {
		return nil, err
	}
	res := &carillonv1.ListTenantsResponse{NextPageToken: next}
	for _, settings := range page {
		res.Tenants = append(res.Tenants, s.tenantOf(settings))
	}
	return res, nil
}

func (s *server) updateTenant(ctx context.Context, req *carillonv1.UpdateTenantRequest) (*carillonv1.UpdateTenantResponse, error) {
	var v violations
	v.name("name", req.Name)
	patch := req.Tenant
	if patch == nil {
		v.add("tenant", "is required")
		return nil, v.err()
	}
	fields := v.mask("tenant", req.UpdateMask, patch.ProtoReflect())
	values := v.tenant(&carillonv1.Tenant{
		Name: defaultName, Paused: patch.GetPaused(), PauseReason: patch.GetPauseReason(), PausedBy: patch.GetPausedBy(),
		PauseUntil: patch.PauseUntil, ResumeRule: patch.GetResumeRule(), Retention: patch.Retention,
		Labels: patch.Labels, Weight: patch.GetWeight(),
	}, s.backend.NowMS())
	if err := v.err(); err != nil {
		return nil, err
	}
	nowMS := s.backend.NowMS()
	change := func(t *storagev1.TenantSettings) *storagev1.TenantSettings {
		t = t.CloneVT()
		for _, field := range fields {
			switch field {
			case "retention":
				t.RetentionMs = values.RetentionMs
			case "labels":
				t.Labels = values.Labels
			case "weight":
				t.Weight = values.Weight
			}
		}
		p := pausedOfTenant(t).patched(fields, pausedOfTenant(values), nowMS)
		t.Paused, t.PauseReason, t.Pause = p.paused, p.reason, p.pause
		return t
	}
	get := s.backend.Tenant
	if req.ExpectedVersion == 0 && values.Paused && slices.Contains(fields, "paused") {
		get = getOrBlank(get, &storagev1.TenantSettings{Name: req.Name})
	}
	settings, err := replaceSettings(ctx, req.Name, req.ExpectedVersion, get, s.backend.PutTenant, change)
	pending, err := lagging(err)
	if err != nil {
		return nil, err
	}
	return &carillonv1.UpdateTenantResponse{Tenant: s.tenantOf(settings), PendingShards: pending}, nil
}

func (s *server) deleteTenant(ctx context.Context, req *carillonv1.DeleteTenantRequest) (*carillonv1.DeleteTenantResponse, error) {
	var v violations
	if v.name("name", req.Name); len(v.list) > 0 {
		return nil, v.err()
	}
	progress, err := s.await(ctx, func(ctx context.Context) (TaskProgress, error) {
		return s.backend.DeleteTenant(ctx, req.Name, anyIfZero(req.ExpectedVersion))
	})
	if err != nil {
		return nil, err
	}
	return &carillonv1.DeleteTenantResponse{Task: taskOf(progress)}, nil
}

// tenant validates and translates the settings of a tenant.
func (v *violations) tenant(t *carillonv1.Tenant, nowMS int64) *storagev1.TenantSettings {
	if t == nil {
		v.add("tenant", "is required")
		return nil
	}
	v.name("tenant.name", t.Name)
	v.text("tenant.pause_reason", t.PauseReason, maxReasonBytes)
	return &storagev1.TenantSettings{
		Name: t.Name, Paused: t.Paused, PauseReason: t.PauseReason,
		Pause:       v.pause("tenant.", t.PausedBy, "tenant.pause_until", t.PauseUntil, t.ResumeRule, nowMS),
		RetentionMs: v.duration("tenant.retention", t.Retention, 0, minRetention, maxRetention),
		Labels:      v.labels("tenant.labels", t.Labels),
		Weight:      v.tenantWeight("tenant.weight", t.Weight),
	}
}

func sameTenant(a, b *storagev1.TenantSettings) bool {
	return a.Name == b.Name && a.Paused == b.Paused && a.PauseReason == b.PauseReason && samePause(a.Pause, b.Pause) && a.RetentionMs == b.RetentionMs &&
		samePairs(a.Labels, b.Labels) && a.Weight == b.Weight
}

func (s *server) tenantOf(t *storagev1.TenantSettings) *carillonv1.Tenant {
	p := pausedOfTenant(t).at(s.backend.NowMS())
	out := &carillonv1.Tenant{
		Name: t.Name, Version: t.Version, Paused: p.paused, PauseReason: p.reason, Retention: optionalDuration(t.RetentionMs),
		Labels: mapOf(t.Labels), CreateTime: optionalTime(t.CreatedMs),
		Deleting: t.Deleting, UpdateTime: optionalTime(t.UpdatedMs), Weight: t.Weight,
	}
	if p.paused {
		out.PausedBy, out.PauseUntil = p.pause.GetBy(), optionalTime(p.pause.GetUntilMs())
		out.ResumeRule = carillonv1.CatchUp(p.pause.GetResume())
	}
	return out
}

func pausedOfTenant(t *storagev1.TenantSettings) paused {
	return paused{t.Paused, t.PauseReason, t.Pause}
}
