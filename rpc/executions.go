package rpc

import (
	"context"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func (s *server) getExecution(ctx context.Context, req *carillonv1.GetExecutionRequest) (*carillonv1.GetExecutionResponse, error) {
	var v violations
	id := v.execution("id", req.Id)
	if err := v.err(); err != nil {
		return nil, err
	}
	found, err := s.readExecution(ctx, id, req.Id, req.Stale)
	if err != nil {
		return nil, err
	}
	return &carillonv1.GetExecutionResponse{Execution: found}, nil
}

// readExecution reads an execution with its result.
func (s *server) readExecution(ctx context.Context, id fsm.Identity, text string, stale bool) (*carillonv1.Execution, error) {
	var found *carillonv1.Execution
	err := s.backend.View(ctx, s.shardOf(id), stale, func(r fsm.Reader) error {
		found = nil
		if e, _, ok := fsm.Find(r, text); ok {
			found = executionOf(e, text, true)
		}
		return nil
	})
	if err == nil && found == nil {
		err = notFound("no execution %q", text)
	}
	return found, err
}

func (s *server) cancelExecution(
	ctx context.Context, req *carillonv1.CancelExecutionRequest,
) (*carillonv1.CancelExecutionResponse, error) {
	var v violations
	id := v.execution("id", req.Id)
	v.text("reason", req.Reason, maxReasonBytes)
	if err := v.err(); err != nil {
		return nil, err
	}
	shard := s.shardOf(id)
	err := untilFound(func() error {
		var hint []byte
		err := s.backend.View(ctx, shard, false, func(r fsm.Reader) error {
			_, key, ok := fsm.Find(r, req.Id)
			if !ok {
				return notFound("no execution %q", req.Id)
			}
			hint = append([]byte(nil), key...)
			return nil
		})
		if err != nil {
			return err
		}
		cmd := callOf(ctx).command()
		cmd.CancelExecution = &storagev1.CancelExecution{ExecutionId: req.Id, Hint: hint, Reason: req.Reason}
		items, err := s.proposeItems(ctx, shard, cmd, 1)
		if err == nil && items[0].Refusal != nil {
			err = &Refused{items[0].Refusal}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	found, err := s.readExecution(ctx, id, req.Id, false)
	if err != nil {
		return nil, err
	}
	return &carillonv1.CancelExecutionResponse{Execution: found}, nil
}
