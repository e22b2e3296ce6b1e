package rpc

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) createQueue(ctx context.Context, req *carillonv1.CreateQueueRequest) (*carillonv1.CreateQueueResponse, error) {
	var v violations
	settings := v.queue(req.Queue, s.backend.NowMS())
	if err := v.err(); err != nil {
		return nil, err
	}
	created, err := s.backend.PutQueue(ctx, settings, 0)
	pending, err := lagging(err)
	if exists(err) {
		// A retry of the same create gets the same answer.
		standing, getErr := s.backend.Queue(ctx, settings.Name)
		if getErr != nil {
			return nil, getErr
		}
		if !sameQueue(standing, settings) {
			return nil, err
		}
		created, err = standing, nil
	}
	if err != nil {
		return nil, err
	}
	return &carillonv1.CreateQueueResponse{Queue: s.queueOf(created), PendingShards: pending}, nil
}

func (s *server) getQueue(ctx context.Context, req *carillonv1.GetQueueRequest) (*carillonv1.GetQueueResponse, error) {
	var v violations
	if v.name("name", req.Name); len(v.list) > 0 {
		return nil, v.err()
	}
	settings, err := s.backend.Queue(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	return &carillonv1.GetQueueResponse{Queue: s.queueOf(settings)}, nil
}

// listQueues lists the queues that have settings, and those where executions wait.
func (s *server) listQueues(ctx context.Context, req *carillonv1.ListQueuesRequest) (*carillonv1.ListQueuesResponse, error) {
	page, err := parseNamedPage("queues", req.PageSize, req.PageToken)
	if err != nil {
		return nil, err
	}
	stored, err := s.backend.Queues(ctx)
	if err != nil {
		return nil, err
	}
	waiting, until, err := s.waiting(ctx, page.after, page.limit+1, req.Stale)
	if err != nil {
		return nil, err
	}
	queues := map[string]*carillonv1.Queue{}
	for _, settings := range stored {
		queues[settings.Name] = s.queueOf(settings)
	}
	for name := range waiting {
		if queues[name] == nil {
			queues[name] = &carillonv1.Queue{Name: name}
		}
	}
	res := &carillonv1.ListQueuesResponse{}
	last := ""
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		switch {
		case name <= page.after:
			continue
		case len(res.Queues) == page.limit, until != "" && name > until:
			res.NextPageToken = page.next(last)
			return res, nil
		}
		queue := queues[name]
		queue.Backlog = backlogOfQueue(waiting[name], s.claims.of(name))
		res.Queues, last = append(res.Queues, queue), name
	}
	if until != "" {
		res.NextPageToken = page.next(last)
	}
	return res, nil
}

func (s *server) updateQueue(ctx context.Context, req *carillonv1.UpdateQueueRequest) (*carillonv1.UpdateQueueResponse, error) {
	var v violations
	v.name("name", req.Name)
	patch := req.Queue
	if patch == nil {
		v.add("queue", "is required")
		return nil, v.err()
	}
	fields := v.mask("queue", req.UpdateMask, patch.ProtoReflect())
	values := v.queue(&carillonv1.Queue{
		Name: defaultName, Paused: patch.GetPaused(), PauseReason: patch.GetPauseReason(), PausedBy: patch.GetPausedBy(),
		PauseUntil: patch.PauseUntil, ResumeRule: patch.GetResumeRule(), Retention: patch.Retention,
		DeadRetention: patch.DeadRetention, Labels: patch.Labels, PriorityShares: patch.PriorityShares,
	}, s.backend.NowMS())
	if err := v.err(); err != nil {
		return nil, err
	}
	nowMS := s.backend.NowMS()
	change := func(q *storagev1.QueueSettings) *storagev1.QueueSettings {
		q = q.CloneVT()
		for _, field := range fields {
			switch field {
			case "retention":
				q.RetentionMs = values.RetentionMs
			case "dead_retention":
				q.DeadRetentionMs = values.DeadRetentionMs
			case "labels":
				q.Labels = values.Labels
			case "priority_shares":
				q.Shares = values.Shares
			}
		}
		p := pausedOfQueue(q).patched(fields, pausedOfQueue(values), nowMS)
		q.Paused, q.PauseReason, q.Pause = p.paused, p.reason, p.pause
		return q
	}
	get := s.backend.Queue
	if req.ExpectedVersion == 0 && values.Paused && slices.Contains(fields, "paused") {
		get = getOrBlank(get, &storagev1.QueueSettings{Name: req.Name})
	}
	settings, err := replaceSettings(ctx, req.Name, req.ExpectedVersion, get, s.backend.PutQueue, change)
	pending, err := lagging(err)
	if err != nil {
		return nil, err
	}
	return &carillonv1.UpdateQueueResponse{Queue: s.queueOf(settings), PendingShards: pending}, nil
}

