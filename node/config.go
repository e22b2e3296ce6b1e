package node

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"
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
	// ClockStepLimit is the step of the wall clock that stops firing; ClockHold how long a lone node then waits for it to
	// be put right before it believes it.
	ClockStepLimit time.Duration
	ClockHold      time.Duration
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
		{"clock-step-limit", int64(c.ClockStepLimit), int64(10 * time.Millisecond), int64(time.Hour)},
		{"clock-hold", int64(c.ClockHold), 0, int64(24 * time.Hour)},
		{"shutdown-timeout", int64(c.ShutdownTimeout), int64(time.Second), int64(time.Hour)},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s: %d is not from %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	return nil
}

// isLoopback is true of addresses that only this machine reaches; a name other than localhost is not resolved.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
