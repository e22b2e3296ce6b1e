package sim

import (
	"bytes"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/node/replica"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// dispatcher is the leader's view of what is due and ready in a shard, rebuilt from the rows at takeover. As node/dispatch
// it only suggests: when to propose an Advance, and which executions to claim.
type dispatcher struct {
	n     *node
	shard uint32
	// timers are instants in ms, ascending; ready are in the order in which they became so.
	timers []int64
	ready  []fsm.ReadyRef
	polls  []*poll
	// advancing and claiming: one of each is on its way at most.
	advancing, claiming bool
	// nextAt is when it decides next, 0: not planned.
	nextAt int64
	// The core of the real expander.
	queue  *expand.Queue
	zones  *expand.Zones
	counts expand.Counters
	// rescanAt is when the rows are read again, whatever was heard.
	rescanAt int64
	// tasks: there may be one to step. stepping: a step is on its way.
	tasks, stepping bool
}

// poll is a worker's wait for work.
type poll struct {
	claim, worker string
	queues        []string
	max           int
	until         int64
	// over is told the leases, once.
	over func([]*storagev1.Execution)
}

func newDispatcher(n *node, shard uint32) *dispatcher {
	d := &dispatcher{n: n, shard: shard, zones: expand.NewZones(&n.evaluator)}
	d.queue = expand.NewQueue(20, &d.counts)
	d.load()
	d.wake(millisecond)
	return d
}

// wake has it decide in after from now at the latest.
func (d *dispatcher) wake(after int64) {
	at := d.n.c.now + after
	if d.nextAt > d.n.c.now && d.nextAt <= at {
		return
	}
	d.nextAt = at
	d.n.after(after, func() {
		if d.nextAt == at {
			d.nextAt = 0
			d.decide()
		}
	})
}

// load reads what the rows say.
func (d *dispatcher) load() {
	rows := d.n.rows(d.shard)
	from := fsm.ReadMeta(rows).LowWaterMs
	if d.n.c.cfg.Faults.TimerLostAtTakeover {
		from = d.n.clockMS()
	}
	d.timers, d.ready, d.tasks = d.timers[:0], d.ready[:0], true
	fsm.ScanTimers(rows, from, epochMS*2, func(t fsm.TimerRef) bool {
		d.timers = append(d.timers, t.AtMS)
		return true
	})
	fsm.ScanReady(rows, nil, nil, func(r fsm.ReadyRef) bool {
		d.ready = append(d.ready, r)
		return true
	})
	d.rescanAt = d.n.c.now + 3*second
	if d.n.c.cfg.Faults.TimerLostAtTakeover {
		d.rescanAt = 1 << 62
	}
}

// applied takes in what an entry changed.
func (d *dispatcher) applied(e *fsm.Effects) {
	for _, t := range e.Timers {
		at, _ := slices.BinarySearch(d.timers, t.AtMS)
		d.timers = slices.Insert(d.timers, at, t.AtMS)
	}
	d.queue.Add(d.at(), e.Expand...)
	d.tasks = d.tasks || e.TasksStarted
	d.ready = append(d.ready, e.Ready...)
	for _, key := range e.Unready {
		d.ready = slices.DeleteFunc(d.ready, func(r fsm.ReadyRef) bool { return bytes.Equal(r.Key, key) })
	}
	d.wake(millisecond)
}

// current says that the leadership this was made for is still the one.
func (d *dispatcher) current() bool { return d.n.dispatchers[d.shard] == d }

// decide proposes what is to be done now.
func (d *dispatcher) decide() {
	if !d.current() {
		return
	}
	if d.n.c.now >= d.rescanAt && !d.advancing && !d.claiming {
		d.load()
	}
	d.polls = slices.DeleteFunc(d.polls, func(p *poll) bool {
		if p.until > d.n.c.now {
			return false
		}
		p.over(nil)
		return true
	})
	if !d.claiming {
		d.claim()
	}
	d.expand()
	d.step()
	now := d.n.clockMS()
	if len(d.timers) == 0 {
		return
	}
	if d.timers[0] > now {
		d.wake((d.timers[0] - now) * millisecond)
		return
	}
	if !d.advancing {
		d.advance(now)
	}
}

// step advances a bulk operation, if there is one.
func (d *dispatcher) step() {
	if d.stepping || !d.tasks {
		return
	}
	open := slices.DeleteFunc(fsm.Tasks(d.n.rows(d.shard)), func(t *storagev1.Task) bool {
		// A backfill that makes its occurrences in turn goes on by itself.
		return t.Finished || t.Backfill != nil && t.Backfill.HandedMs >= t.Backfill.ToMs
	})
	if d.tasks = len(open) > 0; !d.tasks {
		return
	}
	d.stepping = true
	next := open[d.n.c.rng.IntN(len(open))]
	task := &storagev1.StepTask{Id: next.Id, Limit: uint32(d.n.c.between(1, 4))}
	if b := next.Backfill; b.GetSchedule().GetCron() != nil {
		s := series{schedule: b.Schedule}
		task.FromMs, task.ToMs = b.HandedMs, b.ToMs
		for at, ok := s.after(d.n.c, b.HandedMs); ok && at <= b.ToMs; at, ok = s.after(d.n.c, at) {
			if len(task.InstantsMs) == int(task.Limit) {
				task.ToMs = task.InstantsMs[task.Limit-1]
				break
			}
			task.InstantsMs = append(task.InstantsMs, at)
		}
	}
	d.propose(&storagev1.Command{StepTask: task}, func(fsm.Result, error) {
		d.stepping = false
		d.wake(10 * millisecond)
	})
}

// advance fires what is due.
func (d *dispatcher) advance(now int64) {
	due, found := slices.BinarySearch(d.timers, now)
	for found && due < len(d.timers) && d.timers[due] == now {
		due++
	}
	d.timers = slices.Delete(d.timers, 0, due)
	d.advancing = true
	a := &storagev1.Advance{Limit: uint32(d.n.c.between(1, 20))}
	var asked []*poll
	if d.n.c.rng.IntN(2) == 0 {
		asked, d.polls = d.polls, nil
	}
	for _, p := range asked {
		a.Demand = append(a.Demand, &storagev1.Demand{ClaimId: p.claim, Worker: p.worker, Queues: p.queues, Max: uint32(p.max)})
	}
	d.propose(&storagev1.Command{Advance: a}, func(r fsm.Result, err error) {
		d.advancing = false
		d.deal(asked, r.Leases)
		switch {
		case err != nil:
			d.load()
		case r.MoreDue:
			d.timers = slices.Insert(d.timers, 0, now)
		case r.Fired == 0:
			// The clock may have gone back before the entry was stamped.
			d.rescanAt = min(d.rescanAt, d.n.c.now+100*millisecond)
		}
	})
}

// claim leases ready executions to one poll.
func (d *dispatcher) claim() {
	for i, p := range d.polls {
		var picks [][]byte
		d.ready = slices.DeleteFunc(d.ready, func(r fsm.ReadyRef) bool {
			if len(picks) == p.max || !slices.Contains(p.queues, r.Queue) {
				return false
			}
			picks = append(picks, r.Key)
			return true
		})
		if len(picks) == 0 {
			continue
		}
		d.polls = slices.Delete(d.polls, i, i+1)
		d.claiming = true
		c := &storagev1.Claim{ClaimId: p.claim, Worker: p.worker, Picks: picks}
		d.propose(&storagev1.Command{Claim: c}, func(r fsm.Result, err error) {
			d.claiming = false
			d.deal([]*poll{p}, r.Leases)
			if err != nil {
				d.load()
			}
		})
		return
	}
}

// deal gives polls the leases that were granted to them; those that got none wait on.
func (d *dispatcher) deal(polls []*poll, leases []*storagev1.Execution) {
	for _, p := range polls {
		var own []*storagev1.Execution
		for _, e := range leases {
			if e.ClaimId == p.claim {
				own = append(own, e)
			}
		}
		if len(own) == 0 && d.current() {
			d.polls = append(d.polls, p)
			continue
		}
		p.over(own)
	}
}

// poll takes in a worker that waits. A claim that is made again gets the leases that it has.
func (d *dispatcher) poll(p *poll) {
	var own []*storagev1.Execution
	fsm.ScanLeases(d.n.rows(d.shard), func(e *storagev1.Execution) bool {
		if e.ClaimId == p.claim {
			own = append(own, e)
		}
		return true
	})
	if len(own) > 0 {
		p.over(own)
		return
	}
	d.polls = append(d.polls, p)
	d.decide()
}

func (d *dispatcher) propose(cmd *storagev1.Command, done func(fsm.Result, error)) {
	n, life := d.n, d.n.life
	n.core.Propose(replica.Proposal{Shard: d.shard, Command: cmd, Done: func(r fsm.Result, err error) {
		if n.life != life {
			done(fsm.Result{}, replica.ErrAmbiguous)
			return
		}
		n.c.checks.acknowledged(n, d.shard, cmd, err)
		if err == nil && r.Refusal != nil && cmd.SetZoneVersion == nil {
			n.c.fail("shard %d: %s of its leader refused: %s", d.shard, n.name, r.Refusal.Message)
		}
		done(r, err)
		if d.current() {
			d.wake(microsecond)
		}
	}})
	n.poke()
}
