package integration

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// The drills break a cluster of real processes in one way each while jobs fall due all the time, and end with: nothing lost,
// nothing accepted twice, nothing early, every shard whole. Each measures how long firing stood still. Their short form is
// part of the tests; CARILLON_DRILL=10m repeats what they do for that long, CARILLON_SEED repeats a run.

// failoverLimit is the lateness that the loss of one node may cost, on a machine that has other things to do.
const failoverLimit = 3*time.Second + slack

// drill is a fleet under load.
type drill struct {
	*fleet
	k *ticker
}

// startDrill starts a cluster with so many shards and jobs that fall due all the time.
func startDrill(t *testing.T, shards, jobs int) *drill {
	t.Helper()
	f := startFleet(t, 3, "--shards", fmt.Sprint(shards))
	return f.drill(jobs)
}

// drill puts a cluster that serves under load.
func (f *fleet) drill(jobs int) *drill {
	f.t.Helper()
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	return &drill{fleet: f, k: f.tick(jobs)}
}

// gap prints how late the latest of what was delivered since the last call was, and requires it to be within limit.
func (d *drill) gap(what string, limit time.Duration) {
	d.t.Helper()
	d.k.mu.Lock()
	id := d.k.worstID
	d.k.mu.Unlock()
	late := d.k.lateness()
	d.t.Logf("gap in firing, %s: %v (%s)", what, late.Round(time.Millisecond), id)
	if late > limit {
		d.t.Errorf("%s: firing stood still for %v, may for %v", what, late, limit)
	}
}

// awaitWhole waits until a node sees every shard with an established leader and three voters on nodes that are ready.
func (d *drill) awaitWhole(s *server, limit time.Duration) {
	d.t.Helper()
	s.awaitStatus(limit, "every shard is whole", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetShards()) > 0 && whole(c)
	})
}

// end is the proof that each drill ends with. All nodes run.
func (d *drill) end() {
	d.t.Helper()
	d.awaitWhole(d.nodes[0], 60*time.Second)
	d.k.finish()
	for i := range d.k.jobs {
		d.once(fmt.Sprint("tick-", i))
	}
	d.awaitWhole(d.nodes[0], 10*time.Second)
	d.verify()
}

// once says that of each of a job's executions one success was accepted, and that none began early.
func (f *fleet) once(job string) {
	f.t.Helper()
	for _, e := range f.nodes[0].list(&carillonv1.ListExecutionsRequest{JobId: job}) {
		accepted := 0
		for _, a := range e.GetAttempts() {
			if a.GetOutcome() == carillonv1.Outcome_OUTCOME_SUCCEEDED {
				accepted++
			}
			if a.GetStartTime().AsTime().Before(e.GetNominalTime().AsTime()) {
				f.t.Errorf("%s: attempt %d began at %v", e.GetId(), a.GetNumber(), a.GetStartTime().AsTime())
			}
		}
		if accepted != 1 {
			f.t.Errorf("%s: %d successes were accepted", e.GetId(), accepted)
		}
	}
}

// verify has all replicas of all shards compared and checked.
func (f *fleet) verify() {
	f.t.Helper()
	out, err := exec.Command(binary, "cluster", "verify", "--addr", f.nodes[0].addr).CombinedOutput()
	if err != nil {
		f.t.Errorf("carillon cluster verify: %v\n%s", err, out)
	}
}

// others are the nodes but those.
func (f *fleet) others(but ...*server) []*server {
	return slices.DeleteFunc(slices.Clone(f.nodes), func(s *server) bool { return slices.Contains(but, s) })
}

// name is a node's in the cluster.
func (f *fleet) name(s *server) string { return fmt.Sprint("n", slices.Index(f.nodes, s)+1) }

// epochs are those of all shards as a node sees them.
func (s *server) epochs() []uint64 {
	s.t.Helper()
	var all []uint64
	for _, one := range s.status().GetShards() {
		all = append(all, one.GetEpoch())
	}
	return all
}

// leader is the node that leads a shard; a leadership that is just being handed over is waited for.
func (f *fleet) leader(shard uint32) *server {
	f.t.Helper()
	name := ""
	f.nodes[0].awaitStatus(10*time.Second, fmt.Sprintf("shard %d is led", shard), func(c *carillonv1.GetClusterResponse) bool {
		one := c.GetShards()[shard]
		name = one.GetLeader()
		return name != "" && one.GetEstablished()
	})
	return f.node(name)
}

// awaitLeaders waits until every shard is led and established by a node other than gone, as s sees it.
func (f *fleet) awaitLeaders(s *server, gone *server, limit time.Duration) {
	f.t.Helper()
	s.awaitStatus(limit, "others lead", func(c *carillonv1.GetClusterResponse) bool {
		return !slices.ContainsFunc(c.GetShards(), func(one *carillonv1.Shard) bool {
			return !one.GetEstablished() || one.GetLeader() == "" || one.GetLeader() == f.name(gone)
		})
	})
}

// anywhere is the fleet as one server: each call goes to the next node. A call to a node that is down fails.
func (f *fleet) anywhere() *server {
	to := &turns{base: newHTTPClient().Transport}
	for _, s := range f.nodes {
		to.addrs = append(to.addrs, s.addr)
	}
	return &server{t: f.t, addr: f.nodes[0].addr, http: &http.Client{Transport: to}}
}

// turns sends each request to the next of several addresses.
type turns struct {
	base  http.RoundTripper
	addrs []string
	calls atomic.Uint64
}

// RoundTrip implements http.RoundTripper.
func (r *turns) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = r.addrs[r.calls.Add(1)%uint64(len(r.addrs))]
	return r.base.RoundTrip(req)
}

// unavailable says that a call was refused as the contract says: unavailable, with a hint when to come back.
func unavailable(t *testing.T, err error) {
	t.Helper()
	if connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("%v; want unavailable", err)
		return
	}
	if strings.Contains(err.Error(), "retry with the same identity") {
		return // it may have been applied: whoever has no identity to repeat must not be told to come back
	}
	if hint := detail[*carillonv1.RetryHint](t, err); hint.GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("%v has no time to come back after", err)
	}
}

// seen is what a process has written, for a message of a test.
func (s *server) seen() string {
	lines := bytes.Split([]byte(s.log.String()), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-40):], []byte("\n")))
}

// unaryOf is a call to insist on.
func unaryOf[Req, Res any](m method[Req, Res], req *Req) func(context.Context) (*Res, error) {
	return func(ctx context.Context) (*Res, error) {
		res, err := m(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
}
