package control

import "time"

// Sightings remembers since when each store is as it is, live or not. The zero value has seen nothing, so that whoever has
// just become the controller waits anew before it holds a store for lost or for settled. Not safe for concurrent use.
type Sightings struct {
	seen map[string]sighting
}

type sighting struct {
	live   bool
	bootID string
	since  time.Time
}

// Observe sets For of stores as they are at now: the time that has passed since they were first seen so, at least settleTime
// for a live one on its first start.
func (s *Sightings) Observe(stores []StoreView, now time.Time) {
	seen := make(map[string]sighting, len(stores))
	for i := range stores {
		store := &stores[i]
		one, known := s.seen[store.UUID]
		if !known || one.live != store.Live || one.bootID != store.BootID {
			one = sighting{live: store.Live, bootID: store.BootID, since: now}
		}
		seen[store.UUID] = one
		store.For = now.Sub(one.since)
		if store.Live && store.Boots == 1 {
			// On its first start it has not come back from anything: leaderships may go to it at once.
			store.For = max(store.For, settleTime)
		}
	}
	s.seen = seen
}
