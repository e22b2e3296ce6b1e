package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// nextBinary is a build of the same program whose state machine knows one level more.
func nextBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carillon-next")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "carillon_next_level", "-o", path, "github.com/carillon-scheduler/carillon")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// levels are the lowest levels of the state machine on each node, as the metrics tell.
func (f *fleet) levels() string {
	f.t.Helper()
	var seen []string
	for _, s := range f.nodes {
		_, metrics := s.get("/metrics")
		for line := range strings.Lines(metrics) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "carillon_level "); ok {
				seen = append(seen, value)
			}
		}
	}
	slices.Sort(seen)
	return strings.Join(slices.Compact(seen), " ")
}

// Nodes are brought to the next version one after the other, under load. For as long as one is left behind, and for a moment
// longer, all work as before and any can go back; then all use what is new, and the old version is refused.
func TestARollingUpgrade(t *testing.T) {
	t.Parallel()
	next := nextBinary(t)
	const grace = 4 * time.Second
	f := startFleet(t, 3, "--shards", "4", "--raise-level-after", grace.String())
	d := f.drill(8)
	upgrade := func(s *server, to string) {
		if code := s.stop(); code != 0 {
			t.Fatalf("exit code %d\n%s", code, s.log)
		}
		s.binary = to
		s.start()
		d.awaitWhole(s, 30*time.Second)
	}
	upgrade(f.nodes[0], next)
	upgrade(f.nodes[1], next)
	pause(t, grace+time.Second)
	if got := f.levels(); got != "1" {
		t.Errorf("one node is behind, and shards are at levels %s", got)
	}
	upgrade(f.nodes[1], "") // it goes back
	upgrade(f.nodes[1], next)
	upgrade(f.nodes[2], next)
	await(t, 30*time.Second, "every shard is at level 2", func() bool { return f.levels() == "2" })
	d.gap("three nodes are upgraded one after the other", failoverLimit)

	behind := f.nodes[2]
	behind.kill()
	behind.binary = ""
	behind.launch()
	if code := behind.exitCode(); code == 0 || !strings.Contains(behind.log.String(), "level 2") {
		t.Errorf("the old version ended with code %d, must say that level 2 is needed\n%s", code, behind.log)
	}
	behind.binary = next
	behind.start()

	f.refusesToJoin(fmt.Sprintf("n%d", len(f.nodes)+1), "older than the cluster's")
	d.end()
}

// refusesToJoin starts a node with an empty disk and this version's binary, which the cluster must not take.
func (f *fleet) refusesToJoin(name, says string) {
	f.t.Helper()
	s := &server{t: f.t, dir: filepath.Join(f.t.TempDir(), name), addr: freeAddr(f.t), http: newHTTPClient()}
	s.args = []string{"--name", name, "--join", f.nodes[0].addr, "--cluster-secret-file", f.secret}
	f.t.Cleanup(s.kill)
	s.launch()
	if code := s.exitCode(); code == 0 || !strings.Contains(s.log.String(), says) {
		f.t.Errorf("it ended with code %d, must say %q\n%s", code, says, s.log)
	}
	if n := len(f.nodes[0].status().GetNodes()); n != len(f.nodes) {
		f.t.Errorf("the cluster has %d nodes, must have %d", n, len(f.nodes))
	}
}
