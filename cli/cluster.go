package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (p *program) clusterCommand() *cli.Command {
	return &cli.Command{
		Name: "cluster", Usage: "look at the cluster, or run one on this machine",
		Subcommands: append([]*cli.Command{
			p.calling(cli.Command{
				Name: "status", Usage: "show nodes, backlog and alarms",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "shards", Usage: "show every shard as well"},
					&cli.GenericFlag{
						Name: "tenants", Usage: "show the `N` tenants with most jobs as well",
						DefaultText: "none; 10 without N", Value: &optionalNumber{},
					},
				},
			}, p.clusterStatus),
			p.verifyCommand(),
			p.rescueCommand(),
			p.clusterLocalCommand(),
		}, p.operateCommands()...),
	}
}

// defaultTopTenants is how many tenants --tenants shows without a number.
const defaultTopTenants = 10

func (p *program) clusterStatus(ctx context.Context, c *call) error {
	top, err := optionalFlag(c.Context, "tenants", defaultTopTenants)
	if err != nil {
		return err
	}
	res, err := c.client.GetCluster(ctx, &carillonv1.GetClusterRequest{TopTenants: top})
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
	if top > 0 {
		blocks = append(blocks, tenantRows(res))
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
		{"control plane", controlText(res)}, {"replicas", replicasText(res)}, {"skew", skewText(res)},
		{"alarms", fmt.Sprint(len(res.GetAlarms()))},
		{"jobs", fmt.Sprint(b.GetJobs())}, {"waiting", fmt.Sprint(b.GetWaiting())}, {"ready", fmt.Sprint(b.GetReady())},
		{"leased", fmt.Sprint(b.GetLeased())}, {"retrying", fmt.Sprint(b.GetRetrying())},
		{"held", fmt.Sprint(b.GetHeld())}, {"dead", fmt.Sprint(b.GetDead())},
		{"oldest ready", instant(b.GetOldestWaitingTime())},
	}
}

// controlText is who votes in the control plane and who places replicas.
func controlText(res *carillonv1.GetClusterResponse) string {
	voters, learners, controller := 0, 0, "-"
	for _, n := range res.GetNodes() {
		switch n.GetControlRole() {
		case carillonv1.ControlRole_CONTROL_ROLE_VOTER:
			voters++
		case carillonv1.ControlRole_CONTROL_ROLE_LEARNER:
			learners++
		default:
		}
		if n.GetController() {
			controller = n.GetName()
		}
	}
	return fmt.Sprintf("%d voters, %d learners; controller %s", voters, learners, controller)
}

// replicasText is how far replicas are behind.
func replicasText(res *carillonv1.GetClusterResponse) string {
	all, learners, lag := 0, 0, uint64(0)
	for _, s := range res.GetShards() {
		for _, r := range s.GetMembers() {
			all++
			if r.GetLearner() {
				learners++
			}
			lag = max(lag, r.GetLag())
		}
	}
	return fmt.Sprintf("%d, of which %d are learners; at most %d entries behind", all, learners, lag)
}

// skewText is how unevenly jobs are spread over the shards, and over the tenants if they were asked for.
func skewText(res *carillonv1.GetClusterResponse) string {
	shards := res.GetShards()
	if len(shards) == 0 {
		return "-"
	}
	jobs := func(a, b *carillonv1.Shard) int {
		return cmp.Compare(a.GetBacklog().GetJobs(), b.GetBacklog().GetJobs())
	}
	most, fewest := slices.MaxFunc(shards, jobs), slices.MinFunc(shards, jobs)
	text := fmt.Sprintf("%d jobs in shard %d, %d in shard %d", most.GetBacklog().GetJobs(), most.GetId(),
		fewest.GetBacklog().GetJobs(), fewest.GetId())
	if len(res.GetTenants()) > 0 {
		largest, all := res.GetTenants()[0], res.GetBacklog().GetJobs()
		all = max(all, largest.GetJobs(), 1) // jobs come and go between the counts
		text += fmt.Sprintf("; tenant %s has %s of %d jobs (%d %%)", largest.GetTenant(), loadText(largest), all,
			largest.GetJobs()*100/all)
	}
	if n := res.GetUncountedShards(); n > 0 {
		text += fmt.Sprintf("; not all jobs of %d shards were counted by tenant", n)
	}
	return text
}

