package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	tenant  = "t"
	leaseMS = 1500
	// workers and producers that a run has.
	workers, producers = 4, 2
)

// crew is who uses the cluster: producers, operators and workers. Each asks again under the same identity until it has its
// answer.
type crew struct {
	c      *cluster
	jobs   []job
	claims int
	asked  int
	// verifies counts the requests to look at rows.
	verifies int
	// paused jobs are to be resumed at the end.
	paused map[string]bool
	// frozen counts what was put of queues, tenants and rules: their versions.
	frozen uint64
	// waiting are requests without an answer, pausing those of them that pause or resume.
	waiting, pausing int
}

type job struct {
	shard uint32
	id    string
}

func (w *crew) start() {
	for i := range producers {
		w.c.after(w.c.between(second, 2*second), func() { w.produce(i) })
	}
	for i := range workers {
		w.c.after(w.c.between(second, 2*second), func() { w.poll(fmt.Sprintf("w%d", i)) })
	}
	w.c.after(w.c.between(second, 5*second), w.verify)
}

// ask sends a command to its shard's leader, wherever that is, until there is an answer. The command is made anew each time,
// from the rows of the node that it goes to.
func (w *crew) ask(shard uint32, make func(*node) *storagev1.Command, answer func(fsm.Result)) {
	w.waiting++
	w.try(shard, make, func(r fsm.Result) {
		w.waiting--
		answer(r)
	})
}

func (w *crew) try(shard uint32, make func(*node) *storagev1.Command, answer func(fsm.Result)) {
	c, open := w.c, true
	again := func() {
		if open {
			open = false
			c.count(Retried)
			w.try(shard, make, answer)
		}
	}
	c.after(c.between(second, 2*second), again) // the answer did not come
	n := w.leader(shard)
	if n == nil {
		return
	}
	cmd := make(n)
	n.core.Propose(replica.Proposal{Shard: shard, Command: cmd, Done: func(r fsm.Result, err error) {
		if n.up() {
			c.checks.acknowledged(n, shard, cmd, err)
		}
		if c.chance(20) {
			c.count(AnswerLost)
			return
		}
		c.after(c.between(100, 2*millisecond), func() {
			switch {
			case !open:
			case err != nil, isMoved(r):
				c.after(c.between(10*millisecond, 100*millisecond), again)
			default:
				open = false
				answer(r)
			}
		})
	}})
	n.poke()
}

// isMoved says that the leader's hint was out of date.
func isMoved(r fsm.Result) bool {
	if r.Refusal != nil {
		return r.Refusal.Code == fsm.Moved || r.Refusal.Code == fsm.StaleTerm
	}
	return len(r.Items) == 1 && r.Items[0].Refusal != nil && r.Items[0].Refusal.Code == fsm.Moved
}

// leader is a node that may lead a shard: one that was asked at random, or the one it named.
func (w *crew) leader(shard uint32) *node {
	n := w.c.nodes[w.c.rng.IntN(len(w.c.nodes))]
	if !n.live() {
		return nil
	}
	at, ok := n.core.Inspect(shard)
	if !ok || at.Leader {
		return n
	}
	if to := w.c.byStore(at.LeaderStore); to != nil && to.live() && w.c.net.open(n.name, to.name) {
		return to
	}
	return n
}

