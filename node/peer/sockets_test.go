package peer

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/node/replica"
	"golang.org/x/sync/errgroup"
)

// node is a store's mux and transport on a real port.
type node struct {
	*Transport
	mux *testMux
	// frames and suspicions are what it was told.
	frames     chan replica.Frame
	suspicions chan string
	stop       func()
}

// startNode runs a node until stop or the test's end.
func startNode(t testing.TB, secret, store string, boot uint64) *node {
	t.Helper()
	n := &node{frames: make(chan replica.Frame, 1<<16), suspicions: make(chan string, 1<<10)}
	creds := testCredentials(t, secret, store)
	var err error
	n.Transport, err = New(Config{
		Store: store, Boot: boot, TLS: creds, Logger: slog.New(slog.DiscardHandler),
		OnFrame:   func(f replica.Frame) { n.frames <- f },
		OnSuspect: func(store string) { n.suspicions <- store + " suspect" },
		OnAlive:   func(store string) { n.suspicions <- store + " alive" },
		Health: func() Health {
			return Health{WallMS: time.Now().UnixMilli(), ClockMS: time.Now().UnixMilli(), ClockOK: true}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.mux = runMux(t, MuxConfig{TLS: creds}, map[string]func(net.Conn){ProtoFrames: n.Serve})
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return n.Run(ctx) })
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		n.mux.stop()
	})
	t.Cleanup(n.stop)
	return n
}

// patience is for what happens at once unless the machine is very busy.
const patience = 30 * time.Second

func await[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
		panic("unreachable")
	}
}

// A sender that repeats, as raft does, gets everything across, however often connections break.
func TestFramesGetAcrossUnderReconnects(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a, b := startNode(t, "one", "a", 1), startNode(t, "one", "b", 1)
	proxy := startProxy(t, b.mux.addr)
	a.SetPeers(map[string]string{"b": proxy.addr})
	const frames = 200
	cuts := random.Perm(frames)[:5] // more would only wait longer each time
	for n := range frames {
		if slices.Contains(cuts, n) {
			proxy.cutAll()
		}
		padding := strings.Repeat("x", random.IntN(10_000))
		deadline := time.Now().Add(patience)
		for got := -1; got != n; {
			a.Send(frameOf("b", strconv.Itoa(n), padding))
			select {
			case f := <-b.frames:
				number, _ := strconv.Atoi(string(f.Messages[0].Message.Entries[0].Data))
				if number > n || f.From != "a" || f.Boot != 1 {
					t.Fatalf("frame %d of %s came instead of %d", number, f.From, n)
				}
				got = number
			case <-time.After(20 * time.Millisecond):
				if time.Now().After(deadline) {
					t.Fatalf("frame %d does not get across: %+v", n, a.Peers())
				}
			}
		}
	}
	if proxy.count() < 2 {
		t.Error("no connection was broken")
	}
}

// proxy passes connections on until they are cut.
type proxy struct {
	addr, to string
	mu       sync.Mutex
	open     []net.Conn
	accepted int
}

func startProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, near, far)
			p.accepted++
			p.mu.Unlock()
			pass := func(from, to net.Conn) {
				defer to.Close()
				defer from.Close()
				buf := make([]byte, 32<<10)
				for {
					n, err := from.Read(buf)
					if err != nil {
						return
					}
					if _, err := to.Write(buf[:n]); err != nil {
						return
					}
				}
			}
			running.Go(func() { pass(near, far) })
			running.Go(func() { pass(far, near) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cutAll()
		running.Wait()
	})
	return p
}

func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.open {
		conn.Close()
	}
	p.open = nil
}

func (p *proxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

func TestNodesOfOtherSecretsDoNotConnect(t *testing.T) {
	a, b := startNode(t, "one", "a", 1), startNode(t, "other", "b", 1)
	a.SetPeers(map[string]string{"b": b.mux.addr})
	b.SetPeers(map[string]string{"a": a.mux.addr})
	a.Send(frameOf("b", "secret"))
	if got := await(t, a.suspicions, "suspicion"); got != "b suspect" {
		t.Error(got)
	}
	p := a.Peers()[0]
	if p.Connected || !p.LastHeard.IsZero() || !strings.Contains(p.Problem, "certificate") {
		t.Errorf("peer is %+v", p)
	}
	if len(b.frames) > 0 {
		t.Error("a frame got across")
	}
}

func TestNodesHearEachOther(t *testing.T) {
	a, b := startNode(t, "one", "a", 1), startNode(t, "one", "b", 1)
	a.SetPeers(map[string]string{"b": b.mux.addr})
	b.SetPeers(map[string]string{"a": a.mux.addr})
	deadline := time.Now().Add(patience)
	for n := 0; !a.Peers()[0].Clock.Known; n++ { // a frame each way keeps the test from spinning
		a.Send(frameOf("b", "x"))
		await(t, b.frames, "frame")
		if time.Now().After(deadline) {
			t.Fatalf("no round trip: %+v", a.Peers())
		}
	}
	p := a.Peers()[0]
	if c := p.Clock; !p.Connected || p.Boot != 1 || !c.OK || c.RoundTrip > time.Second || c.WallOffset.Abs() > c.RoundTrip/2+2*time.Millisecond {
		t.Errorf("peer is %+v", p)
	}
	b.stop()
	for await(t, a.suspicions, "suspicion") != "b suspect" {
	}
}

// A connection for frames that says nothing is closed before long, and holds up nobody.
func TestHelloIsWaitedForNotLong(t *testing.T) {
	a, b := startNode(t, "one", "a", 1), startNode(t, "one", "b", 1)
	conn, err := testCredentials(t, "one", "x").dial(t.Context(), b.mux.addr, ProtoFrames, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	a.SetPeers(map[string]string{"b": b.mux.addr})
	a.Send(frameOf("b", "hello"))
	await(t, b.frames, "frame")
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := conn.Read(make([]byte, 1)); !isEnd(err) {
		t.Errorf("it is open: %v", err)
	}
}

// The files are enough for a server and a client of their own, as etcd is with its peers.
func TestTLSFilesConnect(t *testing.T) {
	m := runMux(t, MuxConfig{TLS: testCredentials(t, "one", "s1")}, nil)
	serveHTTP(t, m.Cluster(), "cluster")
	dir := t.TempDir()
	c := testCredentials(t, "one", "s2")
	if err := c.WriteTLSFiles(dir); err != nil {
		t.Fatal(err)
	}
	config, pool := loadTLSFiles(t, dir)
	config.RootCAs, config.ServerName = pool, ServerName
	conn, err := tls.Dial("tcp", m.addr, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 12)
	if _, err := conn.Read(answer); err != nil || string(answer) != "HTTP/1.1 200" {
		t.Errorf("answered %q, %v", answer, err)
	}
}
