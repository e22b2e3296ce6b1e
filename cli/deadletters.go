package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) deadLettersCommand() *cli.Command {
	selection := func() []cli.Flag {
		return []cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "all of the tenant"},
			&cli.StringFlag{Name: "queue", Usage: "all in this `QUEUE`"},
			&cli.StringFlag{Name: "job", Usage: "all of the job with this `ID`"},
			&cli.StringFlag{Name: "before", Usage: "all that died before this `INSTANT` (RFC 3339)"},
			&cli.StringFlag{Name: "error-contains", Usage: "all whose error contains `TEXT`"},
			&cli.StringFlag{Name: "request-id", Usage: "`ID` of the task, to ask again how far it is (default: a random one)"},
		}
	}
	return &cli.Command{
		Name: "dead-letters", Usage: "look after executions that failed for good",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{
				Name: "list", Usage: "list dead letters",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "job", Usage: "only of the job with this `ID`"},
					&cli.StringFlag{Name: "queue", Usage: "only in this `QUEUE`"},
					limitFlag(),
				},
			}, p.listDeadLetters),
			p.calling(cli.Command{
				Name: "requeue", Usage: "make dead letters ready again, with a fresh attempt budget", ArgsUsage: "[ID...]",
				Flags: selection(),
			}, p.requeueDeadLetters),
			p.calling(cli.Command{
				Name: "purge", Usage: "remove dead letters for good", ArgsUsage: "[ID...]", Flags: selection(),
			}, p.purgeDeadLetters),
		},
	}
}

func (p *program) listDeadLetters(ctx context.Context, c *call) error {
	return p.printExecutions(ctx, c, "deadLetters", &carillonv1.ListExecutionsRequest{
		State: carillonv1.ExecutionState_EXECUTION_STATE_DEAD,
	})
}

func (p *program) requeueDeadLetters(ctx context.Context, c *call) error {
	ids, filter, err := deadLetters(c)
	if err != nil {
		return err
	}
	task, err := c.client.RequeueDeadLetters(ctx, &carillonv1.RequeueDeadLettersRequest{
		ExecutionIds: ids, Filter: filter, RequestId: c.String("request-id"),
	})
	return p.showTask(c, "requeued", task, err)
}

func (p *program) purgeDeadLetters(ctx context.Context, c *call) error {
	ids, filter, err := deadLetters(c)
	if err != nil {
		return err
	}
	task, err := c.client.PurgeDeadLetters(ctx, &carillonv1.PurgeDeadLettersRequest{
		ExecutionIds: ids, Filter: filter, RequestId: c.String("request-id"),
	})
	return p.showTask(c, "purged", task, err)
}

// deadLetters are the ids given or the filter that the flags make; one of them must be there, and nothing means all but
// --all.
func deadLetters(c *call) ([]string, *carillonv1.DeadLetterFilter, error) {
	filtered := slices.ContainsFunc([]string{"all", "queue", "job", "before", "error-contains"}, c.IsSet)
	switch ids := c.Args().Slice(); {
	case len(ids) > 0 && filtered:
		return nil, nil, usage(c.Context, "ids and filters exclude each other")
	case len(ids) > 0:
		return ids, nil, nil
	case !filtered:
		return nil, nil, usage(c.Context, "name ids, a filter or --all")
	}
	before, err := instantFlag(c.Context, "before")
	if err != nil {
		return nil, nil, err
	}
	return nil, &carillonv1.DeadLetterFilter{
		Tenant: c.tenant, Queue: c.String("queue"), JobId: c.String("job"), DeadBefore: before,
		ErrorContains: c.String("error-contains"),
	}, nil
}

// showTask prints how far a task came. If the wait for it ended early the task goes on, and its id tells it again.
func (p *program) showTask(c *call, done string, task *carillonv1.Task, err error) error {
	if task == nil {
		return err
	}
	shown := c.print.message(task, func() [][]string {
		return [][]string{
			{done, fmt.Sprint(task.GetDoneCount())}, {"seen", fmt.Sprint(task.GetSeenCount())},
			{"finished", fmt.Sprint(task.GetFinished())}, {"task", task.GetId()},
		}
	})
	if err != nil {
		return fmt.Errorf("the task goes on, ask again with its id: %w", err)
	}
	return shown
}
