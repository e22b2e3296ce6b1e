package node

import (
	"fmt"
	"slices"
	"strings"
)

// The start gate: what a node with an empty directory may do. See docs/cluster.md; started carelessly, one wiped disk and one
// slow restart lose acknowledged writes.

// probe is what a peer says of itself.
type probe struct {
	// ClusterID is empty if the peer is fresh: it belongs to no cluster.
	ClusterID string
	Name      string
	StoreUUID string
	PeersHash string
}

// answer is a peer's answer to a probe; Err if there was none.
type answer struct {
	Peer  Peer
	Probe probe
	Err   error
}

// verdict is what the gate says: exactly one of Form, Join and Wait is set, or Refuse.
type verdict struct {
	// Form: make a new cluster.
	Form bool
	// Join the cluster of these peers, which are its members.
	Join []Peer
	// Wait for these reasons to go away.
	Wait []string
	// Refuse to start, with what the operator has to do.
	Refuse error
}

// decide is the gate's rule for a node with an empty directory, named self, that was told peers, from the answers of all
// of them but itself.
func decide(self string, peers []Peer, answers []answer) verdict {
	var v verdict
	clusters := map[string][]string{}
	hash := peersHash(peers)
	for _, a := range answers {
		switch {
		case a.Err != nil:
			v.Wait = append(v.Wait, fmt.Sprintf("%s at %s does not answer: %v", a.Peer.Name, a.Peer.Addr, a.Err))
		case a.Probe.Name != a.Peer.Name:
			return verdict{Refuse: fmt.Errorf("peers: the node at %s is %q, not %q; correct --peers", a.Peer.Addr, a.Probe.Name, a.Peer.Name)}
		case a.Probe.ClusterID != "":
			clusters[a.Probe.ClusterID] = append(clusters[a.Probe.ClusterID], a.Peer.Name)
			v.Join = append(v.Join, a.Peer)
		case a.Probe.PeersHash != hash:
			v.Wait = append(v.Wait, fmt.Sprintf("%s at %s was started with other --peers", a.Peer.Name, a.Peer.Addr))
		}
	}
	switch {
	case len(clusters) > 1:
		return verdict{Refuse: fmt.Errorf("peers: they belong to different clusters: %s; correct --peers", describe(clusters))}
	case len(clusters) == 1:
		return verdict{Join: v.Join}
	case len(v.Wait) > 0:
		return v
	case len(peers) > 0 && peers[0].Name != self:
		return verdict{Wait: []string{fmt.Sprintf("%s, the first of --peers, to form the cluster", peers[0].Name)}}
	}
	return verdict{Form: true}
}

func describe(clusters map[string][]string) string {
	var parts []string
	for id, names := range clusters {
		slices.Sort(names)
		parts = append(parts, fmt.Sprintf("%s is %s", strings.Join(names, " and "), id))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
