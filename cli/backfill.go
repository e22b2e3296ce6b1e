package cli

import (
	"context"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) backfillCommands() []*cli.Command {
	return []*cli.Command{
		p.calling(cli.Command{
			Name: "backfill", Usage: "run the occurrences of a past time range, apart from the schedule", ArgsUsage: "ID",
			Description: "Each nominal instant in the range gets an execution of its own, whether it ran or not. Repeating it with the same " +
				"--id\nmakes none twice, and tells how far it is.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "from", Required: true, Usage: "first `WHEN`: an instant, a day or a time in the job's zone, or -2h"},
				&cli.StringFlag{Name: "to", Required: true, Usage: "last `WHEN`, not in the future; a day is included"},
				&cli.StringFlag{Name: "id", Usage: "`ID` of the backfill (default: a random one)"},
				&cli.StringFlag{Name: "overlap", Usage: "`RULE` is allow (all at once) or queue-all (one after the other)"},
				&cli.Int64Flag{Name: "max", Usage: "refuse a range of more than `N` occurrences", DefaultText: "1000"},
				&cli.Int64Flag{Name: "priority", Usage: "`N` from 0 to 9 in place of the job's"},
			},
		}, p.backfillJob),
		p.calling(cli.Command{
			Name: "cancel-backfill", Usage: "end a backfill: what it has not made is not made", ArgsUsage: "ID",
			Flags: []cli.Flag{&cli.StringFlag{Name: "id", Required: true, Usage: "`ID` of the backfill"}},
		}, p.cancelBackfill),
	}
}

func (p *program) backfillJob(ctx context.Context, c *call) error {
	req := &carillonv1.BackfillJobRequest{Id: c.Args().First(), Tenant: c.tenant, BackfillId: c.String("id")}
	overlap, err := parseEnum(c.Context, "overlap", "OVERLAP_", carillonv1.Overlap_value)
	if err != nil {
		return err
	}
	req.Overlap = carillonv1.Overlap(overlap)
	if req.From, req.FromLocal, err = spanFlag(c, "from"); err != nil {
		return err
	}
	if req.To, req.ToLocal, err = spanFlag(c, "to"); err != nil {
		return err
	}
	most, err := uint32Flag(c.Context, "max")
	if err != nil {
		return err
	}
	if most != nil {
		if *most == 0 {
			return usage(c.Context, "--max must be at least 1")
		}
		req.MaxOccurrences = *most
	}
	if req.Priority, err = uint32Flag(c.Context, "priority"); err != nil {
		return err
	}
	task, err := c.client.BackfillJob(ctx, req)
	return p.showTask(c, "made", task, err)
}

func (p *program) cancelBackfill(ctx context.Context, c *call) error {
	task, err := c.client.CancelBackfill(ctx, &carillonv1.CancelBackfillRequest{
		Id: c.Args().First(), Tenant: c.tenant, BackfillId: c.String("id"),
	})
	return p.showTask(c, "made", task, err)
}
