package node

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

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
		{"payload limit", func(c *Config) { c.MaxPayloadBytes = 1<<20 + 1 }, "max-payload-bytes:"},
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
