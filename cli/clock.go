package cli

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cli/manifest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) clockCommand() *cli.Command {
	ordered := "\nEverything that is due on the way fires in its order, at its own time. Workers are not waited for: what becomes ready\n" +
		"stays ready until somebody takes it, and a lease that ends on the way is lost."
	return &cli.Command{
		Name: "clock", Usage: "show the time that jobs go by, or move a virtual clock",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{Name: "show", Usage: "show what time it is for jobs"}, p.showClock),
			p.operating(cli.Command{
				Name: "advance", Usage: "move a virtual clock ahead by a duration", ArgsUsage: "DURATION",
				Description: "DURATION is such as 90s, 36h or 7d; the server was started with --virtual-clock." + ordered,
			}, p.advanceClock),
			p.operating(cli.Command{
				Name: "set", Usage: "move a virtual clock ahead to an instant", ArgsUsage: "INSTANT",
				Description: "INSTANT is such as 2026-03-08T10:30:00Z, and not before the clock's; the server was started with --virtual-clock." +
					ordered,
			}, p.setClock),
		},
	}
}

func (p *program) showClock(ctx context.Context, c *call) error {
	clock, err := c.client.GetClock(ctx, &carillonv1.GetClockRequest{})
	if err != nil {
		return err
	}
	return c.print.message(clock, func() [][]string { return clockRows(clock) })
}

func clockRows(clock *carillonv1.Clock) [][]string {
	rows := [][]string{{"time", instant(clock.GetTime())}}
	if !clock.GetVirtual() {
		return append(rows, []string{"clock", "the machine's"})
	}
	return append(rows, []string{"clock", "virtual: stands still until it is advanced"}, []string{"next due", instant(clock.GetNextDueTime())})
}

func (p *program) advanceClock(ctx context.Context, c *call) error {
	by, err := manifest.ParseDuration(c.Args().First())
	switch {
	case err != nil:
		return usage(c.Context, "DURATION: %s", err)
	case by < 0:
		return usage(c.Context, "DURATION: %s is negative; time does not go back", c.Args().First())
	}
	// From here on the goal is an instant, so that a call that is repeated goes no further.
	clock, err := c.client.GetClock(ctx, &carillonv1.GetClockRequest{})
	if err != nil {
		return err
	}
	return p.moveClock(ctx, c, timestamppb.New(clock.GetTime().AsTime().Add(by)))
}

func (p *program) setClock(ctx context.Context, c *call) error {
	to, err := parseInstant(c.Args().First())
	if err != nil {
		return usage(c.Context, "INSTANT: %s", err)
	}
	return p.moveClock(ctx, c, to)
}

// moveClock asks until the clock is there, tells how far it is, and prints where it stands.
func (p *program) moveClock(ctx context.Context, c *call, to *timestamppb.Timestamp) error {
	fired, began := uint64(0), false
	for {
		res, err := c.client.AdvanceClock(ctx, &carillonv1.AdvanceClockRequest{Goal: &carillonv1.AdvanceClockRequest_To{To: to}})
		switch {
		case err != nil && began:
			return fmt.Errorf("the clock is on its way to %s; to go on, set it there: %w", instant(to), err)
		case err != nil:
			return err
		}
		fired, began = fired+res.GetFired(), true
		if res.GetDone() {
			res.Fired = fired
			return c.print.message(res, func() [][]string {
				return append(clockRows(res.GetClock()), []string{"fired", fmt.Sprint(fired)})
			})
		}
		if _, err := fmt.Fprintf(p.stderr, "%s: %d have fired on the way to %s\n",
			instant(res.GetClock().GetTime()), fired, instant(to)); err != nil {
			return err
		}
	}
}
