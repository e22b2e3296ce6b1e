package replica

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// loop is the one goroutine that uses the Core.
func (h *Host) loop(ctx context.Context) error {
	defer h.setTicker(false)
	defer h.setStagger(false)
	stop := ctx.Done()
	var deadline <-chan time.Time
	for {
		h.mail.drain(h.core)
		busy := h.core.HasWork() && h.core.InFlight() < maxTurnsInFlight
		if busy {
			if err := h.turn(); err != nil {
				return err
			}
		}
		if stop == nil && h.core.Idle() && !h.core.HasWork() {
			return nil
		}
		h.setTicker(h.core.NeedsTick())
		h.setStagger(h.core.Staggered())
		event, err := h.next(stop, deadline, busy)
		switch {
		case err != nil:
			return err
		case event == stopAsked:
			stop, deadline = nil, time.After(h.cfg.StopTimeout)
			h.core.Stop()
		case event == stopOverdue:
			return nil
		}
	}
}

type loopEvent uint8

const (
	somethingCame loopEvent = iota
	stopAsked
	stopOverdue
)

// next waits for something to do; if the loop is busy it only looks.
func (h *Host) next(stop <-chan struct{}, deadline <-chan time.Time, busy bool) (loopEvent, error) {
	var ticks <-chan time.Time
	if h.ticker != nil {
		ticks = h.ticker.C
	}
	var stagger <-chan time.Time
	if h.stagger != nil {
		stagger = h.stagger.C
	}
	var look chan struct{}
	if busy {
		look = alwaysReady
	}
	select {
	case done := <-h.durable:
		return somethingCame, h.syncDone(done)
	default:
	}
	select {
	case done := <-h.durable:
		return somethingCame, h.syncDone(done)
	case <-ticks:
		h.core.Tick()
	case <-stagger:
		h.stagger = nil
		h.core.Stagger()
	case <-stop:
		return stopAsked, nil
	case <-deadline:
		return stopOverdue, nil
	case <-h.mail.wake:
	case <-look:
	}
	return somethingCame, nil
}

// alwaysReady is closed.
var alwaysReady = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

func (h *Host) syncDone(done synced) error {
	if done.err != nil {
		return fmt.Errorf("sync turn %d: %w", done.seq, done.err)
	}
	h.core.SyncDone(done.seq)
	return nil
}

// turn does one turn and hands out what came of it.
func (h *Host) turn() error {
	began := time.Now()
	turn, err := h.core.Turn(h.cfg.Now())
	if err != nil {
		return err
	}
	if turn.Wait != nil {
		h.syncs <- turn
	}
	if h.cfg.Send != nil {
		for _, f := range turn.Frames {
			h.cfg.Send(f)
		}
	}
	if err := h.passSnapshots(turn); err != nil {
		return err
	}
	if err := h.passVerifies(turn); err != nil {
		return err
	}
	h.publish()
	for _, e := range turn.Events {
		h.dispatch(e)
	}
	for _, d := range turn.Results {
		d.Deliver()
	}
	if h.cfg.Hooks.Turn != nil {
		h.cfg.Hooks.Turn(time.Since(began))
	}
	if turn.Wrote {
		select {
		case h.turned <- struct{}{}:
		default:
		}
	}
	return nil
}

func (h *Host) dispatch(e Event) {
	listener, keeper := h.cfg.Listener, h.cfg.Keeper
	switch e.Kind {
	case LeaseWanted:
		if keeper == nil {
			h.core.LeaseHeld(e.Shard, e.Term)
			return
		}
		keeper.Acquire(e.Shard, e.Term)
	case SteppedDown:
		if keeper != nil {
			keeper.Release(e.Shard)
		}
		if listener != nil && e.WasEstablished {
			listener.OnStepDown(e.Shard)
		}
	case Established:
		h.cfg.Logger.Debug("shard established", "shard", e.Shard, "term", e.Term)
		if listener != nil {
			listener.OnEstablished(e.Shard, e.Term)
		}
	case Applied:
		if listener != nil {
			listener.OnApplied(e.Shard, e.Effects)
		}
	case Changed:
		if h.cfg.OnChanged != nil {
			h.cfg.OnChanged(e.Shard, e.Term, e.Gen, e.Conf)
		}
	}
}

// publish shows the last turn's replicas and the counters to other goroutines.
func (h *Host) publish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.core.worked {
		h.statuses[r.shard] = h.core.statusOf(r)
	}
	if h.shape != h.core.shape {
		h.shape = h.core.shape
		maps.DeleteFunc(h.statuses, func(shard uint32, _ Status) bool { return h.core.byID[shard] == nil })
	}
	h.counters = h.core.Counters()
}

// setTicker starts or stops the clock ticks: an idle store has none.
func (h *Host) setTicker(on bool) {
	switch {
	case on && h.ticker == nil:
		h.ticker = time.NewTicker(TickInterval)
	case !on && h.ticker != nil:
		h.ticker.Stop()
		h.ticker = nil
	}
}

// setStagger starts or stops the clock of those that stand for election one after the other.
func (h *Host) setStagger(on bool) {
	switch {
	case on && h.stagger == nil:
		h.stagger = time.NewTimer(StaggerInterval)
	case !on && h.stagger != nil:
		h.stagger.Stop()
		h.stagger = nil
	}
}

// answerEverybody leaves nobody waiting when the loop ends.
func (h *Host) answerEverybody() {
	h.mail.close()
	h.core.Stop()
	h.mail.drain(h.core)
	for _, d := range h.core.Abandon() {
		d.Deliver()
	}
	for _, rows := range h.core.abandonImports() {
		h.imports <- importJob{rows: rows}
	}
}
