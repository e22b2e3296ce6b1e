package control

import (
	"cmp"
	"slices"
	"time"
)

const (
	// MaxChanging bounds the shards that are on their way from one set of replicas to another, in the whole cluster.
	MaxChanging = 8
	// maxRebalancing bounds those of them that move only to even out: they must not stand in the way of a repair.
	maxRebalancing = 2
	// lostAfter is for how long a store has to be silent until its replicas are made elsewhere, if there is somewhere.
	lostAfter = 5 * time.Minute
)

// StoreView is a store as a controller sees it.
type StoreView struct {
	StoreRecord
	// For is how long it has been as it is, live or not, as far as this controller has seen.
	For time.Duration
}

// View is what a controller decides by.
type View struct {
	// Stores that are registered, gone ones included, in order of their node ids.
	Stores []StoreView
	// Wanted shards in order of their ids.
	Wanted []Shard
	// Actual by shard; one that was never published is not there.
	Actual map[uint32]Actual
	// Leaders is the store that leads each shard; a shard without a leader is not there.
	Leaders map[uint32]string
}

// Plan is what has to be done about placement.
type Plan struct {
	// Gone are stores to be declared gone: their node is back with another store.
	Gone []string
	// Changes are the successors of wanted shards, each of the generation that stands in the view.
	Changes []Shard
}

// Place decides where replicas have to go. Every shard gets MaxReplicas, on different live stores that have the fewest; a
// shard never goes to two, because two stop at the loss of either. Replicas on stores that are lost or drain are replaced;
// with nothing else to do, replicas move from full stores to emptier ones. A shard that has not come to what is
// wanted of it is left alone, unless that can never be: it waits for a replica on a store that is lost. Then another store
// gets one, or where none has room, one that was given up on the way is wanted again. The same view gives the same plan.
func Place(v View) Plan {
	p := newPlacer(v)
	var plan Plan
	for _, s := range v.Stores {
		if p.replaced[s.UUID] && s.State != StoreGone {
			plan.Gone = append(plan.Gone, s.UUID)
		}
	}
	// First what has lost something, then what wants more or something else.
	for _, repair := range []bool{true, false} {
		for _, s := range v.Wanted {
			if p.hasLost(s) == repair && (p.settled(s) && p.changing < MaxChanging || p.stuck(s)) {
				p.mend(s)
			}
		}
	}
	if len(p.changes) == 0 && !p.ailing {
		p.rebalance(v.Wanted)
	}
	plan.Changes = p.changes
	return plan
}

// placer is the state of one decision.
type placer struct {
	v      View
	stores map[string]StoreView
	// usable are the stores that may get replicas, in order of their node ids.
	usable []string
	// replaced stores belong to nodes that have another one now.
	replaced map[string]bool
	// replicas wanted on each store, as planned so far.
	replicas map[string]int
	// changing counts the shards on their way, the planned ones included.
	changing int
	// ailing: there is a shard that does not have what it should and could.
	ailing  bool
	changes []Shard
	changed map[uint32]bool
}

func newPlacer(v View) *placer {
	p := &placer{
		v: v, stores: map[string]StoreView{}, replaced: map[string]bool{}, replicas: map[string]int{}, changed: map[uint32]bool{},
	}
	for _, s := range v.Stores {
		p.stores[s.UUID] = s
	}
	for _, s := range v.Stores {
		p.replaced[s.UUID] = p.isReplaced(s)
		if s.Live && s.State == StoreUp && !p.superseded(s) {
			p.usable = append(p.usable, s.UUID)
		}
	}
	for _, s := range v.Wanted {
		for _, r := range s.Replicas {
			p.replicas[r.Store]++
		}
		// Without a leader it is not on its way anywhere.
		if _, led := v.Leaders[s.ID]; led && !p.settled(s) {
			p.changing++
		}
	}
	return p
}

// isReplaced says that a store is silent and its node has come back with a later one.
func (p *placer) isReplaced(s StoreView) bool { return !s.Live && p.superseded(s) }

// superseded says that a store's node has had a later one: this one is lost, although its lease may not have lapsed yet.
func (p *placer) superseded(s StoreView) bool {
	return slices.ContainsFunc(p.v.Stores, func(o StoreView) bool { return o.Name == s.Name && o.NodeID > s.NodeID })
}

// lost says that what a store holds has to be made again elsewhere. A store that nobody knows any more is lost too.
func (p *placer) lost(store string) bool {
	s, known := p.stores[store]
	return !known || s.State == StoreGone || p.replaced[store] || !s.Live && s.For >= lostAfter
}

func (p *placer) hasLost(s Shard) bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return p.lost(r.Store) })
}

// settled says that a shard is as it is wanted.
func (p *placer) settled(s Shard) bool {
	a, published := p.v.Actual[s.ID]
	return published && a.Gen == s.Gen
}

// stuck says that a shard has not come to what is wanted and will not: it waits for a replica on a store that is lost, to be
// made there, or to have what makes it a voter for good.
func (p *placer) stuck(s Shard) bool { return !p.settled(s) && p.hasLost(s) }

