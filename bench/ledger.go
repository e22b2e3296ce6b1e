package bench

import (
	"fmt"
	"math"
	"sync"
	"time"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// ledger is the bench's own account of every job of a plan. The server is not trusted: what it acknowledged, delivered
// and accepted is written down here and compared. Safe for concurrent use; callers hand in whole batches.
type ledger struct {
	plan *plan

	mu   sync.Mutex
	jobs []account
	// again holds the last receipt of jobs that were delivered more than once: few, if the server is right.
	again map[int]time.Time
	tally tally
	// target is the number of completed jobs at which finished is closed; negative: not known yet.
	target    int
	finished  chan struct{}
	lastEvent time.Time
}

// account is what is known of one job.
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

// tally counts what the ledger saw.
type tally struct {
	accepted    int // acknowledged creates
	shed        int // refused creates
	unknown     int // creates that may have been accepted
	delivered   int // jobs received at least once
	completed   int // jobs with an accepted completion
	redelivered int // further attempts after a lease had ended
	duplicates  int // deliveries nobody asked for, and second accepted completions
	early       int // received before nominal
	corrupt     int // payload, tenant, queue or nominal time is not the job's, or no such job was accepted
	stale       int // completions refused because the lease was no longer ours
	lost        int // acknowledged, but not completed; set by close
	examples    []string
}

// maxExamples bounds how many violations are kept in words.
const maxExamples = 10

// newLedger makes the account of p's jobs. target is the number of completions after which Finished is closed; negative
// if it is not known before expect.
func newLedger(p *plan, target int) *ledger {
	return &ledger{
		plan:      p,
		jobs:      make([]account, p.n),
		again:     make(map[int]time.Time),
		target:    target,
		finished:  make(chan struct{}),
		lastEvent: time.Now(),
	}
}

// created notes the last word on the create of job i.
func (l *ledger) created(i int, s jobState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jobs[i].state = s
	switch s {
	case accepted:
		l.tally.accepted++
	case shed:
		l.tally.shed++
	case unknown:
		l.tally.unknown++
	}
}

// delivery is one lease that was received, to be completed.
type delivery struct {
	job   int
	lease *carillonv1.Lease
}

// receive notes leases that arrived at instant at and returns those that belong to this ledger's jobs. Payloads are
// checked before the lock is taken.
func (l *ledger) receive(at time.Time, leases []*carillonv1.Lease) []delivery {
	out := make([]delivery, 0, len(leases))
	var foreign []string
	for _, lease := range leases {
		i, ok := l.plan.number(lease.GetPayload())
		if !ok {
			foreign = append(foreign, fmt.Sprintf("execution %s: its payload belongs to no job", lease.GetExecutionId()))
			continue
		}
		out = append(out, delivery{job: i, lease: lease})
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
	job, lease := &l.jobs[d.job], d.lease
	due := time.UnixMilli(l.plan.due(d.job))
	if why := l.mismatch(d, due); why != "" {
		l.note(&l.tally.corrupt, fmt.Sprintf("job %d: %s", d.job, why))
	}
	if at.Before(due) {
		l.note(&l.tally.early, fmt.Sprintf("job %d: received %v before its time", d.job, due.Sub(at)))
	}
	if job.attempt == 0 {
		job.attempt, job.fencing = max(1, lease.GetAttempt()), lease.GetFencingNumber()
		job.latenessUS = int32(min(at.Sub(due).Microseconds(), math.MaxInt32))
		l.tally.delivered++
		return
	}
	l.receiveAgain(at, due, d)
}

// receiveAgain judges a delivery that was not the job's first: it is right only as the next attempt after a lease that
// has ended without a completion.
func (l *ledger) receiveAgain(at, due time.Time, d delivery) {
	job, lease := &l.jobs[d.job], d.lease
	last, seen := l.again[d.job]
	if !seen {
		last = due.Add(time.Duration(job.latenessUS) * time.Microsecond)
	}
	switch {
	case job.completed != 0:
		l.note(&l.tally.duplicates, fmt.Sprintf("job %d: delivered again after its completion was accepted", d.job))
	case lease.GetAttempt() <= job.attempt || lease.GetFencingNumber() <= job.fencing:
		l.note(&l.tally.duplicates, fmt.Sprintf("job %d: delivered twice as attempt %d, fencing numbers %d and %d",
			d.job, lease.GetAttempt(), job.fencing, lease.GetFencingNumber()))
	case at.Sub(last) < lease.GetLeaseLength().AsDuration():
		l.note(&l.tally.duplicates, fmt.Sprintf("job %d: delivered again after %v, under a lease of %v",
			d.job, at.Sub(last), lease.GetLeaseLength().AsDuration()))
	default:
		l.tally.redelivered++
	}
	job.attempt, job.fencing = max(job.attempt, lease.GetAttempt()), max(job.fencing, lease.GetFencingNumber())
	l.again[d.job] = at
}

// mismatch says in what a delivery differs from the job's plan; empty: in nothing.
func (l *ledger) mismatch(d delivery, due time.Time) string {
	switch lease := d.lease; {
	case lease.GetTenant() != l.plan.tenant(d.job):
		return "its tenant is " + lease.GetTenant()
	case lease.GetQueue() != l.plan.queue(d.job):
		return "its queue is " + lease.GetQueue()
	case !lease.GetNominalTime().AsTime().Equal(due):
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
			l.note(&l.tally.corrupt, fmt.Sprintf("job %d: completed with success, answered %v", d.job, s))
		}
		l.completeOne(d)
	}
	l.checkFinished()
	return again, nil
}

func (l *ledger) completeOne(d delivery) {
	job, fencing := &l.jobs[d.job], d.lease.GetFencingNumber()
	switch {
	case job.completed == 0:
		job.completed = max(1, fencing)
		l.tally.completed++
	case job.completed != max(1, fencing):
		l.note(&l.tally.duplicates, fmt.Sprintf("job %d: two completions accepted, fencing numbers %d and %d",
			d.job, job.completed, fencing))
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
	for i := range l.jobs {
		job := &l.jobs[i]
		switch {
		case job.state == accepted && job.completed == 0:
			l.note(&l.tally.lost, fmt.Sprintf("job %d: accepted, %d attempts seen, not completed", i, job.attempt))
		case (job.state == shed || job.state == unsent) && job.attempt != 0:
			l.note(&l.tally.corrupt, fmt.Sprintf("job %d: delivered, but its create was refused", i))
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

// lateness returns the first receipts' lateness in microseconds, one for each job delivered, in no order.
func (l *ledger) lateness() []int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]int32, 0, l.tally.delivered)
	for i := range l.jobs {
		if l.jobs[i].attempt != 0 {
			out = append(out, l.jobs[i].latenessUS)
		}
	}
	return out
}

// receipt is when a job was first received.
type receipt struct {
	dueMS      int64
	latenessUS int32
}

// atUS is the instant of receipt in microseconds UTC.
func (r receipt) atUS() int64 { return r.dueMS*1000 + int64(r.latenessUS) }

// receipts returns the first receipt of every job delivered, in no order.
func (l *ledger) receipts() []receipt {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]receipt, 0, l.tally.delivered)
	for i := range l.jobs {
		if l.jobs[i].attempt != 0 {
			out = append(out, receipt{dueMS: l.plan.due(i), latenessUS: l.jobs[i].latenessUS})
		}
	}
	return out
}