// produce makes jobs and does to them what producers and operators do.
func (w *crew) produce(i int) {
	c := w.c
	if !c.busy {
		return
	}
	next := func(fsm.Result) {
		c.after(c.between(20*millisecond, 300*millisecond), func() { w.produce(i) })
	}
	if len(w.jobs) < 3 || c.rng.IntN(3) == 0 {
		w.create(next)
		return
	}
	j := w.jobs[c.rng.IntN(len(w.jobs))]
	switch c.rng.IntN(12) {
	case 6, 7, 8:
		w.freeze(1+uint32(c.rng.IntN(int(c.shards))), c.rng.IntN(len(frozen)), c.rng.IntN(2) == 0, next)
	case 9:
		w.ask(j.shard, w.put(j), counted(c, Put, next))
	case 10:
		w.ask(j.shard, w.backfill(j), counted(c, Backfilled, next))
	case 11:
		w.ask(j.shard, w.updateOthers(j), next)
	case 0:
		c.count(Updated)
		w.ask(j.shard, w.update(j), next)
	case 1:
		c.count(Deleted)
		w.ask(j.shard, w.remove(j), next)
	case 2:
		c.count(Cancelled)
		w.cancel(j, next)
	case 3:
		w.pause(j, storagev1.JobState_JOB_STATE_PAUSED, next)
	case 4:
		w.pause(j, storagev1.JobState_JOB_STATE_ACTIVE, next)
	default:
		c.count(Triggered)
		w.ask(j.shard, w.trigger(j), next)
	}
}

// key names a request; hash is what a request of that key hashes to.
func (w *crew) key() (key string, hash []byte) {
	w.asked++
	return fmt.Sprintf("key-%d", w.asked), binary.BigEndian.AppendUint64(nil, uint64(w.asked))
}

func (w *crew) create(next func(fsm.Result)) {
	c := w.c
	_, hash := w.key()
	j := job{shard: 1 + uint32(c.rng.IntN(int(c.shards))), id: fmt.Sprintf("job-%d", w.asked)}
	item := w.definition(j)
	item.Hash = hash
	knows := c.rng.IntN(2) == 0
	w.ask(j.shard, func(n *node) *storagev1.Command {
		item := item.CloneVT()
		if knows {
			item.Horizon, item.HorizonFromMs = w.horizon(n, item.Schedule)
		}
		return &storagev1.Command{CreateJobs: &storagev1.CreateJobs{Items: []*storagev1.CreateJob{item}}}
	}, func(r fsm.Result) {
		if refusal := r.Items[0].Refusal; refusal != nil {
			if !w.tooLate(j, item.Schedule, refusal) {
				c.fail("create of %s refused: %+v", j.id, refusal)
			}
			next(r)
			return
		}
		accepted := acceptedJob{j.shard, j.id, r.Items[0].Incarnation}
		c.model.accepted = append(c.model.accepted, accepted)
		w.read(accepted)
		w.jobs = append(w.jobs, j)
		next(r)
	})
}

// definition is what a job may be.
func (w *crew) definition(j job) *storagev1.CreateJob {
	c := w.c
	return &storagev1.CreateJob{
		Tenant: tenant, JobId: j.id, Schedule: w.schedule(), CatchUp: storagev1.CatchUp(1 + c.rng.IntN(3)),
		Labels: []*storagev1.KeyValue{{Key: "team", Value: []string{"a", "b"}[c.rng.IntN(2)]}},
		Template: &storagev1.Template{
			Queue: fmt.Sprintf("q%d", c.rng.IntN(2)), Priority: uint32(c.rng.IntN(10)), LeaseMs: leaseMS,
			Payload: make([]byte, c.rng.IntN(2000)),
			Retry: &storagev1.RetryPolicy{
				MaxAttempts: uint32(1 + c.rng.IntN(4)), FirstDelayMs: 100, FactorThousandths: 2000, MaxDelayMs: 1000, JitterThousandths: 100,
			},
		},
	}
}

// tooLate says that a create was rightly refused: nobody took it in until the last of the instants that it names had passed.
func (w *crew) tooLate(j job, schedule *storagev1.Schedule, refusal *fsm.Refusal) bool {
	if _, made := w.c.model.shards[j.shard].jobs[j.id]; made || refusal.Field != "schedule" || schedule.GetCron().GetEndMs() == 0 {
		return false
	}
	s := series{schedule: schedule}
	_, left := s.after(w.c, w.c.trueMS()+clockLimit/millisecond)
	return !left
}

