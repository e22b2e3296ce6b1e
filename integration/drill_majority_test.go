package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Two of three nodes are killed: the last one refuses what it cannot vouch for, at once and with a hint, and answers stale
// reads. When they are back everything goes on.
func TestDrillMajorityIsLost(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drillSeed(t), 0))
	d := startDrill(t, 4, 8)
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 1 || time.Now().Before(end); i++ {
		last := d.nodes[rng.IntN(3)]
		id := fmt.Sprint("kept-", i)
		last.create(&carillonv1.JobSpec{Id: id, Schedule: in(time.Hour)})
		last.awaitJob(id)
		for _, s := range d.others(last) {
			s.kill()
		}
		pause(t, 3*time.Second) // a leader without followers notices after an election timeout
		began := time.Now()
		_, err := try(last.jobs().CreateJob, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{Schedule: in(time.Hour)}})
		unavailable(t, err)
		_, err = try(last.jobs().GetJob, &carillonv1.GetJobRequest{Id: id})
		unavailable(t, err)
		t.Logf("a write and a current read were refused in %v", time.Since(began).Round(time.Millisecond))
		if res, err := try(last.jobs().GetJob, &carillonv1.GetJobRequest{Id: id, Stale: true}); err != nil || res.GetJob().GetId() != id {
			t.Errorf("a stale read of the last node: %v, %v", res, err)
		}
		d.k.lateness()
		back := time.Now()
		for _, s := range d.others(last) {
			s.launch()
		}
		d.awaitReady()
		d.awaitWhole(last, 30*time.Second)
		t.Logf("all is whole %v after the others were started", time.Since(back).Round(time.Millisecond))
		pause(t, time.Second)
		t.Logf("gap in firing, a majority lost and back: %v", d.k.lateness().Round(time.Millisecond))
	}
	d.end()
}

// etcdFleet is a cluster whose nodes each serve their etcd to operators.
func etcdFleet(t *testing.T, args ...string) (*fleet, []string) {
	t.Helper()
	f := newFleet(t, 3, args...)
	dir, err := os.MkdirTemp("", "etcd") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var sockets []string
	for i, s := range f.nodes {
		sockets = append(sockets, filepath.Join(dir, fmt.Sprint(i)))
		s.args = append(s.args, "--etcd-socket", sockets[i])
		s.launch()
	}
	f.awaitReady()
	return f, sockets
}

// votingFleet is a cluster whose three members of etcd are voters: only then may it lose a disk.
func votingFleet(t *testing.T) *fleet {
	t.Helper()
	f, sockets := etcdFleet(t, "--shards", "2")
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	// Each of them has to have it on its disk: while only the first knows that the third has a vote, the loss of the first
	// leaves two that do not know that they are a majority.
	for _, socket := range sockets {
		awaitVoters(t, socket)
	}
	pause(t, 500*time.Millisecond)
	return f
}

// awaitVoters waits until an etcd member knows of three voters.
func awaitVoters(t *testing.T, socket string) {
	t.Helper()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	await(t, 30*time.Second, "etcd has three voters", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		res, err := etcd.MemberList(ctx)
		return err == nil && len(res.Members) == 3 && !slices.ContainsFunc(res.Members, func(m *etcdserverpb.Member) bool { return m.GetIsLearner() })
	})
	if err := etcd.Close(); err != nil {
		t.Error(err)
	}
}

// etcdLeader is the node whose etcd leads the others.
func etcdLeader(t *testing.T, f *fleet, sockets []string) *server {
	t.Helper()
	for i, socket := range sockets {
		etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		status, err := etcd.Status(ctx, "unix://"+socket)
		cancel()
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Fatalf("n%d: %v", i+1, err)
		}
		if status.Leader == status.Header.MemberId {
			return f.nodes[i]
		}
	}
	t.Fatal("etcd has no leader")
	return nil
}

