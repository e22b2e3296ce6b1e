package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// testMux is a running mux and what is served by it.
type testMux struct {
	*Mux
	addr string
	stop func()
}

// runMux runs a mux on a port of its own until the test ends.
func runMux(t testing.TB, cfg MuxConfig, handlers map[string]func(net.Conn)) *testMux {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener, cfg.Logger = l, slog.New(slog.DiscardHandler)
	mux, err := NewMux(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for proto, handler := range handlers {
		mux.Handle(proto, handler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return mux.Run(ctx) })
	m := &testMux{Mux: mux, addr: l.Addr().String()}
	m.stop = func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(m.stop)
	return m
}

// serveHTTP serves l with answers that say what they came by.
func serveHTTP(t testing.TB, l net.Listener, name string) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s tls=%t %s", name, r.Proto, r.TLS != nil, body)
	})}
	var g errgroup.Group
	g.Go(func() error { return server.Serve(l) })
	t.Cleanup(func() {
		_ = server.Close()
		if err := g.Wait(); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func post(t testing.TB, client *http.Client, url, body string) string {
	t.Helper()
	answer, err := client.Post(url, "text/plain", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func plainClient(t testing.TB, http2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	c := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func TestMuxServesEverythingOnOnePort(t *testing.T) {
	server, client := testCredentials(t, "one", "s1"), testCredentials(t, "one", "s2")
	bulk := func(conn net.Conn) { _, _ = io.Copy(conn, conn) }
	m := runMux(t, MuxConfig{TLS: server}, map[string]func(net.Conn){ProtoBulk: bulk})
	serveHTTP(t, m.Public(), "public")
	serveHTTP(t, m.Cluster(), "cluster")

	calls := client.HTTPClient()
	t.Cleanup(calls.CloseIdleConnections)
	// A client like etcd's, which names no protocol.
	config := client.clientConfig()
	etcd := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DialContext: (&net.Dialer{}).DialContext}}
	t.Cleanup(etcd.CloseIdleConnections)
	large := strings.Repeat("x", 1<<20)
	for range 2 {
		for _, c := range []struct {
			client    *http.Client
			url, want string
		}{
			{plainClient(t, false), "http://" + m.addr, "public HTTP/1.1 tls=false "},
			{plainClient(t, true), "http://" + m.addr, "public HTTP/2.0 tls=false "},
			{calls, "https://" + m.addr, "cluster HTTP/2.0 tls=true "},
			{etcd, "https://" + m.addr, "cluster HTTP/1.1 tls=true "},
		} {
			for _, body := range []string{"", "hello", large} {
				if got := post(t, c.client, c.url, body); got != c.want+body {
					t.Errorf("got %.60q, want %q and %d bytes", got, c.want, len(body))
				}
			}
		}
	}
	conn, err := client.DialBulk(t.Context(), m.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echoed(t, conn)
}

func echoed(t testing.TB, conn net.Conn) {
	t.Helper()
	got := make([]byte, 5)
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestMuxRefusesOtherSecrets(t *testing.T) {
	served := func(net.Conn) { t.Error("a stranger was served") }
	m := runMux(t, MuxConfig{TLS: testCredentials(t, "one", "s1")}, map[string]func(net.Conn){ProtoBulk: served})
	other := testCredentials(t, "other", "s2")
	if conn, err := other.DialBulk(t.Context(), m.addr); err == nil {
		conn.Close()
		t.Error("connected with another secret")
	}
	// A stranger that does not care who it speaks to is refused by the node.
	for name, config := range map[string]*tls.Config{
		"other secret":   other.clientConfig(ProtoBulk),
		"no certificate": {NextProtos: []string{ProtoBulk}},
	} {
		config.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", m.addr, config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMuxWithoutSecretServesCallersOnly(t *testing.T) {
	m := runMux(t, MuxConfig{}, nil)
	serveHTTP(t, m.Public(), "public")
	if got := post(t, plainClient(t, false), "http://"+m.addr, ""); got != "public HTTP/1.1 tls=false " {
		t.Error(got)
	}
	if conn, err := testCredentials(t, "one", "s2").DialBulk(t.Context(), m.addr); err == nil {
		conn.Close()
		t.Error("a node got through")
	}
}

// Silent connections hold up nobody, however many: the oldest of them go when they are too many.
func TestMuxIsNotHeldUpBySilence(t *testing.T) {
	m := runMux(t, MuxConfig{TLS: testCredentials(t, "one", "s1"), MostPending: 4}, nil)
	serveHTTP(t, m.Public(), "public")
	serveHTTP(t, m.Cluster(), "cluster")
	calls := testCredentials(t, "one", "s2").HTTPClient()
	t.Cleanup(calls.CloseIdleConnections)
	var silent []net.Conn
	for i := range 12 {
		conn, err := net.Dial("tcp", m.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 1 { // it begins a handshake and never ends it
			if _, err := conn.Write([]byte{firstOfTLS, 3, 1}); err != nil {
				t.Fatal(err)
			}
		}
		silent = append(silent, conn)
		client := plainClient(t, false)
		if got := post(t, client, "http://"+m.addr, ""); got != "public HTTP/1.1 tls=false " {
			t.Error(got)
		}
		client.CloseIdleConnections()
	}
	if got := post(t, calls, "https://"+m.addr, ""); got != "cluster HTTP/2.0 tls=true " {
		t.Error(got)
	}
	// The first ones were closed by the mux long before their time.
	for _, conn := range silent[:4] {
		_ = conn.SetReadDeadline(time.Now().Add(helloTimeout / 2))
		var timeout net.Error
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("a silent connection: %v", err)
		}
	}
}

// What the mux holds is bounded, whatever the connections say or do not say: its owner counts on it for its other files.
func TestMuxHoldsNoMoreThanItMay(t *testing.T) {
	const pending, backlog, more = 4, 2, 10
	m := runMux(t, MuxConfig{MostPending: pending, Backlog: backlog}, nil)
	closed := make(chan struct{}, 2*(pending+backlog+more))
	dial := func(say string) {
		conn, err := net.Dial("tcp", m.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, say); err != nil {
			t.Fatal(err)
		}
		var g errgroup.Group
		t.Cleanup(func() { _ = g.Wait() })
		t.Cleanup(func() { _ = conn.Close() }) // runs first
		g.Go(func() error {
			_, err := conn.Read(make([]byte, 1))
			closed <- struct{}{}
			return err
		})
	}
	awaitClosed := func(n int) {
		t.Helper()
		late := time.After(helloTimeout / 2)
		for i := range n {
			select {
			case <-closed:
			case <-late:
				t.Fatalf("%d connections were closed, not %d", i, n)
			}
		}
	}
	for range backlog + more { // callers, whom nobody accepts
		dial("G")
	}
	awaitClosed(more)
	for range pending + more {
		dial("")
	}
	awaitClosed(more)
	if len(closed) > 0 {
		t.Errorf("%d connections were closed that could have been kept", len(closed))
	}
	for range backlog {
		conn, err := m.Public().Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}

func TestMuxClosesSilentConnections(t *testing.T) {
	m := runMux(t, MuxConfig{TLS: testCredentials(t, "one", "s1"), pendingTimeout: 20 * time.Millisecond}, nil)
	for _, begin := range [][]byte{nil, {firstOfTLS}} {
		conn, err := net.Dial("tcp", m.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(begin); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(helloTimeout / 2))
		var timeout net.Error
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("after %x: %v", begin, err)
		}
	}
}

// When the mux ends, so do its listeners, its handlers, and every connection nobody has accepted.
func TestMuxEnds(t *testing.T) {
	entered := make(chan struct{})
	blocked := func(conn net.Conn) {
		close(entered)
		_, _ = conn.Read(make([]byte, 1))
	}
	m := runMux(t, MuxConfig{TLS: testCredentials(t, "one", "s1")}, map[string]func(net.Conn){ProtoBulk: blocked})
	bulk, err := testCredentials(t, "one", "s2").DialBulk(t.Context(), m.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer bulk.Close()
	<-entered
	dial := func(say string) net.Conn {
		conn, err := net.Dial("tcp", m.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, say); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	accepted := dial("GET")
	defer accepted.Close()
	taken, err := m.Public().Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	waiting, silent := dial("GET"), dial("")
	defer waiting.Close()
	defer silent.Close()

	m.stop()
	for _, l := range []net.Listener{m.Public(), m.Cluster()} {
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept after the end: %v", err)
		}
	}
	for name, conn := range map[string]net.Conn{"handled": bulk, "waiting": waiting, "silent": silent} {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("the %s connection is open", name)
		}
	}
	// What was accepted belongs to who accepted it.
	if _, err := taken.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := taken.Read(make([]byte, 9)); n != 1 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if _, err := io.ReadFull(accepted, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// Closing one listener leaves the rest of the port alone, and what comes for it is turned away.
func TestMuxListenerCloses(t *testing.T) {
	m := runMux(t, MuxConfig{TLS: testCredentials(t, "one", "s1")}, nil)
	serveHTTP(t, m.Cluster(), "cluster")
	if err := m.Public().Close(); err != nil {
		t.Error(err)
	}
	if err := m.Public().Close(); err != nil {
		t.Error(err)
	}
	client := plainClient(t, false)
	if answer, err := client.Get("http://" + m.addr); err == nil {
		answer.Body.Close()
		t.Error("a closed listener was served")
	}
	calls := testCredentials(t, "one", "s2").HTTPClient()
	t.Cleanup(calls.CloseIdleConnections)
	if got := post(t, calls, "https://"+m.addr, ""); got != "cluster HTTP/2.0 tls=true " {
		t.Error(got)
	}
}
