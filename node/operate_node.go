package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/rpc"
)

// operateOn is operate for a call about one node.
func (n *Node) operateOn(ctx context.Context, node string) (*operation, control.StoreRecord, error) {
	o, err := n.operate(ctx)
	if err != nil {
		return nil, control.StoreRecord{}, err
	}
	s, err := o.find("node", node)
	return o, s, err
}

// Drain implements rpc.Operator.
func (n *Node) Drain(ctx context.Context, node string) (rpc.NodeChange, error) {
	o, s, err := n.operateOn(ctx, node)
	if err != nil {
		return rpc.NodeChange{}, err
	}
	switch {
	case s.State == control.StoreGone:
		return rpc.NodeChange{}, refuse(fsm.FailedPrecondition, "node", "the store of node %s is gone: there is nothing to drain", s.Name)
	case !slices.ContainsFunc(o.view.Stores, func(other control.StoreView) bool { return other.UUID != s.UUID && o.takes(other.UUID) }):
		return rpc.NodeChange{}, refuse(fsm.FailedPrecondition, "node", "there is no other node that could take anything of %s", s.Name)
	}
	if err := o.setState(ctx, s, control.StoreDraining); err != nil {
		return rpc.NodeChange{}, err
	}
	shards, err := o.shards(nil, s.UUID)
	if err != nil {
		return rpc.NodeChange{}, err
	}
	var moves []move
	for _, shard := range shards {
		moves = append(moves, o.plan(shard, s.UUID, ""))
	}
	o.carryOut(ctx, moves)
	if o, s, err = n.operateOn(ctx, s.UUID); err != nil {
		return rpc.NodeChange{}, err
	}
	return o.drained(s), nil
}

// drained says how far a drain is.
func (o *operation) drained(s control.StoreRecord) rpc.NodeChange {
	c := o.change(s)
	stuck := 0 // leaderships that nobody else can have
	for _, shard := range o.view.Wanted {
		if o.view.Leaders[shard.ID] == s.UUID && o.heir(shard, s.UUID) == "" {
			stuck++
		}
	}
	c.Done = c.Led == stuck && c.Replicas == c.Staying
	switch {
	case !c.Done:
		c.Message = fmt.Sprintf("%d leaderships and %d replicas are still to be moved", c.Led-stuck, c.Replicas-c.Staying)
	case c.Staying > 0 && stuck > 0:
		c.Message = fmt.Sprintf("it keeps %d leaderships and %d replicas: no other node has a vote or room", stuck, c.Staying)
	case c.Staying > 0:
		c.Message = fmt.Sprintf("it leads nothing; %d replicas stay, because no other node has room for them: "+
			"it may be restarted, and must not be removed", c.Staying)
	default:
		c.Message = "it leads nothing and has no replicas: it may be removed"
	}
	return c
}

// Undrain implements rpc.Operator.
func (n *Node) Undrain(ctx context.Context, node string) (rpc.NodeChange, error) {
	o, s, err := n.operateOn(ctx, node)
	if err != nil {
		return rpc.NodeChange{}, err
	}
	if s.State == control.StoreGone {
		return rpc.NodeChange{}, refuse(fsm.FailedPrecondition, "node",
			"the store of node %s is gone for good: start the node with an empty data directory", s.Name)
	}
	if err := o.setState(ctx, s, control.StoreUp); err != nil {
		return rpc.NodeChange{}, err
	}
	s.State = control.StoreUp
	c := o.change(s)
	c.Done, c.Message = true, "it gets replicas and leaderships again"
	return c, nil
}

// ReplaceStore implements rpc.Operator.
func (n *Node) ReplaceStore(ctx context.Context, node string) (rpc.NodeChange, error) {
	o, s, err := n.operateOn(ctx, node)
	if err != nil {
		return rpc.NodeChange{}, err
	}
	if s.State != control.StoreGone {
		lives, err := o.lives(ctx, s)
		switch {
		case err != nil:
			return rpc.NodeChange{}, err
		case lives:
			return rpc.NodeChange{}, refuse(fsm.FailedPrecondition, "node", "node %s lives: its store is not lost", s.Name)
		case s.Live:
			return o.waiting(s), nil
		}
		if err := o.mayLose(s); err != nil {
			return rpc.NodeChange{}, err
		}
		if err := o.setState(ctx, s, control.StoreGone); err != nil {
			return rpc.NodeChange{}, err
		}
		s.State = control.StoreGone
	}
	return o.gone(s), nil
}

