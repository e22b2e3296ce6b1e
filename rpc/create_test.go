package rpc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// W5: the answer is lost, the caller retries: same key and body, same id and answer. Same key, other body: conflict.
func TestW5RetriedCreate(t *testing.T) {
	s := newScene(t, 8)
	req := func(queue string) *carillonv1.CreateJobRequest {
		return &carillonv1.CreateJobRequest{IdempotencyKey: "k", Job: &carillonv1.JobSpec{Queue: queue, Schedule: in(time.Hour)}}
	}
	s.b.fail, s.b.applied = func(uint32, *storagev1.Command) error { return &Unavailable{Reason: "lost", Ambiguous: true} }, true
	_, err := s.createJob(t.Context(), req("q"))
	wantCode(t, err, connect.CodeUnavailable)
	s.b.fail = nil
	first := must(s.createJob(t.Context(), req("q")))
	s.b.pass(5000)
	// Another node is another server over the same state.
	other := newTestServer(t, s.b)
	if again := must(other.createJob(t.Context(), req("q"))); !proto.Equal(first, again) {
		t.Errorf("the retry got %v, not %v", again, first)
	}
	_, err = s.createJob(t.Context(), req("other"))
	if got := conflictFields(t, err); !slices.Equal(got, []string{"queue"}) {
		t.Errorf("the conflict names %v", got)
	}
}

// A one-shot that has fired is compared where its template stands by then; the key is never what differs.
func TestConflictWithAFiredJobNamesWhatDiffers(t *testing.T) {
	s := newScene(t, 4)
	create := func(spec *carillonv1.JobSpec) error {
		_, err := s.createJob(t.Context(), &carillonv1.CreateJobRequest{Job: spec, IdempotencyKey: "another"})
		return err
	}
	large := bytes.Repeat([]byte("x"), 8<<10) // stands in a row of its own
	s.create(&carillonv1.JobSpec{Id: "a", Queue: "q", Schedule: in(0), Payload: large})
	s.create(&carillonv1.JobSpec{Id: "b", Schedule: in(0), Retention: durationpb.New(time.Hour)})
	s.b.pass(1)
	for state := range 2 { // ready, then ended
		for _, c := range []struct {
			spec *carillonv1.JobSpec
			want []string
		}{
			{&carillonv1.JobSpec{Id: "a", Queue: "q", Schedule: in(0), Payload: large[1:]}, []string{"payload"}},
			{&carillonv1.JobSpec{Id: "a", Queue: "other", Schedule: in(0), Payload: large}, []string{"queue"}},
			{&carillonv1.JobSpec{Id: "b", Schedule: in(0), Retention: durationpb.New(2 * time.Hour)}, []string{"retention"}},
			{&carillonv1.JobSpec{Id: "b", Schedule: in(0), Lease: durationpb.New(time.Minute)}, []string{"lease", "retention"}},
		} {
			if got := conflictFields(t, create(c.spec)); !slices.Equal(got, c.want) {
				t.Errorf("state %d, %v: the conflict names %v, want %v", state, c.spec, got, c.want)
			}
		}
		for _, lease := range must(s.claim(t.Context(), &carillonv1.ClaimRequest{
			Worker: "w", Queues: []string{"q", defaultName}, MaxExecutions: 10,
		})).Leases {
			must(s.finish(lease, &carillonv1.Succeeded{}))
		}
	}
	batch := must(s.batchCreateJobs(t.Context(), &carillonv1.BatchCreateJobsRequest{Items: []*carillonv1.CreateJobRequest{
		{Job: &carillonv1.JobSpec{Id: "a", Queue: "other", Schedule: in(0), Payload: large}},
	}}))
	if e := batch.Results[0].GetError(); e.GetCode() != "already_exists" || e.GetField() != "" {
		t.Errorf("in a batch: %v", e)
	}
}

// Where nothing is left to compare, the conflict names no field and says why.
func TestConflictWithAChangedJobSaysSo(t *testing.T) {
	s := newScene(t, 1)
	first := &carillonv1.JobSpec{Id: "a", Schedule: &carillonv1.Schedule{When: &carillonv1.Schedule_At{At: timeOf(startMS + 60_000)}}}
	s.create(first)
	queue := "new"
	must(s.updateJob(t.Context(), &carillonv1.UpdateJobRequest{Id: "a", Job: &carillonv1.JobPatch{Queue: &queue}}))
	second := proto.CloneOf(first)
	second.Queue = queue
	_, err := s.createJob(t.Context(), &carillonv1.CreateJobRequest{Job: second})
	if got := conflictFields(t, err); got != nil || !strings.Contains(answered(err).Error(), "was changed since") {
		t.Errorf("%v, naming %v", err, got)
	}
}

// What is left out and what is given as its default are the same request.
func TestExplicitDefaultsAreNoDifference(t *testing.T) {
	s := newScene(t, 2)
	priority, jitter := uint32(5), uint32(100)
	short := &carillonv1.JobSpec{Id: "j", Schedule: in(time.Hour)}
	long := &carillonv1.JobSpec{
		Id: "j", Tenant: "default", Queue: "default", Schedule: in(time.Hour), CatchUp: carillonv1.CatchUp_CATCH_UP_ALL,
		Priority: &priority, Lease: durationpb.New(30 * time.Second), Retry: &carillonv1.RetryPolicy{
			MaxAttempts: 5, FirstDelay: durationpb.New(time.Second), FactorThousandths: 2000, MaxDelay: durationpb.New(time.Hour),
			JitterThousandths: &jitter,
		},
	}
	if a, b := s.create(short), s.create(long); !proto.Equal(a, b) {
		t.Errorf("%v and %v", a, b)
	}
}

