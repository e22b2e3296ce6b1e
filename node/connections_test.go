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
	for files, want := range map[uint64]int{256: 128, 1024: 512, 20_000: 18_800, 1 << 63: 1 << 20} {
		if got := connectionsWithin(files); got != want {
			t.Errorf("%d files: %d connections, want %d", files, got, want)
		}
	}
}
