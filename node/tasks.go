package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/schedule"
	"golang.org/x/sync/errgroup"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// taskStep is how many rows a step of a bulk operation may touch.
	taskStep = 500
	// taskRetry is the pause before a step that did not get through is tried again; it doubles up to taskRetryMax.
	taskRetry    = 100 * time.Millisecond
	taskRetryMax = 5 * time.Second
	// taskParallel bounds the bulk operations, counted by shard, that advance at once.
	taskParallel = 4
)

// taskRef is a bulk operation in one shard.
type taskRef struct {
	shard uint32
	id    string
}

// tasks advances bulk operations: durable rows in the shards, stepped by the node that leads them. What was under way when
// a leadership began is found in the rows and goes on.
type tasks struct {
	// ended is told when there may be nothing to advance any more.
	ended  func()
	do     func(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error)
	open   func(shard uint32) ([]*storagev1.Task, error)
	leads  func(shard uint32) bool
	logger *slog.Logger

	wake wake
	mu   sync.Mutex
	// Guarded by mu. queued are waiting or being stepped, with who wants to know; scan are shards to look for open tasks in.
	queued  map[taskRef]*taskRun
	waiting []*taskRun
	scan    []uint32
	// scanning: shards are being looked through.
	scanning bool
}

// taskRun is a bulk operation of one shard that is being advanced.
type taskRun struct {
	ref  taskRef
	done chan struct{} // closed when it has finished or was given up
	task *storagev1.Task
	err  error
}

func newTasks(n *Node) *tasks {
	return &tasks{
		ended: func() { n.advancer.look() }, do: n.Do, open: n.openTasks, leads: n.serves, logger: n.logger,
		wake: newWake(), queued: map[taskRef]*taskRun{},
	}
}

// serves says whether this node leads the shard and answers for it.
func (n *Node) serves(shard uint32) bool {
	s, ok := n.host.StatusOf(shard)
	return ok && s.Established
}

// openTasks reads the bulk operations of a shard that are not finished.
func (n *Node) openTasks(shard uint32) (list []*storagev1.Task, err error) {
	err = n.snapshot(shard, func(r fsm.Reader) error {
		list = slices.DeleteFunc(fsm.Tasks(r), func(t *storagev1.Task) bool { return t.GetFinished() })
		return nil
	})
	return list, err
}

// look makes run look for open tasks in shard: after a takeover, and after a command that leaves one.
func (t *tasks) look(shard uint32) {
	t.mu.Lock()
	if !slices.Contains(t.scan, shard) {
		t.scan = append(t.scan, shard)
	}
	t.mu.Unlock()
	t.wake.poke()
}

// idle says that no task is advanced or to be looked for.
func (t *tasks) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queued) == 0 && len(t.scan) == 0 && !t.scanning
}

// enqueue advances a task from now on; asked again while it is advanced, it returns the same run.
func (t *tasks) enqueue(ref taskRef) *taskRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	run := t.queued[ref]
	if run == nil {
		run = &taskRun{ref: ref, done: make(chan struct{})}
		t.queued[ref] = run
		t.waiting = append(t.waiting, run)
		t.wake.poke()
	}
	return run
}

// run advances what is queued until ctx ends.
func (t *tasks) run(ctx context.Context) error {
	group := new(errgroup.Group)
	group.SetLimit(taskParallel)
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-t.wake:
		}
		t.mu.Lock()
		scan, waiting := t.scan, t.waiting
		t.scan, t.waiting, t.scanning = nil, nil, len(scan) > 0
		t.mu.Unlock()
		for _, shard := range scan {
			open, err := t.open(shard)
			if err != nil {
				return fmt.Errorf("look for tasks of shard %d: %w", shard, err)
			}
			for _, task := range open {
				t.enqueue(taskRef{shard, task.GetId()})
			}
		}
		t.mu.Lock()
		t.scanning = false
		t.mu.Unlock()
		t.ended()
		for _, run := range waiting {
			group.Go(func() error {
				t.advance(ctx, run)
				return nil
			})
		}
	}
}

// advance steps a task to its end. It gives up when this node cannot serve the shard: whoever leads it next goes on.
func (t *tasks) advance(ctx context.Context, run *taskRun) {
	defer func() {
		t.mu.Lock()
		delete(t.queued, run.ref)
		t.mu.Unlock()
		t.ended()
		close(run.done)
	}()
	var last *storagev1.Task
	for failures := 0; ; {
		step := &storagev1.StepTask{Id: run.ref.id, Limit: taskStep}
		if run.err = handIn(step, last.GetBackfill()); run.err != nil {
			return
		}
		res, err := t.do(ctx, run.ref.shard, &storagev1.Command{StepTask: step})
		switch {
		case err != nil && (ctx.Err() != nil || !t.leads(run.ref.shard)):
			run.err = err
			return
		case err != nil:
			failures++
			select {
			case <-ctx.Done():
			case <-time.After(min(taskRetry<<min(failures, 10), taskRetryMax)):
			}
		case res.Refusal != nil:
			run.err = &rpc.Refused{Refusal: res.Refusal}
			return
		case !res.More: // it has finished, or goes on by itself
			run.task = res.Task
			return
		default:
			failures, last = 0, res.Task
		}
	}
}

// handIn gives a backfill's step the next instants of its cron schedule, which the state machine does not evaluate.
func handIn(step *storagev1.StepTask, b *storagev1.Backfill) error {
	cron := b.GetSchedule().GetCron()
	if cron == nil {
		return nil
	}
	s, err := schedule.Compile(cron)
	if err != nil {
		return fmt.Errorf("compile the schedule of task %s: %w", step.Id, err)
	}
	step.FromMs, step.ToMs = b.HandedMs, b.ToMs
	for o := range s.All(time.UnixMilli(b.HandedMs)) {
		at := o.At.UnixMilli()
		if at > b.ToMs {
			break
		}
		step.InstantsMs = append(step.InstantsMs, at)
		if len(step.InstantsMs) == taskStep {
			step.ToMs = at
			break
		}
	}
	return nil
}

// RunTask starts the bulk operation id on every shard, or finds it there, and waits until it is finished or ctx ends. It
// goes on in the background then.
func (n *Node) RunTask(ctx context.Context, id string, kind storagev1.TaskKind, filter *storagev1.Filter) (rpc.TaskProgress, error) {
	progress := rpc.TaskProgress{ID: id, Finished: true}
	var runs []*taskRun
	for _, shard := range n.slots.shards {
		res, err := n.Do(ctx, shard, &storagev1.Command{
			StartTask: &storagev1.StartTask{Id: id, Kind: kind, Filter: filter.CloneVT()},
		})
		if err != nil {
			return rpc.TaskProgress{}, err
		}
		if res.Refusal != nil {
			return rpc.TaskProgress{}, &rpc.Refused{Refusal: res.Refusal}
		}
		if res.Task.GetFinished() {
			progress.Done += res.Task.GetDoneCount()
			progress.Seen += res.Task.GetSeenCount()
			continue
		}
		runs = append(runs, n.tasks.enqueue(taskRef{shard, id}))
	}
	for _, run := range runs {
		select {
		case <-run.done:
			if run.err != nil {
				return rpc.TaskProgress{}, run.err
			}
			progress.Done += run.task.GetDoneCount()
			progress.Seen += run.task.GetSeenCount()
		case <-ctx.Done():
			progress.Finished = false
			return progress, nil
		}
	}
	return progress, nil
}
