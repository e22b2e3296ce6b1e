package client_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
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