// The derivations of ids are promises: a retry after an upgrade must meet the same job.
func TestDerivedIdentitiesArePinned(t *testing.T) {
	for got, want := range map[string]string{
		jobIDFromKey("default", "k"):           "TR01wmXkQ4TTnvvS",
		jobIDFromBatch("default", "r", 0):      "GwmCYiegnzvJz4BT",
		jobIDFromBatch("default", "r", 1):      "W6es4jX7mLBFlrrZ",
		discriminatorFromKey("plain-key:1"):    "plain-key:1",
		discriminatorFromKey("with a space ~"): "W6lATb6lGOAYdba5",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if jobIDFromKey("a", "bc") == jobIDFromKey("ab", "c") {
		t.Error("two identities run together")
	}
}

// A batch answers in its order, whatever the shards; one bad item fails alone, and so does one unavailable shard.
func TestBatchItemsFailAlone(t *testing.T) {
	s := newScene(t, 16)
	const n = 3000
	req := &carillonv1.BatchCreateJobsRequest{RequestId: "r"}
	for i := range n {
		req.Items = append(req.Items, &carillonv1.CreateJobRequest{Job: &carillonv1.JobSpec{
			Id: fmt.Sprint("job-", i), Schedule: in(time.Hour), Payload: []byte(fmt.Sprint(i)),
		}})
	}
	req.Items[7].Job.Queue = "no such name"
	req.Items[8] = nil
	req.Items[9].Job = nil
	down := s.b.ShardOf(defaultName, "job-100")
	s.b.fail = func(shard uint32, _ *storagev1.Command) error {
		if shard == down {
			return &Unavailable{Reason: "no leader", RetryAfter: time.Second}
		}
		return nil
	}
	res := must(s.batchCreateJobs(t.Context(), req))
	failed := 0
	for i, result := range res.Results {
		id := fmt.Sprint("job-", i)
		itemErr := result.GetError()
		switch {
		case i == 7:
			if itemErr.GetField() != "job.queue" || itemErr.GetCode() != "invalid_argument" {
				t.Errorf("bad item: %v", result)
			}
		case i == 8 || i == 9:
			if itemErr.GetField() != "job" {
				t.Errorf("empty item: %v", result)
			}
		case s.b.ShardOf(defaultName, id) == down:
			failed++
			if itemErr.GetCode() != "unavailable" || itemErr.GetRetryAfter().AsDuration() != time.Second {
				t.Errorf("item of the shard without leader: %v", result)
			}
		case result.GetReceipt().GetId() != id:
			t.Errorf("item %d got %v", i, result)
		}
	}
	if failed == 0 {
		t.Error("no item was on the shard without leader")
	}
	s.b.fail = nil
	again := must(s.batchCreateJobs(t.Context(), req))
	for i, result := range res.Results {
		if result.GetReceipt() != nil && !proto.Equal(result, again.Results[i]) {
			t.Errorf("item %d: first %v, then %v", i, result, again.Results[i])
		}
	}
	if got := s.job("job-2999"); string(got.Payload) != "2999" {
		t.Errorf("payload %q", got.Payload)
	}
}

// Items of a batch without a key are safe to retry under the batch's request id.
func TestBatchRequestIDIsAKey(t *testing.T) {
	s := newScene(t, 4)
	req := func(id string) *carillonv1.BatchCreateJobsRequest {
		batch := batchOf(5)
		batch.RequestId = id
		batch.Items[4].IdempotencyKey = "own"
		return batch
	}
	a, b := must(s.batchCreateJobs(t.Context(), req("r"))), must(s.batchCreateJobs(t.Context(), req("r")))
	if !proto.Equal(a, b) {
		t.Errorf("first %v, then %v", a, b)
	}
	c, d := must(s.batchCreateJobs(t.Context(), req(""))), must(s.batchCreateJobs(t.Context(), req("")))
	for i := range c.Results {
		if same := c.Results[i].GetReceipt().Id == d.Results[i].GetReceipt().Id; same != (i == 4) {
			t.Errorf("item %d without request id: %v, then %v", i, c.Results[i], d.Results[i])
		}
	}
}

// A batch goes to each shard in bounded chunks that keep its order.
func TestChunksAreBounded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	sizes, shards := make([]int, 10_000), make([]uint32, 10_000)
	for i := range sizes {
		// Shard 4 has large items, so that its chunks are full by bytes; the others' are full by items.
		shards[i] = uint32(rnd.IntN(5))
		sizes[i] = rnd.IntN(512 << (shards[i] / 4 * 6))
	}
	sizes[500] = maxChunkBytes + 1
	seen, last := map[int]bool{}, map[uint32]int{}
	for _, c := range chunks(len(sizes), func(i int) (place, int, bool) { return place{shard: shards[i]}, sizes[i], i%10 != 0 }) {
		total := 0
		for _, i := range c.items {
			if i%10 == 0 || shards[i] != c.shard || seen[i] || i < last[c.shard] {
				t.Fatalf("item %d of shard %d is in a chunk of shard %d", i, shards[i], c.shard)
			}
			seen[i], last[c.shard], total = true, i, total+sizes[i]
		}
		if len(c.items) == 0 || len(c.items) > fsm.MaxBatch || total > maxChunkBytes && len(c.items) > 1 {
			t.Errorf("a chunk of %d items, %d bytes", len(c.items), total)
		}
	}
	if len(seen) != 9000 {
		t.Errorf("%d items are in chunks", len(seen))
	}
}
