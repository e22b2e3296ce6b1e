package integration

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// TestCrashNothingLostNothingTwice kills the real server with SIGKILL at random moments under mixed load, restarts it each
// time, and then proves from the API alone: every acknowledged job exists, every acknowledged completion holds, no
// occurrence was accepted twice, nothing ran early, nothing was lost.
//
// CARILLON_DRILL sets how long the load lasts (default 12s), CARILLON_SEED repeats a run.
func TestCrashNothingLostNothingTwice(t *testing.T) {
	t.Parallel()
	length, seed := drillLength(t, 12*time.Second), drillSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := startServer(t, "")
	load := newCrashLoad(s)

	kills := 0
	load.runWhile(t, seed, func() {
		for end := time.Now().Add(length); time.Now().Before(end); kills++ {
			pause(t, time.Duration(200+rng.IntN(1800))*time.Millisecond)
			s.kill()
			s.start()
		}
	})
	s.kill()
	s.start() // what is proven below stands on disk
	load.prove(t)
	t.Logf("%d kills, %d jobs acknowledged, %d completions acknowledged", kills, len(load.acked), len(load.completed))
	if kills < 3 || len(load.acked) < 50 || len(load.completed) < 50 {
		t.Fatalf("the drill did too little to mean anything")
	}
}

// runWhile puts the server under load while things are broken, and returns when all of it has ended.
func (l *crashLoad) runWhile(t *testing.T, seed uint64, broken func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	producing, stopProducing := context.WithCancel(ctx)
	defer stopProducing()
	producers, _ := errgroup.WithContext(ctx)
	for i := range 4 {
		producers.Go(func() error { return l.produce(producing, ctx, seed, i) })
	}
	producers.Go(func() error { return l.produceRecurring(producing, ctx) })
	workers, workerCtx := errgroup.WithContext(ctx)
	for i := range 3 {
		workers.Go(func() error { return l.work(workerCtx, seed, i) })
	}
	broken()
	stopProducing()
	if err := producers.Wait(); err != nil {
		t.Fatal(err)
	}
	l.drain(t, 60*time.Second)
	stop()
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}
}

func drillLength(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("CARILLON_DRILL")
	if text == "" {
		return short
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("CARILLON_DRILL: %v", err)
	}
	return d
}

func drillSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("CARILLON_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("CARILLON_SEED: %v", err)
		}
	}
	t.Logf("repeat with CARILLON_SEED=%d", seed)
	return seed
}

// pause lets the load run for d: the drill's own rhythm, nothing waits for a condition by it.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	<-time.After(d)
}

// crashLoad is what the drill did and was told.
type crashLoad struct {
	s *server

	mu        sync.Mutex
	acked     map[string]ackedJob
	completed map[string]string // execution id → result that was acknowledged
	succeeded map[string]uint64 // execution id → fencing number whose success was acknowledged
	faults    []string
}

type ackedJob struct {
	request *carillonv1.CreateJobRequest
	receipt *carillonv1.CreateJobResponse
	every   time.Duration
	runs    uint64
}

func newCrashLoad(s *server) *crashLoad {
	return &crashLoad{s: s, acked: map[string]ackedJob{}, completed: map[string]string{}, succeeded: map[string]uint64{}}
}

func (l *crashLoad) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) < 20 {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// produce creates one-shots until producing ends. Each create is retried with its key until it is answered.
func (l *crashLoad) produce(producing, ctx context.Context, seed uint64, n int) error {
	rng := rand.New(rand.NewPCG(seed, uint64(100+n)))
	for i := 0; producing.Err() == nil; i++ {
		req := &carillonv1.CreateJobRequest{
			IdempotencyKey: fmt.Sprintf("p%d-%d", n, i),
			Job: &carillonv1.JobSpec{
				Tenant:   fmt.Sprintf("t%d", rng.IntN(5)),
				Queue:    fmt.Sprintf("q%d", rng.IntN(3)),
				Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Delay{Delay: durationpb.New(time.Duration(rng.IntN(3000)) * time.Millisecond)}},
				Payload:  []byte(fmt.Sprintf("payload %d-%d", n, i)),
				Retry:    &carillonv1.RetryPolicy{MaxAttempts: 1000, FirstDelay: durationpb.New(20 * time.Millisecond), FactorThousandths: 1000},
				Lease:    durationpb.New(2 * time.Second),
			},
		}
		if err := l.create(ctx, req, ackedJob{}); err != nil {
			return err
		}
		pauseCtx(producing, 3*time.Millisecond)
	}
	return nil
}