// RemoveNode implements rpc.Operator.
func (n *Node) RemoveNode(ctx context.Context, node string) (rpc.NodeChange, error) {
	o, s, err := n.operateOn(ctx, node)
	if err != nil {
		return rpc.NodeChange{}, err
	}
	if s.UUID == n.dir.Ident().StoreUUID {
		return rpc.NodeChange{}, refuse(fsm.FailedPrecondition, "node", "%s is the node that was called: call another one with --addr", s.Name)
	}
	if s.State != control.StoreGone {
		lives, err := o.lives(ctx, s)
		switch {
		case err != nil:
			return rpc.NodeChange{}, err
		case lives && s.State != control.StoreDraining:
			return rpc.NodeChange{}, refuse(fsm.FailedPrecondition, "node",
				"node %s lives: drain it first, and remove it when it has no replicas any more", s.Name)
		case lives && (o.change(s).Replicas > 0 || o.leads[s.UUID] > 0):
			return rpc.NodeChange{}, refuse(fsm.FailedPrecondition, "node", "node %s lives and is not drained yet: %s", s.Name, o.drained(s).Message)
		case !lives && s.Live:
			return o.waiting(s), nil
		}
		if err := o.mayLose(s); err != nil {
			return rpc.NodeChange{}, err
		}
		if err := o.mayLoseMember(ctx, s); err != nil {
			return rpc.NodeChange{}, err
		}
		if err := o.setState(ctx, s, control.StoreGone); err != nil {
			return rpc.NodeChange{}, err
		}
		s.State = control.StoreGone
	}
	c := o.gone(s)
	if err := n.members().RemoveMember(ctx, s.UUID); errors.Is(err, control.ErrBusy) || errors.Is(err, control.ErrUnavailable) {
		c.Done, c.Message = false, "its vote in the control plane is still to be removed: "+err.Error()
	} else if err != nil {
		return rpc.NodeChange{}, err
	}
	return c, nil
}

// change is how a node stands.
func (o *operation) change(s control.StoreRecord) rpc.NodeChange {
	c := rpc.NodeChange{Node: s.Name, Store: s.UUID, State: storeState(s.State), Led: o.leads[s.UUID]}
	for _, shard := range o.view.Wanted {
		wanted, actual := hasReplica(shard.Replicas, s.UUID), o.view.Actual[shard.ID]
		if !wanted && !hasReplica(actual.Voters, s.UUID) && !hasReplica(actual.Learners, s.UUID) {
			continue
		}
		c.Replicas++
		if wanted && !o.room(shard) {
			c.Staying++
		}
	}
	return c
}

func hasReplica(replicas []control.Replica, store string) bool {
	return slices.ContainsFunc(replicas, func(r control.Replica) bool { return r.Store == store })
}

// room says whether there is a store that could get another replica of a shard.
func (o *operation) room(shard control.Shard) bool {
	return slices.ContainsFunc(o.view.Stores, func(s control.StoreView) bool {
		return o.takes(s.UUID) && !hasReplica(shard.Replicas, s.UUID)
	})
}

// gone says how far the loss of a store is made good.
func (o *operation) gone(s control.StoreRecord) rpc.NodeChange {
	c := o.change(s)
	c.Done = c.Replicas == c.Staying
	switch {
	case !c.Done:
		c.Message = fmt.Sprintf("%d replicas are still to be made on other nodes", c.Replicas-c.Staying)
	case c.Staying > 0:
		c.Message = fmt.Sprintf("its store is gone; %d shards have a voter less until a node with room joins: "+
			"start one with an empty data directory", c.Staying)
	default:
		c.Message = "its store is gone and nothing is left of it"
	}
	return c
}

// waiting is the answer while a node that does not make itself heard still holds its lease.
func (o *operation) waiting(s control.StoreRecord) rpc.NodeChange {
	c := o.change(s)
	c.Message = "it was alive a moment ago: its lease has to lapse first"
	return c
}

