package rpc

import (
	"cmp"
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/schedule"
)

// backfillPoll is how often a backfill is looked at that its call waits for.
const backfillPoll = 50 * time.Millisecond

func (s *server) backfillJob(
	ctx context.Context, req *carillonv1.BackfillJobRequest,
) (*carillonv1.BackfillJobResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	if err := v.err(); err != nil {
		return nil, err
	}
	if err := s.instantsOf(ctx, ref, req.FromLocal, req.ToLocal, &req.From, &req.To); err != nil {
		return nil, err
	}
	start := v.backfill(req, s.backend.NowMS())
	if err := v.err(); err != nil {
		return nil, err
	}
	start.Tenant, start.JobId = ref.tenant, ref.id
	start.Id = cmp.Or(req.BackfillId, newID())
	start.Hash = hashOf("backfill", start)
	shard := s.backend.ShardOf(ref.tenant, ref.id)
	var task *storagev1.Task
	err := untilFound(func() (err error) {
		cmd := callOf(ctx).command()
		if cmd.StartBackfill, err = s.counted(ctx, shard, start); err != nil {
			return err
		}
		result, err := s.propose(ctx, shard, cmd)
		task = result.Task
		return err
	})
	if err == nil && !task.Finished && !start.InTurn {
		task, err = s.awaitBackfill(ctx, shard, task)
	}
	if err != nil {
		return nil, err
	}
	return &carillonv1.BackfillJobResponse{Task: backfillOf(task)}, nil
}

// backfill validates and translates what a backfill asks for.
func (v *violations) backfill(req *carillonv1.BackfillJobRequest, nowMS int64) *storagev1.StartBackfill {
	v.optionalName("backfill_id", req.BackfillId)
	out := &storagev1.StartBackfill{
		FromMs: v.instant("from", req.From, nowMS), ToMs: v.instant("to", req.To, nowMS),
		Max: cmp.Or(req.MaxOccurrences, defaultBackfill),
	}
	switch {
	case req.From == nil:
		v.add("from", "is required")
	case req.To == nil:
		v.add("to", "is required")
	case out.ToMs < out.FromMs:
		v.add("to", "is before from")
	case out.ToMs > nowMS:
		v.add("to", "is %s, which is in the future", req.To.AsTime().Format(time.RFC3339))
	}
	most := uint32(fsm.MaxBackfill)
	switch req.Overlap {
	case carillonv1.Overlap_OVERLAP_UNSPECIFIED, carillonv1.Overlap_OVERLAP_ALLOW:
	case carillonv1.Overlap_OVERLAP_QUEUE_ALL:
		out.InTurn, most = true, fsm.MaxBackfillInTurn
	default:
		v.add("overlap", "is %s; a backfill knows OVERLAP_ALLOW and OVERLAP_QUEUE_ALL", req.Overlap)
	}
	if out.Max > most {
		v.add("max_occurrences", "is %d; it must be 1 to %d", out.Max, most)
	}
	if req.Priority != nil {
		out.HasPriority, out.Priority = true, v.priority(req.Priority)
	}
	return out
}

// counted is a backfill for the job as it stands: of a cron schedule, whose instants the state machine does not know, they are
// counted here.
func (s *server) counted(ctx context.Context, shard uint32, start *storagev1.StartBackfill) (*storagev1.StartBackfill, error) {
	start = start.CloneVT()
	var cron *storagev1.Cron
	err := s.backend.View(ctx, shard, false, func(r fsm.Reader) error {
		if view, ok := fsm.GetJob(r, start.Tenant, start.JobId); ok {
			cron, start.ExpectedVersion = view.Job.Schedule.GetCron(), view.Job.Version
		}
		return nil
	})
	if err != nil || cron == nil {
		return start, err
	}
	done, err := s.turns.take(ctx, turnPatience)
	if err != nil {
		return nil, err
	}
	defer done()
	_, _, n, more, err := schedule.Pass(cron, start.FromMs-1, start.ToMs, fsm.MaxBackfill)
	switch {
	case err != nil:
		return nil, err
	case more:
		return nil, invalidField("max_occurrences", "is %d, and the range has more than %d", start.Max, n)
	case n > uint64(start.Max):
		return nil, invalidField("max_occurrences", "is %d, and the range has %d", start.Max, n)
	}
	return start, nil
}

// awaitBackfill waits until a backfill has made what it is to make, for at most taskWait, and answers how far it is.
func (s *server) awaitBackfill(ctx context.Context, shard uint32, task *storagev1.Task) (*storagev1.Task, error) {
	end := time.NewTimer(taskWait)
	defer end.Stop()
	tick := time.NewTicker(backfillPoll)
	defer tick.Stop()
	for !task.Finished {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end.C:
			return task, nil
		case <-tick.C:
		}
		err := s.backend.View(ctx, shard, false, func(r fsm.Reader) error {
			if now := fsm.ReadTask(r, task.Id); now != nil {
				task = now
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return task, nil
}

func (s *server) cancelBackfill(
	ctx context.Context, req *carillonv1.CancelBackfillRequest,
) (*carillonv1.CancelBackfillResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	v.name("backfill_id", req.BackfillId)
	if err := v.err(); err != nil {
		return nil, err
	}
	cmd := callOf(ctx).command()
	cmd.CancelBackfill = &storagev1.CancelBackfill{Tenant: ref.tenant, JobId: ref.id, Id: req.BackfillId}
	result, err := s.propose(ctx, s.backend.ShardOf(ref.tenant, ref.id), cmd)
	if err != nil {
		return nil, err
	}
	return &carillonv1.CancelBackfillResponse{Task: backfillOf(result.Task)}, nil
}

// backfillOf is a backfill's task as the API shows it, by the id that its caller knows.
func backfillOf(t *storagev1.Task) *carillonv1.Task {
	return &carillonv1.Task{
		Id: t.Backfill.GetId(), DoneCount: t.DoneCount, SeenCount: t.SeenCount, Finished: t.Finished,
		Cancelled: t.Backfill.GetCancelled(), CreateTime: timeOf(t.CreatedMs), UpdateTime: timeOf(t.UpdatedMs),
	}
}
