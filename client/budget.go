package client

import (
	"sync"
	"time"
)

// budget is a token bucket of retries, so that clients do not multiply the load of a server that sheds it: a retry takes a
// token, calls and time bring them. A client with few calls may retry once a second nevertheless, or it could not outlast
// an outage.
type budget struct {
	mu     sync.Mutex
	tokens float64
	filled time.Time
}

func newBudget() *budget { return &budget{tokens: budgetMax, filled: time.Now()} }

// called adds a call's part.
func (b *budget) called() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(budgetMax, b.tokens+budgetPerCall)
}

// retry takes a token and reports whether there was one.
func (b *budget) retry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(budgetMax, b.tokens+now.Sub(b.filled).Seconds()*budgetPerSecond)
	b.filled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
