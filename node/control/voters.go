package control

import (
	"context"
	"slices"
)

// Membership is etcd's members, as far as the controller needs them.
type Membership interface {
	Members(ctx context.Context) ([]Member, error)
	RemoveMember(ctx context.Context, storeUUID string) error
}

// VoterToRetire is the store whose member of etcd is to be removed, so that a node without one takes its place; empty: none.
// The store is lost, a living node has no member, and the members that stay have a living majority.
func VoterToRetire(v View, members []Member) (store string) {
	p := newPlacer(v)
	of := func(s StoreView) int {
		return slices.IndexFunc(members, func(m Member) bool { return m.Name == MemberName(s.Name, s.UUID) })
	}
	spare, living := false, 0
	for _, s := range v.Stores {
		i := of(s)
		switch {
		case i < 0 && s.Live && s.State == StoreUp:
			spare = true
		case i >= 0 && s.Live && !members[i].Learner:
			living++
		case i >= 0 && p.lost(s.UUID) && store == "":
			store = s.UUID
		}
	}
	if left := len(members) - 1; !spare || living < left/2+1 {
		return ""
	}
	return store
}

// replaceVoter retires the member of a lost store, if that may be.
func (c *Controller) replaceVoter(ctx context.Context, v View) error {
	p := newPlacer(v)
	if len(v.Stores) <= Voters || !slices.ContainsFunc(v.Stores, func(s StoreView) bool { return p.lost(s.UUID) }) {
		return nil
	}
	members, err := c.cfg.Members().Members(ctx)
	if err != nil {
		return err
	}
	store := VoterToRetire(v, members)
	if store == "" {
		return nil
	}
	c.cfg.Logger.Warn("member of a lost store is removed, another node takes its place", "store", store)
	return c.cfg.Members().RemoveMember(ctx, store)
}
