package peer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
)

// fabric is a network of pipes between transports, in the fake time of a synctest bubble.
type fabric struct {
	t  *testing.T
	mu sync.Mutex
	at map[string]*station
	// silent addresses let dials and hellos hang; lossy connections take what is written and deliver none of it.
	silent map[string]bool
	conns  []*pipeConn
	serves sync.WaitGroup
	dials  int
	// dialed, if set, is called when a connection has been made.
	dialed func(addr string)
}

// station is a transport of the fabric and what it was told.
type station struct {
	*Transport
	f    *fabric
	stop func()

	mu       sync.Mutex
	health   Health
	frames   []replica.Frame
	messages []string
	said     []string
}

// pipeConn is an end of a pipe that can begin to lose what is written.
type pipeConn struct {
	net.Conn
	mu    sync.Mutex
	lossy bool
}

func (c *pipeConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	lossy := c.lossy
	c.mu.Unlock()
	if lossy {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func newFabric(t *testing.T) *fabric {
	return &fabric{t: t, at: make(map[string]*station), silent: make(map[string]bool)}
}

func (f *fabric) dial(ctx context.Context, addr string) (net.Conn, error) {
	f.mu.Lock()
	f.dials++
	s, silent := f.at[addr], f.silent[addr]
	f.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s == nil {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	c := &pipeConn{Conn: near}
	f.mu.Lock()
	f.conns = append(f.conns, c)
	dialed := f.dialed
	f.mu.Unlock()
	f.serves.Go(func() {
		defer far.Close()
		s.Serve(far)
	})
	if dialed != nil {
		dialed(addr)
	}
	return c, nil
}

// loseAll makes all present connections lossy.
func (f *fabric) loseAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.mu.Lock()
		c.lossy = true
		c.mu.Unlock()
	}
}

// run runs store's transport at addr until stop or the test's end.
func (f *fabric) run(store string, boot uint64, addr string) *station {
	f.t.Helper()
	s := &station{f: f}
	s.health.ClockOK = true
	transport, err := New(Config{
		Store: store, Boot: boot, Logger: slog.New(slog.DiscardHandler), dial: f.dial,
		OnFrame: func(got replica.Frame) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.frames = append(s.frames, got)
		},
		OnMessage: func(from string, kind byte, payload []byte) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.messages = append(s.messages, from+":"+string(kind)+":"+string(payload))
		},
		OnSuspect: func(store string) { s.say(store + " suspect") },
		OnAlive:   func(store string) { s.say(store + " alive") },
		Health: func() Health {
			s.mu.Lock()
			defer s.mu.Unlock()
			h := s.health
			h.WallMS += time.Now().UnixMilli()
			h.ClockMS += time.Now().UnixMilli()
			return h
		},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	s.Transport = transport
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := transport.Run(ctx); err != nil {
			f.t.Error(err)
		}
	})
	f.mu.Lock()
	f.at[addr] = s
	f.mu.Unlock()
	s.stop = func() {
		f.mu.Lock()
		if f.at[addr] == s {
			delete(f.at, addr)
		}
		f.mu.Unlock()
		cancel()
		running.Wait()
	}
	return s
}

func (s *station) say(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, what)
}

func (s *station) setHealth(h Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = h
}

// heard returns what came and was said since the last call.
func (s *station) heard() (frames, messages, said []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.frames {
		frames = append(frames, f.From+":"+dataOf(f))
	}
	messages, said = s.messages, s.said
	s.frames, s.messages, s.said = nil, nil, nil
	return frames, messages, said
}

// saying fails the test unless exactly that was said since the last call.
func (s *station) saying(want ...string) {
	s.f.t.Helper()
	if _, _, said := s.heard(); !slices.Equal(said, want) {
		s.f.t.Errorf("%s said %q, want %q", s.cfg.Store, said, want)
	}
}

// peer returns how store stands with s.
func (s *station) peer(store string) PeerStatus {
	s.f.t.Helper()
	for _, p := range s.Peers() {
		if p.Store == store {
			return p
		}
	}
	s.f.t.Fatalf("%s has no peer %s", s.cfg.Store, store)
	return PeerStatus{}
}

// fabricTest runs test in a bubble with stores a and b that know each other, and ends all transports.
func fabricTest(t *testing.T, test func(t *testing.T, f *fabric, a, b *station)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t)
		a, b := f.run("a", 1, "addr-a"), f.run("b", 1, "addr-b")
		all := map[string]string{"a": "addr-a", "b": "addr-b"}
		a.SetPeers(all)
		b.SetPeers(all)
		defer f.serves.Wait()
		defer f.stopAll()
		elapse(100 * time.Millisecond)
		test(t, f, a, b)
	})
}

func (f *fabric) stopAll() {
	f.mu.Lock()
	running := slices.Collect(maps.Values(f.at))
	f.mu.Unlock()
	for _, s := range running {
		s.stop()
	}
}

// elapse lets fake time pass and everything settle.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
