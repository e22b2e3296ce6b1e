package route

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/proto/codec"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func poll(claim string, most int, wait time.Duration) rpc.PollRequest {
	return rpc.PollRequest{ClaimID: claim, Worker: "w", Queues: []string{"q"}, Max: most, Wait: wait}
}

func jobs(leases []*storagev1.Execution) (ids []string) {
	for _, e := range leases {
		ids = append(ids, e.JobId)
	}
	slices.Sort(ids)
	return ids
}

// three is a cluster of a, b and c, which lead shards 1, 2 and 3.
func three(t *testing.T) (c *cluster, a, b, other *node) {
	c = newCluster(t, "a", "b", "c")
	c.withPollers("a", "b", "c")
	return c, c.nodes["a"], c.nodes["b"], c.nodes["c"]
}

func TestAPollTakesFromOneLeaderAfterTheOtherWhatItLacks(t *testing.T) {
	_, a, b, c := three(t)
	a.work.add(1, "q", 2)
	b.work.add(2, "q", 3)
	c.work.add(3, "q", 10)
	got, err := a.poller.Poll(t.Context(), poll("c1", 7, time.Minute))
	if err != nil || len(got) != 7 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
	leased := 0
	for _, n := range []*node{a, b, c} {
		_, l := n.work.counts()
		leased += l
		for i, most := range n.work.asked {
			if most > 7 || i > 0 {
				t.Errorf("%s was asked for %v", n.store, n.work.asked)
			}
		}
	}
	if leased != 7 {
		t.Errorf("%d leases for a poll of 7", leased)
	}
}

// A node that does not hear another one gets no leases of it: they would be lost on their way.
func TestASuspectGetsNoLeases(t *testing.T) {
	_, a, b, _ := three(t)
	b.work.add(2, "q", 3)
	b.router.Suspect("a", true)
	if got, err := a.poller.Poll(t.Context(), poll("c1", 7, 0)); err != nil || len(got) != 0 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
	if ready, leased := b.work.counts(); ready != 3 || leased != 0 {
		t.Errorf("%d ready, %d leased", ready, leased)
	}
	b.router.Suspect("a", false)
	if got, err := a.poller.Poll(t.Context(), poll("c2", 7, 0)); err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
}

// A worker is sent to another node from one that has nobody to ask, also one that waits already; a node that leads, or hears
// one that does, keeps it.
func TestANodeThatIsCutOffKeepsNoPoll(t *testing.T) {
	_, a, _, _ := three(t)
	a.poller.cfg.Leaders = func() []string { return []string{"b", "c"} }
	a.work.waits = make(chan struct{}, 100)
	ended := make(chan error, 1)
	go func() {
		_, err := a.poller.Poll(t.Context(), poll("c1", 1, time.Minute))
		ended <- err
	}()
	<-a.work.waits
	a.router.Suspect("b", true)
	a.poller.Disturbed()
	<-a.work.waits // it hears c
	a.router.Suspect("c", true)
	a.poller.Disturbed()
	var unavailable *rpc.Unavailable
	if err := <-ended; !errors.As(err, &unavailable) || unavailable.Ambiguous || unavailable.RetryAfter <= 0 {
		t.Errorf("the waiting poll ends with %v", err)
	}
	if _, err := a.poller.Poll(t.Context(), poll("c2", 1, 0)); !errors.As(err, &unavailable) {
		t.Errorf("a new one with %v", err)
	}
	a.poller.cfg.Leaders = func() []string { return []string{"a", "b"} }
	if _, err := a.poller.Poll(t.Context(), poll("c3", 1, 0)); err != nil {
		t.Errorf("where it leads: %v", err)
	}
}

func TestAPollWithoutWaitEnds(t *testing.T) {
	_, a, b, c := three(t)
	if got, err := a.poller.Poll(t.Context(), poll("c1", 7, 0)); err != nil || len(got) != 0 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
	for _, n := range []*node{a, b, c} {
		if len(n.work.asked) != 1 {
			t.Errorf("%s was asked %d times", n.store, len(n.work.asked))
		}
	}
	if names := a.poller.Interest(); len(names) != 0 {
		t.Errorf("interested in %v", names)
	}
}

