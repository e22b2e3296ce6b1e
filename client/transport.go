package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"
)

// newTransport speaks HTTP/2 alone, also without TLS. Its pool opens one connection at a time, and another only when those
// it has carry as many calls as the server allows; that of net/http would open one for each call of a first burst.
func newTransport() *http2.Transport {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, address string, config *tls.Config) (net.Conn, error) {
			if plain, _ := ctx.Value(endpointKey{}).(*url.URL); plain != nil && plain.Scheme == "http" {
				return dialer.DialContext(ctx, network, address)
			}
			return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
		},
		// A peer that vanished without a word is noticed by a ping.
		ReadIdleTimeout: 15 * time.Second,
		PingTimeout:     5 * time.Second,
		IdleConnTimeout: 90 * time.Second,
	}
}

// endpoints are the addresses of a cluster's nodes. One is in use until it is found unavailable; then the next one is.
type endpoints struct {
	urls []*url.URL
	used atomic.Uint32
}

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

// current is the index of the endpoint in use.
func (e *endpoints) current() uint32 { return e.used.Load() % uint32(len(e.urls)) }

// leave moves on from the endpoint at index, unless another call did so already.
func (e *endpoints) leave(index uint32) {
	e.used.CompareAndSwap(index, (index+1)%uint32(len(e.urls)))
}

type endpointKey struct{}

func withEndpoint(ctx context.Context, u *url.URL) context.Context {
	return context.WithValue(ctx, endpointKey{}, u)
}

// endpointDoer puts the endpoint chosen for a try into its request.
type endpointDoer struct{ next connect.HTTPClient }

func (d *endpointDoer) Do(req *http.Request) (*http.Response, error) {
	chosen, ok := req.Context().Value(endpointKey{}).(*url.URL)
	if !ok {
		panic("client: a request without endpoint")
	}
	to := *req.URL
	to.Scheme, to.Host, to.Path = chosen.Scheme, chosen.Host, chosen.Path+req.URL.Path
	req.URL, req.Host = &to, chosen.Host
	return d.next.Do(req)
}
