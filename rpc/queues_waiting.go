package rpc

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/fsm"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// queueWaiting is what waits in a queue.
type queueWaiting struct {
	name     string
	ready    uint64
	more     bool // than were counted
	oldestMS int64
}

func (w *queueWaiting) add(other *queueWaiting) {
	if w.ready == 0 || other.oldestMS < w.oldestMS {
		w.oldestMS = other.oldestMS
	}
	w.ready += other.ready
	w.more = w.more || other.more
}

// waitingIn counts a shard's ready executions by queue, in the order of names, from the one behind after on. Where it has
// limit queues, or has read enough, it stops at the end of a queue and reports that there may be others.
func waitingIn(r fsm.Reader, after string, limit int) (queues []queueWaiting, more bool) {
	var start []byte
	if after != "" {
		start = fsm.PrefixEnd(fsm.ReadyQueuePrefix(after))
	}
	rows := 0
	for {
		full := false
		fsm.ScanReady(r, start, nil, func(ref fsm.ReadyRef) bool {
			n := len(queues)
			if n == 0 || queues[n-1].name != ref.Queue {
				if more = n == limit || rows >= maxRowsPerPage; more {
					return false
				}
				queues, n = append(queues, queueWaiting{name: ref.Queue}), n+1
			}
			queue := &queues[n-1]
			if full = queue.ready == maxReadyCounted; full {
				queue.more = true
				return false
			}
			rows++
			queue.add(&queueWaiting{ready: 1, oldestMS: ref.ReadyMS})
			return true
		})
		if !full {
			return queues, more
		}
		start = fsm.PrefixEnd(fsm.ReadyQueuePrefix(queues[len(queues)-1].name))
	}
}

// waiting sums what waits over the shards, by queue, from the one behind after on. It is complete up to the name until;
// empty: to the end.
func (s *server) waiting(ctx context.Context, after string, limit int, stale bool) (all map[string]*queueWaiting, until string, err error) {
	shards := s.backend.Shards()
	found := make([][]queueWaiting, len(shards))
	more := make([]bool, len(shards))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(maxShardWindow)
	for i, shard := range shards {
		group.Go(func() error {
			return s.backend.View(groupCtx, shard, stale, func(r fsm.Reader) error {
				found[i], more[i] = waitingIn(r, after, limit)
				return nil
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, "", err
	}
	all = map[string]*queueWaiting{}
	for i, queues := range found {
		for k := range queues {
			queue := &queues[k]
			if sum := all[queue.name]; sum != nil {
				sum.add(queue)
			} else {
				all[queue.name] = queue
			}
		}
		if n := len(queues); more[i] && (until == "" || queues[n-1].name < until) {
			until = queues[n-1].name
		}
	}
	return all, until, nil
}

// backlogOfQueue is what waits in a queue as the API shows it. w is nil if nothing does.
func backlogOfQueue(w *queueWaiting, claims int) *carillonv1.QueueBacklog {
	out := &carillonv1.QueueBacklog{WaitingClaims: uint32(claims)}
	if w != nil {
		out.Ready, out.ReadyIsMore, out.OldestReadyTime = w.ready, w.more, optionalTime(w.oldestMS)
	}
	return out
}

// claimsWaiting counts the claims that wait for work, by queue. The zero value is ready to use.
type claimsWaiting struct {
	mu      sync.Mutex
	byQueue map[string]int
}

// add counts n more, or with a negative n fewer, for each of the queues.
func (c *claimsWaiting) add(queues []string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byQueue == nil {
		c.byQueue = map[string]int{}
	}
	for _, queue := range queues {
		if c.byQueue[queue] += n; c.byQueue[queue] == 0 {
			delete(c.byQueue, queue)
		}
	}
}

func (c *claimsWaiting) of(queue string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byQueue[queue]
}
