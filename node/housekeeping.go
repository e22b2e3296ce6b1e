package node

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"

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
	// eventsMaxAge is how long the event log is kept.
	eventsMaxAge = 24 * time.Hour
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
		for _, s := range n.host.Status() {
			if !s.Established || !n.guard.MayFire() {
				continue
			}
			if err := n.housekeepShard(ctx, s.Shard); err != nil {
				return err
			}
		}
	}
}

// housekeepShard removes a shard's outlived rows in bounded steps, as far as this round goes.
func (n *Node) housekeepShard(ctx context.Context, shard uint32) error {
	var due bool
	err := n.snapshot(shard, func(r fsm.Reader) error {
		due = fsm.HousekeepDue(r, n.guard.Now(), eventsMaxAge.Milliseconds())
		return nil
	})
	if err != nil {
		return err
	}
	for step := 0; due && step < housekeepSteps && ctx.Err() == nil; step++ {
		res, err := n.host.Do(ctx, shard, &storagev1.Command{Housekeep: &storagev1.Housekeep{
			Limit: housekeepStep, EventsMaxAgeMs: eventsMaxAge.Milliseconds(),
		}})
		if err != nil {
			n.logger.Debug("housekeeping waits", "shard", shard, "error", err)
			return nil
		}
		due = res.More
	}
	return nil
}
