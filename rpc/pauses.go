package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/fsm"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) createPauseRule(
	ctx context.Context, req *carillonv1.CreatePauseRuleRequest,
) (*carillonv1.CreatePauseRuleResponse, error) {
	var v violations
	rule := v.pauseRule(req.Rule, s.backend.NowMS())
	if err := v.err(); err != nil {
		return nil, err
	}
	if rule.Id == "" {
		rule.Id = newID()
	}
	if err := s.roomForRule(ctx, rule.Id); err != nil {
		return nil, err
	}
	created, err := s.backend.PutPauseRule(ctx, rule, 0)
	pending, err := lagging(err)
	if exists(err) {
		// A retry of the same create gets the same answer.
		standing, getErr := s.backend.PauseRule(ctx, rule.Id)
		if getErr != nil {
			return nil, getErr
		}
		if !sameRule(standing, rule) {
			return nil, err
		}
		created, err = standing, nil
	}
	if err != nil {
		return nil, err
	}
	return &carillonv1.CreatePauseRuleResponse{Rule: s.ruleOf(created), PendingShards: pending}, nil
}

// roomForRule refuses a new rule when as many stand as may. Creates at the same time may pass the limit by their number.
func (s *server) roomForRule(ctx context.Context, id string) error {
	all, err := s.backend.PauseRules(ctx)
	if err != nil {
		return err
	}
	if len(all) < maxPauseRules || slices.ContainsFunc(all, func(r *storagev1.PauseRule) bool { return r.Id == id }) {
		return nil
	}
	return &Refused{&fsm.Refusal{
		Code: fsm.FailedPrecondition, Field: "rule", Message: fmt.Sprintf("%d pause rules stand, as many as may: delete some", len(all)),
	}}
}

