package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// verifyAtOnce is how many shards are asked for with one call: progress is told after each.
const verifyAtOnce = 8

func (p *program) verifyCommand() *cli.Command {
	return p.operating(cli.Command{
		Name: "verify", Usage: "compare the replicas of shards and check that their state is as it must be",
		Description: "Every replica looks at its rows as one and the same entry of its shard's log leaves them. It changes nothing, and the\n" +
			"exit code is 1 if anything is wrong or could not be looked at.",
		Flags: []cli.Flag{&cli.UintSliceFlag{Name: "shard", Usage: "`SHARD` to verify; again for more", DefaultText: "all"}},
	}, p.verifyCluster)
}

func (p *program) verifyCluster(ctx context.Context, c *call) error {
	shards, err := shardsToVerify(ctx, c)
	if err != nil {
		return err
	}
	report := &carillonv1.VerifyClusterResponse{Result: carillonv1.VerifyResult_VERIFY_RESULT_OK}
	err = p.verifyShards(ctx, c, shards, report)
	if len(report.Shards) == 0 && err != nil {
		return err
	}
	// What was found before a call failed may have taken an hour.
	printed := c.print.message(report, func() [][]string { return verifyRows(report) })
	return errors.Join(printed, found(report), err)
}

// verifyShards adds to report what it finds, up to the first call that fails.
func (p *program) verifyShards(ctx context.Context, c *call, shards []uint32, report *carillonv1.VerifyClusterResponse) error {
	for at := range slices.Chunk(shards, verifyAtOnce) {
		res, err := c.client.VerifyCluster(ctx, &carillonv1.VerifyClusterRequest{Shards: at})
		if err != nil {
			return fmt.Errorf("verify %d of %d shards: %w", len(shards)-len(report.Shards), len(shards), err)
		}
		report.Shards = append(report.Shards, res.GetShards()...)
		report.Result = max(report.Result, res.GetResult())
		if len(report.Shards) < len(shards) {
			if _, err := fmt.Fprintf(p.stderr, "%d of %d shards are verified, %d are not as they should be\n",
				len(report.Shards), len(shards), notOK(report)); err != nil {
				return err
			}
		}
	}
	return nil
}

// found is an error if a report has anything but good news.
func found(report *carillonv1.VerifyClusterResponse) error {
	if report.Result == carillonv1.VerifyResult_VERIFY_RESULT_OK {
		return nil
	}
	err := fmt.Errorf("%d of %d shards are not as they should be", notOK(report), len(report.Shards))
	if report.Result == carillonv1.VerifyResult_VERIFY_RESULT_WRONG {
		return &wrongError{err}
	}
	return err
}

// notOK counts the shards of which that is so.
func notOK(report *carillonv1.VerifyClusterResponse) (n int) {
	for _, s := range report.GetShards() {
		if s.GetResult() != carillonv1.VerifyResult_VERIFY_RESULT_OK {
			n++
		}
	}
	return n
}

// shardsToVerify are those that were named, or all.
func shardsToVerify(ctx context.Context, c *call) (shards []uint32, err error) {
	if shards = uint32sFlag(c.Context, "shard"); len(shards) > 0 {
		slices.Sort(shards)
		return slices.Compact(shards), nil
	}
	cluster, err := c.client.GetCluster(ctx, &carillonv1.GetClusterRequest{})
	for _, s := range cluster.GetShards() {
		shards = append(shards, s.GetId())
	}
	return shards, err
}

func verifyRows(report *carillonv1.VerifyClusterResponse) [][]string {
	rows := [][]string{{"SHARD", "RESULT", "ENTRY", "ROWS", "REPLICAS", "FOUND"}}
	for _, s := range report.GetShards() {
		var nodes []string
		var count uint64
		for _, r := range s.GetReplicas() {
			if r.GetDone() {
				nodes = append(nodes, r.GetNode())
				count = max(count, r.GetRows())
			}
		}
		result := strings.ToLower(strings.TrimPrefix(s.GetResult().String(), "VERIFY_RESULT_"))
		first := "-"
		if len(s.GetProblems()) > 0 {
			first = s.GetProblems()[0]
		}
		rows = append(rows, []string{
			fmt.Sprint(s.GetShard()), result, fmt.Sprint(s.GetIndex()), fmt.Sprint(count), orDash(strings.Join(nodes, ",")), first,
		})
		for _, problem := range s.GetProblems()[min(1, len(s.GetProblems())):] {
			rows = append(rows, []string{"", "", "", "", "", problem})
		}
		for _, r := range s.GetReplicas() {
			for _, v := range r.GetViolations() {
				rows = append(rows, []string{"", "", "", "", r.GetNode(), fmt.Sprintf("%s: %s, row %s", v.GetRule(), v.GetDetail(), v.GetRow())})
			}
		}
	}
	return rows
}
