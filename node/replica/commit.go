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
	// apart are applied indexes kept out of the batch, with that fault only.
	apart []*replica
}

// commit writes the batch and returns how to wait for it, if anything depends on it.
func (c *Core) commit(w *write) (wait func() error, err error) {
	sync := len(w.responses) > 0 || w.early
	if w.batch.Len() == 0 {
		if len(w.responses) == 0 {
			return nil, nil
		}
		// A sync of what earlier turns wrote: an empty batch would not make the engine wait for them.
		r := w.responses[0].replica
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
		c.unsynced = append(c.unsynced, unsynced{seq: c.seq, responses: w.responses})
	}
	return wait, nil
}

// commitApart is the fault AppliedIndexApart.
func (c *Core) commitApart(apart []*replica) error {
	if len(apart) == 0 {
		return nil
	}
	b := c.engine.NewBatch()
	for _, r := range apart {
		b.Set(rowKey(r.shard, fsm.KindApplied), encodeApplied(r.applied))
	}
	_, err := c.engine.Commit(b, false)
	return err
}
