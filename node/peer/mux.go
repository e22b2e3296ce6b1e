package peer

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// firstOfTLS is the first byte of every TLS connection: the type of a handshake record. No HTTP request begins with it.
const firstOfTLS = 0x16

// MuxConfig is what a Mux needs.
type MuxConfig struct {
	// Listener is the node's port. The Mux closes it.
	Listener net.Listener
	// TLS is for connections of other nodes; nil: there is no secret, and they are closed.
	TLS    *Credentials
	Logger *slog.Logger
	// MostPending bounds the connections that have not said what they are, Backlog those of each kind that have and wait to
	// be accepted; 0: 1,024 each. More are closed. Whoever serves Public counts them as its own: they are open files, too.
	MostPending, Backlog int

	// pendingTimeout is helloTimeout, but for tests.
	pendingTimeout time.Duration
}

func (c *MuxConfig) validate() error {
	if c.pendingTimeout == 0 {
		c.pendingTimeout = helloTimeout
	}
	c.MostPending = cmp.Or(c.MostPending, MaxPending)
	c.Backlog = cmp.Or(c.Backlog, maxBacklog)
	switch {
	case c.Listener == nil:
		return errors.New("make mux: Listener is nil")
	case c.Logger == nil:
		return errors.New("make mux: Logger is nil")
	}
	return nil
}

// Mux tells the connections to the node's port apart: plain HTTP of callers, TLS of other nodes for frames, bulk and HTTP.
// A connection that takes its time to say what it is holds up no other.
type Mux struct {
	cfg             MuxConfig
	tls             *tls.Config
	public, cluster *branch
	handlers        map[string]func(net.Conn)
	complaints      complaints

	mu sync.Mutex
	// pending are the connections that have not said what they are, the oldest first.
	pending list.List
	// handled are those the handlers have.
	handled map[net.Conn]struct{}
	stopped bool
}

// NewMux makes the mux; Run runs it.
func NewMux(cfg MuxConfig) (*Mux, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	addr := cfg.Listener.Addr()
	return &Mux{
		cfg: cfg, public: newBranch(addr, cfg.Backlog), cluster: newBranch(addr, cfg.Backlog),
		complaints: complaints{logger: cfg.Logger},
		handlers:   make(map[string]func(net.Conn)), handled: make(map[net.Conn]struct{}),
	}, nil
}

// Handle has handler called, on a goroutine of its own, with every connection of another node for proto (ProtoFrames,
// ProtoBulk). When it returns the connection is closed; when Run is to end the connection is closed so that it returns. Not
// after Run has begun.
func (m *Mux) Handle(proto string, handler func(net.Conn)) { m.handlers[proto] = handler }

// Public is where the callers' connections are accepted: plain HTTP/1.1 or HTTP/2 with prior knowledge.
func (m *Mux) Public() net.Listener { return m.public }

// Cluster is where the HTTP connections of other nodes are accepted. They are *tls.Conn, their handshakes done, so that an
// http.Server (whose TLSConfig is nil) speaks HTTP/2 on those that ask for it, which Credentials.HTTPClient does, and
// HTTP/1.1 on the others, etcd's among them.
func (m *Mux) Cluster() net.Listener { return m.cluster }

