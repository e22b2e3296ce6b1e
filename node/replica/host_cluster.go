package replica

import (
	"context"
	"errors"
	"fmt"

	"github.com/carillon-scheduler/carillon/store"
)

// maxImportJobs is how many received snapshots may wait to be installed or aborted before the loop waits for them.
const maxImportJobs = 64

// importJob is a received snapshot to be installed, or aborted.
type importJob struct {
	shard   uint32
	rows    store.Import
	install bool
}

// Want tells what the control plane wants a shard's group to be; see Core.
func (h *Host) Want(shard uint32, w Wanted) {
	h.mail.call(func(c *Core) { c.Want(shard, w) })
}

// Add takes in a replica that CreateLearner has made, as Load returned it, and returns when it runs.
func (h *Host) Add(ctx context.Context, s ReplicaState) error {
	return h.ask(ctx, func(c *Core, done func(error)) { done(c.Add(s)) })
}

// Remove destroys the shard's replica on this store and returns when its rows are gone; if ctx ends first it goes on.
func (h *Host) Remove(ctx context.Context, shard uint32) error {
	return h.ask(ctx, func(c *Core, done func(error)) { c.Remove(shard, done) })
}

// Suspect says that a store is taken for dead or stuck, or no longer so; see Core.
func (h *Host) Suspect(store string, suspect bool) {
	h.mail.call(func(c *Core) { c.Suspect(store, suspect) })
}

// TransferAll hands every leadership that another voter can take to one, and returns when it is done or ctx ends. It is for
// a store that is about to stop: those it gets later are handed over too.
func (h *Host) TransferAll(ctx context.Context) error {
	return h.ask(ctx, (*Core).DrainLeaders)
}

// ReplicaID is the id of the shard's replica on this store, as ReadSnapshot wants to know it.
func (h *Host) ReplicaID(shard uint32) (id uint64, ok bool) {
	s, ok := h.StatusOf(shard)
	return s.ReplicaID, ok
}

// ReceiveSnapshot takes over what ReadSnapshot has read. It is installed if raft wants it, else dropped.
func (h *Host) ReceiveSnapshot(got Received) error {
	if !h.mail.call(func(c *Core) { c.StepSnapshot(got) }) {
		return errors.Join(ErrStopped, got.Abort())
	}
	return nil
}

// SnapshotSent says how a snapshot that SendSnapshot was asked for went.
func (h *Host) SnapshotSent(req SnapshotRequest, err error) {
	h.mail.call(func(c *Core) { c.SnapshotSent(req, err == nil) })
}

// passSnapshots hands a turn's snapshots to those who do what takes long.
func (h *Host) passSnapshots(turn Turn) error {
	for _, req := range turn.Snapshots {
		if h.cfg.SendSnapshot == nil {
			h.core.SnapshotSent(req, false)
			continue
		}
		source, err := h.core.engine.NewSnapshot()
		if err != nil {
			return fmt.Errorf("snapshot shard %d: %w", req.Shard, err)
		}
		h.cfg.SendSnapshot(req, source)
	}
	for _, in := range turn.Installs {
		h.imports <- importJob{shard: in.Shard, rows: in.Rows, install: true}
	}
	for _, rows := range turn.Aborts {
		h.imports <- importJob{rows: rows}
	}
	return nil
}

// doImports installs and aborts what was received, one after the other. After an error of the engine nothing is done any
// more: the loop, which is told of it, ends with it.
func (h *Host) doImports() error {
	var failed error
	for job := range h.imports {
		if failed != nil {
			continue
		}
		if !job.install {
			// What stays behind takes up space until the next start, and is no reason to stop.
			if err := job.rows.Abort(); err != nil {
				h.cfg.Logger.Warn("abort snapshot", "error", err)
			}
			continue
		}
		err := h.core.engine.Install(job.rows)
		h.mail.call(func(c *Core) { c.Installed(job.shard, err) })
		failed = err
	}
	return nil
}
