package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
	"golang.org/x/sync/errgroup"
)

// link is this store's connection to a peer, and what is known of the peer.
type link struct {
	t     *Transport
	store string
	box   *outbox
	// beatDue has a token when a beat is to be sent.
	beatDue chan struct{}
	// ctx ends when the store is no peer any more or the transport ends.
	ctx    context.Context
	cancel context.CancelFunc
	// moved has a token when the address has changed: it is not waited for the next try.
	moved chan struct{}

	// The rest is guarded by the transport's mu.
	addr string
	// conn is the connection; nil: there is none. connected is since when. cause is why it was cut, if it was.
	conn      net.Conn
	connected time.Time
	cause     error
	// proven is when the last beat was sent that has got across, by the peer's word.
	proven time.Time
	// problem is why there was no connection at the last try.
	problem string
	// boot is the highest seen of the peer; peerSent the sent of its last beat, which came at peerCame.
	boot               uint64
	peerSent, peerCame time.Duration
	clocks             roundTrips
}

func newLink(t *Transport, store, addr string) *link {
	l := &link{
		t: t, store: store, addr: addr, box: newOutbox(), beatDue: make(chan struct{}, 1), moved: make(chan struct{}, 1),
	}
	// The context is the link's life, which ends by SetPeers as well as with Run.
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

var errMoved = errors.New("its address has changed")

// move changes the address; the transport's mu is held.
func (l *link) move(addr string) {
	if l.addr == addr {
		return
	}
	l.addr = addr
	poke(l.moved)
	l.cut(errMoved)
}

// cut closes the connection, if there is one, so that another is made; the transport's mu is held.
func (l *link) cut(cause error) {
	if l.conn != nil && l.cause == nil {
		l.cause = cause
		cut(l.conn)
	}
}

// run keeps a connection until the link is cancelled. While the peer cannot be reached nothing is kept for it.
func (l *link) run() {
	defer l.cancel()
	logger := l.t.cfg.Logger.With("store", l.store)
	var warned time.Time
	wait := redialMin
	for l.ctx.Err() == nil {
		conn, addr, err := l.connect()
		if err == nil {
			logger.Info("connected to peer", "addr", addr)
			warned = time.Time{}
			began := l.t.cfg.Now()
			err = l.use(conn, addr)
			if l.t.cfg.Now().Sub(began) > wait { // not one that was refused right away
				wait = redialMin
			}
		}
		if l.ctx.Err() != nil {
			break
		}
		l.fail(err)
		if now := l.t.cfg.Now(); warned.IsZero() || now.Sub(warned) >= warnAgain {
			warned = now
			logger.Warn("no connection to peer", "addr", addr, "error", err)
		}
		select {
		case <-l.ctx.Done():
		case <-l.moved:
			wait = redialMin
		case <-time.After(wait/2 + rand.N(wait/2)):
			wait = min(2*wait, redialMax)
		}
	}
	l.box.discard()
}

func (l *link) fail(err error) {
	l.t.mu.Lock()
	l.problem = err.Error()
	l.t.mu.Unlock()
	l.box.discard()
}

// connect dials the peer and makes sure that it is the store it should be.
func (l *link) connect() (conn net.Conn, addr string, err error) {
	l.t.mu.Lock()
	addr = l.addr
	l.t.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.ctx, dialTimeout)
	defer cancel()
	dialed, err := l.t.cfg.dial(ctx, addr)
	if err != nil {
		return nil, addr, fmt.Errorf("dial: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { cut(dialed) }) // it may run after the return
	err = l.greet(dialed)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cut(dialed)
		return nil, addr, err
	}
	return dialed, addr, nil
}

func (l *link) greet(conn net.Conn) error {
	own := hello{store: l.t.cfg.Store, to: l.store, boot: l.t.cfg.Boot}
	if _, err := conn.Write(appendHello(nil, own)); err != nil {
		return fmt.Errorf("write hello: %w", err)
	}
	theirs, err := readHello(conn)
	if err != nil {
		return err
	}
	if theirs.store != l.store {
		return fmt.Errorf("another store is there: %s", theirs.store)
	}
	return nil
}

// use sends over conn, which was made to addr, what is to be sent, until it fails or is cut or the link is cancelled.
func (l *link) use(conn net.Conn, addr string) error {
	l.t.mu.Lock()
	l.conn, l.connected, l.cause, l.problem = conn, l.t.cfg.Now(), nil, ""
	if l.addr != addr { // meanwhile
		l.cut(errMoved)
	}
	l.t.mu.Unlock()
	poke(l.beatDue) // that it is heard of at once

	g, ctx := errgroup.WithContext(l.ctx)
	stop := context.AfterFunc(ctx, func() { cut(conn) })
	defer stop()
	g.Go(func() error { return l.write(ctx, conn) })
	g.Go(func() error { return watch(conn) })
	err := g.Wait()

	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	cause := l.cause
	l.conn, l.cause = nil, nil
	if cause != nil {
		return cause
	}
	return err
}

// watch returns when the connection ends. The other side has nothing to say after its hello.
func watch(conn net.Conn) error {
	var one [1]byte
	if _, err := conn.Read(one[:]); err != nil {
		return fmt.Errorf("watch connection: %w", noEOF(err))
	}
	return errors.New("watch connection: the other side has sent what it should not")
}

// write sends what comes, beats first, as much at once as has come meanwhile.
func (l *link) write(ctx context.Context, conn net.Conn) error {
	out := &writer{l: l, conn: conn, buf: make([]byte, 0, 2*writeAtOnce)}
	var items []item
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.beatDue:
			out.beat()
		case <-l.box.wake:
		}
		items = l.box.take(items)
		for n, i := range items {
			if err := out.add(i); err != nil {
				l.box.drop(len(items) - n)
				return err
			}
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
}

// writer collects records and writes them together.
type writer struct {
	l      *link
	conn   net.Conn
	buf    []byte
	frames uint64
}

func (w *writer) add(i item) error {
	if i.message {
		w.buf = appendMessage(w.buf, i.kind, i.payload)
		return w.flushIfFull()
	}
	for rest := i.frame; ; {
		var head replica.Frame
		head, rest = splitFrame(rest, frameSplit)
		buf, ok := appendFrame(w.buf, head)
		w.buf = buf
		if ok {
			w.frames++
		} else {
			w.l.box.drop(1)
			w.l.t.cfg.Logger.Error("raft message is too large to be sent", "store", w.l.store, "bytes", frameSize(head))
		}
		if err := w.flushIfFull(); err != nil || len(rest.Messages) == 0 {
			return err
		}
	}
}

// flushIfFull also lets a beat in that has become due while more is written.
func (w *writer) flushIfFull() error {
	if len(w.buf) < writeAtOnce {
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	select {
	case <-w.l.beatDue:
		w.beat()
	default:
	}
	return nil
}

func (w *writer) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("write to peer: %w", err)
	}
	if _, err := w.conn.Write(w.buf); err != nil {
		return fmt.Errorf("write to peer: %w", err)
	}
	w.l.t.count.framesSent.Add(w.frames)
	w.l.t.count.bytesSent.Add(uint64(len(w.buf)))
	w.frames = 0
	if cap(w.buf) > 2*frameSplit { // one large message is no reason to keep as much for ever
		w.buf = make([]byte, 0, 2*writeAtOnce)
	}
	w.buf = w.buf[:0]
	return nil
}

// beat adds a beat, stamped now: what waits for the network behind it is not its delay.
func (w *writer) beat() {
	t := w.l.t
	h := t.cfg.Health()
	t.mu.Lock()
	now := t.elapsed()
	b := beat{
		boot: t.cfg.Boot, turnAge: h.TurnAge, syncAge: h.SyncAge, wallMS: h.WallMS, clockMS: h.ClockMS, clockOK: h.ClockOK, sent: now,
	}
	if w.l.peerCame != 0 {
		b.echoBoot, b.echoSent, b.echoHeld = w.l.boot, w.l.peerSent, now-w.l.peerCame
	}
	t.mu.Unlock()
	w.buf = appendBeat(w.buf, b)
}

// cut closes conn without the farewell of TLS, which a peer that has stopped reading would hold up.
func cut(conn net.Conn) {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close()
}

// isEnd says of an error that the other side has closed the connection.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