func TestAHintWakesAWaitingPoll(t *testing.T) {
	c, a, b, _ := three(t)
	told := make(chan struct{}, 1)
	a.poller.hints.interested = func() { told <- struct{}{} }
	a.work.waits = make(chan struct{}, 100)
	type answer struct {
		got []*storagev1.Execution
		err error
	}
	answers := make(chan answer, 2)
	for i := range 2 {
		go func() {
			got, err := a.poller.Poll(t.Context(), poll(fmt.Sprint("c", i), 5, time.Minute))
			answers <- answer{got, err}
		}()
		<-a.work.waits
	}
	<-told
	if names := a.poller.Interest(); !slices.Equal(names, []string{"q"}) {
		t.Fatalf("interested in %v", names)
	}
	began := time.Now()
	b.work.add(2, "q", 1)
	first := <-answers
	t.Logf("woken in %v", time.Since(began))
	if first.err != nil || !slices.Equal(jobs(first.got), []string{"2:b:1"}) {
		t.Fatalf("%v, %v", jobs(first.got), first.err)
	}
	// The other one still waits, and is woken by what the local dispatcher gets.
	a.work.add(1, "q", 1)
	if second := <-answers; second.err != nil || !slices.Equal(jobs(second.got), []string{"1:a:1"}) {
		t.Fatalf("%v, %v", jobs(second.got), second.err)
	}
	if len(told) != 0 {
		t.Error("the second poll of a queue told again of interest")
	}
	_ = c
}

func TestAHintThatComesBetweenAskingAndWaitingIsNotLost(t *testing.T) {
	_, a, b, _ := three(t)
	// b becomes ready, and hints, just after it was asked.
	var once sync.Once
	a.poller.hints.interested = func() { once.Do(func() { b.work.add(2, "q", 1) }) }
	got, err := a.poller.Poll(t.Context(), poll("c1", 5, time.Minute))
	if err != nil || !slices.Equal(jobs(got), []string{"2:b:1"}) {
		t.Fatalf("%v, %v", jobs(got), err)
	}
}

func TestWhatIsLeftWakesTheNextPoll(t *testing.T) {
	_, a, b, _ := three(t)
	a.work.waits = make(chan struct{}, 100)
	answers := make(chan int, 4)
	for i := range 4 {
		go func() {
			got, err := a.poller.Poll(t.Context(), poll(fmt.Sprint("c", i), 2, time.Minute))
			if err != nil {
				t.Error(err)
			}
			answers <- len(got)
		}()
		<-a.work.waits
	}
	b.work.add(2, "q", 8) // one hint
	for range 4 {
		if n := <-answers; n != 2 {
			t.Errorf("a poll got %d", n)
		}
	}
}

// TestW10 lets polls at all nodes race for less than they ask for: each gets at most what it asked for, and nothing is
// leased to nobody.
func TestW10NeverMoreLeasesThanAskedFor(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	c, a, b, other := three(t)
	ctx, stop := context.WithCancel(t.Context())
	var polls sync.WaitGroup
	var mu sync.Mutex
	delivered := 0
	full := make(chan struct{})
	const total = 600
	for i := range 60 {
		n := []*node{a, b, other}[i%3]
		most := 1 + random.IntN(12)
		polls.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				got, err := n.poller.Poll(ctx, poll(fmt.Sprintf("c%d-%d", i, k), most, 10*time.Second))
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("poll: %v", err)
				}
				if len(got) > most {
					t.Errorf("%d leases for a poll of %d", len(got), most)
				}
				mu.Lock()
				if delivered += len(got); delivered == total && len(got) > 0 {
					close(full)
				}
				mu.Unlock()
			}
		})
	}
	for done := 0; done < total; {
		n := min(1+random.IntN(20), total-done)
		at := random.IntN(3)
		c.nodes[string(rune('a'+at))].work.add(uint32(at+1), "q", n)
		done += n
	}
	select {
	case <-full:
	case <-time.After(20 * time.Second):
		t.Error("not everything was delivered")
	}
	stop()
	polls.Wait()
	ready, leased := 0, 0
	for _, n := range c.nodes {
		r, l := n.work.counts()
		ready, leased = ready+r, leased+l
	}
	if delivered != total || leased != total || ready != 0 {
		t.Errorf("%d delivered, %d leased, %d ready of %d", delivered, leased, ready, total)
	}
}

