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

// Observe takes what Stores has answered at now and returns it with the time that has passed since the last change.
func (s *Sightings) Observe(stores []StoreRecord, now time.Time) []StoreView {
	seen := make(map[string]sighting, len(stores))
	views := make([]StoreView, 0, len(stores))
	for _, store := range stores {
		one, known := s.seen[store.UUID]
		if !known || one.live != store.Live || one.bootID != store.BootID {
			one = sighting{live: store.Live, bootID: store.BootID, since: now}
		}
		seen[store.UUID] = one
		views = append(views, StoreView{StoreRecord: store, For: now.Sub(one.since)})
	}
	s.seen = seen
	return views
}
