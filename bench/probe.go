package bench

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	probeEvery = 10 * time.Millisecond
	probeLimit = 64     // in flight
	probeJobs  = 100    // to be read
	maxProbes  = 200000 // in one run: more than half an hour of them
)

// prober makes calls that have nothing to do with the load, GetJob and CreateJob by turns, at a fixed rate: one that is slow
// does not hold back the next, and its latency counts from when it was to start.
type prober struct {
	api     *api
	session *session

	known []*carillonv1.GetJobRequest
	fresh *plan

	mu       sync.Mutex
	samples  []int32 // microseconds
	failures int
	failure  error // the last
}

// prepare creates the jobs that are read later.
func (p *prober) prepare(ctx context.Context) error {
	far := at(time.Now().Add(farAhead))
	p.fresh = p.session.plan(maxProbes, far)
	c := &creates{plan: p.session.plan(probeJobs, far), print: &p.session.print}
	for i := range probeJobs {
		req := &carillonv1.CreateJobRequest{}
		c.plan.fill(req, i)
		id, err := createOne(ctx, p.api, c, i, req)
		if err != nil {
			return fmt.Errorf("prepare probes: %w", err)
		}
		p.known = append(p.known, &carillonv1.GetJobRequest{Id: id, Tenant: req.GetJob().GetTenant()})
	}
	return nil
}

// run probes from start until done is closed or ctx ends, and waits for the calls in flight. Failures are counted.
func (p *prober) run(ctx context.Context, start time.Time, done <-chan struct{}) error {
	var calls errgroup.Group
	calls.SetLimit(probeLimit)
	for k := range maxProbes {
		planned := start.Add(time.Duration(k) * probeEvery)
		timer := time.NewTimer(time.Until(planned))
		select {
		case <-timer.C:
			if !calls.TryGo(func() error { p.probe(ctx, k, planned); return nil }) {
				p.note(planned, fmt.Errorf("%d calls are in flight", probeLimit))
			}
			continue
		case <-done:
		case <-ctx.Done():
		}
		timer.Stop()
		break
	}
	return calls.Wait()
}

// probe makes the k-th call; one that was cut off because the run is over says nothing.
func (p *prober) probe(ctx context.Context, k int, planned time.Time) {
	if err := p.call(ctx, k); ctx.Err() == nil {
		p.note(planned, err)
	}
}

// call makes the k-th probe.
func (p *prober) call(ctx context.Context, k int) error {
	if k%2 == 0 {
		want := p.known[k/2%len(p.known)]
		resp, err := p.api.jobs.GetJob(ctx, connect.NewRequest(want))
		if err == nil && resp.Msg.GetJob().GetId() != want.GetId() {
			err = fmt.Errorf("get job %s: answered job %s", want.GetId(), resp.Msg.GetJob().GetId())
		}
		return err
	}
	req := &carillonv1.CreateJobRequest{}
	p.fresh.fill(req, k)
	resp, err := p.api.jobs.CreateJob(ctx, connect.NewRequest(req))
	if err == nil {
		p.session.print.add(resp.Msg.GetTenant(), resp.Msg.GetId())
	}
	return err
}

func (p *prober) note(planned time.Time, err error) {
	took := time.Since(planned)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failures++
		p.failure = err
		return
	}
	p.samples = append(p.samples, int32(min(took.Microseconds(), math.MaxInt32)))
}

// report fills in what the probes felt.
func (p *prober) report(r *Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.OtherCallsMS = quantiles(p.samples)
	failures := p.failures
	r.OtherCallsFailed = &failures
	if p.failure != nil {
		r.Examples = append(r.Examples, fmt.Sprintf("%d other calls failed, the last: %v", failures, p.failure))
	}
}
