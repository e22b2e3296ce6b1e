package integration

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/store"
)

// verify runs the command and returns its report and exit code.
func (s *server) verify(args ...string) (*carillonv1.VerifyClusterResponse, int) {
	s.t.Helper()
	cmd := exec.Command(binary, append([]string{"cluster", "verify", "--addr", s.addr, "-o", "json"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	report := &carillonv1.VerifyClusterResponse{}
	if jsonErr := protojson.Unmarshal(out, report); jsonErr != nil {
		s.t.Fatalf("%v, %v: %s\n%s\n%s", err, jsonErr, out, stderr.String(), s.log)
	}
	return report, cmd.ProcessState.ExitCode()
}

// wantClean verifies and wants replicas on that many nodes to agree.
func (s *server) wantClean(shards, replicas int) {
	s.t.Helper()
	report, code := s.verify()
	if code != 0 || report.Result != carillonv1.VerifyResult_VERIFY_RESULT_OK || len(report.Shards) != shards {
		s.t.Fatalf("exit code %d: %s", code, protojson.Format(report))
	}
	for _, shard := range report.Shards {
		if len(shard.Replicas) != replicas || shard.Index == 0 || shard.Replicas[0].Rows == 0 {
			s.t.Fatalf("%s", protojson.Format(shard))
		}
	}
}

// A node of its own is verified as well, by REST too, and unasked.
func TestVerifyOneNode(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "2", "--verify-every", "1s")
	s.createMany(300, func(int) *carillonv1.JobSpec { return &carillonv1.JobSpec{Schedule: at(soon(time.Hour))} })
	s.wantClean(2, 1)
	status, body := s.send(http.MethodPost, "/v1/cluster/verify", "application/json", []byte(`{"shards": [1]}`))
	var answer struct {
		Result string
		Shards []struct{ Shard int }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK ||
		answer.Result != "VERIFY_RESULT_OK" || len(answer.Shards) != 1 {
		t.Errorf("%d %s %v", status, body, err)
	}
	if status, body := s.send(http.MethodPost, "/v1/cluster/verify", "application/json", []byte(`{"shards": [9]}`)); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
	runs := func() float64 { return s.metric("carillon_verify_runs_total") }
	for asked, until := runs(), time.Now().Add(10*time.Second); runs() <= asked; pause(t, 100*time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("nothing is verified unasked")
		}
	}
	if wrong := s.metric("carillon_verify_violations_total"); wrong != 0 {
		t.Errorf("%v violations", wrong)
	}
}

// Three nodes under load agree at every entry that is looked at; one that is away is missed; one whose disk has lost a row is
// found, and so is which one that is.
func TestVerifyThreeNodes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, "--shards", "4")
	f.nodes[0].awaitStatus(10*time.Second, "three voters everywhere", whole)
	f.nodes[1].createMany(2000, func(int) *carillonv1.JobSpec { return &carillonv1.JobSpec{Schedule: at(soon(time.Hour))} })
	k := f.tick(8)
	for range 3 {
		f.nodes[0].wantClean(4, 3)
	}
	k.finish()
	f.nodes[2].wantClean(4, 3)

	spoiled := f.nodes[2]
	if code := spoiled.stop(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, spoiled.log)
	}
	report, code := f.nodes[0].verify("--shard", "1")
	if code != 1 || report.Result != carillonv1.VerifyResult_VERIFY_RESULT_INCOMPLETE {
		t.Errorf("exit code %d: %s", code, protojson.Format(report))
	}
	loseJob(t, filepath.Join(spoiled.dir, "pebble"), 1)
	spoiled.launch()
	f.awaitReady()
	f.nodes[0].awaitStatus(20*time.Second, "all is as before", whole)
	report, code = f.nodes[0].verify("--shard", "1", "--shard", "2")
	if code != 1 || report.Shards[0].Result != carillonv1.VerifyResult_VERIFY_RESULT_WRONG ||
		report.Shards[1].Result != carillonv1.VerifyResult_VERIFY_RESULT_OK {
		t.Fatalf("exit code %d: %s", code, protojson.Format(report))
	}
	for _, r := range report.Shards[0].Replicas {
		if !r.Done || (r.ViolationCount > 0) != (r.Node == "n3") {
			t.Errorf("%s", protojson.Format(r))
		}
	}
	if wrong := f.nodes[0].metric("carillon_verify_violations_total"); wrong == 0 {
		t.Error("no violation is counted")
	}
	if alarms := f.nodes[0].status().GetAlarms(); len(alarms) == 0 || alarms[0].GetName() != "verify" {
		t.Errorf("alarms %v", alarms)
	}
}

// loseJob removes a job's row from a shard on a node's disk.
func loseJob(t *testing.T, dir string, shard uint32) {
	t.Helper()
	engine, err := store.OpenPebble(dir, store.Options{
		Logger: slog.New(slog.DiscardHandler), OnFatal: func(err error) { panic(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var lost []byte
	store.NewReader(engine, shard).Scan([]byte{fsm.KindJob}, []byte{fsm.KindJob + 1}, func(key, _ []byte) bool {
		lost = key
		return false
	})
	if lost == nil {
		t.Fatal("the shard has no jobs")
	}
	batch := engine.NewBatch()
	batch.Delete(store.AppendKey(nil, shard, lost))
	wait, err := engine.Commit(batch, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
}
