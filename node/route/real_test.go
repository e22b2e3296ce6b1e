package route

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// leader is a node's dispatcher over a real state machine of the one shard that it leads: a log that commits at once.
type leader struct {
	*node
	shard      uint32
	dispatcher *dispatch.Dispatcher
	engine     *store.Memory
	wake       chan struct{}

	mu      sync.Mutex
	mailbox []dispatch.Proposal
}

func newLeader(t *testing.T, n *node, shard uint32) *leader {
	l := &leader{node: n, shard: shard, engine: store.OpenMemory(), wake: make(chan struct{}, 1)}
	d, err := dispatch.New(dispatch.Config{}, l)
	if err != nil {
		t.Fatal(err)
	}
	l.dispatcher = d
	return l
}

func (l *leader) ProposeAll(all []dispatch.Proposal) {
	l.mu.Lock()
	l.mailbox = append(l.mailbox, all...)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *leader) Rows(shard uint32) dispatch.Rows       { return store.NewReader(l.engine, shard) }
func (l *leader) ShardOf(tenant, jobID string) uint32   { return shardOf(tenant, jobID) }
func (l *leader) Now() int64                            { return time.Now().UnixMilli() }
func (l *leader) MayFire() bool                         { return true }
func (l *leader) Release(leases []*storagev1.Execution) { l.dispatcher.Release(leases) }

func (l *leader) Held(claimID string) ([]*storagev1.Execution, error) {
	return l.dispatcher.Held(claimID)
}

func (l *leader) Poll(ctx context.Context, req dispatch.PollRequest) ([]*storagev1.Execution, error) {
	return l.dispatcher.Poll(ctx, req)
}

// run is the log: what has come is the next entry. What it makes ready is hinted to every other node.
func (l *leader) run(ctx context.Context) error {
	rows := store.NewShard(l.engine, l.shard, store.NewCache(1<<20))
	machine := fsm.Open(l.shard, rows)
	index := uint64(0)
	apply := func(cmds []*storagev1.Command) ([]fsm.Result, fsm.Effects, error) {
		index++
		results, effects := machine.Apply(rows, index, &storagev1.Entry{Term: 1, StampMs: l.Now(), Commands: cmds})
		batch := l.engine.NewBatch()
		if err := rows.Flush(batch); err != nil {
			return nil, effects, err
		}
		_, err := l.engine.Commit(batch, false)
		rows.Committed()
		return results, effects, err
	}
	l.dispatcher.Takeover(l.shard, 1)
	_, effects, err := apply([]*storagev1.Command{{LeaderStart: &storagev1.LeaderStart{Term: 1, Store: l.store}}})
	l.dispatcher.Applied(l.shard, &effects)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		}
		l.mu.Lock()
		batch := l.mailbox
		l.mailbox = nil
		l.mu.Unlock()
		cmds := make([]*storagev1.Command, len(batch))
		for i, p := range batch {
			cmds[i] = p.Command
		}
		var results []fsm.Result
		if results, effects, err = apply(cmds); err != nil {
			return err
		}
		l.dispatcher.Applied(l.shard, &effects)
		for i, p := range batch {
			p.Done(results[i], nil)
		}
		if len(effects.Ready) > 0 {
			for _, other := range l.c.nodes {
				if other != l.node && slices.Contains(other.poller.Interest(), "q") {
					other.poller.Hinted(l.store, []string{"q"})
				}
			}
		}
	}
	return err
}

