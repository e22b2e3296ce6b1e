package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// join adds a node that is told one that is there, and waits until it serves.
func (f *fleet) join(by *server) *server {
	f.t.Helper()
	name := fmt.Sprintf("n%d", len(f.nodes)+1)
	s := &server{t: f.t, dir: filepath.Join(filepath.Dir(f.nodes[0].dir), name), addr: freeAddr(f.t), http: newHTTPClient()}
	s.args = []string{"--name", name, "--join", by.addr, "--cluster-secret-file", f.secret}
	f.t.Cleanup(s.kill)
	f.nodes = append(f.nodes, s)
	s.start()
	return s
}

// votes says whether a node is a voter of etcd.
func (s *server) votes() bool {
	_, metrics := s.get("/metrics")
	return strings.Contains(metrics, "\ncarillon_control_voter 1\n")
}

// spread says that no node has more than one replica more than another one.
func spread(c *carillonv1.GetClusterResponse) bool {
	var replicas []uint32
	for _, n := range c.GetNodes() {
		replicas = append(replicas, n.GetReplicas())
	}
	return slices.Max(replicas)-slices.Min(replicas) <= 1
}

// Five nodes: the fourth and fifth have no member of etcd and replicas of some shards only, and answer everything all the same.
// One that is lost for good is replaced everywhere, as a voter of etcd too; one that is drained gives all it has to others.
func TestFiveNodes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "6")
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	f.join(f.nodes[2])
	last := f.join(f.nodes[3]) // which has no member itself and passes it on
	d := &drill{fleet: f, k: f.tick(12)}
	last.awaitStatus(60*time.Second, "replicas are spread over five", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 5 && whole(c) && spread(c)
	})
	for _, s := range f.nodes {
		for i := range d.k.jobs {
			s.awaitJob(fmt.Sprint("tick-", i))
		}
		listed := call(t, s.jobs().ListJobs, &carillonv1.ListJobsRequest{Queue: "tick", PageSize: 100})
		if n := len(listed.GetJobs()); n != d.k.jobs {
			t.Errorf("%s lists %d jobs, must list %d", s.addr, n, d.k.jobs)
		}
	}
	if f.nodes[3].votes() || last.votes() {
		t.Error("the fourth or fifth node has a vote in etcd")
	}
	d.gap("two nodes join", failoverLimit)

	lost := f.nodes[0]
	lost.kill()
	d.gapAfter("a node is killed", failoverLimit)
	last.mustOperate("nothing is left of it", "remove-node", "n1")
	last.awaitStatus(60*time.Second, "three voters everywhere on four nodes", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 4 && whole(c)
	})
	await(t, 60*time.Second, "the control plane has three voters again", func() bool { return f.nodes[3].votes() || last.votes() })
	d.gap("a lost node is replaced", failoverLimit)

	f.nodes = f.nodes[1:]
	drained := f.nodes[1] // n3
	last.mustOperate("it may be removed", "drain", "n3")
	d.gap("a node is drained", failoverLimit)
	last.mustOperate("nothing is left of it", "remove-node", "n3")
	if code := drained.exitCode(); code == 0 {
		t.Errorf("a node that was removed ends with code %d\n%s", code, drained.log)
	}
	f.nodes = slices.Delete(f.nodes, 1, 2)
	last.awaitStatus(30*time.Second, "three nodes are left", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 3 && whole(c)
	})

	// Nodes find their cluster again, also n4, which was told to join n3.
	for _, s := range f.nodes[1:] {
		s.kill()
		s.start()
	}
	d.end()
}

// gapAfter is gap a moment later, when what fell due meanwhile has come through.
func (d *drill) gapAfter(what string, limit time.Duration) {
	d.t.Helper()
	pause(d.t, limit)
	d.gap(what, limit)
}

