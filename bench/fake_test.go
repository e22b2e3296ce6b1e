package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

// fake is a scheduler in memory that does what the API says, but for the faults that a test plants. Faults are by the
// order in which jobs were created, from 0.
type fake struct {
	carillonv1connect.UnimplementedJobServiceHandler
	carillonv1connect.UnimplementedWorkerServiceHandler
	carillonv1connect.UnimplementedClusterServiceHandler

	mu      sync.Mutex
	jobs    []*fakeJob
	byKey   map[string]*fakeJob
	pending []*fakeJob // not delivered yet, by due time
	sorted  bool
	fencing uint64
	claims  map[string][]*carillonv1.Lease
	journal io.Writer // of creates; nil: none
	wake    chan struct{}

	faults faults
}

// faults are what a test plants.
type faults struct {
	forget   func(n int) bool // acknowledge, never deliver
	repeat   func(n int) bool // deliver twice as the same attempt
	early    func(n int) bool // deliver half a second before its time
	corrupt  func(n int) bool // flip a bit of the payload
	unlisted func(n int) bool // leave out of lists
	shed     func(n int) bool // refuse once with a hint
	// rewake delivers again, as a new attempt, what was completed.
	rewake func(n int) bool
	// loseAnswers makes every second claim and batch fail after it took effect.
	loseAnswers bool
	calls       int
}

// fakeJob is a one-shot, or an occurrence of a recurring job.
type fakeJob struct {
	n         int
	id        string
	spec      *carillonv1.JobSpec
	nominal   time.Time
	due       time.Time
	attempt   uint32
	completed bool
	refused   bool
}

func has(f func(int) bool, n int) bool { return f != nil && f(n) }

func newFake(f faults) *fake {
	return &fake{byKey: map[string]*fakeJob{}, claims: map[string][]*carillonv1.Lease{},
		wake: make(chan struct{}), faults: f}
}

// handler serves the fake as the server does, over unencrypted HTTP/2 too.
func (f *fake) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(carillonv1connect.NewJobServiceHandler(f))
	mux.Handle(carillonv1connect.NewWorkerServiceHandler(f))
	mux.Handle(carillonv1connect.NewClusterServiceHandler(f))
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(w, "%s{shard=\"0\"} %d\n%s 7\n%s 10\n%s 100\n%s 5\nprocess_cpu_seconds_total 1.5\n",
			metricKeyWrites, 2*len(f.jobs), metricGets, metricEntries, metricCommands, metricExpansions)
	})
	return mux
}

// serveFake runs f until the test ends and returns its URL.
func serveFake(t *testing.T, f *fake) string {
	t.Helper()
	s := httptest.NewUnstartedServer(f.handler())
	s.Config.Protocols = bothProtocols()
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func bothProtocols() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &p
}

// lost tells, under loseAnswers, that the answer of this call does not arrive.
func (f *fake) lost() error {
	f.faults.calls++
	if f.faults.loseAnswers && f.faults.calls%2 == 1 {
		return connect.NewError(connect.CodeUnavailable, errors.New("the answer is lost"))
	}
	return nil
}

func (f *fake) create(req *carillonv1.CreateJobRequest) (*carillonv1.JobReceipt, *carillonv1.ItemError) {
	key := req.GetJob().GetTenant() + "/" + req.GetIdempotencyKey()
	job := f.byKey[key]
	if job == nil {
		job = f.accept(req.GetJob())
		f.byKey[key] = job
		if err := f.write(req); err != nil {
			return nil, &carillonv1.ItemError{Code: "internal", Message: err.Error()}
		}
	}
	if has(f.faults.shed, job.n) && !job.refused {
		job.refused = true
		return nil, &carillonv1.ItemError{Code: "resource_exhausted", RetryAfter: durationpb.New(time.Millisecond)}
	}
	return &carillonv1.JobReceipt{Id: job.id, Tenant: job.spec.GetTenant(), Version: 1}, nil
}

// accept takes in a job with all its occurrences, and returns the first.
func (f *fake) accept(spec *carillonv1.JobSpec) *fakeJob {
	first, spec := len(f.jobs), proto.CloneOf(spec)
	id := cmp.Or(spec.GetId(), "job-"+strconv.Itoa(first))
	for _, nominal := range nominals(spec.GetSchedule()) {
		job := &fakeJob{n: len(f.jobs), id: id, spec: spec, nominal: nominal,
			due: nominal.Add(cron.Spread(id, spec.GetSchedule().GetSpread().AsDuration()))}
		if has(f.faults.early, job.n) {
			job.due = job.due.Add(-500 * time.Millisecond)
		}
		f.jobs = append(f.jobs, job)
		if !has(f.faults.forget, job.n) {
			f.pending, f.sorted = append(f.pending, job), false
		}
	}
	return f.jobs[first]
}

