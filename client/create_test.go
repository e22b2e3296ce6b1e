package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/client/clienttest"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func hint(d time.Duration) *carillonv1.RetryHint {
	return &carillonv1.RetryHint{RetryAfter: durationpb.New(d)}
}

func countJobs(t *testing.T, c *client.Client) int {
	t.Helper()
	n := 0
	for _, err := range c.ListJobs(t.Context(), &carillonv1.ListJobsRequest{PageSize: 500}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// The id alone is no identity once the job was deleted: a retry that comes after that would create it again.
func TestCreateWithIDSendsAKeyOfItsOwn(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		var keys []string
		s.After(func(_ context.Context, call clienttest.Call) error {
			if req, ok := call.Request.(*carillonv1.CreateJobRequest); ok {
				if keys = append(keys, req.GetIdempotencyKey()); call.N == 1 {
					return clienttest.Fail(connect.CodeUnavailable, "the answer is lost")
				}
			}
			return nil
		})
		for range 2 {
			if _, err := c.Create(t.Context(), numbered(1)); err != nil {
				t.Fatal(err)
			}
		}
		if len(keys) != 3 || len(keys[0]) != 26 || keys[1] != keys[0] || keys[2] == keys[1] || len(keys[2]) != 26 {
			t.Errorf("keys sent: %q, want one twice, then another", keys)
		}
		named, batch := &carillonv1.BatchCreateJobsRequest{RequestId: "r"}, new(carillonv1.BatchCreateJobsRequest)
		for _, req := range []*carillonv1.BatchCreateJobsRequest{named, batch} {
			req.Items = []*carillonv1.CreateJobRequest{{Job: numbered(1).Spec()}, {Job: &client.JobSpec{Schedule: now()}}}
			if _, err := c.BatchCreateJobs(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 2 {
			if key := named.GetItems()[i].GetIdempotencyKey(); key != "" {
				t.Errorf("item %d of a request with an id has the key %q", i, key)
			}
			if key := batch.GetItems()[i].GetIdempotencyKey(); len(key) != 26 {
				t.Errorf("item %d of a request without id has the key %q", i, key)
			}
		}
	})
}

func TestCreateWhoseAnswerIsLostIsAskedForAgainUnderTheSameKey_W5(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		var keys []string
		s.After(func(_ context.Context, call clienttest.Call) error {
			if req, ok := call.Request.(*carillonv1.CreateJobRequest); ok {
				if keys = append(keys, req.GetIdempotencyKey()); call.N < 3 {
					return clienttest.Fail(connect.CodeUnavailable, "the answer is lost")
				}
			}
			return nil
		})
		receipt, err := c.Create(t.Context(), client.Job{Schedule: client.After(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) != 3 || len(keys[0]) != 26 || keys[1] != keys[0] || keys[2] != keys[0] {
			t.Errorf("keys sent: %q, want three times the same", keys)
		}
		if n := countJobs(t, c); n != 1 || receipt.Version != 1 {
			t.Errorf("%d jobs, receipt %v", n, receipt)
		}
	})
}

func TestLoneCreateIsSentAtOnceAndAlone(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		began := time.Now()
		create(t, c, client.Job{ID: "a"})
		create(t, c, client.Job{ID: "b"})
		if took := time.Since(began); took != 0 {
			t.Errorf("two creates waited for %s", took)
		}
		if one, many := s.Calls("CreateJob"), s.Calls("BatchCreateJobs"); one != 2 || many != 0 {
			t.Errorf("%d calls of CreateJob and %d of BatchCreateJobs", one, many)
		}
	})
}

// createAll creates jobs at the same time and returns their errors.
func createAll(ctx context.Context, c *client.Client, n int, job func(i int) client.Job) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			receipt, err := c.Create(ctx, job(i))
			if err == nil && receipt.ID != job(i).ID {
				err = fmt.Errorf("job %d got the receipt of %q", i, receipt.ID)
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errs
}

func numbered(i int) client.Job {
	return client.Job{ID: fmt.Sprintf("job-%d", i), Schedule: client.After(time.Hour)}
}

func TestConcurrentCreatesShareRequestsAndEachGetsItsOwnAnswer(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(context.Context, clienttest.Call) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		})
		errs := createAll(t.Context(), c, 2500, func(i int) client.Job {
			job := numbered(i)
			if i == 1234 {
				job.Queue = "no queue"
			}
			return job
		})
		for i, err := range errs {
			if i != 1234 && err != nil {
				t.Fatalf("job %d: %v", i, err)
			}
		}
		var failed *client.Error
		if !errors.Is(errs[1234], client.ErrInvalid) || !errors.As(errs[1234], &failed) ||
			len(failed.Violations) != 1 || failed.Violations[0].Field != "job.queue" {
			t.Errorf("the bad one got %v", errs[1234])
		}
		if calls := s.Calls("CreateJob") + s.Calls("BatchCreateJobs"); calls > 10 {
			t.Errorf("2,500 creates took %d calls", calls)
		}
		if n := countJobs(t, c); n != 2499 {
			t.Errorf("%d jobs, want 2,499", n)
		}
	})
}

