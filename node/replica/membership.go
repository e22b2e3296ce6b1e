package replica

import (
	"encoding/binary"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

const (
	// caughtUpEntries is how far behind the log's end a learner may be to become a voter, and caughtUpTicks for how long it
	// must have been no further behind.
	caughtUpEntries = 1000
	caughtUpTicks   = 20
	// changeTicks is how long a proposed change of the configuration may take before it is proposed again: raft replaces
	// by an empty entry, without saying so, what it cannot take just then.
	changeTicks = 10
)

// Wanted is what the control plane wants a shard's group to be, all of its replicas voters. Gen grows with every change.
type Wanted struct {
	Gen uint64
	// Replicas: the first one is to lead where nobody does.
	Replicas []Placed
}

// Placed is a replica and the store it is on.
type Placed struct {
	ID    uint64
	Store string
}

func (w *Wanted) has(id uint64) bool {
	return slices.ContainsFunc(w.Replicas, func(p Placed) bool { return p.ID == id })
}

// Conf is a group's configuration as applied. Outgoing is there while two configurations hold together. The slices must not
// be changed.
type Conf struct {
	Voters, Learners, Outgoing []uint64
}

func confOf(cs *raftpb.ConfState) Conf {
	return Conf{
		Voters: slices.Clone(cs.GetVoters()), Learners: slices.Clone(cs.GetLearners()),
		Outgoing: slices.Clone(cs.GetVotersOutgoing()),
	}
}

// membership is what a replica knows of what its group is to be, and on a leader how far it is on the way there.
type membership struct {
	wanted *Wanted
	// told is the generation of the last Changed event of this leadership; 0: none.
	told uint64
	// changeIn counts the ticks until a change may be proposed (again).
	changeIn int
	// caughtUp counts for each wanted learner the ticks it has not been behind.
	caughtUp map[uint64]int
	// seals is how many of sealEntries have been proposed since the configuration was applied, the last one behind sealedAt.
	seals    int
	sealedAt uint64
}

// sealEntries is how many empty entries follow a configuration before it counts as everybody's. Whoever has the first one
// on its disk has been told that the configuration is committed, and so applies it; who has the second one, which was
// sent after that was known, has what it applied on its disk too.
const sealEntries = 2

func (m *membership) wants(id uint64) bool { return m.wanted != nil && m.wanted.has(id) }

// Want says what the control plane wants the shard's group to be; it is to be told after the start, after Add, and of every
// change, and may be told more often. What is older than what is known, and a list that is empty, is ignored. The leader
// drives its group there: it adds what is missing as learners, when all of them have caught up makes them voters and removes
// what is not wanted in one change, and then tells Changed. A replica that is the first of the list and hears of no leader
// stands for election when it is told for the first time.
func (c *Core) Want(shard uint32, w Wanted) {
	r := c.byID[shard]
	if r == nil || len(w.Replicas) == 0 || r.members.wanted != nil && w.Gen < r.members.wanted.Gen {
		return
	}
	first := r.members.wanted == nil
	w.Replicas = slices.Clone(w.Replicas)
	r.members.wanted = &w
	r.learnStores(w.Replicas)
	if first && w.Replicas[0].ID == r.id && r.votes() && r.soft.Lead == raft.None {
		r.campaignIn = 0
	}
	c.touch(r)
}

// learnStores notes where replicas are, and forgets those that are neither placed nor wanted nor in the configuration. It
// stands on disk: after a restart a group must find together also when the control plane is away, or wants something else
// already.
func (r *replica) learnStores(placed []Placed) {
	stores := make(map[uint64]string, len(placed))
	for id, store := range r.stores {
		if r.inGroup(id) || r.members.wants(id) || len(r.conf.GetVoters()) == 0 {
			stores[id] = store
		}
	}
	for _, p := range placed {
		stores[p.ID] = p.Store
	}
	if !maps.Equal(stores, r.stores) {
		r.stores, r.identityMoved = stores, true
	}
}

// votes says whether the replica is a voter of its group as far as it knows.
func (r *replica) votes() bool {
	return slices.Contains(r.conf.GetVoters(), r.id) || slices.Contains(r.conf.GetVotersOutgoing(), r.id)
}

func (r *replica) inGroup(id uint64) bool {
	return slices.Contains(r.conf.GetVoters(), id) || slices.Contains(r.conf.GetLearners(), id) ||
		slices.Contains(r.conf.GetVotersOutgoing(), id)
}

// changing says that the leader's group is on its way to what is wanted. A leader that has heard of less than the group has
// come to already waits to be told.
func (r *replica) changing() bool {
	wanted := r.members.wanted
	return r.lead != nil && wanted != nil && wanted.Gen >= r.gen && r.members.told != wanted.Gen
}

// tickMembership lets time pass for a leader whose group is on its way.
func (c *Core) tickMembership(r *replica) {
	if !r.changing() {
		return
	}
	m := &r.members
	m.changeIn = max(0, m.changeIn-1)
	keeping := make(map[uint64]int, len(m.wanted.Replicas))
	for _, id := range r.conf.GetLearners() {
		if pr, ok := r.progress(id); ok && pr.State == tracker.StateReplicate &&
			pr.Match+caughtUpEntries >= r.log.last && !c.suspects[r.stores[id]] {
			keeping[id] = m.caughtUp[id] + 1
		}
	}
	m.caughtUp = keeping
	r.seal()
}

// seal proposes the next of sealEntries when every voter has the last one. It is called between turns, so that what stands
// behind the log's end then was proposed after the configuration was applied.
func (r *replica) seal() {
	m := &r.members
	if !r.lead.established || r.transferTicks > 0 || m.seals == sealEntries || !r.arrived() {
		return
	}
	if m.seals > 0 && !r.allHave(m.sealedAt+1) {
		return
	}
	// An error means that raft does not take it now; it is proposed with the next tick.
	if r.node.Propose(nil) == nil {
		m.seals, m.sealedAt = m.seals+1, r.log.last
	}
}

// sealed says that every voter has the applied configuration on its disk. Before that the replicas that it removed must stay:
// one that has not applied it yet would need their votes, for ever.
func (r *replica) sealed() bool {
	return r.onlyVoter() || r.members.seals == sealEntries && r.allHave(r.members.sealedAt+1)
}

// allHave says whether every voter has the log up to index on its disk.
func (r *replica) allHave(index uint64) bool {
	return !slices.ContainsFunc(r.conf.GetVoters(), func(id uint64) bool {
		pr, ok := r.progress(id)
		return !ok || pr.Match < index
	})
}

// asWanted says that the applied configuration is the one wanted.
func (r *replica) asWanted() bool {
	missing, learners, surplus := r.compare()
	return len(missing)+len(learners)+len(surplus)+len(r.conf.GetVotersOutgoing()) == 0
}

// arrived says that the applied configuration is the one wanted, and that the log says so of this generation. A later leader
// that has not heard of it yet then goes after no older one, whose replicas may be destroyed when this one has been told.
func (r *replica) arrived() bool { return r.asWanted() && r.gen == r.members.wanted.Gen }

// pursueWanted does the next step towards the wanted configuration. What it proposes is taken up by raft in order; one
// change is in flight at a time.
func (c *Core) pursueWanted(r *replica) {
	m := &r.members
	if !r.changing() || !r.lead.established || len(r.conf.GetVotersOutgoing()) > 0 {
		return
	}
	if r.arrived() {
		if !r.sealed() {
			return
		}
		m.told = m.wanted.Gen
		c.tell(Event{Kind: Changed, Shard: r.shard, Term: r.lead.term, Gen: m.told, Conf: confOf(r.conf)})
		return
	}
	if m.changeIn > 0 || r.transferTicks > 0 || c.stopping || c.anySuspect(r) {
		return
	}
	missing, learners, surplus := r.compare()
	switch {
	case r.asWanted():
		c.change(r, addVoter(r.id)) // it is one: only the generation changes
	case len(missing) > 0:
		c.change(r, addLearner(missing[0]))
	case !r.allCaughtUp(learners):
	case slices.Contains(surplus, r.id) && c.handOver(r):
	default:
		c.change(r, r.finalChange(learners, surplus)...)
	}
}

// compare returns which wanted replicas are not in the group, which are learners, and which members are not wanted.
func (r *replica) compare() (missing, learners, surplus []uint64) {
	w := r.members.wanted
	for _, p := range w.Replicas {
		switch {
		case slices.Contains(r.conf.GetVoters(), p.ID):
		case slices.Contains(r.conf.GetLearners(), p.ID):
			learners = append(learners, p.ID)
		default:
			missing = append(missing, p.ID)
		}
	}
	for _, ids := range [][]uint64{r.conf.GetVoters(), r.conf.GetLearners()} {
		for _, id := range ids {
			if !w.has(id) {
				surplus = append(surplus, id)
			}
		}
	}
	return missing, learners, surplus
}

// anySuspect says whether a voter that stays is suspect: then nothing is changed.
func (c *Core) anySuspect(r *replica) bool {
	return slices.ContainsFunc(r.conf.GetVoters(), func(id uint64) bool {
		return r.members.wanted.has(id) && c.suspects[r.stores[id]]
	})
}

func (r *replica) allCaughtUp(learners []uint64) bool {
	return !slices.ContainsFunc(learners, func(id uint64) bool {
		pr, ok := r.progress(id)
		return !ok || !pr.RecentActive && !r.lead.heardOf(id) || r.members.caughtUp[id] < caughtUpTicks
	})
}

// handOver gives the leadership to a replica that stays; false if there is none to give it to.
func (c *Core) handOver(r *replica) bool {
	to := c.successor(r, r.members.wanted.has)
	if to == raft.None {
		// Nobody who stays is a voter yet: the next change makes some, and this replica goes with the one after it.
		return slices.ContainsFunc(r.conf.GetVoters(), func(id uint64) bool { return id != r.id && r.members.wanted.has(id) })
	}
	c.transfer(r, to)
	return true
}

// finalChange promotes learners and removes what is surplus. A leader never removes itself: it has handed over before, or
// makes those voters that it can hand over to.
func (r *replica) finalChange(learners, surplus []uint64) []*raftpb.ConfChangeSingle {
	var changes []*raftpb.ConfChangeSingle
	for _, id := range learners {
		changes = append(changes, addVoter(id))
	}
	for _, id := range surplus {
		if id != r.id {
			changes = append(changes, &raftpb.ConfChangeSingle{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: &id})
		}
	}
	return changes
}

func addVoter(id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: &id}
}

