package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

const (
	claimLoops    = 4
	completers    = 2
	claimMax      = 1000
	completeMax   = 10000
	claimWait     = 5 * time.Second
	workerRetries = 2 * time.Minute // for how long a worker tries to reach the server again
)

// workers claim, note in the ledger and complete, with nothing in between. Claims and completions overlap: each loop
// claims again while a completer still sends what it got. Owned by who calls run.
type workers struct {
	api    *api
	ledger *ledger
	name   string
	// pace is the least time between two claims of one loop: workers that are always busy ask in batches anyway, workers
	// that do nothing would ask for every single execution. 0: at once.
	pace time.Duration
	// retryPause is the wait after a claim that failed.
	retryPause time.Duration

	deliveries chan []delivery
}

func newWorkers(a *api, l *ledger, pace time.Duration) *workers {
	return &workers{
		api: a, ledger: l, name: "bench", pace: pace, retryPause: retryPause,
		deliveries: make(chan []delivery, 2*claimLoops),
	}
}

// run works until ctx ends, which is not an error.
func (w *workers) run(ctx context.Context) error {
	group, working := errgroup.WithContext(ctx)
	for k := range claimLoops {
		group.Go(func() error { return w.claimLoop(working, k) })
	}
	for range completers {
		group.Go(func() error { return w.completeLoop(working) })
	}
	err := group.Wait()
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// claimLoop claims from all queues. A claim whose answer is lost is repeated under its id, which must give the same leases.
func (w *workers) claimLoop(ctx context.Context, loop int) error {
	req := &carillonv1.ClaimRequest{
		Worker:        w.name,
		Queues:        w.ledger.plan.queues,
		MaxExecutions: claimMax,
		Wait:          durationpb.New(claimWait),
	}
	prefix := strconv.FormatUint(w.ledger.plan.seed, 36) + "-" + strconv.Itoa(loop) + "-"
	for round := 0; ; round++ {
		asked := time.Now()
		req.ClaimId = prefix + strconv.Itoa(round)
		leases, err := w.claim(ctx, req)
		if err != nil {
			return err
		}
		if len(leases) > 0 {
			got := w.ledger.receive(time.Now(), leases)
			select {
			case w.deliveries <- got:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if rest := w.pace - time.Since(asked); rest > 0 {
			if err := wait(ctx, rest); err != nil {
				return err
			}
		}
	}
}

func (w *workers) claim(ctx context.Context, req *carillonv1.ClaimRequest) ([]*carillonv1.Lease, error) {
	for start := time.Now(); ; {
		resp, err := w.api.workers.Claim(ctx, connect.NewRequest(req))
		if err == nil {
			return resp.Msg.GetLeases(), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !worthRetrying(ctx, err) || time.Since(start) > workerRetries {
			return nil, fmt.Errorf("claim: %w", err)
		}
		hint, _ := retryHint(err)
		if err := wait(ctx, max(hint, w.retryPause)); err != nil {
			return nil, err
		}
	}
}

// completeLoop sends completions: whatever has gathered since its last call is one batch.
func (w *workers) completeLoop(ctx context.Context) error {
	var done []delivery
	req := &carillonv1.CompleteRequest{Worker: w.name}
	for {
		select {
		case done = <-w.deliveries:
		case <-ctx.Done():
			return ctx.Err()
		}
		for more := true; more && len(done) <= completeMax-claimMax; {
			select {
			case d := <-w.deliveries:
				done = append(done, d...)
			default:
				more = false
			}
		}
		if err := w.complete(ctx, req, done); err != nil {
			return err
		}
	}
}

// complete sends one batch until it is answered; items that could not be applied for now are sent again.
func (w *workers) complete(ctx context.Context, req *carillonv1.CompleteRequest, done []delivery) error {
	for start := time.Now(); len(done) > 0; {
		fillCompletions(req, done)
		resp, err := w.api.workers.Complete(ctx, connect.NewRequest(req))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if !worthRetrying(ctx, err) || time.Since(start) > workerRetries {
				return fmt.Errorf("complete: %w", err)
			}
			hint, _ := retryHint(err)
			if err := wait(ctx, max(hint, w.retryPause)); err != nil {
				return err
			}
			continue
		}
		var again []delivery
		if again, err = w.ledger.complete(done, resp.Msg.GetResults()); err != nil {
			return err
		}
		if len(again) > 0 {
			if time.Since(start) > workerRetries {
				return fmt.Errorf("complete: %d items not applied within %v", len(again), workerRetries)
			}
			if err := wait(ctx, w.retryPause); err != nil {
				return err
			}
		}
		done = again
	}
	return nil
}

// succeeded is the outcome of all work here; it has nothing to return and is shared.
var succeeded = &carillonv1.CompleteItem_Succeeded{Succeeded: &carillonv1.Succeeded{}}

// fillCompletions makes req the completion of done, using the items that it already has.
func fillCompletions(req *carillonv1.CompleteRequest, done []delivery) {
	items := req.Items[:0]
	for k, d := range done {
		if k < cap(items) && items[:k+1][k] != nil {
			items = items[:k+1]
		} else {
			items = append(items, &carillonv1.CompleteItem{Outcome: succeeded})
		}
		items[k].ExecutionId = d.lease.GetExecutionId()
		items[k].LeaseToken = d.lease.GetLeaseToken()
	}
	req.Items = items
}
