package dispatch

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"time"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// PollRequest asks for up to Max executions of Queues, waiting up to Wait for the first.
type PollRequest struct {
	// ClaimID is the poll's identity: a retry with it gets the leases that are live under it.
	ClaimID string
	Worker  string
	Queues  []string
	// Max is 1 to MaxLeasesPerPoll.
	Max int
	// LeaseMS is the length of the leases; 0: each job's own.
	LeaseMS int64
	// Wait is how long to wait for the first; 0 asks for what is there, which takes an entry to get.
	Wait time.Duration
}

func (r *PollRequest) validate() error {
	switch {
	case r.ClaimID == "":
		return fmt.Errorf("%w: no claim id", ErrInvalidPoll)
	case r.Max < 1 || r.Max > MaxLeasesPerPoll:
		return fmt.Errorf("%w: max %d is not from 1 to %d", ErrInvalidPoll, r.Max, MaxLeasesPerPoll)
	case r.LeaseMS < 0:
		return fmt.Errorf("%w: negative lease", ErrInvalidPoll)
	case len(r.Queues) == 0 || len(r.Queues) > MaxQueuesPerPoll:
		return fmt.Errorf("%w: %d queues are not from 1 to %d", ErrInvalidPoll, len(r.Queues), MaxQueuesPerPoll)
	}
	return nil
}

// poll is a waiting request. Guarded by Dispatcher.mu; got is fixed once done is closed.
type poll struct {
	req PollRequest
	seq uint64
	// queues, and the poll's place among the hungry of each, nil where it has none.
	queues []*queue
	seats  []*list.Element
	got    []*storagev1.Execution
	// reserved is what rounds under way may still bring.
	reserved int
	// waiters are the calls that wait, or have been handed the leases: retries of one claim wait together. With none left
	// the leases are given back.
	waiters int
	// joined: there has been more than one. Fixed once done is closed.
	joined bool
	// closing: takes no more than what is reserved. settled: done is closed.
	closing, settled bool
	// waits: a call of it waits for what is not there yet.
	waits       bool
	done        chan struct{}
	lingerUntil time.Time
}

// lacks is how many more executions the poll may take on. Locked.
func (p *poll) lacks() int {
	if p.closing || p.settled {
		return 0
	}
	return p.req.Max - len(p.got) - p.reserved
}

// Poll returns at least one lease, or none when the wait is over. It never returns more than req.Max. A retry of a claim
// whose leases are live gets the same again, and one whose first call is still waiting waits with it. If ctx ends before
// the leases are handed over they are given back, not counted, and ctx's error is returned. The executions are shared and
// must not be changed.
func (d *Dispatcher) Poll(ctx context.Context, req PollRequest) ([]*storagev1.Execution, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	nowMS, mayFire := d.host.Now(), d.host.MayFire()
	d.mu.Lock()
	if d.polls[req.ClaimID] == nil {
		if held := d.leasesOf(req.ClaimID); len(held) > 0 {
			d.share(req.ClaimID)
			d.mu.Unlock()
			leases, err := d.readLeases(req.ClaimID, held)
			if err != nil || len(leases) > 0 {
				return leases[:min(len(leases), req.Max)], err
			}
			d.mu.Lock()
		}
	}
	p, err := d.enter(&req, nowMS, mayFire)
	d.mu.Unlock()
	if err != nil || p == nil {
		return nil, err
	}
	signal(d.wakePlanner)
	return d.wait(ctx, p, req.Wait)
}

// enter joins the poll of that claim id, or adds one. It returns nil for a poll that would not wait and for which there
// is nothing. Locked.
func (d *Dispatcher) enter(req *PollRequest, nowMS int64, mayFire bool) (*poll, error) {
	if d.stopped {
		return nil, nil
	}
	if p := d.polls[req.ClaimID]; p != nil {
		if p.req.Worker != req.Worker || p.req.Max != req.Max {
			return nil, ErrClaimInUse
		}
		p.waiters++
		p.joined = true
		if req.Wait > 0 {
			d.stay(p)
		}
		return p, nil
	}
	if len(d.polls) >= d.cfg.MaxPolls {
		return nil, ErrTooManyPolls
	}
	now, waits := time.Now(), req.Wait > 0
	if !waits {
		if !mayFire || !d.anythingFor(req.Queues, nowMS, now) {
			return nil, nil
		}
		// What is there takes a plan and an entry to get.
		req.Wait = d.cfg.Linger
	}
	d.pollSeq++
	p := &poll{req: *req, seq: d.pollSeq, waiters: 1, waits: waits, done: make(chan struct{})}
	p.req.Queues = slices.Compact(slices.Sorted(slices.Values(req.Queues)))
	for _, name := range p.req.Queues {
		q := d.refer(name)
		q.lastPoll = now
		p.queues = append(p.queues, q)
	}
	p.seats = make([]*list.Element, len(p.queues))
	d.polls[req.ClaimID] = p
	d.sit(p)
	return p, nil
}

// anythingFor says whether a poll of these queues may get something at once. Locked.
func (d *Dispatcher) anythingFor(names []string, nowMS int64, now time.Time) bool {
	for _, sh := range d.led {
		if sh.ready {
			d.tick(sh, nowMS, now)
		}
	}
	return slices.ContainsFunc(names, func(name string) bool {
		q := d.queues[name]
		return q != nil && q.something() > 0
	})
}

