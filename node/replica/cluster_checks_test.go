package replica

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/cespare/xxhash/v2"
	"go.etcd.io/raft/v3/raftpb"
)

// checks are the invariants of a simulated cluster, by the numbers of docs/cluster.md's protocol: what must hold after each
// step, whatever happened.
type checks struct {
	// leaders are replica ids by shard and term (R1).
	leaders map[[2]uint64]uint64
	// committed are the terms of committed entries by shard and index (R3), highest the last index of each shard.
	committed map[[2]uint64]uint64
	highest   map[uint32]uint64
	// states are hash chain and rows by shard and applied index (R4, R10).
	states map[[2]uint64]stateSum
	// promised is the highest term a replica spoke in, votes whom it voted for, by shard, id and term (R6).
	promised map[[2]uint64]uint64
	votes    map[[3]uint64]uint64
	// owners are the stores of replica ids, by shard and id (R7).
	owners map[[2]uint64]string
	// removed is the highest id whose rows are gone from a store, by shard and store (R7).
	removed map[string]uint64
	// confs are the configurations by shard and index (R8).
	confs map[[2]uint64]Conf
	// lost are the disks that were wiped, as they were: what was committed with them counts as it did.
	lost map[string]*store.Memory
}

type stateSum struct{ chain, rows uint64 }

func newChecks() checks {
	return checks{
		leaders: map[[2]uint64]uint64{}, committed: map[[2]uint64]uint64{}, highest: map[uint32]uint64{},
		states: map[[2]uint64]stateSum{}, promised: map[[2]uint64]uint64{}, votes: map[[3]uint64]uint64{},
		owners: map[[2]uint64]string{}, confs: map[[2]uint64]Conf{},
		lost: map[string]*store.Memory{}, removed: map[string]uint64{},
	}
}

// created: R7, an id is made once, on one store.
func (k *checks) created(c *cluster, shard uint32, id uint64, on string) {
	at := [2]uint64{uint64(shard), id}
	if owner, ok := k.owners[at]; ok && !c.faults.ReusedReplicaID {
		c.fail("R7: replica %d of shard %d is made on %s, was on %s", id, shard, on, owner)
	}
	k.owners[at] = on
}

// gone: from now on no replica up to this id may be on the store.
func (k *checks) gone(shard uint32, id uint64, from string) {
	k.removed[seat(shard, from)] = max(id, k.removed[seat(shard, from)])
}

func seat(shard uint32, store string) string { return fmt.Sprintf("%d on %s", shard, store) }

// elected: R1, one leader in a term.
func (k *checks) elected(c *cluster, m *member, e Event) {
	r, at := m.core.byID[e.Shard], [2]uint64{uint64(e.Shard), e.Term}
	if r == nil {
		return
	}
	if other, ok := k.leaders[at]; ok && other != r.id {
		c.fail("R1: shard %d has two leaders at term %d: replicas %d and %d", e.Shard, e.Term, other, r.id)
	}
	k.leaders[at] = r.id
}

// established: R3, a leader has everything that was committed in earlier terms.
func (k *checks) established(c *cluster, m *member, e Event) {
	r := m.core.byID[e.Shard]
	if r == nil {
		return
	}
	for index := r.log.truncated.index + 1; index <= k.highest[e.Shard]; index++ {
		term, known := k.committed[[2]uint64{uint64(e.Shard), index}]
		if known && term < e.Term && (index > r.log.last || r.log.termAt(index) != term) {
			c.fail("R3: leader %d of shard %d at term %d lacks entry %d of term %d", r.id, e.Shard, e.Term, index, term)
			return
		}
	}
}

// changed: R8, what is published stands on the disks of all its voters: nobody needs the replicas any more that go then.
func (k *checks) changed(c *cluster, e Event) {
	for _, id := range e.Conf.Voters {
		owner := k.owners[[2]uint64{uint64(e.Shard), id}]
		engine := k.lost[owner]
		if m := c.member(owner); m != nil {
			engine = m.engine
		}
		row, _, err := engine.Crash(0).Get(rowKey(e.Shard, fsm.KindConfState))
		if err != nil {
			c.fail("read configuration: %w", err)
			return
		}
		self, err := decodeIdentity(row)
		if err != nil || !sameConf(confOf(self.conf), e.Conf) {
			c.fail("R8: shard %d is published as %+v, on the disk of replica %d it is %+v (%v)", e.Shard, e.Conf, id, self.conf, err)
		}
	}
}

