package integration

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// stopping is a load of one-shots of which some are deleted and paused while it runs.
type stopping struct {
	s *server
	n int

	mu sync.Mutex
	// stopped are the jobs whose pause or deletion was answered; delivered counts deliveries by job.
	stopped   map[string]bool
	delivered map[string]int
}

func (l *stopping) id(i int) string { return fmt.Sprintf("r6-%03d", i) }

// work claims and completes until nothing has come for two seconds. A claim that began after a job was stopped must not get
// it.
func (l *stopping) work() error {
	for {
		l.mu.Lock()
		before := maps.Clone(l.stopped)
		l.mu.Unlock()
		res, err := try(l.s.workers().Claim, &carillonv1.ClaimRequest{
			Worker: "w", Queues: []string{"default"}, MaxExecutions: 10, Wait: durationpb.New(2 * time.Second),
		})
		if err != nil || len(res.GetLeases()) == 0 {
			return err
		}
		done := &carillonv1.CompleteRequest{Worker: "w"}
		l.mu.Lock()
		for _, lease := range res.GetLeases() {
			l.delivered[lease.GetJobId()]++
			if before[lease.GetJobId()] {
				l.s.t.Errorf("%s was delivered to a claim that began after it had been stopped", lease.GetJobId())
			}
			done.Items = append(done.Items, succeed(lease))
		}
		l.mu.Unlock()
		if _, err := try(l.s.workers().Complete, done); err != nil {
			return err
		}
	}
}

// deleteSome and pauseSome stop every tenth job each.
func (l *stopping) deleteSome() error {
	for i := 0; i < l.n; i += 10 {
		if _, err := try(l.s.jobs().DeleteJob, &carillonv1.DeleteJobRequest{Id: l.id(i)}); err != nil {
			return err
		}
		l.note(i)
	}
	return nil
}

func (l *stopping) pauseSome() error {
	for i := 5; i < l.n; i += 10 {
		_, err := try(l.s.jobs().PauseJob, &carillonv1.PauseJobRequest{Id: l.id(i)})
		if err != nil && connect.CodeOf(err) == connect.CodeFailedPrecondition {
			continue // it has fired: nothing is left to pause
		}
		if err != nil {
			return err
		}
		l.note(i)
	}
	return nil
}

func (l *stopping) note(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped[l.id(i)] = true
}

// Jobs are paused and deleted while the dispatcher hands out hundreds of executions a second: once the call has returned,
// no claim that starts later gets one of them, and what was deleted never comes back.
func TestR6PauseAndDeleteUnderLoad(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	l := &stopping{s: s, n: 600, stopped: map[string]bool{}, delivered: map[string]int{}}
	begin := soon(500 * time.Millisecond)
	s.createMany(l.n, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: l.id(i), Schedule: at(begin.Add(time.Duration(i) * 5 * time.Millisecond))}
	})
	var group errgroup.Group
	for range 3 {
		group.Go(l.work)
	}
	group.Go(l.deleteSome)
	group.Go(l.pauseSome)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for job, times := range l.delivered {
		if times != 1 {
			t.Errorf("%s was delivered %d times", job, times)
		}
	}
	for i := range l.n {
		if !l.stopped[l.id(i)] && l.delivered[l.id(i)] == 0 {
			t.Errorf("%s was not stopped and never delivered", l.id(i))
		}
	}
	held := 0
	for job := range l.stopped {
		if l.delivered[job] == 0 {
			held++
		}
	}
	if held < 10 || len(l.delivered) < 100 {
		t.Fatalf("%d were stopped in time, %d delivered: the test shows nothing", held, len(l.delivered))
	}
	s.kill()
	s.start()
	s.nothing("default")
	for i := 0; i < l.n; i += 10 {
		refused(t, connect.CodeNotFound, s.jobs().GetJob, &carillonv1.GetJobRequest{Id: l.id(i)})
	}
}

// A queue and a tenant are paused by their settings: once the call has returned nothing of them is handed out, after a
// restart neither; resumed, everything is, once.
func TestR6PausedQueueAndTenantHandOutNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "4")
	const n = 50
	setPaused := func(paused bool) {
		t.Helper()
		q := call(t, s.queues().UpdateQueue, &carillonv1.UpdateQueueRequest{Name: "q", Queue: &carillonv1.QueuePatch{Paused: &paused}})
		tenant := call(t, s.tenants().UpdateTenant, &carillonv1.UpdateTenantRequest{Name: "t", Tenant: &carillonv1.TenantPatch{Paused: &paused}})
		if q.GetQueue().GetPaused() != paused || tenant.GetTenant().GetPaused() != paused || len(q.GetPendingShards()) != 0 {
			t.Fatalf("the answers are %v and %v", q, tenant)
		}
	}
	call(t, s.queues().CreateQueue, &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "q"}})
	call(t, s.tenants().CreateTenant, &carillonv1.CreateTenantRequest{Tenant: &carillonv1.Tenant{Name: "t"}})
	s.createMany(2*n, func(i int) *carillonv1.JobSpec {
		if i < n {
			return &carillonv1.JobSpec{Id: fmt.Sprint("of-queue-", i), Queue: "q", Schedule: in(0)}
		}
		return &carillonv1.JobSpec{Id: fmt.Sprint("of-tenant-", i), Tenant: "t", Queue: "shared", Schedule: in(0)}
	})
	setPaused(true)
	s.create(&carillonv1.JobSpec{Id: "another-tenants", Queue: "shared", Schedule: in(0)})
	for _, restart := range []bool{false, true} {
		if restart {
			s.kill()
			s.start()
		}
		if lease := s.claimOne("w", "shared"); lease.GetJobId() != "another-tenants" {
			t.Errorf("%s was delivered, though its tenant is paused", lease.GetExecutionId())
		} else {
			s.complete(released(lease, "w"), readyState)
		}
		s.nothing("q")
	}
	setPaused(false)
	times := map[string]int{}
	for _, lease := range s.drain([]string{"q", "shared"}, 2*n+1, succeed) {
		times[lease.GetJobId()]++
	}
	if len(times) != 2*n+1 {
		t.Errorf("%d jobs were delivered after the pause; want %d", len(times), 2*n+1)
	}
	for job, k := range times {
		if k != 1 {
			t.Errorf("%s was delivered %d times", job, k)
		}
	}
}
