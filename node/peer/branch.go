package peer

import (
	"net"
	"sync"
)

// branch is one of the mux's listeners: the connections of one kind.
type branch struct {
	addr net.Addr
	// conns are those that wait to be accepted. Put is under mu, so that none can come after the last.
	conns  chan net.Conn
	closed chan struct{}
	mu     sync.Mutex
}

var _ net.Listener = (*branch)(nil)

func newBranch(addr net.Addr, backlog int) *branch {
	return &branch{addr: addr, conns: make(chan net.Conn, backlog), closed: make(chan struct{})}
}

// put hands conn over, or closes it if the branch is closed or too many wait; it then returns false.
func (b *branch) put(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isClosed() {
		select {
		case b.conns <- conn:
			return true
		default:
		}
	}
	_ = conn.Close()
	return false
}

// Accept waits for a connection; after Close it returns net.ErrClosed.
func (b *branch) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and closes the connections that waited for it. The node's port stays open.
func (b *branch) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed() {
		return nil
	}
	close(b.closed)
	for {
		select {
		case conn := <-b.conns:
			_ = conn.Close()
		default:
			return nil
		}
	}
}

func (b *branch) isClosed() bool {
	select {
	case <-b.closed:
		return true
	default:
		return false
	}
}

// Addr is the node's port.
func (b *branch) Addr() net.Addr { return b.addr }

// peekedConn gives back the byte that was read to tell what the connection is. As with most connections, one goroutine at a
// time may read.
type peekedConn struct {
	net.Conn
	first byte
	given bool
}

func (c *peekedConn) Read(p []byte) (int, error) {
	if !c.given && len(p) > 0 {
		c.given = true
		p[0] = c.first
		return 1, nil
	}
	return c.Conn.Read(p)
}
