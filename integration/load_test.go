package integration

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// 10,001 executions become dead letters: none vanishes, they page through with a cursor, are requeued by a filter and
// purged.
func TestW8ManyDeadLetters(t *testing.T) {
	s := startServer(t, "", "--shards", "4")
	const n, orders = 10_001, 4_000
	s.createMany(n, func(i int) *carillonv1.JobSpec {
		spec := &carillonv1.JobSpec{Id: fmt.Sprint("w8-", i), Queue: "mail", Schedule: in(0), Retry: &carillonv1.RetryPolicy{MaxAttempts: 1}}
		if i < orders {
			spec.Queue = "orders"
		}
		return spec
	})
	if got := s.drain([]string{"mail", "orders"}, n, fail); len(got) != n {
		t.Fatalf("%d were delivered; want %d", len(got), n)
	}
	dead := func(queue string) int {
		t.Helper()
		seen := map[string]bool{}
		for _, e := range s.list(&carillonv1.ListExecutionsRequest{State: deadState, Queue: queue, PageSize: 700}) {
			if seen[e.GetId()] {
				t.Errorf("%s is listed twice", e.GetId())
			}
			seen[e.GetId()] = true
		}
		return len(seen)
	}
	s.kill() // they are durable
	s.start()
	if got := dead(""); got != n || s.backlog().GetDead() != n {
		t.Fatalf("%d dead letters are listed, %d counted; want %d", got, s.backlog().GetDead(), n)
	}
	finished := func(ask func() *carillonv1.Task) *carillonv1.Task {
		t.Helper()
		var task *carillonv1.Task
		await(t, time.Minute, "the task has finished", func() bool { task = ask(); return task.GetFinished() })
		return task
	}
	requeued := finished(func() *carillonv1.Task {
		return call(t, s.executions().RequeueDeadLetters, &carillonv1.RequeueDeadLettersRequest{
			RequestId: "requeue-orders", Filter: &carillonv1.DeadLetterFilter{Queue: "orders"},
		}).GetTask()
	})
	if requeued.GetDoneCount() != orders {
		t.Errorf("%d were requeued; want %d", requeued.GetDoneCount(), orders)
	}
	for _, l := range s.drain([]string{"mail", "orders"}, orders, succeed) {
		if l.GetQueue() != "orders" || l.GetAttempt() != 2 {
			t.Fatalf("%s was delivered as attempt %d of queue %s", l.GetExecutionId(), l.GetAttempt(), l.GetQueue())
		}
	}
	if got := dead(""); got != n-orders || dead("orders") != 0 {
		t.Errorf("%d dead letters are left; want %d, none of orders", got, n-orders)
	}
	purged := finished(func() *carillonv1.Task {
		return call(t, s.executions().PurgeDeadLetters, &carillonv1.PurgeDeadLettersRequest{
			RequestId: "purge-all", Filter: &carillonv1.DeadLetterFilter{},
		}).GetTask()
	})
	if purged.GetDoneCount() != n-orders || dead("") != 0 || s.backlog().GetDead() != 0 {
		t.Errorf("%d were purged, %d listed, %d counted; want %d, 0 and 0", purged.GetDoneCount(), dead(""), s.backlog().GetDead(), n-orders)
	}
	if b := s.backlog(); b.GetReady()+b.GetLeased()+b.GetRetrying() != 0 {
		t.Errorf("left over: %v", b)
	}
}

// 2,000 jobs are due in one second: each is delivered once, p99 within a second. (200,000: `carillon bench burst`.)
func TestW9TwoThousandInOneSecond(t *testing.T) {
	s := startServer(t, "")
	const n = 2000
	due := soon(2 * time.Second)
	s.createMany(n, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: fmt.Sprint("w9-", i), Schedule: at(due.Add(time.Duration(i) * time.Second / n))}
	})
	var mu sync.Mutex
	late := map[string]time.Duration{}
	s.drain([]string{"default"}, n, func(l *carillonv1.Lease) *carillonv1.CompleteItem {
		mu.Lock()
		defer mu.Unlock()
		if _, twice := late[l.GetExecutionId()]; twice {
			t.Errorf("%s was delivered twice", l.GetExecutionId())
		}
		late[l.GetExecutionId()] = time.Since(l.GetNominalTime().AsTime())
		return succeed(l)
	})
	var all []time.Duration
	for _, d := range late {
		all = append(all, d)
	}
	slices.Sort(all)
	if len(all) != n {
		t.Fatalf("%d were delivered; want %d", len(all), n)
	}
	if all[0] < 0 {
		t.Errorf("one was delivered %v early", -all[0])
	}
	t.Logf("lateness p50 %v, p99 %v, max %v", all[n/2], all[n*99/100], all[n-1])
	if p99 := all[n*99/100]; p99 > time.Second {
		t.Errorf("p99 of lateness is %v", p99)
	}
}

func succeed(l *carillonv1.Lease) *carillonv1.CompleteItem {
	return &carillonv1.CompleteItem{
		ExecutionId: l.GetExecutionId(), LeaseToken: l.GetLeaseToken(),
		Outcome: &carillonv1.CompleteItem_Succeeded{Succeeded: &carillonv1.Succeeded{}},
	}
}

func fail(l *carillonv1.Lease) *carillonv1.CompleteItem {
	return &carillonv1.CompleteItem{
		ExecutionId: l.GetExecutionId(), LeaseToken: l.GetLeaseToken(),
		Outcome: &carillonv1.CompleteItem_Failed{Failed: &carillonv1.Failed{Error: "boom"}},
	}
}

// drain works with four workers until n executions were delivered or nothing has come for ten seconds, and returns what was
// delivered. report is called on several goroutines.
func (s *server) drain(queues []string, n int, report func(*carillonv1.Lease) *carillonv1.CompleteItem) []*carillonv1.Lease {
	s.t.Helper()
	var mu sync.Mutex
	var all []*carillonv1.Lease
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			for empty := 0; empty < 20; {
				mu.Lock()
				enough := len(all) >= n
				mu.Unlock()
				if enough {
					return nil
				}
				res, err := try(s.workers().Claim, &carillonv1.ClaimRequest{
					Worker: "w", Queues: queues, MaxExecutions: 500, Wait: durationpb.New(500 * time.Millisecond),
				})
				if err != nil {
					return err
				}
				if len(res.GetLeases()) == 0 {
					empty++
					continue
				}
				empty = 0
				done := &carillonv1.CompleteRequest{Worker: "w"}
				for _, l := range res.GetLeases() {
					done.Items = append(done.Items, report(l))
				}
				mu.Lock()
				all = append(all, res.GetLeases()...)
				mu.Unlock()
				results, err := try(s.workers().Complete, done)
				if err != nil {
					return err
				}
				for _, r := range results.GetResults() {
					if r.GetError() != nil {
						return fmt.Errorf("complete %s: %v", r.GetExecutionId(), r.GetError())
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		s.t.Fatal(err)
	}
	return all
}
