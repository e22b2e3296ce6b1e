package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) claim(ctx context.Context, req *carillonv1.ClaimRequest) (*carillonv1.ClaimResponse, error) {
	poll, err := pollOf(req)
	if err != nil {
		return nil, err
	}
	granted, err := s.poll(ctx, poll)
	if err != nil {
		s.backend.Release(granted)
		return nil, err
	}
	if ctx.Err() != nil {
		s.backend.Release(granted)
		return nil, ctx.Err()
	}
	// Payloads that stand apart are large: what cannot be delivered is given back before they are read.
	if fit := fitting(granted); fit < len(granted) {
		s.backend.Release(granted[fit:])
		granted = granted[:fit]
	}
	payloads, err := s.payloads(ctx, granted)
	if err == nil {
		err = ctx.Err() // reading takes its time
	}
	if err != nil {
		s.backend.Release(granted)
		return nil, fmt.Errorf("read payloads: %w", err)
	}
	res := &carillonv1.ClaimResponse{ClaimId: poll.ClaimID}
	size, delivered := 0, 0
	for i, e := range granted {
		if payloads[i] == nil {
			// Giving it back would hand it out again at once; its lease ends and counts instead.
			s.log.Error("payload is missing", slog.String("execution", fsm.ExecutionID(e)))
			continue
		}
		lease := s.leaseOf(e, *payloads[i])
		size += lease.SizeVT() + 8
		if size > maxClaimBytes && len(res.Leases) > 0 {
			s.backend.Release(granted[i:])
			break
		}
		delivered = i + 1
		res.Leases = append(res.Leases, lease)
	}
	callOf(ctx).undelivered = func() { s.backend.Release(granted[:delivered]) }
	return res, nil
}

// poll waits for work, and is counted as long as it does.
func (s *server) poll(ctx context.Context, poll PollRequest) ([]*storagev1.Execution, error) {
	if poll.Wait > 0 {
		s.claims.add(poll.Queues, 1)
		defer s.claims.add(poll.Queues, -1)
	}
	return s.backend.Poll(ctx, poll)
}

// fitting is how many of the executions' payloads an answer can hold: at least one.
func fitting(executions []*storagev1.Execution) int {
	size := 0
	for i, e := range executions {
		size += len(e.Template.GetPayload()) + int(e.Template.GetBlobSize())
		if size > maxClaimBytes && i > 0 {
			return i
		}
	}
	return len(executions)
}

// pollOf validates a claim.
func pollOf(req *carillonv1.ClaimRequest) (PollRequest, error) {
	var v violations
	v.name("worker", req.Worker)
	v.key("claim_id", req.ClaimId)
	if n := len(req.Queues); n < 1 || n > maxClaimQueues {
		v.add("queues", "has %d queues; 1 to %d are allowed", n, maxClaimQueues)
	}
	for i, queue := range req.Queues {
		v.name(fmt.Sprintf("queues[%d]", i), queue)
	}
	if req.MaxExecutions > maxClaim {
		v.add("max_executions", "is %d; at most %d are allowed", req.MaxExecutions, maxClaim)
	}
	poll := PollRequest{
		ClaimID: req.ClaimId, Worker: req.Worker, Queues: req.Queues, Max: max(1, int(req.MaxExecutions)),
		LeaseMS: v.duration("lease", req.Lease, 0, minLease, maxLease),
		Wait:    time.Duration(v.duration("wait", req.Wait, 0, 0, maxWait)) * time.Millisecond,
	}
	if poll.ClaimID == "" {
		poll.ClaimID = newID()
	}
	return poll, v.err()
}

