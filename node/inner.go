package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/peer"
	"github.com/carillon-scheduler/carillon/node/route"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// A node that asks to join in the place of another one waits until that has made itself heard, or has not for hearFor. What
// was on its way when it was killed has arrived by hearEvery.
const (
	hearEvery = 100 * time.Millisecond
	hearFor   = 1500 * time.Millisecond
)

// innerGrace is how long calls of other nodes that are under way may take to finish when this one stops.
const innerGrace = time.Second

// inner is what other nodes see of this one and what it sees of them: who they are, their connections, their calls. A node
// of its own has none.
type inner struct {
	n         *Node
	creds     *peer.Credentials
	mux       *peer.Mux
	transport *peer.Transport
	client    *http.Client
	ask       route.Asker
	path      string
	calls     http.Handler
	// etcd is the members' protocol, nil until this node's member has begun.
	etcd atomic.Pointer[http.Handler]
	// local is nil until the node serves its shards.
	local atomic.Pointer[local]

	mu sync.Mutex
	// Guarded by mu: stores are the other nodes by their stores, all every store that is registered, gone ones too.
	stores map[string]control.StoreRecord
	all    []control.StoreRecord
}

// openInner makes the node one that others can reach, at the port that l listens on, where waiting connections of each kind
// may wait. It returns what the callers' listener is then.
func (n *Node) openInner(l net.Listener, waiting int) (net.Listener, error) {
	secret, err := peer.LoadSecret(n.cfg.ClusterSecretFile)
	if err != nil {
		return nil, err
	}
	// A member that stands on the disk belongs to its cluster from the first word to its peers on, not only when it has found
	// the others again: a wiped node that took it for a fresh one would form another cluster.
	holds, err := control.HoldsMember(n.dir.EtcdDir())
	if err != nil {
		return nil, err
	}
	n.member.Store(holds || n.dir.Ident().Formed)
	ident := n.dir.Ident()
	in := &inner{n: n, stores: map[string]control.StoreRecord{}}
	if in.creds, err = peer.NewCredentials(secret, ident.StoreUUID); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(n.dir.TLSDir(), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of certificates: %w", err)
	}
	if err := in.creds.WriteTLSFiles(n.dir.TLSDir()); err != nil {
		return nil, err
	}
	in.mux, err = peer.NewMux(peer.MuxConfig{
		Listener: l, TLS: in.creds, Logger: n.logger, MostPending: waiting, Backlog: waiting,
	})
	if err != nil {
		return nil, err
	}
	in.transport, err = peer.New(peer.Config{
		Store: ident.StoreUUID, Boot: ident.Boots, TLS: in.creds, Logger: n.logger, Health: n.health,
		OnFrame: n.receiveFrame, OnMessage: n.receiveMessage,
		OnSuspect: func(store string) { n.suspect(store, true) },
		OnAlive:   func(store string) { n.suspect(store, false) },
	})
	if err != nil {
		return nil, err
	}
	in.mux.Handle(peer.ProtoFrames, in.transport.Serve)
	in.mux.Handle(peer.ProtoBulk, n.receiveBulk)
	in.client = in.creds.HTTPClient()
	in.ask = route.Asker{HTTP: in.client}
	in.path, in.calls = route.NewHandler(route.HandlerConfig{
		Self: ident.StoreUUID, Local: in.localOrNil, Member: n, Logger: n.logger,
		Suspects: func(store string) bool { return n.serving.Load() && n.router.Suspects(store) },
		Relayer:  n.relayer,
	})
	n.inner = in
	return in.mux.Public(), nil
}

func (in *inner) localOrNil() route.Local {
	if l := in.local.Load(); l != nil {
		return l
	}
	return nil
}

// relayer asks other nodes for a third one; nil while this one starts.
func (n *Node) relayer() route.Relayer {
	if n.serving.Load() && n.poller != nil {
		return n.poller
	}
	return nil
}

// serve answers the other nodes until ctx ends.
func (in *inner) serve(ctx context.Context) error {
	defer in.client.CloseIdleConnections()
	return serveHTTP(ctx, newServer(in, in.n.logger), in.mux.Cluster(), innerGrace)
}

// ServeHTTP tells the nodes' own calls from etcd's.
func (in *inner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, in.path) {
		in.calls.ServeHTTP(w, r)
		return
	}
	if handler := in.etcd.Load(); handler != nil {
		(*handler).ServeHTTP(w, r)
		return
	}
	http.Error(w, "no etcd member here yet", http.StatusServiceUnavailable)
}

// setStores says which other nodes there are.
func (in *inner) setStores(all []control.StoreRecord) {
	self := in.n.dir.Ident().StoreUUID
	stores, addrs := map[string]control.StoreRecord{}, map[string]string{}
	for _, s := range all {
		if s.UUID != self && s.State != control.StoreGone && s.Addr != "" {
			stores[s.UUID], addrs[s.UUID] = s, s.Addr
		}
	}
	in.mu.Lock()
	in.stores, in.all = stores, slices.Clone(all)
	in.mu.Unlock()
	in.transport.SetPeers(addrs)
}

// addr is where a store's node is reached.
func (in *inner) addr(store string) (addr string, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s, ok := in.stores[store]
	return s.Addr, ok
}

// known is what can be said of a store's node that does not answer.
func (in *inner) known(store string) *clusterv1.NodeStatus {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.stores[store]
	return &clusterv1.NodeStatus{Id: s.NodeID, Name: s.Name, Store: store, Address: s.Addr}
}

// name is that of a store's node, or the store if it is not known.
func (in *inner) name(store string) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, s := range in.all {
		if s.UUID == store {
			return s.Name
		}
	}
	return store
}

// records are all stores as last heard of, gone ones too.
func (in *inner) records() []control.StoreRecord {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.all
}

// others are the stores of the other nodes.
func (in *inner) others() (stores []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for store := range in.stores {
		stores = append(stores, store)
	}
	return stores
}

// hears waits for up to hearFor whether a store's node makes itself heard: one that was killed a moment ago does not.
func (in *inner) hears(ctx context.Context, store string) bool {
	asked := time.Now()
	for pause(ctx, hearEvery) == nil && time.Since(asked) < hearFor {
		for _, p := range in.transport.Peers() {
			if p.Store == store && p.LastHeard.After(asked.Add(hearEvery)) {
				return true
			}
		}
	}
	return false
}
