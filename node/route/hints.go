package route

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"
)

// hints are what is known of work at other leaders, and the polls that wait for it. Its methods are safe for concurrent
// use; none blocks.
type hints struct {
	interested func()

	mu     sync.Mutex
	queues map[string]*hinted
}

// hinted is one queue.
type hinted struct {
	// stores have work in it, as far as is known.
	stores []string
	// waiters are its waiting polls, *waiter, first come first.
	waiters list.List
	// left is when the last of them left, asked when all leaders were last asked.
	left, asked time.Time
}

// waiter is a poll that waits. Guarded by hints.mu.
type waiter struct {
	queues []string
	seats  []*list.Element
	// cancel ends its wait at the local dispatcher; nil while it does not wait there.
	cancel context.CancelFunc
	// woken: it is to look at what is known.
	woken bool
}

func newHints(interested func()) *hints {
	return &hints{interested: interested, queues: map[string]*hinted{}}
}

// mark notes that store has work in queues and wakes a waiting poll of each.
func (h *hints) mark(store string, queues []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range queues {
		q := h.queue(name)
		if q == nil {
			continue
		}
		if !slices.Contains(q.stores, store) {
			q.stores = append(q.stores, store)
		}
		q.wake()
	}
}

// queue returns the queue, nil if there are too many. Locked.
func (h *hints) queue(name string) *hinted {
	q := h.queues[name]
	if q == nil {
		if len(h.queues) >= maxHintedQueues && !h.forget(time.Now()) {
			return nil
		}
		q = &hinted{}
		h.queues[name] = q
	}
	return q
}

// forget drops the queues for which nobody waits, and says whether there is room then. Locked.
func (h *hints) forget(now time.Time) bool {
	for name, q := range h.queues {
		if !q.lives(now) {
			delete(h.queues, name)
		}
	}
	return len(h.queues) < maxHintedQueues
}

// lives says whether the queue is of interest. Locked.
func (q *hinted) lives(now time.Time) bool {
	return q.waiters.Len() > 0 || now.Sub(q.left) < interestLinger
}

// neglected says whether it is time to ask all leaders about the queues, and takes it that this is done now.
func (h *hints) neglected(queues []string, now time.Time, after time.Duration) (is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range queues {
		if q := h.queue(name); q != nil && now.Sub(q.asked) >= after {
			q.asked, is = now, true
		}
	}
	return is
}

// wake wakes the first poll that is not awake. Locked.
func (q *hinted) wake() {
	for el := q.waiters.Front(); el != nil; el = el.Next() {
		if w := el.Value.(*waiter); !w.woken {
			w.wake()
			return
		}
	}
}

// wakeAll wakes all polls that wait.
func (h *hints) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.queues {
		for el := q.waiters.Front(); el != nil; el = el.Next() {
			el.Value.(*waiter).wake()
		}
	}
}

func (w *waiter) wake() {
	w.woken = true
	if w.cancel != nil {
		w.cancel()
	}
}

// known are the stores that have work in one of the queues.
func (h *hints) known(queues []string) (stores []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range queues {
		if q := h.queues[name]; q != nil {
			for _, store := range q.stores {
				if !slices.Contains(stores, store) {
					stores = append(stores, store)
				}
			}
		}
	}
	return stores
}

// clear forgets what is known of a store that is about to be asked.
func (h *hints) clear(store string, queues []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range queues {
		if q := h.queues[name]; q != nil {
			q.stores = slices.DeleteFunc(q.stores, func(s string) bool { return s == store })
		}
	}
}

// enter adds a waiting poll.
func (h *hints) enter(queues []string) *waiter {
	queues = slices.Compact(slices.Sorted(slices.Values(queues)))
	w := &waiter{queues: queues, seats: make([]*list.Element, len(queues))}
	now := time.Now()
	h.mu.Lock()
	grown := false
	for i, name := range queues {
		if q := h.queue(name); q != nil {
			grown = grown || !q.lives(now)
			w.seats[i] = q.waiters.PushBack(w)
		}
	}
	h.mu.Unlock()
	if grown && h.interested != nil {
		h.interested()
	}
	return w
}

// arm lets a hint end the wait that is about to begin; what is known already ends it at once.
func (h *hints) arm(w *waiter, cancel context.CancelFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.cancel, w.woken = cancel, false
	for _, name := range w.queues {
		if q := h.queues[name]; q != nil && len(q.stores) > 0 {
			w.wake()
			return
		}
	}
}

// disarm ends the wait and says whether it was woken.
func (h *hints) disarm(w *waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.cancel = nil
	return w.woken
}

// leave takes a poll away. What it was woken for, and has not gone for, wakes the next one.
func (h *hints) leave(w *waiter) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, name := range w.queues {
		if w.seats[i] == nil {
			continue
		}
		q := h.queues[name]
		q.waiters.Remove(w.seats[i])
		q.left = now
		if len(q.stores) > 0 {
			q.wake()
		}
	}
}

// interest returns the queues of interest, sorted.
func (h *hints) interest(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for name, q := range h.queues {
		switch {
		case q.lives(now):
			names = append(names, name)
		case len(q.stores) == 0 && now.Sub(q.asked) >= neglectAfter:
			delete(h.queues, name)
		}
	}
	slices.Sort(names)
	return names
}
