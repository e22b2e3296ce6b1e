package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// fleet is a cluster of real processes.
type fleet struct {
	t      *testing.T
	secret string
	peers  string
	nodes  []*server
}

// newFleet prepares n nodes that name each other as peers; nothing is started.
func newFleet(t *testing.T, n int, args ...string) *fleet {
	t.Helper()
	dir := t.TempDir()
	f := &fleet{t: t, secret: filepath.Join(dir, "secret")}
	if err := os.WriteFile(f.secret, []byte("a secret of the tests of this package"), 0o600); err != nil {
		t.Fatal(err)
	}
	var peers []string
	for i := range n {
		s := &server{t: t, dir: filepath.Join(dir, fmt.Sprintf("n%d", i+1)), addr: freeAddr(t), http: newHTTPClient()}
		f.nodes = append(f.nodes, s)
		peers = append(peers, fmt.Sprintf("n%d=%s", i+1, s.addr))
		t.Cleanup(s.kill)
	}
	f.peers = strings.Join(peers, ",")
	for i, s := range f.nodes {
		s.args = append([]string{"--name", fmt.Sprintf("n%d", i+1), "--peers", f.peers, "--cluster-secret-file", f.secret}, args...)
	}
	return f
}

// startFleet is a cluster that serves.
func startFleet(t *testing.T, n int, args ...string) *fleet {
	t.Helper()
	f := newFleet(t, n, args...)
	for _, s := range f.nodes {
		s.launch()
	}
	f.awaitReady()
	return f
}

// awaitReady waits until every node takes part.
func (f *fleet) awaitReady() {
	f.t.Helper()
	for i, s := range f.nodes {
		if err := s.waitReady(30 * time.Second); err != nil {
			f.t.Fatalf("n%d is not ready: %v\n%s", i+1, err, s.log)
		}
	}
}

// status is the cluster as a node sees it.
func (s *server) status() *carillonv1.GetClusterResponse {
	s.t.Helper()
	return call(s.t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{})
}

// awaitStatus waits until a node sees the cluster as ok wants it.
func (s *server) awaitStatus(limit time.Duration, what string, ok func(*carillonv1.GetClusterResponse) bool) {
	s.t.Helper()
	for until := time.Now().Add(limit); ; {
		status := s.status()
		if ok(status) {
			return
		}
		if time.Now().After(until) {
			text, _ := json.MarshalIndent(status, "", " ")
			s.t.Fatalf("%s: not within %v:\n%s\n%s", what, limit, text, s.log)
		}
		pause(s.t, 50*time.Millisecond)
	}
}

// whole says that every shard has an established leader and three voters on nodes that are ready.
func whole(c *carillonv1.GetClusterResponse) bool {
	ready := map[string]bool{}
	for _, n := range c.GetNodes() {
		ready[n.GetName()] = n.GetReady()
	}
	return !slices.ContainsFunc(c.GetShards(), func(s *carillonv1.Shard) bool {
		return !s.GetEstablished() || len(s.GetReplicas()) != 3 ||
			slices.ContainsFunc(s.GetReplicas(), func(name string) bool { return !ready[name] })
	})
}

// leaderOf is the node that leads a shard, as s sees it.
func (f *fleet) leaderOf(s *server, shard uint32) *server {
	f.t.Helper()
	for _, one := range s.status().GetShards() {
		if one.GetId() == shard && one.GetLeader() != "" {
			return f.node(one.GetLeader())
		}
	}
	f.t.Fatalf("shard %d has no leader", shard)
	return nil
}

// node is that of a name, n1 on.
func (f *fleet) node(name string) *server {
	f.t.Helper()
	for i, s := range f.nodes {
		if name == fmt.Sprintf("n%d", i+1) {
			return s
		}
	}
	f.t.Fatalf("there is no node %s", name)
	return nil
}

