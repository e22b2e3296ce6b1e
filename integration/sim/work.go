package sim

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// poll has a worker wait for work in one shard after the other. A claim whose answer did not come is made again.
func (w *crew) poll(worker string) {
	w.claims++
	w.wait(worker, fmt.Sprintf("claim-%d", w.claims), 1+uint32(w.c.rng.IntN(int(w.c.shards))), 2)
}

func (w *crew) wait(worker, claim string, shard uint32, tries int) {
	c, open := w.c, true
	give := func() {
		if !open {
			return
		}
		open = false
		if tries > 0 {
			w.wait(worker, claim, shard, tries-1)
			return
		}
		w.poll(worker)
	}
	n := w.leader(shard)
	if n == nil || n.dispatchers[shard] == nil {
		c.after(c.between(50*millisecond, 200*millisecond), give)
		return
	}
	c.after(2*second, give)
	p := &poll{claim: claim, worker: worker, queues: []string{"q0", "q1"}, max: 1 + c.rng.IntN(3), until: c.now + second}
	p.over = func(leases []*storagev1.Execution) {
		if c.chance(20) {
			c.count(AnswerLost)
			return
		}
		c.after(c.between(100, 2*millisecond), func() {
			if !open {
				return
			}
			open = false
			for _, e := range leases {
				w.work(shard, e)
			}
			c.after(c.between(millisecond, 50*millisecond), func() { w.poll(worker) })
		})
	}
	n.dispatchers[shard].poll(p)
	n.poke()
}

// work runs an execution: it takes its time, tells that it lives, and ends with a word, or without.
func (w *crew) work(shard uint32, e *storagev1.Execution) {
	c := w.c
	if c.chance(15) {
		return // the worker dies
	}
	done := &storagev1.Completion{
		ExecutionId: fsm.ExecutionID(e), Fencing: e.Fencing, Worker: e.Worker, Outcome: storagev1.Outcome_OUTCOME_SUCCEEDED,
	}
	switch n := c.rng.IntN(20); {
	case !c.trouble || n < 12:
	case n < 16:
		done.Outcome, done.Error = storagev1.Outcome_OUTCOME_FAILED, "failed"
	case n == 16:
		done.Outcome = storagev1.Outcome_OUTCOME_FAILED_FINAL
	case n == 17:
		done.Outcome, done.UntilMs = storagev1.Outcome_OUTCOME_SNOOZED, c.trueMS()+c.between(100, 1000)
	case n == 18:
		done.Outcome = storagev1.Outcome_OUTCOME_RELEASED
	}
	takes := c.between(millisecond, 600*millisecond)
	beats := true
	if c.chance(4) {
		takes = c.between(second, 5*second)
		beats = c.rng.IntN(3) > 0 // one that does not beat comes too late
	}
	running := true
	if beats {
		w.beat(shard, e, &running)
	}
	c.after(takes, func() {
		running = false
		w.ask(shard, w.completion(shard, done), func(fsm.Result) {})
	})
}

// completion carries where the execution stands, for a word that may be a repeated one.
func (w *crew) completion(shard uint32, done *storagev1.Completion) func(*node) *storagev1.Command {
	return func(n *node) *storagev1.Command {
		item := done.CloneVT()
		if live, key, ok := fsm.Find(n.rows(shard), done.ExecutionId); ok && live.Fencing != done.Fencing {
			item.Hint = key
		}
		return &storagev1.Command{Completions: &storagev1.Completions{Items: []*storagev1.Completion{item}}}
	}
}

// beat tells that a worker lives for as long as it runs.
func (w *crew) beat(shard uint32, e *storagev1.Execution, running *bool) {
	w.c.after(leaseMS/3*millisecond, func() {
		if !*running {
			return
		}
		w.ask(shard, func(*node) *storagev1.Command {
			return &storagev1.Command{Heartbeats: &storagev1.Heartbeats{Items: []*storagev1.Heartbeat{{
				ExecutionId: fsm.ExecutionID(e), Fencing: e.Fencing,
			}}}}
		}, func(r fsm.Result) {
			if r.Items[0].Refusal == nil {
				w.beat(shard, e, running)
			}
		})
	})
}
