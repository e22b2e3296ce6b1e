package client

import (
	"runtime"
	"sync"
	"time"
)

// mergeLimits bound a merger.
type mergeLimits struct {
	// items and bytes of one batch at most; a larger item goes alone.
	items, bytes int
	// linger is how long an item waits at most for others while a batch is on its way.
	linger time.Duration
	// inFlight batches at most.
	inFlight int
}

// merger collects the items of concurrent callers into batches. While nothing is on its way an item is sent at once;
// otherwise it waits for the batch to return, for a full batch or for the linger, whichever is first. So a lone caller
// pays nothing and many callers share their calls. Callers wait for their items, which bounds what is pending.
type merger[T interface{ bytes() int }] struct {
	// send must settle every item it is given, whatever happens.
	send   func([]T)
	limits mergeLimits

	mu      sync.Mutex
	pending []T
	size    int
	// oldest is when the first of pending came.
	oldest   time.Time
	inFlight int
	timer    *time.Timer
	closed   bool
	sending  sync.WaitGroup
}

func newMerger[T interface{ bytes() int }](send func([]T), limits mergeLimits) *merger[T] {
	return &merger[T]{send: send, limits: limits}
}

// add hands an item over to be sent. It fails with ErrClosed.
func (m *merger[T]) add(item T) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if len(m.pending) == 0 {
		m.oldest = time.Now()
	}
	m.pending = append(m.pending, item)
	m.size += item.bytes()
	m.launch()
	return nil
}

// close refuses further items and waits until those it has are settled.
func (m *merger[T]) close() {
	m.mu.Lock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
	m.launch()
	m.mu.Unlock()
	m.sending.Wait()
}

// launch starts a batch if one should go now, or sees to it that one goes when the linger ends. The lock is held.
func (m *merger[T]) launch() {
	if len(m.pending) == 0 || m.inFlight >= m.limits.inFlight {
		return
	}
	waited := time.Since(m.oldest)
	full := len(m.pending) >= m.limits.items || m.size >= m.limits.bytes
	if m.inFlight == 0 || full || m.closed || waited >= m.limits.linger {
		m.inFlight++
		m.sending.Go(m.run)
		return
	}
	if m.timer == nil {
		m.timer = time.AfterFunc(m.limits.linger-waited, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.timer = nil
			m.launch()
		})
	}
}

// run sends one batch.
func (m *merger[T]) run() {
	// Callers that an answer has just woken are about to come: let them in.
	runtime.Gosched()
	m.mu.Lock()
	batch := m.take()
	// What did not fit may be due as well.
	m.launch()
	m.mu.Unlock()

	if len(batch) > 0 {
		m.send(batch)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
	m.launch()
}

// take removes the next batch from pending. The lock is held.
func (m *merger[T]) take() []T {
	n, size := 0, 0
	for n < len(m.pending) && n < m.limits.items {
		next := m.pending[n].bytes()
		if n > 0 && size+next > m.limits.bytes {
			break
		}
		n, size = n+1, size+next
	}
	batch := m.pending[:n:n]
	m.pending = m.pending[n:]
	m.size -= size
	if len(m.pending) == 0 {
		m.pending = nil
	}
	return batch
}
