package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
)

// pipes is a listener of connections in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// underWay serves one call that handler answers, with a minute's grace, and stops when it is under way. It returns a channel
// that is closed when serveHTTP has returned; the result of all is that of the group.
func underWay(t *testing.T, l *pipes, handler http.HandlerFunc, check func(*http.Response, error) error) (*errgroup.Group, *atomic.Bool, context.CancelFunc) {
	ctx, stop := context.WithCancel(t.Context())
	group, ended := new(errgroup.Group), new(atomic.Bool)
	group.Go(func() error {
		defer ended.Store(true)
		return serveHTTP(ctx, newServer(handler, slog.New(slog.DiscardHandler)), l, time.Minute)
	})
	client := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
	group.Go(func() error {
		defer client.CloseIdleConnections()
		res, err := client.Get("http://node/")
		if err == nil {
			defer res.Body.Close()
		}
		return check(res, err)
	})
	synctest.Wait()
	return group, ended, stop
}

// A server that is to end goes on until the calls under way are answered: what they read is closed after it.
func TestCallsUnderWayAreAnswered(t *testing.T) {
	for _, closed := range []bool{false, true} { // the listener, by whoever owns the port
		synctest.Test(t, func(t *testing.T) {
			l, release := newPipes(), make(chan struct{})
			group, ended, stop := underWay(t, l, func(w http.ResponseWriter, _ *http.Request) {
				<-release
				_, _ = io.WriteString(w, "done")
			}, func(res *http.Response, err error) error {
				if err != nil {
					return err
				}
				if body, err := io.ReadAll(res.Body); err != nil || string(body) != "done" {
					t.Errorf("answered %q, %v", body, err)
				}
				return nil
			})
			if closed {
				_ = l.Close()
			}
			stop()
			time.Sleep(time.Second)
			if ended.Load() {
				t.Error("it ended while a call was under way")
			}
			close(release)
			if err := group.Wait(); err != nil && !closed {
				t.Error(err)
			}
		})
	}
}

// What lasts longer than it may is cut off.
func TestCallsThatDoNotEndAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group, _, stop := underWay(t, newPipes(), func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			func(_ *http.Response, err error) error {
				if err == nil {
					t.Error("the call was answered")
				}
				return nil
			})
		began := time.Now()
		stop()
		if err := group.Wait(); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A server whose listener fails is an error.
func TestAServerThatEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		_ = l.Close()
		if err := serveHTTP(t.Context(), newServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler)), l, time.Minute); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}
