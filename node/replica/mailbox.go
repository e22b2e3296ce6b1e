package replica

import "sync"

// maxMailBytes bounds the commands other goroutines have handed over and the loop has not yet taken in.
const maxMailBytes = 64 << 20

// maxMailFrames bounds the frames that wait for the loop, each of at most a few hundred KiB: a loop that stands still must
// not pile them up.
const maxMailFrames = 1024

// mailbox carries inputs from other goroutines to the loop.
type mailbox struct {
	// wake holds a token while there may be mail.
	wake chan struct{}

	mu        sync.Mutex
	closed    bool
	proposals []Proposal
	bytes     int
	calls     []func(*Core)
	// frames counts those of calls that bring frames of peers.
	frames int
	// spare slices are what the loop has emptied.
	spareProposals []Proposal
	spareCalls     []func(*Core)
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// propose hands over ps together, so that the loop's next turn sees all of them. It is false once the mailbox is closed.
func (m *mailbox) propose(ps ...Proposal) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	for _, p := range ps {
		if m.bytes+len(p.Encoded) > maxMailBytes {
			p.Command, p.Encoded = nil, nil
			m.calls = append(m.calls, func(c *Core) { c.refuse(p, ErrOverloaded) })
			continue
		}
		m.proposals = append(m.proposals, p)
		m.bytes += len(p.Encoded)
	}
	m.signal()
	return true
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
	m.frames = 0
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
