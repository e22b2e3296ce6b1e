package node

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// levelEvery is how often a node looks whether the shards that it leads can go to a higher level.
const levelEvery = 5 * time.Second

// raiseLevels raises the level of the state machine in the shards led here, once every store's binary has supported the
// higher one for so long that nobody goes back any more. A level is never lowered.
func (n *Node) raiseLevels(ctx context.Context) error {
	level, since := uint32(0), time.Now()
	for pause(ctx, min(levelEvery, n.cfg.RaiseLevelAfter)) == nil {
		if len(n.belowLevel(fsm.MaxLevel)) == 0 {
			continue
		}
		stores, err := n.plane.Stores(ctx)
		if err != nil {
			continue // nothing is raised on what may be out of date
		}
		if common := control.CommonLevel(stores); common != level {
			level, since = common, time.Now()
		}
		if time.Since(since) < n.cfg.RaiseLevelAfter {
			continue
		}
		for _, shard := range n.belowLevel(level) {
			_, err := n.Do(ctx, shard, &storagev1.Command{RaiseLevel: &storagev1.RaiseLevel{Level: level}})
			if err != nil {
				n.logger.Debug("level not raised yet", "shard", shard, "level", level, "error", err)
				continue
			}
			n.logger.Info("every node supports a higher level, and the shard uses it", "shard", shard, "level", level)
		}
	}
	return nil
}

// belowLevel are the shards led here whose state machine is below a level.
func (n *Node) belowLevel(level uint32) (shards []uint32) {
	for _, s := range n.host.Status() {
		if !s.Established {
			continue
		}
		r := store.NewReader(n.engine, s.Shard)
		if meta := fsm.ReadMeta(r); r.Err() == nil && meta.GetLevel() < level {
			shards = append(shards, s.Shard)
		}
	}
	return shards
}