// mend replaces what a shard has on lost and draining stores and gives it what it lacks. A replica that nothing can
// replace stays: it counts for the majority, and may come back.
func (p *placer) mend(s Shard) {
	next := s.clone()
	for i := 0; i < len(next.Replicas); i++ {
		old := next.Replicas[i].Store
		if !p.lost(old) && p.stores[old].State != StoreDraining {
			continue
		}
		p.ailing = true
		if to, ok := p.emptiest(next, old); ok {
			p.move(&next, i, to)
		} else if r, ok := p.givenUp(next, old); ok && p.lost(old) {
			p.put(&next, i, r)
		}
	}
	if lack := MaxReplicas - len(next.Replicas); lack > 0 && p.room(next) >= lack {
		for range lack {
			to, _ := p.emptiest(next, "")
			next.Replicas = append(next.Replicas, Replica{RID: next.NextRID, Store: to})
			next.NextRID++
			p.replicas[to]++
		}
	}
	p.propose(s, next)
}

func (p *placer) propose(s, next Shard) {
	if slices.Equal(next.Replicas, s.Replicas) {
		return
	}
	next.Gen, next.Dropped = s.Gen+1, p.dropped(s, next)
	p.changes = append(p.changes, next)
	p.changed[s.ID] = true
	if p.settled(s) {
		p.changing++
	}
}

// dropped are the replicas that next, which follows on s, leaves behind on the way.
func (p *placer) dropped(s, next Shard) (gone []Replica) {
	if p.settled(s) {
		return nil
	}
	for _, r := range slices.Concat(s.Dropped, s.Replicas) {
		if !slices.Contains(next.Replicas, r) {
			gone = append(gone, r)
		}
	}
	return gone
}

// move puts a new replica in the place of the one at i.
func (p *placer) move(s *Shard, i int, to string) {
	p.put(s, i, Replica{RID: s.NextRID, Store: to})
	s.NextRID++
}

func (p *placer) put(s *Shard, i int, r Replica) {
	p.replicas[s.Replicas[i].Store]--
	p.replicas[r.Store]++
	s.Replicas[i] = r
}

// givenUp is a replica that may be wanted again in the place of the one on another store: its shard has not come to what is
// wanted without it, so that nobody has destroyed it. One on a store that drains is better than none.
func (p *placer) givenUp(s Shard, instead string) (Replica, bool) {
	if p.settled(s) {
		return Replica{}, false
	}
	for _, state := range []StoreState{StoreUp, StoreDraining} {
		for _, r := range slices.Concat(p.v.Actual[s.ID].Voters, s.Dropped) {
			store := p.stores[r.Store]
			if store.Live && store.State == state && !p.superseded(store) && p.apart(s, r.Store, instead) {
				return r, true
			}
		}
	}
	return Replica{}, false
}

// room is how many nodes have a usable store that is free for another replica of s.
func (p *placer) room(s Shard) int {
	n, names := 0, map[string]bool{}
	for _, store := range p.usable {
		name := p.stores[store].Name
		if p.free(s, store, "") && (name == "" || !names[name]) {
			names[name] = true
			n++
		}
	}
	return n
}

// free says that a replica of s may be made on a store, in the place of the one on another store, if any. None is there,
// wanted, still in its group or dropped on the way: one that is on its way out goes only when the group has come to what is
// wanted.
func (p *placer) free(s Shard, store, instead string) bool {
	here := func(r Replica) bool { return r.Store == store }
	a := p.v.Actual[s.ID]
	return p.apart(s, store, instead) && !slices.ContainsFunc(a.Voters, here) && !slices.ContainsFunc(a.Learners, here) &&
		(p.settled(s) || !slices.ContainsFunc(s.Dropped, here))
}

// apart says that no replica of s is wanted on a store, and none on another store of the same node, dead or not, but the one
// that is to be replaced: two copies of one machine are one.
func (p *placer) apart(s Shard, store, instead string) bool {
	return !s.on(store) && !slices.ContainsFunc(s.Replicas, func(r Replica) bool {
		name := p.stores[r.Store].Name
		return r.Store != instead && name != "" && name == p.stores[store].Name
	})
}

// emptiest is the usable store with the fewest replicas of those that are free for one of s.
func (p *placer) emptiest(s Shard, instead string) (string, bool) {
	best, ok := "", false
	for _, store := range p.usable {
		if p.free(s, store, instead) && (!ok || p.replicas[store] < p.replicas[best]) {
			best, ok = store, true
		}
	}
	return best, ok
}

func (s Shard) on(store string) bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.Store == store })
}

// rebalance moves replicas from full stores to such with two fewer or less, a few at a time.
func (p *placer) rebalance(wanted []Shard) {
	for p.changing < maxRebalancing && (p.moveOne(wanted, false) || p.moveOne(wanted, true)) {
	}
}

// moveOne moves one replica, of those that lead or of those that do not: to move one that leads costs a change of leader.
func (p *placer) moveOne(wanted []Shard, leads bool) bool {
	full := slices.Clone(p.usable)
	slices.SortStableFunc(full, func(a, b string) int { return cmp.Compare(p.replicas[b], p.replicas[a]) })
	for _, from := range full {
		for _, s := range wanted {
			if p.changed[s.ID] || !p.settled(s) || len(s.Replicas) < MaxReplicas || (p.v.Leaders[s.ID] == from) != leads {
				continue
			}
			i := slices.IndexFunc(s.Replicas, func(r Replica) bool { return r.Store == from })
			to, ok := p.emptiest(s, from)
			if i < 0 || !ok || p.replicas[from]-p.replicas[to] < 2 {
				continue
			}
			next := s.clone()
			p.move(&next, i, to)
			p.propose(s, next)
			return true
		}
	}
	return false
}
