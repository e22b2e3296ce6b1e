package node

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkVirtualClock advances a virtual clock by minutes over a thousand jobs of every minute, due at 60 instants of it:
// each instant is a step of its own.
func BenchmarkVirtualClock(b *testing.B) {
	n := runNode(b, b.TempDir(), func(c *Config) {
		def := DefaultConfig()
		c.VirtualClock, c.Shards, c.CacheBytes, c.MemTableBytes = march, def.Shards, def.CacheBytes, def.MemTableBytes
	})
	n.createMinutely(1000)
	b.ResetTimer()
	for range b.N {
		n.advance(time.Minute)
	}
}

// createMinutely creates jobs that fire every minute, at 60 instants of it.
func (n *running) createMinutely(jobs int) {
	n.t.Helper()
	items := make([]map[string]any, jobs)
	for i := range items {
		anchor := march.Add(time.Duration(i%60) * time.Second).Format(time.RFC3339)
		items[i] = map[string]any{"job": map[string]any{
			"id": fmt.Sprint("job-", i), "schedule": map[string]any{"every": map[string]any{"interval": "60s", "anchor": anchor}},
		}}
	}
	n.must("POST", "/v1/jobs:batchCreate", map[string]any{"items": items})
}

// Twenty thousand occurrences at 1,200 instants: each at its own time, without a sync for each, and in a time that is generous
// for what is to come to a million in a minute.
func TestVirtualClockPassesManyInstants(t *testing.T) {
	n := runVirtual(t, t.TempDir(), march)
	n.createMinutely(1000)
	n.must("POST", "/v1/jobs", map[string]any{"id": "exact", "startDeadline": "1s", "schedule": map[string]any{
		"every": map[string]any{"interval": "60s", "anchor": march.Add(7 * time.Second).Format(time.RFC3339)},
	}})
	syncs, began := n.metric("carillon_raft_syncs_total"), time.Now()
	if res := n.advance(20 * time.Minute); res["fired"] != "20020" {
		t.Errorf("answered %v", res)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if more := n.metric("carillon_raft_syncs_total") - syncs; more > 100 {
		t.Errorf("it waited for %v syncs", more)
	}
	executions := n.must("GET", "/v1/jobs/exact/history", nil)["executions"].([]any)
	if len(executions) != 20 {
		t.Errorf("%d executions; want 20", len(executions))
	}
	for _, e := range executions {
		e := e.(map[string]any)
		nominal, err := time.Parse(time.RFC3339, e["nominalTime"].(string))
		if err != nil {
			t.Fatal(err)
		}
		if e["finishTime"] != nominal.Add(time.Second).Format(time.RFC3339) {
			t.Errorf("that for %v expired at %v", e["nominalTime"], e["finishTime"])
		}
	}
}
