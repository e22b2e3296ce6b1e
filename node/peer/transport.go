package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
	"golang.org/x/sync/errgroup"
)

// Health is what a beat tells of this node.
type Health struct {
	// TurnAge is how long ago the replicas' loop came round, SyncAge how long ago the disk last did what it was asked to;
	// both are 0 if nothing has been asked for since.
	TurnAge, SyncAge time.Duration
	// WallMS and ClockMS are milliseconds since 1970 by the wall clock and by the disciplined clock.
	WallMS, ClockMS int64
	// ClockOK: the two agree.
	ClockOK bool
}

// Config is what a Transport needs. Callbacks may be nil, except Health; none may block.
type Config struct {
	// Store is this node's store, Boot the number of this start, from 1 on.
	Store  string
	Boot   uint64
	TLS    *Credentials
	Logger *slog.Logger

	// OnFrame gets the frames other stores sent to this one. Its messages are its own.
	OnFrame func(replica.Frame)
	// OnMessage gets what others gave to SendMessage. The payload is its own.
	OnMessage func(from string, kind byte, payload []byte)
	// OnSuspect and OnAlive are told of every change, on one goroutine, in order. A peer is not suspect at first; one that
	// has started anew is suspect once, and alive again with its next beat.
	OnSuspect, OnAlive func(store string)
	// Health is asked for every beat that is sent and every one that comes, on any goroutine.
	Health func() Health
	// Now is the time; only differences count. nil: time.Now.
	Now func() time.Time

	// dial is TLS.dial, but for tests.
	dial func(ctx context.Context, addr string) (net.Conn, error)
}

func (c *Config) validate() error {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.dial == nil && c.TLS != nil {
		c.dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return c.TLS.dial(ctx, addr, ProtoFrames, dialTimeout)
		}
	}
	if c.OnFrame == nil {
		c.OnFrame = func(replica.Frame) {}
	}
	if c.OnMessage == nil {
		c.OnMessage = func(string, byte, []byte) {}
	}
	if c.OnSuspect == nil {
		c.OnSuspect = func(string) {}
	}
	if c.OnAlive == nil {
		c.OnAlive = func(string) {}
	}
	switch {
	case c.Store == "" || len(c.Store) > maxStoreName:
		return fmt.Errorf("make transport: Store has %d bytes, must have 1 to %d", len(c.Store), maxStoreName)
	case c.Boot == 0:
		return errors.New("make transport: Boot is 0")
	case c.dial == nil:
		return errors.New("make transport: TLS is nil")
	case c.Logger == nil:
		return errors.New("make transport: Logger is nil")
	case c.Health == nil:
		return errors.New("make transport: Health is nil")
	}
	return nil
}

// Counters count since the start, over all peers.
type Counters struct {
	// FramesSent and FramesReceived count frames on the wire: a large one goes as several. The bytes are of everything.
	FramesSent, FramesReceived uint64
	BytesSent, BytesReceived   uint64
	// Dropped were not sent: their peer's queue was full, or it could not be reached, or is no peer, or they were too large.
	Dropped uint64
	// Stale came from an earlier start of their sender; Misdirected were for another store, or from another than they say.
	Stale, Misdirected uint64
}

type counters struct {
	framesSent, framesReceived, bytesSent, bytesReceived, dropped, stale, misdirected atomic.Uint64
}

// Transport is the connections to the other stores, and what is known of them.
type Transport struct {
	cfg        Config
	complaints complaints
	// start is a little before the start: no time since is 0, which stands for never.
	start time.Time
	count counters

	// mu guards the rest, and what links say of their peers.
	mu       sync.Mutex
	links    map[string]*link
	incoming map[string]*incoming
	detector *detector
	// spawn runs what it is given on a goroutine of Run's; nil while Run does not run. ended: it has.
	spawn func(func())
	ended bool
}

// New makes the transport; Run runs it. Its Serve is to be the Mux's handler of ProtoFrames.
func New(cfg Config) (*Transport, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Transport{
		cfg: cfg, complaints: complaints{logger: cfg.Logger}, start: cfg.Now().Add(-1),
		links: make(map[string]*link), incoming: make(map[string]*incoming), detector: newDetector(),
	}, nil
}