// Three nodes, started in any order, are one scheduler: leaders are spread, any node takes any call, and workers at any node
// get the work of all.
func TestThreeNodesAreOneScheduler(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, "--shards", "8")
	f.nodes[2].launch()
	f.nodes[1].launch()
	f.nodes[1].awaitReason("n1 at " + f.nodes[0].addr)
	f.nodes[0].launch()
	began := time.Now()
	f.awaitReady()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("they were one cluster %v after the last one's start", took)
	}
	f.nodes[0].awaitStatus(10*time.Second, "three voters everywhere", whole)
	f.nodes[0].awaitStatus(30*time.Second, "leaders spread", func(c *carillonv1.GetClusterResponse) bool {
		most, fewest := uint32(0), uint32(8)
		for _, n := range c.GetNodes() {
			most, fewest = max(most, n.GetShardsLed()), min(fewest, n.GetShardsLed())
		}
		return most-fewest <= 2
	})
	const jobs = 90
	due := soon(2 * time.Second)
	for i := range jobs {
		f.nodes[i%3].create(&carillonv1.JobSpec{Id: fmt.Sprint("job-", i), Schedule: at(due)})
	}
	seen := map[string]bool{}
	for i := 0; len(seen) < jobs && i < 300; i++ {
		s := f.nodes[i%3]
		for _, l := range s.claim("w", "default", 10, time.Second) {
			if seen[l.GetExecutionId()] || time.Now().Before(l.GetNominalTime().AsTime()) {
				t.Errorf("%s came twice or early", l.GetExecutionId())
			}
			seen[l.GetExecutionId()] = true
			f.nodes[(i+1)%3].complete(succeeded(l, "w", ""), succeededState)
		}
	}
	if len(seen) != jobs {
		t.Errorf("%d of %d jobs were run", len(seen), jobs)
	}
	for i := range jobs {
		if e := f.nodes[(i+2)%3].onlyExecution(fmt.Sprint("job-", i)); e.GetState() != succeededState {
			t.Errorf("job %d: %v", i, e.GetState())
		}
	}
}

// awaitReason waits until a node that is starting says what it waits for.
func (s *server) awaitReason(says string) {
	s.t.Helper()
	body := ""
	for range 1000 {
		var code int
		if code, body = s.get("/readyz"); code == http.StatusServiceUnavailable && strings.Contains(body, says) {
			return
		}
		pause(s.t, 10*time.Millisecond)
	}
	s.t.Fatalf("it says %s, must say %q\n%s", body, says, s.log)
}

// ticker is jobs that fall due all the time, workers for them at every node, and what those have seen.
type ticker struct {
	f      *fleet
	jobs   int
	anchor time.Time
	stop   context.CancelFunc
	group  errgroup.Group

	mu sync.Mutex
	// delivered and early count deliveries.
	delivered, early int
	// worst is the highest lateness of a first delivery since it was last asked for, worstID whose that was.
	worst   time.Duration
	worstID string
}

const tickEvery = time.Second

