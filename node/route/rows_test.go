package route

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// View of the fake nodes: they have no rows.
func (n *node) View(context.Context, uint32, bool, func(fsm.Reader) error) error {
	return errors.New("no rows")
}

// shelf is a store with the rows of one shard.
type shelf struct {
	*node
	engine *store.Memory
	shard  uint32
	// viewed counts the views that have ended.
	viewed chan error
}

func (s *shelf) View(ctx context.Context, shard uint32, _ bool, fn func(fsm.Reader) error) error {
	if shard != s.shard {
		return fmt.Errorf("no replica of shard %d", shard)
	}
	r := store.NewReader(s.engine, shard)
	err := errors.Join(fn(r), r.Err())
	s.viewed <- ctx.Err()
	return err
}

// newShelf serves n rows, "k0000" on, over HTTP/2 as nodes do, and returns a router of another store that knows it as "s".
func newShelf(t *testing.T, n int) (*shelf, *Router) {
	t.Helper()
	s := &shelf{node: &node{store: "s"}, engine: store.OpenMemory(), shard: 3, viewed: make(chan error, 10)}
	b := s.engine.NewBatch()
	for i := range n {
		b.Set(store.AppendKey(nil, s.shard, fmt.Appendf(nil, "k%04d", i)), bytes.Repeat([]byte{byte(i)}, 1000))
	}
	b.Set(store.AppendKey(nil, s.shard+1, []byte("k")), nil) // of another shard
	if _, err := s.engine.Commit(b, false); err != nil {
		t.Fatal(err)
	}
	_, handler := NewHandler(HandlerConfig{Self: "s", Local: func() Local { return s }, Member: member{s.node}})
	server := httptest.NewUnstartedServer(handler)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server.Config.Protocols = protocols
	server.Start()
	t.Cleanup(server.Close)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	router := New(Config{
		Self: "other", Scheme: "http", HTTP: &http.Client{Transport: transport}, Leader: func(uint32) string { return "" },
		Dial: func(store string) (string, bool) {
			return server.Listener.Addr().String(), store == "s" || store == "moved"
		},
	})
	return s, router
}

func TestRowsAreReadFromAnotherNode(t *testing.T) {
	s, router := newShelf(t, 3000)
	var first []byte
	var all []string
	err := router.View(t.Context(), 3, false, []string{"nobody", "moved", "s"}, func(r fsm.Reader) error {
		first, _ = r.Get([]byte("k0007"))
		if _, ok := r.Get([]byte("k")); ok {
			t.Error("there is a row of another shard, or of none")
		}
		r.Scan([]byte("k0001"), nil, func(key, value []byte) bool {
			all = append(all, string(key))
			if len(value) != 1000 {
				t.Errorf("%s has %d bytes", key, len(value))
			}
			if got, ok := r.Get(key); !ok || !bytes.Equal(got, value) { // while a scan is under way
				t.Errorf("%s is another row by itself", key)
			}
			return true
		})
		for _, end := range []string{"k0003", "k0001", ""} {
			n := 0
			r.Scan([]byte("k0001"), []byte(end), func(_, _ []byte) bool { n++; return true })
			if want := map[string]int{"k0003": 2}[end]; n != want {
				t.Errorf("up to %q there are %d rows, want %d", end, n, want)
			}
		}
		r.Scan(nil, nil, func(key, _ []byte) bool { return string(key) != "k0050" })
		return nil
	})
	if err != nil || len(first) != 1000 || first[0] != 7 {
		t.Errorf("%v, %d bytes", err, len(first))
	}
	if len(all) != 2999 || all[0] != "k0001" || all[2998] != "k2999" {
		t.Errorf("%d rows", len(all))
	}
	if err := <-s.viewed; err != nil {
		t.Errorf("the rows were held until %v", err)
	}
}

// Errors of the reader are its own; of a store that cannot read, the next one is asked; the rows are let go in any case.
func TestRowsThatCannotBeRead(t *testing.T) {
	s, router := newShelf(t, 10)
	mine := errors.New("mine")
	if err := router.View(t.Context(), 3, false, []string{"s"}, func(fsm.Reader) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("%v", err)
	}
	<-s.viewed
	called := false
	err := router.View(t.Context(), 9, false, []string{"s"}, func(fsm.Reader) error { called = true; return nil })
	var unavailable *rpc.Unavailable
	if !errors.As(err, &unavailable) || unavailable.Ambiguous || !strings.Contains(err.Error(), "no replica of shard 9") || called {
		t.Errorf("%v", err)
	}
	if err := router.View(t.Context(), 3, false, nil, func(fsm.Reader) error { return nil }); !errors.As(err, &unavailable) {
		t.Errorf("nobody to ask: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = router.View(ctx, 3, false, []string{"s"}, func(r fsm.Reader) error {
		<-ctx.Done()
		if _, ok := r.Get([]byte("k0001")); ok {
			t.Error("a row came after the deadline")
		}
		return nil
	})
	if err == nil {
		t.Error("rows that were not read look like none")
	}
	select {
	case <-s.viewed:
	case <-time.After(5 * time.Second):
		t.Error("the rows are held for a caller that is gone")
	}
}

func TestQuestionsThatAreNone(t *testing.T) {
	_, router := newShelf(t, 10)
	p, err := router.peer("s")
	if err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]*clusterv1.RowsRequest{
		"nothing":       {},
		"a row at once": {Question: &clusterv1.RowsRequest_Get{Get: []byte("k0001")}},
		"another store": {Question: &clusterv1.RowsRequest_Open{Open: &clusterv1.RowsOpen{Store: "t", Shard: 3}}},
	} {
		stream := p.client.Rows(t.Context())
		_ = stream.Send(first) // what is wrong comes with the answer
		if _, err := stream.Receive(); err == nil {
			t.Errorf("%s: it was answered", name)
		}
		_ = stream.CloseRequest()
		_ = stream.CloseResponse()
	}
}
