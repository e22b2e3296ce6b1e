package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// operate runs a command of the cluster against a node and returns what it prints and its exit code.
func (s *server) operate(args ...string) (output string, code int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), binary, append(append([]string{"cluster"}, args...), "--addr", s.addr)...)
	var out, progress bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &progress
	var failed *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
		s.t.Fatal(err)
	}
	code = cmd.ProcessState.ExitCode()
	s.t.Logf("carillon cluster %s: exit %d\n%s%s", strings.Join(args, " "), code, out.String(), progress.String())
	if code != 0 {
		return progress.String(), code
	}
	return out.String(), code
}

// mustOperate is operate for what has to succeed and to say something.
func (s *server) mustOperate(says string, args ...string) {
	s.t.Helper()
	if out, code := s.operate(args...); code != 0 || !strings.Contains(out, says) {
		status, _ := json.MarshalIndent(s.status().GetShards(), "", " ")
		s.t.Fatalf("cluster %v: exit code %d, must say %q:\n%s\n%s\n%s", args, code, says, out, status, s.log)
	}
}

// mustRefuse is operate for what the state forbids.
func (s *server) mustRefuse(says string, args ...string) {
	s.t.Helper()
	if out, code := s.operate(args...); code != 6 || !strings.Contains(out, says) {
		s.t.Errorf("cluster %v: exit code %d, must be refused because %q:\n%s", args, code, says, out)
	}
}

// nodeOf is a node as the status shows it.
func nodeOf(c *carillonv1.GetClusterResponse, name string) *carillonv1.Node {
	for _, n := range c.GetNodes() {
		if n.GetName() == name {
			return n
		}
	}
	return nil
}

// leads counts the shards that a node leads.
func leads(c *carillonv1.GetClusterResponse, name string) (n int) {
	for _, s := range c.GetShards() {
		if s.GetLeader() == name {
			n++
		}
	}
	return n
}

