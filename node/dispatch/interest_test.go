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
)

func TestInterestIsWhatHungryPollsWaitFor(t *testing.T) {
	var o told
	inWorld(t, 2, o.config(), func(t *testing.T, w *world) {
		must := func(want ...string) {
			t.Helper()
			if got := w.d.Interest(); !slices.Equal(got, want) {
				t.Errorf("interest in %q, want %q", got, want)
			}
		}
		must()
		var polls sync.WaitGroup
		poll := func(claim string, n int, wait time.Duration, queues ...string) {
			polls.Go(func() {
				w.pollFor(dispatch.PollRequest{ClaimID: claim, Worker: "w", Queues: queues, Max: n, Wait: wait})
			})
			synctest.Wait()
		}
		poll("a", 1, time.Second, "q", "b")
		time.Sleep(time.Millisecond)
		if n := o.changes(); n != 1 {
			t.Errorf("told %d times of a first poll", n)
		}
		must("b", "q")
		poll("b", 1, 2*time.Second, "q")
		time.Sleep(10 * time.Millisecond)
		if n := o.changes(); n != 0 {
			t.Errorf("told %d times of what was known", n)
		}
		time.Sleep(time.Second)
		must("q")
		w.create(job{id: "x"})
		polls.Wait()
		must()
		// What is there is taken without ever wanting it.
		w.create(job{id: "y"})
		time.Sleep(time.Second)
		w.held.Store(true)
		poll("c", 2, 0, "q")
		must()
		w.held.Store(false)
		w.signal()
		polls.Wait()
		time.Sleep(time.Millisecond)
		if n := o.changes(); n != 0 {
			t.Errorf("told %d times of polls without a wait", n)
		}
	})
}

// A retry that waits, of a poll that did not, waits like any other.
func TestAWaitingRetryIsOfInterest(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(job{id: "a"})
		time.Sleep(time.Second)
		w.held.Store(true)
		var polls sync.WaitGroup
		for i, wait := range []time.Duration{0, time.Second} {
			polls.Go(func() { w.poll("c", 2, wait) })
			synctest.Wait()
			if got := len(w.d.Interest()); got != i {
				t.Errorf("poll %d: interest in %d queues", i, got)
			}
		}
		w.held.Store(false)
		w.signal()
		polls.Wait()
		if got := w.d.Interest(); len(got) > 0 {
			t.Errorf("interest in %q is left behind", got)
		}
	})
}

func TestChangesOfInterestAreGathered(t *testing.T) {
	var o told
	inWorld(t, 1, o.config(), func(t *testing.T, w *world) {
		var polls sync.WaitGroup
		for i := range 50 {
			polls.Go(func() {
				w.pollFor(dispatch.PollRequest{ClaimID: fmt.Sprint(i), Worker: "w", Queues: []string{fmt.Sprint("q", i)}, Max: 1, Wait: time.Second})
			})
			time.Sleep(time.Millisecond)
			w.d.Interest()
		}
		time.Sleep(10 * time.Millisecond)
		if n := o.changes(); n < 5 || n > 12 {
			t.Errorf("told %d times in 60 ms", n)
		}
		if n := len(w.d.Interest()); n != 50 {
			t.Errorf("interest in %d queues, want 50", n)
		}
		polls.Wait()
	})
}

// A poll without a wait costs no plan and no time when nothing of its queues is there, whatever else falls due.
func TestAskingForNothingIsCheap(t *testing.T) {
	inWorld(t, 4, dispatch.Config{Quantum: 20 * time.Millisecond}, func(t *testing.T, w *world) {
		jobs := numbered(200, job{})
		for i := range jobs {
			jobs[i].in = time.Second + time.Duration(i)*time.Millisecond
		}
		w.create(jobs...)
		time.Sleep(time.Second - time.Millisecond)
		before := w.d.Stats().Plans
		for range 2000 {
			began := time.Now()
			got := w.pollFor(dispatch.PollRequest{ClaimID: "c", Worker: "w", Queues: []string{"idle"}, Max: 1})
			if len(got) > 0 || time.Since(began) > 0 {
				t.Fatalf("got %v after %v", ids(got), time.Since(began))
			}
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(time.Second)
		if n := w.d.Stats().Plans - before; n > 40 {
			t.Errorf("%d plans", n)
		}
		if n := w.rowsOf(fsm.KindReady); n != 200 {
			t.Errorf("%d of 200 were fired", n)
		}
	})
}

func TestAPollWhoseWaitIsOverWaitsForWhatIsUnderWay(t *testing.T) {
	inWorld(t, 1, dispatch.Config{}, func(t *testing.T, w *world) {
		began := time.Now()
		w.create(job{id: "a", in: time.Second})
		w.held.Store(true)
		time.AfterFunc(1700*time.Millisecond, func() {
			w.held.Store(false)
			w.signal()
		})
		if got := w.poll("c", 5, 1500*time.Millisecond); len(got) != 1 || time.Since(began) < 1700*time.Millisecond {
			t.Errorf("got %v after %v", ids(got), time.Since(began))
		}
	})
}
