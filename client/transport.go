package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
)

// newTransport speaks HTTP/2 alone, also without TLS. Its calls share a connection, and another is opened only when those
// there are carry as many calls as the server allows.
func newTransport() *http.Transport {
	plain := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return newTransportOver(plain.DialContext, secureDial(plain, new(tls.Config)))
}

func secureDial(plain *net.Dialer, config *tls.Config) dial {
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	return (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
}

func newTransportOver(plain, secure dial) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols:      protocols,
		DialContext:    sharingFailures(plain),
		DialTLSContext: sharingFailures(secure),
		// Not the connections to a node but those that are not full: without it each call of a first burst dials.
		MaxConnsPerHost:    1,
		IdleConnTimeout:    90 * time.Second,
		DisableCompression: true,
		// A peer that vanished without a word is noticed by a ping.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
	}
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// sharingFailures lets tries that waited for a dial that failed fail with it. Otherwise they would dial one after the
// other, and find out about a node that is away only in turn.
func sharingFailures(next dial) dial {
	type failure struct {
		at  time.Time
		err error
	}
	var mu sync.Mutex
	last := map[string]failure{}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		failed, ok := last[address]
		mu.Unlock()
		if by, isTry := ctx.Value(endpointKey{}).(chosenEndpoint); ok && isTry && by.since.Before(failed.at) {
			return nil, failed.err
		}
		conn, err := next(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			last[address] = failure{time.Now(), err}
			return nil, err
		}
		delete(last, address)
		return conn, nil
	}
}

// endpoints are the addresses of a cluster's nodes. One is in use until it is found unavailable; then the next one is. After a
// while away the first one is tried again: otherwise all clients would gather at one node as nodes are restarted one after
// the other.
type endpoints struct {
	urls []*url.URL
	used atomic.Uint32

	mu sync.Mutex
	// returns is when the first one is tried again, back when it was last: in vain so soon after, it is left alone for longer.
	returns, back time.Time
	away          time.Duration
}

// A client stays away from its first endpoint for minAway, and for twice as long, up to maxAway, each time that it is found
// unavailable within maxAway of the return.
const (
	minAway = 30 * time.Second
	maxAway = 5 * time.Minute
)

func parseEndpoints(address string) (*endpoints, error) {
	if strings.TrimSpace(address) == "" {
		address = DefaultAddress
	}
	e := new(endpoints)
	for part := range strings.SplitSeq(address, ",") {
		part = strings.TrimSpace(part)
		if !strings.Contains(part, "://") {
			part = "http://" + part
		}
		u, err := url.Parse(part)
		if err != nil {
			return nil, fmt.Errorf("parse address: %w", err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("parse address %q: want host:port or http(s)://host:port", part)
		}
		u.Path = strings.TrimSuffix(u.Path, "/")
		e.urls = append(e.urls, u)
	}
	return e, nil
}

// current is the index of the endpoint in use at an instant.
func (e *endpoints) current(now time.Time) uint32 {
	used := e.used.Load()
	if used == 0 {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Before(e.returns) || !e.used.CompareAndSwap(used, 0) {
		return e.used.Load()
	}
	e.back = now
	return 0
}

// leave moves on from the endpoint at index, unless another call did so already.
func (e *endpoints) leave(index uint32, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.used.CompareAndSwap(index, (index+1)%uint32(len(e.urls))) || index != 0 {
		return
	}
	if e.away = min(2*e.away, maxAway); e.away == 0 || now.Sub(e.back) > maxAway {
		e.away = minAway
	}
	e.returns = now.Add(e.away)
}

type endpointKey struct{}

// chosenEndpoint is the endpoint of a try, and when it began.
type chosenEndpoint struct {
	url   *url.URL
	since time.Time
}

func withEndpoint(ctx context.Context, u *url.URL) context.Context {
	return context.WithValue(ctx, endpointKey{}, chosenEndpoint{u, time.Now()})
}

// endpointDoer puts the endpoint chosen for a try into its request.
type endpointDoer struct{ next connect.HTTPClient }

func (d *endpointDoer) Do(req *http.Request) (*http.Response, error) {
	chosen, ok := req.Context().Value(endpointKey{}).(chosenEndpoint)
	if !ok {
		panic("client: a request without endpoint")
	}
	to := *req.URL
	to.Scheme, to.Host, to.Path = chosen.url.Scheme, chosen.url.Host, chosen.url.Path+req.URL.Path
	req.URL, req.Host = &to, chosen.url.Host
	return d.next.Do(req)
}
