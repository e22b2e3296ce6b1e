package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	// operateTimeout is how long a change of the cluster is waited for unless --timeout says otherwise: replicas with much in
	// them take minutes to be made anew.
	operateTimeout = 30 * time.Minute
	// operateEvery is how often it is asked how far it is.
	operateEvery = 500 * time.Millisecond
)

// operateCommands are those that change the cluster and wait until it is done.
func (p *program) operateCommands() []*cli.Command {
	return []*cli.Command{
		p.operating(cli.Command{
			Name: "transfer", Usage: "move leaderships to another node",
			Description: "--shard 3 --to n2 moves one; --from n1 all that n1 leads, to --to or spread over the others. Leaderships are\n" +
				"evened out again by themselves: to keep a node free of them, drain it.",
			Flags: []cli.Flag{
				&cli.UintSliceFlag{Name: "shard", Usage: "`SHARD` to move; again for more"},
				&cli.StringFlag{Name: "from", Usage: "`NODE` whose leaderships are moved"},
				&cli.StringFlag{Name: "to", Usage: "`NODE` that is to lead; else another one that can"},
			},
		}, p.transferLeader),
		p.operating(cli.Command{
			Name: "drain", Usage: "move replicas and leaderships off a node, for maintenance or before it is removed", ArgsUsage: "NODE",
			Description: "With three nodes the leaderships move and the replicas stay, since each shard has one on every node.",
		}, p.changingNode("drain", func(ctx context.Context, c *call, node string) (*carillonv1.NodeChange, error) {
			return c.client.DrainNode(ctx, &carillonv1.DrainNodeRequest{Node: node})
		})),
		p.operating(cli.Command{
			Name: "undrain", Usage: "let a node have replicas and leaderships again", ArgsUsage: "NODE",
		}, p.changingNode("undrain", func(ctx context.Context, c *call, node string) (*carillonv1.NodeChange, error) {
			return c.client.UndrainNode(ctx, &carillonv1.UndrainNodeRequest{Node: node})
		})),
		p.operating(cli.Command{
			Name: "remove-node", Usage: "take a node that is drained or dead out of the cluster for good", ArgsUsage: "NODE",
		}, p.changingNode("remove-node", func(ctx context.Context, c *call, node string) (*carillonv1.NodeChange, error) {
			return c.client.RemoveNode(ctx, &carillonv1.RemoveNodeRequest{Node: node})
		})),
		p.operating(cli.Command{
			Name: "replace-store", Usage: "declare a dead node's store lost now, so that its replicas are made elsewhere", ArgsUsage: "NODE",
		}, p.changingNode("replace-store", func(ctx context.Context, c *call, node string) (*carillonv1.NodeChange, error) {
			return c.client.ReplaceStore(ctx, &carillonv1.ReplaceStoreRequest{Node: node})
		})),
	}
}

// operating is calling, with patience.
func (p *program) operating(c cli.Command, action func(context.Context, *call) error) *cli.Command {
	command := p.calling(c, action)
	for _, f := range command.Flags {
		if timeout, ok := f.(*cli.DurationFlag); ok && timeout.Name == "timeout" {
			timeout.Value = operateTimeout
		}
	}
	return command
}

// changingNode asks for a change of a node until it is done, tells how far it is, and prints how it ended.
func (p *program) changingNode(
	what string, ask func(context.Context, *call, string) (*carillonv1.NodeChange, error),
) func(context.Context, *call) error {
	return func(ctx context.Context, c *call) error {
		var last *carillonv1.NodeChange
		told := ""
		for {
			change, err := ask(ctx, c, c.Args().First())
			switch {
			case err != nil && last != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
				return errors.Join(p.showChange(c, last), notDone(what, last.GetMessage()))
			case err != nil:
				return err
			case change.GetDone():
				return p.showChange(c, change)
			}
			if text := change.GetMessage(); text != told {
				told = text
				if _, err := fmt.Fprintf(p.stderr, "%s: %s\n", change.GetNode(), text); err != nil {
					return err
				}
			}
			if last = change; !wait(ctx, operateEvery) {
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					return errors.Join(p.showChange(c, last), notDone(what, last.GetMessage()))
				}
				return ctx.Err()
			}
		}
	}
}

