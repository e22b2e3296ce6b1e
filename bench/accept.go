package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// runAccept measures how fast jobs are accepted in batches, all due an hour ahead.
func runAccept(ctx context.Context, s *session) ([]Result, error) {
	if _, err := s.warmUp(ctx); err != nil {
		return nil, err
	}
	r, err := s.acceptPhase(ctx, func(c *creates) error { return createBatches(ctx, s.producers, c) })
	return []Result{r}, err
}

// oneProducers is how many producers wait for their own job's answer before they create the next.
const oneProducers = 64

// runAcceptOne measures single creates: by a call each, and by the same producers through the Go client, which merges
// what is asked for at the same time.
func runAcceptOne(ctx context.Context, s *session) ([]Result, error) {
	if _, err := s.warmUp(ctx); err != nil {
		return nil, err
	}
	plain := newPlainAPI(s.bases, oneProducers)
	defer plain.close()
	raw, err := s.acceptOnePhase(ctx, "raw", func(ctx context.Context, c *creates, i int, req *carillonv1.CreateJobRequest) error {
		_, err := createOne(ctx, plain, c, i, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	merging, err := client.New(strings.Join(s.bases, ","))
	if err != nil {
		return nil, fmt.Errorf("connect client: %w", err)
	}
	merged, err := s.acceptOnePhase(ctx, "merged", func(ctx context.Context, c *creates, i int, req *carillonv1.CreateJobRequest) error {
		receipt, err := merging.CreateJob(ctx, req.GetJob(), client.WithIdempotencyKey(req.GetIdempotencyKey()))
		if err == nil {
			c.accepted(i, receipt.GetTenant(), receipt.GetId())
		}
		return err
	})
	return []Result{raw, merged}, errors.Join(err, merging.Close())
}

// acceptOnePhase measures creates by one, of oneProducers producers.
func (s *session) acceptOnePhase(ctx context.Context, variant string,
	one func(ctx context.Context, c *creates, i int, req *carillonv1.CreateJobRequest) error) (Result, error) {
	r, err := s.acceptPhase(ctx, func(c *creates) error {
		return createEach(ctx, oneProducers, c.plan, func(ctx context.Context, i int, req *carillonv1.CreateJobRequest) error {
			return one(ctx, c, i, req)
		})
	})
	r.Variant = variant
	if err != nil {
		return r, fmt.Errorf("%s: %w", variant, err)
	}
	return r, nil
}

// acceptPhase measures create, which creates all jobs of a plan, and then asks the server for all of them.
func (s *session) acceptPhase(ctx context.Context, create func(*creates) error) (Result, error) {
	r := s.result(s.n)
	c := &creates{plan: s.plan(s.n, at(time.Now().Add(farAhead))), print: &s.print}
	from, err := s.usage(ctx)
	if err != nil {
		return r, err
	}
	if err := create(c); err != nil {
		return r, err
	}
	elapsed := time.Since(from.at)
	to, err := s.usage(ctx)
	if err != nil {
		return r, err
	}
	r.JobsPerSecond = perSecond(s.n, elapsed)
	r.cost(phase{from, to}, s.n)
	return r, s.audit(ctx, &r)
}
