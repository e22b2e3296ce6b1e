package expand

import (
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
)

const (
	// retryFirst and retryLast are the pauses, in ms, before what was refused is tried again; they double.
	retryFirst int64 = 20
	retryLast  int64 = 2000
	// maxWaiting bounds a queue. A job beyond it asks again.
	maxWaiting = 1 << 17
)

// Queue is which jobs of a shard wait for an expansion, during one leadership. A job waits once, however often it asks, and
// one batch is in flight at a time. Its instants are milliseconds of any clock that runs evenly: they only pace.
type Queue struct {
	// paceMS is the least time between two batches, so that under load they grow rather than become many.
	paceMS int64
	// known are the jobs that wait, rest, or are in flight. waiting are those that may go, first come first served; resting
	// were refused and go at a time of their own, in order of it.
	known            map[fsm.JobRef]struct{}
	waiting, resting []job
	// flight is what was taken and is not settled.
	flight []job
	// nextAt is when the next batch may go.
	nextAt int64
	counts *Counters
}

// Counters only grow.
type Counters struct {
	// Expanded jobs; Refused are items that were out of date or whose command was lost, each tried again; Failed are jobs that
	// could not be evaluated.
	Expanded, Refused, Failed uint64
	// Passed are missed instants that were passed over.
	Passed uint64
	// WaitedMS is how long the expanded jobs have waited in all, from when they asked until their expansion was applied.
	WaitedMS int64
}

// job is a job that waits: since when, how often it was refused, and, if it rests, until when.
type job struct {
	ref       fsm.JobRef
	since, at int64
	tries     int
}

// NewQueue is an empty queue whose batches are at least paceMS apart. It counts in counts, which several may share.
func NewQueue(paceMS int64, counts *Counters) *Queue {
	return &Queue{paceMS: paceMS, known: map[fsm.JobRef]struct{}{}, counts: counts}
}

// Add lets jobs wait that do not yet.
func (q *Queue) Add(at int64, refs ...fsm.JobRef) {
	for _, ref := range refs {
		if !q.Waits(ref) && len(q.known) < maxWaiting {
			q.known[ref] = struct{}{}
			q.waiting = append(q.waiting, job{ref: ref, since: at})
		}
	}
}

// Waits says whether a job is not done with yet.
func (q *Queue) Waits(ref fsm.JobRef) bool {
	_, waits := q.known[ref]
	return waits
}

// Len is how many jobs wait, rest or are in flight.
func (q *Queue) Len() int { return len(q.known) }

// Take begins a batch: the jobs whose turn it is. If there is none it returns when to ask again, 0 if not before something
// changes. What is taken goes to Evaluator.Evaluate and then to Evaluated.
func (q *Queue) Take(at int64) (jobs []job, againAt int64) {
	rested, _ := slices.BinarySearchFunc(q.resting, at+1, func(j job, at int64) int { return int(j.at - at) })
	q.waiting = append(q.waiting, q.resting[:rested]...)
	q.resting = slices.Delete(q.resting, 0, rested)
	switch {
	case len(q.flight) > 0:
		return nil, 0
	case len(q.waiting) == 0 && len(q.resting) == 0:
		return nil, 0
	case len(q.waiting) == 0:
		return nil, q.resting[0].at
	case q.nextAt > at:
		return nil, q.nextAt
	}
	n := min(len(q.waiting), maxBatch)
	jobs, q.waiting = q.waiting[:n:n], q.waiting[n:]
	q.flight, q.nextAt = jobs, at+q.paceMS
	return jobs, 0
}

// Evaluated says what came of evaluating a batch. If it has a command, that is to be proposed, and Applied or Lost told what
// became of it.
func (q *Queue) Evaluated(b *Batch) {
	for _, list := range [][]job{b.settled, b.failed} {
		for _, j := range list {
			delete(q.known, j.ref)
		}
	}
	q.counts.Failed += uint64(len(b.failed))
	q.waiting = append(slices.Clone(b.left), q.waiting...)
	q.flight = b.of
}

// Applied takes in the results of a batch's items: what was out of date is tried again, from its row as it is then. It
// returns an error that names the first item that the state machine holds to be wrong in itself.
func (q *Queue) Applied(at int64, b *Batch, results []fsm.Item) (wrong error) {
	q.flight = nil
	for i, j := range b.of {
		item := b.Items[i]
		switch r := results[i].Refusal; {
		case r == nil:
			q.counts.Expanded++
			q.counts.Passed += item.PassedCount
			q.counts.WaitedMS += at - j.since
			delete(q.known, j.ref)
			if b.further[j.ref] {
				q.Add(at, j.ref)
			}
		case r.Code == fsm.Aborted:
			q.rest(at, j)
		case r.Code == fsm.NotFound, r.Code == fsm.FailedPrecondition:
			delete(q.known, j.ref) // it fires no more, or is known better
		default:
			q.counts.Failed++
			delete(q.known, j.ref)
			if wrong == nil {
				wrong = &WrongItem{item, r}
			}
		}
	}
	return wrong
}

// Lost puts a batch back whose command had no effect, or none that is known.
func (q *Queue) Lost(at int64, b *Batch) {
	q.flight = nil
	for _, j := range b.of {
		q.rest(at, j)
	}
}

// rest lets a job go again after a pause.
func (q *Queue) rest(at int64, j job) {
	q.counts.Refused++
	j.at = at + min(retryFirst<<min(j.tries, 10), retryLast)
	j.tries++
	i, _ := slices.BinarySearchFunc(q.resting, j.at+1, func(j job, at int64) int { return int(j.at - at) })
	q.resting = slices.Insert(q.resting, i, j)
}

// Oldest is since when the job has waited that waits longest; ok is false if none does.
func (q *Queue) Oldest() (at int64, ok bool) {
	for _, list := range [][]job{q.flight, q.waiting, q.resting} {
		for _, j := range list {
			if !ok || j.since < at {
				at, ok = j.since, true
			}
		}
	}
	return at, ok
}
