package integration

import (
	"fmt"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// What a one-shot job and its only execution are to those who call, as a model for porcupine. Its lease is long, so that no
// time stands in it; when it fires is left open: a claim that gets nothing is always right.

// linearOp is a kind of call.
type linearOp string

const (
	opCreate    linearOp = "create"
	opUpdate    linearOp = "update"
	opClaim     linearOp = "claim"
	opHeartbeat linearOp = "heartbeat"
	opComplete  linearOp = "complete"
	opRelease   linearOp = "release"
	opCancel    linearOp = "cancel"
	opGetJob    linearOp = "get job"
	opGet       linearOp = "get execution"
)

// linearInput is a call on a job.
type linearInput struct {
	op  linearOp
	job string
	// text is a payload or a result, version the expected one, fencing that of the lease.
	text             string
	version, fencing uint64
	// token and execution are of the lease.
	token, execution string
}

// reads says that the call changes nothing in the model.
func (in linearInput) reads() bool {
	return in.op == opGetJob || in.op == opGet || in.op == opHeartbeat
}

// linearAnswer is how a call ended.
type linearAnswer string

const (
	ok       linearAnswer = "ok"
	nothing  linearAnswer = "nothing"   // a claim without a lease
	ghost    linearAnswer = "ghost"     // as nothing, but an earlier try of the same claim may still be granted and given back
	absent   linearAnswer = "absent"    // not_found
	conflict linearAnswer = "conflict"  // an expected version that is not the current one; an id or a lease that was used
	refusal  linearAnswer = "refused"   // failed_precondition
	toCancel linearAnswer = "to cancel" // a heartbeat's
	unknown  linearAnswer = "unknown"   // no answer: applied, or not, now or later
)

// linearOutput is what a call was told.
type linearOutput struct {
	answer           linearAnswer
	text             string
	version, fencing uint64
	state            carillonv1.ExecutionState
	lease            *carillonv1.Lease
}

// linearState is a job with its execution.
type linearState struct {
	exists  bool
	payload string
	version uint64
	// holder is the fencing number of the lease, 0 if there is none; granted the highest so far.
	holder, granted uint64
	cancelling      bool
	ended           carillonv1.ExecutionState
	result          string
}

// waits says that the execution can be claimed, once it has fired.
func (s linearState) waits() bool { return s.exists && s.holder == 0 && s.ended == 0 }

// linearModel takes operations apart by job. What a call without an answer did is open.
func linearModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Partition: partitionByJob,
		Init:      func() []any { return []any{linearState{}} },
		Step: func(state, input, output any) []any {
			in, out := input.(linearInput), output.(linearOutput)
			var next []any
			for _, s := range state.(linearState).step(in, out) {
				next = append(next, s)
			}
			return next
		},
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v → %+v", input, output)
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
	return model.ToModel()
}

func partitionByJob(history []porcupine.Operation) [][]porcupine.Operation {
	jobs := map[string][]porcupine.Operation{}
	for _, op := range history {
		job := op.Input.(linearInput).job
		jobs[job] = append(jobs[job], op)
	}
	var parts [][]porcupine.Operation
	for _, part := range jobs {
		parts = append(parts, part)
	}
	return parts
}

// ghostHolder holds a lease that nobody was told of, and may have given it back.
const ghostHolder = math.MaxUint64

// step is every state that the job can be in after a call that was answered so; none: it cannot have been.
func (s linearState) step(in linearInput, out linearOutput) []linearState {
	if s.holder != ghostHolder {
		return s.apply(in, out)
	}
	back := s
	back.holder = 0
	if s.cancelling {
		back.end(cancelledState, "")
	}
	return append(s.apply(in, out), back.apply(in, out)...)
}

