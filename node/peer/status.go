package peer

import (
	"cmp"
	"slices"
	"time"
)

// PeerStatus is how a peer stands.
type PeerStatus struct {
	Store, Addr string
	// Connected: this store can send to it. Problem says why not, as of the last try.
	Connected bool
	Problem   string
	// LastHeard is when its last beat came, zero if none has; SilentFor how long ago that was, or that it became a peer.
	LastHeard time.Time
	SilentFor time.Duration
	// Boot is the highest number of its starts that was seen; 0: none was.
	Boot uint64
	// TurnAge and SyncAge are of its loop's last turn and its last sync, by its last beat.
	TurnAge, SyncAge time.Duration
	// Suspect, and Reason when it became so; Flaps counts how often it was wrongly, Patient is that it is given twice the
	// time for that.
	Suspect bool
	Reason  string
	Flaps   uint64
	Patient bool
	Clock   ClockStatus
	// Dropped counts frames and messages that were not sent to it.
	Dropped uint64
}

// Peers returns how the peers stand, in the order of the stores' names.
func (t *Transport) Peers() []PeerStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Now()
	all := make([]PeerStatus, 0, len(t.links))
	for store, l := range t.links {
		s := t.detector.peers[store]
		all = append(all, PeerStatus{
			Store: store, Addr: l.addr, Connected: l.conn != nil, Problem: l.problem,
			LastHeard: s.heard, SilentFor: now.Sub(latest(s.since, s.heard)), Boot: max(l.boot, s.boot),
			TurnAge: s.turnAge, SyncAge: s.syncAge,
			Suspect: s.suspect, Reason: s.reason, Flaps: s.flaps, Patient: now.Before(s.doubledUntil),
			Clock: l.clocks.best(), Dropped: l.box.drops(),
		})
	}
	slices.SortFunc(all, func(a, b PeerStatus) int { return cmp.Compare(a.Store, b.Store) })
	return all
}
