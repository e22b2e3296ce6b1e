package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/node/clock"
	"github.com/carillon-scheduler/carillon/rpc"
)

// timers is a dispatcher and its shards, reduced to instants: roused, it fires what is due.
type timers struct {
	a      *advancer
	shards map[uint32][]int64
	// again is how long after its instant one stands in its shard anew; 0: never.
	again int64
	// stuck: nothing fires; busy: what has fired is not handed out yet.
	stuck, busy bool
	// fired are instants, late how much later than them the clock stood, in order.
	fired, late []int64
}

func newTimers(beginMS int64, shards map[uint32][]int64) *timers {
	w := &timers{shards: shards}
	w.a = newAdvancer(clock.NewVirtual(beginMS, 0))
	w.a.quiet = func() (nextMS int64, quiet bool, err error) {
		nextMS = math.MaxInt64
		for _, list := range w.shards {
			for _, at := range list {
				nextMS = min(nextMS, at)
			}
		}
		return nextMS, !w.busy, nil
	}
	w.a.rouse = w.fire
	return w
}

func (w *timers) advance(ctx context.Context, toMS int64) error {
	w.a.aim(toMS, 0)
	return w.a.advance(ctx)
}

// fire does one entry's worth in each shard: what is due, in order.
func (w *timers) fire() {
	now := w.a.clock.Now()
	var due []int64
	for id, list := range w.shards {
		slices.Sort(list)
		n, found := slices.BinarySearch(list, now+1)
		if w.stuck || n == 0 && !found {
			continue
		}
		due = append(due, list[:n]...)
		for _, at := range list[:n] {
			if w.again > 0 {
				list = append(list, at+w.again)
			}
		}
		w.shards[id] = list[n:]
	}
	w.a.told()
	w.a.changed.poke()
	slices.Sort(due)
	for _, at := range due {
		w.fired, w.late = append(w.fired, at), append(w.late, now-at)
	}
}

func TestAdvanceStepsFromInstantToInstant(t *testing.T) {
	w := newTimers(1000, map[uint32][]int64{1: {1500, 4000}, 2: {1500, 2000, 9000}, 3: {}})
	if err := w.advance(t.Context(), 5000); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(w.fired) != "[1500 1500 2000 4000]" || slices.Max(w.late) != 0 {
		t.Errorf("fired %v, late %v", w.fired, w.late)
	}
	if w.a.clock.Now() != 5000 {
		t.Errorf("the clock stands at %d", w.a.clock.Now())
	}
	if err := w.advance(t.Context(), 9000); err != nil || w.fired[4] != 9000 {
		t.Errorf("fired %v, %v", w.fired, err)
	}
}

// What becomes due because something fired is on the way too.
func TestAdvanceFindsWhatFiringMakesDue(t *testing.T) {
	w := newTimers(0, map[uint32][]int64{1: {7}, 2: {11}})
	w.again = 10
	if err := w.advance(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(w.fired) != "[7 11 17 21 27]" || slices.Max(w.late) != 0 {
		t.Errorf("fired %v, late %v", w.fired, w.late)
	}
}

func TestAdvanceWaitsForWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTimers(0, map[uint32][]int64{1: {10, 20}})
		w.stuck = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.advance(ctx, 30); !errors.Is(err, context.DeadlineExceeded) || w.a.clock.Now() != 10 {
			t.Fatalf("%v at %d; must wait at 10 for what is due there", err, w.a.clock.Now())
		}
		w.stuck = false
		w.fire()
		if err := w.advance(t.Context(), 30); err != nil || fmt.Sprint(w.fired) != "[10 20]" || slices.Max(w.late) != 0 {
			t.Errorf("fired %v, late %v, %v", w.fired, w.late, err)
		}
	})
}

