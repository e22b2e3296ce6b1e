package bench

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
	"github.com/carillon-scheduler/carillon/proto/codec"
)

// api is one way to the server under test. Every role (producers, workers, probes) has its own, so that none waits behind
// another's frames.
type api struct {
	transport *http.Transport
	jobs      carillonv1connect.JobServiceClient
	workers   carillonv1connect.WorkerServiceClient
	cluster   carillonv1connect.ClusterServiceClient
}

// newAPI is one connection, over unencrypted HTTP/2, to each node at bases, URLs or host:port. They are made on first use,
// and calls go to one after the other.
func newAPI(bases []string) *api {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP2(true)
	return newAPIOver(bases, &http.Transport{
		Protocols: &protocols,
		// An answer with 1,000 leases is about 300 KiB: large frames save a system call each 16 KiB.
		HTTP2: &http.HTTP2Config{MaxReadFrameSize: 1 << 20},
	})
}

// newPlainAPI is up to connections kept-alive connections a node over HTTP/1.1, which is what a Connect client with Go's default
// transport uses. A single small call costs a tenth less CPU than over HTTP/2.
func newPlainAPI(bases []string, connections int) *api {
	return newAPIOver(bases, &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections})
}

func newAPIOver(bases []string, transport *http.Transport) *api {
	transport.DisableCompression = true
	base := bases[0]
	httpClient := &http.Client{Transport: newRotation(transport, bases)}
	options := []connect.ClientOption{
		connect.WithCodec(vtCodec{}),
		// Random payloads over loopback: compressing them measures gzip.
		connect.WithAcceptCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(64 << 20),
	}
	return &api{
		transport: transport,
		jobs:      carillonv1connect.NewJobServiceClient(httpClient, base, options...),
		workers:   carillonv1connect.NewWorkerServiceClient(httpClient, base, options...),
		cluster:   carillonv1connect.NewClusterServiceClient(httpClient, base, options...),
	}
}

// rotation sends one request after the other to another node.
type rotation struct {
	next  http.RoundTripper
	hosts []*url.URL
	turn  atomic.Uint64
}

func newRotation(next http.RoundTripper, bases []string) http.RoundTripper {
	if len(bases) == 1 {
		return next
	}
	s := &rotation{next: next}
	for _, base := range bases {
		host, err := url.Parse(base)
		if err != nil {
			panic(fmt.Sprintf("bench: node %q: %v", base, err)) // checked by parseTargets
		}
		s.hosts = append(s.hosts, host)
	}
	return s
}

func (s *rotation) RoundTrip(req *http.Request) (*http.Response, error) {
	host := s.hosts[s.turn.Add(1)%uint64(len(s.hosts))]
	to := *req.URL
	to.Scheme, to.Host = host.Scheme, host.Host
	sent := *req
	sent.URL, sent.Host = &to, ""
	return s.next.RoundTrip(&sent)
}

// parseTargets reads URLs or host:port, separated by commas, as URLs.
func parseTargets(text string) ([]string, error) {
	var bases []string
	for _, base := range strings.Split(text, ",") {
		if base = strings.TrimSpace(base); !strings.Contains(base, "://") {
			base = "http://" + base
		}
		u, err := url.Parse(base)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("%q is not a URL or host:port", base)
		}
		bases = append(bases, strings.TrimSuffix(base, "/"))
	}
	return bases, nil
}

// close drops the connection.
func (a *api) close() { a.transport.CloseIdleConnections() }

// vtCodec encodes messages by their generated code instead of by reflection, so that the bench takes little of the CPU
// that it shares with the server. On the wire it is the usual protobuf.
type vtCodec struct{ codec.Proto }

type unsafeMessage interface {
	proto.Message
	UnmarshalVTUnsafe(src []byte) error
}

// Unmarshal copies src once, as it goes back to a pool, and lets all strings and byte fields refer to the copy.
func (c vtCodec) Unmarshal(src []byte, msg any) error {
	m, ok := msg.(unsafeMessage)
	if !ok {
		return c.Proto.Unmarshal(src, msg)
	}
	proto.Reset(m)
	return m.UnmarshalVTUnsafe(slices.Clone(src))
}
