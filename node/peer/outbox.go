package peer

import (
	"sync"

	"github.com/carillon-scheduler/carillon/node/replica"
)

// item is a frame, or a message of kind, that waits to be sent. size is about what it has on the wire.
type item struct {
	frame   replica.Frame
	message bool
	kind    byte
	payload []byte
	size    int
}

// outbox is what waits to be sent to a peer, bounded in bytes and in count.
type outbox struct {
	// wake has a token when something may be there.
	wake chan struct{}

	mu      sync.Mutex
	items   []item
	bytes   int
	dropped uint64
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// put adds i, or drops and counts it if it does not fit. In an empty outbox anything fits: what is larger than the bound
// would never go otherwise.
func (o *outbox) put(i item) {
	o.mu.Lock()
	if len(o.items) > 0 && (len(o.items) >= maxQueuedItems || o.bytes+i.size > maxQueuedBytes) {
		o.dropped++
		o.mu.Unlock()
		return
	}
	o.items = append(o.items, i)
	o.bytes += i.size
	o.mu.Unlock()
	poke(o.wake)
}

// take returns all there is, in order. used is what the call before returned; its room is used again.
func (o *outbox) take(used []item) []item {
	clear(used) // what was sent is not to be kept
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.items
	o.items, o.bytes = used[:0], 0
	return taken
}

// discard drops and counts all there is.
func (o *outbox) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped += uint64(len(o.items))
	o.items, o.bytes = nil, 0
}

// drop counts n items that were taken and could not be sent.
func (o *outbox) drop(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped += uint64(n)
}

func (o *outbox) drops() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}

// poke leaves a token in ch, which has room for one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
