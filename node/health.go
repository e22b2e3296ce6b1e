package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
)

const (
	// beatInterval is how often the replicas' loop must prove that it is alive to keep the store's lease.
	beatInterval = 2 * time.Second
	// controlEvery is how often the control plane is looked at.
	controlEvery = 10 * time.Second
	// readyEvery is how often a node that starts looks whether it is ready; readyLater, when that has taken readySoon.
	readyEvery = 5 * time.Millisecond
	readyLater = 100 * time.Millisecond
	readySoon  = time.Second
)

// announce writes the address file once the node can take part: scripts wait for it.
func (n *Node) announce(ctx context.Context) error {
	if awaitReady(ctx, func() bool { return len(n.notReady()) == 0 }) != nil {
		return nil
	}
	n.logger.Info("ready", "after", time.Since(n.started).Round(time.Millisecond).String())
	return n.web.publish(n.cfg.DataDir)
}

// awaitReady looks often at first, as most starts are short, and seldom after that: to look takes all shards.
func awaitReady(ctx context.Context, ready func() bool) error {
	for began := time.Now(); !ready(); {
		every := readyEvery
		if time.Since(began) >= readySoon {
			every = readyLater
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
	return nil
}

// beat keeps the store's lease alive for as long as the loop that does the work comes round.
func (n *Node) beat(ctx context.Context) error {
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	for {
		if n.serving.Load() { // until then nothing is led that a living process could let down
			if err := n.host.Alive(ctx); err != nil {
				return err
			}
		}
		n.plane.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watchMap compares the map this node works with to the control plane's, and says when that is missing or another.
func (n *Node) watchMap(ctx context.Context) error {
	for {
		n.lookAtControl(ctx)
		if pause(ctx, controlEvery) != nil {
			return nil
		}
	}
}

// lookAtControl asks for the map, which takes a majority, and for what the control plane says of itself: one whose disk is
// full answers and renews leases, and takes no other change.
func (n *Node) lookAtControl(ctx context.Context) {
	m, err := n.plane.Map(ctx)
	lost := errors.Is(err, control.ErrNoMap)
	var problems []string
	if err != nil && !lost {
		problems = []string{err.Error()}
	} else {
		problems = n.plane.Health(ctx).Alarms
	}
	if ctx.Err() != nil {
		return
	}
	n.alarms.set("control-plane", len(problems) > 0, named(problems))
	switch {
	case lost:
		n.alarms.set("slot-map", true, "the control plane has lost the slot map; the node goes on with its own copy")
	case err == nil:
		now, err := newSlotMap(m)
		differs := err != nil || !now.equal(n.slots)
		n.alarms.set("slot-map", differs, "the control plane's slot map is not the one this node works with")
	}
}

// notReady says why this node cannot take part yet; nothing when it can.
func (n *Node) notReady() []string {
	var reasons []string
	missing := 0
	for _, shard := range n.slots.shards {
		if !n.led(shard) {
			missing++
		}
	}
	if missing > 0 {
		reasons = append(reasons, fmt.Sprintf("%d of %d shards have no established leader", missing, len(n.slots.shards)))
	}
	if err := n.dispatcher.Ready(); err != nil {
		reasons = append(reasons, err.Error())
	}
	if !n.guard.MayFire() {
		reasons = append(reasons, "the clock is held: "+n.guard.State().String())
	}
	return reasons
}

// readiness is notReady as one error.
func (n *Node) readiness() error {
	if reasons := n.notReady(); len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "; "))
	}
	return nil
}

func (n *Node) clockChanged() {
	if n.alarms == nil || n.dispatcher == nil {
		return
	}
	n.alarms.set("clock", !n.guard.MayFire(), n.guard.State().String())
	n.dispatcher.ClockChanged()
}