// The member of a node that was away for long was removed, and another node has taken its place. The node comes back with its
// store and without a member, by itself.
func TestARemovedMemberComesBack(t *testing.T) {
	t.Parallel()
	f, sockets := etcdFleet(t, "--shards", "2")
	for _, socket := range sockets {
		awaitVoters(t, socket)
	}
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	reserve := f.join(f.nodes[0])
	d := f.drill(4)
	away := f.nodes[2]
	away.kill()
	removeMember(t, sockets[0], "n3-")
	await(t, 60*time.Second, "the fourth node has a vote", reserve.votes)
	away.start()
	if away.votes() {
		t.Error("a member that was removed votes again")
	}
	d.end()
	away.kill() // and again, as a node without a member
	away.start()
	away.awaitStatus(30*time.Second, "all is whole", whole)
}

// removeMember removes the etcd member whose name begins so.
func removeMember(t *testing.T, socket, prefix string) {
	t.Helper()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = etcd.Close() }() // it was only cancelled
	await(t, 30*time.Second, "the member is removed", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		res, err := etcd.MemberList(ctx)
		if err != nil {
			return false
		}
		for _, m := range res.Members {
			if strings.HasPrefix(m.Name, prefix) {
				_, _ = etcd.MemberRemove(ctx, m.ID) // until it is seen to be gone
				return false
			}
		}
		return true
	})
}

// A node with shards whose control plane's data is lost forms no new cluster with others that know nothing: they would make
// replicas under ids that were used, and outvote the only copy that is left.
func TestAStoreWithShardsFormsNoCluster(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "2")
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	f.nodes[0].create(&carillonv1.JobSpec{Id: "precious", Schedule: at(soon(time.Hour))})
	for _, s := range f.nodes {
		s.kill()
	}
	for _, dir := range []string{filepath.Join(f.nodes[0].dir, "etcd"), f.nodes[1].dir, f.nodes[2].dir} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range f.nodes[1:] {
		s.launch()
	}
	first := f.nodes[0]
	first.launch()
	if code := first.exitCode(); code == 0 || !strings.Contains(first.log.String(), "control plane's data is gone") {
		t.Errorf("it ended with code %d, must say that its control plane's data is gone\n%s", code, first.log)
	}
}

// Two of etcd's three voters are lost in a cluster of five: shards that have a majority elsewhere fail over and fire without the
// control plane; the others stop and resume when the nodes are back.
func TestDrillEtcdQuorumIsLostInFive(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "10")
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	f.join(f.nodes[0])
	last := f.join(f.nodes[0])
	last.awaitStatus(60*time.Second, "replicas are spread over five", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 5 && whole(c) && spread(c)
	})
	d := f.drill(30)
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 1 || time.Now().Before(end); i++ {
		pause(t, time.Second)
		d.gap("before", failoverLimit)
		both := func(s *carillonv1.Shard) bool {
			return slices.Contains(s.GetReplicas(), "n1") && slices.Contains(s.GetReplicas(), "n2")
		}
		stopped := 0
		for _, s := range last.status().GetShards() {
			if both(s) {
				stopped++
			}
		}
		for _, s := range f.nodes[:2] {
			s.kill()
		}
		last.awaitStatus(15*time.Second, "the shards with a majority are led", func(c *carillonv1.GetClusterResponse) bool {
			return !slices.ContainsFunc(c.GetShards(), func(s *carillonv1.Shard) bool {
				return !both(s) && (!s.GetEstablished() || s.GetLeader() == "n1" || s.GetLeader() == "n2")
			})
		})
		before := d.k.count()
		pause(t, 5*time.Second)
		d.gap(fmt.Sprintf("etcd's quorum and %d of 10 shards are lost", stopped), failoverLimit)
		if n := d.k.count() - before; stopped < 10 && n == 0 {
			t.Error("nothing is fired without the control plane")
		}
		for _, s := range f.nodes[:2] {
			s.launch()
		}
		for _, s := range f.nodes[:2] {
			if err := s.waitReady(60 * time.Second); err != nil {
				t.Fatalf("%s is not ready: %v\n%s", s.addr, err, s.log)
			}
		}
		d.awaitWhole(last, 60*time.Second)
		pause(t, 2*time.Second)
		t.Logf("gap in firing, of the shards that had no majority: %v", d.k.lateness().Round(time.Millisecond))
	}
	d.end()
}

// count is how many executions were delivered so far.
func (k *ticker) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.delivered
}