func TestMuchWorkHereDoesNotStarveTheOthers(t *testing.T) {
	_, a, b, _ := three(t)
	a.work.add(1, "q", 10_000)
	if _, err := a.poller.Poll(t.Context(), poll("first", 1, 0)); err != nil {
		t.Fatal(err)
	}
	b.work.add(2, "q", 100) // nobody waits anywhere: no hint
	a.poller.hints.mu.Lock()
	a.poller.hints.queues["q"].asked = time.Now().Add(-neglectAfter)
	a.poller.hints.mu.Unlock()
	there := 0
	for i := range 40 {
		got, err := a.poller.Poll(t.Context(), poll(fmt.Sprint("c", i), 10, 0))
		if err != nil || len(got) != 10 {
			t.Fatalf("%v, %v", jobs(got), err)
		}
		for _, e := range got {
			if shardOf(e.Tenant, e.JobId) == 2 {
				there++
			}
		}
	}
	if there != 100 {
		t.Errorf("%d of 100 executions of the other leader were delivered in 40 polls", there)
	}
}

func TestALostCallerGivesLeasesBack(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		t.Run(where, func(t *testing.T) {
			c, a, _, _ := three(t)
			n := c.nodes[where]
			n.work.add(map[string]uint32{"a": 1, "b": 2}[where], "q", 3)
			ctx, cancel := context.WithCancel(t.Context())
			n.work.onTake = cancel
			if got, err := a.poller.Poll(ctx, poll("c1", 5, time.Minute)); !errors.Is(err, context.Canceled) || len(got) != 0 {
				t.Fatalf("%v, %v", jobs(got), err)
			}
			n.work.mu.Lock()
			n.work.onTake = nil
			n.work.mu.Unlock()
			// Another worker gets them, as soon as they are back.
			got, err := n.poller.Poll(t.Context(), poll("c2", 5, time.Minute))
			for len(got) == 0 && err == nil {
				got, err = n.poller.Poll(t.Context(), poll("c2", 5, time.Minute))
			}
			if err != nil || len(got) == 0 {
				t.Fatalf("%v, %v", jobs(got), err)
			}
		})
	}
}

func TestAnAnswerThatCannotBeWrittenGivesLeasesBack(t *testing.T) {
	_, a, _, _ := three(t)
	_, handler := NewHandler(HandlerConfig{Self: "a", Local: func() Local { return a }, Member: member{a}})
	a.work.add(1, "q", 3)
	body, err := (codec.Proto{}).Marshal(&clusterv1.PollRequest{Store: "a", ClaimId: "c1", Queues: []string{"q"}, Max: 5})
	if err != nil {
		t.Fatal(err)
	}
	call := func(w http.ResponseWriter) {
		r := httptest.NewRequest(http.MethodPost, "/carillon.cluster.v1.NodeService/Poll", newBody(body))
		r.Header.Set("Content-Type", "application/proto")
		handler.ServeHTTP(w, r)
	}
	call(brokenWriter{httptest.NewRecorder()})
	if ready, leased := a.work.counts(); ready != 3 || leased != 0 {
		t.Errorf("%d ready, %d leased after an answer that was not written", ready, leased)
	}
	rec := httptest.NewRecorder()
	call(rec)
	if ready, leased := a.work.counts(); rec.Code != http.StatusOK || ready != 0 || leased != 3 {
		t.Errorf("%d ready, %d leased after an answer that was (%d)", ready, leased, rec.Code)
	}
}

