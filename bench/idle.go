package bench

import (
	"context"
	"fmt"
	"time"
)

// runIdle measures a server that has nothing to do: empty, or with n jobs an hour ahead. The CPU is that of each node on
// average.
func runIdle(ctx context.Context, s *session) ([]Result, error) {
	if s.n > 0 {
		c := &creates{plan: s.plan(s.n, at(time.Now().Add(farAhead))), print: &s.print}
		if err := createBatches(ctx, s.producers, c); err != nil {
			return nil, err
		}
	}
	if err := wait(ctx, s.waits.idle); err != nil {
		return nil, err
	}
	from, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, s.span); err != nil {
		return nil, err
	}
	to, err := s.usage(ctx)
	if err != nil {
		return nil, err
	}
	if from.serverCPU == nil || to.serverCPU == nil {
		return nil, fmt.Errorf("measure idle CPU: the server's CPU time can neither be read from /proc nor from its metrics")
	}
	r := s.result(s.n)
	r.CPUPercent = ratio(100*float64(*to.serverCPU-*from.serverCPU), float64(to.at.Sub(from.at))*float64(max(1, len(s.bases))))
	r.ServerRSSMB = megabytes(to.rssBytes)
	return []Result{r}, nil
}