// setState says what is wanted of a store, unless that stands.
func (o *operation) setState(ctx context.Context, s control.StoreRecord, state control.StoreState) error {
	if s.State == state {
		return nil
	}
	if err := o.n.plane.SetStoreState(ctx, nil, s.UUID, state); err != nil {
		return controlError(err)
	}
	o.n.logger.Info("an operator has changed what is wanted of a store", "node", s.Name, "store", s.UUID, "state", string(state))
	return nil
}

// lives says whether a store's node makes itself heard, which takes a moment to find out of one that does not.
func (o *operation) lives(ctx context.Context, s control.StoreRecord) (bool, error) {
	if s.UUID == o.n.dir.Ident().StoreUUID || o.n.inner.hears(ctx, s.UUID) {
		return true, nil
	}
	return false, ctx.Err()
}

// mayLose refuses the loss of a store without which a shard has no majority: nothing could take its replica's place then, and
// what only it has would be lost.
func (o *operation) mayLose(s control.StoreRecord) error {
	for _, shard := range o.view.Wanted {
		for _, voters := range o.configurations(shard) {
			if reason := o.needs(voters, s.UUID); reason != "" {
				return refuse(fsm.FailedPrecondition, "node", "shard %d would be left without a majority: %s", shard.ID, reason)
			}
		}
	}
	return nil
}

// needs says why the voters, by their stores, have no majority without one of them; empty: they have, or it has no vote.
func (o *operation) needs(voters []string, store string) string {
	switch {
	case slices.Contains(voters, ""):
		return "it is not known here yet where all of its voters are; ask again in a moment"
	case !slices.Contains(voters, store):
		return ""
	}
	live := 0
	var dead []string
	for _, other := range voters {
		switch {
		case other == store:
		case o.stores[other].Live:
			live++
		default:
			dead = append(dead, fmt.Sprintf("%s (store %s)", o.name(other), other))
		}
	}
	switch {
	case live >= len(voters)/2+1:
		return ""
	case len(dead) == 0:
		return fmt.Sprintf("of its %d voters %d live elsewhere", len(voters), live)
	}
	return fmt.Sprintf("of its %d voters %d live elsewhere, and not %s; start those first", len(voters), live, named(dead))
}

// configurations are the stores that vote in a shard: as its group has it here, where it has a replica here; two while one
// configuration follows on another; else as it was published.
func (o *operation) configurations(shard control.Shard) [][]string {
	if is, ok := o.n.host.StatusOf(shard.ID); ok && is.LeaderStore != "" && len(is.Conf.Voters) > 0 {
		stores := o.n.replicaStores(is)
		var all [][]string
		for _, ids := range [][]uint64{is.Conf.Voters, is.Conf.Outgoing} {
			var voters []string
			for _, id := range ids {
				voters = append(voters, stores[id])
			}
			all = append(all, voters)
		}
		return all
	}
	replicas := o.view.Actual[shard.ID].Voters
	if len(replicas) == 0 {
		replicas = shard.Replicas
	}
	var voters []string
	for _, r := range replicas {
		voters = append(voters, r.Store)
	}
	return [][]string{voters}
}

// mayLoseMember is mayLose for the control plane.
func (o *operation) mayLoseMember(ctx context.Context, s control.StoreRecord) error {
	members, err := o.n.members().Members(ctx)
	if err != nil {
		return controlError(err)
	}
	alive := map[string]bool{}
	for _, other := range o.view.Stores {
		alive[control.MemberName(other.Name, other.UUID)] = other.Live
	}
	has, left, live := false, 0, 0
	for _, m := range members {
		switch {
		case m.Name == control.MemberName(s.Name, s.UUID):
			has = true
		case !m.Learner:
			left++
			if alive[m.Name] {
				live++
			}
		}
	}
	if has && live < left/2+1 {
		return refuse(fsm.FailedPrecondition, "node", "the control plane would be left without a majority: %d of the other %d voters live; "+
			"start those first", live, left)
	}
	return nil
}

func storeState(s control.StoreState) rpc.StoreState {
	switch s {
	case control.StoreUp:
		return rpc.StateUp
	case control.StoreDraining:
		return rpc.StateDraining
	case control.StoreGone:
		return rpc.StateGone
	}
	return rpc.StateUnknown
}
