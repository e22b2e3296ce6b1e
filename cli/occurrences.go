package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) occurrencesCommand() *cli.Command {
	return p.calling(cli.Command{
		Name: "occurrences", Usage: "show each occurrence of a time range with its verdict: why did it not run?", ArgsUsage: "ID",
		Description: "Without --from it begins with the first that is kept, without --to it ends with the next that is pending.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "from", Usage: "none before this `WHEN`: an instant, a day or a time in the job's zone, or -2h"},
			&cli.StringFlag{Name: "to", Usage: "none after this `WHEN`; a day is included"},
			&cli.BoolFlag{Name: "all-kinds", Usage: "also what was triggered and backfilled"},
			limitFlag(),
		},
	}, p.jobOccurrences)
}

// jobOccurrences prints occurrences as one document, or as a table with a line for each.
func (p *program) jobOccurrences(ctx context.Context, c *call) error {
	req := &carillonv1.ListOccurrencesRequest{Id: c.Args().First(), Tenant: c.tenant, AllKinds: c.Bool("all-kinds")}
	var err error
	if req.From, req.FromLocal, err = spanFlag(c, "from"); err != nil {
		return err
	}
	if req.To, req.ToLocal, err = spanFlag(c, "to"); err != nil {
		return err
	}
	limit := c.Int("limit")
	if limit <= 0 {
		limit = maxHistory
	}
	all := &carillonv1.ListOccurrencesResponse{}
	more := false
	req.PageSize = pageSize(limit)
	for page, err := range c.client.ListOccurrences(ctx, req) {
		if err != nil {
			return err
		}
		all.Occurrences = append(all.Occurrences, page.GetOccurrences()...)
		all.KnownFrom, all.KnownTo, all.NextPageToken = page.GetKnownFrom(), page.GetKnownTo(), page.GetNextPageToken()
		if n := len(all.GetOccurrences()); n > limit || n == limit && page.GetNextPageToken() != "" {
			all.Occurrences, more = all.GetOccurrences()[:limit], true
			break
		}
	}
	if err := c.print.message(all, func() [][]string { return occurrenceRows(all) }); err != nil {
		return err
	}
	if err := p.sayKnown(c, all, more); err != nil {
		return err
	}
	return p.sayMore(c, more)
}

// sayKnown tells a person where the list has no say.
func (p *program) sayKnown(c *call, all *carillonv1.ListOccurrencesResponse, more bool) error {
	var text strings.Builder
	if t := all.GetKnownFrom(); t != nil {
		fmt.Fprintf(&text, "Of what was before %s some may be missing: it is not kept, or the job did not exist.\n", instant(t))
	}
	if t := all.GetKnownTo(); t != nil && !more {
		fmt.Fprintf(&text, "What fires after %s is not computed yet.\n", instant(t))
	}
	if c.print.json || text.Len() == 0 {
		return nil
	}
	_, err := fmt.Fprint(p.stderr, text.String())
	return err
}

func occurrenceRows(all *carillonv1.ListOccurrencesResponse) [][]string {
	clock := localColumn{}
	for _, o := range all.GetOccurrences() {
		clock.see(o.GetTime(), o.GetLocal())
	}
	rows := [][]string{append(clock.header("TIME"), "VERDICT", "WHY", "STATE", "STARTED", "LATE", "ENDED", "EXECUTION")}
	for _, o := range all.GetOccurrences() {
		row := append(clock.cells(o.GetTime(), o.GetLocal()), enum(o.GetVerdict(), "VERDICT_"), orDash(o.GetWhy()))
		if o.GetUntil() != nil {
			rows = append(rows, append(row, fmt.Sprintf("%d until", o.GetCount()), instantOf(o.GetTime(), o.GetUntil())))
			continue
		}
		state := "-"
		if o.GetState() != carillonv1.ExecutionState_EXECUTION_STATE_UNSPECIFIED {
			state = enum(o.GetState(), "EXECUTION_STATE_")
		}
		rows = append(rows, append(row, state, instantOf(o.GetTime(), o.GetStartTime()), length(o.GetLateness()),
			instantOf(o.GetTime(), o.GetFinishTime()), orDash(o.GetExecutionId())))
	}
	return rows
}