// tick starts jobs, spread over the shards, and the workers.
func (f *fleet) tick(jobs int) *ticker {
	f.t.Helper()
	k := &ticker{f: f, jobs: jobs, anchor: soon(time.Second)}
	for i := range jobs {
		f.nodes[0].create(&carillonv1.JobSpec{
			Id: fmt.Sprint("tick-", i), Queue: "tick", Schedule: every(tickEvery, k.first(i)), CatchUp: carillonv1.CatchUp_CATCH_UP_ALL,
			CatchUpWindow: durationpb.New(time.Hour), Lease: durationpb.New(3 * time.Second),
		})
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	k.stop = cancel
	var addrs []string
	for _, s := range f.nodes {
		addrs = append(addrs, s.addr)
	}
	for i := range addrs {
		k.group.Go(func() error { return k.work(ctx, append(slices.Clone(addrs[i:]), addrs[:i]...)) })
	}
	return k
}

// first is when job i falls due first: something does all the time.
func (k *ticker) first(i int) time.Time {
	return k.anchor.Add(time.Duration(i) * tickEvery / time.Duration(k.jobs)).Truncate(time.Millisecond)
}

// work is a worker as users run it, which prefers the first of addrs.
func (k *ticker) work(ctx context.Context, addrs []string) error {
	c, err := client.New(strings.Join(addrs, ","))
	if err != nil {
		return err
	}
	defer c.Close()
	return client.NewWorker(c, client.WorkerConfig{
		Queues: []string{"tick"}, Concurrency: 100, Wait: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
	}, func(_ context.Context, e *client.Execution) ([]byte, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.delivered++
		late := e.ReceivedTime.Sub(e.NominalTime)
		if late < 0 {
			k.early++
		}
		if e.Attempt == 1 && late > k.worst {
			k.worst, k.worstID = late, e.ID
		}
		return nil, nil
	}).Run(ctx)
}

// lateness is the worst since it was last asked for.
func (k *ticker) lateness() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	worst := k.worst
	k.worst = 0
	return worst
}

// finish ends the jobs and the workers, and looks whether every occurrence has been run, and once.
func (k *ticker) finish() {
	k.f.t.Helper()
	end := soon(2 * tickEvery)
	for i := range k.jobs {
		ending := every(tickEvery, k.first(i))
		ending.GetEvery().End = timestamppb.New(end)
		patch := &carillonv1.UpdateJobRequest{Id: fmt.Sprint("tick-", i), Job: &carillonv1.JobPatch{Schedule: ending}}
		ctx, cancel := context.WithTimeout(k.f.t.Context(), 30*time.Second)
		_, err := insist(ctx, unaryOf(k.f.nodes[0].jobs().UpdateJob, patch))
		cancel()
		if err != nil {
			k.f.t.Fatal(err)
		}
	}
	pauseUntil(k.f.t, end.Add(tickEvery/2))
	k.f.nodes[0].awaitStatus(30*time.Second, "everything is run", func(c *carillonv1.GetClusterResponse) bool {
		b := c.GetBacklog()
		return b.GetReady()+b.GetLeased()+b.GetRetrying() == 0
	})
	k.stop()
	if err := k.group.Wait(); err != nil {
		k.f.t.Error(err)
	}
	if k.early > 0 {
		k.f.t.Errorf("%d came early", k.early)
	}
	for i := range k.jobs {
		k.check(fmt.Sprint("tick-", i), k.first(i))
	}
}

// check says that a job's occurrences have one execution each, without a gap, and that each has succeeded.
func (k *ticker) check(id string, first time.Time) {
	k.f.t.Helper()
	seen := map[time.Time]bool{}
	newest := time.Time{}
	for _, e := range k.f.nodes[0].list(&carillonv1.ListExecutionsRequest{JobId: id}) {
		nominal := e.GetNominalTime().AsTime()
		if seen[nominal] || e.GetState() != succeededState {
			k.f.t.Errorf("%s: execution for %v is %v", id, nominal, e.GetState())
		}
		seen[nominal] = true
		if nominal.After(newest) {
			newest = nominal
		}
	}
	for at := first; !at.After(newest); at = at.Add(tickEvery) {
		if !seen[at] {
			k.f.t.Errorf("%s: none for %v", id, at)
		}
	}
	if len(seen) == 0 {
		k.f.t.Errorf("%s has never run", id)
	}
}

