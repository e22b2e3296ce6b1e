package expand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

var errLost = errors.New("leadership ended")

// host is a node whose replica loop applies what is proposed a moment later. Its shards are worlds.
type host struct {
	t testing.TB
	x *Expander

	loop   sync.Mutex // held by the replica loop, which calls back
	worlds map[uint32]*world
	refuse bool
	held   atomic.Bool
	// proposals counts Expand commands by their number of items.
	proposals []int
}

func (h *host) Now() int64    { return time.Now().UnixMilli() }
func (h *host) MayFire() bool { return !h.held.Load() }

func (h *host) Rows(shard uint32) Rows { return h.worlds[shard].read() }

func (h *host) Propose(shard uint32, cmd *storagev1.Command, done func(fsm.Result, error)) {
	time.AfterFunc(2*time.Millisecond, func() {
		h.loop.Lock()
		defer h.loop.Unlock()
		if h.refuse {
			done(fsm.Result{}, errLost)
			return
		}
		if n := len(cmd.GetExpand().GetItems()); n > 0 {
			h.proposals = append(h.proposals, n)
		}
		done(h.apply(shard, cmd), nil)
	})
}

// apply puts a command through a shard's log, on the replica loop.
func (h *host) apply(shard uint32, cmd *storagev1.Command) fsm.Result {
	w := h.worlds[shard]
	w.now = h.Now()
	result := w.apply(cmd)[0]
	h.x.Applied(shard, &fsm.Effects{Expand: w.asked})
	w.asked = nil
	return result
}

// inHost runs a test on a running expander, inside a synctest bubble: sleeping takes no time.
func inHost(t *testing.T, shards int, test func(t *testing.T, h *host)) {
	synctest.Test(t, func(t *testing.T) {
		h := &host{t: t, worlds: map[uint32]*world{}}
		h.x = New(Config{Evaluator: real, Pace: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, h)
		for id := range uint32(shards) {
			h.worlds[id] = newWorld(t, time.Now().UTC().Format(time.RFC3339))
			h.x.Takeover(id)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := h.x.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
		defer running.Wait()
		defer cancel()
		test(t, h)
	})
}

// run fires what is due in all shards until a length of time has passed, looking every ten seconds.
func (h *host) run(length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(10 * time.Second) {
		h.loop.Lock()
		for id := range h.worlds {
			for more := true; more; {
				more = h.apply(id, &storagev1.Command{Advance: &storagev1.Advance{Limit: 1000}}).MoreDue
			}
		}
		h.loop.Unlock()
	}
	synctest.Wait()
}

// check checks that each of a shard's jobs has had its instants since an instant, once each.
func (h *host) check(shard uint32, jobs int, from time.Time) {
	h.t.Helper()
	w := h.worlds[shard]
	to := time.UnixMilli(w.now).UTC().Format(time.RFC3339)
	for i := range jobs {
		w.check(fmt.Sprint("j", i), minutely, from.UTC().Format(time.RFC3339), to)
	}
}

func (h *host) create(shard uint32, jobs int) {
	h.loop.Lock()
	defer h.loop.Unlock()
	w := h.worlds[shard]
	w.now = h.Now()
	for i := range jobs {
		w.create(fmt.Sprint("j", i), minutely, func(item *storagev1.CreateJob) { item.CatchUp = storagev1.CatchUp_CATCH_UP_ALL })
	}
	h.x.Applied(shard, &fsm.Effects{Expand: w.asked})
	w.asked = nil
}

// Jobs fire on time while leaderships come and go, proposals are lost, and the clock is held; what asks at once goes together.
func TestExpander(t *testing.T) {
	inHost(t, 2, func(t *testing.T, h *host) {
		began := time.Now()
		h.create(0, 50)
		h.create(1, 20)
		h.run(30 * time.Minute)
		h.check(0, 50, began)
		h.check(1, 20, began)
		if n := len(h.proposals); n > 2*(30/12+2) {
			t.Errorf("%d proposals for %d jobs: %v", n, 70, h.proposals)
		}
		s := h.x.Stats()
		if s.Waiting != 0 || s.Oldest != 0 || s.Refused+s.Failed != 0 || s.Expanded < 2*70 || !h.x.Idle() {
			t.Errorf("%+v", s)
		}

		h.loop.Lock()
		h.refuse = true
		h.loop.Unlock()
		h.run(20 * time.Minute)
		if s := h.x.Stats(); s.Waiting != 70 || s.Oldest < time.Minute || s.Refused < 70 {
			t.Errorf("while nothing gets through: %+v", s)
		}
		h.loop.Lock()
		h.refuse = false
		h.x.StepDown(1) // and nobody leads it for a while
		h.loop.Unlock()
		h.run(20 * time.Minute)
		h.check(0, 50, began)
		h.loop.Lock()
		h.x.Takeover(1)
		h.loop.Unlock()
		h.run(20 * time.Minute)
		h.check(1, 20, began)

		h.held.Store(true)
		h.run(20 * time.Minute)
		if s := h.x.Stats(); s.Waiting != 70 {
			t.Errorf("while the clock is held: %+v", s)
		}
		h.held.Store(false)
		h.run(20 * time.Minute)
		h.check(0, 50, began)
		h.check(1, 20, began)
		if v := h.worlds[1].meta().ZoneVersion; v != real.ZoneVersion {
			t.Errorf("zone data %q", v)
		}
	})
}

// A round of a million jobs a minute is 1,400 expansions a second: what does one cost, without and with the state machine?
func BenchmarkExpansion(b *testing.B) {
	const jobs = 1000
	w := newWorld(b, start)
	for i := range jobs {
		w.create(fmt.Sprint("j", i), minutely, nil)
	}
	for _, c := range []struct {
		name string
		cron *storagev1.Cron
	}{
		{"minutely", minutely},
		{"business", &storagev1.Cron{Lines: []string{"*/5 9-17 * * *"}, Zone: "Europe/London", ExcludeWeekdays: "SAT,SUN"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, start)
			refs := make([]fsm.JobRef, jobs)
			for i := range refs {
				refs[i] = ref(fmt.Sprint("j", i))
				w.create(refs[i].JobID, c.cron, nil)
			}
			b.ReportAllocs()
			for n := 0; n < b.N; n += jobs {
				q := NewQueue(0, &w.counts)
				q.Add(1, refs...)
				list, _ := q.Take(1)
				if got := w.eval.Evaluate(w.read(), list, w.now, never); len(got.Items) == 0 || got.Err() != nil {
					b.Fatal(got)
				}
			}
		})
	}
	refs := make([]fsm.JobRef, jobs)
	for i := range refs {
		refs[i] = ref(fmt.Sprint("j", i))
	}
	q := NewQueue(0, &w.counts)
	q.Add(1, refs...)
	list, _ := q.Take(1)
	cmd := w.eval.Evaluate(w.read(), list, w.now, never).Command()
	b.Run("applied", func(b *testing.B) {
		b.ReportAllocs()
		for n := 0; n < b.N; n += jobs {
			if got := w.apply(cmd)[0].Items; len(got) != jobs || got[7].Refusal != nil {
				b.Fatal(got)
			}
		}
	})
	b.Run("a day missed", func(b *testing.B) {
		w.now += 24 * 3600 * 1000
		w.apply(&storagev1.Command{Advance: &storagev1.Advance{Limit: 1}})
		for b.Loop() {
			if got := w.eval.Evaluate(w.read(), []job{{ref: ref("j7")}}, w.now, never); got.Items[0].PassedCount == 0 {
				b.Fatal(got)
			}
		}
	})
}
