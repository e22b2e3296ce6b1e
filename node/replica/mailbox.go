package replica

import "sync"

// A loop that stands still must not pile up what others hand over.
const (
	// maxMailBytes bounds the commands that wait for the loop.
	maxMailBytes = 64 << 20
	// maxMailFrames bounds the frames, each of at most a few hundred KiB.
	maxMailFrames = 1024
	// maxMailReads bounds the reads, those whose callers have given up included.
	maxMailReads = 4096
)

// mailbox carries inputs from other goroutines to the loop.
type mailbox struct {
	// wake holds a token while there may be mail.
	wake chan struct{}

	mu        sync.Mutex
	closed    bool
	proposals []Proposal
	bytes     int
	calls     []func(*Core)
	// frames and reads count those of calls that bring frames of peers, and that ask for a read.
	frames, reads int
	// shed counts the proposals there was no room for.
	shed uint64
	// spare slices are what the loop has emptied.
	spareProposals []Proposal
	spareCalls     []func(*Core)
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// propose hands over ps together, so that the loop's next turn sees all of them, and returns those there is no room for. ok
// is false once the mailbox is closed.
func (m *mailbox) propose(ps ...Proposal) (overloaded []Proposal, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false
	}
	for _, p := range ps {
		if m.bytes+len(p.Encoded) > maxMailBytes {
			overloaded = append(overloaded, p)
			m.shed++
			continue
		}
		m.proposals = append(m.proposals, p)
		m.bytes += len(p.Encoded)
	}
	m.signal()
	return overloaded, true
}

// frame is call for a peer's frame, which may be lost: it is, while maxMailFrames wait.
func (m *mailbox) frame(fn func(*Core)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.frames == maxMailFrames {
		return
	}
	m.frames++
	m.calls = append(m.calls, fn)
	m.signal()
}

// read is call for a caller that waits to read.
func (m *mailbox) read(fn func(*Core)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrStopped
	case m.reads == maxMailReads:
		return ErrOverloaded
	}
	m.reads++
	m.calls = append(m.calls, fn)
	m.signal()
	return nil
}

// call is false once the mailbox is closed.
func (m *mailbox) call(fn func(*Core)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.calls = append(m.calls, fn)
	m.signal()
	return true
}

func (m *mailbox) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// drain hands everything in the mailbox to core.
func (m *mailbox) drain(core *Core) {
	m.mu.Lock()
	proposals, calls := m.proposals, m.calls
	m.proposals, m.calls, m.bytes = m.spareProposals, m.spareCalls, 0
	core.counters.Refused += m.shed
	core.counters.Shed += m.shed
	m.frames, m.reads, m.shed = 0, 0, 0
	m.spareProposals, m.spareCalls = nil, nil
	m.mu.Unlock()
	for _, p := range proposals {
		core.Propose(p)
	}
	for _, fn := range calls {
		fn(core)
	}
	clear(proposals)
	clear(calls)
	m.mu.Lock()
	m.spareProposals, m.spareCalls = proposals[:0], calls[:0]
	m.mu.Unlock()
}

// close lets nothing more in; what is in is drained as usual.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}
