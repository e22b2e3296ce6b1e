package replica

import (
	"errors"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
)

// write is a turn's batch in the making.
type write struct {
	batch   store.Batch
	stampMS int64
	// responses wait for the sync; a turn without any needs none.
	responses []responses
	// early: some responses did not wait for the sync, with that fault only.
	early bool
	// tombstones become durable with the sync, after which installs may begin.
	tombstones []*removal
	installs   []*replica
	// apart is what a fault keeps out of the batch; nil without one.
	apart store.Batch
}

// commit writes the batch and returns how to wait for it, if anything depends on it.
func (c *Core) commit(w *write) (wait func() error, err error) {
	sync := len(w.responses) > 0 || len(w.tombstones) > 0 || len(w.installs) > 0 || w.early
	if w.batch.Len() == 0 {
		// A sync of what earlier turns wrote: an empty batch would not make the engine wait for them.
		var r *replica
		switch {
		case len(w.responses) > 0:
			r = w.responses[0].replica
		case len(w.installs) > 0:
			r = w.installs[0]
		default:
			return nil, nil
		}
		w.batch.Set(rowKey(r.shard, fsm.KindHardState), encodeHardState(r.hard))
	}
	if wait, err = c.engine.Commit(w.batch, sync); err != nil {
		return nil, err
	}
	if err := c.commitApart(w.apart); err != nil {
		return nil, err
	}
	if sync {
		if wait == nil {
			return nil, errors.New("engine has no wait for a synced batch")
		}
		c.counters.Syncs++
		c.unsynced = append(c.unsynced, unsynced{
			seq: c.seq, responses: w.responses, tombstones: w.tombstones, installs: w.installs,
		})
	}
	return wait, nil
}

// commitApart commits what a fault kept out of the batch.
func (c *Core) commitApart(apart store.Batch) error {
	if apart == nil || apart.Len() == 0 {
		return nil
	}
	_, err := c.engine.Commit(apart, false)
	return err
}

// splitBatch is the fault IdempotencyApart: records of idempotency keys go to another batch.
type splitBatch struct {
	store.Batch
	apart store.Batch
}

func (b splitBatch) Set(key, value []byte) {
	if key[kindAt] == fsm.KindIdempotency {
		b.apart.Set(key, value)
		return
	}
	b.Batch.Set(key, value)
}
