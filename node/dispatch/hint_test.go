package dispatch_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// told is what other nodes are told, and when.
type told struct {
	mu    sync.Mutex
	hints []toldHint
	// changed counts the calls of InterestChanged.
	changed int
	// then, if not nil, is called with each hint, on a goroutine of its own.
	then func(node string, queues []string)
}

type toldHint struct {
	node   string
	queues []string
	at     time.Time
}

func (o *told) config() dispatch.Config {
	return dispatch.Config{
		Hint: func(node string, queues []string) {
			o.mu.Lock()
			o.hints = append(o.hints, toldHint{node, queues, time.Now()})
			then := o.then
			o.mu.Unlock()
			if then != nil {
				go then(node, queues)
			}
		},
		InterestChanged: func() {
			o.mu.Lock()
			o.changed++
			o.mu.Unlock()
		},
	}
}

// take returns the hints since the last call.
func (o *told) take() []toldHint {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	hints := o.hints
	o.hints = nil
	return hints
}

func (o *told) changes() int {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.changed
	o.changed = 0
	return n
}

// mustBe checks hints, given as "node queue".
func mustBe(t *testing.T, hints []toldHint, want ...string) {
	t.Helper()
	var got []string
	for _, h := range hints {
		for _, q := range h.queues {
			got = append(got, h.node+" "+q)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("hints %q, want %q", got, want)
	}
}

func TestANodeIsToldOfWhatItsPollsWaitFor(t *testing.T) {
	var o told
	inWorld(t, 4, o.config(), func(t *testing.T, w *world) {
		w.d.SetInterest("n2", []string{"q", "other"})
		w.d.SetInterest("n3", []string{"q"})
		w.create(job{id: "b", queue: "nobody's"})
		time.Sleep(10 * time.Millisecond)
		mustBe(t, o.take())
		w.create(job{id: "a"})
		time.Sleep(10 * time.Millisecond)
		mustBe(t, o.take(), "n2 q", "n3 q")
		w.d.SetInterest("n3", nil)
		w.create(job{id: "c", in: time.Second})
		time.Sleep(time.Second)
		began := time.Now()
		o.take()
		time.Sleep(5 * time.Millisecond)
		for _, h := range o.take() {
			if h.node != "n2" || h.at.Sub(began) > 5*time.Millisecond {
				t.Errorf("%v at %v", h, h.at.Sub(began))
			}
		}
	})
}

// A hint does not say how much there is: what a poll leaves brings the next one.
func TestSmallPollsFromAfarDrainABacklog(t *testing.T) {
	var o told
	inWorld(t, 4, o.config(), func(t *testing.T, w *world) {
		w.create(numbered(50, job{})...)
		time.Sleep(time.Second)
		taken := make(chan int, 1000)
		o.then = func(_ string, queues []string) {
			taken <- len(w.pollFor(dispatch.PollRequest{ClaimID: fmt.Sprint(time.Now()), Worker: "w", Queues: queues, Max: 1}))
		}
		w.d.SetInterest("n2", []string{"q"})
		began := time.Now()
		for n := 0; n < 50; n += <-taken {
		}
		if took := time.Since(began); took > 400*time.Millisecond {
			t.Errorf("50 polls of one took %v", took)
		}
		w.d.SetInterest("n2", nil)
	})
}

// A poll that got nothing of what seems to be there brings no other one at once.
func TestAPollThatGotNothingIsNoNews(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.create(numbered(2, job{})...)
		time.Sleep(time.Second)
		var polls sync.WaitGroup
		w.held.Store(true)
		polls.Go(func() { w.poll("c", 1, time.Minute) })
		synctest.Wait()
		o.then = func(_ string, queues []string) {
			if got := w.pollFor(dispatch.PollRequest{ClaimID: "far", Worker: "w", Queues: queues, Max: 1}); len(got) > 0 {
				t.Errorf("got %v", ids(got))
			}
		}
		w.d.SetInterest("n2", []string{"q"})
		time.Sleep(190 * time.Millisecond)
		mustBe(t, o.take(), "n2 q")
		w.d.SetInterest("n2", nil)
		w.held.Store(false)
		w.signal()
		polls.Wait()
	})
}

// What is due is fired into the hands of the poll that the hint brings: one entry, as for a poll that waits here.
func TestDueTimersMeetThePollThatTheHintBrings(t *testing.T) {
	const turn = 2 * time.Millisecond // to the other node, and the same back
	var o told
	inWorld(t, 4, o.config(), func(t *testing.T, w *world) {
		o.then = func(_ string, queues []string) {
			time.Sleep(2 * turn)
			got := w.pollFor(dispatch.PollRequest{ClaimID: "far", Worker: "w", Queues: queues, Max: 10})
			if len(got) != 1 || late(got[0]) > 3*turn+turnTime {
				t.Errorf("got %v, late by %v", ids(got), late(got[0]))
			}
		}
		w.d.SetInterest("n2", []string{"q"})
		w.create(job{id: "a", in: 5 * time.Second})
		before := w.entries.Load()
		time.Sleep(6 * time.Second)
		if n := w.entries.Load() - before; n != 1 || w.claims.Load() != 0 || w.rowsOf(fsm.KindLeased) != 1 {
			t.Errorf("%d entries, %d claims, %d leased; must be 1, 0, 1", n, w.claims.Load(), w.rowsOf(fsm.KindLeased))
		}
		if hints := o.take(); len(hints) != 1 {
			t.Errorf("%d hints, must be 1: %v", len(hints), hints)
		}
	})
}