// Leaderships go where operators want them, whichever node is asked, while work falls due; a node that is drained leads nothing
// until that is ended, and keeps its replicas where the others have no room.
func TestOperatorsMoveLeaderships(t *testing.T) {
	t.Parallel()
	const shards = 8
	f := startFleet(t, 3, "--shards", fmt.Sprint(shards))
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	k := f.tick(8)
	asked := f.nodes[2]
	led := f.leaderOf(asked, 3)
	to := f.nodes[(slices.Index(f.nodes, led)+1)%3]
	name := f.name(to)
	out, code := asked.operate("transfer", "--shard", "3", "--to", name, "-o", "json")
	var answer struct {
		Transfers []struct {
			Shard    int
			From, To string
			Done     bool
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || code != 0 || len(answer.Transfers) != 1 || !answer.Transfers[0].Done {
		t.Errorf("exit code %d, %v", code, err)
	}
	if now := f.leaderOf(asked, 3); now != to {
		t.Errorf("shard 3 is led by %s, not by %s", now.addr, name)
	}
	if out, code := asked.operate("transfer", "--shard", "99", "--to", "n1"); code != 3 {
		t.Errorf("a shard that is not there: exit code %d\n%s", code, out)
	}

	leader := f.leaderOf(asked, 5)
	from, next := f.name(leader), f.name(f.nodes[(slices.Index(f.nodes, leader)+1)%3])
	asked.mustOperate(next, "transfer", "--from", from, "--to", next)
	if n := leads(asked.status(), from); n > 2 { // balance may have begun to even out
		t.Errorf("%s still leads %d shards", from, n)
	}

	f.nodes[1].mustOperate(fmt.Sprintf("%d replicas stay", shards), "drain", "n1")
	status := asked.status()
	if n := nodeOf(status, "n1"); n.GetState() != carillonv1.StoreState_STORE_STATE_DRAINING || leads(status, "n1") != 0 || n.GetReplicas() != shards {
		t.Errorf("drained: %v", n)
	}
	pause(t, 3*time.Second) // leaderships are balanced every second meanwhile
	if n := leads(asked.status(), "n1"); n != 0 {
		t.Errorf("n1 is drained and leads %d shards", n)
	}
	f.oneController()
	asked.mustRefuse("lives", "remove-node", "n1")
	asked.mustOperate("again", "undrain", "n1")
	asked.awaitStatus(45*time.Second, "n1 leads again", func(c *carillonv1.GetClusterResponse) bool {
		most := max(leads(c, "n1"), leads(c, "n2"), leads(c, "n3"))
		return most-min(leads(c, "n1"), leads(c, "n2"), leads(c, "n3")) <= 2 && whole(c) &&
			nodeOf(c, "n1").GetState() == carillonv1.StoreState_STORE_STATE_UP
	})
	k.finish()
}

// oneController looks at the metrics of all nodes: one of them is the controller, all vote, and every replica has what it should.
func (f *fleet) oneController() {
	f.t.Helper()
	controllers := 0
	for i, s := range f.nodes {
		_, metrics := s.get("/metrics")
		for _, line := range []string{"carillon_control_voter 1", "carillon_peers 2", "carillon_peers_silent 0", "carillon_learners 0"} {
			if !strings.Contains(metrics, "\n"+line+"\n") {
				f.t.Errorf("the metrics of n%d have no %q", i+1, line)
			}
		}
		if strings.Contains(metrics, "\ncarillon_controller 1\n") {
			controllers++
		}
	}
	if controllers != 1 {
		f.t.Errorf("%d nodes are the controller", controllers)
	}
}

// A lost store is declared gone at once and a dead node is taken out; neither can be done to one that lives. What was gone
// does not come back with its old disk, and comes back with an empty one.
func TestOperatorsReplaceAndRemove(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "4")
	first := f.nodes[0]
	first.awaitStatus(20*time.Second, "three voters everywhere", whole)
	k := f.tick(8)
	first.mustRefuse("lives", "replace-store", "n3")
	first.mustRefuse("lives", "remove-node", "n3")
	first.mustRefuse("is the node that was called", "remove-node", "n1")
	if out, code := first.operate("drain", "n4"); code != 3 {
		t.Errorf("a node that is not there: exit code %d\n%s", code, out)
	}

	lost := f.nodes[2]
	lost.kill()
	began := time.Now()
	first.mustOperate("4 shards have a voter less", "replace-store", "n3")
	t.Logf("declared gone %v after the kill", time.Since(began).Round(time.Millisecond))
	first.awaitStatus(10*time.Second, "an alarm of each node that leads", func(c *carillonv1.GetClusterResponse) bool {
		raised := map[string]bool{}
		for _, a := range c.GetAlarms() {
			raised[a.GetNode()] = raised[a.GetNode()] || a.GetName() == "two-voters"
		}
		return raised["n1"] == (leads(c, "n1") > 0) && raised["n2"] == (leads(c, "n2") > 0) && !raised["n3"]
	})
	f.comesBackEmpty(lost, "declared gone")

	removed := f.nodes[1]
	removed.kill()
	began = time.Now()
	first.mustOperate("4 shards have a voter less", "remove-node", "n2")
	t.Logf("removed %v after the kill", time.Since(began).Round(time.Millisecond))
	first.awaitStatus(10*time.Second, "two voters in the control plane", func(c *carillonv1.GetClusterResponse) bool {
		voters := 0
		for _, n := range c.GetNodes() {
			if n.GetControlRole() == carillonv1.ControlRole_CONTROL_ROLE_VOTER {
				voters++
			}
		}
		return voters == 2 && nodeOf(c, "n2").GetState() == carillonv1.StoreState_STORE_STATE_GONE
	})
	f.comesBackEmpty(removed, "removed")
	k.finish()
}

// comesBackEmpty starts a dead node whose store is gone: with its old disk it ends and says why, with an empty one it
// takes part again.
func (f *fleet) comesBackEmpty(s *server, says string) {
	f.t.Helper()
	s.launch()
	select {
	case <-s.done:
	case <-time.After(30 * time.Second):
		f.t.Fatalf("it runs with the disk that is gone\n%s", s.log)
	}
	if !strings.Contains(s.log.String(), says) {
		f.t.Errorf("it does not say that it was %s:\n%s", says, s.log)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		f.t.Fatal(err)
	}
	s.launch()
	if err := s.waitReady(60 * time.Second); err != nil {
		f.t.Fatalf("the node is not ready with an empty directory: %v\n%s", err, s.log)
	}
	f.nodes[0].awaitStatus(60*time.Second, "three voters everywhere again", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 3 && whole(c)
	})
	pause(f.t, time.Second) // every voter knows it
}
