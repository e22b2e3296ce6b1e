package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

const (
	// maxCountedJobs bounds the jobs of a shard that are counted by tenant; countStep of them are read between two looks at
	// the clock.
	maxCountedJobs = 200_000
	countStep      = 10_000
	// countTime bounds how long a node counts for one answer, so that it comes before a caller takes the node for dead.
	countTime = time.Second
	// maxToldTenants bounds the tenants of a shard in an answer.
	maxToldTenants = 1000
)

// countTenants adds to the shards led here how many jobs each tenant has. Each shard has the same part of the time.
func (n *Node) countTenants(ctx context.Context, led []*clusterv1.ShardStatus) error {
	until := time.Now().Add(countTime)
	for i, s := range led {
		now := time.Now()
		end := now.Add(until.Sub(now) / time.Duration(len(led)-i))
		goOn := func() bool { return ctx.Err() == nil && time.Now().Before(end) }
		err := n.snapshot(s.GetId(), func(r fsm.Reader) error {
			s.Tenants = countShard(r, maxCountedJobs, countStep, goOn)
			return nil
		})
		switch {
		case errors.Is(err, store.ErrReplaced):
			s.Tenants = nil // led no more
		case err != nil:
			return err
		}
	}
	return nil
}

// countShard counts a shard's jobs by tenant, at most limit in steps; before each it asks whether to go on.
func countShard(r fsm.Reader, limit, step int, goOn func() bool) *clusterv1.ShardTenants {
	res := &clusterv1.ShardTenants{}
	var cursor []byte
	for read := 0; ; {
		if read >= limit || !goOn() {
			res.More = true
			if n := len(res.Loads); n > 0 {
				res.Loads[n-1].More = true // the rest can be of the same tenant
			}
			break
		}
		budget := min(step, limit-read)
		counts, next := fsm.CountTenants(r, cursor, budget)
		for _, c := range counts {
			if n := len(res.Loads); n > 0 && res.Loads[n-1].Tenant == c.Tenant {
				res.Loads[n-1].Jobs += c.Jobs
				continue
			}
			res.Loads = append(res.Loads, &clusterv1.TenantLoad{Tenant: c.Tenant, Jobs: c.Jobs})
		}
		if next == nil {
			break
		}
		read, cursor = read+budget, next
	}
	slices.SortFunc(res.Loads, func(a, b *clusterv1.TenantLoad) int {
		return cmp.Or(cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.Tenant, b.Tenant))
	})
	if len(res.Loads) > maxToldTenants {
		res.Loads, res.More = res.Loads[:maxToldTenants], true
	}
	return res
}

// sumTenants returns the top tenants with most jobs over all shards, and of how many shards not all jobs are in counts.
func sumTenants(shards []uint32, counts map[uint32]*clusterv1.ShardTenants, top int) (list []rpc.TenantLoad, uncounted int) {
	sums := map[string]*rpc.TenantLoad{}
	for _, c := range counts {
		for _, l := range c.GetLoads() {
			sum := sums[l.GetTenant()]
			if sum == nil {
				sum = &rpc.TenantLoad{Tenant: l.GetTenant()}
				sums[l.GetTenant()] = sum
			}
			sum.Jobs += l.GetJobs()
			sum.More = sum.More || l.GetMore()
		}
	}
	for _, sum := range sums {
		list = append(list, *sum)
	}
	slices.SortFunc(list, func(a, b rpc.TenantLoad) int {
		return cmp.Or(cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.Tenant, b.Tenant))
	})
	list = list[:min(top, len(list))]
	for _, shard := range shards {
		c := counts[shard]
		if c != nil && !c.GetMore() {
			continue
		}
		uncounted++
		told := map[string]bool{}
		for _, l := range c.GetLoads() {
			told[l.GetTenant()] = true
		}
		for i := range list {
			list[i].More = list[i].More || !told[list[i].Tenant]
		}
	}
	return list, uncounted
}
