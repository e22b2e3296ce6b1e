package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// transferWait is how long an operator's call waits for leaderships to go. What has not gone by then is asked for again.
const transferWait = 1500 * time.Millisecond

func refuse(code fsm.Code, field, format string, args ...any) error {
	return &rpc.Refused{Refusal: &fsm.Refusal{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}}
}

// operation is one call of an operator: the cluster as it is, for decisions that take nothing for granted.
type operation struct {
	n    *Node
	view control.View
	// stores by their uuids.
	stores map[string]control.StoreRecord
	// leads is how many shards each store leads.
	leads map[string]int
}

// operate reads what the control plane knows now.
func (n *Node) operate(ctx context.Context) (*operation, error) {
	if n.inner == nil {
		return nil, refuse(fsm.FailedPrecondition, "", "this node is the whole cluster: there is no other one that could take anything")
	}
	view, err := n.plane.Placement(ctx)
	if err != nil {
		return nil, controlError(err)
	}
	o := &operation{n: n, view: view, stores: map[string]control.StoreRecord{}, leads: map[string]int{}}
	for _, s := range view.Stores {
		o.stores[s.UUID] = s.StoreRecord
	}
	for _, s := range view.Wanted {
		// The control plane hears of a new leader a little later than its followers.
		if leader := n.leaderOf(s.ID); leader != "" {
			view.Leaders[s.ID] = leader
		}
		o.leads[view.Leaders[s.ID]]++
	}
	return o, nil
}

// controlError says in the API's terms what the control plane answered.
func controlError(err error) error {
	if errors.Is(err, control.ErrUnavailable) || errors.Is(err, control.ErrBusy) {
		return &rpc.Unavailable{Reason: err.Error(), RetryAfter: time.Second}
	}
	if errors.Is(err, control.ErrStoreGone) {
		return refuse(fsm.FailedPrecondition, "node", "its store was declared gone meanwhile: start the node with an empty data directory")
	}
	return err
}

// find returns the store of that id, or the last one of the node of that name.
func (o *operation) find(field, name string) (control.StoreRecord, error) {
	var found control.StoreRecord
	for _, s := range o.view.Stores { // the later of two stores of one node comes later
		if s.UUID == name {
			return s.StoreRecord, nil
		}
		if s.Name == name && (found.UUID == "" || s.State != control.StoreGone || found.State == control.StoreGone) {
			found = s.StoreRecord
		}
	}
	if found.UUID == "" {
		return found, refuse(fsm.NotFound, field, "there is no node or store %q", name)
	}
	return found, nil
}

func (o *operation) name(store string) string { return cmp.Or(o.stores[store].Name, store) }

// takes says whether a store can be given something.
func (o *operation) takes(store string) bool {
	s := o.stores[store]
	return s.Live && s.State == control.StoreUp
}

// votes says whether a store has a vote in a shard as it is, and is to keep it.
func (o *operation) votes(shard control.Shard, store string) bool {
	on := func(r control.Replica) bool { return r.Store == store }
	return slices.ContainsFunc(o.view.Actual[shard.ID].Voters, on) && slices.ContainsFunc(shard.Replicas, on)
}

// heir is the store that leads fewest of those that could lead a shard beside one; empty if there is none.
func (o *operation) heir(shard control.Shard, beside string) string {
	best := ""
	for _, r := range shard.Replicas {
		if r.Store != beside && o.takes(r.Store) && o.votes(shard, r.Store) && (best == "" || o.leads[r.Store] < o.leads[best]) {
			best = r.Store
		}
	}
	return best
}

// TransferLeaders implements rpc.Operator.
func (n *Node) TransferLeaders(ctx context.Context, req rpc.TransferRequest) ([]rpc.LeaderTransfer, error) {
	o, err := n.operate(ctx)
	if err != nil {
		return nil, err
	}
	var from, to control.StoreRecord
	if req.From != "" {
		if from, err = o.find("from", req.From); err != nil {
			return nil, err
		}
	}
	if req.To != "" {
		if to, err = o.find("to", req.To); err != nil {
			return nil, err
		}
		if !o.takes(to.UUID) {
			return nil, refuse(fsm.FailedPrecondition, "to", "node %s is %s and can lead nothing", to.Name, standing(to))
		}
	}
	shards, err := o.shards(req.Shards, from.UUID)
	if err != nil {
		return nil, err
	}
	moves := make([]move, len(shards))
	for i, s := range shards {
		moves[i] = o.plan(s, from.UUID, to.UUID)
	}
	o.carryOut(ctx, moves)
	answers := make([]rpc.LeaderTransfer, len(moves))
	for i, m := range moves {
		answers[i] = rpc.LeaderTransfer{Shard: m.shard, From: o.name(m.from), To: o.name(m.to), Reason: m.reason}
	}
	return answers, nil
}

// standing is how a store is, in a word.
func standing(s control.StoreRecord) string {
	if s.State == control.StoreUp && !s.Live {
		return "silent"
	}
	return string(s.State)
}

// shards are those of the given ids, or those that a store leads.
func (o *operation) shards(ids []uint32, ledBy string) (shards []control.Shard, err error) {
	for _, s := range o.view.Wanted {
		if slices.Contains(ids, s.ID) || len(ids) == 0 && o.view.Leaders[s.ID] == ledBy {
			shards = append(shards, s)
		}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(shards, func(s control.Shard) bool { return s.ID == id }) {
			return nil, refuse(fsm.NotFound, "shards", "there is no shard %d", id)
		}
	}
	return shards, nil
}

// move is a leadership on its way, between stores. reason says why it has not gone; empty: it has.
type move struct {
	shard    uint32
	from, to string
	reason   string
}

// plan says where a leadership goes. A move with a reason is not to be carried out.
func (o *operation) plan(shard control.Shard, from, to string) move {
	m := move{shard: shard.ID, from: o.view.Leaders[shard.ID], to: to}
	if to == "" {
		m.to = o.heir(shard, m.from)
	}
	switch {
	case m.from == "":
		m.reason = "nobody leads it at the moment"
	case m.to == m.from:
	case from != "" && m.from != from && to == "":
		m.to = m.from // it has gone from there: nothing more was asked for
	case from != "" && m.from != from:
		m.reason = fmt.Sprintf("%s leads it, not %s", o.name(m.from), o.name(from))
	case m.to == "":
		m.reason = "no other node has a vote in it and takes leaderships"
	case !o.votes(shard, m.to):
		m.reason = fmt.Sprintf("%s has no replica of it with a vote", o.name(m.to))
	default:
		o.leads[m.from]--
		o.leads[m.to]++
	}
	return m
}

// carryOut has the leaders hand over, all at once, and waits for it up to transferWait.
func (o *operation) carryOut(ctx context.Context, moves []move) {
	ctx, cancel := context.WithTimeout(ctx, transferWait)
	defer cancel()
	byLeader := map[string][]int{}
	for i, m := range moves {
		if m.reason == "" && m.from != m.to {
			byLeader[m.from] = append(byLeader[m.from], i)
		}
	}
	group := new(errgroup.Group)
	for leader, at := range byLeader {
		group.Go(func() error {
			handovers := make([]*clusterv1.Handover, len(at))
			for k, i := range at {
				handovers[k] = &clusterv1.Handover{Shard: moves[i].shard, ToStore: moves[i].to}
			}
			for k, reason := range o.n.transferLeads(ctx, leader, handovers) {
				moves[at[k]].reason = reason
			}
			return nil
		})
	}
	_ = group.Wait() // nobody fails: the reasons tell
}