// What has fired is in the hands of those who wait for it before time goes on.
func TestAdvanceWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTimers(0, map[uint32][]int64{1: {10, 20}})
		done := make(chan error)
		w.a.rouse = func() {
			w.busy = true
			w.fire()
		}
		go func() { done <- w.advance(t.Context(), 30) }()
		for _, at := range []int64{10, 20, 30} {
			synctest.Wait()
			if now := w.a.clock.Now(); now != at {
				t.Fatalf("the clock stands at %d; want %d", now, at)
			}
			w.busy = false
			w.a.changed.poke()
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAdvanceEndsWhenTheNodeStops(t *testing.T) {
	w := newTimers(0, map[uint32][]int64{1: {10}})
	stopping := make(chan struct{})
	close(stopping)
	w.stuck, w.a.stopping = true, stopping
	var unavailable *rpc.Unavailable
	if err := w.advance(t.Context(), 30); !errors.As(err, &unavailable) {
		t.Errorf("%v", err)
	}
}

func TestAdvanceEndsWhenWhatIsDueCannotBeRead(t *testing.T) {
	w := newTimers(0, map[uint32][]int64{7: {10}})
	read, broken := w.a.quiet, errors.New("checksum")
	w.a.quiet = func() (int64, bool, error) { return 0, false, broken }
	if err := w.advance(t.Context(), 30); !errors.Is(err, broken) || w.a.clock.Now() != 0 {
		t.Fatalf("%v at %d", err, w.a.clock.Now())
	}
	w.a.quiet = read
	if err := w.advance(t.Context(), 30); err != nil || fmt.Sprint(w.fired) != "[10]" {
		t.Errorf("fired %v, %v", w.fired, err)
	}
}

// An entry of which some have been told and others not, while all are asked: they are asked again.
func TestAdvanceAsksAgainAfterAnEntry(t *testing.T) {
	w := newTimers(0, map[uint32][]int64{1: {10}})
	quiet, asked := w.a.quiet, 0
	w.a.quiet = func() (int64, bool, error) {
		next, ok, err := quiet()
		if asked++; asked == 1 {
			w.shards[1] = []int64{5, 10}
			w.a.told()
		}
		return next, ok, err
	}
	if err := w.advance(t.Context(), 30); err != nil || fmt.Sprint(w.fired) != "[5 10]" || slices.Max(w.late) != 0 {
		t.Errorf("fired %v, late %v, %v", w.fired, w.late, err)
	}
}

// Twenty thousand instants in two hundred seconds: the first of them are exact, the others are late by less than what a step
// costs, all are in order, and the steps are bounded.
func TestAdvanceOverManyInstantsTakesFewSteps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var instants []int64
	for at := int64(0); len(instants) < 20_000; {
		at += random.Int64N(20) + 1
		instants = append(instants, at)
	}
	goal := instants[len(instants)-1] + 1
	w := newTimers(0, map[uint32][]int64{1: slices.Clone(instants)})
	steps := 0
	w.a.rouse = func() {
		steps++
		w.fire()
	}
	if err := w.advance(t.Context(), goal); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.fired, instants) {
		t.Fatal("not all have fired in order")
	}
	if exact := slices.IndexFunc(w.late, func(late int64) bool { return late > 0 }); exact < exactSteps {
		t.Errorf("%d are exact; want %d", exact, exactSteps)
	}
	if most := slices.Max(w.late); most >= stepCostMS {
		t.Errorf("one is late by %d ms", most)
	}
	if most := exactSteps + int(goal/stepCostMS) + 2; steps > most {
		t.Errorf("%d steps; want at most %d", steps, most)
	}
}

// Who asks again for a goal goes on with what is left for it; the next goal has its own.
func TestStepsArePaidForOncePerGoal(t *testing.T) {
	w := newTimers(0, map[uint32][]int64{1: {}})
	for at := range int64(exactSteps + 100) {
		w.shards[1] = append(w.shards[1], at+1)
	}
	goal := int64(exactSteps + 100)
	rouse, steps := w.a.rouse, 0
	ctx, cancel := context.WithCancel(t.Context())
	w.a.rouse = func() {
		if steps++; steps == exactSteps/2 {
			cancel()
			return
		}
		rouse()
	}
	if err := w.advance(ctx, goal); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	rouse()
	if err := w.advance(t.Context(), goal); err != nil || steps > exactSteps+int(goal)/stepCostMS+2 {
		t.Errorf("%d steps, %v; want %d", steps, err, exactSteps)
	}
	w.shards[1] = []int64{goal + 1, goal + 2}
	w.late = nil
	if err := w.advance(t.Context(), goal+10); err != nil || fmt.Sprint(w.late) != "[0 0]" {
		t.Errorf("on the way to the next goal they are late by %v, %v", w.late, err)
	}
}
