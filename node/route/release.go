package route

import (
	"context"
	"log/slog"
	"sync"
	"time"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// releases are leases on their way back to other nodes, by store.
type releases struct {
	wake chan struct{}

	mu      sync.Mutex
	pending map[string][]*clusterv1.LeaseRef
	waiting int
}

// Release gives leases back that could not be delivered, uncounted, to whoever leads their shards now. It returns at once;
// what cannot be given back ends by its deadline.
func (p *Poller) Release(leases []*storagev1.Execution) {
	var here []*storagev1.Execution
	p.releases.mu.Lock()
	for _, e := range leases {
		store := p.router.leader(p.cfg.ShardOf(e.Tenant, e.JobId))
		switch {
		case store == p.self:
			here = append(here, e)
		case p.releases.waiting >= maxReleases:
			p.router.counters.releasesDropped.Add(1)
		default:
			p.releases.pending[store] = append(p.releases.pending[store], encodeLease(e))
			p.releases.waiting++
		}
	}
	p.releases.mu.Unlock()
	if len(here) > 0 {
		p.local.Release(here)
	}
	if len(here) < len(leases) {
		select {
		case p.releases.wake <- struct{}{}:
		default:
		}
	}
}

// Run gives leases back to other nodes until ctx ends, and then for up to a second more what is left.
func (p *Poller) Run(ctx context.Context) error {
	// What is under way when ctx ends goes on, too.
	giving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastReleases, cancel) })
	defer stop()
	for {
		select {
		case <-p.releases.wake:
			p.giveBack(giving)
		case <-ctx.Done():
			p.giveBack(giving)
			return ctx.Err()
		}
	}
}

// giveBack makes one attempt for everything that waits.
func (p *Poller) giveBack(ctx context.Context) {
	p.releases.mu.Lock()
	pending := p.releases.pending
	p.releases.pending, p.releases.waiting = map[string][]*clusterv1.LeaseRef{}, 0
	p.releases.mu.Unlock()
	for store, leases := range pending {
		peer, err := p.router.peer(store)
		for err == nil && len(leases) > 0 {
			n := min(len(leases), maxReleasesPerCall)
			_, err = call(ctx, peer, peer.client.Release, &clusterv1.ReleaseRequest{Store: store, From: p.self, Leases: leases[:n]})
			if err == nil {
				leases = leases[n:]
			}
		}
		if err != nil {
			p.log.Warn("leases not given back: they end by their deadlines",
				slog.String("store", store), slog.Int("leases", len(leases)), slog.Any("error", err))
			p.router.counters.releasesDropped.Add(uint64(len(leases)))
		}
	}
}
