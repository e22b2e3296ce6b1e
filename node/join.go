package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"golang.org/x/sync/errgroup"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

const (
	// probeEvery is how often a node that cannot start yet asks its peers, probeTimeout how long each may take.
	probeEvery   = 500 * time.Millisecond
	probeTimeout = 2 * time.Second
	// joinTimeout bounds one request to be admitted: etcd may have to settle.
	joinTimeout = 15 * time.Second
	// waitLogEvery is how often a node that waits says so.
	waitLogEvery = 10 * time.Second
)

// admission is how the node gets its member of etcd: as the first one, or as a joiner.
type admission struct {
	// form: the node makes a new cluster.
	form bool
	// clusterID and initialCluster are what a member of the cluster has told; without the latter the node runs without a
	// member of its own, and reaches those at the URLs members.
	clusterID, initialCluster string
	members                   []string
}

// passGate asks the peers until the node may start with its empty directory; see decide. It ends with ctx.
func (n *Node) passGate(ctx context.Context) (admission, error) {
	told := time.Time{}
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		v := n.askPeers(ctx)
		reasons := v.Wait
		switch {
		case v.Refuse != nil:
			return admission{}, v.Refuse
		case v.Form:
			return admission{form: true}, nil
		case len(v.Join) > 0:
			joined, err := n.askToJoin(ctx, v.Join)
			if err == nil {
				return joined, nil
			}
			var refused *joinRefused
			if errors.As(err, &refused) {
				return admission{}, err
			}
			reasons = []string{err.Error()}
		}
		if text := strings.Join(reasons, "; "); ctx.Err() == nil {
			n.web.waitFor(text)
			if time.Since(told) > waitLogEvery {
				n.logger.Info("waiting to join or form the cluster", "for", text)
				told = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return admission{}, ctx.Err()
		case <-tick.C:
		}
	}
}

// askPeers probes all peers at once and decides by what they answer. With --join whoever answers is a member, or waits too.
func (n *Node) askPeers(ctx context.Context) verdict {
	peers := slices.DeleteFunc(slices.Clone(n.cfg.Peers), func(p Peer) bool { return p.Name == n.cfg.Name })
	if len(n.cfg.Join) > 0 {
		peers = n.toJoin()
	}
	answers := make([]answer, len(peers))
	group := new(errgroup.Group)
	for i, p := range peers {
		group.Go(func() error {
			answers[i] = n.askPeer(ctx, p)
			return nil
		})
	}
	_ = group.Wait() // an error is an answer
	if len(n.cfg.Join) > 0 {
		return decideJoin(answers)
	}
	return decide(n.cfg.Name, n.cfg.Peers, answers)
}

// toJoin are the nodes that the operator named, and those that this store has known: the named ones may be gone by now.
func (n *Node) toJoin() (peers []Peer) {
	addrs := slices.Clone(n.cfg.Join)
	for _, s := range n.known {
		addrs = append(addrs, s.Addr)
	}
	slices.Sort(addrs)
	for _, addr := range slices.Compact(addrs) {
		if addr != n.cfg.clusterAddr() {
			peers = append(peers, Peer{Addr: addr})
		}
	}
	return peers
}

func (n *Node) askPeer(ctx context.Context, p Peer) answer {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	res, err := n.inner.ask.Probe(ctx, p.Addr, &clusterv1.ProbeRequest{
		Name: n.cfg.Name, StoreUuid: n.dir.Ident().StoreUUID, PeersHash: peersHash(n.cfg.Peers),
	})
	if err != nil {
		return answer{Peer: p, Err: err}
	}
	return answer{Peer: p, Probe: probe{
		ClusterID: res.GetClusterId(), Name: res.GetName(), StoreUUID: res.GetStoreUuid(), PeersHash: res.GetPeersHash(),
	}}
}

// decideJoin is the gate for a node that was told whom to join: it never forms a cluster.
func decideJoin(answers []answer) verdict {
	var v verdict
	for _, a := range answers {
		switch {
		case a.Err != nil:
			v.Wait = append(v.Wait, fmt.Sprintf("%s does not answer: %v", a.Peer.Addr, a.Err))
		case a.Probe.ClusterID == "":
			v.Wait = append(v.Wait, a.Peer.Addr+" is in no cluster yet")
		default:
			v.Join = append(v.Join, a.Peer)
		}
	}
	if len(v.Join) > 0 {
		v.Wait = nil
	}
	return v
}

// joinRefused is a no that asking again does not change.
type joinRefused struct{ reason string }

func (e *joinRefused) Error() string { return "join cluster: " + e.reason }

// askToJoin asks one member after the other to admit the node.
func (n *Node) askToJoin(ctx context.Context, members []Peer) (admission, error) {
	var errs []error
	for _, p := range members {
		joined, err := n.askOneToJoin(ctx, p)
		if err == nil {
			return joined, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.Addr, err))
	}
	return admission{}, errors.Join(errs...)
}

