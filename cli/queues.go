package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// settingsFlags are those of queues and tenants.
func settingsFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "retention", Usage: "keep ended executions for this `DURATION`"},
		&cli.StringSliceFlag{Name: "label", Usage: "`KEY=VALUE` for people; repeatable"},
	}
}

func deadRetentionFlag() cli.Flag {
	return &cli.StringFlag{Name: "dead-retention", Usage: "keep dead letters for this `DURATION`"}
}

func pausedFlags() []cli.Flag {
	return append([]cli.Flag{&cli.BoolFlag{Name: "paused", Usage: "make it paused"}}, pauseFlags()...)
}

func clearFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "clear", Usage: "put `FIELD` back to its default; repeatable"}
}

// settingsMask names the fields of a patch that flags set or clear.
func settingsMask(c *call, fields ...string) (*fieldmaskpb.FieldMask, error) {
	mask := &fieldmaskpb.FieldMask{}
	for _, field := range fields {
		flags := []string{strings.ReplaceAll(field, "_", "-")}
		switch field {
		case "labels":
			flags = []string{"label"}
		case "priority_shares":
			flags = []string{"weights", "strict", "floor"}
		}
		if slices.ContainsFunc(flags, c.IsSet) {
			mask.Paths = append(mask.Paths, field)
		}
	}
	for _, field := range c.StringSlice("clear") {
		mask.Paths = append(mask.Paths, strings.ReplaceAll(field, "-", "_"))
	}
	if len(mask.GetPaths()) == 0 {
		return nil, usage(c.Context, "nothing to change")
	}
	return mask, nil
}

// sayCreate adds to the error of a change what to do if there is nothing to change yet.
func sayCreate(c *call, group string, err error) error {
	switch {
	case !errors.Is(err, client.ErrNotFound):
		return err
	case c.Command.Name == "resume":
		return fmt.Errorf("%w, so it is not paused", err)
	}
	return fmt.Errorf("%w; store some with 'carillon %s create %s'", err, group, c.Args().First())
}

// sayPending tells on standard error which shards have not applied a change yet.
func (p *program) sayPending(shards []uint32) error {
	if len(shards) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(p.stderr, "Not applied yet, but it will be, by shards %v.\n", shards)
	return err
}

func (p *program) queuesCommand() *cli.Command {
	return &cli.Command{
		Name: "queues", Usage: "keep settings of queues",
		Description: "A queue needs no settings to be used: jobs may name any.",
		Subcommands: []*cli.Command{
			p.calling(cli.Command{
				Name: "create", Usage: "store settings for a queue that has none", ArgsUsage: "NAME",
				Flags: append(append(append(pausedFlags(), deadRetentionFlag()), settingsFlags()...), sharesFlags()...),
			}, p.createQueue),
			p.calling(cli.Command{Name: "get", Usage: "show a queue's settings", ArgsUsage: "NAME"}, p.getQueue),
			p.calling(cli.Command{
				Name: "list", Usage: "list queues that have settings, and those where work waits", Flags: []cli.Flag{limitFlag()},
			}, p.listQueues),
			p.calling(cli.Command{
				Name: "update", Usage: "change the named settings", ArgsUsage: "NAME",
				Flags: append(append([]cli.Flag{expectedFlag(), clearFlag(), deadRetentionFlag()}, settingsFlags()...), sharesFlags()...),
			}, p.updateQueue),
			p.calling(cli.Command{
				Name: "pause", Usage: "let nothing of a queue fire or be handed out", ArgsUsage: "NAME",
				Flags: append(pauseFlags(), expectedFlag()),
			}, p.pauseQueue),
			p.calling(cli.Command{
				Name: "resume", Usage: "undo a pause", ArgsUsage: "NAME", Flags: []cli.Flag{ruleFlag(), expectedFlag()},
			}, p.resumeQueue),
			p.calling(cli.Command{
				Name: "delete", Usage: "forget a queue's settings; its jobs stay", ArgsUsage: "NAME",
				Flags: []cli.Flag{expectedFlag()},
			}, p.deleteQueue),
		},
	}
}

func (p *program) createQueue(ctx context.Context, c *call) (err error) {
	q := &carillonv1.Queue{Name: c.Args().First(), Paused: c.Bool("paused")}
	if q.Paused {
		said, err := readPause(c.Context)
		if err != nil {
			return err
		}
		q.PauseReason, q.PausedBy, q.PauseUntil, q.ResumeRule = said.reason, said.by, said.until, said.resume
	}
	if q.Retention, err = lengthFlag(c.Context, "retention"); err != nil {
		return err
	}
	if q.DeadRetention, err = lengthFlag(c.Context, "dead-retention"); err != nil {
		return err
	}
	if q.Labels, err = pairsFlag(c.Context, "label"); err != nil {
		return err
	}
	if q.PriorityShares, err = readShares(c.Context); err != nil {
		return err
	}
	res, err := c.client.CreateQueue(ctx, &carillonv1.CreateQueueRequest{Queue: q})
	if err != nil {
		return err
	}
	return p.showQueue(c, res.GetQueue(), res.GetPendingShards())
}