// sent: R6, nobody speaks in a term below one he spoke in, or votes twice in one. What one turn sends has no order between
// stores.
func (k *checks) sent(c *cluster, frames []Frame) {
	spoken := map[[2]uint64]uint64{}
	for _, f := range frames {
		k.sentFrame(c, f, spoken)
	}
	for who, term := range spoken {
		k.promised[who] = max(k.promised[who], term)
	}
}

func (k *checks) sentFrame(c *cluster, f Frame, spoken map[[2]uint64]uint64) {
	for _, pm := range f.Messages {
		m := pm.Message
		switch m.GetType() {
		case raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgHeartbeat:
		default:
			continue
		}
		who := [2]uint64{uint64(pm.Shard), m.GetFrom()}
		if m.GetTerm() < k.promised[who] {
			c.fail("R6: replica %d of shard %d sends %s at term %d, was at %d",
				who[1], who[0], m.GetType(), m.GetTerm(), k.promised[who])
		}
		spoken[who] = max(spoken[who], m.GetTerm())
		if m.GetType() != raftpb.MsgVoteResp || m.GetReject() {
			continue
		}
		vote := [3]uint64{who[0], who[1], m.GetTerm()}
		if other, ok := k.votes[vote]; ok && other != m.GetTo() {
			c.fail("R6: replica %d of shard %d votes for %d and %d at term %d", who[1], who[0], other, m.GetTo(), m.GetTerm())
		}
		k.votes[vote] = m.GetTo()
	}
}

// worked: R4, R8, R9, after each turn of a replica.
func (k *checks) worked(c *cluster, m *member, r *replica) {
	l := r.log
	if gone := k.removed[seat(r.shard, m.name)]; r.id <= gone {
		c.fail("R7: replica %d of shard %d is back on %s, from which %d was removed", r.id, r.shard, m.name, gone)
	}
	if l.truncated.index > r.applied.index || r.applied.index > l.last && r.installing == nil {
		c.fail("R9: shard %d on %s: truncated %d, applied %d, last %d", r.shard, m.name, l.truncated.index, r.applied.index, l.last)
		return
	}
	if r.installing != nil || r.applied.index == 0 {
		return
	}
	at := [2]uint64{uint64(r.shard), r.applied.index}
	k.highest[r.shard] = max(k.highest[r.shard], r.applied.index)
	for index := max(l.truncated.index+1, r.applied.index-min(r.applied.index, 64)); index <= r.applied.index; index++ {
		entry := [2]uint64{at[0], index}
		if term, ok := k.committed[entry]; ok && term != l.termAt(index) {
			c.fail("R2: shard %d on %s applied entry %d of term %d, elsewhere it has %d", r.shard, m.name, index, l.termAt(index), term)
		}
		k.committed[entry] = l.termAt(index)
	}
	if conf, ok := k.confs[at]; ok && !sameConf(conf, r.view) {
		c.fail("R8: shard %d at %d: %s has configuration %+v, elsewhere it is %+v", r.shard, r.applied.index, m.name, r.view, conf)
	}
	k.confs[at] = r.view
	if before, ok := k.confs[[2]uint64{at[0], at[1] - 1}]; ok && !intersect(before, r.view) {
		c.fail("R8: shard %d at %d: majorities of %+v and %+v need not meet", r.shard, r.applied.index, before, r.view)
	}
	if _, known := k.states[at]; !known || c.rng.IntN(16) == 0 {
		k.compare(c, m.engine, m.name, r.shard, r.applied)
	} else if k.states[at].chain != r.applied.chain {
		c.fail("R4: shard %d at %d: hash chain on %s differs", r.shard, r.applied.index, m.name)
	}
}