func TestWhatNobodyFetchesBecomesReadyAfterTheGrace(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.d.SetInterest("n2", []string{"q"})
		w.create(job{id: "a", in: time.Second})
		time.Sleep(time.Second + 90*time.Millisecond)
		if n := w.rowsOf(fsm.KindReady); n != 0 {
			t.Errorf("fired 90 ms after it was due, with a poll near")
		}
		time.Sleep(20 * time.Millisecond)
		if n := w.rowsOf(fsm.KindReady); n != 1 {
			t.Errorf("not fired after the grace")
		}
		if got := w.poll("c", 1, 0); len(got) != 1 {
			t.Errorf("a poll without wait got %v", ids(got))
		}
	})
}

func TestNobodyIsToldOfWhatAPollHereTakes(t *testing.T) {
	for _, n := range []int{1, 100} {
		for _, in := range []time.Duration{0, 10 * time.Millisecond} {
			t.Run(fmt.Sprintf("poll for %d, due in %v", n, in), func(t *testing.T) {
				var o told
				inWorld(t, 4, o.config(), func(t *testing.T, w *world) {
					w.d.SetInterest("n2", []string{"q"})
					for i := range 10 {
						var polls sync.WaitGroup
						polls.Go(func() {
							if got := w.poll(fmt.Sprint("c", i), n, time.Minute); len(got) != 1 {
								t.Errorf("poll %d got %v", i, ids(got))
							}
						})
						synctest.Wait()
						w.create(job{id: fmt.Sprint("j", i), in: in})
						polls.Wait()
					}
					mustBe(t, o.take())
				})
			})
		}
	}
}

// While a poll here is hungry what is there is left to it; when it leaves without, others are told.
func TestANodeIsToldWhenTheLastPollHereLeaves(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.d.SetInterest("n2", []string{"q"})
		var polls sync.WaitGroup
		polls.Go(func() { w.poll("first", 1, time.Minute) })
		synctest.Wait()
		w.create(job{id: "a", in: 10 * time.Millisecond}, job{id: "b", in: 20 * time.Millisecond})
		w.held.Store(true)
		polls.Go(func() { w.poll("second", 1, 50*time.Millisecond) })
		time.Sleep(49 * time.Millisecond)
		mustBe(t, o.take())
		time.Sleep(5 * time.Millisecond)
		mustBe(t, o.take(), "n2 q")
		w.held.Store(false)
		w.signal()
		polls.Wait()
	})
}

// What was on its way to a poll that has left, and did not get there, is for others.
func TestANodeIsToldOfWhatWasPromisedAndNotDelivered(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.d.SetInterest("n2", []string{"q"})
		var polls sync.WaitGroup
		polls.Go(func() { w.poll("c", 1, 20*time.Millisecond) })
		synctest.Wait()
		w.create(job{id: "a", in: 10 * time.Millisecond})
		w.held.Store(true)
		time.Sleep(30 * time.Millisecond)
		mustBe(t, o.take())
		w.refuse.Store(true)
		w.held.Store(false)
		w.signal()
		polls.Wait()
		w.refuse.Store(false)
		time.Sleep(5 * time.Millisecond)
		mustBe(t, o.take(), "n2 q")
	})
}

// What becomes ready without a round of the planner, such as a released lease, wakes it.
func TestANodeIsToldOfWhatAWorkerGivesBack(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.create(job{id: "a"})
		time.Sleep(time.Second)
		got := w.poll("c", 1, time.Second)
		w.d.SetInterest("n2", []string{"q"})
		time.Sleep(time.Second)
		mustBe(t, o.take())
		w.do(0, &storagev1.Command{Completions: &storagev1.Completions{Items: []*storagev1.Completion{{
			ExecutionId: fsm.ExecutionID(got[0]), Fencing: got[0].Fencing, Outcome: storagev1.Outcome_OUTCOME_RELEASED,
		}}}})
		time.Sleep(2 * time.Millisecond)
		mustBe(t, o.take(), "n2 q")
	})
}

func TestANodeIsToldOfWhatPollsHereLeave(t *testing.T) {
	for _, when := range []time.Duration{0, time.Second} {
		t.Run(fmt.Sprint("due in ", when), func(t *testing.T) {
			var o told
			inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
				w.d.SetInterest("n2", []string{"q"})
				var polls sync.WaitGroup
				polls.Go(func() { w.poll("c", 1, time.Minute) })
				synctest.Wait()
				w.create(numbered(3, job{in: when})...)
				polls.Wait()
				time.Sleep(10 * time.Millisecond)
				mustBe(t, o.take(), "n2 q")
			})
		})
	}
}

