package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// unavailable checks that err says so.
func unavailable(t *testing.T, err error, ambiguous bool) {
	t.Helper()
	var u *rpc.Unavailable
	if !errors.As(err, &u) || u.Ambiguous != ambiguous || u.RetryAfter <= 0 {
		t.Fatalf("got %#v (%v), want unavailable with ambiguous=%v and a hint", err, err, ambiguous)
	}
}

func TestCommandsGoToTheirLeadersInOneCallEach(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.lead(1, "a")
	c.lead(2, "b")
	c.lead(3, "c")
	cmds := commands(100, 1, 2, 3)
	for i, out := range c.nodes["a"].router.DoAll(t.Context(), cmds) {
		want := fmt.Sprintf("%s/%s", c.leader(cmds[i].Shard), cmds[i].Command.RequestId)
		if out.Err != nil || out.Result.ExecutionID != want || len(out.Result.Items) != 1 {
			t.Fatalf("command %d: %+v, want %s", i, out, want)
		}
	}
	for store, n := range c.nodes {
		if calls, commands := n.called(); calls != 1 || commands != 100 {
			t.Errorf("%s: %d commands in %d calls", store, commands, calls)
		}
	}
	if got := c.nodes["c"].calls[0][0].Command; got.TraceId != "trace" || got.TriggerJob.JobId != "job0" {
		t.Errorf("the command became %v", got)
	}
}

func TestAHintIsFollowed(t *testing.T) {
	for _, thought := range []string{"a", "b", ""} { // where the caller, a, thinks the leader is
		t.Run(thought, func(t *testing.T) {
			c := newCluster(t, "a", "b", "c")
			c.lead(1, "c")
			c.believe(1, thought)
			c.nodes["a"].hint, c.nodes["b"].hint = "c", "c"
			res, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
			if err != nil || res.ExecutionID != "c/1-0" {
				t.Fatalf("%+v, %v", res, err)
			}
		})
	}
}

func TestHintsInACircleEnd(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.believe(1, "b")
	c.nodes["b"].hint, c.nodes["c"].hint = "c", "b"
	_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
	unavailable(t, err, false)
	b, _ := c.nodes["b"].called()
	other, _ := c.nodes["c"].called()
	if b+other != maxAttempts {
		t.Errorf("%d calls, want %d", b+other, maxAttempts)
	}
}

func TestAStaleTermIsTriedAtTheNewLeader(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.lead(1, "c")
	c.believe(1, "b")
	c.nodes["b"].propose = func(context.Context, []rpc.ShardCommand) []rpc.Outcome {
		c.believe(1, "c")
		return []rpc.Outcome{{Result: fsm.Result{Refusal: &fsm.Refusal{Code: fsm.StaleTerm}}}}
	}
	if res, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command); err != nil || res.ExecutionID != "c/1-0" {
		t.Fatalf("%+v, %v", res, err)
	}
	c.believe(1, "b")
	c.nodes["b"].propose = func(context.Context, []rpc.ShardCommand) []rpc.Outcome {
		return []rpc.Outcome{{Result: fsm.Result{Refusal: &fsm.Refusal{Code: fsm.StaleTerm}}}}
	}
	_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
	unavailable(t, err, false)
}

func TestAnUnknownOutcomeIsNotRepeated(t *testing.T) {
	t.Run("the leader says so", func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.lead(1, "b")
		c.nodes["b"].propose = func(context.Context, []rpc.ShardCommand) []rpc.Outcome {
			return []rpc.Outcome{{Err: replica.ErrAmbiguous}}
		}
		_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
		unavailable(t, err, true)
		if calls, _ := c.nodes["b"].called(); calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
	t.Run("the answer is lost", func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.lead(1, "b")
		c.nodes["b"].dropAnswers = true
		c.nodes["b"].propose = func(context.Context, []rpc.ShardCommand) []rpc.Outcome {
			c.believe(1, "a") // the leader changes: a second attempt would go there
			return []rpc.Outcome{{}}
		}
		_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
		unavailable(t, err, true)
		b, _ := c.nodes["b"].called()
		if here, _ := c.nodes["a"].called(); b != 1 || here != 0 {
			t.Errorf("%d calls there, %d here", b, here)
		}
	})
}

func TestWhatNeverLeftIsNotAmbiguous(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.lead(1, "b")
		c.nodes["b"].server.Close()
		_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
		unavailable(t, err, false)
	})
	t.Run("no address", func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.believe(1, "nobody")
		_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
		unavailable(t, err, false)
	})
	t.Run("another store at the address", func(t *testing.T) {
		c := newCluster(t, "a", "b", "old")
		c.lead(1, "b")
		c.believe(1, "old")
		c.nodes["old"].server.Config.Handler = c.nodes["b"].server.Config.Handler
		_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
		unavailable(t, err, false)
	})
	t.Run("it leads elsewhere by then", func(t *testing.T) {
		c := newCluster(t, "a", "b", "c")
		c.lead(1, "c")
		c.nodes["b"].server.Close()
		asked := 0
		c.nodes["a"].router.cfg.Leader = func(uint32) string { // first b is thought to lead, then it is c
			if asked++; asked == 1 {
				return "b"
			}
			return "c"
		}
		if res, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command); err != nil || res.ExecutionID != "c/1-0" {
			t.Fatalf("%+v, %v", res, err)
		}
	})
}

