package node

import (
	"testing"
	"time"
)

// BenchmarkVerify verifies all shards of a store with 100,000 executions that nobody has claimed.
func BenchmarkVerify(b *testing.B) {
	n := runNode(b, b.TempDir(), func(c *Config) {
		def := DefaultConfig()
		c.VirtualClock, c.Shards, c.CacheBytes, c.MemTableBytes = march, def.Shards, def.CacheBytes, def.MemTableBytes
	})
	n.createMinutely(1000)
	for range 100 {
		n.advance(time.Minute)
	}
	b.ResetTimer()
	for range b.N {
		res := n.must("POST", "/v1/cluster/verify", map[string]any{})
		if res["result"] != "VERIFY_RESULT_OK" {
			b.Fatalf("verified: %v", res)
		}
	}
}
