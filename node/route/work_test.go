package route

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/node/dispatch"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// work is a node's dispatcher, as far as polls see it: leases are granted at once, first come first served.
type work struct {
	n  *node
	mu sync.Mutex
	// ready executions and leases by claim id.
	ready  []*storagev1.Execution
	leases map[string][]*storagev1.Execution
	// changed is closed and replaced when something becomes ready.
	changed chan struct{}
	// waiting polls.
	waiting int
	// asked is the max of each poll that came, released the jobs given back.
	asked    []int
	released []string
	granted  uint64
	// onTake, if set, is called after a poll has taken something, before it is answered.
	onTake func()
	// waits, if set, is told of each poll that begins to wait.
	waits chan struct{}
}

func newWork(n *node) *work {
	return &work{n: n, leases: map[string][]*storagev1.Execution{}, changed: make(chan struct{})}
}

// add makes n executions of a shard ready, and hints the nodes that are interested if nobody waits here.
func (w *work) add(shard uint32, queue string, n int) {
	if !w.addQuietly(shard, queue, n) {
		return
	}
	for _, other := range w.n.c.nodes {
		if other != w.n && slices.Contains(other.poller.Interest(), queue) {
			other.poller.Hinted(w.n.store, []string{queue})
		}
	}
}

// addQuietly is add without hints; it says whether nobody waits here.
func (w *work) addQuietly(shard uint32, queue string, n int) (alone bool) {
	w.mu.Lock()
	for range n {
		w.granted++
		w.ready = append(w.ready, &storagev1.Execution{
			Tenant: "t", JobId: fmt.Sprintf("%d:%s:%d", shard, w.n.store, w.granted), Template: &storagev1.Template{Queue: queue},
		})
	}
	close(w.changed)
	w.changed = make(chan struct{})
	alone = w.waiting == 0
	w.mu.Unlock()
	return alone
}

func shardOf(_, jobID string) uint32 {
	shard, _, _ := strings.Cut(jobID, ":")
	id, err := strconv.Atoi(shard)
	if err != nil {
		panic(err)
	}
	return uint32(id)
}

func (w *work) poll(ctx context.Context, req dispatch.PollRequest) ([]*storagev1.Execution, error) {
	w.mu.Lock()
	w.asked = append(w.asked, req.Max)
	w.mu.Unlock()
	timer := time.NewTimer(req.Wait)
	defer timer.Stop()
	for {
		w.mu.Lock()
		got := w.take(&req)
		changed := w.changed
		onTake := w.onTake
		w.waiting++
		w.mu.Unlock()
		if len(got) > 0 && onTake != nil {
			onTake()
		}
		leave := func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.waiting--
		}
		if ctx.Err() != nil {
			leave()
			w.release(got)
			return nil, ctx.Err()
		}
		if len(got) > 0 || req.Wait == 0 {
			leave()
			return got, nil
		}
		if w.waits != nil {
			w.waits <- struct{}{}
		}
		select {
		case <-changed:
			leave()
		case <-timer.C:
			leave()
			return nil, nil
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		}
	}
}

// take leases what there is, or returns what the claim holds. Locked.
func (w *work) take(req *dispatch.PollRequest) (got []*storagev1.Execution) {
	if held := w.leases[req.ClaimID]; len(held) > 0 {
		return held[:min(len(held), req.Max)]
	}
	w.ready = slices.DeleteFunc(w.ready, func(e *storagev1.Execution) bool {
		if len(got) == req.Max || !slices.Contains(req.Queues, e.Template.Queue) {
			return false
		}
		e.ClaimId, e.Fencing = req.ClaimID, 1
		got = append(got, e)
		return true
	})
	if len(got) > 0 {
		w.leases[req.ClaimID] = got
	}
	return got
}

func (w *work) held(claimID string) []*storagev1.Execution {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.leases[claimID])
}

func (w *work) release(leases []*storagev1.Execution) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range leases {
		w.released = append(w.released, e.JobId)
		kept := slices.DeleteFunc(slices.Clone(w.leases[e.ClaimId]), func(l *storagev1.Execution) bool { return l.JobId == e.JobId })
		if len(kept) < len(w.leases[e.ClaimId]) {
			w.leases[e.ClaimId] = kept
			w.ready = append(w.ready, &storagev1.Execution{Tenant: e.Tenant, JobId: e.JobId, Template: &storagev1.Template{Queue: "q"}})
		}
	}
}

// counts are the executions that are ready and those that are leased.
func (w *work) counts() (ready, leased int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, held := range w.leases {
		leased += len(held)
	}
	return len(w.ready), leased
}
