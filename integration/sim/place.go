package sim

import (
	"context"
	"errors"
	"maps"
	"reflect"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
)

// placement is what a node has heard of where replicas are to be, and what it has still to tell.
type placement struct {
	version uint64
	wanted  map[uint32]control.Shard
	actual  map[uint32]control.Actual
	// told is the generation the replica was last told of; going are those whose removal is under way.
	told  map[uint32]uint64
	going map[uint32]bool
	// untold are groups led here that have come to what is wanted.
	untold map[uint32]control.Actual
}

func newPlacement() placement {
	return placement{
		wanted: map[uint32]control.Shard{}, actual: map[uint32]control.Actual{}, told: map[uint32]uint64{},
		going: map[uint32]bool{}, untold: map[uint32]control.Actual{},
	}
}

func sameView(a, b control.View) bool { return reflect.DeepEqual(a, b) }

// learn takes in what stands in the control plane.
func (n *node) learn(version uint64, view control.View) {
	n.placement.version = version
	heard := func(hear func()) func() {
		return func() {
			if n.placement.version == version { // else of something later by now
				hear()
				n.reconcile()
			}
		}
	}
	first := heard(func() {
		for _, s := range view.Wanted {
			n.placement.wanted[s.ID] = s
		}
	})
	second := heard(func() { maps.Copy(n.placement.actual, view.Actual) })
	// What is wanted and what is are two watches: one may be ahead of the other.
	if n.c.chance(2) {
		first, second = second, first
	}
	first()
	if n.c.chance(10) {
		n.after(n.c.between(millisecond, 500*millisecond), second)
		return
	}
	second()
}

// reconcile makes the replicas here those that are wanted, as package node does.
func (n *node) reconcile() {
	for _, shard := range n.c.shardIDs() {
		if want, ok := n.placement.wanted[shard]; ok && !n.placement.going[shard] && n.up() {
			n.reconcileShard(want)
		}
	}
	n.poke()
}

func (n *node) reconcileShard(want control.Shard) {
	at, _ := n.core.Inspect(want.ID)
	duty := control.DutyOf(want, n.placement.actual[want.ID], n.store, at.ReplicaID, at.Gen)
	if duty.Remove {
		n.remove(want.ID, at.ReplicaID)
		return
	}
	if duty.Add != 0 && !n.add(want, duty.Add) {
		return
	}
	if duty.Stands && n.placement.told[want.ID] < want.Gen {
		w := replica.Wanted{Gen: want.Gen}
		for _, r := range want.Replicas {
			w.Replicas = append(w.Replicas, replica.Placed{ID: r.RID, Store: r.Store})
		}
		n.core.Want(want.ID, w)
		n.placement.told[want.ID] = want.Gen
	}
}

func (n *node) remove(shard uint32, id uint64) {
	n.c.count(ReplicaRemoved)
	n.c.logf("%s removes replica %d of shard %d", n, id, shard)
	n.placement.going[shard] = true
	delete(n.placement.told, shard)
	delete(n.dispatchers, shard)
	life := n.life
	n.core.Remove(shard, func(err error) {
		if err != nil || n.life != life {
			return
		}
		n.c.checks.gone(n.c, shard, id, n.store)
		delete(n.placement.going, shard)
		n.after(millisecond, n.reconcile)
	})
}

// add makes an empty replica, which its group's leader fills; false: not now.
func (n *node) add(want control.Shard, id uint64) bool {
	n.c.checks.created(n.c, want.ID, id, n.store)
	err := n.core.CreateLearner(want.ID, id, want.Gen)
	switch {
	case errors.Is(err, errDisk):
		n.stopped(err)
		return false
	case errors.Is(err, replica.ErrReplicaStands):
	case errors.Is(err, replica.ErrReplicaGone):
		return false // what is wanted has changed meanwhile
	case err != nil:
		n.c.fail("%s: %w", n, err)
		return false
	default:
		n.c.count(ReplicaMade)
		n.c.logf("%s makes replica %d of shard %d", n, id, want.ID)
	}
	if n.c.chance(20) {
		n.c.count(CrashedAfterSync)
		n.crash(n.c.downtime())
		return false
	}
	state, ok, err := replica.Load(n.engine, want.ID)
	if err == nil && ok {
		err = n.core.Add(state)
	}
	if err != nil {
		n.c.fail("%s: %w", n, err)
		return false
	}
	delete(n.placement.told, want.ID)
	return ok
}

// changed is told by the replicas that a group led here is as wanted.
func (n *node) changed(e replica.Event) {
	want := n.placement.wanted[e.Shard]
	want.ID = e.Shard
	n.c.logf("%s tells that shard %d has come to generation %d under %d: %+v", n, e.Shard, e.Gen, e.Term, e.Conf)
	n.placement.untold[e.Shard] = control.ActualOf(want, n.placement.actual[e.Shard], e.Term, e.Gen, e.Conf.Voters, e.Conf.Learners)
	delay := n.c.between(millisecond, 50*millisecond)
	if n.c.chance(5) {
		n.c.count(ToldLate)
		delay = n.c.between(second, 15*second)
	}
	n.after(delay, n.publish)
}

// publish tells the control plane how the groups led here are, again if it was not heard.
func (n *node) publish() {
	var actuals []control.Actual
	for _, shard := range n.c.shardIDs() {
		if a, ok := n.placement.untold[shard]; ok {
			actuals = append(actuals, a)
		}
	}
	if len(actuals) == 0 {
		return
	}
	s := n.c.plane.reach(n)
	err := control.ErrUnavailable
	if s != nil {
		_, err = s.plane.PublishShards(context.Background(), actuals)
		n.c.plane.done(n.c)
	}
	if err != nil {
		n.after(n.c.between(200*millisecond, second), n.publish)
		return
	}
	clear(n.placement.untold)
}
