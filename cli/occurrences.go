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
			&cli.StringFlag{Name: "from", Usage: "none before this `INSTANT` (RFC 3339)"},
			&cli.StringFlag{Name: "to", Usage: "none after this `INSTANT`"},
			&cli.BoolFlag{Name: "all-kinds", Usage: "also what was triggered and backfilled"},
			limitFlag(),
		},
	}, p.jobOccurrences)
}

// jobOccurrences prints occurrences as one document, or as a table with a line for each.
func (p *program) jobOccurrences(ctx context.Context, c *call) error {
	from, err := instantFlag(c.Context, "from")
	if err != nil {
		return err
	}
	to, err := instantFlag(c.Context, "to")
	if err != nil {
		return err
	}
	limit := c.Int("limit")
	if limit <= 0 {
		limit = maxHistory
	}
	all := &carillonv1.ListOccurrencesResponse{}
	more := false
	for page, err := range c.client.ListOccurrences(ctx, &carillonv1.ListOccurrencesRequest{
		Id: c.Args().First(), Tenant: c.tenant, From: from, To: to, AllKinds: c.Bool("all-kinds"), PageSize: pageSize(limit),
	}) {
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
	rows := [][]string{{"TIME", "VERDICT", "WHY", "STATE", "STARTED", "LATE", "ENDED", "EXECUTION"}}
	for _, o := range all.GetOccurrences() {
		verdict := enum(o.GetVerdict(), "VERDICT_")
		if o.GetUntil() != nil {
			rows = append(rows, []string{
				instant(o.GetTime()), verdict, orDash(o.GetWhy()), fmt.Sprintf("%d until", o.GetCount()),
				instantOf(o.GetTime(), o.GetUntil()),
			})
			continue
		}
		state := "-"
		if o.GetState() != carillonv1.ExecutionState_EXECUTION_STATE_UNSPECIFIED {
			state = enum(o.GetState(), "EXECUTION_STATE_")
		}
		rows = append(rows, []string{
			instant(o.GetTime()), verdict, orDash(o.GetWhy()), state, instantOf(o.GetTime(), o.GetStartTime()),
			length(o.GetLateness()), instantOf(o.GetTime(), o.GetFinishTime()), orDash(o.GetExecutionId()),
		})
	}
	return rows
}
