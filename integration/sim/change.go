package sim

import (
	"github.com/carillon-scheduler/carillon/fsm"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// counted counts what was accepted.
func counted(c *cluster, kind Kind, next func(fsm.Result)) func(fsm.Result) {
	return func(r fsm.Result) {
		if r.Refusal == nil {
			c.count(kind)
		}
		next(r)
	}
}

// put makes a job be something else, whether it is there or not.
func (w *crew) put(j job) func(*node) *storagev1.Command {
	key, hash := w.key()
	want := w.definition(j)
	want.Hash = hash
	knows := w.c.rng.IntN(2) == 0
	return func(n *node) *storagev1.Command {
		want := want.CloneVT()
		if knows {
			want.Horizon, want.HorizonFromMs = w.horizon(n, want.Schedule)
		}
		return &storagev1.Command{PutJob: &storagev1.PutJob{Job: want, IdempotencyKey: key, Hash: hash}}
	}
}

// backfill asks for what a recurring job named in the last seconds.
func (w *crew) backfill(j job) func(*node) *storagev1.Command {
	c := w.c
	id, hash := w.key()
	b := &storagev1.StartBackfill{
		Tenant: tenant, JobId: j.id, Id: id, Hash: hash, FromMs: c.trueMS() - c.between(2000, 8000), ToMs: c.trueMS() - 1500,
		Max: 100, InTurn: c.rng.IntN(2) == 0,
	}
	return func(n *node) *storagev1.Command {
		b := b.CloneVT()
		if v, ok := fsm.GetJob(n.rows(j.shard), tenant, j.id); ok {
			b.ExpectedVersion = v.Job.Version
		}
		return &storagev1.Command{StartBackfill: b}
	}
}

// updateOthers changes fields that neither move a schedule nor pause.
func (w *crew) updateOthers(j job) func(*node) *storagev1.Command {
	c := w.c
	key, hash := w.key()
	as := w.definition(j)
	u := &storagev1.UpdateJob{
		Tenant: tenant, JobId: j.id, IdempotencyKey: key, Hash: hash, Template: as.Template, CatchUp: as.CatchUp,
		CatchUpWindowMs: c.between(0, 5000), CatchUpPerMinute: uint32(c.rng.IntN(600)), Labels: as.Labels,
	}
	for _, field := range [...]string{
		"catch_up", "catch_up_window", "catch_up_per_minute", "labels", "queue", "priority", "payload", "retry",
	} {
		if c.rng.IntN(4) == 0 {
			u.Fields = append(u.Fields, field)
		}
	}
	if len(u.Fields) == 0 {
		u.Fields = []string{"priority"}
	}
	return func(*node) *storagev1.Command { return &storagev1.Command{UpdateJob: u.CloneVT()} }
}