// A node is told when its interest arrives, and then again every 200 ms, as a hint may be lost; not with every repetition
// of its list.
func TestInterestInWhatIsThereIsAnsweredAtOnceAndNowAndThen(t *testing.T) {
	var o told
	inWorld(t, 2, o.config(), func(t *testing.T, w *world) {
		w.create(numbered(3, job{})...)
		time.Sleep(time.Second)
		mustBe(t, o.take())
		for range 19 {
			w.d.SetInterest("n2", []string{"none", "q"})
			time.Sleep(10 * time.Millisecond)
		}
		mustBe(t, o.take(), "n2 q")
		time.Sleep(100 * time.Millisecond)
		mustBe(t, o.take(), "n2 q")
		w.d.SetInterest("n3", []string{"q"})
		time.Sleep(10 * time.Millisecond)
		mustBe(t, o.take(), "n3 q")
		w.d.SetInterest("n2", []string{"none"})
		w.d.SetInterest("n3", nil)
		time.Sleep(time.Second)
		mustBe(t, o.take())
		if s := w.d.Stats(); len(s.Queues) != 1 {
			t.Errorf("queues that nothing of is here: %v", s.Queues)
		}
	})
}

func TestHintsOfAQueueAre5MillisecondsApart(t *testing.T) {
	var o told
	inWorld(t, 4, o.config(), func(t *testing.T, w *world) {
		w.d.SetInterest("n2", []string{"q"})
		jobs := numbered(100, job{})
		for i := range jobs {
			jobs[i].in = time.Second + time.Duration(i)*time.Millisecond
		}
		w.create(jobs...)
		time.Sleep(1200 * time.Millisecond)
		hints := o.take()
		if len(hints) < 15 || len(hints) > 42 { // due, and ready after the grace
			t.Errorf("%d hints in 200 ms", len(hints))
		}
		for i := range hints[1:] {
			if gap := hints[i+1].at.Sub(hints[i].at); gap < 5*time.Millisecond {
				t.Errorf("hints %v apart", gap)
			}
		}
	})
}

func TestWhileTheGuardHoldsNobodyIsTold(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.create(numbered(2, job{})...)
		time.Sleep(time.Second)
		w.mayFire.Store(false)
		w.d.SetInterest("n2", []string{"q"})
		began := time.Now()
		if got := w.poll("c", 1, 0); len(got) > 0 || time.Since(began) > 0 {
			t.Errorf("got %v after %v", ids(got), time.Since(began))
		}
		time.Sleep(time.Second)
		mustBe(t, o.take())
		w.mayFire.Store(true)
		w.d.ClockChanged()
		time.Sleep(2 * time.Millisecond)
		mustBe(t, o.take(), "n2 q")
	})
}

// A takeover reads for a while; others are told when what it found can be had.
func TestANodeIsToldOfWhatATakeoverFinds(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.create(job{id: "a", queue: "q1"}, job{id: "b", queue: "q2"})
		time.Sleep(time.Second)
		w.depose(w.shards[0])
		w.d.SetInterest("n2", []string{"q1", "q2"})
		time.Sleep(time.Second)
		mustBe(t, o.take())
		w.pause = func() { time.Sleep(10 * time.Millisecond) }
		w.lead(w.shards[0])
		ready := time.Now()
		for ; w.d.Ready() != nil; ready = time.Now() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		queues := map[string]bool{}
		for _, h := range o.take() {
			for _, q := range h.queues {
				queues[q] = queues[q] || ready.Sub(h.at) < 2*time.Millisecond
			}
		}
		if !queues["q1"] || !queues["q2"] {
			t.Errorf("told of when ready: %v", queues)
		}
		w.d.Stop()
		time.Sleep(time.Second)
		mustBe(t, o.take())
	})
}

func TestInterestIsBounded(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		w.create(job{id: "a"}, job{id: "b", queue: "last"})
		time.Sleep(time.Second)
		queues := make([]string, dispatch.MaxInterest, dispatch.MaxInterest+1)
		for i := range queues {
			queues[i] = fmt.Sprint("none", i)
		}
		queues[0] = "q"
		w.d.SetInterest("n0", append(queues, "last"))
		for i := 1; i < 64; i++ {
			w.d.SetInterest(fmt.Sprint("n", i), []string{"none"})
		}
		w.d.SetInterest("n64", []string{"q"})
		time.Sleep(10 * time.Millisecond)
		mustBe(t, o.take(), "n0 q")
		w.d.SetInterest("n1", nil)
		w.d.SetInterest("n64", []string{"q"})
		time.Sleep(10 * time.Millisecond)
		mustBe(t, o.take(), "n64 q")
	})
}
