package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// rescue runs the command on a node's directory with what is typed, and returns what it prints and its exit code.
func (s *server) rescue(typed string, args ...string) (out string, code int) {
	s.t.Helper()
	cmd := exec.Command(binary, append([]string{"cluster", "rescue", "--data", s.dir}, args...)...)
	cmd.Stdin = strings.NewReader(typed)
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// mustNotRescue wants a refusal that says so.
func (s *server) mustNotRescue(says string, wantCode int, typed string, args ...string) {
	s.t.Helper()
	out, code := s.rescue(typed, args...)
	if code != wantCode || !strings.Contains(out, says) {
		s.t.Errorf("rescue %v: exit code %d, must be %d and say %q\n%s", args, code, wantCode, says, out)
	}
}

// looksWell compares what the command finds on the last of three disks with what must be there.
func (s *server) looksWell() {
	s.t.Helper()
	var found struct {
		Node   string
		Others []struct{ Node string }
		Shards []struct {
			Voters                  []string
			LogEnd, Commit, Applied uint64
		}
	}
	out, _ := s.rescue("", "-o", "json")
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&found); err != nil || found.Node != "n3" || len(found.Others) != 2 {
		s.t.Fatalf("it has found %+v, %v\n%s", found, err, out)
	}
	for _, one := range found.Shards {
		if len(one.Voters) != 3 || one.Applied < 10 || one.Commit < one.Applied || one.LogEnd < one.Commit {
			s.t.Errorf("it has found %+v", one)
		}
	}
	if len(found.Shards) != 2 {
		s.t.Errorf("it has found %d shards", len(found.Shards))
	}
}

// killRescues begins rescues and kills them, at any moment after they have begun to change something. A node does not start
// on what they leave.
func (f *fleet) killRescues(s *server, rng *rand.Rand) {
	f.t.Helper()
	begun := func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "RESCUE"))
		return err == nil
	}
	for range 4 {
		cmd := exec.Command(binary, "cluster", "rescue", "--data", s.dir, "--yes")
		if err := cmd.Start(); err != nil {
			f.t.Fatal(err)
		}
		await(f.t, 10*time.Second, "it begins", begun)
		after := time.Duration(rng.IntN(200)) * time.Millisecond
		pause(f.t, after)
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // with what it was killed by
		f.t.Logf("killed %v after it began to change something; half is done: %v", after, begun())
		if !begun() {
			return // it was done: there is nothing to kill any more
		}
		s.launch()
		if code := s.exitCode(); code == 0 || !strings.Contains(s.log.String(), "carillon cluster rescue --data") {
			f.t.Errorf("a node started on half a rescue ends with code %d\n%s", code, s.seen())
		}
	}
}

// hasAll says that every node has the jobs and the queue that were acknowledged.
func (f *fleet) hasAll(jobs int) {
	f.t.Helper()
	for _, s := range f.nodes {
		listed := 0
		for token := ""; ; {
			page := call(f.t, s.jobs().ListJobs, &carillonv1.ListJobsRequest{Queue: "far", PageSize: 200, PageToken: token})
			listed += len(page.GetJobs())
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if listed != jobs {
			f.t.Errorf("%s has %d jobs of %d", f.name(s), listed, jobs)
		}
		q := call(f.t, s.queues().GetQueue, &carillonv1.GetQueueRequest{Name: "acknowledged"}).GetQueue()
		if q.GetPauseReason() != "a drill" {
			f.t.Errorf("%s has lost a queue's settings: %v", f.name(s), q)
		}
	}
}

// lastOfThree kills all nodes and wipes the disks of two, and shows that starting them all is of no use.
func (f *fleet) lastOfThree() (wiped []*server, survivor *server) {
	f.t.Helper()
	wiped, survivor = f.nodes[:2], f.nodes[2]
	for _, s := range f.nodes {
		s.kill()
	}
	for _, s := range wiped {
		if err := os.RemoveAll(s.dir); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, s := range f.nodes {
		s.launch()
	}
	wiped[0].awaitReason("the node asked is starting itself")
	survivor.awaitReason("a majority of the control plane's members")
	pause(f.t, 3*time.Second)
	for _, s := range f.nodes {
		if code, _ := s.get("/readyz"); code == 200 {
			f.t.Fatalf("%s is ready\n%s", f.name(s), s.seen())
		}
	}
	survivor.kill()
	return wiped, survivor
}

// Two of three disks are lost for good. The cluster waits; the third disk is rescued, serves all that it had, and becomes
// three by itself.
func TestDrillAllDisksButOneAreLost(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drillSeed(t), 0))
	f := votingFleet(t)
	const each = 130
	for i, s := range f.nodes {
		s.createMany(each, func(j int) *carillonv1.JobSpec {
			return &carillonv1.JobSpec{Id: fmt.Sprintf("far-%d-%d", i, j), Queue: "far", Schedule: in(time.Hour)}
		})
	}
	if err := f.nodes[0].insistOnQueue("acknowledged"); err != nil {
		t.Fatal(err)
	}
	k := f.tick(6)
	pause(t, 2*time.Second) // every replica has what was acknowledged
	f.nodes[2].mustNotRescue("in use", 1, "n3\n")
	wiped, survivor := f.lastOfThree()
	wiped[1].kill() // the other one goes on waiting

	survivor.looksWell()
	survivor.mustNotRescue("nothing was changed", 1, "n1\n")
	survivor.mustNotRescue("stop here and start its node", 1, "")
	f.killRescues(survivor, rng)
	began := time.Now()
	since := func(what string) {
		t.Logf("%s %v after the command was typed", what, time.Since(began).Round(time.Millisecond))
	}
	out, code := survivor.rescue("n3\n")
	if code != 0 && !strings.Contains(out, "it is a cluster of its own") { // one that was killed was done already
		t.Fatalf("exit code %d\n%s", code, out)
	}
	since("it is done")
	survivor.start()
	survivor.awaitStatus(20*time.Second, "every shard is led", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetShards()) == 2 && c.GetShards()[0].GetEstablished() && c.GetShards()[1].GetEstablished()
	})
	since("every shard is served")
	wiped[1].launch()
	f.awaitReady()
	survivor.awaitStatus(60*time.Second, "three voters everywhere again", func(c *carillonv1.GetClusterResponse) bool {
		return len(c.GetNodes()) == 3 && whole(c)
	})
	since("three voters are everywhere")
	k.finish()
	f.hasAll(each * len(f.nodes))
	f.verify()

	// Of a healthy cluster a disk is rescued only by who insists.
	if code := wiped[0].stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, wiped[0].seen())
	}
	wiped[0].mustNotRescue("WARNING: the disks of n3 and n2 are given up", 1, "\n")
	wiped[0].start()
	survivor.awaitStatus(30*time.Second, "three voters everywhere as before", whole)
}
