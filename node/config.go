package node

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// Version is the build's version, set by the linker.
var Version = "dev"

// Config is everything a node can be told. DefaultConfig gives what the flags of `carillon serve` default to.
type Config struct {
	// DataDir holds everything the node keeps. It is locked while the node runs.
	DataDir string
	// Name is the node's name in the cluster.
	Name string
	// Listen is host:port of the API. Port 0 takes a free one; the address taken is written to DataDir/address.
	Listen string
	// Peers are the nodes that form the cluster, this one among them; the first start with an empty directory goes by them
	// (see docs/cluster.md). None: the node is a cluster of its own, or joins another one.
	Peers []Peer
	// Join are addresses of nodes of a cluster to join, for a node that is not among those that formed it; it is then reached
	// at Listen.
	Join []string
	// ClusterSecretFile holds what all nodes of a cluster know and nobody else. Required with Peers or Join.
	ClusterSecretFile string
	// Insecure allows a Listen address that is not loopback: there is no authentication yet.
	Insecure bool
	// CORSOrigins may call from browsers; none by default.
	CORSOrigins []string
	// Shards is the number of shards made at the first start, 1 to 1,024. Later starts keep what stands.
	Shards int
	// CacheBytes and MemTableBytes bound Pebble's memory; RowCacheBytes the cache of just-written rows.
	CacheBytes    int64
	MemTableBytes int64
	RowCacheBytes int64
	// MaxPayloadBytes bounds a payload, at most 1 MiB.
	MaxPayloadBytes int
	// MaxFiresPerDay bounds how often a recurring job may fire on its busiest day; 0: no bound.
	MaxFiresPerDay int
	// ClockStepLimit is the step of the wall clock that stops firing; ClockHold how long a lone node then waits for it to
	// be put right before it believes it.
	ClockStepLimit time.Duration
	ClockHold      time.Duration
	// VirtualClock, if it is set, is where the time of a development server begins: it stands still until AdvanceClock is
	// called, and goes on where the log ends if that is later. It is refused with Peers and Join. See docs/testing.md.
	VirtualClock time.Time
	// VerifyEvery is how often each shard that the node leads is verified unasked; 0: never.
	VerifyEvery time.Duration
	// RaiseLevelAfter is for how long every node's binary must have supported a higher level of the state machine until it
	// is used. Up to then a node can be set back to the binary before.
	RaiseLevelAfter time.Duration
	// ShutdownTimeout bounds the graceful part of a stop.
	ShutdownTimeout time.Duration
	// EtcdSocket is the path of a unix socket to serve the embedded etcd at, for operators and drills; empty: none.
	EtcdSocket string
	Logger     *slog.Logger
}

// DefaultConfig is a node for one machine.
func DefaultConfig() Config {
	return Config{
		DataDir:         "carillon-data",
		Name:            "n1",
		Listen:          "127.0.0.1:7070",
		Shards:          16,
		CacheBytes:      128 << 20,
		MemTableBytes:   48 << 20,
		RowCacheBytes:   64 << 20,
		MaxPayloadBytes: 256 << 10,
		ClockStepLimit:  500 * time.Millisecond,
		ClockHold:       time.Minute,
		VerifyEvery:     time.Hour,
		RaiseLevelAfter: time.Minute,
		ShutdownTimeout: 15 * time.Second,
	}
}