func TestARetriedClaimGetsTheSameLeases(t *testing.T) {
	for _, retriedAt := range []string{"a", "c"} {
		t.Run("at "+retriedAt, func(t *testing.T) {
			c, a, b, _ := three(t)
			b.work.add(2, "q", 2)
			first, err := a.poller.Poll(t.Context(), poll("c1", 5, time.Minute))
			if err != nil || len(first) != 2 {
				t.Fatalf("%v, %v", jobs(first), err)
			}
			for i, n := range []*node{a, b, c.nodes["c"]} { // new work everywhere
				n.work.add(uint32(i+1), "q", 20)
			}
			if retriedAt != "a" {
				c.nodes["c"].router.Suspect("a", true) // callers of a come to c
			}
			again, err := c.nodes[retriedAt].poller.Poll(t.Context(), poll("c1", 5, time.Minute))
			if err != nil || !slices.Equal(jobs(again), jobs(first)) {
				t.Errorf("%v became %v, %v", jobs(first), jobs(again), err)
			}
		})
	}
}

func TestAPollWhoseAnswerIsLostIsMadeOnceMore(t *testing.T) {
	_, a, b, _ := three(t)
	b.work.add(2, "q", 3)
	b.mu.Lock()
	b.dropAnswers = true
	b.mu.Unlock()
	b.work.onTake = func() {
		b.work.mu.Lock()
		b.work.onTake = nil
		b.work.mu.Unlock()
		b.restoreAfterThis()
	}
	got, err := a.poller.Poll(t.Context(), poll("c1", 5, time.Minute))
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
	if _, leased := b.work.counts(); leased != 3 {
		t.Errorf("%d leased", leased)
	}
}

// A leader that dies with the answers to both tries may have leased something: the caller is not told that there is nothing, but
// to ask again, and then gets the leases.
func TestAPollInDoubtIsNotAnsweredWithNothing(t *testing.T) {
	_, a, b, _ := three(t)
	b.work.add(2, "q", 3)
	drop := func(is bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dropAnswers = is
	}
	drop(true)
	got, err := a.poller.Poll(t.Context(), poll("c1", 5, 0))
	var unavailable *rpc.Unavailable
	if !errors.As(err, &unavailable) || !unavailable.Ambiguous || len(got) != 0 {
		t.Fatalf("%v, %v; must be in doubt", jobs(got), err)
	}
	drop(false)
	got, err = a.poller.Poll(t.Context(), poll("c1", 5, time.Minute))
	if err != nil || len(got) != 3 {
		t.Errorf("%v, %v", jobs(got), err)
	}
	// With something else to give, it is given.
	b.work.add(2, "r", 1)
	a.work.add(1, "r", 1)
	drop(true)
	req := poll("c2", 5, time.Minute)
	req.Queues = []string{"r"}
	if got, err = a.poller.Poll(t.Context(), req); len(got) != 1 && !errors.As(err, &unavailable) {
		t.Errorf("%v, %v", jobs(got), err)
	}
}

func TestADeadLeaderIsPassedOver(t *testing.T) {
	_, a, b, c := three(t)
	b.server.Close()
	c.work.add(3, "q", 3)
	got, err := a.poller.Poll(t.Context(), poll("c1", 5, time.Minute))
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
}

// endless is a dispatcher that has stopped: it answers at once with nothing.
type stoppedWork struct{ *node }

func (stoppedWork) Poll(context.Context, dispatch.PollRequest) ([]*storagev1.Execution, error) {
	return nil, nil
}

func TestAStoppedDispatcherEndsPolls(t *testing.T) {
	_, a, _, _ := three(t)
	a.poller.local = stoppedWork{a}
	if got, err := a.poller.Poll(t.Context(), poll("c1", 5, time.Hour)); err != nil || len(got) != 0 {
		t.Fatalf("%v, %v", jobs(got), err)
	}
}

func TestErrorsOfTheDispatcherAreTheAPIs(t *testing.T) {
	for sent, want := range map[error]string{
		dispatch.ErrTooManyPolls: "*rpc.Overloaded", dispatch.ErrClaimInUse: "*rpc.Refused", dispatch.ErrInvalidPoll: "*rpc.Refused",
	} {
		if got := fmt.Sprintf("%T", pollError(sent)); got != want {
			t.Errorf("%v became %s", sent, got)
		}
		if pollCode(sent) == connect.CodeInternal {
			t.Errorf("%v travels as internal", sent)
		}
	}
}