// A leader is killed while work falls due all the time: others lead its shards within seconds, nothing is lost or run twice,
// and the node comes back to what it had.
func TestALeaderIsKilled(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "8")
	f.nodes[0].awaitStatus(10*time.Second, "three voters everywhere", whole)
	k := f.tick(16)
	pause(t, 3*time.Second)
	t.Logf("lateness before: %v", k.lateness())
	victim := f.leaderOf(f.nodes[0], 1)
	victim.kill()
	killed := time.Now()
	pause(t, 6*time.Second)
	gap := k.lateness()
	t.Logf("worst lateness after the kill: %v", gap)
	if gap > 5*time.Second {
		t.Errorf("firing stood still for %v", gap)
	}
	victim.start()
	f.nodes[0].awaitStatus(20*time.Second, "all is as before", whole)
	t.Logf("whole again %v after the kill", time.Since(killed))
	pause(t, 2*time.Second)
	t.Logf("worst lateness meanwhile: %v", k.lateness())
	k.finish()
}

// A node's disk is lost. Started with the same command line it comes back as a new store by itself, and every shard has three
// voters again; nothing is lost.
func TestADiskIsLost(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "4")
	f.nodes[0].awaitStatus(10*time.Second, "three voters everywhere", whole)
	k := f.tick(8)
	pause(t, time.Second)
	victim := f.nodes[2]
	victim.kill()
	if err := os.RemoveAll(victim.dir); err != nil {
		t.Fatal(err)
	}
	wiped := time.Now()
	victim.launch()
	if err := victim.waitReady(60 * time.Second); err != nil {
		t.Fatalf("the wiped node is not ready: %v\n%s", err, victim.log)
	}
	t.Logf("ready again after %v", time.Since(wiped))
	f.nodes[0].awaitStatus(60*time.Second, "three voters everywhere again", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 3 && whole(c)
	})
	t.Logf("three voters everywhere after %v", time.Since(wiped))
	k.finish()
}

// A node of its own with jobs becomes the first of three: the others join, every shard goes from one voter to three under load.
func TestOneNodeBecomesThree(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	first := f.nodes[0]
	clustered := first.args
	first.args = []string{"--shards", "4"}
	first.start()
	first.createMany(2000, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: fmt.Sprint("far-", i), Schedule: at(soon(time.Hour))}
	})
	if code := first.stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, first.log)
	}
	first.args = clustered
	first.start()
	k := f.tick(8)
	f.nodes[1].launch()
	f.nodes[2].launch()
	f.awaitReady()
	first.awaitStatus(60*time.Second, "three voters everywhere", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 3 && whole(c)
	})
	first.kill()
	for _, id := range []string{"far-0", "far-999", "far-1999"} {
		f.nodes[1].awaitJob(id)
	}
	first.start()
	first.awaitStatus(20*time.Second, "all is as before", whole)
	k.finish()
}

// awaitJob waits until the job can be read.
func (s *server) awaitJob(id string) {
	s.t.Helper()
	for until := time.Now().Add(10 * time.Second); ; pause(s.t, 50*time.Millisecond) {
		_, err := s.jobs().GetJob(s.t.Context(), connect.NewRequest(&carillonv1.GetJobRequest{Id: id}))
		if err == nil {
			return
		}
		if time.Now().After(until) {
			s.t.Fatalf("job %s: %v", id, err)
		}
	}
}

// A second process under a living node's name, on another machine's disk, is refused; the living one is not disturbed.
func TestASecondProcessOfOneNameIsRefused(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "4")
	f.nodes[0].awaitStatus(10*time.Second, "three voters everywhere", whole)
	imposter := &server{t: t, dir: t.TempDir(), addr: freeAddr(t), http: newHTTPClient()}
	t.Cleanup(imposter.kill)
	imposter.args = []string{"--name", "n3", "--cluster-secret-file", f.secret, "--join", f.nodes[0].addr, "--join", f.nodes[1].addr}
	imposter.launch()
	select {
	case <-imposter.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("it has not ended\n%s", imposter.log)
	}
	if code := imposter.cmd.ProcessState.ExitCode(); code == 0 || !strings.Contains(imposter.log.String(), "lives") {
		t.Errorf("exit code %d\n%s", code, imposter.log)
	}
	f.nodes[0].awaitStatus(5*time.Second, "as before", whole)
}