func (w *crew) schedule() *storagev1.Schedule {
	c := w.c
	at := c.trueMS() + c.between(-100, 3000)
	switch c.rng.IntN(6) {
	case 0, 1:
		return &storagev1.Schedule{Cron: w.cron()}
	case 2:
		return &storagev1.Schedule{Every: &storagev1.Every{IntervalMs: c.between(200, 1500), MaxRuns: uint64(c.between(2, 6))}}
	case 3:
		return &storagev1.Schedule{DelayMs: c.between(0, 2000)}
	default:
		return &storagev1.Schedule{AtMs: at}
	}
}

// cron is a schedule by the second, of which some are excluded.
func (w *crew) cron() *storagev1.Cron {
	c := w.c
	cron := &storagev1.Cron{
		Lines:   []string{[]string{"* * * * * *", "*/2 * * * * *", "1-59/3 * * * * *", "*/7 * * * * *"}[c.rng.IntN(4)]},
		Zone:    "Europe/Berlin",
		MaxRuns: uint64(c.between(2, 40)),
	}
	if c.rng.IntN(2) == 0 {
		cron.ExcludeLines = []string{"10-19,40-41 * * * * *"}
	}
	if c.rng.IntN(2) == 0 {
		cron.MaxRuns, cron.EndMs = 0, c.trueMS()+c.between(10_000, 60_000)
	}
	return cron
}

// horizon is what the node that takes a request in knows of a cron schedule.
func (w *crew) horizon(n *node, s *storagev1.Schedule) (*storagev1.Horizon, int64) {
	if s.GetCron() == nil {
		return nil, 0
	}
	from := n.clockMS() - 60_000
	h, err := n.evaluator.Horizon(s.Cron, from, 64)
	if err != nil {
		w.c.fail("horizon: %w", err)
	}
	return h, from
}

func (w *crew) update(j job) func(*node) *storagev1.Command {
	key, hash := w.key()
	u := &storagev1.UpdateJob{
		Tenant: tenant, JobId: j.id, IdempotencyKey: key, Hash: hash, Fields: []string{"labels"},
		Labels: []*storagev1.KeyValue{{Key: "k", Value: key}},
	}
	if w.c.rng.IntN(2) == 0 {
		u.Fields = append(u.Fields, "schedule")
		u.Schedule = w.schedule()
	}
	knows := w.c.rng.IntN(2) == 0
	return func(n *node) *storagev1.Command {
		u := u.CloneVT()
		if knows {
			u.Horizon, u.HorizonFromMs = w.horizon(n, u.Schedule)
		}
		return &storagev1.Command{UpdateJob: u}
	}
}

// pause pauses or resumes a job; some pauses end by themselves.
func (w *crew) pause(j job, state storagev1.JobState, next func(fsm.Result)) {
	c := w.c
	key, hash := w.key()
	u := &storagev1.UpdateJob{
		Tenant: tenant, JobId: j.id, IdempotencyKey: key, Hash: hash, Fields: []string{"state", "pause"}, State: state,
		Pause: &storagev1.Pause{Resume: storagev1.CatchUp(c.rng.IntN(4))},
	}
	if state == storagev1.JobState_JOB_STATE_PAUSED && c.rng.IntN(3) == 0 {
		u.Pause.UntilMs = c.trueMS() + c.between(500, 3000)
	}
	w.paused[j.id] = true
	w.pausing++
	w.ask(j.shard, func(*node) *storagev1.Command { return &storagev1.Command{UpdateJob: u.CloneVT()} }, func(r fsm.Result) {
		w.pausing--
		next(r)
	})
}

