package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	// linearClients call at the same time, on the same job; linearOps is how many calls a job gets in all.
	linearClients = 5
	linearOps     = 60
	// linearCall is how long a call may take before its outcome is unknown.
	linearCall = 3 * time.Second
)

// Concurrent clients create, change, claim, keep, complete, cancel and read jobs at three real nodes, one of which is killed
// and started again all the time: for each job there is an order of the calls in which every answer is right.
func TestDrillLinearizable(t *testing.T) {
	t.Parallel()
	length, seed := drillLength(t, 10*time.Second), drillSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	f := startFleet(t, 3, "--shards", "2")
	f.nodes[0].awaitStatus(20*time.Second, "three voters everywhere", whole)
	h := &linearHistory{f: f, any: f.anywhere(), began: time.Now()}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients errgroup.Group
	for i := range linearClients {
		clients.Go(func() error { return h.client(ctx, i, rand.New(rand.NewPCG(seed, uint64(10+i)))) })
	}
	kills := 0
	for end := time.Now().Add(length); time.Now().Before(end); kills++ {
		pause(t, time.Duration(300+rng.IntN(1200))*time.Millisecond)
		victim := f.nodes[rng.IntN(3)]
		victim.kill()
		pause(t, time.Duration(500+rng.IntN(1500))*time.Millisecond)
		victim.start()
		f.nodes[0].awaitStatus(60*time.Second, "every shard is whole", whole)
	}
	stop()
	if err := clients.Wait(); err != nil {
		t.Fatal(err)
	}
	h.check(t)
	t.Logf("%d kills, %d calls on %d jobs, %d of them without an answer; by answer: %v", kills, len(h.ops), h.job.Load()+1, h.unknown, h.answers)
	if kills < 2 || len(h.ops) < 500 {
		t.Error("the drill did too little to mean anything")
	}
	f.verify()
}

// linearHistory is what was called and answered.
type linearHistory struct {
	f     *fleet
	any   *server
	began time.Time
	// job is the one that is worked on, calls how many it has had.
	job, calls atomic.Int64

	mu      sync.Mutex
	ops     []porcupine.Operation
	unknown int
	answers map[string]int
	// leases are those of the job so far, version its highest that was told.
	leases  []*carillonv1.Lease
	version uint64
}

// check has porcupine find an order for each job.
func (h *linearHistory) check(t *testing.T) {
	t.Helper()
	end := time.Since(h.began).Nanoseconds()
	for i := range h.ops {
		if h.ops[i].Return == math.MaxInt64 {
			h.ops[i].Return = end // after everything else: it may have been applied at any time since
		}
	}
	model := linearModel()
	result, info := porcupine.CheckOperationsVerbose(model, h.ops, 30*time.Second)
	if result == porcupine.Ok {
		return
	}
	file, err := os.CreateTemp("", "carillon-linear-*.html")
	if err == nil {
		err = errors.Join(porcupine.Visualize(model, info, file), file.Close())
	}
	t.Errorf("the history is %v to be linearizable; see %s (%v)", result, file.Name(), err)
}

// client makes calls until ctx ends.
func (h *linearHistory) client(ctx context.Context, n int, rng *rand.Rand) error {
	for ctx.Err() == nil {
		if h.calls.Add(1) > linearOps {
			h.next()
		}
		in := h.pick(n, rng)
		call := time.Since(h.began).Nanoseconds()
		out, err := h.call(ctx, in, rng.IntN(2) == 0)
		if err != nil {
			return fmt.Errorf("%+v: %w", in, err)
		}
		if out.answer == unknown && in.reads() {
			continue
		}
		op := porcupine.Operation{ClientId: n, Input: in, Output: out, Call: call, Return: time.Since(h.began).Nanoseconds()}
		if out.answer == unknown {
			op.Return = math.MaxInt64
		}
		h.record(op, in, out)
		pauseCtx(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
	}
	return nil
}

// next goes on to another job, once for all clients.
func (h *linearHistory) next() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls.Load() > linearOps {
		h.job.Add(1)
		h.calls.Store(0)
		h.leases, h.version = nil, 0
	}
}

func (h *linearHistory) record(op porcupine.Operation, in linearInput, out linearOutput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answers == nil {
		h.answers = map[string]int{}
	}
	h.ops = append(h.ops, op)
	h.answers[string(in.op)+" "+string(out.answer)]++
	if out.answer == unknown {
		h.unknown++
	}
}

// pick is a client's next call: of all kinds, with leases and versions that may be stale.
func (h *linearHistory) pick(n int, rng *rand.Rand) linearInput {
	h.mu.Lock()
	defer h.mu.Unlock()
	in := linearInput{job: fmt.Sprint("linear-", h.job.Load()), text: fmt.Sprintf("%d-%d", n, rng.Uint64())}
	kinds := []linearOp{opUpdate, opGetJob, opClaim, opClaim}
	switch {
	case h.version == 0:
		kinds = append(kinds, opCreate, opCreate)
	case len(h.leases) > 0:
		kinds = append(kinds, opCreate, opHeartbeat, opHeartbeat, opRelease, opGet, opGet)
		if h.calls.Load() > linearOps/2 {
			kinds = append(kinds, opComplete, opCancel)
		}
	}
	in.op, in.version = kinds[rng.IntN(len(kinds))], max(1, h.version)
	if rng.IntN(4) == 0 {
		in.version = 1 + rng.Uint64N(in.version)
	}
	if len(h.leases) > 0 {
		lease := h.leases[max(0, len(h.leases)-1-rng.IntN(3))]
		in.fencing, in.token, in.execution = lease.GetFencingNumber(), lease.GetLeaseToken(), lease.GetExecutionId()
	}
	return in
}

