package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"
)

// dial connects to the node's port at addr for proto, within timeout.
func (c *Credentials) dial(ctx context.Context, addr, proto string, timeout time.Duration) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d := tls.Dialer{Config: c.clientConfig(proto)}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	secured := conn.(*tls.Conn)
	if got := secured.ConnectionState().NegotiatedProtocol; got != proto {
		_ = secured.Close()
		return nil, fmt.Errorf("%s speaks %q, not %q", addr, got, proto)
	}
	return secured, nil
}

// DialBulk opens a connection for a snapshot to the node's port at addr, which hands it to the handler of ProtoBulk. It
// blocks for at most 2 s, or until ctx ends.
func (c *Credentials) DialBulk(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := c.dial(ctx, addr, ProtoBulk, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("dial %s for bulk: %w", addr, err)
	}
	return conn, nil
}

// HTTPClient makes a client for calls to other nodes: https://host:port, whatever the host's name. It speaks HTTP/2, so that
// calls to one node share a connection, and HTTP/1.1 where the other side has no HTTP/2. It follows no redirects and uses no
// proxy. A connection whose other end is gone is noticed within 4 s, however long the calls on it may take; calls are
// bounded by their contexts only. Each call makes a new client with a pool of its own: keep it, and end with
// CloseIdleConnections.
func (c *Credentials) HTTPClient() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	dialer := &net.Dialer{Timeout: callTimeout}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         dialer.DialContext,
			TLSClientConfig:     c.clientConfig(protoHTTP2, protoHTTP1),
			TLSHandshakeTimeout: callTimeout,
			Protocols:           protocols,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
			MaxIdleConns:        maxIdleCalls,
			MaxIdleConnsPerHost: maxIdleCallsAPeer,
			IdleConnTimeout:     idleCallsTimeout,
			// Nodes are near each other: packing costs more than the bytes do.
			DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
