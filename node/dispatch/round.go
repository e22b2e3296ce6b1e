package dispatch

import (
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// round is what one plan proposes to one shard. Guarded by Dispatcher.mu.
type round struct {
	shard *shard
	plan  uint64
	began time.Time
	// pending are the proposals without a result.
	pending int
	// rows and commands are how much it moves, against roundLimit and commandLimit.
	rows, commands int
	releases       []*storagev1.Completion
	claims         []*claim
	advance        *advance
}

// claim is what a poll may get of a shard's ready executions.
type claim struct {
	poll  *poll
	taken []taken
}

// advance fires due timers; shares are what polls may get of them.
type advance struct {
	limit int
	// before is how many timers were counted as due.
	before int
	// shares, and where each poll's is among them.
	shares  []share
	shareOf map[*poll]int
	total   int
	// promises are total by queue.
	promises []promise
}

type share struct {
	poll   *poll
	queues []string
	n      int
}

// claim returns the poll's claim of the round. A poll's picks are made in one go, so that it is the last one.
func (r *round) claim(p *poll) *claim {
	if n := len(r.claims); n > 0 && r.claims[n-1].poll == p {
		return r.claims[n-1]
	}
	c := &claim{poll: p}
	r.claims = append(r.claims, c)
	r.commands++
	return c
}

// each calls fn for what a round, if there is one, takes of a band. Locked.
func (r *round) each(b *band, fn func(*taken)) {
	if r == nil {
		return
	}
	for _, c := range r.claims {
		for i := range c.taken {
			if c.taken[i].band == b {
				fn(&c.taken[i])
			}
		}
	}
}

// proposals makes the commands of a round: what is ready goes before what fires. Locked.
func (d *Dispatcher) proposals(r *round) (list []Proposal) {
	add := func(cmd *storagev1.Command, done func(fsm.Result, error)) {
		list = append(list, Proposal{r.shard.id, cmd, done})
	}
	if len(r.releases) > 0 {
		add(&storagev1.Command{Completions: &storagev1.Completions{Items: r.releases}},
			func(result fsm.Result, err error) { d.releasesDone(r, result, err) })
	}
	for _, c := range r.claims {
		picks := make([][]byte, len(c.taken))
		for i := range c.taken {
			picks[i] = c.taken[i].key
		}
		req := &c.poll.req
		add(&storagev1.Command{Claim: &storagev1.Claim{
			ClaimId: req.ClaimID, Worker: req.Worker, LeaseMs: req.LeaseMS, Picks: picks,
		}}, func(result fsm.Result, err error) { d.claimDone(r, c, result, err) })
	}
	if r.advance != nil {
		cmd := &storagev1.Advance{Limit: uint32(r.advance.limit)}
		for i := range r.advance.shares {
			s := &r.advance.shares[i]
			if s.n == 0 {
				continue
			}
			req := &s.poll.req
			cmd.Demand = append(cmd.Demand, &storagev1.Demand{
				ClaimId: req.ClaimID, Worker: req.Worker, Queues: s.queues, Max: uint32(s.n), LeaseMs: req.LeaseMS,
			})
		}
		add(&storagev1.Command{Advance: cmd}, func(result fsm.Result, err error) { d.advanceDone(r, result, err) })
	}
	r.pending = len(list)
	return list
}

// refused says whether a proposal had no effect, or none that is known; the shard then rests. Locked.
func (d *Dispatcher) refused(r *round, result *fsm.Result, err error) bool {
	if err == nil && result.Refusal == nil {
		return false
	}
	d.counts.Refused++
	r.shard.restUntil = time.Now().Add(retryDelay)
	return true
}

// finishOne counts one result of a round; after the last one the shard takes part in plans again. Locked.
func (d *Dispatcher) finishOne(r *round) {
	if r.pending--; r.pending == 0 {
		r.shard.round = nil
		signal(d.wakePlanner)
	}
}

// claimDone takes the result of a claim.
func (d *Dispatcher) claimDone(r *round, c *claim, result fsm.Result, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sh := r.shard
	refused := d.refused(r, &result, err)
	if !sh.dropped {
		if refused {
			d.putBack(c)
		} else {
			d.claimed(c, result.Leases)
			for _, e := range result.Leases {
				sh.addLease(e.ClaimId, e.Fencing)
			}
		}
	}
	d.finishOne(r)
	d.endMalformed(c.poll, &result)
	d.credit(c.poll, len(c.taken), result.Leases)
}

// endMalformed ends a poll whose wish the fsm refuses to read, so that it does not come back with every plan and hold up
// what else the shard has to do. Package rpc lets none of these through. Locked.
func (d *Dispatcher) endMalformed(p *poll, result *fsm.Result) {
	if r := result.Refusal; r != nil && r.Code == fsm.InvalidArgument {
		d.log.Error("a poll was refused", "claim", p.req.ClaimID, "field", r.Field, "reason", r.Message)
		p.closing = true
		d.rise(p)
	}
}

// putBack offers again what a refused claim had picked. Locked.
func (d *Dispatcher) putBack(c *claim) {
	for i := range c.taken {
		b := c.taken[i].band
		b.inflight--
		d.insert(b, c.taken[i].entry)
		d.settleBand(b)
	}
}

// claimed takes leased executions off the depths. What was passed over may be gone or may not: the rows are asked. Locked.
func (d *Dispatcher) claimed(c *claim, leases []*storagev1.Execution) {
	leased := map[string]bool{}
	if len(leases) < len(c.taken) {
		for _, e := range leases {
			leased[string(fsm.ReadyKey(e))] = true
		}
	}
	all := len(leases) == len(c.taken)
	for i := range c.taken {
		t := &c.taken[i]
		t.band.inflight--
		if all || leased[string(t.key)] {
			t.band.depth = max(0, t.band.depth-1)
			t.band.went(t.key)
		} else {
			d.counts.PassedOver++
			d.distrust(t.band, t.entry)
		}
		d.settleBand(t.band)
	}
}

// advanceDone takes the result of an advance.
func (d *Dispatcher) advanceDone(r *round, result fsm.Result, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sh := r.shard
	if !d.refused(r, &result, err) {
		d.counts.Fired += uint64(result.Fired)
		if !sh.dropped {
			d.advanced(sh, &result, r.advance.before, r.began)
			for _, e := range result.Leases {
				sh.addLease(e.ClaimId, e.Fencing)
			}
		}
	}
	d.endPromises(r.advance)
	d.finishOne(r)
	byClaim := map[string][]*storagev1.Execution{}
	for _, e := range result.Leases {
		byClaim[e.ClaimId] = append(byClaim[e.ClaimId], e)
	}
	for _, s := range r.advance.shares {
		d.endMalformed(s.poll, &result)
		d.credit(s.poll, s.n, byClaim[s.poll.req.ClaimID])
	}
}

// releasesDone takes the result of giving leases back. What is refused item by item has ended otherwise.
func (d *Dispatcher) releasesDone(r *round, result fsm.Result, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sh := r.shard
	if d.refused(r, &result, err) {
		if !sh.dropped && len(sh.releases)+len(r.releases) <= releaseLimit {
			sh.releases = append(r.releases, sh.releases...)
		} else {
			d.counts.ReleasesDropped += uint64(len(r.releases))
		}
	} else {
		d.counts.LeasesReleased += uint64(len(r.releases))
	}
	d.finishOne(r)
}
