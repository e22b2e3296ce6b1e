package integration

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// cli runs a command against the server and returns all that it prints.
func (s *server) cli(args ...string) string {
	s.t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "CARILLON_ADDR="+s.addr, "CARILLON_TENANT=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Errorf("carillon %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// queue is a queue as it is listed; nil if it is not.
func (s *server) queue(name string) *carillonv1.Queue {
	s.t.Helper()
	queues := call(s.t, s.queues().ListQueues, &carillonv1.ListQueuesRequest{}).GetQueues()
	if i := slices.IndexFunc(queues, func(q *carillonv1.Queue) bool { return q.GetName() == name }); i >= 0 {
		return queues[i]
	}
	return nil
}

// TestWorkWithoutAWorkerIsSeen: who forgot the worker finds where the work waits, and who has one sees that it waits.
func TestWorkWithoutAWorkerIsSeen(t *testing.T) {
	t.Parallel()
	s := startServer(t, "")
	s.create(&carillonv1.JobSpec{Id: "a", Queue: "mail", Schedule: in(0), Payload: []byte("hello")})
	await(t, 5*time.Second, "the execution is ready", func() bool { return s.queue("mail").GetBacklog().GetReady() == 1 })
	q := s.queue("mail")
	if since := q.GetBacklog().GetOldestReadyTime().AsTime(); time.Since(since) > time.Minute || q.GetVersion() != 0 {
		t.Errorf("the queue is listed as %v", q)
	}
	if out := s.cli("queues", "list"); !strings.Contains(out, "mail  1 ") {
		t.Errorf("queues list says\n%s", out)
	}
	if out := s.cli("jobs", "list", "--state", "exhausted"); !strings.Contains(out, "a   mail   exhausted") {
		t.Errorf("jobs list says\n%s", out)
	}
	err := refused(t, connect.CodeAlreadyExists, s.jobs().CreateJob, &carillonv1.CreateJobRequest{
		Job: &carillonv1.JobSpec{Id: "a", Queue: "mail", Schedule: in(0), Payload: []byte("good bye")},
	})
	if got := detail[*carillonv1.IdempotencyConflict](t, err).GetFields(); !slices.Equal(got, []string{"payload"}) {
		t.Errorf("the conflict names %v", got)
	}
	call(t, s.queues().CreateQueue, &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "idle"}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.workers().Claim(ctx, connect.NewRequest(&carillonv1.ClaimRequest{
			Worker: "w", Queues: []string{"idle"}, Wait: durationpb.New(20 * time.Second),
		}))
		ended <- err
	}()
	await(t, 5*time.Second, "the claim waits", func() bool { return s.queue("idle").GetBacklog().GetWaitingClaims() == 1 })
	cancel()
	if err := <-ended; connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("the claim ended with %v", err)
	}
	await(t, 5*time.Second, "no claim waits", func() bool { return s.queue("idle").GetBacklog().GetWaitingClaims() == 0 })
	if out := s.cli("jobs", "history", "a"); strings.Contains(out, "Result:") {
		t.Errorf("the history of what no worker had says\n%s", out)
	}
	claimed := call(t, s.workers().Claim, &carillonv1.ClaimRequest{Worker: "w", Queues: []string{"mail"}}).GetLeases()
	if len(claimed) != 1 {
		t.Fatalf("claimed %v", claimed)
	}
	if out := s.cli("jobs", "history", "a"); !strings.Contains(out, "Result: carillon executions get "+claimed[0].GetExecutionId()) {
		t.Errorf("the history says\n%s", out)
	}
	if q := s.queue("mail"); q != nil {
		t.Errorf("the empty queue is still listed: %v", q)
	}
}

// TestWrongWaysAreShownTheRightOne: a path or a body that is nearly right is answered with what is.
func TestWrongWaysAreShownTheRightOne(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "2")
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{http.MethodGet, "/", "", 404, `{"code":"not_found","message":"no such path: /; the API is below /v1`},
		{http.MethodPost, "/jobs", "{}", 404, "did you mean /v1/jobs?"},
		{http.MethodPost, "/v1/jobs", `{"schedule": {"every": "10s"}}`, 400, `{\"interval\": \"10s\"}`},
		{http.MethodPost, "/v1/jobs", `{"schedule": {"delay": 5}}`, 400, `a duration in seconds, such as \"300s\"`},
	} {
		status, answer := s.send(c.method, c.path, "application/json", []byte(c.body))
		if status != c.status || !strings.Contains(answer, c.says) {
			t.Errorf("%s %s %s: %d %s\nwant %d and %q", c.method, c.path, c.body, status, answer, c.status, c.says)
		}
	}
}