// apply is step, with the lease as it stands.
func (s linearState) apply(in linearInput, out linearOutput) []linearState {
	if out.answer == absent {
		return s.when(!s.exists)
	}
	if out.answer == unknown {
		all := []linearState{s}
		for _, answer := range []linearOutput{{answer: ok}, {answer: ok, state: succeededState}, {answer: ok, state: readyState}, {answer: ok, state: cancelledState}, {answer: ok, state: leasedState}, {answer: refusal}} {
			for _, next := range s.apply(in, answer) {
				if !slices.Contains(all, next) {
					all = append(all, next)
				}
			}
		}
		return all
	}
	switch in.op {
	case opCreate:
		return s.create(in, out)
	case opUpdate:
		return s.update(in, out)
	case opClaim:
		return s.claim(out)
	case opHeartbeat:
		return s.heartbeat(in, out)
	case opComplete, opRelease:
		return s.complete(in, out)
	case opCancel:
		return s.cancel(out)
	case opGetJob:
		return s.when(s.exists && out.text == s.payload && out.version == s.version)
	default:
		return s.when(s.exists && out.state == s.state(out.state) && out.text == s.result)
	}
}

// when is s, if it can be.
func (s linearState) when(can bool) []linearState {
	if !can {
		return nil
	}
	return []linearState{s}
}

// state is that of the execution; whether it waits for its time or for a worker is open, so that said is believed.
func (s linearState) state(said carillonv1.ExecutionState) carillonv1.ExecutionState {
	switch {
	case s.ended != 0:
		return s.ended
	case s.holder != 0:
		return leasedState
	case said == carillonv1.ExecutionState_EXECUTION_STATE_WAITING:
		return said
	}
	return readyState
}

func (s linearState) create(in linearInput, out linearOutput) []linearState {
	if s.exists || out.answer == conflict {
		return s.when(s.exists && out.answer == conflict)
	}
	s.exists, s.payload, s.version = true, in.text, 1
	return []linearState{s}
}

func (s linearState) update(in linearInput, out linearOutput) []linearState {
	switch {
	case !s.exists:
		return nil
	case out.answer == conflict:
		return s.when(in.version != s.version && (out.version == 0 || out.version == s.version))
	case out.answer == refusal:
		return nil // labels can always change
	}
	can := in.version == s.version && (out.version == 0 || out.version == s.version+1)
	s.payload, s.version = in.text, s.version+1
	return s.when(can)
}

func (s linearState) claim(out linearOutput) []linearState {
	switch {
	case out.answer == ghost && s.waits():
		held := s
		held.holder = ghostHolder
		return []linearState{s, held}
	case out.answer == nothing, out.answer == ghost:
		return []linearState{s}
	}
	can := s.waits() && out.fencing > s.granted
	s.holder, s.granted = out.fencing, out.fencing
	return s.when(can)
}

func (s linearState) heartbeat(in linearInput, out linearOutput) []linearState {
	switch out.answer {
	case refusal:
		return s.when(s.holder != in.fencing)
	case toCancel:
		return s.when(s.holder == in.fencing && s.cancelling)
	}
	return s.when(s.holder == in.fencing && !s.cancelling)
}

// complete is a success or a release. A second release under the same token is answered as the first was.
func (s linearState) complete(in linearInput, out linearOutput) []linearState {
	if out.answer == refusal && s.holder == in.fencing && s.cancelling && in.op == opComplete {
		s.end(cancelledState, "") // a success that came too late ends it all the same
		return []linearState{s}
	}
	if out.answer == refusal || out.answer == conflict {
		return s.when(s.holder != in.fencing)
	}
	if s.holder != in.fencing {
		return s.when(in.op == opRelease && in.fencing <= s.granted)
	}
	switch {
	case s.cancelling:
		s.end(cancelledState, "")
		return s.when(out.state == cancelledState && in.op == opRelease)
	case in.op == opRelease:
		s.holder = 0
		return s.when(out.state == readyState)
	}
	s.end(succeededState, in.text)
	return s.when(out.state == succeededState)
}

func (s *linearState) end(as carillonv1.ExecutionState, result string) {
	s.holder, s.ended, s.result, s.cancelling = 0, as, result, false
}

// cancel ends what waits and asks a holder to stop. Without a state, which of the two it did is open.
func (s linearState) cancel(out linearOutput) []linearState {
	said := func(state carillonv1.ExecutionState) bool { return out.state == 0 || out.state == state }
	switch {
	case out.answer == refusal:
		return s.when(s.ended != 0)
	case s.ended == cancelledState:
		return s.when(said(cancelledState))
	case s.ended != 0 || !s.exists:
		return nil
	case s.holder != 0:
		s.cancelling = true
		return s.when(said(leasedState))
	}
	s.end(cancelledState, "")
	return s.when(said(cancelledState))
}
