package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
)

const (
	// peerServerName is the name in every node's certificate: who knows the cluster's secret is a node, wherever it runs.
	peerServerName = "carillon-node"
	// peerDialTimeout and peerCallTimeout bound what this package asks of a peer by itself.
	peerDialTimeout = 2 * time.Second
	peerCallTimeout = 5 * time.Second
	// peerWriteTimeout is for how long a peer may take nothing of what it is sent, before its connection is given up: a stream
	// to a peer that is frozen or cut off would hold the place of the one that it opens when it is back.
	peerWriteTimeout = 5 * time.Second
	// maxPeerAnswer bounds the list of members that a peer answers with.
	maxPeerAnswer = 1 << 20
)

var (
	// ErrRemoved: the member is no longer one of its cluster. Its directory is of no use; the node has to join anew.
	ErrRemoved = errors.New("member was removed from its cluster")
	// ErrNotAdmitted: the cluster does not wait for this member to start for the first time. It has to ask for admission: a
	// member that has been one before and lost its directory would vote without knowing what it has promised.
	ErrNotAdmitted = errors.New("member is not admitted")
)

// TLSFiles are the PEM files of mutual TLS between nodes; the certificate's name is "carillon-node".
type TLSFiles struct{ CA, Cert, Key string }

func (f TLSFiles) validate() error {
	if f.CA == "" || f.Cert == "" || f.Key == "" {
		return errors.New("CA, Cert and Key are required")
	}
	return nil
}

func (f TLSFiles) info() transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: f.Cert, KeyFile: f.Key, TrustedCAFile: f.CA, ClientCertAuth: true, ServerName: peerServerName,
	}
}

func checkPeerURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	if u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Host != strings.TrimPrefix(text, "https://") {
		return fmt.Errorf("%q is not https://host:port", text)
	}
	return nil
}

// PeerHandler serves what other members ask of this one, etcd's peer protocol, at /raft, /members, /leases, /version and
// /downgrade; and over HTTP/2 what a Remote asks, etcd's own API. It is to be served, to nodes only, from before Ready until
// after Close. Its streams last as long as the members do: the server of it must set neither a ReadTimeout nor a
// WriteTimeout.
func (s *Server) PeerHandler() http.Handler {
	peers := etcdhttp.NewPeerHandler(s.etcd.GetLogger(), s.etcd.Server)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			s.api.ServeHTTP(w, r)
			return
		}
		timed := &peerWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		timed.extend()
		peers.ServeHTTP(timed, r)
		// What the server still has to write, and the next request on the connection, have their own time. A connection
		// that takes no deadline, as in tests, has none to lift.
		_ = timed.control.SetWriteDeadline(time.Time{})
	})
}

// peerWriter gives each write its time.
type peerWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// extend has no use for an error: a connection that takes no deadline, as in tests, has none.
func (w *peerWriter) extend() { _ = w.control.SetWriteDeadline(time.Now().Add(peerWriteTimeout)) }

func (w *peerWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *peerWriter) Write(b []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(b)
}

// Flush is what etcd's streams are made of. An error shows at the next write.
func (w *peerWriter) Flush() {
	w.extend()
	_ = w.control.Flush()
}

func (w *peerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// whyStopped is called when etcd has stopped by itself. It does so only when told that its member was removed; but as what
// follows on ErrRemoved is that its data is given up, that is asked again of whoever answers.
func (s *Server) whyStopped(ctx context.Context) error {
	select {
	case <-s.closed:
		return errors.New("it was closed")
	default:
	}
	server := s.etcd.Server
	id := server.MemberID()
	if server.IsIDRemoved(uint64(id)) {
		return ErrRemoved
	}
	if s.cfg.PeerURL == "" {
		return errors.New("it stopped by itself")
	}
	client, err := s.cfg.peerClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for _, m := range server.Cluster().Members() {
		for _, peer := range m.PeerURLs {
			if m.ID != id && saysRemoved(ctx, client, peer, id, server.Cluster().ID()) {
				return ErrRemoved
			}
		}
	}
	return errors.New("it stopped by itself, and no peer says that it was removed")
}

// saysRemoved asks a peer for a stream, which is how a removed member is told; that it names no addressee keeps the peer
// from granting it.
func saysRemoved(ctx context.Context, client *http.Client, peer string, id, cluster types.ID) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, peer+rafthttp.RaftStreamPrefix+"/message/"+id.String(), nil)
	if err != nil {
		return false
	}
	r.Header.Set("X-Server-From", id.String())
	r.Header.Set("X-Server-Version", version.Version)
	r.Header.Set("X-Min-Cluster-Version", version.MinClusterVersion)
	r.Header.Set("X-Etcd-Cluster-ID", cluster.String())
	response, err := client.Do(r)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusGone
}

func (c ServerConfig) peerClient() (*http.Client, error) {
	rt, err := transport.NewTransport(c.TLS.info(), peerDialTimeout)
	if err != nil {
		return nil, fmt.Errorf("load TLS files: %w", err)
	}
	return &http.Client{Transport: rt, Timeout: peerCallTimeout}, nil
}

// admitted asks the members whom an empty directory is about to join whether they wait for it: its address must be that of
// a learner of its name that has never started. etcd itself would take any member's place at that address. The answer is
// the initial cluster as it is by now: etcd refuses one in which a member is missing that was admitted meanwhile.
func (c ServerConfig) admitted(ctx context.Context) (string, error) {
	cluster, err := types.NewURLsMap(c.InitialCluster)
	if err != nil {
		return "", fmt.Errorf("parse InitialCluster: %w", err)
	}
	client, err := c.peerClient()
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	var refusals []error
	for _, peer := range cluster.URLs() {
		if peer == c.PeerURL {
			continue
		}
		members, err := askMembers(ctx, client, peer)
		if err == nil {
			err = c.findAdmitted(members)
		}
		if err == nil {
			return initialCluster(members), nil
		}
		refusals = append(refusals, fmt.Errorf("%s: %w", peer, err))
	}
	if len(refusals) == 0 {
		return "", fmt.Errorf("%w: InitialCluster names no other member", ErrNotAdmitted)
	}
	return "", errors.Join(refusals...)
}

func (c ServerConfig) findAdmitted(members []Member) error {
	for _, m := range members {
		if m.PeerURL != c.PeerURL {
			continue
		}
		if m.Name == c.Name && m.Learner && !m.Started {
			return nil
		}
		return fmt.Errorf("%w: %s is that of member %x %q, which has started before or is another",
			ErrNotAdmitted, c.PeerURL, m.ID, m.Name)
	}
	return fmt.Errorf("%w: no member has the address %s", ErrNotAdmitted, c.PeerURL)
}

func askMembers(ctx context.Context, client *http.Client, peer string) ([]Member, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, peer+"/members", nil)
	if err != nil {
		return nil, fmt.Errorf("ask for members: %w", err)
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("ask for members: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New("ask for members: status " + strconv.Itoa(response.StatusCode))
	}
	var answer []*membership.Member
	if err := json.NewDecoder(io.LimitReader(response.Body, maxPeerAnswer)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("decode members: %w", err)
	}
	members := make([]Member, 0, len(answer))
	for _, m := range answer {
		members = append(members, memberOf(m))
	}
	return members, nil
}