func TestBatchesStayInTheirBounds(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(_ context.Context, call clienttest.Call) error {
			if req, ok := call.Request.(*carillonv1.BatchCreateJobsRequest); ok {
				if n, size := len(req.GetItems()), req.SizeVT(); n > 1000 || size > 8<<20 {
					t.Errorf("a batch of %d items, %d bytes", n, size)
				}
			}
			time.Sleep(3 * time.Millisecond)
			return nil
		})
		payload := make([]byte, 200<<10)
		errs := createAll(t.Context(), c, 300, func(i int) client.Job {
			job := numbered(i)
			job.Payload = payload
			return job
		})
		if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
			t.Errorf("job %d: %v", i, errs[i])
		}
	})
}

func TestTextThatCannotBeDecodedFailsItsOwnCreateOnly(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(context.Context, clienttest.Call) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		errs := createAll(t.Context(), c, 50, func(i int) client.Job {
			job := numbered(i)
			if i == 33 {
				job.FairnessKey = "\xff"
			}
			return job
		})
		for i, err := range errs {
			if (err != nil) != (i == 33) {
				t.Errorf("job %d: %v", i, err)
			}
		}
		if !errors.Is(errs[33], client.ErrInvalid) {
			t.Errorf("the bad one got %v", errs[33])
		}
	})
}

func TestItemThatIsShedIsSentAgainAfterItsHint(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		began := time.Now()
		s.Before(func(_ context.Context, call clienttest.Call) error {
			if call.Method == "CreateJob" && time.Since(began) < 2*time.Second {
				return clienttest.Fail(connect.CodeResourceExhausted, "full", hint(2*time.Second))
			}
			return nil
		})
		create(t, c, client.Job{ID: "a"})
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second || s.Calls("CreateJob") != 2 {
			t.Errorf("took %s and %d calls, want two calls 2 to 3 s apart", took, s.Calls("CreateJob"))
		}
	})
}

func TestCreateEndsWithItsContext(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(ctx context.Context, _ clienttest.Call) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := c.Create(ctx, numbered(1))
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 3*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		if errors.Is(err, client.ErrUnavailable) {
			t.Errorf("%v is ErrUnavailable", err)
		}
	})
}

// The server knows the deadline too, and may be the first to say that it has passed.
func TestDeadlineThatTheServerReportsIsThatOfTheContext(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(context.Context, clienttest.Call) error {
			time.Sleep(time.Second)
			return clienttest.Fail(connect.CodeDeadlineExceeded, "too late")
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+10*time.Millisecond)
		defer cancel()
		_, err := c.GetJob(ctx, &carillonv1.GetJobRequest{Id: "a"})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRetriesAreAtMostATenthOfTheCalls(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(context.Context, clienttest.Call) error {
			return clienttest.Fail(connect.CodeUnavailable, "no leader", hint(time.Millisecond))
		})
		began := time.Now()
		const calls = 1500
		for range calls {
			if _, err := c.GetJob(t.Context(), &carillonv1.GetJobRequest{Id: "a"}); !errors.Is(err, client.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		// Ten are saved up, and one a second may be made anyway.
		limit := calls/10 + 10 + int(time.Since(began).Seconds())
		if retries := s.Calls("GetJob") - calls; retries > limit || retries < calls/20 {
			t.Errorf("%d calls were retried %d times, limit %d", calls, retries, limit)
		}
	})
}

func TestRetriesOfCreatesAreAtMostATenthOfThem(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		s.Before(func(context.Context, clienttest.Call) error {
			return clienttest.Fail(connect.CodeResourceExhausted, "full", hint(time.Millisecond))
		})
		began := time.Now()
		const creates = 1000
		for i := range creates {
			if _, err := c.Create(t.Context(), numbered(i)); !errors.Is(err, client.ErrOverloaded) {
				t.Fatal(err)
			}
		}
		limit := creates/10 + 10 + int(time.Since(began).Seconds())
		if retries := s.Calls("CreateJob") - creates; retries > limit || retries < creates/20 {
			t.Errorf("%d creates were retried %d times, limit %d", creates, retries, limit)
		}
	})
}

// nodes answers in place of two: a is frozen, b works.
type nodes struct {
	*clienttest.Server
	frozen atomic.Int32
}

