package rpc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const latest, none = carillonv1.CatchUp_CATCH_UP_LATEST, carillonv1.CatchUp_CATCH_UP_NONE

func TestPauseRules(t *testing.T) {
	s := newScene(t, 2)
	until := timestamppb.New(time.UnixMilli(startMS + 60_000))
	rule := &carillonv1.PauseRule{
		Id: "freeze", Tenant: "acme", Label: []string{"team=a", "tier"}, Reason: "release", PausedBy: "ann@desk", Until: until,
		ResumeRule: latest,
	}
	created := must(s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: rule}))
	got := created.Rule
	if got.Version != 1 || got.Over || got.CreateTime == nil || got.Reason != "release" || got.PausedBy != "ann@desk" ||
		!slices.Equal(got.Label, rule.Label) || !proto.Equal(got.Until, until) || got.ResumeRule != latest || got.Tenant != "acme" {
		t.Errorf("created %v", got)
	}
	again := proto.CloneOf(rule)
	slices.Reverse(again.Label)
	if res := must(s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: again})); !proto.Equal(res, created) {
		t.Errorf("the retry got %v", res)
	}
	again.ResumeRule = none
	_, err := s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: again})
	wantCode(t, err, connect.CodeAlreadyExists)
	made := must(s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: &carillonv1.PauseRule{Label: []string{"x="}}}))
	if made.Rule.Id == "" || made.Rule.Tenant != "" || made.Rule.Label[0] != "x=" {
		t.Errorf("made %v", made)
	}

	first := must(s.listPauseRules(t.Context(), &carillonv1.ListPauseRulesRequest{PageSize: 1}))
	rest := must(s.listPauseRules(t.Context(), &carillonv1.ListPauseRulesRequest{PageSize: 1, PageToken: first.NextPageToken}))
	if len(first.Rules)+len(rest.Rules) != 2 || rest.NextPageToken != "" || first.Rules[0].Id >= rest.Rules[0].Id {
		t.Errorf("pages %v and %v", first, rest)
	}
	s.b.pass(60_000)
	if got := must(s.getPauseRule(t.Context(), &carillonv1.GetPauseRuleRequest{Id: "freeze"})).Rule; !got.Over {
		t.Errorf("its time has passed: %v", got)
	}
	_, err = s.deletePauseRule(t.Context(), &carillonv1.DeletePauseRuleRequest{Id: "freeze", ExpectedVersion: 7})
	wantCode(t, err, connect.CodeAborted)
	must(s.deletePauseRule(t.Context(), &carillonv1.DeletePauseRuleRequest{Id: "freeze", ExpectedVersion: 1, ResumeRule: none}))
	if gone := s.b.rules["freeze"]; !gone.Deleted || gone.Pause.Resume != 1 || len(gone.Labels) != 0 {
		t.Errorf("the tombstone is %v", gone)
	}
	for _, err := range []error{
		second(s.getPauseRule(t.Context(), &carillonv1.GetPauseRuleRequest{Id: "freeze"})),
		second(s.deletePauseRule(t.Context(), &carillonv1.DeletePauseRuleRequest{Id: "freeze"})),
	} {
		wantCode(t, err, connect.CodeNotFound)
	}
}

func TestPauseRulesAreChecked(t *testing.T) {
	s := newScene(t, 1)
	for field, rule := range map[string]*carillonv1.PauseRule{
		"rule":             nil,
		"rule.label":       {},
		"rule.id":          {Id: "a/b", Label: []string{"k"}},
		"rule.tenant":      {Tenant: "a b", Label: []string{"k"}},
		"rule.paused_by":   {PausedBy: chars(257), Label: []string{"k"}},
		"rule.until":       {Until: timestamppb.New(time.UnixMilli(startMS)), Label: []string{"k"}},
		"rule.resume_rule": {ResumeRule: 9, Label: []string{"k"}},
		"rule.reason":      {Reason: chars(1025), Label: []string{"k"}},
		"rule.version":     {Version: 1, Label: []string{"k"}},
		"rule.over":        {Over: true, Label: []string{"k"}},
		"rule.create_time": {CreateTime: timestamppb.New(time.UnixMilli(startMS)), Label: []string{"k"}},
	} {
		_, err := s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: rule})
		wantViolation(t, err, field)
	}
}

// TestPauseRulesNameAKeyOnce: a filter that contradicts itself would match nothing, and look as if it paused something.
func TestPauseRulesNameAKeyOnce(t *testing.T) {
	s := newScene(t, 1)
	for _, labels := range [][]string{{"a=1", "a=2"}, {"a=1", "a=1"}, {"a", "a=1"}, {"a=1", "b", "a"}} {
		_, err := s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: &carillonv1.PauseRule{Label: labels}})
		wantViolation(t, err, "rule.label")
	}
	must(s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{Rule: &carillonv1.PauseRule{Label: []string{"a=1", "b=1", "c"}}}))
}

// TestPauseRulesAreBounded: as many as may stand; the retry of a create is none more, and a deleted one makes room.
func TestPauseRulesAreBounded(t *testing.T) {
	s := newScene(t, 1)
	create := func(i int) error {
		_, err := s.createPauseRule(t.Context(), &carillonv1.CreatePauseRuleRequest{
			Rule: &carillonv1.PauseRule{Id: fmt.Sprint("r", i), Label: []string{"k"}},
		})
		return err
	}
	for i := range 1000 {
		if err := create(i); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, create(1000), connect.CodeFailedPrecondition)
	if err := create(999); err != nil {
		t.Errorf("the retry of the last one: %v", err)
	}
	must(s.deletePauseRule(t.Context(), &carillonv1.DeletePauseRuleRequest{Id: "r7"}))
	if err := create(1000); err != nil {
		t.Errorf("after one was deleted: %v", err)
	}
}

