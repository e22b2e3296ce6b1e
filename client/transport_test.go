package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A node whose host is gone answers no dial at all: what waited for one does not dial in turn.
func TestCallsThatWaitForADialShareItsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("no answer")
		var dials atomic.Int32
		away := func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			time.Sleep(3 * time.Second)
			return nil, gone
		}
		transport := newTransportOver(away, away)
		defer transport.CloseIdleConnections()
		for round := range int32(2) {
			began := time.Now()
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if _, err := get(t.Context(), transport, "http://node.test"); !errors.Is(err, gone) {
						t.Errorf("got %v", err)
					}
				})
			}
			all.Wait()
			if took := time.Since(began); took != 3*time.Second || dials.Load() != round+1 {
				t.Errorf("round %d: took %s and %d dials", round, took, dials.Load())
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func TestTransportSpeaksHTTP2OverTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Spoken", r.Proto)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	trusting := s.Client().Transport.(*http.Transport).TLSClientConfig
	transport := newTransportOver(nil, secureDial(&net.Dialer{}, trusting))
	defer transport.CloseIdleConnections()
	res, err := get(t.Context(), transport, s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := res.Header.Get("Spoken"); got != "HTTP/2.0" {
		t.Errorf("spoke %s", got)
	}
}

func get(ctx context.Context, transport *http.Transport, address string) (*http.Response, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(withEndpoint(ctx, u), http.MethodGet, "http://carillon/", nil)
	if err != nil {
		return nil, err
	}
	res, err := (&endpointDoer{next: &http.Client{Transport: transport}}).Do(req)
	if err != nil {
		return nil, err
	}
	return res, res.Body.Close()
}

// A client goes back to its first endpoint after a while, and stays away for longer each time that this was in vain.
func TestEndpointsReturnToTheFirst(t *testing.T) {
	e, err := parseEndpoints("a:1,b:1,c:1")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for n, away := range []time.Duration{minAway, 2 * minAway, 4 * minAway, 8 * minAway, maxAway, maxAway} {
		e.leave(0, now)
		e.leave(0, now) // another call that had used it
		if at := e.current(now.Add(away - 1)); at != 1 {
			t.Errorf("%d: just before the return it uses %d", n, at)
		}
		e.leave(1, now.Add(away-1))
		if at := e.current(now.Add(away - 1)); at != 2 {
			t.Errorf("%d: after the second one it uses %d", n, at)
		}
		if now = now.Add(away); e.current(now) != 0 {
			t.Errorf("%d: it does not return after %s", n, away)
		}
	}
	now = now.Add(maxAway + 1)
	e.leave(0, now)
	if e.current(now.Add(minAway)) != 0 {
		t.Error("a long stay does not count as a return that worked")
	}
}

func TestOneEndpointStays(t *testing.T) {
	e, err := parseEndpoints("a:1")
	if err != nil {
		t.Fatal(err)
	}
	e.leave(0, time.Now())
	if e.current(time.Now()) != 0 {
		t.Error("there is no other")
	}
}