// Run serves the node's port until ctx ends, then closes it, both listeners, and all connections that have not been
// accepted from them. It may be called once.
func (m *Mux) Run(ctx context.Context) error {
	if m.cfg.TLS != nil {
		protos := []string{protoHTTP2, protoHTTP1}
		for proto := range m.handlers {
			protos = append(protos, proto)
		}
		m.tls = m.cfg.TLS.serverConfig(protos...)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		err := m.cfg.Listener.Close()
		m.stop()
		return ignoreClosed(err)
	})
	g.Go(func() error {
		err := m.accept(ctx, g)
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("accept on %s: %w", m.cfg.Listener.Addr(), err)
	})
	return g.Wait()
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// accept returns when the listener is closed or fails for good.
func (m *Mux) accept(ctx context.Context, g *errgroup.Group) error {
	const shortest, longest = 5 * time.Millisecond, time.Second
	wait := shortest
	for {
		conn, err := m.cfg.Listener.Accept()
		switch {
		case err == nil:
			wait = shortest
			place := m.enter(conn)
			g.Go(func() error {
				m.serve(ctx, conn, place)
				return nil
			})
		case passes(err):
			m.complaints.warn("a connection could not be accepted", "error", err)
			select {
			case <-time.After(wait):
				wait = min(2*wait, longest)
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			return err
		}
	}
}

// passes says of an error of Accept that the next one may succeed: a caller that has gone, or a resource that is short.
func passes(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// serve finds out what conn is and hands it over. Errors are the other side's: it went away or does not belong here.
func (m *Mux) serve(ctx context.Context, conn net.Conn, place *list.Element) {
	if place == nil {
		_ = conn.Close()
		return
	}
	routed, proto, err := m.identify(ctx, conn)
	known := m.leave(place)
	switch {
	case err != nil || !known:
		_ = conn.Close()
	case proto == plain:
		m.public.put(routed)
	case m.handlers[proto] != nil:
		m.handle(routed, m.handlers[proto])
	default:
		m.cluster.put(routed)
	}
}

// plain is what identify calls a connection that is not TLS; no ALPN name is that.
const plain = "plain"

// identify returns the connection to be served and what it is for. Nothing has been read off it by then.
func (m *Mux) identify(ctx context.Context, conn net.Conn) (net.Conn, string, error) {
	if err := conn.SetDeadline(time.Now().Add(m.cfg.pendingTimeout)); err != nil {
		return nil, "", err
	}
	var first [1]byte
	if _, err := conn.Read(first[:]); err != nil {
		return nil, "", err
	}
	peeked := &peekedConn{Conn: conn, first: first[0]}
	if first[0] != firstOfTLS {
		return peeked, plain, conn.SetDeadline(time.Time{})
	}
	if m.tls == nil {
		m.complaints.warn("a TLS connection was refused: this node was started without a cluster secret", "peer", conn.RemoteAddr().String())
		return nil, "", errors.New("no cluster secret")
	}
	secured := tls.Server(peeked, m.tls)
	if err := secured.HandshakeContext(ctx); err != nil {
		if ctx.Err() == nil {
			m.complaints.warn("a node's connection was refused: does it have the same cluster secret?",
				"peer", conn.RemoteAddr().String(), "error", err)
		}
		return nil, "", err
	}
	return secured, secured.ConnectionState().NegotiatedProtocol, conn.SetDeadline(time.Time{})
}

// enter counts conn among those that have not said what they are. If they are too many, the oldest of them goes: the silent
// ones are the oldest. It returns nil when the mux stops.
func (m *Mux) enter(conn net.Conn) *list.Element {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return nil
	}
	if m.pending.Len() >= m.cfg.MostPending {
		oldest := m.pending.Front()
		_ = m.pending.Remove(oldest).(net.Conn).Close()
	}
	return m.pending.PushBack(conn)
}

// leave takes a connection out of the pending ones. It returns false if that was done already and the connection is closed.
func (m *Mux) leave(place *list.Element) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.pending.Len()
	m.pending.Remove(place) // does nothing to one that is not in the list
	return m.pending.Len() < before
}

func (m *Mux) handle(conn net.Conn, handler func(net.Conn)) {
	defer conn.Close()
	m.mu.Lock()
	stopped := m.stopped
	if !stopped {
		m.handled[conn] = struct{}{}
	}
	m.mu.Unlock()
	if stopped {
		return
	}
	handler(conn)
	m.mu.Lock()
	delete(m.handled, conn)
	m.mu.Unlock()
}

// stop closes everything that has not been handed out for good.
func (m *Mux) stop() {
	m.mu.Lock()
	m.stopped = true
	var open []net.Conn
	for m.pending.Len() > 0 {
		open = append(open, m.pending.Remove(m.pending.Front()).(net.Conn))
	}
	for conn := range m.handled {
		open = append(open, conn)
	}
	m.mu.Unlock()
	for _, conn := range open {
		cut(conn)
	}
	_ = m.public.Close()
	_ = m.cluster.Close()
}