// frozen is what is paused as a whole: queues, the tenant, and by rules the jobs that were updated, and those of a team.
var frozen = [...]func(pause *storagev1.Pause, paused bool, version uint64) *storagev1.Command{
	freezeQueue("q0"), freezeQueue("q1"),
	func(p *storagev1.Pause, paused bool, version uint64) *storagev1.Command {
		return &storagev1.Command{PutTenant: &storagev1.TenantSettings{Name: tenant, Paused: paused, Version: version, Pause: p}}
	},
	freezeLabel("rule", &storagev1.LabelSelector{Key: "k", AnyValue: true}),
	freezeLabel("team", &storagev1.LabelSelector{Key: "team", Value: "a"}),
}

func freezeQueue(name string) func(*storagev1.Pause, bool, uint64) *storagev1.Command {
	return func(p *storagev1.Pause, paused bool, version uint64) *storagev1.Command {
		return &storagev1.Command{PutQueue: &storagev1.QueueSettings{Name: name, Paused: paused, Version: version, Pause: p}}
	}
}

func freezeLabel(id string, label *storagev1.LabelSelector) func(*storagev1.Pause, bool, uint64) *storagev1.Command {
	return func(p *storagev1.Pause, paused bool, version uint64) *storagev1.Command {
		return &storagev1.Command{PutPauseRule: &storagev1.PauseRule{
			Id: id, Deleted: !paused, Version: version, Pause: p, Labels: []*storagev1.LabelSelector{label},
		}}
	}
}

// freeze pauses or resumes one of frozen in a shard; some pauses end by themselves.
func (w *crew) freeze(shard uint32, what int, paused bool, next func(fsm.Result)) {
	c := w.c
	p := &storagev1.Pause{Resume: storagev1.CatchUp(c.rng.IntN(4))}
	if paused && c.rng.IntN(2) == 0 {
		p.UntilMs = c.trueMS() + c.between(100, 3000)
	}
	w.frozen++
	c.count(Frozen)
	cmd := frozen[what](p, paused, w.frozen)
	w.pausing++
	w.ask(shard, func(*node) *storagev1.Command { return cmd.CloneVT() }, func(r fsm.Result) {
		w.pausing--
		next(r)
	})
}

func (w *crew) remove(j job) func(*node) *storagev1.Command {
	key, hash := w.key()
	return func(n *node) *storagev1.Command {
		d := &storagev1.DeleteJob{Tenant: tenant, JobId: j.id, IdempotencyKey: key, Hash: hash}
		d.Hints, _ = fsm.LiveExecutionKeys(n.rows(j.shard), tenant, j.id, fsm.MaxBatch)
		return &storagev1.Command{DeleteJob: d}
	}
}

func (w *crew) trigger(j job) func(*node) *storagev1.Command {
	key, hash := w.key()
	return func(*node) *storagev1.Command {
		return &storagev1.Command{TriggerJob: &storagev1.TriggerJob{Tenant: tenant, JobId: j.id, Discriminator: key, Hash: hash}}
	}
}

// cancel asks for one of a job's live executions to end, if the leader knows any.
func (w *crew) cancel(j job, next func(fsm.Result)) {
	id := ""
	if n := w.leader(j.shard); n != nil {
		if keys, _ := fsm.LiveExecutionKeys(n.rows(j.shard), tenant, j.id, 1); len(keys) > 0 {
			if e := executionAt(n, j.shard, keys[0]); e != "" {
				id = e
			}
		}
	}
	if id == "" {
		next(fsm.Result{})
		return
	}
	w.ask(j.shard, func(n *node) *storagev1.Command {
		_, key, _ := fsm.Find(n.rows(j.shard), id)
		return &storagev1.Command{CancelExecution: &storagev1.CancelExecution{ExecutionId: id, Hint: key}}
	}, next)
}

// executionAt is the id of the execution leased at a row key; empty if it is no lease.
func executionAt(n *node, shard uint32, key []byte) string {
	if key[0] != fsm.KindLeased {
		return ""
	}
	value, ok := n.rows(shard).Get(key)
	e := &storagev1.Execution{}
	if !ok || e.UnmarshalVT(value) != nil {
		return ""
	}
	return fsm.ExecutionID(e)
}
