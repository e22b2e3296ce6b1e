package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func TestWorkerInAHurryEndsTheGrace_W3(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		id := create(t, c, client.Job{ID: "a", Retry: &client.RetryPolicy{MaxAttempts: 1}})
		hurry := make(chan struct{})
		config := client.WorkerConfig{Grace: time.Hour, Hurry: hurry}
		stop := work(t, c, config, func(ctx context.Context, _ *client.Execution) ([]byte, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		until(t, s, id, leased)
		began := time.Now()
		time.AfterFunc(5*time.Second, func() { close(hurry) })
		stop()
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("the worker ended after %s", took)
		}
		if e := s.Execution(id); e.GetState() != ready || e.GetAttempt() != 0 {
			t.Errorf("execution %v", e)
		}
		// Closed before the worker is to stop it does nothing until then.
		config.Grace = time.Minute
		stop = work(t, c, config, func(ctx context.Context, _ *client.Execution) ([]byte, error) {
			time.Sleep(time.Minute)
			return nil, context.Cause(ctx)
		})
		until(t, s, id, succeeded)
		stop()
	})
}

// A handler finds that it cannot work now: what it has is given back, and no more is claimed until the gate opens.
func TestGateHoldsClaimsBack(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		ids := []string{
			create(t, c, client.Job{ID: "a", Retry: &client.RetryPolicy{MaxAttempts: 1}}),
			create(t, c, client.Job{ID: "b", Retry: &client.RetryPolicy{MaxAttempts: 1}}),
		}
		var away atomic.Bool
		away.Store(true)
		opened := make(chan struct{})
		var asked []int
		config := client.WorkerConfig{Concurrency: 2, Gate: func(ctx context.Context, free int) int {
			asked = append(asked, free)
			if !away.Load() {
				return 1
			}
			if len(asked) == 1 {
				return 5 // more than is free is as much as is free
			}
			select {
			case <-opened:
				return 0 // asked again later
			case <-ctx.Done():
				return 1 // too late
			}
		}}
		stop := work(t, c, config, func(context.Context, *client.Execution) ([]byte, error) {
			if away.Load() {
				return nil, fmt.Errorf("not now: %w", client.Release(errors.New("away")))
			}
			return nil, nil
		})
		time.Sleep(time.Hour)
		for _, id := range ids {
			if e := s.Execution(id); e.GetState() != ready || e.GetAttempt() != 0 || e.GetAttemptsTotal() != 1 {
				t.Errorf("execution %v", e)
			}
		}
		if n := s.Calls("Claim"); n != 1 {
			t.Errorf("%d claims", n)
		}
		began := time.Now()
		away.Store(false)
		close(opened)
		for _, id := range ids {
			until(t, s, id, succeeded)
		}
		if took := time.Since(began); took < time.Second || took > 2*time.Second {
			t.Errorf("it worked %s after the gate had opened", took)
		}
		stop()
		if asked[0] != 2 {
			t.Errorf("the gate was asked for %v", asked)
		}

		away.Store(true)
		stop = work(t, c, config, nil)
		time.Sleep(time.Minute)
		stop() // while the gate is closed
		if n := s.Calls("Claim"); n > 5 {
			t.Errorf("%d claims", n)
		}
	})
}

// A server may have another idea of what time it is, as one whose clock is virtual has.
func TestSnoozeForGoesByTheServersClock(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		create(t, c, client.Job{ID: "a", Lease: time.Minute})
		var until time.Time
		s.Before(func(_ context.Context, call clienttest.Call) error {
			if req, ok := call.Request.(*carillonv1.CompleteRequest); ok {
				until = req.GetItems()[0].GetSnoozed().GetUntil().AsTime()
			}
			return nil
		})
		c = newClient(t, nil, client.WithTransport(aheadBy{s, 100 * time.Hour}))
		began := time.Now()
		ended := make(chan struct{})
		stop := work(t, c, client.WorkerConfig{}, func(context.Context, *client.Execution) ([]byte, error) {
			defer close(ended)
			time.Sleep(10 * time.Second)
			return nil, client.SnoozeFor(time.Minute)
		})
		<-ended
		stop()
		if late := until.Sub(began); late != 100*time.Hour+70*time.Second {
			t.Errorf("snoozed until %s after its begin", late)
		}
	})
}

// aheadBy is a server whose leases begin and end that much later than they do.
type aheadBy struct {
	*clienttest.Server
	by time.Duration
}

func (a aheadBy) Do(req *http.Request) (*http.Response, error) {
	res, err := a.Server.Do(req)
	if err != nil || !strings.HasSuffix(req.URL.Path, "/Claim") || res.StatusCode != http.StatusOK {
		return res, err
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var claimed carillonv1.ClaimResponse
	if err := proto.Unmarshal(body, &claimed); err != nil {
		return nil, err
	}
	for _, lease := range claimed.GetLeases() {
		lease.Deadline = timestamppb.New(lease.GetDeadline().AsTime().Add(a.by))
	}
	body, err = proto.Marshal(&claimed)
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, err
}
