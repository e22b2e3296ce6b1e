package cli

import (
	"context"
	"slices"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) putCommand() *cli.Command {
	return p.calling(cli.Command{
		Name: "put", Usage: "make a job be what the flags say, whether it exists or not", ArgsUsage: "ID",
		Description: "The whole definition: what is left out takes its default. Repeated, it changes nothing. A schedule that is the " +
			"same keeps\nwhat is pending, and a paused job stays paused.",
		Flags: slices.Concat([]cli.Flag{
			expectedFlag(),
			&cli.BoolFlag{Name: "must-not-exist", Usage: "fail if the job exists"},
			&cli.StringFlag{Name: "idempotency-key", Usage: "`KEY` that gets a retry the first answer (default: a random one)"},
		}, specFlags()),
	}, p.putJob)
}

func (p *program) putJob(ctx context.Context, c *call) error {
	spec, err := p.spec(c.Context, nil)
	if err != nil {
		return err
	}
	if spec.GetSchedule() == nil {
		return usage(c.Context, "a schedule is needed: see --at, --in and --every")
	}
	res, err := c.client.PutJob(ctx, &carillonv1.PutJobRequest{
		Id: c.Args().First(), Tenant: c.tenant, Job: spec, ExpectedVersion: c.Uint64("expected-version"),
		MustNotExist: c.Bool("must-not-exist"), IdempotencyKey: c.String("idempotency-key"),
	})
	if err != nil {
		return err
	}
	return c.print.message(res, func() [][]string {
		return append(jobRows(res.GetJob()), []string{"outcome", enum(res.GetOutcome(), "PUT_OUTCOME_")})
	})
}
