package control

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
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

// A lone member becomes three; one of them loses its disk and comes back as a new member; another one is removed.
func TestTheLivesOfThreeMembers(t *testing.T) {
	t.Parallel()
	n1, n2, n3 := newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a"), newNode(t, "n3", "33333333-a")

	lone := startServer(t, ServerConfig{Dir: n1.dir, Name: "n1", Token: "cluster-1"})
	_, err := lone.Client().Put(t.Context(), "/first", "1")
	must(t, err)
	loneID := lone.MemberID()
	lone.Close()

	n1.start("")
	equal(t, n1.server.MemberID(), loneID)
	must(t, n1.server.SetPeerURL(t.Context()))
	equal(t, n1.server.LocalMembers(), []Member{{ID: loneID, Name: "n1-11111111", PeerURL: n1.url(), Started: true, Leader: true}})
	equal(t, n1.get("/first"), "1")

	// The second node waits for a third before it votes.
	n2.join(n1)
	oldID := n2.server.MemberID()
	waits, cancel := context.WithTimeout(t.Context(), 3*promoteEvery)
	wantError(t, n2.server.EnsureVoter(waits), context.DeadlineExceeded)
	cancel()
	equal(t, voters(t, n2), []string{"n1-11111111"})
	equal(t, n2.get("/first"), "1")
	n2.isOfFullUse()
	stale := n3.admitted(n1).InitialCluster
	equal(t, n3.admitted(n2).InitialCluster, stale)
	n3.start(stale)
	becomeVoters(t, n2, n3, n1)
	equal(t, voters(t, n3), []string{"n1-11111111", "n2-22222222", "n3-33333333"})
	full, err := n1.server.Admit(t.Context(), Joiner{Name: "n4", StoreUUID: "44444444", PeerURL: "https://127.0.0.1:2"})
	must(t, err)
	equal(t, full.InitialCluster, "")
	equal(t, len(full.Members), 3)

	n2.stop()
	n3.put("/second", "2")
	n2.losesItsDisk(n1, oldID, stale)
	equal(t, voters(t, n1), []string{"n1-11111111", "n2-2b2b2b2b", "n3-33333333"})

	// The leader goes; the two that are left, one of them the new one, have everything and go on.
	n1.stop()
	n3.put("/third", "3")
	equal(t, n2.get("/first")+n2.get("/second")+n2.get("/third"), "123")

	// A member learns that it was removed, also if it was down.
	must(t, n2.removeMember(n1.store))
	n1.open("")
	wantError(t, n1.server.Ready(t.Context()), ErrRemoved)
	stopped := make(chan error, 1)
	go func() { stopped <- n3.server.Run(t.Context()) }()
	must(t, n2.removeMember(n3.store))
	wantError(t, next(t, stopped), ErrRemoved)
	equal(t, voters(t, n2), []string{"n2-2b2b2b2b"})
	equal(t, n2.get("/third"), "3")
}

// isOfFullUse checks that the plane works over a member that does not vote or lead: its lease, leader leases, a term, a watch.
func (n *node) isOfFullUse() {
	t := n.t
	p := openEtcd(t, n.server)
	_, err := p.Register(t.Context(), store("b", 1))
	must(t, err)
	lease := p.session.current()
	p.renew(t.Context())
	equal(t, p.session.current(), lease)
	equal(t, p.Health(t.Context()).LeaseLive, true)
	told := make(chan LeaderRecord, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- p.Run(ctx) }()
	go func() { done <- p.WatchLeaders(ctx, func(r LeaderRecord) { told <- r }) }()
	grants, err := p.AcquireLeaders(t.Context(), []LeaderClaim{{1, 6}})
	must(t, err)
	equal(t, grants[0].Held, true)
	equal(t, next(t, told), LeaderRecord{Shard: 1, Epoch: 6, Store: "b", Addr: "b:7070"})
	term, err := p.Campaign(t.Context())
	must(t, err)
	must(t, p.SetStoreState(t.Context(), term, "b", StoreDraining))
	must(t, p.Resign(t.Context(), term))
	cancel()
	<-done
	<-done
}

// losesItsDisk checks that a node without its disk never starts under its old id, and makes it a new member.
func (n *node) losesItsDisk(by *node, oldID uint64, stale string) {
	t := n.t
	must(t, os.RemoveAll(n.dir))
	for _, uuid := range []string{n.store, "2b2b2b2b-b"} {
		n.store = uuid
		_, err := OpenServer(t.Context(), n.config(stale))
		wantError(t, err, ErrNotAdmitted)
		if holds, err := HoldsMember(n.dir); holds || err != nil {
			t.Fatalf("a refused start left a member: %v", err)
		}
	}
	admission := n.admitted(by)
	// An answer from before is not good enough even now that the address is that of a new member.
	other := n.config(stale)
	other.Name = MemberName(n.name, "2c2c2c2c")
	_, err := OpenServer(t.Context(), other)
	wantError(t, err, ErrNotAdmitted)

	n.start(admission.InitialCluster)
	if n.server.MemberID() == oldID {
		t.Fatal("it started under its old id")
	}
	becomeVoters(t, n)
	equal(t, n.get("/second"), "2")
}