// wait waits on the caller's goroutine.
func (d *Dispatcher) wait(ctx context.Context, p *poll, wait time.Duration) ([]*storagev1.Execution, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-p.done:
		return d.handOver(ctx, p)
	case <-ctx.Done():
		return nil, d.leave(ctx, p)
	case <-timer.C:
	}
	d.mu.Lock()
	if !p.settled && p.waiters > 1 && p.reserved == 0 && len(p.got) == 0 {
		p.waiters--
		d.mu.Unlock()
		return nil, nil
	}
	d.close(p)
	d.mu.Unlock()
	select {
	case <-p.done:
		return d.handOver(ctx, p)
	case <-ctx.Done():
		return nil, d.leave(ctx, p)
	}
}

// handOver returns what a settled poll got, unless its caller has gone at that moment.
func (d *Dispatcher) handOver(ctx context.Context, p *poll) ([]*storagev1.Execution, error) {
	if ctx.Err() != nil {
		return nil, d.leave(ctx, p)
	}
	if p.joined {
		d.mu.Lock()
		d.share(p.req.ClaimID)
		d.mu.Unlock()
	}
	return p.got, nil
}

// leave ends a caller's wait because its context did, and returns the context's error. The last one to leave gives the
// leases back: not before, as another call of the same claim may have been handed them.
func (d *Dispatcher) leave(ctx context.Context, p *poll) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.waiters--
	switch {
	case p.waiters > 0:
	case p.settled:
		d.release(p.got)
	default:
		d.close(p)
	}
	return ctx.Err()
}

// close stops the poll from taking more; it is settled when nothing is reserved for it. Locked.
func (d *Dispatcher) close(p *poll) {
	p.closing = true
	d.rise(p)
	d.settle(p)
}

// sit puts the poll among the hungry of its queues, in order of arrival. Locked.
func (d *Dispatcher) sit(p *poll) {
	for i, q := range p.queues {
		if p.seats[i] != nil {
			continue
		}
		switch back := q.hungry.Back(); {
		case back == nil || back.Value.(*poll).seq < p.seq:
			p.seats[i] = q.hungry.PushBack(p)
		default:
			// It comes back after it had all it lacked reserved: its place is near the front.
			next := q.hungry.Front()
			for next.Value.(*poll).seq < p.seq {
				next = next.Next()
			}
			p.seats[i] = q.hungry.InsertBefore(p, next)
		}
		d.heat(q)
		if p.waits {
			d.seated(q, 1)
		}
	}
}

// stay turns a poll that asked without a wait into one that waits. Locked.
func (d *Dispatcher) stay(p *poll) {
	if p.waits {
		return
	}
	p.waits = true
	for i, q := range p.queues {
		if p.seats[i] != nil {
			d.seated(q, 1)
		}
	}
}

// rise takes the poll away from the hungry. Locked.
func (d *Dispatcher) rise(p *poll) {
	for i, q := range p.queues {
		if p.seats[i] != nil {
			q.hungry.Remove(p.seats[i])
			p.seats[i] = nil
			if p.waits {
				d.seated(q, -1)
			}
			d.left(q, p)
		}
	}
}

// reserve promises the poll n executions of a round. Locked.
func (d *Dispatcher) reserve(p *poll, n int) {
	p.reserved += n
	if p.lacks() <= 0 {
		d.rise(p)
	}
}

// credit returns what was reserved and hands over what was granted. A poll that has something takes more only while much
// is waiting, so that at low load nothing delays it. Locked.
func (d *Dispatcher) credit(p *poll, reserved int, leases []*storagev1.Execution) {
	p.reserved -= reserved
	if len(leases) > 0 && len(p.got) == 0 {
		p.lingerUntil = time.Now().Add(d.cfg.Linger)
		d.lingering = append(d.lingering, p)
	}
	p.got = append(p.got, leases...)
	d.counts.LeasesGranted += uint64(len(leases))
	if len(p.got) > 0 && d.backlog(p) < min(p.lacks(), d.cfg.MinBatch) {
		p.closing = true
		d.rise(p)
	}
	if p.lacks() > 0 {
		d.sit(p)
	}
	d.settle(p)
}

// backlog is how much is waiting that the poll accepts. Locked.
func (d *Dispatcher) backlog(p *poll) (n int) {
	for _, q := range p.queues {
		n += q.heads + q.due
	}
	return n
}

// settle ends the poll if nothing is reserved and it takes no more: the leases go to those who wait, or back. Locked.
func (d *Dispatcher) settle(p *poll) {
	if p.settled || p.reserved > 0 || p.lacks() > 0 {
		return
	}
	if p.waiters > 0 {
		d.finish(p)
		return
	}
	d.release(p.got)
	p.got = nil
	d.finish(p)
}

// finish closes the poll for good. Locked.
func (d *Dispatcher) finish(p *poll) {
	now := time.Now()
	p.settled = true
	d.rise(p)
	for _, q := range p.queues {
		q.lastPoll = now
		d.unrefer(q, 1)
	}
	delete(d.polls, p.req.ClaimID)
	close(p.done)
}