func (p *program) showQueue(c *call, q *carillonv1.Queue, pending []uint32) error {
	err := c.print.message(q, func() [][]string {
		rows := [][]string{{"name", q.GetName()}, {"paused", pausedText(q.GetPaused(), q.GetPauseReason())}}
		if q.GetPaused() {
			rows = append(rows, pausedRows(q.GetPausedBy(), q.GetPauseUntil(), q.GetResumeRule())...)
		}
		return append(rows, [][]string{
			{"retention", length(q.GetRetention())}, {"dead retention", length(q.GetDeadRetention())},
			{"priority shares", sharesText(q.GetPriorityShares())},
			{"labels", orDash(pairsText(q.GetLabels()))}, {"version", fmt.Sprint(q.GetVersion())},
			{"created", instant(q.GetCreateTime())}, {"updated", instant(q.GetUpdateTime())},
		}...)
	})
	if err != nil {
		return err
	}
	return p.sayPending(pending)
}

func pausedText(paused bool, reason string) string {
	switch {
	case !paused:
		return "no"
	case reason == "":
		return "yes"
	default:
		return "yes: " + firstLine(reason)
	}
}

func (p *program) getQueue(ctx context.Context, c *call) error {
	q, err := c.client.GetQueue(ctx, &carillonv1.GetQueueRequest{Name: c.Args().First()})
	if err != nil {
		return err
	}
	return p.showQueue(c, q, nil)
}

func (p *program) listQueues(ctx context.Context, c *call) error {
	queues := c.client.ListQueues(ctx, &carillonv1.ListQueuesRequest{PageSize: pageSize(c.Int("limit"))})
	header := []string{"NAME", "READY", "OLDEST READY", "CLAIMS WAITING", "PAUSED", "RETENTION", "DEAD RETENTION", "VERSION"}
	more, err := list(c.print, "queues", queues, c.Int("limit"), header, func(q *carillonv1.Queue) []string {
		version := "-" // no settings
		if q.GetVersion() > 0 {
			version = fmt.Sprint(q.GetVersion())
		}
		b := q.GetBacklog()
		return []string{
			q.GetName(), readyText(b), instant(b.GetOldestReadyTime()), fmt.Sprint(b.GetWaitingClaims()),
			pausedText(q.GetPaused(), q.GetPauseReason()), length(q.GetRetention()), length(q.GetDeadRetention()), version,
		}
	})
	if err != nil {
		return err
	}
	return p.sayMore(c, more)
}

// readyText is how many executions wait in a queue, as far as they were counted.
func readyText(b *carillonv1.QueueBacklog) string {
	if b.GetReadyIsMore() {
		return fmt.Sprintf("%d+", b.GetReady())
	}
	return fmt.Sprint(b.GetReady())
}

func (p *program) updateQueue(ctx context.Context, c *call) (err error) {
	patch := &carillonv1.QueuePatch{}
	if patch.Retention, err = lengthFlag(c.Context, "retention"); err != nil {
		return err
	}
	if patch.DeadRetention, err = lengthFlag(c.Context, "dead-retention"); err != nil {
		return err
	}
	if patch.Labels, err = pairsFlag(c.Context, "label"); err != nil {
		return err
	}
	if patch.PriorityShares, err = readShares(c.Context); err != nil {
		return err
	}
	mask, err := settingsMask(c, "retention", "dead_retention", "labels", "priority_shares")
	if err != nil {
		return err
	}
	return p.changeQueue(ctx, c, patch, mask)
}

func (p *program) pauseQueue(ctx context.Context, c *call) error {
	said, err := readPause(c.Context)
	if err != nil {
		return err
	}
	patch := &carillonv1.QueuePatch{
		Paused: new(true), PauseReason: &said.reason, PausedBy: &said.by, PauseUntil: said.until, ResumeRule: &said.resume,
	}
	return p.changeQueue(ctx, c, patch, pauseMask())
}

func (p *program) resumeQueue(ctx context.Context, c *call) error {
	patch := &carillonv1.QueuePatch{Paused: new(false)}
	rule, err := catchUpFlag(c.Context, "rule")
	if err != nil {
		return err
	}
	if c.IsSet("rule") {
		patch.ResumeRule = &rule
	}
	return p.changeQueue(ctx, c, patch, nil)
}

// pauseMask names all fields of a pause: one that is paused already gets them all anew.
func pauseMask() *fieldmaskpb.FieldMask {
	return &fieldmaskpb.FieldMask{Paths: []string{"paused", "pause_reason", "paused_by", "pause_until", "resume_rule"}}
}

func (p *program) changeQueue(
	ctx context.Context, c *call, patch *carillonv1.QueuePatch, mask *fieldmaskpb.FieldMask,
) error {
	res, err := c.client.UpdateQueue(ctx, &carillonv1.UpdateQueueRequest{
		Name: c.Args().First(), Queue: patch, UpdateMask: mask, ExpectedVersion: c.Uint64("expected-version"),
	})
	if err != nil {
		return sayCreate(c, "queues", err)
	}
	return p.showQueue(c, res.GetQueue(), res.GetPendingShards())
}

func (p *program) deleteQueue(ctx context.Context, c *call) error {
	res, err := c.client.DeleteQueue(ctx, &carillonv1.DeleteQueueRequest{
		Name: c.Args().First(), ExpectedVersion: c.Uint64("expected-version"),
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
