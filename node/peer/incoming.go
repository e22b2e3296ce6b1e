package peer

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

// incoming is a connection over which another store sends.
type incoming struct {
	store string
	boot  uint64
	conn  net.Conn
	// superseded: the store has a newer connection, and what comes over this one is stale.
	superseded atomic.Bool
}

// Serve takes in what comes over conn, a connection for ProtoFrames, until it ends. It blocks; the Mux calls it.
func (t *Transport) Serve(conn net.Conn) {
	in, err := t.welcome(conn)
	if err == nil {
		err = t.receive(in)
		t.leave(in)
	}
	if err != nil && !isEnd(err) && !t.isEnded() {
		t.complaints.warn("connection of a peer ended", "peer", conn.RemoteAddr().String(), "error", err)
	}
}

func (t *Transport) isEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// welcome exchanges hellos. The answer is given before anything is refused, so that the other side can say what is wrong.
func (t *Transport) welcome(conn net.Conn) (*incoming, error) {
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	theirs, err := readHello(conn)
	if err != nil {
		return nil, err
	}
	own := hello{store: t.cfg.Store, to: theirs.store, boot: t.cfg.Boot}
	if _, err := conn.Write(appendHello(nil, own)); err != nil {
		return nil, fmt.Errorf("write hello: %w", err)
	}
	switch {
	case theirs.to != t.cfg.Store:
		return nil, fmt.Errorf("store %s takes this one for %s", theirs.store, theirs.to)
	case theirs.store == t.cfg.Store:
		return nil, errors.New("it says it is this very store: is its data directory a copy?")
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return t.enter(&incoming{store: theirs.store, boot: theirs.boot, conn: conn})
}

// enter makes in its store's connection, in place of the one before.
func (t *Transport) enter(in *incoming) (*incoming, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, net.ErrClosed
	}
	l, before := t.links[in.store], t.incoming[in.store]
	if l != nil && in.boot < l.boot || before != nil && in.boot < before.boot {
		t.count.stale.Add(1)
		return nil, fmt.Errorf("store %s comes with boot %d, which is over", in.store, in.boot)
	}
	switch {
	case before != nil:
		before.superseded.Store(true)
		cut(before.conn)
	case l == nil && len(t.incoming) >= len(t.links)+maxStrangers:
		return nil, fmt.Errorf("store %s is no peer, and there are too many of those", in.store)
	}
	if l != nil && in.boot > l.boot {
		// Nothing of its earlier start is answered any more.
		l.boot, l.peerSent, l.peerCame, l.clocks = in.boot, 0, 0, roundTrips{}
	}
	t.incoming[in.store] = in
	return in, nil
}

func (t *Transport) leave(in *incoming) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.incoming[in.store] == in {
		delete(t.incoming, in.store)
	}
}

// receive takes in records until the connection ends.
func (t *Transport) receive(in *incoming) error {
	r := bufio.NewReaderSize(in.conn, readBuffer)
	var armed time.Time
	for {
		// Beats come all the time. To the second is exact enough for a deadline.
		if now := time.Now(); now.Sub(armed) > time.Second {
			armed = now
			if err := in.conn.SetReadDeadline(now.Add(incomingTimeout)); err != nil {
				return err
			}
		}
		kind, payload, err := readRecord(r)
		if err != nil {
			return err
		}
		t.count.bytesReceived.Add(uint64(recordHeader + len(payload)))
		if in.superseded.Load() {
			t.count.stale.Add(1)
			return net.ErrClosed
		}
		if err := t.takeIn(in, kind, payload); err != nil {
			return fmt.Errorf("from store %s: %w", in.store, err)
		}
	}
}

// takeIn takes in a record. An error is a broken one: nothing that comes behind it can be trusted.
func (t *Transport) takeIn(in *incoming, kind byte, payload []byte) error {
	switch kind {
	case recordBeat:
		b, err := decodeBeat(payload)
		if err != nil {
			return err
		}
		t.heard(in, b)
	case recordMessage:
		kind, rest, err := decodeMessage(payload)
		if err != nil {
			return err
		}
		t.cfg.OnMessage(in.store, kind, rest)
	case recordFrame:
		f, err := replica.DecodeFrame(payload)
		if err != nil {
			return err
		}
		t.count.framesReceived.Add(1)
		switch {
		case f.From != in.store || f.To != t.cfg.Store || f.Boot > in.boot:
			t.count.misdirected.Add(1)
		case f.Boot < in.boot:
			t.count.stale.Add(1)
		default:
			t.cfg.OnFrame(f)
		}
	}
	return nil
}

// heard takes in a beat.
func (t *Transport) heard(in *incoming, b beat) {
	h := t.cfg.Health()
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.links[in.store]
	if l == nil || t.incoming[in.store] != in || b.boot != in.boot {
		return
	}
	now := t.elapsed()
	deaf := time.Duration(0)
	if b.echoBoot == t.cfg.Boot {
		deaf = b.echoHeld
	}
	t.detector.heard(in.store, b.boot, b.turnAge, b.syncAge, deaf, t.cfg.Now())
	l.peerSent, l.peerCame = b.sent, now
	l.clocks.add(b, t.cfg.Boot, now, h)
	if b.echoBoot == t.cfg.Boot && b.echoSent > 0 && b.echoSent <= now {
		l.proven = latest(l.proven, t.start.Add(b.echoSent))
	}
}
