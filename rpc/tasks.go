package rpc

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// taskWait is how long a call waits for the end of its bulk operation before it answers how far it is.
const taskWait = 20 * time.Second

func (s *server) requeueDeadLetters(
	ctx context.Context, req *carillonv1.RequeueDeadLettersRequest,
) (*carillonv1.RequeueDeadLettersResponse, error) {
	task, err := s.deadLetters(ctx, storagev1.TaskKind_TASK_KIND_REQUEUE_DEAD, req)
	if err != nil {
		return nil, err
	}
	return &carillonv1.RequeueDeadLettersResponse{Task: task}, nil
}

func (s *server) purgeDeadLetters(
	ctx context.Context, req *carillonv1.PurgeDeadLettersRequest,
) (*carillonv1.PurgeDeadLettersResponse, error) {
	task, err := s.deadLetters(ctx, storagev1.TaskKind_TASK_KIND_PURGE_DEAD, req)
	if err != nil {
		return nil, err
	}
	return &carillonv1.PurgeDeadLettersResponse{Task: task}, nil
}

// selection is what requeue and purge have in common.
type selection interface {
	GetExecutionIds() []string
	GetFilter() *carillonv1.DeadLetterFilter
	GetRequestId() string
}

// deadLetters works on dead letters by ids at once, or by filter as a task.
func (s *server) deadLetters(ctx context.Context, kind storagev1.TaskKind, req selection) (*carillonv1.Task, error) {
	var v violations
	v.key("request_id", req.GetRequestId())
	ids, filter := req.GetExecutionIds(), req.GetFilter()
	switch {
	case len(ids) > 0 && filter != nil:
		v.add("filter", "excludes execution_ids: give one of them")
	case len(ids) == 0 && filter == nil:
		v.add("filter", "is required unless execution_ids are given")
	case len(ids) > maxDeadLetterIDs:
		v.add("execution_ids", "has %d ids; at most %d are allowed", len(ids), maxDeadLetterIDs)
	}
	selected := v.filter(filter, s.backend.NowMS())
	if err := v.err(); err != nil {
		return nil, err
	}
	id := req.GetRequestId()
	if id == "" {
		id = newID()
	}
	if filter == nil {
		return s.deadLettersByID(ctx, kind, id, ids)
	}
	// The same request id may stand for a requeue and for a purge.
	progress, err := s.await(ctx, func(ctx context.Context) (TaskProgress, error) {
		return s.backend.RunTask(ctx, taskPrefix[kind]+id, kind, selected)
	})
	if err != nil {
		return nil, err
	}
	task := taskOf(progress)
	task.Id = id
	return task, nil
}

var taskPrefix = map[storagev1.TaskKind]string{
	storagev1.TaskKind_TASK_KIND_REQUEUE_DEAD: "requeue:",
	storagev1.TaskKind_TASK_KIND_PURGE_DEAD:   "purge:",
}

// filter validates and translates a filter of dead letters.
func (v *violations) filter(f *carillonv1.DeadLetterFilter, nowMS int64) *storagev1.Filter {
	if f == nil {
		return nil
	}
	v.optionalName("filter.tenant", f.Tenant)
	v.optionalName("filter.queue", f.Queue)
	v.optionalName("filter.job_id", f.JobId)
	v.text("filter.error_contains", f.ErrorContains, maxReasonBytes)
	// Unset stays unset: the filter is part of the task's identity, and a repeated call must find its task.
	before := v.instant("filter.dead_before", f.DeadBefore, nowMS)
	tenant := f.Tenant
	if tenant == "" {
		tenant = defaultName
	}
	return &storagev1.Filter{Tenant: tenant, Queue: f.Queue, JobId: f.JobId, BeforeMs: before, ErrorContains: f.ErrorContains}
}

// deadLettersByID works on the named dead letters. Those that are none are passed over, so that repeating it is safe.
func (s *server) deadLettersByID(ctx context.Context, kind storagev1.TaskKind, id string, ids []string) (*carillonv1.Task, error) {
	var v violations
	shards := make([]uint32, len(ids))
	for i, executionID := range ids {
		shards[i] = s.shardOf(v.execution("execution_ids", executionID))
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	parts := chunks(len(ids), func(i int) (place, int, bool) { return place{shard: shards[i]}, len(ids[i]), true })
	call := callOf(ctx)
	done, errs := make([]bool, len(ids)), make([]error, len(ids))
	s.proposeChunks(ctx, parts, func(c *chunk) *storagev1.Command {
		cmd := call.command()
		part := make([]string, len(c.items))
		for k, i := range c.items {
			part[k] = ids[i]
		}
		if kind == storagev1.TaskKind_TASK_KIND_REQUEUE_DEAD {
			cmd.RequeueDead = &storagev1.RequeueDead{ExecutionIds: part}
		} else {
			cmd.PurgeDead = &storagev1.PurgeDead{ExecutionIds: part}
		}
		return cmd
	}, func(i int, item fsm.Item, err error) { done[i], errs[i] = err == nil && item.Refusal == nil, err })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	task := &carillonv1.Task{Id: id, SeenCount: uint64(len(ids)), Finished: true}
	for _, ok := range done {
		if ok {
			task.DoneCount++
		}
	}
	return task, nil
}

// await runs a bulk operation for at most taskWait. If it is not finished then, it goes on without the call.
func (s *server) await(ctx context.Context, run func(context.Context) (TaskProgress, error)) (TaskProgress, error) {
	waitCtx, cancel := context.WithTimeout(ctx, taskWait)
	defer cancel()
	progress, err := run(waitCtx)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		// Our own time is up, not the caller's.
		err = nil
	}
	return progress, err
}

func taskOf(p TaskProgress) *carillonv1.Task {
	return &carillonv1.Task{Id: p.ID, DoneCount: p.Done, SeenCount: p.Seen, Finished: p.Finished}
}
