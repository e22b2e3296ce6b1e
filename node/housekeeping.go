package node

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// housekeepInterval is how often the shards are looked at for rows that have outlived their retention. Nothing is
	// proposed where there are none.
	housekeepInterval = 10 * time.Second
	// housekeepStep is how many rows one entry removes, and housekeepSteps how many entries a shard gets in a round: due
	// work goes first.
	housekeepStep  = 500
	housekeepSteps = 20
	// eventsMaxAge is how long the event log is kept, and eventsMaxBytes how much of it the shards led here keep in all.
	eventsMaxAge   = 24 * time.Hour
	eventsMaxBytes = 1 << 30
)

// housekeep removes what has outlived its retention until ctx ends.
func (n *Node) housekeep(ctx context.Context) error {
	tick := time.NewTicker(housekeepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := n.keepHouse(ctx); err != nil {
			return err
		}
	}
}

// keepHouse removes what has outlived its retention by now, or what it comes to until ctx ends.
func (n *Node) keepHouse(ctx context.Context) error {
	if err := n.trimEvents(ctx, n.shardsToKeep()); err != nil {
		return err
	}
	for more := true; more && ctx.Err() == nil; {
		more = false
		for _, shard := range n.shardsToKeep() {
			again, err := n.housekeepShard(ctx, shard)
			if err != nil {
				return err
			}
			more = more || again
		}
	}
	return nil
}

// shardsToKeep are those that this node leads; none while the clock is held.
func (n *Node) shardsToKeep() (led []uint32) {
	for _, s := range n.host.Status() {
		if s.Established && n.guard.MayFire() {
			led = append(led, s.Shard)
		}
	}
	return led
}

// trimEvents cuts the event logs of shards that take more than their share once all together take more than the budget.
func (n *Node) trimEvents(ctx context.Context, shards []uint32) error {
	sizes := make([]uint64, len(shards))
	total := uint64(0)
	for i, shard := range shards {
		size, err := n.engine.DiskBytes(
			store.AppendKey(nil, shard, []byte{fsm.KindEvent}), store.AppendKey(nil, shard, []byte{fsm.KindEvent + 1}))
		if err != nil {
			return err
		}
		sizes[i] = size
		total += size
	}
	if total <= eventsMaxBytes {
		return nil
	}
	share := uint64(eventsMaxBytes) / uint64(len(shards))
	for i, shard := range shards {
		if sizes[i] <= share {
			continue
		}
		r := store.NewReader(n.engine, shard)
		meta := fsm.ReadMeta(r)
		if err := r.Err(); err != nil {
			return err
		}
		below := trimBelow(meta, sizes[i], share)
		_, err := n.host.Do(ctx, shard, &storagev1.Command{Housekeep: &storagev1.Housekeep{Limit: 1, TrimEventsBelow: below}})
		if err != nil {
			n.logger.Debug("trimming of events waits", "shard", shard, "error", err)
		}
	}
	return nil
}

// trimBelow is the offset from which on a shard's event log takes about share bytes of the size it takes now.
func trimBelow(meta *storagev1.Meta, size, share uint64) uint64 {
	kept := meta.GetEventOffset() - meta.GetEventTrimmed()
	return meta.GetEventOffset() - uint64(float64(kept)*min(1, float64(share)/float64(size)))
}

// housekeepShard removes a shard's outlived rows in bounded steps, as far as this round goes, and says whether there is
// more to do at once.
func (n *Node) housekeepShard(ctx context.Context, shard uint32) (due bool, err error) {
	err = n.snapshot(shard, func(r fsm.Reader) error {
		due = fsm.HousekeepDue(r, n.guard.Now(), eventsMaxAge.Milliseconds())
		return nil
	})
	if err != nil {
		return false, err
	}
	for step := 0; due && step < housekeepSteps && ctx.Err() == nil; step++ {
		res, err := n.host.Do(ctx, shard, &storagev1.Command{Housekeep: &storagev1.Housekeep{
			Limit: housekeepStep, EventsMaxAgeMs: eventsMaxAge.Milliseconds(),
		}})
		if err != nil {
			n.logger.Debug("housekeeping waits", "shard", shard, "error", err)
			return false, nil
		}
		due = res.More
	}
	return due, nil
}
