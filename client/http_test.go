package client_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
)

// serve makes a server reachable over HTTP/2 without TLS, as a node is, and counts its connections.
func serve(t testing.TB, s *clienttest.Server) (address string, connections *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections = new(atomic.Int32)
	var open atomic.Int32
	server := &http.Server{Handler: s, Protocols: new(http.Protocols), ConnState: func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connections.Store(max(connections.Load(), open.Add(1)))
		case http.StateClosed:
			open.Add(-1)
		}
	}}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return listener.Addr().String(), connections
}

func dial(t testing.TB, address string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestManyConcurrentCallsShareFewConnections(t *testing.T) {
	s := clienttest.NewServer()
	address, connections := serve(t, s)
	c := dial(t, address, client.WithoutMerging())
	for i, err := range createAll(t.Context(), c, 500, numbered) {
		if err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
	}
	if n := connections.Load(); n > 8 {
		t.Errorf("500 concurrent calls took %d connections", n)
	}
	if n := s.Calls("CreateJob"); n < 500 {
		t.Errorf("500 creates took %d calls: they were merged", n)
	}
}

// A connection carries 250 calls here. What does not fit must not wait for one of them to end: they may be long polls.
func TestCallsThatFitInNoConnectionOpenAnother(t *testing.T) {
	s := clienttest.NewServer()
	address, connections := serve(t, s)
	c := dial(t, address, client.WithoutMerging())
	const calls = 700
	var here atomic.Int32
	all := make(chan struct{})
	s.Before(func(ctx context.Context, _ clienttest.Call) error {
		if here.Add(1) == calls {
			close(all)
		}
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	for i, err := range createAll(t.Context(), c, calls, numbered) {
		if err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
	}
	if n := connections.Load(); n < 3 || n > 8 {
		t.Errorf("%d calls at a time took %d connections", calls, n)
	}
}

func TestAnotherNodeIsTriedWhenOneIsAway(t *testing.T) {
	s := clienttest.NewServer()
	address, _ := serve(t, s)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	c := dial(t, away+", http://"+address)
	began := time.Now()
	for i := range 20 {
		if _, err := c.Create(t.Context(), numbered(i)); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("20 creates took %s: the node that is away is tried every time", took)
	}
}

func TestAddressesThatAreNoneAreRefused(t *testing.T) {
	for _, address := range []string{"ftp://a", "http://", "a b", "http://a,,", "http://[::1"} {
		if _, err := client.New(address); err == nil {
			t.Errorf("%q was accepted", address)
		}
	}
}

// BenchmarkCreate is 64 producers against the fake over HTTP: what the library and the transport cost.
func BenchmarkCreate(b *testing.B) {
	for name, opts := range map[string][]client.Option{"merged": nil, "alone": {client.WithoutMerging()}} {
		b.Run(name, func(b *testing.B) {
			address, _ := serve(b, clienttest.NewServer())
			c := dial(b, address, opts...)
			var next atomic.Int64
			var all sync.WaitGroup
			b.ReportAllocs()
			for range 64 {
				all.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						job := client.Job{ID: fmt.Sprint(n), Schedule: client.After(time.Hour), Payload: make([]byte, 100)}
						if _, err := c.Create(b.Context(), job); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}