func (n *nodes) Do(req *http.Request) (*http.Response, error) {
	if req.URL.Host == "a" {
		n.frozen.Add(1)
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	return n.Server.Do(req)
}

func TestFrozenNodeCostsATryAndIsThenAvoided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nodes{Server: clienttest.NewServer()}
		c, err := client.New("a, http://b/", client.WithTransport(n))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		began := time.Now()
		for range 5 {
			if _, err := c.GetCluster(t.Context(), &carillonv1.GetClusterRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); n.frozen.Load() != 1 || took > 11*time.Second {
			t.Errorf("the frozen node was tried %d times, in %s", n.frozen.Load(), took)
		}
	})
}

func TestLoneCallOutlastsAnOutage(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		up := time.Now().Add(25 * time.Second)
		s.Before(func(context.Context, clienttest.Call) error {
			if time.Now().Before(up) {
				return clienttest.Fail(connect.CodeUnavailable, "no leader")
			}
			return nil
		})
		create(t, c, client.Job{ID: "a"})
	})
}

func TestErrorsSayWhatAProgramNeeds(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		ctx := t.Context()
		create(t, c, client.Job{ID: "a", Payload: []byte("1")})
		var failed *client.Error

		_, err := c.Create(ctx, client.Job{ID: "a", Schedule: now(), Payload: []byte("2"), FairnessKey: "x"})
		if !errors.Is(err, client.ErrAlreadyExists) || !errors.As(err, &failed) ||
			!slices.Equal(failed.Fields, []string{"payload", "fairness_key"}) {
			t.Errorf("another body: %v", err)
		}
		_, err = c.UpdateJob(ctx, &carillonv1.UpdateJobRequest{
			Id: "a", ExpectedVersion: 7, Job: &carillonv1.JobPatch{Priority: new(uint32(9))},
		})
		if !errors.Is(err, client.ErrVersionConflict) || !errors.As(err, &failed) || failed.CurrentVersion != 1 {
			t.Errorf("stale version: %v", err)
		}
		if _, err = c.GetJob(ctx, &carillonv1.GetJobRequest{Id: "b"}); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("unknown job: %v", err)
		}
		_, err = c.Create(ctx, client.Job{ID: "c"})
		if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "job.schedule") {
			t.Errorf("no schedule: %v", err)
		}
	})
}

func TestCallWithoutIdentityIsRepeatedOnlyIfNothingWasDone(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		ctx := t.Context()
		s.Before(func(_ context.Context, call clienttest.Call) error {
			switch call.N {
			case 1:
				return clienttest.Fail(connect.CodeUnavailable, "not done", hint(time.Millisecond))
			case 2:
				return clienttest.Fail(connect.CodeUnavailable, "perhaps done")
			}
			return nil
		})
		_, err := c.DeleteQueue(ctx, &carillonv1.DeleteQueueRequest{Name: "q"})
		if !errors.Is(err, client.ErrUnavailable) || s.Calls("DeleteQueue") != 2 {
			t.Errorf("%v after %d calls, want the second's error", err, s.Calls("DeleteQueue"))
		}
	})
}

func TestBatchCreateGivesAResultPerItem(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		req := &carillonv1.BatchCreateJobsRequest{Items: []*carillonv1.CreateJobRequest{
			{Job: numbered(1).Spec()}, {Job: &client.JobSpec{Id: "no-schedule"}}, {Job: &client.JobSpec{Schedule: now()}},
		}}
		for range 2 {
			results, err := c.BatchCreateJobs(t.Context(), req)
			if err != nil || len(results) != 3 {
				t.Fatal(results, err)
			}
			if results[0].Err != nil || results[2].Err != nil || !errors.Is(results[1].Err, client.ErrInvalid) {
				t.Errorf("results %v", results)
			}
		}
		if n := countJobs(t, c); n != 2 {
			t.Errorf("sent twice, the batch made %d jobs", n)
		}
	})
}

func TestBulkOperationsAreAskedForUntilTheyAreFinished(t *testing.T) {
	in(t, func(t *testing.T, s *clienttest.Server, c *client.Client) {
		_, err := c.CreateTenant(t.Context(), &carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: "acme"}})
		if err != nil {
			t.Fatal(err)
		}
		task, err := c.DeleteTenant(t.Context(), &carillonv1.DeleteTenantRequest{Name: "acme", ExpectedVersion: 1})
		if err != nil || !task.GetFinished() || s.Calls("DeleteTenant") != 2 {
			t.Errorf("%v, %v after %d calls", task, err, s.Calls("DeleteTenant"))
		}
	})
}

func TestClosedClientRefusesCreates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, clienttest.NewServer())
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Create(t.Context(), numbered(1)); !errors.Is(err, client.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}
