package cli

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) clusterCommand() *cli.Command {
	return &cli.Command{
		Name: "cluster", Usage: "look at the cluster, or run one on this machine",
		Subcommands: append([]*cli.Command{
			p.calling(cli.Command{
				Name: "status", Usage: "show nodes, backlog and alarms",
				Flags: []cli.Flag{&cli.BoolFlag{Name: "shards", Usage: "show every shard as well"}},
			}, p.clusterStatus),
			p.verifyCommand(),
			p.clusterLocalCommand(),
		}, p.operateCommands()...),
	}
}

func (p *program) clusterStatus(ctx context.Context, c *call) error {
	res, err := c.client.GetCluster(ctx, &carillonv1.GetClusterRequest{})
	if err != nil {
		return err
	}
	if c.print.json {
		return c.print.message(res, nil)
	}
	blocks := [][][]string{clusterRows(res), nodeRows(res)}
	if c.Bool("shards") {
		blocks = append(blocks, shardRows(res))
	}
	if len(res.GetAlarms()) > 0 {
		blocks = append(blocks, alarmRows(res))
	}
	for i, rows := range blocks {
		if i > 0 {
			if _, err := fmt.Fprintln(p.stdout); err != nil {
				return err
			}
		}
		if err := c.print.table(rows); err != nil {
			return err
		}
	}
	return nil
}

func clusterRows(res *carillonv1.GetClusterResponse) [][]string {
	led := 0
	for _, s := range res.GetShards() {
		if s.GetEstablished() {
			led++
		}
	}
	b := res.GetBacklog()
	return [][]string{
		{"cluster", res.GetClusterId()}, {"time", instant(res.GetTime())},
		{"shards", fmt.Sprintf("%d of %d have an established leader", led, len(res.GetShards()))},
		{"alarms", fmt.Sprint(len(res.GetAlarms()))},
		{"jobs", fmt.Sprint(b.GetJobs())}, {"waiting", fmt.Sprint(b.GetWaiting())}, {"ready", fmt.Sprint(b.GetReady())},
		{"leased", fmt.Sprint(b.GetLeased())}, {"retrying", fmt.Sprint(b.GetRetrying())},
		{"held", fmt.Sprint(b.GetHeld())}, {"dead", fmt.Sprint(b.GetDead())},
		{"oldest ready", instant(b.GetOldestWaitingTime())},
	}
}

func nodeRows(res *carillonv1.GetClusterResponse) [][]string {
	rows := [][]string{{"NODE", "ADDRESS", "VERSION", "READY", "CLOCK", "LEADS", "STARTED"}}
	for _, n := range res.GetNodes() {
		clock := "ok"
		if n.GetClockHeld() {
			clock = "held"
		}
		rows = append(rows, []string{
			n.GetName(), orDash(n.GetAddress()), orDash(n.GetVersion()), fmt.Sprint(n.GetReady()), clock,
			fmt.Sprint(n.GetShardsLed()), instant(n.GetStartTime()),
		})
	}
	return rows
}

func shardRows(res *carillonv1.GetClusterResponse) [][]string {
	rows := [][]string{{"SHARD", "LEADER", "EPOCH", "STATE", "APPLIED", "JOBS", "WAITING", "READY", "LEASED", "DEAD"}}
	for _, s := range res.GetShards() {
		state := "established"
		switch {
		case !s.GetEstablished():
			state = "electing"
		case s.GetDegraded():
			state = "degraded"
		}
		b := s.GetBacklog()
		rows = append(rows, []string{
			fmt.Sprint(s.GetId()), orDash(s.GetLeader()), fmt.Sprint(s.GetEpoch()), state, fmt.Sprint(s.GetAppliedIndex()),
			fmt.Sprint(b.GetJobs()), fmt.Sprint(b.GetWaiting()), fmt.Sprint(b.GetReady()), fmt.Sprint(b.GetLeased()),
			fmt.Sprint(b.GetDead()),
		})
	}
	return rows
}

func alarmRows(res *carillonv1.GetClusterResponse) [][]string {
	rows := [][]string{{"ALARM", "NODE", "SHARD", "SINCE", "MESSAGE"}}
	for _, a := range res.GetAlarms() {
		shard := "-"
		if a.Shard != nil {
			shard = fmt.Sprint(a.GetShard())
		}
		rows = append(rows, []string{a.GetName(), orDash(a.GetNode()), shard, instant(a.GetSince()), a.GetMessage()})
	}
	return rows
}
