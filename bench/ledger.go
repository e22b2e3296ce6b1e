package bench

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// ledger is the bench's own account of every item of a plan. The server is not trusted: what it acknowledged, delivered
// and accepted is written down here and compared. Safe for concurrent use; callers hand in whole batches.
type ledger struct {
	plan *plan

	mu    sync.Mutex
	items []account
	// again holds the last receipt of items that were delivered more than once: few, if the server is right.
	again map[int]time.Time
	tally tally
	// target is the number of completed items at which finished is closed; negative: not known yet.
	target    int
	finished  chan struct{}
	lastEvent time.Time
}

// account is what is known of one item.
type account struct {
	fencing    uint64 // of the last lease
	completed  uint64 // fencing number of the accepted completion
	latenessUS int32  // of the first receipt
	attempt    uint32 // of the last lease; 0: never delivered
	state      jobState
}

// jobState is what the bench was told about a create.
type jobState uint8

const (
	unsent   jobState = iota // never offered
	accepted                 // acknowledged: it must arrive
	unknown                  // the answer was lost or said so: it may arrive
	shed                     // refused: it must not arrive
)

// tally counts what the ledger saw, in items.
type tally struct {
	accepted    int // acknowledged creates
	shed        int // refused creates
	unknown     int // creates that may have been accepted
	delivered   int // received at least once
	completed   int // with an accepted completion
	redelivered int // further attempts after a lease had ended
	duplicates  int // deliveries nobody asked for, and second accepted completions
	early       int // received before nominal
	corrupt     int // payload, tenant, queue or nominal time is not the job's, or no such item was accepted
	stale       int // completions refused because the lease was no longer ours
	lost        int // acknowledged, but not completed; set by close
	examples    []string
}

// maxExamples bounds how many violations are kept in words.
const maxExamples = 10

// newLedger makes the account of p's items. target is the number of completions after which Finished is closed; negative
// if it is not known before expect.
func newLedger(p *plan, target int) *ledger {
	return &ledger{
		plan:      p,
		items:     make([]account, p.items()),
		again:     make(map[int]time.Time),
		target:    target,
		finished:  make(chan struct{}),
		lastEvent: time.Now(),
	}
}

// created notes the last word on the create of job i, for all its items.
func (l *ledger) created(i int, s jobState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for item := i; item < len(l.items); item += l.plan.n {
		l.items[item].state = s
		switch s {
		case accepted:
			l.tally.accepted++
		case shed:
			l.tally.shed++
		case unknown:
			l.tally.unknown++
		}
	}
}

// delivery is one lease that was received, to be completed.
type delivery struct {
	item  int
	lease *carillonv1.Lease
}