// nominals are the instants that a schedule names; of those with an end, and of cron lines with one pattern for all seconds.
func nominals(s *carillonv1.Schedule) (out []time.Time) {
	if s.GetAt() != nil {
		return []time.Time{s.GetAt().AsTime()}
	}
	first, interval, end := s.GetEvery().GetAnchor(), s.GetEvery().GetInterval().AsDuration(), s.GetEvery().GetEnd()
	if c := s.GetCron(); c != nil {
		if c.GetLines()[0] != "*/1 * * * * *" {
			panic("the fake does not know the pattern " + c.GetLines()[0])
		}
		first, interval, end = c.GetStart(), time.Second, c.GetEnd()
	}
	for at := first.AsTime(); !at.After(end.AsTime()); at = at.Add(interval) {
		out = append(out, at)
	}
	return out
}

// write appends a record to the journal: a create, or with the key "leased" that the job of an id was given out under a
// claim, whose id stands in place of the queue.
func (f *fake) write(req *carillonv1.CreateJobRequest) error {
	if f.journal == nil {
		return nil
	}
	b, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	_, err = f.journal.Write(append(binary.AppendUvarint(nil, uint64(len(b))), b...))
	return err
}

// read does again what a journal says.
func (f *fake) read(journal []byte) error {
	for len(journal) > 0 {
		size, k := binary.Uvarint(journal)
		req := &carillonv1.CreateJobRequest{}
		if err := proto.Unmarshal(journal[k:k+int(size)], req); err != nil {
			return err
		}
		if journal = journal[k+int(size):]; req.GetIdempotencyKey() != "leased" {
			f.create(req)
			continue
		}
		n, err := strconv.Atoi(req.GetJob().GetId())
		if err != nil {
			return err
		}
		job, claim := f.jobs[n], req.GetJob().GetQueue()
		job.attempt++
		f.claims[claim] = append(f.claims[claim], f.lease(job))
	}
	f.pending = slices.DeleteFunc(f.pending, func(job *fakeJob) bool { return job.attempt > 0 })
	return nil
}

