package node

import (
	"errors"
	"net"
	"testing"
)

// Beyond the bound a connection waits until another is closed; closing twice makes no second place.
func TestConnectionsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newBoundListener(inner, 2)
	accepted := make(chan net.Conn)
	ended := make(chan error)
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- conn
		}
	}()
	for range 4 {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	first, second := <-accepted, <-accepted
	for _, conn := range []net.Conn{first, second} {
		if len(l.places) != cap(l.places) {
			t.Errorf("%d places taken", len(l.places))
		}
		_ = conn.Close()
		_ = conn.Close()
		conn = <-accepted
		defer conn.Close()
	}
	// Both places are taken: only the listener's end ends the wait for one.
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("ended with %v", err)
	}
}

func TestFilesAreLeftForTheNode(t *testing.T) {
	for files, want := range map[uint64]struct{ all, served, waiting int }{
		256: {128, 64, 32}, 1024: {512, 256, 128}, 4096: {2896, 1448, 724}, 20_000: {18_800, 16_752, 1024}, 1 << 63: {1 << 20, 1<<20 - 2048, 1024},
	} {
		got := connectionsWithin(files)
		served, waiting := callersWithin(got)
		if got != want.all || served != want.served || waiting != want.waiting {
			t.Errorf("%d files: %d connections, %d served and %d waiting, want %v", files, got, served, waiting, want)
		}
	}
}
