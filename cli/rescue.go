package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/node"
)

// rescueCommand is the last resort: it works on a directory, not through a server.
func (p *program) rescueCommand() *cli.Command {
	return &cli.Command{
		Name: "rescue", Usage: "go on with one disk alone, when those of a majority are lost for good",
		Description: "It runs on the machine of the node that is left, while that node does not. It shows what the disk has and\n" +
			"makes a cluster of one node of it, once the node's name was typed or with --yes. The node is then started as\n" +
			"ever, and the others with empty directories. What the lost disks had and this one has not is lost. It cannot be\n" +
			"undone: copy the directory first. Interrupted, it has to be run again; the node does not start before.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Required: true, Usage: "data `DIRECTORY` of the node that is left"},
			&cli.BoolFlag{Name: "yes", Usage: "do it without asking"},
			&cli.BoolFlag{Name: "accept-lost-shards", Usage: "have shards of which this disk has nothing begin anew, empty"},
			&cli.StringFlag{
				Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT` of what it has found: table or json",
			},
		},
		Action: func(c *cli.Context) (err error) {
			if err := checkArguments(c, ""); err != nil {
				return err
			}
			print, err := newPrinter(c, p.stdout)
			if err != nil {
				return err
			}
			// Of what the databases say only errors are of interest: that other nodes are not there is known.
			logger := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
			rescue, err := node.OpenRescue(c.Context, c.String("data"), logger)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, rescue.Close()) }()
			return p.rescue(c, print, rescue)
		},
	}
}

func (p *program) rescue(c *cli.Context, print *printer, rescue *node.Rescue) error {
	if err := print.rescueFindings(rescue.Found); err != nil {
		return err
	}
	if err := rescue.Possible(c.Bool("accept-lost-shards")); err != nil {
		return err
	}
	if _, err := fmt.Fprint(p.stderr, rescueWarning(rescue.Found)); err != nil {
		return err
	}
	if !c.Bool("yes") {
		if err := p.confirmRescue(c.Context, rescue.Found.Node); err != nil {
			return err
		}
	}
	if err := rescue.Run(c.Context, c.Bool("accept-lost-shards")); err != nil {
		return err
	}
	_, err := fmt.Fprintf(p.stderr, "Done. Start %s as ever, then the others with empty data directories and their command lines.\n",
		rescue.Found.Node)
	return err
}

func rescueWarning(f node.RescueFindings) string {
	var names []string
	for _, s := range f.Others {
		names = append(names, s.Node)
	}
	others := strings.Join(names, " and ")
	if others == "" {
		others = "all other nodes" // of a rescue that has begun
	}
	return fmt.Sprintf("WARNING: the disks of %[1]s are given up. What they had acknowledged and this one never got is lost, and\n"+
		"a disk that is given up must never be started again. If one of them is there still, stop here and start its node\n"+
		"with it: with a majority nothing is lost. This command cannot see whether %[1]s can be started.\n"+
		"No other node may be running, but for those that wait with an empty directory.\n", others)
}

// confirmRescue has the node's name typed.
func (p *program) confirmRescue(ctx context.Context, name string) error {
	return p.confirm(ctx, fmt.Sprintf("To go on, type the name of the node that is left (%s): ", name), name)
}

// confirm asks, and has a word typed.
func (p *program) confirm(ctx context.Context, question, word string) error {
	if _, err := fmt.Fprint(p.stderr, question); err != nil {
		return err
	}
	typed := make(chan string, 1)
	go func() { // a terminal that nobody types at keeps it until the process ends
		line, _ := bufio.NewReader(p.stdin).ReadString('\n') // what cannot be read is not the word
		typed <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-typed:
		if line != word {
			return errors.New("not confirmed: nothing was changed")
		}
		return nil
	}
}

func (p *printer) rescueFindings(f node.RescueFindings) error {
	if p.json {
		body, err := json.MarshalIndent(f, "", "  ")
		if err != nil {
			return fmt.Errorf("encode findings: %w", err)
		}
		_, err = fmt.Fprintf(p.w, "%s\n", body)
		return err
	}
	for i, rows := range rescueBlocks(f) {
		if i > 0 {
			if _, err := fmt.Fprintln(p.w); err != nil {
				return err
			}
		}
		if err := p.table(rows); err != nil {
			return err
		}
	}
	return nil
}

func rescueBlocks(f node.RescueFindings) [][][]string {
	begun := "no"
	if f.Begun {
		begun = "yes, and not ended"
	}
	blocks := [][][]string{{{"cluster", f.Cluster}, {"node", f.Node}, {"store", f.Store}, {"rescue begun", begun}}}
	if len(f.Others) > 0 {
		rows := [][]string{{"GIVEN UP", "STORE", "ADDRESS", "CONTROL"}}
		for _, s := range f.Others {
			control := "-"
			if s.Control {
				control = "member"
			}
			rows = append(rows, []string{s.Node, s.Store, s.Address, control})
		}
		blocks = append(blocks, rows)
	}
	if len(f.Shards) > 0 {
		rows := [][]string{{"SHARD", "REPLICA", "VOTERS", "LOG END", "COMMIT", "APPLIED", "RESCUE"}}
		for _, s := range f.Shards {
			outcome := "possible"
			if s.Lost != "" {
				outcome = "none: " + s.Lost
			}
			rows = append(rows, []string{
				fmt.Sprint(s.Shard), fmt.Sprint(s.Replica), orDash(strings.Join(s.Voters, ",")), fmt.Sprint(s.LogEnd),
				fmt.Sprint(s.Commit), fmt.Sprint(s.Applied), outcome,
			})
		}
		blocks = append(blocks, rows)
	}
	return blocks
}
