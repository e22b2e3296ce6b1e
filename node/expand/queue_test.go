package expand

import (
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// batchOf is a batch that has an item for each job.
func batchOf(jobs []job) *Batch {
	b := &Batch{of: jobs, further: map[fsm.JobRef]bool{}}
	for range jobs {
		b.Items = append(b.Items, &storagev1.ExpandJob{})
	}
	return b
}

func TestQueueTakesEachJobOnce(t *testing.T) {
	q := NewQueue(20, &Counters{})
	for range 3 {
		for i := range maxBatch + 1 {
			q.Add(5, ref(fmt.Sprint(i)))
		}
	}
	first, _ := q.Take(10)
	if len(first) != maxBatch || q.Len() != maxBatch+1 {
		t.Fatalf("%d taken, %d wait", len(first), q.Len())
	}
	q.Add(10, first[0].ref) // while it is in flight
	if again, at := q.Take(50); again != nil || at != 0 {
		t.Fatalf("a second batch while one is in flight: %v %d", again, at)
	}
	b := batchOf(first)
	q.Evaluated(b)
	if err := q.Applied(12, b, make([]fsm.Item, maxBatch)); err != nil {
		t.Fatal(err)
	}
	if again, at := q.Take(12); again != nil || at != 30 {
		t.Fatalf("before its time: %v %d", again, at)
	}
	if last, _ := q.Take(30); len(last) != 1 || q.Len() != 1 {
		t.Fatalf("%d left, %d wait", len(last), q.Len())
	}
}

// What is refused or lost comes again, later each time, and holds nobody else up.
func TestQueueRetries(t *testing.T) {
	counts := &Counters{}
	q := NewQueue(0, counts)
	q.Add(1, ref("stale"), ref("gone"), ref("well"), ref("wrong"), ref("more"))
	jobs, _ := q.Take(1)
	b := batchOf(jobs)
	b.further[ref("more")] = true
	q.Evaluated(b)
	err := q.Applied(2, b, []fsm.Item{
		{Refusal: &fsm.Refusal{Code: fsm.Aborted}}, {Refusal: &fsm.Refusal{Code: fsm.NotFound}}, {},
		{Refusal: &fsm.Refusal{Code: fsm.InvalidArgument}}, {},
	})
	if err == nil || *counts != (Counters{Expanded: 2, Refused: 1, Failed: 1, WaitedMS: 2}) {
		t.Fatalf("%v, %+v", err, counts)
	}
	jobs, _ = q.Take(2)
	if len(jobs) != 1 || jobs[0].ref != ref("more") {
		t.Fatalf("taken %v", jobs)
	}
	q.Evaluated(&Batch{settled: jobs})
	at := int64(2)
	for _, pause := range []int64{20, 40, 80, 160, 320, 640, 1280, 2000, 2000} {
		if since, ok := q.Oldest(); !ok || since != 1 {
			t.Fatalf("waits since %d %v", since, ok)
		}
		if jobs, again := q.Take(at + pause - 1); jobs != nil || again != at+pause {
			t.Fatalf("%v, again at %d, not %d", jobs, again, at+pause)
		}
		at += pause
		jobs, _ := q.Take(at)
		if len(jobs) != 1 {
			t.Fatalf("at %d: %v", at, jobs)
		}
		b := batchOf(jobs)
		q.Evaluated(b)
		q.Lost(at, b)
	}
	jobs, _ = q.Take(at + 2000)
	q.Evaluated(&Batch{failed: jobs})
	if _, ok := q.Oldest(); ok || q.Len() != 0 || counts.Failed != 2 {
		t.Fatalf("%d wait, %+v", q.Len(), counts)
	}
}

// What was not evaluated stays at the head.
func TestQueueKeepsWhatIsLeft(t *testing.T) {
	q := NewQueue(0, &Counters{})
	q.Add(1, ref("a"), ref("b"))
	jobs, _ := q.Take(1)
	q.Add(1, ref("c"))
	q.Evaluated(&Batch{settled: jobs[:1], left: jobs[1:]})
	jobs, _ = q.Take(1)
	if len(jobs) != 2 || jobs[0].ref != ref("b") || jobs[1].ref != ref("c") {
		t.Fatalf("%v", jobs)
	}
}
