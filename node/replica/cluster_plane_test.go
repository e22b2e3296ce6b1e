package replica

import (
	"fmt"
	"slices"
)

// plane is the control plane of a simulated cluster: it knows what is wanted of every shard and what was published.
type plane struct {
	// stores is how many stores there ever were.
	stores int
	shards map[uint32]*planned
}

type planned struct {
	wanted Wanted
	// next is the next replica's id.
	next   uint64
	actual published
	// removed are ids that were wanted once, with their stores, for a fault that uses one again.
	removed []Placed
}

// published is the configuration a leader has told of.
type published struct {
	gen, term uint64
	conf      Conf
}

// on is the id of the replica that is wanted on a store, 0 if none.
func (p *planned) on(store string) uint64 {
	for _, w := range p.wanted.Replicas {
		if w.Store == store {
			return w.ID
		}
	}
	return 0
}

func (p *plane) publish(e Event) {
	a := &p.shards[e.Shard].actual
	if e.Term >= a.term && e.Gen >= a.gen {
		*a = published{gen: e.Gen, term: e.Term, conf: e.Conf}
	}
}

// replace wants a replica on another store instead of the one on a store, if the last change is done or waits for a store
// that is gone.
func (c *cluster) replace(shard uint32, from, to string) bool {
	p := c.plane.shards[shard]
	if p.actual.gen != p.wanted.Gen && c.member(from) != nil || p.on(from) == 0 || p.on(to) != 0 ||
		c.member(to).core.byID[shard] != nil {
		return false
	}
	replicas := slices.Clone(p.wanted.Replicas)
	for i, w := range replicas {
		if w.Store != from {
			continue
		}
		p.removed = append(p.removed, w)
		replicas[i] = Placed{ID: p.next, Store: to}
		if again := slices.IndexFunc(p.removed, func(r Placed) bool { return r.Store == to }); c.faults.ReusedReplicaID && again >= 0 {
			replicas[i].ID = p.removed[again].ID
		} else {
			p.next++
		}
	}
	p.wanted = Wanted{Gen: p.wanted.Gen + 1, Replicas: replicas}
	return true
}

// place does what every store does with what it hears of the control plane.
func (c *cluster) place() error {
	for _, m := range c.members {
		if m.paused > 0 {
			continue
		}
		for shard := uint32(1); shard <= simShards; shard++ {
			if err := c.placeOne(m, shard); err != nil {
				return fmt.Errorf("place shard %d on %s: %w", shard, m.name, err)
			}
		}
	}
	return nil
}

func (c *cluster) placeOne(m *member, shard uint32) error {
	p := c.plane.shards[shard]
	r, id := m.core.byID[shard], p.on(m.name)
	switch {
	case r == nil && id != 0 && m.core.removalOf(shard) == nil:
		c.checks.created(c, shard, id, m.name)
		if err := createLearner(m.engine, shard, id, p.wanted.Gen, c.faults); err != nil {
			return err
		}
		s, _, err := Load(m.engine, shard)
		if err != nil {
			return err
		}
		if err := m.core.Add(s); err != nil {
			return err
		}
	case r != nil && id != r.id && p.actual.gen >= r.gen && !slices.Contains(p.actual.conf.Voters, r.id):
		c.happened[replicaRemoved]++
		gone := r.id
		delete(m.told, shard)
		m.core.Remove(shard, func(err error) {
			if err == nil {
				c.checks.gone(shard, gone, m.name)
			}
		})
		return nil
	}
	// Each wish is told once, and after a start.
	if m.core.byID[shard] != nil && m.told[shard] != p.wanted.Gen {
		m.told[shard] = p.wanted.Gen
		m.core.Want(shard, p.wanted)
	}
	return nil
}

// wipe loses a store's disk. What comes back in its place is a new store, which the control plane puts in the old one's
// place; with the fault AmnesiacVoter it comes back under its old replicas' ids, as if nothing had happened.
func (c *cluster) wipe(m *member) error {
	c.happened[wiped]++
	c.checks.lost[m.name] = m.engine
	c.members = slices.DeleteFunc(c.members, func(other *member) bool { return other == m })
	fresh := c.addStore()
	if c.faults.AmnesiacVoter {
		var seeds []Seed
		for shard := uint32(1); shard <= simShards; shard++ {
			if r := m.core.byID[shard]; r != nil && r.id <= 3 {
				seeds = append(seeds, Seed{Shard: shard, ID: r.id, Voters: []uint64{1, 2, 3}})
			}
		}
		if err := Bootstrap(fresh.engine, seeds); err != nil {
			return err
		}
		for _, p := range c.plane.shards {
			for i := range p.wanted.Replicas {
				if w := &p.wanted.Replicas[i]; w.Store == m.name {
					w.Store = fresh.name
				}
			}
		}
		return c.start(fresh)
	}
	if err := c.start(fresh); err != nil {
		return err
	}
	for _, other := range c.members {
		other.core.Suspect(m.name, true)
	}
	return nil
}

// repair wants new replicas for those of stores that are gone, as far as there are stores without one.
func (c *cluster) repair() {
	for shard := uint32(1); shard <= simShards; shard++ {
		for _, w := range slices.Clone(c.plane.shards[shard].wanted.Replicas) {
			if c.member(w.Store) != nil {
				continue
			}
			for _, m := range c.members {
				if c.plane.shards[shard].on(m.name) == 0 && c.replace(shard, w.Store, m.name) {
					break
				}
			}
		}
	}
}

// move puts a replica elsewhere.
func (c *cluster) move() {
	shard := 1 + uint32(c.rng.IntN(simShards))
	from, to := c.members[c.rng.IntN(len(c.members))], c.members[c.rng.IntN(len(c.members))]
	if c.replace(shard, from.name, to.name) {
		c.happened[moved]++
	}
}

// whole says that every wanted replica stands on a store that is there, with its group as wanted: only then another disk
// may be lost without losing a majority.
func (c *cluster) whole() bool {
	for _, p := range c.plane.shards {
		if p.actual.gen != p.wanted.Gen {
			return false
		}
		for _, w := range p.wanted.Replicas {
			if c.member(w.Store) == nil {
				return false
			}
		}
	}
	return true
}