func (s *server) deleteQueue(ctx context.Context, req *carillonv1.DeleteQueueRequest) (*carillonv1.DeleteQueueResponse, error) {
	var v violations
	if v.name("name", req.Name); len(v.list) > 0 {
		return nil, v.err()
	}
	pending, err := lagging(s.backend.DeleteQueue(ctx, req.Name, anyIfZero(req.ExpectedVersion)))
	if err != nil {
		return nil, err
	}
	return &carillonv1.DeleteQueueResponse{PendingShards: pending}, nil
}

// queue validates and translates the settings of a queue.
func (v *violations) queue(q *carillonv1.Queue, nowMS int64) *storagev1.QueueSettings {
	if q == nil {
		v.add("queue", "is required")
		return nil
	}
	v.name("queue.name", q.Name)
	v.text("queue.pause_reason", q.PauseReason, maxReasonBytes)
	return &storagev1.QueueSettings{
		Name: q.Name, Paused: q.Paused, PauseReason: q.PauseReason,
		Pause:           v.pause("queue.", q.PausedBy, "queue.pause_until", q.PauseUntil, q.ResumeRule, nowMS),
		RetentionMs:     v.duration("queue.retention", q.Retention, 0, minRetention, maxRetention),
		DeadRetentionMs: v.duration("queue.dead_retention", q.DeadRetention, 0, minRetention, maxRetention),
		Labels:          v.labels("queue.labels", q.Labels),
		Shares:          v.shares("queue.priority_shares", q.PriorityShares),
	}
}

func sameQueue(a, b *storagev1.QueueSettings) bool {
	return a.Name == b.Name && a.Paused == b.Paused && a.PauseReason == b.PauseReason && samePause(a.Pause, b.Pause) && a.RetentionMs == b.RetentionMs &&
		a.DeadRetentionMs == b.DeadRetentionMs && samePairs(a.Labels, b.Labels) && proto.Equal(a.Shares, b.Shares)
}

func samePairs(a, b []*storagev1.KeyValue) bool {
	return slices.EqualFunc(a, b, func(x, y *storagev1.KeyValue) bool { return x.Key == y.Key && x.Value == y.Value })
}

func (s *server) queueOf(q *storagev1.QueueSettings) *carillonv1.Queue {
	p := pausedOfQueue(q).at(s.backend.NowMS())
	out := &carillonv1.Queue{
		Name: q.Name, Version: q.Version, Paused: p.paused, PauseReason: p.reason, Retention: optionalDuration(q.RetentionMs),
		DeadRetention: optionalDuration(q.DeadRetentionMs), Labels: mapOf(q.Labels), CreateTime: optionalTime(q.CreatedMs),
		UpdateTime: optionalTime(q.UpdatedMs), PriorityShares: sharesOf(q.Shares),
	}
	if p.paused {
		out.PausedBy, out.PauseUntil = p.pause.GetBy(), optionalTime(p.pause.GetUntilMs())
		out.ResumeRule = carillonv1.CatchUp(p.pause.GetResume())
	}
	return out
}

func pausedOfQueue(q *storagev1.QueueSettings) paused {
	return paused{q.Paused, q.PauseReason, q.Pause}
}