// compare: R4 and R10, equal chains and equal rows at equal indexes.
func (k *checks) compare(c *cluster, engine store.Engine, name string, shard uint32, applied appliedState) {
	at := [2]uint64{uint64(shard), applied.index}
	sum := stateSum{applied.chain, sumRows(engine, shard)}
	if known, ok := k.states[at]; ok && known != sum {
		c.fail("R4: shard %d at %d: %s has chain and rows %x, elsewhere they are %x", shard, applied.index, name, sum, known)
	}
	k.states[at] = sum
}

// installed: R10, the rows are those the sender had at that index, and no others.
func (k *checks) installed(c *cluster, m *member, r *replica) {
	k.compare(c, m.engine, m.name, r.shard, r.applied)
	iter, err := m.engine.NewIter(logKey(r.shard, 0), logKeyEnd(r.shard))
	if err != nil {
		c.fail("read log: %w", err)
		return
	}
	if iter.First() {
		c.fail("R10: shard %d on %s: log row %x outlived a snapshot", r.shard, m.name, iter.Key())
	}
	if err := iter.Close(); err != nil {
		c.fail("read log: %w", err)
	}
}

// loaded: R9 after a crash, the rows on disk are those that belong to the applied index on disk.
func (k *checks) loaded(m *member, s *ReplicaState) error {
	known, ok := k.states[[2]uint64{uint64(s.Shard), s.applied.index}]
	if !ok {
		return nil
	}
	if sum := (stateSum{s.applied.chain, sumRows(m.engine, s.Shard)}); sum != known {
		return fmt.Errorf("R9: shard %d after a crash at %d: chain and rows %x, were %x", s.Shard, s.applied.index, sum, known)
	}
	return nil
}

// majority: R5, at the moment of an acknowledgement the entry is in the synced image of a majority of the configuration in
// force: the one before the turn, or one that the turn brought.
func (k *checks) majority(c *cluster, m *member, shard uint32, request string) {
	r := m.core.byID[shard]
	if r == nil {
		return
	}
	durable := func(id uint64) bool {
		owner := k.owners[[2]uint64{uint64(shard), id}]
		engine := k.lost[owner]
		if other := c.member(owner); other != nil {
			engine = other.engine
		}
		return engine != nil && holds(c, engine.Crash(0), shard, request)
	}
	before := m.before[shard]
	if !quorum(r.view, durable) && (len(before.Voters) == 0 || !quorum(before, durable)) {
		c.fail("R5: %s of shard %d was acknowledged while not durable on a majority of %+v", request, shard, r.view)
	}
}

// holds says whether a request is in the log or the rows of an image.
func holds(c *cluster, image *store.Memory, shard uint32, request string) bool {
	if ledgerTimes(store.NewReader(image, shard), request) > 0 {
		return true
	}
	iter, err := image.NewIter(logKey(shard, 0), logKeyEnd(shard))
	if err != nil {
		c.fail("read log: %w", err)
		return false
	}
	found := false
	for ok := iter.First(); ok && !found; ok = iter.Next() {
		found = bytes.Contains(iter.Value(), []byte(request))
	}
	if err := iter.Close(); err != nil {
		c.fail("read log: %w", err)
	}
	return found
}

func sumRows(engine store.Engine, shard uint32) uint64 {
	var h xxhash.Digest
	h.Reset()
	store.NewReader(engine, shard).Scan([]byte{fsm.KindTruncated + 1}, nil, func(key, value []byte) bool {
		_, _ = h.Write(key)
		_, _ = h.Write(value)
		return true
	})
	return h.Sum64()
}

func sameConf(a, b Conf) bool {
	return sameIDs(a.Voters, b.Voters) && sameIDs(a.Learners, b.Learners) && sameIDs(a.Outgoing, b.Outgoing)
}

func sameIDs(a, b []uint64) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// intersect tries all sets of replicas: those that are a majority of one configuration and their rest one of the other.
func intersect(a, b Conf) bool {
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

func quorum(c Conf, in func(uint64) bool) bool {
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
