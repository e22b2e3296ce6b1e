package node

import (
	"net"
	"sync"

	"github.com/carillon-scheduler/carillon/node/peer"
)

// ownFiles is how many files the node itself may need at once: Pebble's tables, the logs, etcd's.
const ownFiles = 1200

// connectionsWithin divides a limit of open files: at least half of it is the node's.
func connectionsWithin(files uint64) int {
	const enough = 1 << 20
	return int(min(files-min(ownFiles, files/2), enough))
}

// callersWithin divides connections where callers and other nodes come by one port: served may be open, and twice waiting be
// held before them, those that have not said what they are and those that wait for one of the served to go.
func callersWithin(connections int) (served, waiting int) {
	waiting = min(peer.MaxPending, connections/4)
	return connections - 2*waiting, waiting
}

// boundListener accepts no more connections than may be open; others wait until one is closed.
type boundListener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	close  sync.Once
}

func newBoundListener(l net.Listener, most int) *boundListener {
	return &boundListener{Listener: l, places: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for a place, then for a connection.
func (l *boundListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &boundConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

func (l *boundListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// boundConn gives its place back when it is closed.
type boundConn struct {
	net.Conn
	leave func()
}

func (c *boundConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
