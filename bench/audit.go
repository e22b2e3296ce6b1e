package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// fingerprint stands for a set of jobs: their number and the sum of their names' hashes. Two sets with the same
// print are the same but for chance of one in 2^64; it takes 16 bytes for any number of jobs. Safe for concurrent use.
type fingerprint struct {
	mu    sync.Mutex
	count int
	sum   uint64
}

func (p *fingerprint) add(tenant, id string) {
	h := xxhash.Sum64String(tenant + "/" + id)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	p.sum += h
}

func (p *fingerprint) read() (count int, sum uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count, p.sum
}

// auditCallers read tenants' lists side by side.
const auditCallers = 4

// audit lists all jobs of all tenants in the given queues and compares them with those that were acknowledged. It returns
// how many are missing and how many there are too many; where the numbers agree but the jobs do not, one of each.
func audit(ctx context.Context, a *api, queues []string, want *fingerprint) (missing, extra int, err error) {
	found := &fingerprint{}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(auditCallers)
	for t := range tenants {
		for _, queue := range queues {
			group.Go(func() error { return listInto(gctx, a, tenantName(t), queue, found) })
		}
	}
	if err := group.Wait(); err != nil {
		return 0, 0, err
	}
	wantCount, wantSum := want.read()
	count, sum := found.read()
	switch {
	case count == wantCount && sum != wantSum:
		return 1, 1, nil
	default:
		return max(0, wantCount-count), max(0, count-wantCount), nil
	}
}

// listInto adds the jobs of one tenant in one queue to found; an empty queue: in all.
func listInto(ctx context.Context, a *api, tenant, queue string, found *fingerprint) error {
	req := &carillonv1.ListJobsRequest{Tenant: tenant, Queue: queue, PageSize: 1000}
	for start := time.Now(); ; {
		resp, err := a.jobs.ListJobs(ctx, connect.NewRequest(req))
		if err != nil && worthRetrying(ctx, err) && time.Since(start) < retryLimit {
			if err := wait(ctx, retryPause); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("list jobs of tenant %s: %w", tenant, err)
		}
		for _, job := range resp.Msg.GetJobs() {
			found.add(job.GetTenant(), job.GetId())
		}
		if req.PageToken = resp.Msg.GetNextPageToken(); req.PageToken == "" {
			return nil
		}
		start = time.Now()
	}
}