// SetPeers says which other stores there are and at which addresses (host:port); it replaces what was said before.
// Connections are made, moved and dropped accordingly. This store itself is left out.
func (t *Transport) SetPeers(peers map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for store, l := range t.links {
		if _, stays := peers[store]; !stays {
			l.cancel()
			l.box.discard()
			delete(t.links, store)
			t.detector.remove(store)
			t.count.dropped.Add(l.box.drops())
		}
	}
	for store, addr := range peers {
		if store == t.cfg.Store {
			continue
		}
		if l := t.links[store]; l != nil {
			l.move(addr)
			continue
		}
		l := newLink(t, store, addr)
		if in := t.incoming[store]; in != nil {
			l.boot = in.boot
		}
		t.links[store] = l
		t.detector.add(store, t.cfg.Now())
		if t.spawn != nil {
			t.spawn(l.run)
		}
	}
}

// Send sends f to the store it is for, sooner or later or not at all: a frame that does not fit its peer's queue is dropped
// and counted. f must not be changed afterwards; the transport fills in From and Boot.
func (t *Transport) Send(f replica.Frame) {
	f.From, f.Boot = t.cfg.Store, t.cfg.Boot
	t.put(f.To, item{frame: f, size: frameSize(f)})
}

// SendMessage sends a payload of at most MaxMessage bytes to a store, with no more assurance than Send; the payload must not
// be changed afterwards. What kinds mean is the users' business. Frames and messages to one store go in order.
func (t *Transport) SendMessage(to string, kind byte, payload []byte) {
	if len(payload) > MaxMessage {
		t.count.dropped.Add(1)
		t.cfg.Logger.Error("message is too large to be sent", "to", to, "kind", kind, "bytes", len(payload))
		return
	}
	t.put(to, item{message: true, kind: kind, payload: payload, size: len(payload) + recordHeader + sumSize + 1})
}

func (t *Transport) put(to string, i item) {
	t.mu.Lock()
	l := t.links[to]
	t.mu.Unlock()
	if l == nil {
		t.count.dropped.Add(1)
		return
	}
	l.box.put(i)
}

// SuspectAgain has OnSuspect told once more, with the next check, of the peers that are suspect still: for a listener that
// was not there before. It comes in order with what is told besides.
func (t *Transport) SuspectAgain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detector.again = true
}

// Run keeps the connections, sends beats and watches the peers, until ctx ends. It may be called once.
func (t *Transport) Run(ctx context.Context) error {
	var g errgroup.Group
	t.mu.Lock()
	t.spawn = func(f func()) {
		g.Go(func() error {
			f()
			return nil
		})
	}
	for _, l := range t.links {
		t.spawn(l.run)
	}
	t.mu.Unlock()
	g.Go(func() error {
		t.keep(ctx)
		t.end()
		return nil
	})
	return g.Wait()
}

// keep beats and checks until ctx ends.
func (t *Transport) keep(ctx context.Context) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	const checksABeat = int(beatInterval / checkInterval)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if n%checksABeat == 0 {
			t.beat()
		}
		t.check()
	}
}

// beat has every link send a beat, and gives up the connections that do not get them across.
func (t *Transport) beat() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Now()
	for _, l := range t.links {
		poke(l.beatDue)
		if l.conn != nil && now.Sub(latest(l.connected, l.proven)) > proofTimeout {
			l.cut(fmt.Errorf("no beat has got across for %s", proofTimeout))
		}
	}
}

func (t *Transport) check() {
	t.mu.Lock()
	events := t.detector.check(t.cfg.Now())
	t.mu.Unlock()
	for _, e := range events {
		if e.suspect {
			t.cfg.Logger.Warn("peer is suspect", "store", e.store, "reason", e.reason)
			t.cfg.OnSuspect(e.store)
		} else {
			t.cfg.Logger.Info("peer is alive", "store", e.store)
			t.cfg.OnAlive(e.store)
		}
	}
}

// end closes everything; nothing is begun afterwards.
func (t *Transport) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spawn, t.ended = nil, true
	for _, l := range t.links {
		l.cancel()
	}
	for _, in := range t.incoming {
		cut(in.conn)
	}
}

// Counters returns what was counted.
func (t *Transport) Counters() Counters {
	t.mu.Lock()
	dropped := t.count.dropped.Load()
	for _, l := range t.links {
		dropped += l.box.drops()
	}
	t.mu.Unlock()
	return Counters{
		FramesSent: t.count.framesSent.Load(), FramesReceived: t.count.framesReceived.Load(),
		BytesSent: t.count.bytesSent.Load(), BytesReceived: t.count.bytesReceived.Load(),
		Dropped: dropped, Stale: t.count.stale.Load(), Misdirected: t.count.misdirected.Load(),
	}
}

// elapsed is the time since the transport's start.
func (t *Transport) elapsed() time.Duration { return t.cfg.Now().Sub(t.start) }
