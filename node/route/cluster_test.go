package route

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// cluster is several nodes with fake hosts and dispatchers that call each other over real HTTP.
type cluster struct {
	t  *testing.T
	mu sync.Mutex
	// leaders by shard, as every router believes; who really leads stands in the nodes.
	leaders map[uint32]string
	nodes   map[string]*node
}

// node is one node of it.
type node struct {
	store  string
	c      *cluster
	router *Router
	poller *Poller
	server *httptest.Server

	mu sync.Mutex
	// leads are the shards that it leads.
	leads map[uint32]bool
	// hint is what it says of a shard that it does not lead.
	hint string
	// propose, if set, answers in its place.
	propose func(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome
	// calls are the commands that came, by call.
	calls [][]rpc.ShardCommand
	// dropAnswers makes the server cut the connection instead of answering.
	dropAnswers bool
	work        *work
	// local, if set, takes the node's place.
	local Local
}

func (n *node) current() Local {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.local != nil {
		return n.local
	}
	return n
}

func newCluster(t *testing.T, stores ...string) *cluster {
	c := &cluster{t: t, leaders: map[uint32]string{}, nodes: map[string]*node{}}
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	for _, store := range stores {
		n := &node{store: store, c: c, leads: map[uint32]bool{}}
		n.work = newWork(n)
		_, handler := NewHandler(HandlerConfig{
			Self: store, Local: n.current, Member: member{n}, Suspects: func(store string) bool { return n.router.Suspects(store) },
			Relayer: func() Relayer { return n.poller },
		})
		n.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.mu.Lock()
			drop := n.dropAnswers
			n.mu.Unlock()
			if drop {
				handler.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			handler.ServeHTTP(w, r)
		}))
		t.Cleanup(n.server.Close)
		n.router = New(Config{
			Self: store, Local: n, Dial: c.dial, HTTP: &http.Client{Transport: transport}, Scheme: "http", Leader: c.leader,
		})
		c.nodes[store] = n
	}
	return c
}

func (c *cluster) dial(store string) (string, bool) {
	n, ok := c.nodes[store]
	if !ok {
		return "", false
	}
	return n.server.Listener.Addr().String(), true
}

func (c *cluster) leader(shard uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaders[shard]
}

// lead makes store lead the shard, and all know it.
func (c *cluster) lead(shard uint32, store string) {
	c.believe(shard, store)
	for _, n := range c.nodes {
		n.mu.Lock()
		n.leads[shard] = n.store == store
		n.mu.Unlock()
	}
}

// believe makes the routers think that store leads the shard.
func (c *cluster) believe(shard uint32, store string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaders[shard] = store
}

// Propose answers with the request's id where the node leads.
func (n *node) Propose(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome {
	n.mu.Lock()
	n.calls = append(n.calls, cmds)
	propose := n.propose
	n.mu.Unlock()
	if propose != nil {
		return propose(ctx, cmds)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]rpc.Outcome, len(cmds))
	for i, c := range cmds {
		if !n.leads[c.Shard] {
			out[i].Err = &replica.NotLeaderError{Shard: c.Shard, Term: 3, Store: n.hint}
			continue
		}
		out[i].Result = fsm.Result{ExecutionID: n.store + "/" + c.Command.RequestId, Items: []fsm.Item{{FirstMS: int64(i)}}}
	}
	return out
}

func (n *node) Poll(ctx context.Context, req dispatch.PollRequest) ([]*storagev1.Execution, error) {
	return n.work.poll(ctx, req)
}

func (n *node) Held(claimID string) ([]*storagev1.Execution, error) { return n.work.held(claimID), nil }

func (n *node) Release(leases []*storagev1.Execution) { n.work.release(leases) }

// called is how many calls came, and how many commands they had.
func (n *node) called() (calls, commands int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.calls {
		commands += len(c)
	}
	return len(n.calls), commands
}

type member struct{ n *node }

func (m member) Probe(context.Context, *clusterv1.ProbeRequest) (*clusterv1.ProbeResponse, error) {
	return &clusterv1.ProbeResponse{StoreUuid: m.n.store}, nil
}

func (m member) Join(_ context.Context, req *clusterv1.JoinRequest) (*clusterv1.JoinResponse, error) {
	return &clusterv1.JoinResponse{ClusterId: "c", InitialCluster: req.Name}, nil
}

func (m member) NodeStatus(context.Context, *clusterv1.NodeStatusRequest) (*clusterv1.NodeStatusResponse, error) {
	return &clusterv1.NodeStatusResponse{Node: &clusterv1.NodeStatus{Store: m.n.store}}, nil
}

func (m member) Verification(_ context.Context, req *clusterv1.VerificationRequest) (*clusterv1.VerificationResponse, error) {
	return &clusterv1.VerificationResponse{Digest: uint64(req.Shard), Reason: req.Id}, nil
}

func (m member) Transfer(_ context.Context, req *clusterv1.TransferRequest) (*clusterv1.TransferResponse, error) {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	res := &clusterv1.TransferResponse{}
	for _, h := range req.Handovers {
		reason := "it does not lead"
		if m.n.leads[h.Shard] {
			reason = ""
		}
		res.Reasons = append(res.Reasons, reason)
	}
	return res, nil
}

// commands makes n commands for each of the shards.
func commands(n int, shards ...uint32) (cmds []rpc.ShardCommand) {
	for i := range n {
		for _, shard := range shards {
			cmds = append(cmds, rpc.ShardCommand{Shard: shard, Command: &storagev1.Command{
				RequestId: fmt.Sprintf("%d-%d", shard, i), TraceId: "trace",
				TriggerJob: &storagev1.TriggerJob{Tenant: "t", JobId: fmt.Sprint("job", i), Discriminator: "d"},
			}})
		}
	}
	return cmds
}

// withPollers gives every node a poller, which knows who leads; shard n is led by the nth store.
func (c *cluster) withPollers(stores ...string) {
	for i, store := range stores {
		c.lead(uint32(i+1), store)
	}
	for _, n := range c.nodes {
		n.poller = NewPoller(n.router, PollerConfig{
			Leaders: func() []string { return stores }, ShardOf: shardOf,
			Stores: func() []string {
				return slices.DeleteFunc(slices.Clone(stores), func(s string) bool { return s == n.store })
			},
		})
		n.router.disturbed.Store(0)
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan error, 1)
		go func() { stopped <- n.poller.Run(ctx) }()
		c.t.Cleanup(func() {
			cancel()
			<-stopped
		})
	}
}

type unreachableTransport struct{}

func (unreachableTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, timeoutError{}
}

// restoreAfterThis lets the next call's answer through, after the one under way was dropped.
func (n *node) restoreAfterThis() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropAnswers = false
}

func newBody(data []byte) io.Reader { return bytes.NewReader(data) }

// brokenWriter is the connection of a caller that is gone.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Write([]byte) (int, error) { return 0, net.ErrClosed }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
