package node

import (
	"context"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/node/route"
	"github.com/carillon-scheduler/carillon/rpc"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// local is what this node does by itself, for the shards that it leads or has a replica of.
type local struct{ n *Node }

var _ route.Local = (*local)(nil)

// Propose puts commands into the logs of their shards and waits for what comes of them.
func (l *local) Propose(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome {
	type delivery struct {
		i      int
		result fsm.Result
		err    error
	}
	done := make(chan delivery, len(cmds))
	proposals := make([]replica.Proposal, len(cmds))
	for i, c := range cmds {
		proposals[i] = replica.Proposal{Shard: c.Shard, Command: c.Command, Done: func(res fsm.Result, err error) {
			done <- delivery{i, res, err}
		}}
	}
	l.n.host.ProposeAll(proposals)
	all := make([]rpc.Outcome, len(cmds))
	for i := range all {
		all[i].Err = replica.ErrAmbiguous
	}
	for range cmds {
		select {
		case d := <-done:
			all[d.i].Result, all[d.i].Err = d.result, d.err
		case <-ctx.Done():
			return all
		}
	}
	return all
}

func (l *local) Poll(ctx context.Context, req dispatch.PollRequest) ([]*storagev1.Execution, error) {
	return l.n.dispatcher.Poll(ctx, req)
}

func (l *local) Held(claimID string) ([]*storagev1.Execution, error) {
	return l.n.dispatcher.Held(claimID)
}

func (l *local) Release(leases []*storagev1.Execution) { l.n.dispatcher.Release(leases) }

// View reads the rows of this node's replica.
func (l *local) View(ctx context.Context, shard uint32, stale bool, fn func(fsm.Reader) error) error {
	if err := l.n.host.Read(ctx, shard, stale); err != nil {
		return err
	}
	return l.n.snapshot(shard, fn)
}
