package route

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// cut has two nodes not hear each other.
func cut(a, b *node, is bool) {
	a.router.Suspect(b.store, is)
	b.router.Suspect(a.store, is)
}

// What one of two nodes leads that do not hear each other reaches the workers at the other, through the third.
func TestALeaderThatIsNotHeardIsAskedThroughAnother(t *testing.T) {
	_, a, b, _ := three(t)
	b.work.add(2, "q", 3)
	cut(a, b, true)
	got, err := a.poller.Poll(t.Context(), poll("c1", 7, 0))
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
	if again, err := a.poller.Poll(t.Context(), poll("c1", 7, 0)); err != nil || len(again) != 3 {
		t.Errorf("the same claim again: %v, %v", jobs(again), err)
	}
	if _, leased := b.work.counts(); leased != 3 {
		t.Errorf("%d leased", leased)
	}
}

// Without hints a poll that waits looks through the third node again and again.
func TestAWaitingPollLooksThroughAnother(t *testing.T) {
	_, a, b, _ := three(t)
	a.poller.recheckAfter = 20 * time.Millisecond
	a.work.waits = make(chan struct{}, 1000)
	cut(a, b, true)
	type answer struct {
		jobs []string
		err  error
	}
	ended := make(chan answer, 1)
	go func() {
		got, err := a.poller.Poll(t.Context(), poll("c1", 7, time.Minute))
		ended <- answer{jobs(got), err}
	}()
	<-a.work.waits
	b.work.add(2, "q", 2)
	if got := <-ended; got.err != nil || len(got.jobs) != 2 {
		t.Errorf("%v, %v", got.jobs, got.err)
	}
}

// A third node that does not hear the leader either has nothing, at once and without doubt; one that cannot tell says so.
func TestARelayThatFails(t *testing.T) {
	_, a, b, other := three(t)
	drop := func(is bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dropAnswers = is
	}
	b.work.add(2, "q", 3)
	cut(a, b, true)
	cut(other, b, true)
	if got, err := a.poller.Poll(t.Context(), poll("c1", 7, 0)); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", jobs(got), err)
	}
	cut(other, b, false)
	drop(true)
	var unavailable *rpc.Unavailable
	if _, err := a.poller.Poll(t.Context(), poll("c2", 7, 0)); !errors.As(err, &unavailable) || !unavailable.Ambiguous {
		t.Errorf("an answer lost between the leader and the third node: %v", err)
	}
	drop(false)
	got, err := a.poller.Poll(t.Context(), poll("c2", 7, 0))
	if err != nil || len(got) != 3 {
		t.Errorf("the claim again: %v, %v", jobs(got), err)
	}
}

func TestRelayIsRefused(t *testing.T) {
	s := &server{cfg: HandlerConfig{Self: "a"}}
	for code, store := range map[connect.Code]string{connect.CodeInvalidArgument: "a", connect.CodeUnavailable: "b"} {
		_, err := s.Poll(t.Context(), connect.NewRequest(&clusterv1.PollRequest{Store: store, Relay: true}))
		if connect.CodeOf(err) != code {
			t.Errorf("for store %s: %v", store, err)
		}
	}
}
