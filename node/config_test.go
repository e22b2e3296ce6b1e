package node

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// clustered is a valid first of three nodes, changed.
func clustered(change func(*Config)) func(*Config) {
	return func(c *Config) {
		c.Peers = []Peer{{"n1", "127.0.0.1:7070"}, {"n2", "127.0.0.1:7071"}, {"n3", "127.0.0.1:7072"}}
		c.ClusterSecretFile = "secret"
		if change != nil {
			change(c)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string // "" is valid
	}{
		{"defaults", func(*Config) {}, ""},
		{"no data dir", func(c *Config) { c.DataDir = "" }, "data:"},
		{"no port", func(c *Config) { c.Listen = "localhost" }, "listen:"},
		{"port too large", func(c *Config) { c.Listen = "127.0.0.1:65536" }, "listen:"},
		{"largest port", func(c *Config) { c.Listen = "127.0.0.1:65535" }, ""},
		{"all interfaces", func(c *Config) { c.Listen = ":7070" }, "--insecure"},
		{"all interfaces, insecure", func(c *Config) { c.Listen, c.Insecure = ":7070", true }, ""},
		{"IPv6 loopback", func(c *Config) { c.Listen = "[::1]:0" }, ""},
		{"a name", func(c *Config) { c.Listen = "db.example:7070" }, "--insecure"},
		{"no shards", func(c *Config) { c.Shards = 0 }, "shards:"},
		{"most shards", func(c *Config) { c.Shards = 1024 }, ""},
		{"too many shards", func(c *Config) { c.Shards = 1025 }, "shards:"},
		{"fires per day", func(c *Config) { c.MaxFiresPerDay = -1 }, "max-fires-per-day:"},
		{"payload limit", func(c *Config) { c.MaxPayloadBytes = 1<<20 + 1 }, "max-payload-bytes:"},
		{"three peers", clustered(nil), ""},
		{"no secret", clustered(func(c *Config) { c.ClusterSecretFile = "" }), "cluster-secret-file: must name a file"},
		{"a secret for nobody", func(c *Config) { c.ClusterSecretFile = "f" }, "cluster-secret-file: is for nodes of a cluster"},
		{"two peers", clustered(func(c *Config) { c.Peers = c.Peers[:2] }), "at least three"},
		{"not among the peers", clustered(func(c *Config) { c.Name = "n9" }), "not among --peers"},
		{"another port", clustered(func(c *Config) { c.Listen = "127.0.0.1:7071" }), "port 7071 is not that of n1"},
		{"peers and join", clustered(func(c *Config) { c.Join = []string{"h:1"} }), "join:"},
		{"peers elsewhere", clustered(func(c *Config) { c.Peers[0].Addr = "10.0.0.1:7070" }), "listen: only this machine reaches 127.0.0.1"},
		{"peers by name", clustered(func(c *Config) { c.Peers[0].Addr, c.Listen, c.Insecure = "db1:7070", ":7070", true }), ""},
		{"peers on this machine", clustered(func(c *Config) { c.Peers[0].Addr, c.Listen = "localhost:7070", "[::1]:7070" }), ""},
		{"join", clustered(func(c *Config) { c.Peers, c.Join = nil, []string{"127.0.0.1:1"} }), ""},
		{"join elsewhere", clustered(func(c *Config) { c.Peers, c.Join = nil, []string{"h:1"} }), "listen: only this machine reaches 127.0.0.1"},
		{"join nobody", clustered(func(c *Config) { c.Peers, c.Join = nil, []string{"h"} }), "join:"},
		{"join and listen anywhere", clustered(func(c *Config) {
			c.Peers, c.Join, c.Listen, c.Insecure = nil, []string{"h:1"}, ":7070", true
		}), "the cluster has to reach this node there"},
		{"a virtual clock", func(c *Config) { c.VirtualClock = time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC) }, ""},
		{"a virtual clock before 1970", func(c *Config) { c.VirtualClock = time.Unix(0, 0) }, "virtual-clock: 1970-01-01T00:00:00Z is not from 1970"},
		{"a virtual clock after 9999", func(c *Config) { c.VirtualClock = lastInstant.Add(time.Second) }, "virtual-clock:"},
		{"a virtual clock among peers", clustered(func(c *Config) { c.VirtualClock = lastInstant }), "virtual-clock: is for a development server that is alone"},
		{"a virtual clock that joins", clustered(func(c *Config) {
			c.Peers, c.Join, c.VirtualClock = nil, []string{"127.0.0.1:1"}, lastInstant
		}), "virtual-clock: is for a development server that is alone"},
		{"hold", func(c *Config) { c.ClockHold = 25 * time.Hour }, "clock-hold:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := DefaultConfig()
			c.Logger = slog.New(slog.DiscardHandler)
			tc.change(&c)
			err := c.Validate()
			if tc.want == "" && err != nil {
				t.Fatalf("refused: %v", err)
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}