func TestHintsAreBounded(t *testing.T) {
	h := newHints(nil)
	w := h.enter([]string{"kept"})
	for i := range 3 * maxHintedQueues {
		h.mark("b", []string{fmt.Sprint("q", i)})
	}
	if len(h.queues) > maxHintedQueues {
		t.Errorf("%d queues remembered", len(h.queues))
	}
	if names := h.interest(time.Now()); !slices.Equal(names, []string{"kept"}) {
		t.Errorf("interested in %v", names)
	}
	h.leave(w)
	if names := h.interest(time.Now()); !slices.Equal(names, []string{"kept"}) {
		t.Errorf("a moment after its last poll left, interested in %v", names)
	}
	if names := h.interest(time.Now().Add(2 * interestLinger)); len(names) != 0 {
		t.Errorf("interested in %v for ever", names)
	}
}

func TestClaimsAreForgotten(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newClaims(now)
	c.remember("a", now)
	if !c.maybeRetried("a", now.Add(claimMemory)) || c.maybeRetried("b", now) {
		t.Error("claims are not told apart")
	}
	if c.maybeRetried("a", now.Add(3*claimMemory)) {
		t.Error("a claim is remembered for ever")
	}
	for i := range 3 * maxClaims {
		c.remember(fmt.Sprint(i), now.Add(4*claimMemory))
	}
	if n := len(c.young) + len(c.old); n > 2*maxClaims {
		t.Errorf("%d claims remembered", n)
	}
}

// TestAWokenPollThatHasOtherwiseGotSomethingWakesTheNext: of two polls the first is woken by a hint at the moment at which
// it gets something here; the hint is then for the second.
func TestAWokenPollThatHasOtherwiseGotSomethingWakesTheNext(t *testing.T) {
	h := newHints(nil)
	first, second := h.enter([]string{"q"}), h.enter([]string{"q"})
	woken := map[*waiter]bool{}
	for _, w := range []*waiter{first, second} {
		h.arm(w, func() { woken[w] = true })
	}
	h.mark("b", []string{"q"})
	if !woken[first] || woken[second] {
		t.Fatalf("a hint woke %v", woken)
	}
	h.leave(first)
	if !woken[second] {
		t.Error("the hint was lost with the poll that did not go for it")
	}
	h.clear("b", []string{"q"})
	third := h.enter([]string{"q"})
	h.arm(third, func() { woken[third] = true })
	h.leave(second)
	if woken[third] {
		t.Error("a poll was woken for what has been fetched")
	}
}

func TestAnAnswerHoldsNoMoreThanFits(t *testing.T) {
	_, a, _, _ := three(t)
	a.work.add(1, "q", 3)
	for _, e := range a.work.ready {
		e.Result = make([]byte, maxAnswerBytes/2-1000)
	}
	s := &server{cfg: HandlerConfig{Self: "a", Local: a.current}}
	res, err := s.Poll(t.Context(), connect.NewRequest(&clusterv1.PollRequest{Store: "a", ClaimId: "c1", Queues: []string{"q"}, Max: 3}))
	if err != nil || len(res.Msg.Executions) != 2 {
		t.Fatalf("%v, %v", res, err)
	}
	if ready, leased := a.work.counts(); ready != 1 || leased != 2 {
		t.Errorf("%d ready, %d leased", ready, leased)
	}
}

func TestALostHintDelaysAPollOnlyForAWhile(t *testing.T) {
	_, a, b, _ := three(t)
	a.poller.recheckAfter = 50 * time.Millisecond
	var once sync.Once
	a.poller.hints.interested = func() {
		once.Do(func() {
			b.work.addQuietly(2, "q", 1)
		})
	}
	got, err := a.poller.Poll(t.Context(), poll("c1", 5, time.Minute))
	if err != nil || !slices.Equal(jobs(got), []string{"2:b:1"}) {
		t.Fatalf("%v, %v", jobs(got), err)
	}
	if n := a.router.Counters(); n.Hints != 0 || n.Leases != 1 || n.Polls < 3 || n.Calls < n.Polls || n.CallsFailed != 0 {
		t.Errorf("%+v", n)
	}
}