// create accepts n one-shots that are due now, and returns when they are.
func (l *leader) create(t *testing.T, from, n int) {
	cmd := &storagev1.CreateJobs{}
	for i := range n {
		cmd.Items = append(cmd.Items, &storagev1.CreateJob{
			Tenant: "t", JobId: fmt.Sprintf("%d:%d", l.shard, from+i), Hash: []byte("01234567"),
			Schedule: &storagev1.Schedule{AtMs: l.Now()}, CatchUp: storagev1.CatchUp_CATCH_UP_ALL,
			Template: &storagev1.Template{Queue: "q", LeaseMs: 3600_000, Retry: &storagev1.RetryPolicy{MaxAttempts: 1}},
		})
	}
	done := make(chan error, 1)
	l.ProposeAll([]dispatch.Proposal{{Shard: l.shard, Command: &storagev1.Command{CreateJobs: cmd}, Done: func(res fsm.Result, err error) {
		if err == nil && (res.Refusal != nil || res.Items[0].Refusal != nil) {
			err = fmt.Errorf("refused: %v %v", res.Refusal, res.Items)
		}
		done <- err
	}}})
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// leased is how many leases stand in the rows.
func (l *leader) leased() (n int) {
	l.Rows(l.shard).Scan([]byte{fsm.KindLeased}, []byte{fsm.KindLeased + 1}, func(_, _ []byte) bool {
		n++
		return true
	})
	return n
}

// TestPollsOverRealDispatchers lets polls, some of whose callers leave at any moment, race for the work of three leaders.
// In the end every execution has been delivered once, and no lease stands that nobody has.
func TestPollsOverRealDispatchers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	c, a, b, other := three(t)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var leaders []*leader
	for i, n := range []*node{a, b, other} {
		l := newLeader(t, n, uint32(i+1))
		leaders = append(leaders, l)
		n.mu.Lock()
		n.local = l
		n.mu.Unlock()
		n.poller.local = l
	}
	for _, l := range leaders {
		running.Go(func() {
			if err := l.dispatcher.Run(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("dispatcher of %s: %v", l.store, err)
			}
		})
		running.Go(func() {
			if err := l.run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer running.Wait()
	defer stop()
	const total = 3000
	d := &deliveries{total: total, seen: map[string]int{}, all: make(chan struct{})}
	polling, end := context.WithCancel(context.Background())
	var polls sync.WaitGroup
	for i := range 45 {
		source := rand.New(rand.NewPCG(seed, uint64(100+i)))
		n := c.nodes[string(rune('a'+i%3))]
		polls.Go(func() {
			for k := 0; polling.Err() == nil; k++ {
				d.poll(t, polling, n, fmt.Sprintf("c%d-%d", i, k), source)
			}
		})
	}
	for made := 0; made < total; {
		n := min(1+random.IntN(25), total-made)
		leaders[random.IntN(3)].create(t, made, n)
		made += n
	}
	select {
	case <-d.all:
	case <-time.After(30 * time.Second):
		t.Error("not everything was delivered")
	}
	end()
	polls.Wait()
	leased := 0
	for _, l := range leaders {
		leased += l.leased()
	}
	if leased != total || len(d.seen) != total {
		t.Errorf("%d of %d executions delivered, %d leases", len(d.seen), total, leased)
	}
	t.Logf("%d polls, %d callers left", d.polls, d.left)
}

// deliveries counts what the polls' callers got.
type deliveries struct {
	total int

	mu          sync.Mutex
	seen        map[string]int
	polls, left int
	all         chan struct{}
}

// poll makes one call; of three, one leaves early.
func (d *deliveries) poll(t *testing.T, ctx context.Context, n *node, claim string, source *rand.Rand) {
	if source.IntN(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(source.IntN(30_000))*time.Microsecond)
		defer cancel()
	}
	most := 1 + source.IntN(8)
	got, err := n.poller.Poll(ctx, poll(claim, most, 5*time.Second))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.polls++
	switch {
	case err != nil && ctx.Err() != nil:
		d.left++
	case err != nil:
		t.Errorf("poll: %v", err)
	case len(got) > most:
		t.Errorf("%d leases for a poll of %d", len(got), most)
	}
	for _, e := range got {
		if d.seen[e.JobId]++; d.seen[e.JobId] > 1 {
			t.Errorf("%s was delivered %d times", e.JobId, d.seen[e.JobId])
		}
	}
	if len(got) > 0 && len(d.seen) == d.total {
		close(d.all)
	}
}
