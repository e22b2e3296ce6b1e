package sim

import (
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/cespare/xxhash/v2"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// checks are the invariants of replication, by the numbers of REPLICATION.md 4.2: what must hold after each step, whatever
// happened.
type checks struct {
	// leaders are replica ids by shard and term (R1).
	leaders map[[2]uint64]uint64
	// committed are the terms of applied entries by shard and index (R2, R3); highest is the last index of each shard.
	committed map[[2]uint64]uint64
	highest   map[uint32]uint64
	// chains and rows are hash chain and hash of the rows by shard and applied index (R4, R9, R10).
	chains, rows map[[2]uint64]uint64
	// sights are what replicas that were to verify their rows saw, by shard and index.
	sights map[[2]uint64]sight
	// promised is the highest term a replica spoke in, votes whom it voted for, by shard, id and term (R6).
	promised map[[2]uint64]uint64
	votes    map[[3]uint64]uint64
	// owners are the stores of replica ids, by shard and id; removed is the highest id that is gone from a store (R7).
	owners  map[[2]uint64]string
	removed map[string]uint64
	// confs are the configurations by shard and index (R8).
	confs map[[2]uint64]replica.Conf
	// lost are the disks that were wiped, as they were: what was committed with them counts as it did.
	lost map[string]*store.Memory
}

func newChecks() checks {
	return checks{
		leaders: map[[2]uint64]uint64{}, committed: map[[2]uint64]uint64{}, highest: map[uint32]uint64{},
		chains: map[[2]uint64]uint64{}, rows: map[[2]uint64]uint64{}, sights: map[[2]uint64]sight{}, promised: map[[2]uint64]uint64{},
		votes: map[[3]uint64]uint64{}, owners: map[[2]uint64]string{}, removed: map[string]uint64{},
		confs: map[[2]uint64]replica.Conf{}, lost: map[string]*store.Memory{},
	}
}

// created: R7, an id belongs to one store.
func (k *checks) created(c *cluster, shard uint32, id uint64, on string) {
	at := [2]uint64{uint64(shard), id}
	if owner, ok := k.owners[at]; ok && owner != on {
		c.fail("R7: replica %d of shard %d is made on %s, was on %s", id, shard, on, owner)
	}
	k.owners[at] = on
}

// gone: from now on no replica up to this id may be on the store, nor in its group.
func (k *checks) gone(c *cluster, shard uint32, id uint64, from string) {
	k.removed[seatOf(shard, from)] = max(id, k.removed[seatOf(shard, from)])
	k.countsOnNobody(c, shard, k.confs[[2]uint64{uint64(shard), k.highest[shard]}])
}

// countsOnNobody: R7, no replica that is gone is in the last configuration of its group.
func (k *checks) countsOnNobody(c *cluster, shard uint32, conf replica.Conf) {
	for _, id := range slices.Concat(conf.Voters, conf.Outgoing, conf.Learners) {
		if owner := k.owners[[2]uint64{uint64(shard), id}]; id <= k.removed[seatOf(shard, owner)] {
			c.fail("R7: replica %d of shard %d is gone from %s and in its group: %+v", id, shard, owner, conf)
		}
	}
}

func seatOf(shard uint32, store string) string { return fmt.Sprintf("%d on %s", shard, store) }

// elected: R1, one leader in a term.
func (k *checks) elected(n *node, e replica.Event) {
	r, ok := n.core.Inspect(e.Shard)
	if !ok {
		return
	}
	at := [2]uint64{uint64(e.Shard), e.Term}
	if other, ok := k.leaders[at]; ok && other != r.ReplicaID {
		n.c.fail("R1: shard %d has two leaders at term %d: replicas %d and %d", e.Shard, e.Term, other, r.ReplicaID)
	}
	k.leaders[at] = r.ReplicaID
}

// established: R3, a leader has everything that was committed in earlier terms.
func (k *checks) established(n *node, e replica.Event) {
	r, ok := n.core.Inspect(e.Shard)
	if !ok {
		return
	}
	for index := r.LogFirst; index <= k.highest[e.Shard]; index++ {
		term, known := k.committed[[2]uint64{uint64(e.Shard), index}]
		own, has := n.core.LogTerm(e.Shard, index)
		if known && term < e.Term && (!has || own != term) {
			n.c.fail("R3: leader %d of shard %d at term %d lacks entry %d of term %d", r.ReplicaID, e.Shard, e.Term, index, term)
			return
		}
	}
}

// sent: R6, nobody speaks in a term below one he spoke in, or votes twice in one; R11, nothing that depends on an append, or
// on a vote, leaves before that is synced. What one turn sends has no order between stores.
func (k *checks) sent(n *node, frames []replica.Frame) {
	spoken := map[[2]uint64]uint64{}
	var image *store.Memory
	for _, f := range frames {
		for _, m := range f.Messages {
			p, ok := m.Promise()
			if !ok {
				continue
			}
			if image == nil && (p.Appended || p.Voted) {
				image = n.engine.Crash(0)
			}
			k.promise(n, m.Shard, p, image)
			who := [2]uint64{uint64(m.Shard), p.From}
			spoken[who] = max(spoken[who], p.Term)
		}
	}
	for who, term := range spoken {
		k.promised[who] = max(k.promised[who], term)
	}
}

func (k *checks) promise(n *node, shard uint32, p replica.Promise, image *store.Memory) {
	who := [2]uint64{uint64(shard), p.From}
	if p.Term < k.promised[who] {
		n.c.fail("R6: replica %d of shard %d speaks at term %d, was at %d", p.From, shard, p.Term, k.promised[who])
	}
	if p.Appended || p.Voted {
		if kept, err := p.Kept(image, shard); err != nil || !kept {
			n.c.fail("R11: replica %d of shard %d sends %+v, which is not synced (%v)", p.From, shard, p, err)
		}
	}
	if !p.Voted {
		return
	}
	vote := [3]uint64{who[0], who[1], p.Term}
	if other, ok := k.votes[vote]; ok && other != p.To {
		n.c.fail("R6: replica %d of shard %d votes for %d and %d at term %d", p.From, shard, other, p.To, p.Term)
	}
	k.votes[vote] = p.To
}

// worked: R2, R4, R7, R8, R9, after each turn.
func (k *checks) worked(n *node) {
	for _, shard := range n.c.shardIDs() {
		if r, ok := n.core.Inspect(shard); ok {
			k.workedShard(n, r)
		}
	}
}

func (k *checks) workedShard(n *node, r replica.Inspection) {
	c := n.c
	if gone := k.removed[seatOf(r.Shard, n.store)]; r.ReplicaID <= gone {
		c.fail("R7: replica %d of shard %d is back on %s, from which %d was removed", r.ReplicaID, r.Shard, n, gone)
	}
	if r.LogFirst > r.Applied+1 || r.Applied > r.LogLast && !r.Installing {
		c.fail("R9: shard %d on %s: log from %d to %d, applied %d", r.Shard, n, r.LogFirst, r.LogLast, r.Applied)
		return
	}
	if r.Installing || r.Applied == 0 {
		return
	}
	at := [2]uint64{uint64(r.Shard), r.Applied}
	chain, known := k.chains[at]
	if known && chain != r.Chain {
		c.fail("R4: shard %d at %d: hash chain on %s differs", r.Shard, r.Applied, n)
	}
	if known && c.rng.IntN(8) != 0 {
		return
	}
	k.chains[at] = r.Chain
	c.note(at[0], at[1], r.Chain)
	k.highest[r.Shard] = max(k.highest[r.Shard], r.Applied)
	for index := max(r.LogFirst, r.Applied-min(r.Applied, 64)); index <= r.Applied; index++ {
		entry := [2]uint64{at[0], index}
		own, _ := n.core.LogTerm(r.Shard, index)
		if term, ok := k.committed[entry]; ok && term != own {
			c.fail("R2: shard %d on %s applied entry %d of term %d, elsewhere it has %d", r.Shard, n, index, own, term)
		}
		k.committed[entry] = own
	}
	k.configured(n, at, r)
	if !known || c.rng.IntN(8) == 0 {
		k.compare(n, r.Shard, r.Applied)
	}
}

// configured: R8, one configuration at an index, and those that follow on each other have majorities that meet.
func (k *checks) configured(n *node, at [2]uint64, r replica.Inspection) {
	conf, ok := k.confs[at]
	if !ok && r.Applied == k.highest[r.Shard] {
		k.countsOnNobody(n.c, r.Shard, r.Conf)
	}
	if ok && !sameConf(conf, r.Conf) {
		n.c.fail("R8: shard %d at %d: %s has configuration %+v, elsewhere it is %+v", r.Shard, r.Applied, n, r.Conf, conf)
	}
	k.confs[at] = r.Conf
	if before, ok := k.confs[[2]uint64{at[0], at[1] - 1}]; ok && !sameConf(before, r.Conf) && !intersect(before, r.Conf) {
		n.c.fail("R8: shard %d at %d: majorities of %+v and %+v need not meet", r.Shard, r.Applied, before, r.Conf)
	}
}

// compare: R4, R9 and R10, equal rows at equal indexes.
func (k *checks) compare(n *node, shard uint32, index uint64) {
	at := [2]uint64{uint64(shard), index}
	sum, err := sumRows(n.engine, shard)
	if err != nil {
		return // the disk has failed, which the node has still to notice
	}
	if known, ok := k.rows[at]; ok && known != sum {
		n.c.fail("R4: shard %d at %d: rows on %s differ from those elsewhere", shard, index, n)
	}
	k.rows[at] = sum
}

// installed: R10, the rows are those the sender had at that index, and no log outlives a snapshot.
func (k *checks) installed(n *node, shard uint32) {
	r, ok := n.core.Inspect(shard)
	if !ok {
		return
	}
	if chain, ok := k.chains[[2]uint64{uint64(shard), r.Applied}]; ok && chain != r.Chain {
		n.c.fail("R10: shard %d at %d: hash chain of the snapshot on %s differs", shard, r.Applied, n)
	}
	k.compare(n, shard, r.Applied)
	rows := 0
	n.rows(shard).Scan([]byte{fsm.KindLog}, []byte{fsm.KindLog + 1}, func([]byte, []byte) bool {
		rows++
		return true
	})
	if rows > 0 {
		n.c.fail("R10: shard %d on %s: %d log rows outlived a snapshot", shard, n, rows)
	}
}

// loaded: R6 and R9 after a crash. Term and rows on disk are what they were said to be.
func (k *checks) loaded(n *node, s *replica.ReplicaState) {
	if promised := k.promised[[2]uint64{uint64(s.Shard), s.ID}]; s.Term() < promised {
		n.c.fail("R6: replica %d of shard %d comes back at term %d, spoke at %d", s.ID, s.Shard, s.Term(), promised)
	}
	if vote, ok := k.votes[[3]uint64{uint64(s.Shard), s.ID, s.Term()}]; ok && vote != s.Vote() {
		n.c.fail("R6: replica %d of shard %d comes back with a vote for %d at term %d, gave it to %d",
			s.ID, s.Shard, s.Vote(), s.Term(), vote)
	}
	at := [2]uint64{uint64(s.Shard), s.Applied()}
	if chain, ok := k.chains[at]; ok && chain != s.Chain() {
		n.c.fail("R9: shard %d on %s at %d after a crash: another hash chain", s.Shard, n, s.Applied())
	}
	if _, ok := k.rows[at]; ok {
		k.compare(n, s.Shard, s.Applied())
	}
}

// acknowledged: R5, at the moment of an answer the entry is in the synced image of a majority of the configuration in
// force: the one before the turn, or one that the turn brought.
func (k *checks) acknowledged(n *node, shard uint32, cmd *storagev1.Command, err error) {
	if err != nil {
		return
	}
	n.c.count(Acknowledged)
	index, placed := n.placed[cmd]
	r, ok := n.core.Inspect(shard)
	if !ok {
		return
	}
	if !placed {
		n.c.fail("shard %d: %s acknowledges what no entry held", shard, n)
		return
	}
	term, known := n.core.LogTerm(shard, index)
	if !known {
		return // truncated in the same turn: everybody has it
	}
	durable := func(id uint64) bool {
		owner := k.owners[[2]uint64{uint64(shard), id}]
		engine := k.lost[owner]
		if other := n.c.byStore(owner); other != nil {
			engine = other.engine
		}
		if engine == nil {
			return false
		}
		holds, err := replica.Holds(engine.Crash(0), shard, index, term)
		return err == nil && holds
	}
	before := n.before[shard]
	if !quorum(r.Conf, durable) && (len(before.Voters) == 0 || !quorum(before, durable)) {
		n.c.fail("R5: entry %d of shard %d was acknowledged while not durable on a majority of %+v", index, shard, r.Conf)
	}
}

func sumRows(engine *store.Memory, shard uint32) (uint64, error) {
	var h xxhash.Digest
	h.Reset()
	rows := store.NewReader(engine, shard)
	rows.Scan([]byte{fsm.KindTruncated + 1}, nil, func(key, value []byte) bool {
		_, _ = h.Write(key)   // never fails
		_, _ = h.Write(value) // never fails
		return true
	})
	return h.Sum64(), rows.Err()
}

func sameConf(a, b replica.Conf) bool {
	return sameIDs(a.Voters, b.Voters) && sameIDs(a.Learners, b.Learners) && sameIDs(a.Outgoing, b.Outgoing)
}

func sameIDs(a, b []uint64) bool {
	if slices.Equal(a, b) {
		return true
	}
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// intersect tries all sets of replicas: none is a majority of one configuration whose rest is one of the other.
func intersect(a, b replica.Conf) bool {
	var ids []uint64
	for _, set := range [][]uint64{a.Voters, a.Outgoing, b.Voters, b.Outgoing} {
		ids = append(ids, set...)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	for set := range 1 << len(ids) {
		in := func(id uint64) bool { return set>>slices.Index(ids, id)&1 == 1 }
		out := func(id uint64) bool { return !in(id) }
		if quorum(a, in) && quorum(b, out) {
			return false
		}
	}
	return true
}

func quorum(c replica.Conf, in func(uint64) bool) bool {
	for _, voters := range [][]uint64{c.Voters, c.Outgoing} {
		n := 0
		for _, id := range voters {
			if in(id) {
				n++
			}
		}
		if n <= len(voters)/2 && len(voters) > 0 {
			return false
		}
	}
	return true
}