func (n *node) removeMember(store string) error {
	for {
		err := n.server.RemoveMember(n.t.Context(), store)
		if !errors.Is(err, ErrBusy) && !errors.Is(err, ErrUnavailable) {
			return err
		}
		select {
		case <-n.t.Context().Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// postRaft sends n a raft message as another member would.
func postRaft(t *testing.T, n *node, from, to uint64) int {
	t.Helper()
	body, err := proto.Marshal(&raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: &from, To: &to})
	must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url()+"/raft", bytes.NewReader(body))
	must(t, err)
	r.Header.Set("X-Server-From", strconv.FormatUint(from, 16))
	r.Header.Set("X-Server-Version", version.Version)
	r.Header.Set("X-Min-Cluster-Version", version.MinClusterVersion)
	r.Header.Set("X-Etcd-Cluster-ID", n.server.etcd.Server.Cluster().ID().String())
	client, err := n.config("").peerClient()
	must(t, err)
	defer client.CloseIdleConnections()
	response, err := client.Do(r)
	must(t, err)
	must(t, response.Body.Close())
	return response.StatusCode
}

// A member that lags behind may take another one at the same address for its predecessor. Whatever it is told, it must
// not be the word to a removed member, at which it would stop and give up its data.
func TestAMessageForAPredecessorIsNotAnsweredAsToARemovedMember(t *testing.T) {
	t.Parallel()
	n := newNode(t, "n1", "11111111-a")
	n.start("")
	if status := postRaft(t, n, n.server.MemberID(), 4711); status < 500 {
		t.Errorf("status is %d", status)
	}
}

// Two nodes that ask at the same time each start with a list of members that may lack the other.
func TestNodesThatJoinAtTheSameTimeBothGetIn(t *testing.T) {
	t.Parallel()
	n1, n2, n3 := newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a"), newNode(t, "n3", "33333333-a")
	n1.start("")
	second := n2.admitted(n1)
	third := n3.admitted(n1)
	n2.start(second.InitialCluster)
	n3.start(third.InitialCluster)
	becomeVoters(t, n2, n3)
	equal(t, len(voters(t, n1)), 3)
	// All three at once after a stop: nobody can be ready before the others serve their peers.
	for _, n := range []*node{n1, n2, n3} {
		n.stop()
	}
	for _, n := range []*node{n1, n2, n3} {
		n.open("")
	}
	for _, n := range []*node{n1, n2, n3} {
		must(t, n.server.Ready(t.Context()))
		must(t, n.server.EnsureVoter(t.Context()))
	}
}

func TestPlanAdmission(t *testing.T) {
	member := func(name, addr string, marks string) Member {
		return Member{Name: name, PeerURL: addr, Learner: strings.Contains(marks, "l"), Started: strings.Contains(marks, "s")}
	}
	one, three := member("n1-11111111", "1", "s"), member("n3-33333333", "3", "s")
	for _, c := range []struct {
		name    string
		members []Member
		want    admissionPlan
	}{
		{"first of others", []Member{one}, admissionPlan{add: true}},
		{"third", []Member{one, three}, admissionPlan{add: true}},
		{"enough", []Member{one, three, member("n4-44444444", "4", "ls")}, admissionPlan{}},
		{"asks again", []Member{one, member("n2-2222abcd", "2", "l"), three}, admissionPlan{admitted: true}},
		{"asks again after it has started", []Member{one, member("n2-2222abcd", "2", "ls"), three},
			admissionPlan{remove: []Member{member("n2-2222abcd", "2", "ls")}, add: true}},
		{"asks again after it has voted", []Member{one, member("n2-2222abcd", "2", "s"), three},
			admissionPlan{remove: []Member{member("n2-2222abcd", "2", "s")}, add: true}},
		{"has lost its disk", []Member{one, member("n2-00000000", "2", "s"), three},
			admissionPlan{remove: []Member{member("n2-00000000", "2", "s")}, add: true}},
		{"has lost its disk before it started", []Member{one, member("n2-00000000", "2", "l")},
			admissionPlan{remove: []Member{member("n2-00000000", "2", "l")}, add: true}},
		{"has moved", []Member{one, member("n2-2222abcd", "9", "s"), three},
			admissionPlan{remove: []Member{member("n2-2222abcd", "9", "s")}, add: true}},
		{"bears no store's digits yet", []Member{one, member("n2", "9", "s")},
			admissionPlan{remove: []Member{member("n2", "9", "s")}, add: true}},
		{"at the address of another", []Member{one, member("n5-55555555", "2", "s")},
			admissionPlan{remove: []Member{member("n5-55555555", "2", "s")}, add: true}},
		{"name that begins like another's", []Member{one, member("n2-b-00000000", "7", "s")}, admissionPlan{add: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, planAdmission(c.members, Joiner{Name: "n2", StoreUUID: "2222abcd-e", PeerURL: "2"}), c.want)
		})
	}
}

// A member whose log no longer goes back to the beginning sends a joiner its database.
func TestAJoinerGetsASnapshot(t *testing.T) {
	t.Parallel()
	n1, n2 := newNode(t, "n1", "11111111-a"), newNode(t, "n2", "22222222-a")
	n1.start("")
	group := new(errgroup.Group)
	group.SetLimit(16)
	for i := range snapshotEntries + catchUpEntries {
		group.Go(func() error {
			_, err := n1.server.Client().Put(t.Context(), fmt.Sprintf("/%d", i%100), strings.Repeat("x", 100))
			return err
		})
	}
	must(t, group.Wait())
	n1.put("/last", "1")
	n2.join(n1)
	equal(t, n2.get("/last"), "1")
	received, err := filepath.Glob(filepath.Join(n2.dir, "member", "snap", "*.snap"))
	must(t, err)
	equal(t, len(received), 1)

	// Its directory is that of one of two now: without its address it would wait for the other for ever.
	n2.stop()
	alone := n2.config("")
	alone.PeerURL, alone.TLS = "", TLSFiles{}
	if _, err := OpenServer(t.Context(), alone); err == nil || !strings.Contains(err.Error(), "one of 2 members") {
		t.Fatalf("error is %v", err)
	}
}
