package node

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// maxPeers bounds the nodes named at a start.
const maxPeers = 15

// Peer is a node of the cluster as the operator names it.
type Peer struct {
	Name string
	// Addr is host:port of the node's one port.
	Addr string
}

// ParsePeers reads "n1=host:port,n2=host:port,…". Names and addresses must be different ones.
func ParsePeers(text string) ([]Peer, error) {
	var peers []Peer
	seen := map[string]bool{}
	for _, part := range strings.Split(text, ",") {
		name, addr, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not NAME=HOST:PORT", part)
		}
		if err := checkPeerAddr(addr); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if seen[name] || seen[addr] {
			return nil, fmt.Errorf("%q names a node or an address twice", part)
		}
		seen[name], seen[addr] = true, true
		peers = append(peers, Peer{Name: name, Addr: addr})
	}
	if len(peers) > maxPeers {
		return nil, fmt.Errorf("%d nodes are named, at most %d can be; let further ones join with --join", len(peers), maxPeers)
	}
	return peers, nil
}

// checkPeerAddr wants an address that others can dial.
func checkPeerAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port: %w", addr, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %q must be a number from 1 to 65535", port)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q names no host that the other nodes could reach", addr)
	}
	return nil
}

// peersHash is the same on nodes that were told the same peers in the same order.
func peersHash(peers []Peer) string {
	h := sha256.New()
	for _, p := range peers {
		fmt.Fprintf(h, "%s=%s,", p.Name, p.Addr)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