// notDone says that --timeout has passed. What was begun goes on.
func notDone(what, message string) error {
	return fmt.Errorf("%s is not done within --timeout and goes on by itself: %s", what, message)
}

// wait returns false if ctx ends before d has passed.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (p *program) showChange(c *call, change *carillonv1.NodeChange) error {
	return c.print.message(change, func() [][]string {
		return [][]string{
			{"node", change.GetNode()}, {"store", change.GetStoreId()}, {"state", stateText(change.GetState())},
			{"done", fmt.Sprint(change.GetDone())}, {"leads", fmt.Sprint(change.GetShardsLed())},
			{"replicas", fmt.Sprint(change.GetReplicas())}, {"staying", fmt.Sprint(change.GetStaying())},
			{"note", orDash(change.GetMessage())},
		}
	})
}

func stateText(s carillonv1.StoreState) string {
	if s == carillonv1.StoreState_STORE_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "STORE_STATE_"))
}

func (p *program) transferLeader(ctx context.Context, c *call) error {
	req := &carillonv1.TransferLeaderRequest{Shards: uint32sFlag(c.Context, "shard"), From: c.String("from"), To: c.String("to")}
	if len(req.Shards) == 0 && req.From == "" {
		return usage(c.Context, "name the leaderships: --shard SHARD, or --from NODE for all that it leads")
	}
	return p.transferUntilDone(ctx, c, req)
}

// transferAttempts is how often a leadership that does not go is asked for again: what stands in its way for longer than a
// few seconds is a reason to look.
const transferAttempts = 5

// transferUntilDone asks again for what has not gone. The answer is of all that was asked for at first.
func (p *program) transferUntilDone(ctx context.Context, c *call, req *carillonv1.TransferLeaderRequest) error {
	res, err := c.client.TransferLeader(ctx, req)
	if err != nil {
		return err
	}
	told := 0
	for range transferAttempts {
		again := &carillonv1.TransferLeaderRequest{From: req.GetFrom(), To: req.GetTo()}
		at := map[uint32]*carillonv1.LeaderTransfer{}
		for _, t := range res.GetTransfers() {
			if !t.GetDone() {
				again.Shards = append(again.Shards, t.GetShard())
				at[t.GetShard()] = t
			}
		}
		if len(at) == 0 || !wait(ctx, operateEvery) {
			break
		}
		if len(at) != told {
			told = len(at)
			if _, err := fmt.Fprintf(p.stderr, "%d of %d leaderships have not gone yet\n", told, len(res.GetTransfers())); err != nil {
				return err
			}
		}
		next, err := c.client.TransferLeader(ctx, again)
		if err != nil {
			return err
		}
		takeIn(at, next.GetTransfers())
	}
	return errors.Join(showTransfers(c, res), missing(res))
}

// takeIn says of transfers, by shard, what became of them now. What was not asked for is passed over.
func takeIn(at map[uint32]*carillonv1.LeaderTransfer, answers []*carillonv1.LeaderTransfer) {
	for _, a := range answers {
		if t := at[a.GetShard()]; t != nil {
			t.To, t.Done, t.Reason = a.GetTo(), a.GetDone(), a.GetReason()
		}
	}
}

func showTransfers(c *call, res *carillonv1.TransferLeaderResponse) error {
	return c.print.message(res, func() [][]string {
		rows := [][]string{{"SHARD", "FROM", "TO", "DONE", "REASON"}}
		for _, t := range res.GetTransfers() {
			rows = append(rows, []string{
				fmt.Sprint(t.GetShard()), orDash(t.GetFrom()), orDash(t.GetTo()), fmt.Sprint(t.GetDone()), orDash(t.GetReason()),
			})
		}
		return rows
	})
}

// missing is an error if leaderships have not gone.
func missing(res *carillonv1.TransferLeaderResponse) error {
	n := 0
	for _, t := range res.GetTransfers() {
		if !t.GetDone() {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d of %d leaderships were not moved", n, len(res.GetTransfers()))
	}
	return nil
}
