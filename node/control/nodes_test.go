package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// testTLS makes the certificates of a cluster, once for all tests.
var testTLS = sync.OnceValue(func() (files TLSFiles) {
	dir, err := os.MkdirTemp("", "carillon-tls")
	if err != nil {
		panic(err)
	}
	sign := func(name string, template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (string, string, *x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		if parent == nil {
			parent, parentKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
		if err != nil {
			panic(err)
		}
		keyDER, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			panic(err)
		}
		cert, keyFile := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		if err := errors.Join(
			os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
			os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600),
		); err != nil {
			panic(err)
		}
		signed, err := x509.ParseCertificate(der)
		if err != nil {
			panic(err)
		}
		return cert, keyFile, signed, key
	}
	template := func(serial int64) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		}
	}
	ca := template(1)
	ca.IsCA, ca.KeyUsage = true, x509.KeyUsageCertSign
	caFile, _, caCert, caKey := sign("ca", ca, nil, nil)
	leaf := template(2)
	leaf.DNSNames, leaf.KeyUsage = []string{peerServerName}, x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	files.CA = caFile
	files.Cert, files.Key, _, _ = sign("node", leaf, caCert, caKey)
	return files
})

// node is one process of a cluster under test: its directory, its address, and while it runs its server.
type node struct {
	t                *testing.T
	name, store, dir string
	addr             string
	server           *Server
	web              *http.Server
	served           chan struct{}
}

func newNode(t *testing.T, name, store string) *node {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	n := &node{t: t, name: name, store: store, dir: t.TempDir(), addr: listener.Addr().String()}
	must(t, listener.Close())
	t.Cleanup(n.stop)
	return n
}

func (n *node) url() string { return "https://" + n.addr }

func (n *node) joiner() Joiner { return Joiner{Name: n.name, StoreUUID: n.store, PeerURL: n.url()} }

func (n *node) config(initialCluster string) ServerConfig {
	return ServerConfig{
		Dir: n.dir, Name: MemberName(n.name, n.store), Token: "cluster-1", PeerURL: n.url(), TLS: testTLS(),
		InitialCluster: initialCluster, Logger: slog.New(slog.DiscardHandler),
	}
}

// open starts the server and serves its peers, without waiting for it.
func (n *node) open(initialCluster string) {
	n.t.Helper()
	server, err := OpenServer(n.t.Context(), n.config(initialCluster))
	must(n.t, err)
	n.server = server
	tlsConfig, err := testTLS().info().ServerConfig()
	must(n.t, err)
	listener, err := net.Listen("tcp", n.addr)
	must(n.t, err)
	n.web = &http.Server{Handler: server.PeerHandler(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	n.served = make(chan struct{})
	go func(web *http.Server, served chan struct{}) {
		defer close(served)
		_ = web.Serve(tls.NewListener(listener, tlsConfig))
	}(n.web, n.served)
}

func (n *node) start(initialCluster string) {
	n.t.Helper()
	n.open(initialCluster)
	must(n.t, n.server.Ready(n.t.Context()))
}

func (n *node) stop() {
	if n.server == nil {
		return
	}
	n.server.Close()
	_ = n.web.Close()
	<-n.served
	n.server = nil
}

// join starts n as what by admits it to be, and asks until it may.
func (n *node) join(by *node) {
	n.t.Helper()
	n.start(n.admitted(by).InitialCluster)
}

func (n *node) admitted(by *node) Admission {
	n.t.Helper()
	for {
		admission, err := by.server.Admit(n.t.Context(), n.joiner())
		if err == nil {
			return admission
		}
		wantError(n.t, err, ErrBusy)
		select {
		case <-n.t.Context().Done():
			n.t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (n *node) put(key, value string) {
	n.t.Helper()
	for {
		ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Second)
		_, err := n.server.Client().Put(ctx, key, value)
		cancel()
		if err == nil {
			return
		}
		if n.t.Context().Err() != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *node) get(key string) string {
	n.t.Helper()
	response, err := n.server.Client().Get(n.t.Context(), key)
	must(n.t, err)
	if len(response.Kvs) == 0 {
		return ""
	}
	return string(response.Kvs[0].Value)
}

func becomeVoters(t *testing.T, nodes ...*node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, n := range nodes {
		must(t, n.server.EnsureVoter(ctx))
	}
}

func voters(t *testing.T, n *node) (names []string) {
	t.Helper()
	members, err := n.server.Members(t.Context())
	for errors.Is(err, ErrUnavailable) && t.Context().Err() == nil {
		members, err = n.server.Members(t.Context()) // after the loss of a leader
	}
	must(t, err)
	for _, m := range members {
		if !m.Learner {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}