func (f *fake) CreateJob(_ context.Context, req *connect.Request[carillonv1.CreateJobRequest],
) (*connect.Response[carillonv1.CreateJobResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, e := f.create(req.Msg)
	if e != nil {
		return nil, connect.NewError(connect.CodeResourceExhausted, errors.New(e.GetCode()))
	}
	return connect.NewResponse(&carillonv1.CreateJobResponse{Id: r.GetId(), Tenant: r.GetTenant()}), nil
}

func (f *fake) BatchCreateJobs(_ context.Context, req *connect.Request[carillonv1.BatchCreateJobsRequest],
) (*connect.Response[carillonv1.BatchCreateJobsResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &carillonv1.BatchCreateJobsResponse{}
	for _, item := range req.Msg.GetItems() {
		result := &carillonv1.BatchCreateJobsResult{}
		if r, e := f.create(item); e != nil {
			result.Result = &carillonv1.BatchCreateJobsResult_Error{Error: e}
		} else {
			result.Result = &carillonv1.BatchCreateJobsResult_Receipt{Receipt: r}
		}
		resp.Results = append(resp.Results, result)
	}
	return connect.NewResponse(resp), f.lost()
}

func (f *fake) GetJob(_ context.Context, req *connect.Request[carillonv1.GetJobRequest],
) (*connect.Response[carillonv1.GetJobResponse], error) {
	return connect.NewResponse(&carillonv1.GetJobResponse{Job: &carillonv1.Job{Id: req.Msg.GetId()}}), nil
}

func (f *fake) ListJobs(_ context.Context, req *connect.Request[carillonv1.ListJobsRequest],
) (*connect.Response[carillonv1.ListJobsResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &carillonv1.ListJobsResponse{}
	first := 0
	if token := req.Msg.GetPageToken(); token != "" {
		var err error
		if first, err = strconv.Atoi(token); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	for n := first; n < len(f.jobs); n++ {
		job := f.jobs[n]
		if job.spec.GetTenant() != req.Msg.GetTenant() || has(f.faults.unlisted, n) ||
			req.Msg.GetQueue() != "" && req.Msg.GetQueue() != job.spec.GetQueue() {
			continue
		}
		if len(resp.GetJobs()) == int(req.Msg.GetPageSize()) {
			resp.NextPageToken = strconv.Itoa(n)
			break
		}
		resp.Jobs = append(resp.Jobs, &carillonv1.Job{Id: job.id, Tenant: job.spec.GetTenant()})
	}
	return connect.NewResponse(resp), nil
}

func (f *fake) GetCluster(context.Context, *connect.Request[carillonv1.GetClusterRequest],
) (*connect.Response[carillonv1.GetClusterResponse], error) {
	return connect.NewResponse(&carillonv1.GetClusterResponse{Nodes: make([]*carillonv1.Node, 3)}), nil
}

func (f *fake) Claim(ctx context.Context, req *connect.Request[carillonv1.ClaimRequest],
) (*connect.Response[carillonv1.ClaimResponse], error) {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	end := time.Now().Add(req.Msg.GetWait().AsDuration())
	for {
		leases := f.take(req.Msg, time.Now())
		if len(leases) > 0 || time.Now().After(end) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return connect.NewResponse(&carillonv1.ClaimResponse{Leases: leases}), f.lost()
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f *fake) take(req *carillonv1.ClaimRequest, now time.Time) []*carillonv1.Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	if got, ok := f.claims[req.GetClaimId()]; ok {
		return got
	}
	if !f.sorted {
		slices.SortFunc(f.pending, func(a, b *fakeJob) int { return a.due.Compare(b.due) })
		f.sorted = true
	}
	var got []*carillonv1.Lease
	for len(f.pending) > 0 && !f.pending[0].due.After(now) && len(got) < int(req.GetMaxExecutions()) {
		job := f.pending[0]
		leased := &carillonv1.JobSpec{Id: strconv.Itoa(job.n), Queue: req.GetClaimId()}
		if err := f.write(&carillonv1.CreateJobRequest{IdempotencyKey: "leased", Job: leased}); err != nil {
			break // tried again at the next look
		}
		f.pending = f.pending[1:]
		job.attempt++
		got = append(got, f.lease(job))
		if has(f.faults.repeat, job.n) {
			got = append(got, f.lease(job))
		}
	}
	if len(got) > 0 {
		f.claims[req.GetClaimId()] = got
	}
	return got
}

func (f *fake) lease(job *fakeJob) *carillonv1.Lease {
	f.fencing++
	payload := slices.Clone(job.spec.GetPayload())
	if has(f.faults.corrupt, job.n) {
		payload[50] ^= 1
	}
	return &carillonv1.Lease{
		ExecutionId: job.id + "~s", LeaseToken: strconv.Itoa(job.n), FencingNumber: f.fencing,
		JobId: job.id, Tenant: job.spec.GetTenant(), Queue: job.spec.GetQueue(), Attempt: job.attempt,
		NominalTime: timestamppb.New(job.nominal), LeaseLength: durationpb.New(30 * time.Second),
		Payload: payload,
	}
}

func (f *fake) Complete(_ context.Context, req *connect.Request[carillonv1.CompleteRequest],
) (*connect.Response[carillonv1.CompleteResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &carillonv1.CompleteResponse{}
	for _, item := range req.Msg.GetItems() {
		n, err := strconv.Atoi(item.GetLeaseToken())
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		job := f.jobs[n]
		if has(f.faults.rewake, job.n) && !job.completed {
			f.pending, f.sorted = append(f.pending, job), false
		}
		job.completed = true
		resp.Results = append(resp.Results, &carillonv1.CompleteResult{ExecutionId: item.GetExecutionId(),
			Result: &carillonv1.CompleteResult_State{State: carillonv1.ExecutionState_EXECUTION_STATE_SUCCEEDED}})
	}
	return connect.NewResponse(resp), nil
}

// fakeServe makes the test's binary a server: `serve --data DIR --listen ADDR`, as the real one is started. Creates
// are in a journal, so that a killed server knows them again, unless the environment says amnesia.
func fakeServe(args []string) error {
	dir, listen := args[1], args[3]
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f := newFake(faults{})
	path := filepath.Join(dir, "journal")
	if old, err := os.ReadFile(path); err == nil && os.Getenv("FAKE_AMNESIA") == "" {
		if err := f.read(old); err != nil {
			return err
		}
	}
	journal, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f.journal = journal
	return listenAndTell(f.handler(), listen, filepath.Join(dir, "address"))
}