// insistOnQueue makes a queue, which etcd keeps.
func (s *server) insistOnQueue(name string) error {
	_, err := insist(s.t.Context(), unaryOf(s.queues().CreateQueue, &carillonv1.CreateQueueRequest{
		Queue: &carillonv1.Queue{Name: name, Paused: true, PauseReason: "a drill"},
	}))
	if connect.CodeOf(err) == connect.CodeAlreadyExists {
		return nil // by a call of this one whose answer was lost
	}
	return err
}

// The node that leads etcd is killed: firing goes on as at any other failover, and so do changes of what etcd keeps.
func TestDrillEtcdLeaderIsKilled(t *testing.T) {
	t.Parallel()
	drillSeed(t)
	f, sockets := etcdFleet(t, "--shards", "4")
	d := f.drill(8)
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 1 || time.Now().Before(end); i++ {
		victim := etcdLeader(t, f, sockets)
		other := d.others(victim)[0]
		d.k.lateness()
		victim.kill()
		killed := time.Now()
		queue := fmt.Sprint("queue-", i)
		if err := other.insistOnQueue(queue); err != nil {
			t.Errorf("make a queue after etcd's leader was killed: %v", err)
		}
		t.Logf("etcd took a change %v after its leader was killed", time.Since(killed).Round(time.Millisecond))
		d.awaitLeaders(other, victim, 15*time.Second)
		pause(t, 2*time.Second)
		d.gap("etcd's leader killed", failoverLimit)
		victim.start()
		d.awaitWhole(victim, 30*time.Second)
		if got := call(t, victim.queues().GetQueue, &carillonv1.GetQueueRequest{Name: queue}).GetQueue(); got.GetPauseReason() != "a drill" {
			t.Errorf("queue %s is %v at the node that was killed", queue, got)
		}
	}
	d.end()
}

// One disk is wiped while another node is slow to return: the wiped node must not vote as the one it was. What was
// acknowledged by it and the slow one stands. Every node is the wiped one once: the first of the peers is the one that may
// form a cluster.
func TestDrillWipedDiskAndSlowRestart(t *testing.T) {
	t.Parallel()
	drillSeed(t)
	for i := range 3 {
		t.Run(fmt.Sprintf("n%d is wiped", i+1), func(t *testing.T) {
			t.Parallel()
			wipedAndSlow(t, i)
		})
	}
}