func addLearner(id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: &id}
}

// change proposes one change of the configuration; of more than one part, it is a joint one that ends by itself.
func (c *Core) change(r *replica, changes ...*raftpb.ConfChangeSingle) {
	if len(changes) == 0 {
		return
	}
	r.members.changeIn = changeTicks
	// An error means that raft does not take it now; it is proposed again.
	_ = r.node.ProposeConfChange(&raftpb.ConfChangeV2{
		Changes: changes, Context: binary.AppendUvarint(nil, r.members.wanted.Gen),
	})
}

// noteConf takes in a configuration that an entry or a snapshot brought. A change without a generation, as the end of a
// joint one is, leaves it.
func (r *replica) noteConf(conf *raftpb.ConfState, context []byte) {
	r.conf, r.view = conf, confOf(conf)
	if gen, n := binary.Uvarint(context); n > 0 {
		r.gen = max(r.gen, gen)
	}
	r.members.changeIn, r.members.told, r.members.seals = 0, 0, 0
}

// progress is what a leader knows of a replica.
func (r *replica) progress(of uint64) (found tracker.Progress, ok bool) {
	r.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id == of {
			found, ok = pr, true
		}
	})
	return found, ok
}

// successor is the voter a leadership is best handed to among those allowed: the one whose log is longest, not suspect; 0 if
// there is none.
func (c *Core) successor(r *replica, allowed func(uint64) bool) uint64 {
	best, match := raft.None, uint64(0)
	r.node.WithProgress(func(id uint64, kind raft.ProgressType, pr tracker.Progress) {
		fit := kind == raft.ProgressTypePeer && id != r.id && pr.State == tracker.StateReplicate &&
			slices.Contains(r.conf.GetVoters(), id) && !c.suspects[r.stores[id]] && allowed(id)
		if fit && (best == raft.None || pr.Match > match || pr.Match == match && id < best) {
			best, match = id, pr.Match
		}
	})
	return best
}
