package client

import (
	"context"
	"sync"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// held are the executions whose leases must be kept alive.
type held struct {
	mu   sync.Mutex
	next map[*Execution]time.Time
	// changed has a token when a beat may be due sooner than was thought.
	changed chan struct{}
}

func newHeld() *held {
	return &held{next: make(map[*Execution]time.Time), changed: make(chan struct{}, 1)}
}

// interval is a third of the lease: two beats may be lost.
func interval(e *Execution) time.Duration { return max(e.lease, time.Second) / 3 }

// early is how much before its time a beat may go along with others, to save calls.
func early(e *Execution) time.Duration { return interval(e) / 8 }

func (h *held) add(e *Execution, now time.Time) {
	h.mu.Lock()
	h.next[e] = now.Add(interval(e))
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *held) remove(e *Execution) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.next, e)
}

// due is those whose beat is due at now, or nearly so. Their next one is set. wait is how long until the next is due, if
// there are others.
func (h *held) due(now time.Time) (due []*Execution, wait time.Duration, any bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var earliest time.Time
	for e, at := range h.next {
		if at.Sub(now) <= early(e) && len(due) < maxBeats {
			due = append(due, e)
			at = now.Add(interval(e))
			h.next[e] = at
		}
		if !any || at.Before(earliest) {
			earliest, any = at, true
		}
	}
	return due, earliest.Sub(now), any
}

// beats keeps the leases of all executions alive until the work ends.
func (r *run) beats() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, wait, any := r.held.due(time.Now())
		if len(due) > 0 {
			// A call that hangs must not keep the others' beats: an hour's lease bears what a second's does not.
			r.background.Go(func() { r.beat(r.work, due) })
			continue
		}
		if !any {
			wait = time.Hour
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-r.held.changed:
		case <-r.work.Done():
			return
		}
		if r.work.Err() != nil {
			return
		}
	}
}

// beat sends one heartbeat for several executions. It ends before the next one of any of them is due. If it fails the leases
// are as they were, and the next beat is due while they last.
func (r *run) beat(ctx context.Context, executions []*Execution) {
	req := &carillonv1.HeartbeatRequest{Worker: r.worker.config.Name}
	changes := make([]uint64, len(executions))
	limit := interval(executions[0])
	for i, e := range executions {
		item, n := e.beat()
		req.Items, changes[i] = append(req.Items, item), n
		limit = min(limit, interval(e)-early(e))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sent := time.Now()
	c := r.worker.client
	res, err := unary(ctx, c, identified, c.workers.Heartbeat, req)
	if err != nil {
		if r.work.Err() == nil {
			r.log.Warn("heartbeat failed", "executions", len(executions), "error", err)
		}
		return
	}
	for i, result := range res.GetResults() {
		if i < len(executions) {
			r.beaten(executions[i], result, sent, changes[i])
		}
	}
}

// beaten does what the server's answer to a heartbeat asks for.
func (r *run) beaten(e *Execution, result *carillonv1.HeartbeatResult, sent time.Time, changes uint64) {
	if failed := result.GetError(); failed != nil {
		r.log.Warn("heartbeat refused", "execution", e.ID, "error", newItemError(failed))
		return
	}
	switch result.GetStatus() {
	case carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK:
		e.beaten(sent, changes)
	case carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED:
		e.beaten(sent, changes)
		e.cancel(ErrCancelled)
	case carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST:
		// Its completion may just have been accepted: then this changes nothing.
		r.held.remove(e)
		e.cancel(ErrLeaseLost)
	case carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_UNSPECIFIED:
	}
}