func (n *Node) askOneToJoin(ctx context.Context, p Peer) (admission, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	res, err := n.inner.ask.Join(ctx, p.Addr, &clusterv1.JoinRequest{
		Name: n.cfg.Name, StoreUuid: n.dir.Ident().StoreUUID, Address: n.cfg.clusterAddr(),
	})
	switch {
	case err != nil:
		return admission{}, err
	case res.GetBusy():
		return admission{}, errors.New(res.GetReason())
	case res.GetReason() != "":
		return admission{}, &joinRefused{res.GetReason()}
	}
	admitted := admission{clusterID: res.GetClusterId(), initialCluster: res.GetInitialCluster()}
	for _, m := range res.GetMembers() {
		admitted.members = append(admitted.members, m.GetPeerUrl())
	}
	return admitted, nil
}

// Probe answers who the node is. It is served from the start on.
func (n *Node) Probe(context.Context, *clusterv1.ProbeRequest) (*clusterv1.ProbeResponse, error) {
	ident := n.dir.Ident()
	res := &clusterv1.ProbeResponse{
		Name: n.cfg.Name, StoreUuid: ident.StoreUUID, PeersHash: peersHash(n.cfg.Peers), Formed: ident.Formed,
		Boot: ident.Boots, Version: Version, Address: n.cfg.clusterAddr(),
	}
	if n.member.Load() {
		res.ClusterId = ident.ClusterID
	}
	return res, nil
}

// Join admits another node, or says why not. A node that bears the name of one that lives is refused: the start of a second
// process must not evict a healthy one.
func (n *Node) Join(ctx context.Context, req *clusterv1.JoinRequest) (*clusterv1.JoinResponse, error) {
	busy := func(reason string) (*clusterv1.JoinResponse, error) {
		return &clusterv1.JoinResponse{Busy: true, RetryAfterMs: probeEvery.Milliseconds(), Reason: reason}, nil
	}
	if !n.registered.Load() {
		return busy("the node asked is starting itself")
	}
	stores, err := n.plane.Stores(ctx)
	if err != nil {
		return busy(err.Error())
	}
	var living []string
	for _, s := range stores {
		if s.UUID == req.GetStoreUuid() && s.State == control.StoreGone {
			return &clusterv1.JoinResponse{Reason: "its store was declared gone; start it with an empty data directory"}, nil
		}
		if s.Live && s.UUID != req.GetStoreUuid() {
			living = append(living, control.MemberName(s.Name, s.UUID))
		}
		if s.UUID == req.GetStoreUuid() || s.State == control.StoreGone || s.Name != req.GetName() && s.Addr != req.GetAddress() {
			continue
		}
		heard := n.inner.hears(ctx, s.UUID) || n.heardByOthers(ctx, s.UUID)
		switch {
		case s.UUID == n.dir.Ident().StoreUUID:
			return &clusterv1.JoinResponse{Reason: fmt.Sprintf("%s at %s is this node, and it lives", s.Name, s.Addr)}, nil
		case s.Live && heard:
			return &clusterv1.JoinResponse{Reason: fmt.Sprintf("%s at %s lives: two nodes of one name or address cannot be; "+
				"end that process first, or give this one another --name and address", s.Name, s.Addr)}, nil
		case s.Live || heard:
			return busy(fmt.Sprintf("%s at %s was alive a moment ago", s.Name, s.Addr))
		}
	}
	etcd := n.etcd.Load()
	if etcd == nil {
		return n.passOn(ctx, req)
	}
	admitted, err := etcd.Admit(ctx, control.Joiner{
		Name: req.GetName(), StoreUUID: req.GetStoreUuid(), PeerURL: peerURL(req.GetAddress()), Living: living,
	})
	switch {
	case errors.Is(err, control.ErrBusy), errors.Is(err, control.ErrUnavailable):
		return busy(err.Error())
	case err != nil:
		return &clusterv1.JoinResponse{Reason: err.Error()}, nil
	}
	res := &clusterv1.JoinResponse{ClusterId: admitted.ClusterID, InitialCluster: admitted.InitialCluster}
	for _, m := range admitted.Members {
		res.Members = append(res.Members, &clusterv1.Member{Id: m.ID, Name: m.Name, PeerUrl: m.PeerURL, Learner: m.Learner})
	}
	return res, nil
}

// heardByOthers asks the other nodes whether they hear a store's: the link to this one may be all that is cut.
func (n *Node) heardByOthers(ctx context.Context, store string) bool {
	if !n.serving.Load() {
		return false
	}
	for _, status := range n.askStatus(ctx, &clusterv1.NodeStatusRequest{}) {
		for _, p := range status.GetPeers() {
			if p.GetStore() == store && p.GetConnected() && p.GetSilentMs() < silentAfter.Milliseconds() {
				return true
			}
		}
	}
	return false
}

// passOn has a node with a member admit another node: this one has none.
func (n *Node) passOn(ctx context.Context, req *clusterv1.JoinRequest) (*clusterv1.JoinResponse, error) {
	members, err := n.remote.Members(ctx)
	if err == nil && req.GetPassedOn() {
		err = errors.New("the node asked has no member of the control plane")
	}
	if err != nil {
		return &clusterv1.JoinResponse{Busy: true, RetryAfterMs: probeEvery.Milliseconds(), Reason: err.Error()}, nil
	}
	req.PassedOn = true
	for _, p := range peersOf(members) {
		res, askErr := n.inner.ask.Join(ctx, p.Addr, req)
		if askErr == nil {
			return res, nil
		}
		err = errors.Join(err, askErr)
	}
	return nil, err
}

const peerScheme = "https://"

func peerURL(addr string) string { return peerScheme + addr }
