package route

import "time"

// breaker keeps calls away from a peer that does not answer. It is a value without goroutine or clock; its owner locks it.
type breaker struct {
	// failures in a row, while it is closed.
	failures int
	// coolDown is how long it stays open; 0: it is closed.
	coolDown time.Duration
	// until is when the next probe may go, while it is open.
	until time.Time
	// probing: a probe is under way, and nothing else may go.
	probing bool
}

// callResult is what a call says of its peer.
type callResult int

const (
	// answered: the peer is there, whatever it said.
	answered callResult = iota
	// failed: no answer.
	failed
	// unreachable: it could not even be connected to within the time for that.
	unreachable
	// undecided: the caller ended it.
	undecided
)

// open says whether calls fail at once, and for how long still.
func (b *breaker) open(now time.Time) (wait time.Duration, open bool) {
	switch {
	case b.coolDown == 0:
		return 0, false
	case b.probing:
		return minCoolDown, true
	}
	wait = b.until.Sub(now)
	return wait, wait > 0
}

// admit lets a call go, or says how long none will be. One that it lets go while it is open is the probe.
func (b *breaker) admit(now time.Time) (probe bool, wait time.Duration, ok bool) {
	if wait, open := b.open(now); open {
		return false, wait, false
	}
	b.probing = b.coolDown > 0
	return b.probing, 0, true
}

// done takes in what a call that was admitted says. While it is open only the probe counts: the others began before.
func (b *breaker) done(now time.Time, probe bool, result callResult) {
	if probe {
		b.probing = false
	} else if b.coolDown > 0 {
		return
	}
	switch result {
	case answered:
		*b = breaker{}
	case failed:
		if b.failures++; b.failures >= failuresToTrip || probe {
			b.trip(now)
		}
	case unreachable:
		b.trip(now)
	case undecided:
	}
}

// trip opens it, or keeps it open for twice as long.
func (b *breaker) trip(now time.Time) {
	b.coolDown = min(max(2*b.coolDown, minCoolDown), maxCoolDown)
	b.until = now.Add(b.coolDown)
	b.failures = 0
}
