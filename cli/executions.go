package cli

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) executionsCommand() *cli.Command {
	return &cli.Command{
		Name: "executions", Usage: "look at executions and cancel them",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{Name: "get", Usage: "show an execution with its attempts", ArgsUsage: "ID"}, p.getExecution),
			p.calling(cli.Command{
				Name: "list", Usage: "list executions",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "job", Usage: "only of the job with this `ID`"},
					&cli.StringFlag{Name: "queue", Usage: "only in this `QUEUE`"},
					&cli.StringFlag{Name: "state", Usage: "only in this `STATE`: waiting, ready, leased, retrying, succeeded, " +
						"dead, cancelled, expired or skipped"},
					&cli.StringFlag{Name: "kind", Usage: "only of this `KIND`: schedule, trigger or backfill"},
					limitFlag(),
				},
			}, p.listExecutions),
			p.calling(cli.Command{
				Name: "cancel", Usage: "end an execution, or ask the worker that holds it to stop", ArgsUsage: "ID",
				Flags: []cli.Flag{&cli.StringFlag{Name: "reason", Usage: "`WHY`, for people"}},
			}, p.cancelExecution),
		},
	}
}

func (p *program) getExecution(ctx context.Context, c *call) error {
	e, err := c.client.GetExecution(ctx, &carillonv1.GetExecutionRequest{Id: c.Args().First()})
	if err != nil {
		return err
	}
	return p.showExecution(c, e)
}

func (p *program) cancelExecution(ctx context.Context, c *call) error {
	e, err := c.client.CancelExecution(ctx, &carillonv1.CancelExecutionRequest{
		Id: c.Args().First(), Reason: c.String("reason"),
	})
	if err != nil {
		return err
	}
	return p.showExecution(c, e)
}

// showExecution prints an execution and, in a table of their own, its attempts.
func (p *program) showExecution(c *call, e *carillonv1.Execution) error {
	if err := c.print.message(e, func() [][]string { return executionRows(e) }); err != nil || c.print.json {
		return err
	}
	if len(e.GetAttempts()) == 0 {
		return nil
	}
	rows := [][]string{{"ATTEMPT", "STARTED", "LATE", "ENDED", "OUTCOME", "WORKER", "ERROR"}}
	for _, a := range e.GetAttempts() {
		rows = append(rows, attemptCells(a, e.GetNominalTime()))
	}
	if _, err := fmt.Fprintln(p.stdout); err != nil {
		return err
	}
	return c.print.table(rows)
}

func executionRows(e *carillonv1.Execution) [][]string {
	rows := [][]string{
		{"id", e.GetId()}, {"job", e.GetJobId()}, {"tenant", e.GetTenant()}, {"queue", e.GetQueue()},
		{"kind", enum(e.GetKind(), "EXECUTION_KIND_")}, {"state", enum(e.GetState(), "EXECUTION_STATE_")},
		{"nominal", instant(e.GetNominalTime())},
		{"attempt", fmt.Sprintf("%d of %d", e.GetAttempt(), e.GetMaxAttempts())},
	}
	for _, row := range [][]string{
		{"next", instant(e.GetNextTime())}, {"started", instant(e.GetStartTime())}, {"late", length(e.GetLateness())},
		{"finished", instant(e.GetFinishTime())}, {"worker", e.GetWorker()}, {"lease ends", instant(e.GetDeadline())},
		{"result", data(e.GetResult())}, {"error", firstLine(e.GetError())}, {"progress", data(e.GetProgress())},
	} {
		if row[1] != "" && row[1] != "-" {
			rows = append(rows, row)
		}
	}
	if e.GetCancelRequested() {
		rows = append(rows, []string{"cancel", "requested"})
	}
	return rows
}

func (p *program) listExecutions(ctx context.Context, c *call) error {
	state, err := parseEnum(c.Context, "state", "EXECUTION_STATE_", carillonv1.ExecutionState_value)
	if err != nil {
		return err
	}
	kind, err := parseEnum(c.Context, "kind", "EXECUTION_KIND_", carillonv1.ExecutionKind_value)
	if err != nil {
		return err
	}
	return p.printExecutions(ctx, c, "executions", &carillonv1.ListExecutionsRequest{
		State: carillonv1.ExecutionState(state), Kind: carillonv1.ExecutionKind(kind),
	})
}

// lastWorker is who has an execution, or had its last attempt.
func lastWorker(e *carillonv1.Execution) string {
	if n := len(e.GetAttempts()); e.GetWorker() == "" && n > 0 {
		return e.GetAttempts()[n-1].GetWorker()
	}
	return e.GetWorker()
}

// printExecutions lists what req and the flags --job, --queue and --limit select.
func (p *program) printExecutions(
	ctx context.Context, c *call, name string, req *carillonv1.ListExecutionsRequest,
) error {
	req.Tenant, req.JobId, req.Queue = c.tenant, c.String("job"), c.String("queue")
	req.PageSize = pageSize(c.Int("limit"))
	header := []string{"ID", "QUEUE", "STATE", "NOMINAL", "ATTEMPT", "LATE", "WORKER", "ERROR"}
	more, err := list(c.print, name, c.client.ListExecutions(ctx, req), c.Int("limit"), header,
		func(e *carillonv1.Execution) []string {
			return []string{
				e.GetId(), e.GetQueue(), enum(e.GetState(), "EXECUTION_STATE_"), instant(e.GetNominalTime()),
				fmt.Sprintf("%d/%d", e.GetAttempt(), e.GetMaxAttempts()), length(e.GetLateness()), orDash(lastWorker(e)),
				firstLine(e.GetError()),
			}
		})
	if err != nil {
		return err
	}
	return p.sayMore(c, more)
}
