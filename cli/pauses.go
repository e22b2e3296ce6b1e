package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// pauseFlags are what is said of a pause.
func pauseFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "reason", Usage: "`WHY` it is paused, for people"},
		&cli.StringFlag{Name: "by", Usage: "`WHO` pauses it, for people", DefaultText: "user@host"},
		&cli.StringFlag{
			Name: "until", Usage: "let it resume by itself at this `INSTANT`, or after a duration: 36h", DefaultText: "when it is resumed",
		},
		&cli.StringFlag{
			Name: "resume", DefaultText: "each job's catch-up rule",
			Usage: "`RULE` for what recurring jobs miss meanwhile: none, latest or all",
		},
	}
}

// ruleFlag names another rule when a pause ends.
func ruleFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "rule", Usage: "`RULE` for what recurring jobs have missed: none, latest or all", DefaultText: "as the pause says",
	}
}

// pauseSaid is what the flags say of a pause.
type pauseSaid struct {
	reason, by string
	until      *timestamppb.Timestamp
	resume     carillonv1.CatchUp
}

func readPause(c *cli.Context) (p pauseSaid, err error) {
	p.reason, p.by = c.String("reason"), c.String("by")
	if !c.IsSet("by") {
		p.by = whoAmI()
	}
	if p.until, err = instantFlag(c, "until"); err != nil {
		return p, err
	}
	p.resume, err = catchUpFlag(c, "resume")
	return p, err
}

func catchUpFlag(c *cli.Context, name string) (carillonv1.CatchUp, error) {
	rule, err := parseEnum(c, name, "CATCH_UP_", carillonv1.CatchUp_value)
	return carillonv1.CatchUp(rule), err
}

// whoAmI is user@host, as far as they are known.
func whoAmI() string {
	var parts []string
	if u, err := user.Current(); err == nil {
		parts = append(parts, u.Username)
	}
	if host, err := os.Hostname(); err == nil {
		parts = append(parts, host)
	}
	return strings.Join(parts, "@")
}

func (p *program) pauseCommand() *cli.Command {
	return &cli.Command{
		Name: "pause", Usage: "pause all jobs that have certain labels",
		Description: "A rule pauses every job that has all of its labels, those to come among them, until it is deleted. What\n" +
			"runs goes on. Single jobs, queues and tenants have a pause command of their own.",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{
				Name: "create", Usage: "pause what has these labels, from now on",
				Flags: append([]cli.Flag{
					&cli.StringFlag{Name: "id", Usage: "`ID` of the rule (default: a random one)"},
					&cli.StringSliceFlag{Name: "label", Usage: "only jobs with this `KEY=VALUE`, or KEY; repeatable"},
					&cli.BoolFlag{Name: "all-tenants", Usage: "of all tenants, not only of --tenant"},
				}, pauseFlags()...),
			}, p.createPauseRule),
			p.calling(cli.Command{Name: "get", Usage: "show a rule", ArgsUsage: "ID"}, p.getPauseRule),
			p.calling(cli.Command{
				Name: "list", Usage: "list the rules of all tenants", Flags: []cli.Flag{limitFlag()},
			}, p.listPauseRules),
			p.calling(cli.Command{
				Name: "delete", Usage: "end a pause: what it stopped goes on", ArgsUsage: "ID",
				Flags: []cli.Flag{ruleFlag(), expectedFlag()},
			}, p.deletePauseRule),
		},
	}
}

func (p *program) createPauseRule(ctx context.Context, c *call) error {
	said, err := readPause(c.Context)
	if err != nil {
		return err
	}
	if !c.IsSet("label") {
		return usage(c.Context, "--label is missing: a rule names at least one")
	}
	rule := &carillonv1.PauseRule{
		Id: c.String("id"), Tenant: cmp.Or(c.tenant, defaultTenant), Label: c.StringSlice("label"), Reason: said.reason, PausedBy: said.by,
		Until: said.until, ResumeRule: said.resume,
	}
	if c.Bool("all-tenants") {
		rule.Tenant = ""
	}
	res, err := c.client.CreatePauseRule(ctx, &carillonv1.CreatePauseRuleRequest{Rule: rule})
	if err != nil {
		return err
	}
	return p.showPauseRule(c, res.GetRule(), res.GetPendingShards())
}

