package replica

import (
	"context"
	"math"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// pressureInterval is how often an engine that is written to is asked how it keeps up.
	pressureInterval = 250 * time.Millisecond
	// pressedBytes is how much new work is taken in between two answers under the slightest pressure: about what the machine
	// of docs/performance.md takes in at its best.
	pressedBytes = 4 << 20
)

// SetPressure says, in percent, how much of the new work is to be held back until it is said again: by an engine that does
// not keep up and would soon hold back everything, and with it the loop. What has waited for too long is refused as ever,
// see Config.Patience.
func (c *Core) SetPressure(percent int) {
	c.freshRoom = math.MaxInt
	if percent > 0 {
		c.freshRoom = pressedBytes * max(0, 100-percent) / 100
	}
	for _, r := range c.all {
		if len(r.queue.fresh.waiting) > 0 {
			c.touch(r)
		}
	}
}

// watchPressure asks the engine how it keeps up: after turns that have written something, so that an idle store is left
// alone, and for as long as it does not keep up.
func (h *Host) watchPressure(ctx context.Context, engine store.Engine) error {
	for percent := 0; ; {
		if percent == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-h.turned:
			}
		}
		percent = engine.Metrics().Pressure
		h.mail.call(func(c *Core) { c.SetPressure(percent) })
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pressureInterval):
		}
	}
}
