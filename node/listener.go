package node

import (
	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"
)

// listener is what the replicas tell; all of it runs on their loop and must not block.
type listener struct{ n *Node }

var _ replica.Listener = listener{}

func (l listener) OnEstablished(shard uint32, term uint64) {
	l.n.logger.Debug("shard established", "shard", shard, "epoch", term)
	l.n.dispatcher.Takeover(shard, term)
	l.n.settings.established(shard)
	l.n.tasks.look(shard)
	l.n.leads.changed.poke()
}

func (l listener) OnApplied(shard uint32, effects *fsm.Effects) {
	l.n.dispatcher.Applied(shard, effects)
	l.n.metrics.applied(effects)
}

func (l listener) OnStepDown(shard uint32) {
	l.n.logger.Warn("shard no longer led here", "shard", shard)
	l.n.dispatcher.StepDown(shard)
	l.n.settings.steppedDown(shard)
	l.n.leads.changed.poke()
}

// dispatchHost is the node as the dispatcher sees it.
type dispatchHost struct{ n *Node }

var _ dispatch.Host = dispatchHost{}

func (h dispatchHost) ProposeAll(all []dispatch.Proposal) {
	proposals := make([]replica.Proposal, len(all))
	for i, p := range all {
		proposals[i] = replica.Proposal{Shard: p.Shard, Command: p.Command, Done: p.Done}
	}
	h.n.host.ProposeAll(proposals)
}

func (h dispatchHost) Rows(shard uint32) dispatch.Rows { return store.NewReader(h.n.engine, shard) }

func (h dispatchHost) ShardOf(tenant, jobID string) uint32 { return h.n.slots.shardOf(tenant, jobID) }

func (h dispatchHost) Now() int64 { return h.n.guard.Now() }

func (h dispatchHost) MayFire() bool { return h.n.guard.MayFire() }
