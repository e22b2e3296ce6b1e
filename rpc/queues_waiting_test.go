package rpc

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// queues lists all queues in pages of at most size, and how many there were.
func (s *scene) queues(size int32) (all []*carillonv1.Queue, pages int) {
	s.t.Helper()
	req := &carillonv1.ListQueuesRequest{PageSize: size}
	for {
		res := must(s.listQueues(s.t.Context(), req))
		if len(res.Queues) > int(size) {
			s.t.Fatalf("a page of %d has %d queues", size, len(res.Queues))
		}
		all, pages = append(all, res.Queues...), pages+1
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			return all, pages
		}
	}
}

// Queues are listed where they have settings or work that waits, each once, with what all shards have of it, whatever the
// size of pages and the number of shards.
func TestQueuesWithWaitingWorkAreListed(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := newScene(t, 1+rnd.IntN(20))
	want := map[string]uint64{"aaa-settings": 0, "zzz-settings": 0, "queue-5": 0}
	for name := range want {
		must(s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: name}}))
	}
	for i := range 300 {
		queue := fmt.Sprint("queue-", rnd.IntN(40))
		want[queue]++
		s.create(&carillonv1.JobSpec{
			Id: fmt.Sprint(i), Tenant: fmt.Sprint("t", i%3), Queue: queue, Schedule: in(0), Priority: new(uint32(i % 10)),
		})
	}
	s.create(&carillonv1.JobSpec{Queue: "later", Schedule: in(time.Hour)})
	s.b.pass(5)
	for _, size := range []int32{1, 3, 7, 1000} {
		all, _ := s.queues(size)
		got := map[string]uint64{}
		last := ""
		for _, q := range all {
			if got[q.Name] = q.Backlog.GetReady(); q.Name <= last {
				t.Errorf("pages of %d: %s is listed behind %s", size, q.Name, last)
			}
			last = q.Name
			if since := q.Backlog.GetOldestReadyTime(); (since != nil) != (q.Backlog.GetReady() > 0) ||
				since != nil && since.AsTime().UnixMilli() < startMS {
				t.Errorf("%s waits since %v", q.Name, since)
			}
			if (q.Version > 0) != slices.Contains([]string{"aaa-settings", "zzz-settings", "queue-5"}, q.Name) {
				t.Errorf("%s has version %d", q.Name, q.Version)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("pages of %d: got %v, want %v", size, got, want)
		}
	}
}

// A long queue is not counted to its end, and a shard that has read enough stops at the end of a queue.
func TestCountingOfQueuesIsBounded(t *testing.T) {
	rows := memoryState{}
	put := func(queue string, n int) {
		for i := range n {
			e := &storagev1.Execution{
				Tenant: defaultName, JobId: fmt.Sprint(i), NominalMs: startMS, ReadyMs: startMS + int64(i%7) + 1,
				Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE, State: storagev1.ExecutionState_EXECUTION_STATE_READY,
				Template: &storagev1.Template{Queue: queue},
			}
			rows[string(fsm.ReadyKey(e))] = must(e.MarshalVT())
		}
	}
	put("exact", maxReadyCounted)
	put("long", maxReadyCounted+1)
	queues, more := waitingIn(rows, "", 10)
	if want := []queueWaiting{
		{name: "exact", ready: maxReadyCounted, oldestMS: startMS + 1},
		{name: "long", ready: maxReadyCounted, more: true, oldestMS: startMS + 1},
	}; more || !slices.Equal(queues, want) {
		t.Errorf("counted %+v, %v", queues, more)
	}
	if queues, more := waitingIn(rows, "exact", 10); more || len(queues) != 1 || queues[0].name != "long" {
		t.Errorf("behind the first: %+v, %v", queues, more)
	}
	if queues, more := waitingIn(rows, "", 1); !more || len(queues) != 1 || queues[0].name != "exact" {
		t.Errorf("the first: %+v, %v", queues, more)
	}
	full := maxRowsPerPage / maxReadyCounted
	for i := range full + 5 {
		put(fmt.Sprintf("q%02d", i), maxReadyCounted)
	}
	if queues, more := waitingIn(rows, "long", 1000); !more || len(queues) != full {
		t.Errorf("of %d long queues %d were counted, %v", full+5, len(queues), more)
	}
	s := newScene(t, 1)
	maps.Copy(s.b.shards[0].state, rows)
	if all, pages := s.queues(1000); len(all) != full+7 || pages != 2 {
		t.Errorf("%d queues on %d pages", len(all), pages)
	}
}

// Claims are counted for their queues as long as they wait.
func TestClaimsThatWaitAreCounted(t *testing.T) {
	s := newScene(t, 1)
	must(s.createQueue(t.Context(), &carillonv1.CreateQueueRequest{Queue: &carillonv1.Queue{Name: "q"}}))
	count := func() uint32 {
		return must(s.listQueues(t.Context(), &carillonv1.ListQueuesRequest{})).Queues[0].Backlog.WaitingClaims
	}
	polls := 0
	s.b.onPoll = func(req PollRequest) {
		polls++
		if got, want := count(), uint32(min(req.Wait, 1)); got != want {
			t.Errorf("during a poll that waits %s: %d", req.Wait, got)
		}
	}
	for _, wait := range []time.Duration{0, time.Second} {
		must(s.claim(t.Context(), &carillonv1.ClaimRequest{Worker: "w", Queues: []string{"p", "q"}, Wait: durationpb.New(wait)}))
	}
	if got := count(); got != 0 || polls != 2 || len(s.server.claims.byQueue) != 0 {
		t.Errorf("after %d polls %d wait: %v", polls, got, s.server.claims.byQueue)
	}
}
