package clock

import (
	"context"
	"sync/atomic"
)

// Virtual is a clock that stands still until it is set ahead. It takes the place of a Guard in a development server: what it
// says is right by definition, so that it holds nothing. Its methods are for any goroutine.
type Virtual struct{ nowMS atomic.Int64 }

// NewVirtual returns a clock that stands at startMS, or at lastStampMS, the newest stamp in the node's log, if that is later:
// time does not go back across a restart. Both are milliseconds since 1970 UTC.
func NewVirtual(startMS, lastStampMS int64) *Virtual {
	v := &Virtual{}
	v.nowMS.Store(max(startMS, lastStampMS))
	return v
}

// Now is where the clock stands, in milliseconds since 1970 UTC. It never goes back.
func (v *Virtual) Now() int64 { return v.nowMS.Load() }

// Set moves the clock ahead to toMS. An instant that it has passed leaves it where it is.
func (v *Virtual) Set(toMS int64) {
	for {
		now := v.nowMS.Load()
		if toMS <= now || v.nowMS.CompareAndSwap(now, toMS) {
			return
		}
	}
}

// MayFire says that time may make things due, as Guard's does: always.
func (v *Virtual) MayFire() bool { return true }

// State says that nothing is held.
func (v *Virtual) State() State { return State{} }

// Run returns nil when ctx ends. There is nothing to watch.
func (v *Virtual) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
