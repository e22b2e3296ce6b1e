package cli

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) tenantsCommand() *cli.Command {
	return &cli.Command{
		Name: "tenants", Usage: "keep settings of tenants",
		Description: "A tenant needs no settings to be used: jobs may name any.",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{
				Name: "create", Usage: "store settings for a tenant that has none", ArgsUsage: "NAME",
				Flags: append(append(pausedFlags(), weightFlag()), settingsFlags()...),
			}, p.createTenant),
			p.calling(cli.Command{Name: "get", Usage: "show a tenant's settings", ArgsUsage: "NAME"}, p.getTenant),
			p.calling(cli.Command{
				Name: "list", Usage: "list tenants that have settings", Flags: []cli.Flag{limitFlag()},
			}, p.listTenants),
			p.calling(cli.Command{
				Name: "update", Usage: "change the named settings", ArgsUsage: "NAME",
				Flags: append([]cli.Flag{expectedFlag(), clearFlag(), weightFlag()}, settingsFlags()...),
			}, p.updateTenant),
			p.calling(cli.Command{
				Name: "pause", Usage: "let nothing of a tenant fire or be handed out", ArgsUsage: "NAME",
				Flags: append(pauseFlags(), expectedFlag()),
			}, p.pauseTenant),
			p.calling(cli.Command{
				Name: "resume", Usage: "undo a pause", ArgsUsage: "NAME", Flags: []cli.Flag{ruleFlag(), expectedFlag()},
			}, p.resumeTenant),
			p.calling(cli.Command{
				Name: "delete", Usage: "delete a tenant with all its jobs, executions and history", ArgsUsage: "NAME",
				Flags: []cli.Flag{expectedFlag()},
			}, p.deleteTenant),
		},
	}
}

func (p *program) createTenant(ctx context.Context, c *call) (err error) {
	t := &carillonv1.Tenant{Name: c.Args().First(), Paused: c.Bool("paused")}
	if t.Paused {
		said, err := readPause(c.Context)
		if err != nil {
			return err
		}
		t.PauseReason, t.PausedBy, t.PauseUntil, t.ResumeRule = said.reason, said.by, said.until, said.resume
	}
	if t.Retention, err = lengthFlag(c.Context, "retention"); err != nil {
		return err
	}
	if t.Labels, err = pairsFlag(c.Context, "label"); err != nil {
		return err
	}
	t.Weight = uint32(c.Uint("weight"))
	res, err := c.client.CreateTenant(ctx, &carillonv1.CreateTenantRequest{Tenant: t})
	if err != nil {
		return err
	}
	return p.showTenant(c, res.GetTenant(), res.GetPendingShards())
}

func (p *program) showTenant(c *call, t *carillonv1.Tenant, pending []uint32) error {
	err := c.print.message(t, func() [][]string {
		rows := [][]string{{"name", t.GetName()}, {"paused", pausedText(t.GetPaused(), t.GetPauseReason())}}
		if t.GetPaused() {
			rows = append(rows, pausedRows(t.GetPausedBy(), t.GetPauseUntil(), t.GetResumeRule())...)
		}
		return append(rows, [][]string{
			{"deleting", fmt.Sprint(t.GetDeleting())}, {"retention", length(t.GetRetention())},
			{"weight", fmt.Sprint(max(t.GetWeight(), 1))},
			{"labels", orDash(pairsText(t.GetLabels()))}, {"version", fmt.Sprint(t.GetVersion())},
			{"created", instant(t.GetCreateTime())}, {"updated", instant(t.GetUpdateTime())},
		}...)
	})
	if err != nil {
		return err
	}
	return p.sayPending(pending)
}

func (p *program) getTenant(ctx context.Context, c *call) error {
	t, err := c.client.GetTenant(ctx, &carillonv1.GetTenantRequest{Name: c.Args().First()})
	if err != nil {
		return err
	}
	return p.showTenant(c, t, nil)
}

func (p *program) listTenants(ctx context.Context, c *call) error {
	tenants := c.client.ListTenants(ctx, &carillonv1.ListTenantsRequest{PageSize: pageSize(c.Int("limit"))})
	header := []string{"NAME", "PAUSED", "DELETING", "RETENTION", "VERSION"}
	more, err := list(c.print, "tenants", tenants, c.Int("limit"), header, func(t *carillonv1.Tenant) []string {
		return []string{
			t.GetName(), pausedText(t.GetPaused(), t.GetPauseReason()), fmt.Sprint(t.GetDeleting()),
			length(t.GetRetention()), fmt.Sprint(t.GetVersion()),
		}
	})
	if err != nil {
		return err
	}
	return p.sayMore(c, more)
}

func (p *program) updateTenant(ctx context.Context, c *call) (err error) {
	patch := &carillonv1.TenantPatch{}
	if patch.Retention, err = lengthFlag(c.Context, "retention"); err != nil {
		return err
	}
	if patch.Labels, err = pairsFlag(c.Context, "label"); err != nil {
		return err
	}
	if c.IsSet("weight") {
		patch.Weight = new(uint32(c.Uint("weight")))
	}
	mask, err := settingsMask(c, "retention", "labels", "weight")
	if err != nil {
		return err
	}
	return p.changeTenant(ctx, c, patch, mask)
}

func (p *program) pauseTenant(ctx context.Context, c *call) error {
	said, err := readPause(c.Context)
	if err != nil {
		return err
	}
	patch := &carillonv1.TenantPatch{
		Paused: new(true), PauseReason: &said.reason, PausedBy: &said.by, PauseUntil: said.until, ResumeRule: &said.resume,
	}
	return p.changeTenant(ctx, c, patch, pauseMask())
}

func (p *program) resumeTenant(ctx context.Context, c *call) error {
	patch := &carillonv1.TenantPatch{Paused: new(false)}
	rule, err := catchUpFlag(c.Context, "rule")
	if err != nil {
		return err
	}
	if c.IsSet("rule") {
		patch.ResumeRule = &rule
	}
	return p.changeTenant(ctx, c, patch, nil)
}

func (p *program) changeTenant(
	ctx context.Context, c *call, patch *carillonv1.TenantPatch, mask *fieldmaskpb.FieldMask,
) error {
	res, err := c.client.UpdateTenant(ctx, &carillonv1.UpdateTenantRequest{
		Name: c.Args().First(), Tenant: patch, UpdateMask: mask, ExpectedVersion: c.Uint64("expected-version"),
	})
	if err != nil {
		return sayCreate(c, "tenants", err)
	}
	return p.showTenant(c, res.GetTenant(), res.GetPendingShards())
}

func (p *program) deleteTenant(ctx context.Context, c *call) error {
	task, err := c.client.DeleteTenant(ctx, &carillonv1.DeleteTenantRequest{
		Name: c.Args().First(), ExpectedVersion: c.Uint64("expected-version"),
	})
	return p.showTask(c, "deleted", task, err)
}
