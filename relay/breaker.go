package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// breaker keeps requests from a host that does not do its work: closed until several fail in a row, open for a pause,
// and half-open while one request shows whether the host is back. The states are gobreaker's; this adds that a worker can
// wait until there is something to do.
type breaker struct {
	states *gobreaker.TwoStepCircuitBreaker[struct{}]
	pause  time.Duration
	log    *slog.Logger
	// changed has a token when the gate should look again. One goroutine waits on it.
	changed chan struct{}

	mu     sync.Mutex
	opened time.Time
	// openings counts how often it has opened.
	openings uint64
}

func newBreaker(host string, config Config) *breaker {
	b := &breaker{pause: config.Pause, log: config.Logger, changed: make(chan struct{}, 1)}
	b.states = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: host, MaxRequests: 1, Timeout: config.Pause,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= config.Failures },
		IsExcluded:    func(err error) bool { return errors.Is(err, errInterrupted) },
		OnStateChange: b.moved,
	})
	return b
}

// moved is called under gobreaker's lock.
func (b *breaker) moved(_ string, from, to gobreaker.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	level := slog.LevelInfo
	if to == gobreaker.StateOpen {
		level = slog.LevelWarn
		b.opened = time.Now()
		b.openings++
	}
	b.log.Log(context.Background(), level, "breaker moved", "from", from.String(), "to", to.String())
	b.look()
}

// look wakes the gate.
func (b *breaker) look() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// allow lets a request go, whose verdict done is told, or says why it must not. A probe shows whether the host is back.
func (b *breaker) allow() (done func(verdict error), probe bool, err error) {
	probe = b.states.State() == gobreaker.StateHalfOpen
	finished, err := b.states.Allow()
	if err != nil {
		return nil, false, fmt.Errorf("breaker of %s: %w", b.states.Name(), err)
	}
	return func(verdict error) {
		finished(verdict)
		b.look()
	}, probe, nil
}

// gate waits until requests may go, and says how many.
func (b *breaker) gate(ctx context.Context, free int) int {
	for {
		wait := time.Duration(-1)
		switch b.states.State() {
		case gobreaker.StateClosed:
			return free
		case gobreaker.StateHalfOpen:
			if c := b.states.Counts(); c.Requests == c.TotalExclusions {
				return 1
			}
		case gobreaker.StateOpen:
			b.mu.Lock()
			wait = max(0, time.Until(b.opened.Add(b.pause))) + time.Millisecond // it moves after its time, not at it
			b.mu.Unlock()
		}
		if !b.sleep(ctx, wait) {
			return 0
		}
	}
}

// sleep waits until something has changed, or for a time if that is not negative. It reports false if ctx ended.
func (b *breaker) sleep(ctx context.Context, wait time.Duration) bool {
	var timeUp <-chan time.Time
	if wait >= 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		timeUp = timer.C
	}
	select {
	case <-b.changed:
	case <-timeUp:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

func (b *breaker) opens() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return float64(b.openings)
}
