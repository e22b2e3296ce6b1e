package route

import (
	"errors"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/rpc"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// encodeOutcome returns the wire form of what came of a command. The errors are those of Local.Propose.
func encodeOutcome(o *rpc.Outcome) *clusterv1.Outcome {
	if o.Err != nil {
		return &clusterv1.Outcome{Failure: encodeFailure(o.Err)}
	}
	return &clusterv1.Outcome{Result: encodeResult(&o.Result)}
}

// decodeOutcome is its inverse.
func decodeOutcome(o *clusterv1.Outcome) rpc.Outcome {
	switch {
	case o.GetFailure() != nil:
		return rpc.Outcome{Err: decodeFailure(o.Failure)}
	case o.GetResult() != nil:
		return rpc.Outcome{Result: decodeResult(o.Result)}
	}
	return rpc.Outcome{Err: errors.New("decode outcome: it has neither a result nor a failure")}
}

// encodeResult shares what it points to with r.
func encodeResult(r *fsm.Result) *clusterv1.Result {
	out := &clusterv1.Result{
		Refusal: encodeRefusal(r.Refusal), Job: r.Job, ExecutionId: r.ExecutionID, Leases: r.Leases, Task: r.Task,
		Fired: int64(r.Fired), MoreDue: r.MoreDue, Removed: int64(r.Removed), More: r.More, Put: r.Put,
	}
	if len(r.Items) == 0 {
		return out
	}
	items := make([]clusterv1.Item, len(r.Items)) // one allocation for all
	out.Items = make([]*clusterv1.Item, len(r.Items))
	for i := range r.Items {
		from, to := &r.Items[i], &items[i]
		to.Refusal, to.Incarnation, to.CreatedMs = encodeRefusal(from.Refusal), from.Incarnation, from.CreatedMS
		to.FirstMs, to.Duplicate, to.DeadlineMs = from.FirstMS, from.Duplicate, from.DeadlineMS
		to.CancelRequested, to.State = from.CancelRequested, from.State
		out.Items[i] = to
	}
	return out
}

func decodeResult(r *clusterv1.Result) fsm.Result {
	out := fsm.Result{
		Refusal: decodeRefusal(r.Refusal), Job: r.Job, ExecutionID: r.ExecutionId, Leases: r.Leases, Task: r.Task,
		Fired: int(r.Fired), MoreDue: r.MoreDue, Removed: int(r.Removed), More: r.More, Put: r.Put,
	}
	if len(r.Items) == 0 {
		return out
	}
	out.Items = make([]fsm.Item, len(r.Items))
	for i, item := range r.Items {
		out.Items[i] = fsm.Item{
			Refusal: decodeRefusal(item.Refusal), Incarnation: item.Incarnation, CreatedMS: item.CreatedMs,
			FirstMS: item.FirstMs, Duplicate: item.Duplicate, DeadlineMS: item.DeadlineMs,
			CancelRequested: item.CancelRequested, State: item.State,
		}
	}
	return out
}

func encodeRefusal(r *fsm.Refusal) *clusterv1.Refusal {
	if r == nil {
		return nil
	}
	return &clusterv1.Refusal{
		Code: clusterv1.RefusalCode(r.Code), Message: r.Message, Field: r.Field, Fields: r.Fields, Version: r.Version,
	}
}

func decodeRefusal(r *clusterv1.Refusal) *fsm.Refusal {
	if r == nil {
		return nil
	}
	return &fsm.Refusal{Code: fsm.Code(r.Code), Message: r.Message, Field: r.Field, Fields: r.Fields, Version: r.Version}
}

// failureKinds are the errors of package replica that are sentinels.
var failureKinds = []struct {
	kind clusterv1.FailureKind
	err  error
}{
	{clusterv1.FailureKind_FAILURE_KIND_AMBIGUOUS, replica.ErrAmbiguous},
	{clusterv1.FailureKind_FAILURE_KIND_OVERLOADED, replica.ErrOverloaded},
	{clusterv1.FailureKind_FAILURE_KIND_TOO_LARGE, replica.ErrTooLarge},
	{clusterv1.FailureKind_FAILURE_KIND_NO_REPLICA, replica.ErrNoReplica},
	{clusterv1.FailureKind_FAILURE_KIND_STOPPED, replica.ErrStopped},
}

func encodeFailure(err error) *clusterv1.Failure {
	var notLeader *replica.NotLeaderError
	if errors.As(err, &notLeader) {
		return &clusterv1.Failure{
			Kind: clusterv1.FailureKind_FAILURE_KIND_NOT_LEADER, Message: err.Error(),
			Shard: notLeader.Shard, Term: notLeader.Term, LeaderStore: notLeader.Store,
		}
	}
	for _, f := range failureKinds {
		if errors.Is(err, f.err) {
			return &clusterv1.Failure{Kind: f.kind, Message: err.Error()}
		}
	}
	return &clusterv1.Failure{Kind: clusterv1.FailureKind_FAILURE_KIND_INTERNAL, Message: err.Error()}
}

// decodeFailure returns the error that was encoded; of one that has no kind only its text is left.
func decodeFailure(f *clusterv1.Failure) error {
	if f.Kind == clusterv1.FailureKind_FAILURE_KIND_NOT_LEADER {
		return &replica.NotLeaderError{Shard: f.Shard, Term: f.Term, Store: f.LeaderStore}
	}
	for _, known := range failureKinds {
		if f.Kind == known.kind {
			return known.err
		}
	}
	return errors.New(f.Message)
}