func (p *program) showPauseRule(c *call, r *carillonv1.PauseRule, pending []uint32) error {
	err := c.print.message(r, func() [][]string {
		return [][]string{
			{"id", r.GetId()}, {"tenant", orAll(r.GetTenant())}, {"labels", strings.Join(r.GetLabel(), " ")},
			{"reason", orDash(r.GetReason())}, {"paused by", orDash(r.GetPausedBy())}, {"until", instant(r.GetUntil())},
			{"resume rule", ruleText(r.GetResumeRule())}, {"over", fmt.Sprint(r.GetOver())}, {"created", instant(r.GetCreateTime())},
			{"version", fmt.Sprint(r.GetVersion())},
		}
	})
	if err != nil {
		return err
	}
	return p.sayPending(pending)
}

func orAll(tenant string) string {
	if tenant == "" {
		return "(all)"
	}
	return tenant
}

// pausedRows show what is known of a pause besides its reason.
func pausedRows(by string, until *timestamppb.Timestamp, rule carillonv1.CatchUp) [][]string {
	return [][]string{{"paused by", orDash(by)}, {"paused until", instant(until)}, {"resume rule", ruleText(rule)}}
}

// ruleText is a rule for what was missed in a pause.
func ruleText(rule carillonv1.CatchUp) string {
	if rule == carillonv1.CatchUp_CATCH_UP_UNSPECIFIED {
		return "-"
	}
	return enum(rule, "CATCH_UP_")
}

func (p *program) getPauseRule(ctx context.Context, c *call) error {
	rule, err := c.client.GetPauseRule(ctx, &carillonv1.GetPauseRuleRequest{Id: c.Args().First()})
	if err != nil {
		return err
	}
	return p.showPauseRule(c, rule, nil)
}

func (p *program) listPauseRules(ctx context.Context, c *call) error {
	rules := c.client.ListPauseRules(ctx, &carillonv1.ListPauseRulesRequest{PageSize: pageSize(c.Int("limit"))})
	header := []string{"ID", "TENANT", "LABELS", "REASON", "PAUSED BY", "UNTIL", "RESUME RULE", "OVER"}
	more, err := list(c.print, "rules", rules, c.Int("limit"), header, func(r *carillonv1.PauseRule) []string {
		return []string{
			r.GetId(), orAll(r.GetTenant()), strings.Join(r.GetLabel(), " "), orDash(firstLine(r.GetReason())),
			orDash(r.GetPausedBy()), instant(r.GetUntil()), ruleText(r.GetResumeRule()), fmt.Sprint(r.GetOver()),
		}
	})
	if err != nil {
		return err
	}
	return p.sayMore(c, more)
}

func (p *program) deletePauseRule(ctx context.Context, c *call) error {
	rule, err := catchUpFlag(c.Context, "rule")
	if err != nil {
		return err
	}
	res, err := c.client.DeletePauseRule(ctx, &carillonv1.DeletePauseRuleRequest{
		Id: c.Args().First(), ExpectedVersion: c.Uint64("expected-version"), ResumeRule: rule,
	})
	if err != nil {
		return err
	}
	err = c.print.message(res, func() [][]string { return [][]string{{"deleted", c.Args().First()}} })
	if err != nil {
		return err
	}
	return p.sayPending(res.GetPendingShards())
}

// previewResume prints what resuming a job would do.
func (p *program) previewResume(ctx context.Context, c *call, rule carillonv1.CatchUp) error {
	res, err := c.client.PreviewResume(ctx, &carillonv1.PreviewResumeRequest{
		Id: c.Args().First(), Tenant: c.tenant, ResumeRule: rule,
	})
	if err != nil {
		return err
	}
	return c.print.message(res, func() [][]string {
		rows := [][]string{{"would run", fmt.Sprint(res.GetFired())}, {"ready", fmt.Sprint(res.GetHeld())}}
		for _, skipped := range res.GetSkipped() {
			rows = append(rows, []string{whyText(skipped.GetWhy()), fmt.Sprint(skipped.GetCount())})
		}
		if res.GetIsMore() {
			rows = append(rows, []string{"more", "yes: there are more than were counted"})
		}
		if len(res.GetStoppedBy()) > 0 {
			rows = append(rows, []string{"still stopped by", strings.Join(res.GetStoppedBy(), ", ")})
		}
		return rows
	})
}

// whyText is why occurrences got no execution, in the words that the table of occurrences has as verdict and why.
func whyText(why string) string { return strings.ReplaceAll(why, "_", " ") }