// produceRecurring creates interval jobs with a bounded number of runs.
func (l *crashLoad) produceRecurring(producing, ctx context.Context) error {
	for i := 0; producing.Err() == nil && i < 40; i++ {
		const runs = 5
		req := &carillonv1.CreateJobRequest{
			IdempotencyKey: fmt.Sprintf("r-%d", i),
			Job: &carillonv1.JobSpec{
				Queue:    "q0",
				CatchUp:  carillonv1.CatchUp_CATCH_UP_ALL,
				Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_Every{Every: &carillonv1.Every{Interval: durationpb.New(time.Second), MaxRuns: runs}}},
				Retry:    &carillonv1.RetryPolicy{MaxAttempts: 1000, FirstDelay: durationpb.New(20 * time.Millisecond), FactorThousandths: 1000},
				Lease:    durationpb.New(2 * time.Second),
			},
		}
		if err := l.create(ctx, req, ackedJob{every: time.Second, runs: runs}); err != nil {
			return err
		}
		pauseCtx(producing, 200*time.Millisecond)
	}
	return nil
}

func (l *crashLoad) create(ctx context.Context, req *carillonv1.CreateJobRequest, job ackedJob) error {
	res, err := insist(ctx, func(ctx context.Context) (*carillonv1.CreateJobResponse, error) {
		res, err := l.s.jobs().CreateJob(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	})
	if err != nil {
		return fmt.Errorf("create with key %s: %w", req.GetIdempotencyKey(), err)
	}
	job.request, job.receipt = req, res
	l.mu.Lock()
	l.acked[res.GetId()] = job
	l.mu.Unlock()
	return nil
}

// insist calls until the server answers: what a crash may make of a call is unavailable, never anything else.
func insist[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	for {
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		res, err := call(one)
		cancel()
		if err == nil || ctx.Err() != nil {
			return res, err
		}
		switch connect.CodeOf(err) {
		case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeResourceExhausted, connect.CodeUnknown:
			pauseCtx(ctx, 20*time.Millisecond)
		default:
			if connect.IsWireError(err) {
				return res, err
			}
			pauseCtx(ctx, 20*time.Millisecond) // an answer that was cut off
		}
	}
}

func pauseCtx(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// work claims and completes until ctx ends. A tenth fails first, some leases are forgotten so that they end by themselves.
func (l *crashLoad) work(ctx context.Context, seed uint64, n int) error {
	rng := rand.New(rand.NewPCG(seed, uint64(200+n)))
	for i := 0; ctx.Err() == nil; i++ {
		req := &carillonv1.ClaimRequest{
			Worker: fmt.Sprintf("w%d", n), ClaimId: fmt.Sprintf("w%d-%d", n, i),
			Queues: []string{"q0", "q1", "q2"}, MaxExecutions: uint32(1 + rng.IntN(50)), Wait: durationpb.New(500 * time.Millisecond),
		}
		leases, err := insist(ctx, func(ctx context.Context) ([]*carillonv1.Lease, error) {
			res, err := l.s.workers().Claim(ctx, connect.NewRequest(req))
			if err != nil {
				return nil, err
			}
			return res.Msg.GetLeases(), nil
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if len(leases) > int(req.GetMaxExecutions()) {
			l.fault("claim %s asked for %d and got %d", req.GetClaimId(), req.GetMaxExecutions(), len(leases))
		}
		if err := l.complete(ctx, rng, req.GetWorker(), leases); err != nil {
			return err
		}
	}
	return nil
}

func (l *crashLoad) complete(ctx context.Context, rng *rand.Rand, worker string, leases []*carillonv1.Lease) error {
	now := time.Now()
	req := &carillonv1.CompleteRequest{Worker: worker}
	for _, lease := range leases {
		if early := lease.GetNominalTime().AsTime().Sub(now); early > 0 {
			l.fault("%s was delivered %v early", lease.GetExecutionId(), early)
		}
		item := &carillonv1.CompleteItem{ExecutionId: lease.GetExecutionId(), LeaseToken: lease.GetLeaseToken()}
		switch rng.IntN(20) {
		case 0: // forgotten: its lease ends
			continue
		case 1, 2:
			item.Outcome = &carillonv1.CompleteItem_Failed{Failed: &carillonv1.Failed{Error: "by chance"}}
		case 3:
			item.Outcome = &carillonv1.CompleteItem_Released{Released: &carillonv1.Released{}}
		default:
			item.Outcome = &carillonv1.CompleteItem_Succeeded{Succeeded: &carillonv1.Succeeded{Result: resultOf(lease)}}
		}
		req.Items = append(req.Items, item)
	}
	if len(req.GetItems()) == 0 {
		return nil
	}
	res, err := insist(ctx, func(ctx context.Context) (*carillonv1.CompleteResponse, error) {
		res, err := l.s.workers().Complete(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	fencing := map[string]uint64{}
	for _, lease := range leases {
		fencing[lease.GetExecutionId()] = lease.GetFencingNumber()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range res.GetResults() {
		item := req.GetItems()[i]
		if r.GetState() != carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED || item.GetSucceeded() == nil {
			continue
		}
		id, number := item.GetExecutionId(), fencing[item.GetExecutionId()]
		if before, ok := l.succeeded[id]; ok && before != number {
			l.faults = append(l.faults, fmt.Sprintf("%s: success was accepted under the fencing numbers %d and %d", id, before, number))
		}
		l.succeeded[id] = number
		l.completed[id] = string(item.GetSucceeded().GetResult())
	}
	return nil
}

func resultOf(lease *carillonv1.Lease) []byte {
	sum := sha256.Sum256([]byte(lease.GetExecutionId() + "/" + lease.GetLeaseToken()))
	return sum[:8]
}

// drain waits until nothing is left to run.
func (l *crashLoad) drain(t *testing.T, limit time.Duration) {
	t.Helper()
	for id, job := range l.acked {
		if job.runs == 0 {
			continue
		}
		await(t, limit, "recurring job "+id+" has had its runs", func() bool {
			res, err := try(l.s.jobs().GetJob, &carillonv1.GetJobRequest{Id: id, Tenant: job.receipt.GetTenant()})
			return err == nil && res.GetJob().GetState() == carillonv1.JobState_JOB_STATE_EXHAUSTED
		})
	}
	await(t, limit, "every execution has ended", func() bool {
		res, err := try(l.s.cluster().GetCluster, &carillonv1.GetClusterRequest{})
		b := res.GetBacklog()
		return err == nil && b.GetWaiting()+b.GetReady()+b.GetLeased()+b.GetRetrying()+b.GetHeld() == 0
	})
}

func (l *crashLoad) history(ctx context.Context, id, tenant string) (executions []*carillonv1.Execution, covered uint64, err error) {
	req := &carillonv1.GetJobHistoryRequest{Id: id, Tenant: tenant}
	for {
		res, err := l.s.jobs().GetJobHistory(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, 0, err
		}
		executions = append(executions, res.Msg.GetExecutions()...)
		for _, v := range res.Msg.GetVerdicts() {
			covered += v.GetCount()
		}
		if req.PageToken = res.Msg.GetNextPageToken(); req.GetPageToken() == "" {
			return executions, covered, nil
		}
	}
}

// prove checks every promise against what the API says now, several at a time.
func (l *crashLoad) prove(t *testing.T) {
	t.Helper()
	for _, f := range l.faults {
		t.Error(f)
	}
	var proofs errgroup.Group
	proofs.SetLimit(8)
	for id, job := range l.acked {
		proofs.Go(func() error {
			again, err := insist(t.Context(), unaryOf(l.s.jobs().CreateJob, job.request))
			if err != nil || again.String() != job.receipt.String() {
				t.Errorf("the retry of create %s answers %v (%v), first was %v", id, again, err, job.receipt)
			}
			executions, covered, err := l.history(context.Background(), id, job.receipt.GetTenant())
			if err != nil {
				return fmt.Errorf("history of %s: %w", id, err)
			}
			l.proveJob(t, id, job, executions, covered)
			return nil
		})
	}
	for id, result := range l.completed {
		proofs.Go(func() error {
			res, err := try(l.s.executions().GetExecution, &carillonv1.GetExecutionRequest{Id: id})
			if err != nil {
				return fmt.Errorf("%s was completed and acknowledged; now: %w", id, err)
			}
			e := res.GetExecution()
			if e.GetState() != succeededState || string(e.GetResult()) != result {
				t.Errorf("%s was acknowledged as succeeded with %x; now %v with %x", id, result, e.GetState(), e.GetResult())
			}
			return nil
		})
	}
	if err := proofs.Wait(); err != nil {
		t.Error(err)
	}
}

func (l *crashLoad) proveJob(t *testing.T, id string, job ackedJob, executions []*carillonv1.Execution, covered uint64) {
	t.Helper()
	want := uint64(1)
	if job.runs > 0 {
		want = job.runs
	}
	if got := uint64(len(executions)) + covered; got != want {
		t.Errorf("job %s: %d verdicts (%d executions), want %d", id, got, len(executions), want)
	}
	seen := map[int64]bool{}
	first := job.receipt.GetNextTime().AsTime()
	for _, e := range executions {
		nominal := e.GetNominalTime().AsTime()
		if seen[nominal.UnixMilli()] {
			t.Errorf("job %s: two executions for %v", id, nominal)
		}
		seen[nominal.UnixMilli()] = true
		if job.runs == 0 && !nominal.Equal(first) {
			t.Errorf("job %s: nominal %v, accepted for %v", id, nominal, first)
		}
		if job.runs > 0 && nominal.Sub(first)%job.every != 0 {
			t.Errorf("job %s: nominal %v is off the grid of %v", id, nominal, first)
		}
		if e.GetState() != carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED {
			t.Errorf("job %s: execution %s ended as %v", id, e.GetId(), e.GetState())
		}
		succeeded := 0
		for _, a := range e.GetAttempts() {
			if a.GetStartTime().AsTime().Before(nominal) {
				t.Errorf("%s: attempt %d started at %v, before its time %v", e.GetId(), a.GetNumber(), a.GetStartTime().AsTime(), nominal)
			}
			if a.GetOutcome() == carillonv1.Outcome_OUTCOME_SUCCEEDED {
				succeeded++
			}
		}
		if succeeded != 1 {
			t.Errorf("%s: %d attempts succeeded", e.GetId(), succeeded)
		}
	}
}