// payloads returns each execution's payload, those in blob rows included; nil for one that is gone.
func (s *server) payloads(ctx context.Context, executions []*storagev1.Execution) ([]*[]byte, error) {
	out := make([]*[]byte, len(executions))
	for i, e := range executions {
		if e.Template.GetBlobVersion() == 0 {
			payload := e.Template.GetPayload()
			out[i] = &payload
		}
	}
	blobs := chunks(len(executions), func(i int) (place, int, bool) {
		e := executions[i]
		return place{shard: s.backend.ShardOf(e.Tenant, e.JobId)}, 0, out[i] == nil
	})
	for _, c := range blobs {
		err := s.backend.View(ctx, c.shard, false, func(r fsm.Reader) error {
			for _, i := range c.items {
				e := executions[i]
				if payload, ok := fsm.Payload(r, e.Tenant, e.JobId, e.Incarnation, e.Template); ok {
					out[i] = &payload
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// leaseOf is a leased execution as its worker sees it.
func (s *server) leaseOf(e *storagev1.Execution, payload []byte) *carillonv1.Lease {
	t := e.Template
	token := leaseToken{shard: s.backend.ShardOf(e.Tenant, e.JobId), fencing: e.Fencing}
	return &carillonv1.Lease{
		ExecutionId: fsm.ExecutionID(e), LeaseToken: token.String(), FencingNumber: e.Fencing, JobId: e.JobId, Tenant: e.Tenant,
		Queue: t.GetQueue(), Attempt: e.Attempt, MaxAttempts: t.GetRetry().GetMaxAttempts(), NominalTime: timeOf(e.NominalMs),
		Deadline: timeOf(e.DeadlineMs), LeaseLength: durationOf(e.LeaseLengthMs), Payload: payload,
		ContentType: t.GetContentType(), PayloadRef: t.GetPayloadRef(), Headers: mapOf(t.GetHeaders()), Priority: t.GetPriority(),
		Kind: carillonv1.ExecutionKind(e.Kind), JobVersion: e.JobVersion, Progress: e.Progress,
	}
}

// holder names a lease as a worker presents it.
type holder struct {
	id      fsm.Identity
	shard   uint32
	fencing uint64
}

// holder checks an execution id and a lease token.
func (s *server) holder(v *violations, idField, id, token string) holder {
	h := holder{id: v.execution(idField, id)}
	h.shard = s.shardOf(h.id)
	t, err := parseLeaseToken(token)
	switch {
	case token == "":
		v.add("lease_token", "is required")
	case err != nil:
		v.add("lease_token", "is not a lease token")
	case len(v.list) == 0 && t.shard != h.shard:
		// Fencing numbers are a shard's: another's may happen to be that of this execution's lease.
		v.add("lease_token", "is the token of another execution")
	}
	h.fencing = t.fencing
	return h
}

// execution checks an execution id.
func (v *violations) execution(field, id string) fsm.Identity {
	switch {
	case id == "":
		v.add(field, "is required")
		return fsm.Identity{}
	case len(id) > maxExecutionIDBytes:
		v.add(field, "has %d characters; at most %d are allowed", len(id), maxExecutionIDBytes)
		return fsm.Identity{}
	}
	identity, err := fsm.ParseExecutionID(id)
	var names violations
	names.name("", identity.Tenant)
	names.name("", identity.JobID)
	if names.optionalName("", identity.Discriminator); err != nil || len(names.list) > 0 {
		v.add(field, "is not an execution id, such as default~report~1~s~1767225600000")
	}
	return identity
}

func (s *server) shardOf(id fsm.Identity) uint32 { return s.backend.ShardOf(id.Tenant, id.JobID) }

func (s *server) heartbeat(ctx context.Context, req *carillonv1.HeartbeatRequest) (*carillonv1.HeartbeatResponse, error) {
	var v violations
	v.batch(len(req.Items))
	v.optionalName("worker", req.Worker)
	if err := v.err(); err != nil {
		return nil, err
	}
	beats := make([]*storagev1.Heartbeat, len(req.Items))
	shards := make([]uint32, len(req.Items))
	res := &carillonv1.HeartbeatResponse{Results: make([]*carillonv1.HeartbeatResult, len(req.Items))}
	for i, item := range req.Items {
		res.Results[i] = &carillonv1.HeartbeatResult{ExecutionId: item.GetExecutionId()}
		var v violations
		h := s.holder(&v, "execution_id", item.GetExecutionId(), item.GetLeaseToken())
		beat := v.beat(h, item.GetExecutionId(), item)
		if err := v.err(); err != nil {
			res.Results[i].Error = itemError(err)
			continue
		}
		beats[i], shards[i] = beat, h.shard
	}
	all := chunks(len(beats), func(i int) (place, int, bool) {
		if beats[i] == nil {
			return place{}, 0, false
		}
		return place{shard: shards[i]}, beats[i].SizeVT(), true
	})
	call := callOf(ctx)
	s.proposeChunks(ctx, all, func(c *chunk) *storagev1.Command {
		cmd := call.command()
		items := make([]*storagev1.Heartbeat, len(c.items))
		for k, i := range c.items {
			items[k] = beats[i]
		}
		cmd.Heartbeats = &storagev1.Heartbeats{Items: items}
		return cmd
	}, func(i int, item fsm.Item, err error) { beatResult(res.Results[i], item, err) })
	return res, nil
}

// beat translates a heartbeat.
func (v *violations) beat(h holder, id string, item interface {
	GetProgress() []byte
}) *storagev1.Heartbeat {
	beat := &storagev1.Heartbeat{ExecutionId: id, Fencing: h.fencing}
	switch item := item.(type) {
	case *carillonv1.HeartbeatItem:
		beat.HasProgress = item != nil && item.Progress != nil
		beat.ExtendMs = v.duration("extend", item.GetExtend(), 0, minLease, maxLease)
	case *carillonv1.HeartbeatExecutionRequest:
		beat.HasProgress = item.Progress != nil
		beat.ExtendMs = v.duration("extend", item.Extend, 0, minLease, maxLease)
	}
	beat.Progress = item.GetProgress()
	v.size("progress", len(beat.Progress), maxProgressBytes)
	return beat
}

// beatResult is the answer to one heartbeat: what the worker is to do.
func beatResult(out *carillonv1.HeartbeatResult, item fsm.Item, err error) {
	switch {
	case err != nil:
		out.Error = itemError(err)
	case item.Refusal == nil && item.CancelRequested:
		out.Status, out.Deadline = carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED, timeOf(item.DeadlineMS)
	case item.Refusal == nil:
		out.Status, out.Deadline = carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_OK, timeOf(item.DeadlineMS)
	case item.Refusal.Code == fsm.FailedPrecondition, item.Refusal.Code == fsm.NotFound:
		out.Status = carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST
	default:
		out.Error = itemError(refusalError(item.Refusal))
	}
}

func (s *server) heartbeatExecution(
	ctx context.Context, req *carillonv1.HeartbeatExecutionRequest,
) (*carillonv1.HeartbeatExecutionResponse, error) {
	var v violations
	v.optionalName("worker", req.Worker)
	h := s.holder(&v, "id", req.Id, req.LeaseToken)
	beat := v.beat(h, req.Id, req)
	if err := v.err(); err != nil {
		return nil, err
	}
	cmd := callOf(ctx).command()
	cmd.Heartbeats = &storagev1.Heartbeats{Items: []*storagev1.Heartbeat{beat}}
	items, err := s.proposeItems(ctx, h.shard, cmd, 1)
	if err != nil {
		return nil, err
	}
	var out carillonv1.HeartbeatResult
	beatResult(&out, items[0], nil)
	switch {
	case out.Status == carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_LOST:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the lease is lost: stop"))
	case out.Error != nil:
		return nil, refusalError(items[0].Refusal)
	}
	return &carillonv1.HeartbeatExecutionResponse{Status: out.Status, Deadline: out.Deadline}, nil
}
