package route

import (
	"sync"
	"time"
)

// claims remembers the claims for which other leaders were asked, in two generations: a retry of one must ask everywhere
// before it takes new leases.
type claims struct {
	mu         sync.Mutex
	young, old map[string]struct{}
	since      time.Time
}

func newClaims(now time.Time) claims { return claims{young: map[string]struct{}{}, since: now} }

// remember notes that the claim may have leases elsewhere from now on.
func (c *claims) remember(id string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age(now)
	c.young[id] = struct{}{}
}

// maybeRetried says whether the claim may have leases elsewhere.
func (c *claims) maybeRetried(id string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age(now)
	_, young := c.young[id]
	_, old := c.old[id]
	return young || old
}

// age begins a new generation when the young one is old or full. Locked.
func (c *claims) age(now time.Time) {
	if now.Sub(c.since) >= claimMemory || len(c.young) >= maxClaims {
		c.old, c.young, c.since = c.young, map[string]struct{}{}, now
	}
}