// Validate names the field that is wrong.
func (c *Config) Validate() error {
	if c.Logger == nil {
		return fmt.Errorf("logger: must be set")
	}
	if c.DataDir == "" {
		return fmt.Errorf("data: must name a directory")
	}
	if c.Name == "" || len(c.Name) > 64 {
		return fmt.Errorf("name: must have 1 to 64 characters")
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %q is not host:port: %w", c.Listen, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("listen: port %q must be a number from 0 to 65535", port)
	}
	if !c.Insecure && !isLoopback(host) {
		return fmt.Errorf("listen: %q is reachable from other machines and there is no authentication yet; "+
			"listen on 127.0.0.1, or add --insecure if the network is trusted", c.Listen)
	}
	if err := c.validateCluster(host, port); err != nil {
		return err
	}
	if err := c.validateVirtualClock(); err != nil {
		return err
	}
	if c.Shards < 1 || c.Shards > 1024 {
		return fmt.Errorf("shards: %d is not from 1 to 1024", c.Shards)
	}
	for _, f := range []struct {
		name     string
		value    int64
		min, max int64
	}{
		{"cache-bytes", c.CacheBytes, 1 << 20, 1 << 40},
		{"memtable-bytes", c.MemTableBytes, 1 << 20, 1 << 30},
		{"row-cache-bytes", c.RowCacheBytes, 1 << 20, 1 << 36},
		{"max-payload-bytes", int64(c.MaxPayloadBytes), 1, 1 << 20},
		{"max-fires-per-day", int64(c.MaxFiresPerDay), 0, 86_400},
		{"clock-step-limit", int64(c.ClockStepLimit), int64(10 * time.Millisecond), int64(time.Hour)},
		{"clock-hold", int64(c.ClockHold), 0, int64(24 * time.Hour)},
		{"verify-every", int64(c.VerifyEvery), 0, int64(366 * 24 * time.Hour)},
		{"raise-level-after", int64(c.RaiseLevelAfter), int64(time.Second), int64(366 * 24 * time.Hour)},
		{"shutdown-timeout", int64(c.ShutdownTimeout), int64(time.Second), int64(time.Hour)},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s: %d is not from %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	return nil
}

// clustered says that the node is to be one of several.
func (c *Config) clustered() bool { return len(c.Peers) > 0 || len(c.Join) > 0 }

// clusterAddr is where the other nodes reach this one.
func (c *Config) clusterAddr() string {
	for _, p := range c.Peers {
		if p.Name == c.Name {
			return p.Addr
		}
	}
	return c.Listen
}

// validateCluster checks what concerns several nodes, of one that listens at host:port.
func (c *Config) validateCluster(host, port string) error {
	switch {
	case !c.clustered() && c.ClusterSecretFile != "":
		return fmt.Errorf("cluster-secret-file: is for nodes of a cluster; name them with --peers, or one of them with --join")
	case !c.clustered():
		return nil
	case len(c.Peers) > 0 && len(c.Join) > 0:
		return fmt.Errorf("join: is for a node that is not among --peers")
	case c.ClusterSecretFile == "":
		return fmt.Errorf("cluster-secret-file: must name a file that all nodes have, with a secret of at least 16 characters; " +
			"to make one: (umask 077; openssl rand -hex 32 > cluster-secret)")
	case strings.ContainsAny(c.Name, ",= \t"):
		return fmt.Errorf("name: %q must be without commas, equal signs and spaces", c.Name)
	case len(c.Peers) == 1 || len(c.Peers) == 2:
		return fmt.Errorf("peers: %d are named; a cluster that loses a node and goes on needs at least three", len(c.Peers))
	}
	for _, addr := range c.Join {
		if err := checkPeerAddr(addr); err != nil {
			return fmt.Errorf("join: %w", err)
		}
	}
	if len(c.Join) > 0 {
		if err := checkPeerAddr(net.JoinHostPort(host, port)); err != nil {
			return fmt.Errorf("listen: the cluster has to reach this node there: %w", err)
		}
		return checkReach(host, "join", c.Join[0])
	}
	for _, p := range c.Peers {
		if p.Name != c.Name {
			continue
		}
		if _, peerPort, err := net.SplitHostPort(p.Addr); err != nil || peerPort != port {
			return fmt.Errorf("listen: port %s is not that of %s in --peers, %s", port, p.Name, p.Addr)
		}
		return checkReach(host, "peers", p.Addr)
	}
	return fmt.Errorf("name: %q is not among --peers", c.Name)
}

// validateVirtualClock checks where a virtual clock begins, if there is to be one.
func (c *Config) validateVirtualClock() error {
	switch {
	case c.VirtualClock.IsZero():
		return nil
	case c.clustered():
		return fmt.Errorf("virtual-clock: is for a development server that is alone; the nodes of a cluster, by --peers or --join, " +
			"keep the time of their machines")
	case c.VirtualClock.UnixMilli() < 1 || c.VirtualClock.After(lastInstant):
		return fmt.Errorf("virtual-clock: %s is not from 1970 to 9999", c.VirtualClock.UTC().Format(time.RFC3339))
	}
	return nil
}

// checkReach refuses a node that listens where only its own machine reaches it, in a cluster that is elsewhere by a flag's
// address.
func checkReach(host, flag, addr string) error {
	if elsewhere, _, err := net.SplitHostPort(addr); err != nil || !isLoopback(host) || isLoopback(elsewhere) {
		return nil
	}
	return fmt.Errorf("listen: only this machine reaches %s, and by --%s the nodes are reached at %s and the like; "+
		"listen where the other nodes reach this one", host, flag, addr)
}

// isLoopback is true of addresses that only this machine reaches; a name other than localhost is not resolved.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
