package client

import (
	"context"
	"sync"
	"time"
)

// slots bound what a worker holds: handlers by its concurrency, and executions whose completion is not settled yet by
// that and another claim's worth. One goroutine waits on them.
type slots struct {
	mu       sync.Mutex
	handling int
	holding  int
	// changed has a token when slots came free.
	changed chan struct{}

	handlers, executions, enough int
}

func newSlots(concurrency, claimBatch int) *slots {
	return &slots{
		handlers: concurrency, executions: concurrency + claimBatch, enough: max(1, min(concurrency, claimBatch)/4),
		changed: make(chan struct{}, 1),
	}
}

func (s *slots) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.handlers-s.handling, s.executions-s.holding)
}

func (s *slots) take(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handling += n
	s.holding += n
}

// handled says that a handler has ended, settled that its completion is answered.
func (s *slots) handled() { s.give(1, 0) }
func (s *slots) settled() { s.give(0, 1) }

func (s *slots) give(handling, holding int) {
	s.mu.Lock()
	s.handling -= handling
	s.holding -= holding
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// wait returns how many slots are free once there is one, or some after a linger while most are taken. It returns early
// when ctx ends.
func (s *slots) wait(ctx context.Context) int {
	var linger <-chan time.Time
	for {
		free := s.free()
		if free >= s.enough || ctx.Err() != nil {
			return free
		}
		if free > 0 && linger == nil {
			timer := time.NewTimer(slotsLinger)
			defer timer.Stop()
			linger = timer.C
		}
		select {
		case <-s.changed:
		case <-linger:
			if free = s.free(); free > 0 {
				return free
			}
			linger = nil
		case <-ctx.Done():
		}
	}
}
