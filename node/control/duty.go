package control

import "slices"

// Duty is what a store has to do about its replica of a shard, in this order.
type Duty struct {
	// Remove the replica that stands here: its group has come to a generation without it.
	Remove bool
	// Add is the id of the replica to be made here, empty; 0: none.
	Add uint64
	// Stands says that a replica is here afterwards, which is to be told what is wanted.
	Stands bool
}

// DutyOf compares what is wanted of a shard and how it is with the replica that stands on a store: its id, 0 if none does,
// and the generation that it comes from. A replica is made only where the wanted record lists it, and destroyed only when a
// published configuration of at least its own generation is without it: whoever is behind does nothing. The generation that
// is wanted by now does not count: it may need this very store's room to be reached.
func DutyOf(want Shard, is Actual, store string, standing, gen uint64) Duty {
	own := uint64(0)
	for _, r := range want.Replicas {
		if r.Store == store {
			own = r.RID
		}
	}
	d := Duty{Remove: standing != 0 && standing != own && is.without(gen, standing)}
	d.Stands = standing != 0 && !d.Remove
	if !d.Stands && own != 0 {
		d.Add, d.Stands = own, true
	}
	return d
}

// without says that a group is known to have come to a generation without a replica. Of one of which nothing was heard yet
// nothing is known.
func (a Actual) without(gen, id uint64) bool {
	has := func(r Replica) bool { return r.RID == id }
	return len(a.Voters) > 0 && a.Gen >= gen && !slices.ContainsFunc(a.Voters, has) && !slices.ContainsFunc(a.Learners, has)
}

// ActualOf is what a shard's leader of an epoch tells when its group has come to a generation of what is wanted; was is what
// was told before.
func ActualOf(want Shard, was Actual, epoch, gen uint64, voters, learners []uint64) Actual {
	known := slices.Concat(was.Voters, was.Learners, want.Dropped, want.Replicas)
	place := func(ids []uint64) (at []Replica) {
		for _, id := range ids {
			r := Replica{RID: id}
			for _, k := range known {
				if k.RID == id {
					r.Store = k.Store
				}
			}
			at = append(at, r)
		}
		return at
	}
	return Actual{Shard: want.ID, Epoch: epoch, Gen: gen, Voters: place(voters), Learners: place(learners)}
}