func (s *server) getPauseRule(
	ctx context.Context, req *carillonv1.GetPauseRuleRequest,
) (*carillonv1.GetPauseRuleResponse, error) {
	var v violations
	if v.name("id", req.Id); len(v.list) > 0 {
		return nil, v.err()
	}
	rule, err := s.backend.PauseRule(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	return &carillonv1.GetPauseRuleResponse{Rule: s.ruleOf(rule)}, nil
}

func (s *server) listPauseRules(
	ctx context.Context, req *carillonv1.ListPauseRulesRequest,
) (*carillonv1.ListPauseRulesResponse, error) {
	all, err := s.backend.PauseRules(ctx)
	if err != nil {
		return nil, err
	}
	id := func(r *storagev1.PauseRule) string { return r.Id }
	page, next, err := pageOfSettings("pauses", all, id, req.PageSize, req.PageToken)
	if err != nil {
		return nil, err
	}
	res := &carillonv1.ListPauseRulesResponse{NextPageToken: next}
	for _, rule := range page {
		res.Rules = append(res.Rules, s.ruleOf(rule))
	}
	return res, nil
}

func (s *server) deletePauseRule(
	ctx context.Context, req *carillonv1.DeletePauseRuleRequest,
) (*carillonv1.DeletePauseRuleResponse, error) {
	var v violations
	v.name("id", req.Id)
	resume := v.resumeRule("resume_rule", req.ResumeRule)
	if err := v.err(); err != nil {
		return nil, err
	}
	// The tombstone keeps the rule for what fell due: a shard may hear of the pause's end from it alone.
	change := func(r *storagev1.PauseRule) *storagev1.PauseRule {
		gone := &storagev1.PauseRule{
			Id: r.Id, Tenant: r.Tenant, Deleted: true, CreatedMs: r.CreatedMs,
			Pause: &storagev1.Pause{Resume: r.GetPause().GetResume()},
		}
		if resume != storagev1.CatchUp_CATCH_UP_UNSPECIFIED {
			gone.Pause.Resume = resume
		}
		return gone
	}
	_, err := replaceSettings(ctx, req.Id, req.ExpectedVersion, s.backend.PauseRule, s.backend.PutPauseRule, change)
	pending, err := lagging(err)
	if err != nil {
		return nil, err
	}
	return &carillonv1.DeletePauseRuleResponse{PendingShards: pending}, nil
}

// pauseRule validates and translates a rule.
func (v *violations) pauseRule(r *carillonv1.PauseRule, nowMS int64) *storagev1.PauseRule {
	if r == nil {
		v.add("rule", "is required")
		return nil
	}
	v.optionalName("rule.id", r.Id)
	v.optionalName("rule.tenant", r.Tenant)
	v.text("rule.reason", r.Reason, maxReasonBytes)
	rule := &storagev1.PauseRule{
		Id: r.Id, Tenant: r.Tenant, Reason: r.Reason,
		Pause: v.pause("rule.", r.PausedBy, "rule.until", r.Until, r.ResumeRule, nowMS),
	}
	for _, own := range [...]struct {
		field string
		isSet bool
	}{{"rule.version", r.Version != 0}, {"rule.over", r.Over}, {"rule.create_time", r.CreateTime != nil}} {
		if own.isSet {
			v.add(own.field, "is the server's to say, and must not be set")
		}
	}
	if len(r.Label) == 0 {
		v.add("rule.label", "is required: at least one")
	}
	keys := map[string]bool{}
	for _, f := range v.labelFilters("rule.label", r.Label) {
		if keys[f.Key] {
			v.add("rule.label", "has %q twice; a job matches that has all of the labels, and has each key once", f.Key)
		}
		keys[f.Key] = true
		rule.Labels = append(rule.Labels, &storagev1.LabelSelector{Key: f.Key, Value: f.Value, AnyValue: f.AnyValue})
	}
	slices.SortFunc(rule.Labels, func(a, b *storagev1.LabelSelector) int {
		return strings.Compare(selectorText(a), selectorText(b))
	})
	return rule
}

// pause validates and translates what is said of a pause of a queue, a tenant or by a rule, besides its reason.
func (v *violations) pause(
	prefix, by, untilField string, until *timestamppb.Timestamp, rule carillonv1.CatchUp, nowMS int64,
) *storagev1.Pause {
	v.text(prefix+"paused_by", by, maxPausedByBytes)
	p := &storagev1.Pause{By: by, UntilMs: v.instant(untilField, until, nowMS), Resume: v.resumeRule(prefix+"resume_rule", rule)}
	if p.UntilMs != 0 && p.UntilMs <= nowMS {
		v.add(untilField, "is %s, which has passed", until.AsTime().Format(time.RFC3339))
	}
	return p
}

// resumeRule translates the rule for what falls due in a pause.
func (v *violations) resumeRule(field string, rule carillonv1.CatchUp) storagev1.CatchUp {
	if _, ok := carillonv1.CatchUp_name[int32(rule)]; !ok {
		v.add(field, "is %d, which is none of the rules", rule)
	}
	return storagev1.CatchUp(rule)
}

func selectorText(l *storagev1.LabelSelector) string {
	if l.AnyValue {
		return l.Key
	}
	return l.Key + "=" + l.Value
}

func sameRule(a, b *storagev1.PauseRule) bool {
	same := func(x, y *storagev1.LabelSelector) bool { return selectorText(x) == selectorText(y) }
	return a.Id == b.Id && a.Tenant == b.Tenant && a.Reason == b.Reason && samePause(a.Pause, b.Pause) &&
		slices.EqualFunc(a.Labels, b.Labels, same)
}

func samePause(a, b *storagev1.Pause) bool {
	return a.GetBy() == b.GetBy() && a.GetUntilMs() == b.GetUntilMs() && a.GetResume() == b.GetResume()
}

func (s *server) ruleOf(r *storagev1.PauseRule) *carillonv1.PauseRule {
	out := &carillonv1.PauseRule{
		Id: r.Id, Version: r.Version, Tenant: r.Tenant, Reason: r.Reason, PausedBy: r.GetPause().GetBy(),
		Until: optionalTime(r.GetPause().GetUntilMs()), ResumeRule: carillonv1.CatchUp(r.GetPause().GetResume()),
		CreateTime: optionalTime(r.CreatedMs), Over: hasPassed(r.Pause, s.backend.NowMS()),
	}
	for _, l := range r.Labels {
		out.Label = append(out.Label, selectorText(l))
	}
	return out
}

// hasPassed says whether a pause that was to end by itself has.
func hasPassed(p *storagev1.Pause, nowMS int64) bool {
	return p.GetUntilMs() != 0 && p.GetUntilMs() <= nowMS
}

// paused is what settings of queues and tenants say of a pause.
type paused struct {
	paused bool
	reason string
	pause  *storagev1.Pause
}

// at is what stands at an instant: a pause that was to end by then has.
func (p paused) at(nowMS int64) paused {
	if !p.paused || hasPassed(p.pause, nowMS) {
		return paused{pause: &storagev1.Pause{Resume: p.pause.GetResume()}}
	}
	return p
}

// patched is p with the named fields of a patch. A pause that begins has only what is said of it now; one that ends leaves its
// rule, by which the shards let go on what fell due.
func (p paused) patched(fields []string, said paused, nowMS int64) paused {
	p = p.at(nowMS)
	out := paused{paused: p.paused, reason: p.reason, pause: p.pause.CloneVT()}
	if out.pause == nil {
		out.pause = &storagev1.Pause{}
	}
	if slices.Contains(fields, "paused") {
		out.paused = said.paused
		if out.paused && !p.paused {
			out.pause = &storagev1.Pause{}
		}
	}
	for _, field := range fields {
		switch field {
		case "pause_reason":
			out.reason = said.reason
		case "paused_by":
			out.pause.By = said.pause.GetBy()
		case "pause_until":
			out.pause.UntilMs = said.pause.GetUntilMs()
		case "resume_rule":
			out.pause.Resume = said.pause.GetResume()
		}
	}
	return out.at(nowMS)
}