// receive notes leases that arrived at instant at and returns those that belong to this ledger's items. Payloads are
// checked before the lock is taken.
func (l *ledger) receive(at time.Time, leases []*carillonv1.Lease) []delivery {
	out := make([]delivery, 0, len(leases))
	var foreign []string
	for _, lease := range leases {
		item, why := l.plan.item(lease)
		if why != "" {
			foreign = append(foreign, fmt.Sprintf("execution %s: %s", lease.GetExecutionId(), why))
			continue
		}
		out = append(out, delivery{item: item, lease: lease})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastEvent = at
	for _, words := range foreign {
		l.note(&l.tally.corrupt, words)
	}
	for _, d := range out {
		l.receiveOne(at, d)
	}
	return out
}

func (l *ledger) receiveOne(at time.Time, d delivery) {
	item, lease := &l.items[d.item], d.lease
	due := time.UnixMilli(l.plan.due(d.item))
	if why := l.mismatch(d); why != "" {
		l.note(&l.tally.corrupt, fmt.Sprintf("%s: %s", l.plan.name(d.item), why))
	}
	if at.Before(due) {
		l.note(&l.tally.early, fmt.Sprintf("%s: received %v before its time", l.plan.name(d.item), due.Sub(at)))
	}
	if item.attempt == 0 {
		item.attempt, item.fencing = max(1, lease.GetAttempt()), lease.GetFencingNumber()
		item.latenessUS = int32(min(at.Sub(due).Microseconds(), math.MaxInt32))
		l.tally.delivered++
		return
	}
	l.receiveAgain(at, due, d)
}

// receiveAgain judges a delivery that was not the item's first: it is right only as the next attempt after a lease that
// has ended without a completion.
func (l *ledger) receiveAgain(at, due time.Time, d delivery) {
	item, lease := &l.items[d.item], d.lease
	last, seen := l.again[d.item]
	if !seen {
		last = due.Add(time.Duration(item.latenessUS) * time.Microsecond)
	}
	switch {
	case item.completed != 0:
		l.note(&l.tally.duplicates, l.plan.name(d.item)+": delivered again after its completion was accepted")
	case lease.GetAttempt() <= item.attempt || lease.GetFencingNumber() <= item.fencing:
		l.note(&l.tally.duplicates, fmt.Sprintf("%s: delivered twice as attempt %d, fencing numbers %d and %d",
			l.plan.name(d.item), lease.GetAttempt(), item.fencing, lease.GetFencingNumber()))
	case at.Sub(last) < lease.GetLeaseLength().AsDuration():
		l.note(&l.tally.duplicates, fmt.Sprintf("%s: delivered again after %v, under a lease of %v",
			l.plan.name(d.item), at.Sub(last), lease.GetLeaseLength().AsDuration()))
	default:
		l.tally.redelivered++
	}
	item.attempt, item.fencing = max(item.attempt, lease.GetAttempt()), max(item.fencing, lease.GetFencingNumber())
	l.again[d.item] = at
}

// mismatch says in what a delivery differs from the plan; empty: in nothing.
func (l *ledger) mismatch(d delivery) string {
	switch lease, job := d.lease, l.plan.job(d.item); {
	case lease.GetTenant() != l.plan.tenant(job):
		return "its tenant is " + lease.GetTenant()
	case lease.GetQueue() != l.plan.queue(job):
		return "its queue is " + lease.GetQueue()
	case !lease.GetNominalTime().AsTime().Equal(time.UnixMilli(l.plan.nominal(d.item))):
		return "its nominal time is " + lease.GetNominalTime().AsTime().Format(time.RFC3339Nano)
	}
	return ""
}

// complete notes the answers to completions and returns those to be sent again. An answer repeated under the same lease
// is the same completion.
func (l *ledger) complete(done []delivery, results []*carillonv1.CompleteResult) (again []delivery, err error) {
	if len(results) != len(done) {
		return nil, fmt.Errorf("complete %d executions: %d results", len(done), len(results))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastEvent = time.Now()
	for k, d := range done {
		if e := results[k].GetError(); e != nil {
			switch {
			case e.GetCode() == "failed_precondition":
				l.tally.stale++
			case retryableCode(e.GetCode()):
				again = append(again, d)
			default:
				return nil, fmt.Errorf("complete execution %s: %s: %s", d.lease.GetExecutionId(), e.GetCode(), e.GetMessage())
			}
			continue
		}
		if s := results[k].GetState(); s != carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED {
			l.note(&l.tally.corrupt, fmt.Sprintf("%s: completed with success, answered %v", l.plan.name(d.item), s))
		}
		l.completeOne(d)
	}
	l.checkFinished()
	return again, nil
}

func (l *ledger) completeOne(d delivery) {
	item, fencing := &l.items[d.item], d.lease.GetFencingNumber()
	switch {
	case item.completed == 0:
		item.completed = max(1, fencing)
		l.tally.completed++
	case item.completed != max(1, fencing):
		l.note(&l.tally.duplicates, fmt.Sprintf("%s: two completions accepted, fencing numbers %d and %d",
			l.plan.name(d.item), item.completed, fencing))
	}
}

// expect sets the number of completions after which finished is closed.
func (l *ledger) expect(target int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
	l.checkFinished()
}

// mayArrive is how many creates were acknowledged, or answered so that they may have been accepted.
func (l *ledger) mayArrive() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tally.accepted + l.tally.unknown
}

func (l *ledger) checkFinished() {
	if l.target < 0 || l.tally.completed < l.target {
		return
	}
	select {
	case <-l.finished:
	default:
		close(l.finished)
	}
}

// lastSeen is when something was last received or completed.
func (l *ledger) lastSeen() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastEvent
}

// close settles the account, after which nothing may arrive any more: what was acknowledged and not completed is lost,
// what was refused and yet delivered is corrupt.
func (l *ledger) close() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tally.lost = 0
	for i := range l.items {
		item := &l.items[i]
		switch {
		case item.state == accepted && item.completed == 0:
			l.note(&l.tally.lost, fmt.Sprintf("%s: accepted, %d attempts seen, not completed", l.plan.name(i), item.attempt))
		case (item.state == shed || item.state == unsent) && item.attempt != 0:
			l.note(&l.tally.corrupt, fmt.Sprintf("%s: delivered, but its create was refused", l.plan.name(i)))
		}
	}
	return l.tally
}

// note counts a violation and keeps the first ones in words.
func (l *ledger) note(counter *int, words string) {
	*counter++
	if len(l.tally.examples) < maxExamples {
		l.tally.examples = append(l.tally.examples, words)
	}
}

// lateness returns the first receipts' lateness in microseconds, one for each item delivered, in no order.
func (l *ledger) lateness() []int32 { return l.latenessOf(0, len(l.items)) }

// latenessOf is lateness of the items first to end-1.
func (l *ledger) latenessOf(first, end int) []int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]int32, 0, end-first)
	for i := first; i < end; i++ {
		if l.items[i].attempt != 0 {
			out = append(out, l.items[i].latenessUS)
		}
	}
	return out
}

// settled is the account of each item.
func (l *ledger) settled() []account {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.items)
}

// receipt is when an item was first received.
type receipt struct {
	dueMS      int64
	latenessUS int32
}

// atUS is the instant of receipt in microseconds UTC.
func (r receipt) atUS() int64 { return r.dueMS*1000 + int64(r.latenessUS) }

// receipts returns the first receipt of every item delivered, in no order.
func (l *ledger) receipts() []receipt {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]receipt, 0, l.tally.delivered)
	for i := range l.items {
		if l.items[i].attempt != 0 {
			out = append(out, receipt{dueMS: l.plan.due(i), latenessUS: l.items[i].latenessUS})
		}
	}
	return out
}