// call makes a call: until it is answered if it is to be insisted on or is a claim, else once.
func (h *linearHistory) call(ctx context.Context, in linearInput, insistent bool) (linearOutput, error) {
	if in.op == opClaim {
		ctx = context.WithoutCancel(ctx) // what it leased would not be known
	}
	for tries := 1; ; tries++ {
		one, cancel := context.WithTimeout(ctx, linearCall)
		out, err := h.try(one, in)
		cancel()
		if err != nil {
			if out, err = answered(err); err != nil {
				return out, err
			}
		}
		switch {
		case out.answer == unknown && (in.op == opClaim || insistent) && ctx.Err() == nil:
			pauseCtx(ctx, 20*time.Millisecond)
			continue
		case out.answer == nothing && tries > 1:
			out.answer = ghost
		case in.op == opCancel:
			out.state = 0 // it is read after the change: a holder that was asked to stop may have done so by then
		}
		h.learn(in, out)
		return out, nil
	}
}

// answered is what an error says of a call; one that is none of the contract's is returned.
func answered(err error) (linearOutput, error) {
	if !connect.IsWireError(err) {
		// Also an error of the node's whose text was cut off when it was killed: of that only HTTP's status has arrived.
		return linearOutput{answer: unknown}, nil
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeResourceExhausted, connect.CodeUnknown:
		return linearOutput{answer: unknown}, nil
	case connect.CodeFailedPrecondition:
		return linearOutput{answer: refusal}, nil
	case connect.CodeAborted, connect.CodeAlreadyExists:
		return linearOutput{answer: conflict}, nil
	case connect.CodeNotFound:
		return linearOutput{answer: absent}, nil
	}
	return linearOutput{}, err
}

// learn notes what later calls go by.
func (h *linearHistory) learn(in linearInput, out linearOutput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if in.job != fmt.Sprint("linear-", h.job.Load()) || out.answer != ok {
		return
	}
	h.version = max(h.version, out.version)
	if out.lease != nil {
		h.leases = append(h.leases, out.lease)
	}
}

// try makes a call once.
func (h *linearHistory) try(ctx context.Context, in linearInput) (linearOutput, error) {
	out := linearOutput{answer: ok}
	switch in.op {
	case opCreate:
		_, err := unaryOf(h.any.jobs().CreateJob, &carillonv1.CreateJobRequest{IdempotencyKey: in.text, Job: &carillonv1.JobSpec{
			Id: in.job, Queue: in.job, Schedule: atOnce(), Labels: map[string]string{"text": in.text}, Lease: durationpb.New(time.Hour),
		}})(ctx)
		out.version = 1
		return out, err
	case opUpdate:
		res, err := unaryOf(h.any.jobs().UpdateJob, &carillonv1.UpdateJobRequest{
			Id: in.job, IdempotencyKey: in.text, ExpectedVersion: in.version, Job: &carillonv1.JobPatch{Labels: map[string]string{"text": in.text}},
		})(ctx)
		out.version = res.GetJob().GetVersion()
		return out, err
	case opGetJob:
		res, err := unaryOf(h.any.jobs().GetJob, &carillonv1.GetJobRequest{Id: in.job})(ctx)
		out.version, out.text = res.GetJob().GetVersion(), res.GetJob().GetLabels()["text"]
		return out, err
	case opClaim:
		res, err := unaryOf(h.any.workers().Claim, &carillonv1.ClaimRequest{Worker: "w", ClaimId: in.text, Queues: []string{in.job}})(ctx)
		if len(res.GetLeases()) == 0 {
			out.answer = nothing
			return out, err
		}
		out.lease = res.GetLeases()[0]
		out.fencing = out.lease.GetFencingNumber()
		return out, err
	}
	return h.tryExecution(ctx, in)
}

// tryExecution makes a call on the execution once.
func (h *linearHistory) tryExecution(ctx context.Context, in linearInput) (linearOutput, error) {
	out := linearOutput{answer: ok}
	lease := &carillonv1.Lease{ExecutionId: in.execution, LeaseToken: in.token}
	switch in.op {
	case opHeartbeat:
		res, err := unaryOf(h.any.workers().HeartbeatExecution, &carillonv1.HeartbeatExecutionRequest{Id: in.execution, LeaseToken: in.token, Worker: "w"})(ctx)
		if res.GetStatus() == carillonv1.HeartbeatStatus_HEARTBEAT_STATUS_CANCEL_REQUESTED {
			out.answer = toCancel
		}
		return out, err
	case opComplete, opRelease:
		req := released(lease, "w")
		if in.op == opComplete {
			req = succeeded(lease, "w", in.text)
		}
		res, err := unaryOf(h.any.workers().CompleteExecution, req)(ctx)
		out.state = res.GetState()
		return out, err
	case opCancel:
		res, err := unaryOf(h.any.executions().CancelExecution, &carillonv1.CancelExecutionRequest{Id: in.execution})(ctx)
		out.state = res.GetExecution().GetState()
		return out, err
	}
	res, err := unaryOf(h.any.executions().GetExecution, &carillonv1.GetExecutionRequest{Id: in.execution})(ctx)
	out.state, out.text = res.GetExecution().GetState(), string(res.GetExecution().GetResult())
	return out, err
}

// atOnce is a schedule that is due when it is accepted.
func atOnce() *carillonv1.Schedule { return in(0) }