// loadText is how many jobs a tenant has: with a plus if that is not all.
func loadText(t *carillonv1.TenantLoad) string {
	if t.GetMore() {
		return fmt.Sprintf("%d+", t.GetJobs())
	}
	return fmt.Sprint(t.GetJobs())
}

func tenantRows(res *carillonv1.GetClusterResponse) [][]string {
	rows := [][]string{{"TENANT", "JOBS"}}
	for _, t := range res.GetTenants() {
		rows = append(rows, []string{t.GetTenant(), loadText(t)})
	}
	return rows
}

func nodeRows(res *carillonv1.GetClusterResponse) [][]string {
	rows := [][]string{{
		"NODE", "STATE", "ADDRESS", "VERSION", "READY", "CLOCK", "OFFSET", "CONTROL", "LEADS", "REPLICAS", "STARTED", "SILENT SINCE",
	}}
	for _, n := range res.GetNodes() {
		clock, offset := "ok", "-"
		switch {
		case n.GetStartTime() == nil:
			clock = "-"
		case n.GetClockHeld():
			clock = "held"
		case n.GetClockVirtual():
			clock = "virtual"
		}
		if d := n.GetClockOffset(); d != nil {
			offset = d.AsDuration().String()
		}
		role := "-"
		if n.GetControlRole() != carillonv1.ControlRole_CONTROL_ROLE_UNSPECIFIED {
			role = strings.ToLower(strings.TrimPrefix(n.GetControlRole().String(), "CONTROL_ROLE_"))
		}
		rows = append(rows, []string{
			n.GetName(), stateText(n.GetState()), orDash(n.GetAddress()), orDash(n.GetVersion()), fmt.Sprint(n.GetReady()), clock, offset,
			role, fmt.Sprint(n.GetShardsLed()), fmt.Sprint(n.GetReplicas()), instant(n.GetStartTime()), instant(n.GetSilentSince()),
		})
	}
	return rows
}

func shardRows(res *carillonv1.GetClusterResponse) [][]string {
	rows := [][]string{{"SHARD", "LEADER", "EPOCH", "STATE", "REPLICAS", "LAG", "APPLIED", "JOBS", "WAITING", "READY", "LEASED", "DEAD"}}
	for _, s := range res.GetShards() {
		state := "established"
		switch {
		case !s.GetEstablished():
			state = "electing"
		case s.GetDegraded():
			state = "degraded"
		}
		b := s.GetBacklog()
		names, lag := memberText(s)
		rows = append(rows, []string{
			fmt.Sprint(s.GetId()), orDash(s.GetLeader()), fmt.Sprint(s.GetEpoch()), state, names, lag, fmt.Sprint(s.GetAppliedIndex()),
			fmt.Sprint(b.GetJobs()), fmt.Sprint(b.GetWaiting()), fmt.Sprint(b.GetReady()), fmt.Sprint(b.GetLeased()),
			fmt.Sprint(b.GetDead()),
		})
	}
	return rows
}

// memberText names a shard's replicas, with what is special about them, and how far the last of them is behind.
func memberText(s *carillonv1.Shard) (names, lag string) {
	var list []string
	worst := uint64(0)
	for _, r := range s.GetMembers() {
		name := r.GetNode()
		switch {
		case r.GetSnapshot():
			name += "(snapshot)"
		case r.GetLearner():
			name += "(learner)"
		case !r.GetActive():
			name += "(silent)"
		}
		list = append(list, name)
		worst = max(worst, r.GetLag())
	}
	if len(list) == 0 {
		return orDash(strings.Join(s.GetReplicas(), ",")), "-"
	}
	return strings.Join(list, ","), fmt.Sprint(worst)
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