// TestPausedByWhomUntilWhen: of a job, a queue and a tenant alike.
func TestPausedByWhomUntilWhen(t *testing.T) {
	s := newScene(t, 1)
	until := timestamppb.New(time.UnixMilli(startMS + 60_000))
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: every(&carillonv1.Every{Interval: durationpb.New(time.Hour)})})
	j := must(s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{
		Id: "j", Reason: "why", PausedBy: "ann", Until: until, ResumeRule: none, IdempotencyKey: "k",
	})).Job
	if j.PausedBy != "ann" || !proto.Equal(j.PauseUntil, until) || j.ResumeRule != none || j.PauseReason != "why" {
		t.Errorf("paused %v", j)
	}
	_, err := s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{Id: "j", Until: timestamppb.New(time.UnixMilli(startMS - 1))})
	answer, _ := callError(err)
	wantViolation(t, answer, "until")
	queue := func(patch *carillonv1.QueuePatch, paths ...string) *carillonv1.Queue {
		t.Helper()
		return must(s.updateQueue(t.Context(), &carillonv1.UpdateQueueRequest{
			Name: "q", Queue: patch, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
		})).Queue
	}
	yes, no, reason, by, rule := true, false, "why", "ann", latest
	must(s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "q"}}))
	q := queue(&carillonv1.QueuePatch{Paused: &yes, PauseReason: &reason, PausedBy: &by, PauseUntil: until, ResumeRule: &rule})
	if !q.Paused || q.PausedBy != by || !proto.Equal(q.PauseUntil, until) || q.ResumeRule != latest {
		t.Errorf("paused %v", q)
	}
	if q = queue(&carillonv1.QueuePatch{}, "labels"); !q.Paused || q.PausedBy != by || q.PauseReason != reason {
		t.Errorf("an unrelated change made it %v", q)
	}
	must(s.createTenant(t.Context(), &carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{
		Name: "acme", Paused: true, PausedBy: by, PauseUntil: until, ResumeRule: none,
	}}))
	s.b.pass(60_000)
	if j := s.job("j"); j.State != carillonv1.JobState_JOB_STATE_ACTIVE || j.PausedBy != "" || j.Version != 3 {
		t.Errorf("its pause has ended: %v", j)
	}
	first := must(s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{
		Id: "j", Reason: "why", PausedBy: "ann", Until: until, ResumeRule: none, IdempotencyKey: "k",
	})).Job
	if first.Version != 2 || first.State != carillonv1.JobState_JOB_STATE_PAUSED {
		t.Errorf("the retry of a pause that has ended got %v", first)
	}
	if q := must(s.getQueue(t.Context(), &carillonv1.GetQueueRequest{Name: "q"})).Queue; q.Paused || q.PausedBy != "" || q.PauseReason != "" {
		t.Errorf("its pause has ended: %v", q)
	}
	if tenant := must(s.getTenant(t.Context(), &carillonv1.GetTenantRequest{Name: "acme"})).Tenant; tenant.Paused || tenant.PauseUntil != nil {
		t.Errorf("its pause has ended: %v", tenant)
	}
	if q = queue(&carillonv1.QueuePatch{Paused: &yes}); !q.Paused || q.PauseUntil != nil || q.PausedBy != "" || q.ResumeRule != 0 {
		t.Errorf("paused anew %v", q)
	}
	if q = queue(&carillonv1.QueuePatch{Paused: &no, ResumeRule: &rule}); q.Paused || s.b.queues["q"].Pause.Resume != 2 {
		t.Errorf("resumed by another rule: %v, kept as %v", q, s.b.queues["q"])
	}
}

// TestPreviewResume counts the instants of a cron job far beyond what its row knows of them.
func TestPreviewResume(t *testing.T) {
	s := newScene(t, 1)
	s.create(&carillonv1.JobSpec{Id: "j", Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Cron{Cron: &carillonv1.Cron{
		Lines: []string{"* * * * *"},
	}}}})
	must(s.pauseJob(t.Context(), &carillonv1.PauseJobRequest{Id: "j", ResumeRule: none}))
	s.b.pass(500 * 60_000)
	preview := func(rule carillonv1.CatchUp) *carillonv1.PreviewResumeResponse {
		return must(s.previewResume(t.Context(), &carillonv1.PreviewResumeRequest{Id: "j", ResumeRule: rule}))
	}
	if p := preview(0); p.Fired != 0 || len(p.Skipped) != 1 || p.Skipped[0].Why != "skipped_paused" || p.Skipped[0].Count != 500 {
		t.Errorf("by the pause's rule: %v", p)
	}
	if p := preview(latest); p.Fired != 1 || len(p.Skipped) != 1 || p.Skipped[0].Why != "coalesced" || p.Skipped[0].Count != 499 {
		t.Errorf("by another: %v", p)
	}
	s.b.now += 2 * maxPreviewInstants * 60_000
	if p := preview(carillonv1.CatchUp_CATCH_UP_ALL); !p.IsMore || p.Fired < maxPreviewInstants {
		t.Errorf("of more than are counted: %v", p)
	}
	for _, req := range []*carillonv1.PreviewResumeRequest{{Id: "j", ResumeRule: 9}, {Id: ""}} {
		wantCode(t, second(s.previewResume(t.Context(), req)), connect.CodeInvalidArgument)
	}
	wantCode(t, second(s.previewResume(t.Context(), &carillonv1.PreviewResumeRequest{Id: "nobody"})), connect.CodeNotFound)
}
