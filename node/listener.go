package node

import (
	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// listener is what the replicas tell; all of it runs on their loop and must not block.
type listener struct{ n *Node }

var _ replica.Listener = listener{}

func (l listener) OnEstablished(shard uint32, term uint64) {
	l.n.logger.Debug("shard established", "shard", shard, "epoch", term)
	l.n.dispatcher.Takeover(shard, term)
	l.n.expander.Takeover(shard)
	l.n.settings.established(shard)
	l.n.tasks.look(shard)
	l.n.leads.changed.poke()
	l.n.advancer.look()
}

func (l listener) OnApplied(shard uint32, effects *fsm.Effects) {
	l.n.dispatcher.Applied(shard, effects)
	l.n.expander.Applied(shard, effects)
	if effects.TasksStarted {
		l.n.tasks.look(shard)
	}
	l.n.metrics.applied(effects)
	l.n.advancer.told()
}

func (l listener) OnStepDown(shard uint32) {
	l.n.logger.Warn("shard no longer led here", "shard", shard)
	l.n.dispatcher.StepDown(shard)
	l.n.expander.StepDown(shard)
	l.n.settings.steppedDown(shard)
	l.n.leads.changed.poke()
}

// dispatchHost is the node as the dispatcher sees it.
type dispatchHost struct{ n *Node }

var _ dispatch.Host = dispatchHost{}

func (h dispatchHost) ProposeAll(all []dispatch.Proposal) {
	proposals := make([]replica.Proposal, len(all))
	for i, p := range all {
		proposals[i] = replica.Proposal{Shard: p.Shard, Command: p.Command, Relaxed: h.n.relaxed(p.Command), Done: p.Done}
	}
	h.n.host.ProposeAll(proposals)
}

func (h dispatchHost) Rows(shard uint32) dispatch.Rows { return store.NewReader(h.n.engine, shard) }

func (h dispatchHost) ShardOf(tenant, jobID string) uint32 { return h.n.slots.shardOf(tenant, jobID) }

func (h dispatchHost) Now() int64 { return h.n.guard.Now() }

func (h dispatchHost) MayFire() bool { return h.n.guard.MayFire() }

// expandHost is the node as the expander sees it.
type expandHost struct{ n *Node }

var _ expand.Host = expandHost{}

func (h expandHost) Propose(shard uint32, cmd *storagev1.Command, done func(fsm.Result, error)) {
	h.n.host.ProposeAll([]replica.Proposal{{Shard: shard, Command: cmd, Relaxed: h.n.relaxed(cmd), Done: done}})
}

func (h expandHost) Rows(shard uint32) expand.Rows { return store.NewReader(h.n.engine, shard) }

func (h expandHost) Now() int64 { return h.n.guard.Now() }

func (h expandHost) MayFire() bool { return h.n.guard.MayFire() }
