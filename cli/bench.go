package cli

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/carillon-scheduler/carillon/bench"
)

// benchGCPercent lets the bench collect garbage less often than a server would: it shares the CPU with what it measures.
const benchGCPercent = 400

// ownDefault stands in help where each workload has a default of its own.
const ownDefault = "the workload's own"

// benchCommand measures a server: one that runs already, or one it starts for the purpose.
func benchCommand() *cli.Command {
	return &cli.Command{
		Name:        "bench",
		Usage:       "measure a server and check every job",
		ArgsUsage:   "WORKLOAD",
		Description: benchDescription(),
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "nodes", Value: 1, Usage: "`NUMBER` of nodes to start"},
			&cli.IntFlag{Name: "shards", Usage: "`NUMBER` of shards of the servers that are started", DefaultText: "theirs"},
			&cli.IntFlag{Name: "n", Usage: "`NUMBER` of jobs; with all a cap on each", DefaultText: ownDefault},
			&cli.IntFlag{Name: "rate", Usage: "`JOBS` due per second, in due, lateness and peak", DefaultText: ownDefault},
			&cli.DurationFlag{Name: "for", Usage: "how `LONG` jobs fall due, or idle looks", DefaultText: ownDefault},
			&cli.DurationFlag{Name: "interval", Usage: "`TIME` between a job's occurrences, in recurring", DefaultText: "1m"},
			&cli.BoolFlag{Name: "cron", Usage: "jobs of recurring have a cron line and a spread, not an interval"},
			&cli.StringFlag{Name: "target", Usage: "`URL` of a running server to measure instead of an own one"},
			&cli.IntFlag{Name: "repeat", Usage: "run it so many `TIMES` and report the median", DefaultText: "1; with all 3"},
			&cli.StringFlag{
				Name: "output", Aliases: []string{"o"}, Value: "table",
				Usage: "`FORMAT` of the answer: table or json, one line a result",
			},
		},
		Action: runBench,
	}
}

func benchDescription() string {
	var b strings.Builder
	b.WriteString("Without --target a server is started in a temporary directory with default settings, and stopped.\n" +
		"Fails if a job was lost, repeated, early or changed. Workloads:\n\n")
	for _, name := range bench.Workloads() {
		fmt.Fprintf(&b, "  %-11s %s\n", name, bench.Describe(name))
	}
	fmt.Fprintf(&b, "  %-11s %s\n", bench.All, "each of them, against the project's budgets")
	return b.String()
}

func runBench(c *cli.Context) error {
	if c.NArg() != 1 {
		return usage(c, "name one workload: %s or %s", strings.Join(bench.Workloads(), ", "), bench.All)
	}
	output := c.String("output")
	if output != "table" && output != "json" {
		return usage(c, "--output must be table or json, is %q", output)
	}
	config := bench.Config{
		Workload: c.Args().First(),
		Nodes:    c.Int("nodes"),
		Shards:   c.Int("shards"),
		N:        c.Int("n"),
		Rate:     c.Int("rate"),
		For:      c.Duration("for"),
		Interval: c.Duration("interval"),
		Cron:     c.Bool("cron"),
		Target:   c.String("target"),
		Repeat:   c.Int("repeat"),
		JSON:     output == "json",
		Log:      slog.New(slog.NewTextHandler(c.App.ErrWriter, nil)),
	}
	if err := config.Validate(); err != nil {
		return usage(c, "%v", err)
	}
	debug.SetGCPercent(benchGCPercent)
	return bench.Run(c.Context, config, c.App.Writer)
}