func wipedAndSlow(t *testing.T, wipe int) {
	t.Helper()
	f := votingFleet(t)
	wiped, slow, behind := f.nodes[wipe], f.nodes[(wipe+1)%3], f.nodes[(wipe+2)%3]
	behind.kill()
	if err := wiped.insistOnQueue("acknowledged"); err != nil {
		t.Fatal(err)
	}
	_, err := insist(t.Context(), unaryOf(wiped.jobs().CreateJob, &carillonv1.CreateJobRequest{
		IdempotencyKey: "a", Job: &carillonv1.JobSpec{Id: "acknowledged", Schedule: in(time.Hour)},
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*server{wiped, slow} {
		s.kill()
	}
	if err := os.RemoveAll(wiped.dir); err != nil {
		t.Fatal(err)
	}
	behind.launch()
	wiped.launch()
	wiped.awaitReason("the node asked is starting itself") // it knows whom it has to ask, and that one knows no majority yet
	pause(t, 4*time.Second)                                // longer than a node takes to start
	for _, s := range []*server{wiped, behind} {
		if code, _ := s.get("/readyz"); code == 200 {
			t.Fatalf("%s is ready without %s\n%s", f.name(s), f.name(slow), s.seen())
		}
	}
	slow.launch()
	f.awaitReady()
	f.nodes[0].awaitStatus(60*time.Second, "three voters everywhere again", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 3 && whole(c)
	})
	for _, s := range f.nodes {
		s.awaitJob("acknowledged")
		if got := call(t, s.queues().GetQueue, &carillonv1.GetQueueRequest{Name: "acknowledged"}).GetQueue(); got.GetPauseReason() != "a drill" {
			t.Errorf("%s has lost what was acknowledged: %v", f.name(s), got)
		}
	}
	f.verify()
}

// All nodes are started at once after one disk was wiped: what the others are stands on their disks, whether or not they
// have found together yet, and the wiped node joins them.
func TestDrillWipedDiskAndAllRestart(t *testing.T) {
	t.Parallel()
	drillSeed(t)
	f := votingFleet(t)
	id := call(t, f.nodes[0].cluster().GetCluster, &carillonv1.GetClusterRequest{}).GetClusterId()
	f.nodes[0].create(&carillonv1.JobSpec{Id: "acknowledged", Schedule: in(time.Hour)})
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 1 || time.Now().Before(end); i++ {
		for _, s := range f.nodes {
			s.kill()
		}
		wiped := f.nodes[0] // who forms a cluster, if any
		if err := os.RemoveAll(wiped.dir); err != nil {
			t.Fatal(err)
		}
		for _, s := range f.nodes {
			s.launch()
		}
		f.awaitReady()
		for _, s := range f.nodes {
			s.awaitStatus(60*time.Second, "three voters everywhere again", func(c *carillonv1.GetClusterResponse) bool {
				return len(c.GetNodes()) == 3 && whole(c)
			})
			s.awaitJob("acknowledged")
			if got := s.status().GetClusterId(); got != id {
				t.Errorf("%s is of cluster %s, was of %s", f.name(s), got, id)
			}
		}
	}
	f.verify()
}

// Nodes are killed while they form a cluster, at any moment, and started again: one cluster it is in the end.
func TestDrillFormationIsKilled(t *testing.T) {
	t.Parallel()
	seed := drillSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i, end := 0, time.Now().Add(drillLength(t, 0)); i < 2 || time.Now().Before(end); i++ {
		formKilled(t, rng)
	}
}

func formKilled(t *testing.T, rng *rand.Rand) {
	t.Helper()
	f := newFleet(t, 3, "--shards", "4")
	order := rng.Perm(3)
	for _, i := range order {
		f.nodes[i].launch()
	}
	var kills []string
	for began := time.Now(); time.Since(began) < 2*time.Second; {
		pause(t, time.Duration(50+rng.IntN(500))*time.Millisecond)
		victim := f.nodes[rng.IntN(3)]
		victim.kill()
		kills = append(kills, fmt.Sprintf("%s at %v", f.name(victim), time.Since(began).Round(time.Millisecond)))
		pause(t, time.Duration(rng.IntN(300))*time.Millisecond)
		victim.launch()
	}
	began := time.Now()
	f.awaitReady()
	ids := map[string]bool{}
	for _, s := range f.nodes {
		s.awaitStatus(30*time.Second, "three voters everywhere", func(c *carillonv1.GetClusterResponse) bool {
			return len(c.GetNodes()) == 3 && len(c.GetShards()) == 4 && whole(c)
		})
		ids[s.status().GetClusterId()] = true
	}
	t.Logf("killed %v: one cluster %v after the last start", kills, time.Since(began).Round(time.Millisecond))
	if len(ids) != 1 {
		t.Errorf("they are of the clusters %v", ids)
	}
	f.nodes[order[0]].create(&carillonv1.JobSpec{Id: "first", Schedule: in(0)})
	f.nodes[order[2]].complete(succeeded(f.nodes[order[2]].claimOne("w", "default"), "w", ""), succeededState)
	if e := f.nodes[order[1]].onlyExecution("first"); e.GetState() != succeededState {
		t.Errorf("its first job is %v", e.GetState())
	}
	for _, s := range slices.Backward(f.nodes) {
		if code := s.stop(); code != 0 {
			t.Errorf("%s: exit code %d", f.name(s), code)
		}
	}
}
