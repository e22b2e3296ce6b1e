package peer

import (
	"context"
	"errors"
	"net"
	"testing"
)

// breaking is a connection that breaks at the first word, when its link is just being cancelled.
type breaking struct {
	net.Conn
	cancel context.CancelFunc
	closed chan struct{}
}

func (b *breaking) Write([]byte) (int, error) {
	b.cancel()
	return 0, errors.New("it is broken")
}

func (b *breaking) Close() error {
	b.closed <- struct{}{}
	return nil
}

// The end of a link that greets a peer and the end of that connection may come at the same moment, in any order.
func TestALinkIsCancelledWhileItGreets(t *testing.T) {
	for range 500 {
		conn := &breaking{closed: make(chan struct{})}
		l := newLink(&Transport{cfg: Config{
			Store: "a", Boot: 1, dial: func(context.Context, string) (net.Conn, error) { return conn, nil },
		}}, "b", "b's address")
		conn.cancel = l.cancel
		failed := make(chan error, 1)
		go func() {
			_, _, err := l.connect()
			failed <- err
		}()
		// Both close it: the link's end, and whoever has met the error.
		<-conn.closed
		<-conn.closed
		if err := <-failed; err == nil {
			t.Fatal("it is connected")
		}
	}
}