func TestErrorsInTheAPIsTerms(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	for _, here := range []bool{true, false} {
		at := c.nodes["b"]
		caller := c.nodes["a"].router
		if here {
			caller = at.router
		}
		for sent, want := range map[error]error{
			replica.ErrOverloaded: &rpc.Overloaded{}, replica.ErrTooLarge: &rpc.Refused{}, replica.ErrStopped: &rpc.Unavailable{},
			replica.ErrNoReplica: &rpc.Unavailable{},
		} {
			at.propose = func(context.Context, []rpc.ShardCommand) []rpc.Outcome { return []rpc.Outcome{{Err: sent}} }
			_, err := caller.Do(t.Context(), 1, commands(1, 1)[0].Command)
			if fmt.Sprintf("%T", err) != fmt.Sprintf("%T", want) {
				t.Errorf("%v (here: %v) became %T %v", sent, here, err, err)
			}
		}
	}
}

func TestAShardThatStandsStillDoesNotHideTheOthers(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	c.lead(2, "b")
	c.nodes["b"].propose = func(ctx context.Context, cmds []rpc.ShardCommand) []rpc.Outcome {
		<-ctx.Done()
		return []rpc.Outcome{{Result: fsm.Result{ExecutionID: "done"}}, {Err: replica.ErrAmbiguous}}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	out := c.nodes["a"].router.DoAll(ctx, commands(1, 1, 2))
	if ctx.Err() != nil {
		t.Error("the answer did not come before the deadline")
	}
	if out[0].Err != nil || out[0].Result.ExecutionID != "done" {
		t.Errorf("the shard that works: %+v", out[0])
	}
	unavailable(t, out[1].Err, true)
}

func TestADeadlineEndsACall(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	release := make(chan struct{})
	c.nodes["b"].propose = func(context.Context, []rpc.ShardCommand) []rpc.Outcome {
		<-release
		return []rpc.Outcome{{}}
	}
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.nodes["a"].router.Do(ctx, 1, commands(1, 1)[0].Command); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if c.nodes["a"].router.Open("b") {
		t.Error("a short deadline tripped the breaker")
	}
}

func TestADeadPeerFailsAtOnce(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	router, cmd := c.nodes["a"].router, commands(1, 1)[0].Command
	c.nodes["b"].dropAnswers = true
	for range failuresToTrip {
		_, err := router.Do(t.Context(), 1, cmd)
		unavailable(t, err, true)
	}
	before, _ := c.nodes["b"].called()
	_, err := router.Do(t.Context(), 1, cmd)
	unavailable(t, err, false)
	if after, _ := c.nodes["b"].called(); after != before || !router.Open("b") {
		t.Errorf("it was called %d times with the breaker open", after-before)
	}
	// It comes back; the transport hears it before the cool-down ends.
	c.nodes["b"].mu.Lock()
	c.nodes["b"].dropAnswers = false
	c.nodes["b"].mu.Unlock()
	router.Suspect("b", false)
	if _, err := router.Do(t.Context(), 1, cmd); err != nil || router.Open("b") {
		t.Fatalf("after it came back: %v", err)
	}
}

func TestSuspicionEndsCallsUnderWay(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	called, release := make(chan struct{}), make(chan struct{})
	c.nodes["b"].propose = func(context.Context, []rpc.ShardCommand) []rpc.Outcome {
		close(called)
		<-release
		return []rpc.Outcome{{}}
	}
	defer close(release)
	router := c.nodes["a"].router
	done := make(chan error)
	go func() {
		_, err := router.Do(t.Context(), 1, commands(1, 1)[0].Command)
		done <- err
	}()
	<-called
	router.Suspect("b", true)
	unavailable(t, <-done, true)
	_, err := router.Do(t.Context(), 1, commands(1, 1)[0].Command)
	unavailable(t, err, false)
}

// TestAPeerThatTakesNoConnectionIsTriedOnce: its listener's queue is full, as a frozen machine's is.
func TestAPeerThatCannotBeReachedIsTriedOnce(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	client := *c.nodes["a"].router.cfg.HTTP
	client.Transport = unreachableTransport{}
	c.nodes["a"].router.cfg.HTTP = &client
	_, err := c.nodes["a"].router.Do(t.Context(), 1, commands(1, 1)[0].Command)
	unavailable(t, err, false)
	if !c.nodes["a"].router.Open("b") {
		t.Error("a connection that timed out did not trip the breaker")
	}
}

func TestLargeBatchesAreCut(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	cmds := commands(2*maxCallCommands+1, 1)
	for i, out := range c.nodes["a"].router.DoAll(t.Context(), cmds) {
		if out.Err != nil || out.Result.ExecutionID != "b/"+cmds[i].Command.RequestId {
			t.Fatalf("command %d: %+v", i, out)
		}
	}
	if calls, commands := c.nodes["b"].called(); calls != 3 || commands != len(cmds) {
		t.Errorf("%d commands in %d calls", commands, calls)
	}
	large := commands(20, 1)
	var at []int
	for i := range large {
		large[i].Command.CreateJobs = &storagev1.CreateJobs{Items: []*storagev1.CreateJob{{Template: &storagev1.Template{Payload: make([]byte, 1<<20)}}}}
		at = append(at, i)
	}
	batch := &batch{r: c.nodes["a"].router, cmds: large}
	var sizes, back []int
	for piece := range batch.pieces("b", at) {
		sizes, back = append(sizes, len(piece)), append(back, piece...)
	}
	if !slices.Equal(back, at) || slices.Max(sizes) > maxCallBytes>>20 || len(sizes) > 20/(maxCallBytes>>20-1)+1 {
		t.Errorf("20 commands of 1 MiB became calls of %v", sizes)
	}
}

func TestNodesDescribeThemselves(t *testing.T) {
	c := newCluster(t, "a", "b")
	status, err := c.nodes["a"].router.NodeStatus(t.Context(), "b", &clusterv1.NodeStatusRequest{})
	if err != nil || status.Node.Store != "b" {
		t.Errorf("%v, %v", status, err)
	}
}

var _ net.Error = timeoutError{}

type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
