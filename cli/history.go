package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// jobHistory prints a job's history: as one document with the three lists of the API, or as a table with a line per
// attempt. At most --limit entries are read, so that they can be put together.
func (p *program) jobHistory(ctx context.Context, c *call) error {
	all, more, err := readHistory(ctx, c)
	if err != nil {
		return err
	}
	if err := c.print.message(all, func() [][]string { return historyRows(all) }); err != nil {
		return err
	}
	if err := p.sayResult(c, all); err != nil {
		return err
	}
	return p.sayMore(c, more)
}

// sayResult tells a person how to see what the table has no room for, by the newest execution that a worker got.
func (p *program) sayResult(c *call, h *carillonv1.GetJobHistoryResponse) error {
	executions := h.GetExecutions()
	for i := len(executions) - 1; i >= 0 && !c.print.json; i-- {
		if e := executions[i]; len(e.GetAttempts()) > 0 {
			_, err := fmt.Fprintln(p.stderr, "Result: carillon executions get "+e.GetId())
			return err
		}
	}
	return nil
}

// maxHistory bounds what is put together without a limit.
const maxHistory = 100_000

func readHistory(ctx context.Context, c *call) (all *carillonv1.GetJobHistoryResponse, more bool, err error) {
	limit := c.Int("limit")
	if limit <= 0 {
		limit = maxHistory
	}
	all = &carillonv1.GetJobHistoryResponse{}
	req := &carillonv1.GetJobHistoryRequest{
		Id: c.Args().First(), Tenant: c.tenant, PageSize: int32(min(limit, 1000)),
	}
	for page, err := range c.client.GetJobHistory(ctx, req) {
		if err != nil {
			return nil, false, err
		}
		all.Executions = append(all.Executions, page.GetExecutions()...)
		all.Verdicts = append(all.Verdicts, page.GetVerdicts()...)
		all.LateAttempts = append(all.LateAttempts, page.GetLateAttempts()...)
		n := len(all.GetExecutions()) + len(all.GetVerdicts()) + len(all.GetLateAttempts())
		if n >= limit && page.GetNextPageToken() != "" {
			all.NextPageToken = page.GetNextPageToken()
			return all, true, nil
		}
	}
	return all, false, nil
}

func historyRows(h *carillonv1.GetJobHistoryResponse) [][]string {
	slices.SortStableFunc(h.GetExecutions(), func(a, b *carillonv1.Execution) int {
		return cmp.Compare(a.GetNominalTime().AsTime().UnixNano(), b.GetNominalTime().AsTime().UnixNano())
	})
	clock := localColumn{}
	for _, e := range h.GetExecutions() {
		clock.see(e.GetNominalTime(), e.GetNominalLocal())
	}
	for _, v := range h.GetVerdicts() {
		clock.see(v.GetFrom(), v.GetFromLocal())
	}
	rows := [][]string{append(clock.header("NOMINAL"), "KIND", "STATE", "ATTEMPT", "STARTED", "LATE", "ENDED", "OUTCOME", "WORKER", "ERROR")}
	for _, e := range h.GetExecutions() {
		head := append(clock.cells(e.GetNominalTime(), e.GetNominalLocal()), enum(e.GetKind(), "EXECUTION_KIND_"),
			enum(e.GetState(), "EXECUTION_STATE_"))
		if len(e.GetAttempts()) == 0 {
			rows = append(rows, append(head, "-", "-", "-", "-", "-", "-", firstLine(e.GetError())))
		}
		for _, a := range e.GetAttempts() {
			rows = append(rows, append(head, attemptCells(a, e.GetNominalTime())...))
			// Further attempts belong to the same line.
			head = make([]string, len(head))
		}
	}
	for _, v := range h.GetVerdicts() {
		rows = append(rows, append(clock.cells(v.GetFrom(), v.GetFromLocal()), "range", whyText(v.GetWhy()),
			fmt.Sprintf("%d until", v.GetCount()), instant(v.GetTo())))
	}
	for _, l := range h.GetLateAttempts() {
		rows = append(rows, append(clock.cells(l.GetRecordTime(), "-"), "late", "refused", "-", "-", "-", "-",
			enum(l.GetOutcome(), "OUTCOME_"), orDash(l.GetWorker()), firstLine(l.GetError())))
	}
	return rows
}

// attemptCells are an attempt's cells in a table; its instants are without their day if that is the nominal time's.
func attemptCells(a *carillonv1.Attempt, nominal *timestamppb.Timestamp) []string {
	outcome := "running"
	if a.GetOutcome() != carillonv1.Outcome_OUTCOME_UNSPECIFIED {
		outcome = enum(a.GetOutcome(), "OUTCOME_")
	}
	return []string{
		fmt.Sprint(a.GetNumber()), instantOf(nominal, a.GetStartTime()), length(a.GetLateness()), instantOf(nominal, a.GetEndTime()),
		outcome,
		orDash(a.GetWorker()), firstLine(a.GetError()),
	}
}
