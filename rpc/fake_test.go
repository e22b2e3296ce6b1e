package rpc

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// startMS is where the fake clock starts: 2026-01-01T00:00:00Z.
const startMS = 1_767_225_600_000

// fakeBackend is a node without disk, raft and clock: real state machines over rows in memory.
type fakeBackend struct {
	mu  sync.Mutex
	now int64
	// tick is how long a look at the clock takes.
	tick    int64
	shards  []*fakeShard
	queues  map[string]*storagev1.QueueSettings
	tenants map[string]*storagev1.TenantSettings
	rules   map[string]*storagev1.PauseRule
	cluster ClusterStatus
	fakeOperator
	fakeVerifier
	fakeClock

	// fail, if set, is asked before each command; an error is what Do answers. With applied set, the command is applied
	// all the same: its answer is lost.
	fail    func(shard uint32, cmd *storagev1.Command) error
	applied bool
	// failView is what View answers.
	failView error
	// onPoll is called at the start of each Poll.
	onPoll   func(PollRequest)
	released []*storagev1.Execution
	commands int
}

type fakeShard struct {
	id      uint32
	state   memoryState
	machine *fsm.Machine
	index   uint64
}

func newFakeBackend(shards int) *fakeBackend {
	b := &fakeBackend{
		now: startMS, queues: map[string]*storagev1.QueueSettings{}, tenants: map[string]*storagev1.TenantSettings{},
		rules: map[string]*storagev1.PauseRule{},
	}
	for i := range shards {
		sh := &fakeShard{id: uint32(i + 1), state: memoryState{}}
		sh.machine = fsm.Open(sh.id, sh.state)
		b.shards = append(b.shards, sh)
		sh.apply(b.now, &storagev1.Command{LeaderStart: &storagev1.LeaderStart{Term: 1, Store: "store"}})
	}
	return b
}

func (sh *fakeShard) apply(nowMS int64, cmd *storagev1.Command) fsm.Result {
	sh.index++
	results, _ := sh.machine.Apply(sh.state, sh.index, &storagev1.Entry{
		Term: 1, StampMs: nowMS, Commands: []*storagev1.Command{cmd.CloneVT()},
	})
	return results[0]
}

func (b *fakeBackend) shard(id uint32) *fakeShard { return b.shards[id-1] }

func (b *fakeBackend) Shards() []uint32 {
	ids := make([]uint32, len(b.shards))
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	return ids
}

func (b *fakeBackend) ShardOf(tenant, jobID string) uint32 {
	return uint32(int(fsm.Slot(tenant, jobID))%len(b.shards)) + 1
}

func (b *fakeBackend) NowMS() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now += b.tick
	return b.now
}

// pass lets time go by.
func (b *fakeBackend) pass(ms int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now += ms
	for _, sh := range b.shards {
		sh.apply(b.now, &storagev1.Command{Advance: &storagev1.Advance{Limit: 1000}})
	}
}

func (b *fakeBackend) DoAll(ctx context.Context, cmds []ShardCommand) []Outcome {
	all := make([]Outcome, len(cmds))
	for i, c := range cmds {
		all[i].Result, all[i].Err = b.Do(ctx, c.Shard, c.Command)
	}
	return all
}

func (b *fakeBackend) Do(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error) {
	if err := ctx.Err(); err != nil {
		return fsm.Result{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commands++
	var failure error
	if b.fail != nil {
		failure = b.fail(shard, cmd)
	}
	if failure != nil && !b.applied {
		return fsm.Result{}, failure
	}
	result := b.shard(shard).apply(b.now, cmd)
	for step := result; cmd.StartBackfill != nil && step.Refusal == nil && step.Task.Backfill.Schedule.Every != nil; {
		if step = b.shard(shard).apply(b.now, &storagev1.Command{StepTask: &storagev1.StepTask{Id: step.Task.Id}}); !step.More {
			break
		}
	}
	if failure != nil {
		return fsm.Result{}, failure
	}
	return result, nil
}

func (b *fakeBackend) View(_ context.Context, shard uint32, _ bool, fn func(fsm.Reader) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failView != nil {
		return b.failView
	}
	return fn(b.shard(shard).state)
}

// Poll never waits: what is ready now is what there is.
func (b *fakeBackend) Poll(_ context.Context, req PollRequest) ([]*storagev1.Execution, error) {
	if b.onPoll != nil {
		b.onPoll(req)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var leases []*storagev1.Execution
	for _, sh := range b.shards {
		for _, value := range sh.state.rows(fsm.KindLeased) {
			e := &storagev1.Execution{}
			if err := e.UnmarshalVT(value); err != nil {
				return nil, err
			}
			if e.ClaimId == req.ClaimID {
				leases = append(leases, e)
			}
		}
	}
	if len(leases) > 0 {
		return leases, nil
	}
	for _, sh := range b.shards {
		sh.apply(b.now, &storagev1.Command{Advance: &storagev1.Advance{Limit: 1000}})
		var picks [][]byte
		for key := range sh.state.scan(fsm.KindReady) {
			if ref, err := fsm.DecodeReady(key); err == nil && slices.Contains(req.Queues, ref.Queue) && len(leases)+len(picks) < req.Max {
				picks = append(picks, bytes.Clone(key))
			}
		}
		result := sh.apply(b.now, &storagev1.Command{Claim: &storagev1.Claim{
			ClaimId: req.ClaimID, Worker: req.Worker, LeaseMs: req.LeaseMS, Picks: picks,
		}})
		leases = append(leases, result.Leases...)
	}
	return leases, nil
}

func (b *fakeBackend) Release(leases []*storagev1.Execution) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = append(b.released, leases...)
}

// put replaces settings as the control plane does.
func put[S interface{ GetVersion() uint64 }](all map[string]S, name string, expected uint64, s S, stamp func(version uint64) S) (S, error) {
	standing, ok := all[name]
	var none S
	switch {
	case ok && expected == 0:
		return none, &Refused{&fsm.Refusal{Code: fsm.AlreadyExists, Message: name + " exists"}}
	case !ok && expected != 0:
		return none, &Refused{&fsm.Refusal{Code: fsm.NotFound, Message: name + " is unknown"}}
	case ok && expected != AnyVersion && expected != standing.GetVersion():
		return none, &Refused{&fsm.Refusal{Code: fsm.Aborted, Message: "stale version", Version: standing.GetVersion()}}
	}
	version := uint64(1)
	if ok {
		version = standing.GetVersion() + 1
	}
	all[name] = stamp(version)
	return all[name], nil
}

func (b *fakeBackend) PutQueue(_ context.Context, s *storagev1.QueueSettings, expected uint64) (*storagev1.QueueSettings, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return put(b.queues, s.Name, expected, s, func(version uint64) *storagev1.QueueSettings {
		s = s.CloneVT()
		s.Version = version
		for _, sh := range b.shards {
			sh.apply(b.now, &storagev1.Command{PutQueue: s})
		}
		return s
	})
}

func (b *fakeBackend) Queue(_ context.Context, name string) (*storagev1.QueueSettings, error) {
	if s := b.queues[name]; s != nil {
		return s, nil
	}
	return nil, &Refused{&fsm.Refusal{Code: fsm.NotFound, Message: "no queue " + name}}
}

func (b *fakeBackend) Queues(context.Context) ([]*storagev1.QueueSettings, error) {
	return slices.Collect(maps.Values(b.queues)), nil
}

func (b *fakeBackend) DeleteQueue(_ context.Context, name string, expected uint64) error {
	standing := b.queues[name]
	switch {
	case standing == nil:
		return &Refused{&fsm.Refusal{Code: fsm.NotFound, Message: "no queue " + name}}
	case expected != AnyVersion && expected != standing.Version:
		return &Refused{&fsm.Refusal{Code: fsm.Aborted, Message: "stale version", Version: standing.Version}}
	}
	delete(b.queues, name)
	return nil
}

func (b *fakeBackend) PutTenant(_ context.Context, s *storagev1.TenantSettings, expected uint64) (*storagev1.TenantSettings, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return put(b.tenants, s.Name, expected, s, func(version uint64) *storagev1.TenantSettings {
		s = s.CloneVT()
		s.Version = version
		for _, sh := range b.shards {
			sh.apply(b.now, &storagev1.Command{PutTenant: s})
		}
		return s
	})
}

func (b *fakeBackend) Tenant(_ context.Context, name string) (*storagev1.TenantSettings, error) {
	if s := b.tenants[name]; s != nil {
		return s, nil
	}
	return nil, &Refused{&fsm.Refusal{Code: fsm.NotFound, Message: "no tenant " + name}}
}

func (b *fakeBackend) Tenants(context.Context) ([]*storagev1.TenantSettings, error) {
	return slices.Collect(maps.Values(b.tenants)), nil
}

func (b *fakeBackend) PutPauseRule(_ context.Context, r *storagev1.PauseRule, expected uint64) (*storagev1.PauseRule, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return put(b.rules, r.Id, expected, r, func(version uint64) *storagev1.PauseRule {
		r = r.CloneVT()
		r.Version, r.CreatedMs = version, max(r.CreatedMs, 1)
		for _, sh := range b.shards {
			sh.apply(b.now, &storagev1.Command{PutPauseRule: r})
		}
		return r
	})
}

func (b *fakeBackend) PauseRule(_ context.Context, id string) (*storagev1.PauseRule, error) {
	if r := b.rules[id]; r != nil && !r.Deleted {
		return r, nil
	}
	return nil, &Refused{&fsm.Refusal{Code: fsm.NotFound, Message: "no pause rule " + id}}
}

func (b *fakeBackend) PauseRules(context.Context) ([]*storagev1.PauseRule, error) {
	all := slices.Collect(maps.Values(b.rules))
	return slices.DeleteFunc(all, (*storagev1.PauseRule).GetDeleted), nil
}

func (b *fakeBackend) DeleteTenant(ctx context.Context, name string, expected uint64) (TaskProgress, error) {
	standing, err := b.Tenant(ctx, name)
	if err != nil {
		return TaskProgress{}, err
	}
	marked := standing.CloneVT()
	marked.Deleting = true
	if _, err := b.PutTenant(ctx, marked, expected); err != nil {
		return TaskProgress{}, err
	}
	return b.RunTask(ctx, "delete-tenant:"+name, storagev1.TaskKind_TASK_KIND_DELETE_TENANT, &storagev1.Filter{Tenant: name})
}

func (b *fakeBackend) RunTask(ctx context.Context, id string, kind storagev1.TaskKind, filter *storagev1.Filter) (TaskProgress, error) {
	sum := TaskProgress{ID: id, Finished: true}
	for _, shard := range b.Shards() {
		result, err := b.Do(ctx, shard, &storagev1.Command{StartTask: &storagev1.StartTask{Id: id, Kind: kind, Filter: filter}})
		for err == nil && result.Refusal == nil && !result.Task.Finished {
			result, err = b.Do(ctx, shard, &storagev1.Command{StepTask: &storagev1.StepTask{Id: id, Limit: 1000}})
		}
		if err != nil {
			return sum, err
		}
		if result.Refusal != nil {
			return sum, &Refused{result.Refusal}
		}
		sum.Done += result.Task.DoneCount
		sum.Seen += result.Task.SeenCount
	}
	return sum, nil
}

func (b *fakeBackend) Cluster(_ context.Context, topTenants int) (ClusterStatus, error) {
	status := b.cluster
	status.Tenants = status.Tenants[:min(topTenants, len(status.Tenants))]
	return status, nil
}

// fakeOperator says what it was asked, and that node n2 has two replicas left.
type fakeOperator struct {
	asked []string
	fail  error
}

func (o *fakeOperator) TransferLeaders(_ context.Context, req TransferRequest) (moved []LeaderTransfer, err error) {
	o.asked = append(o.asked, fmt.Sprintf("transfer %v %s %s", req.Shards, req.From, req.To))
	for _, shard := range req.Shards {
		t := LeaderTransfer{Shard: shard, From: req.From, To: req.To}
		if shard == 2 {
			t.Reason = "no"
		}
		moved = append(moved, t)
	}
	return moved, o.fail
}

func (o *fakeOperator) change(what, node string) (NodeChange, error) {
	o.asked = append(o.asked, what+" "+node)
	return NodeChange{Node: node, Store: "s2", State: StateDraining, Led: 1, Replicas: 2, Staying: 1, Message: what}, o.fail
}

func (o *fakeOperator) Drain(_ context.Context, node string) (NodeChange, error) {
	return o.change("drain", node)
}

func (o *fakeOperator) Undrain(_ context.Context, node string) (NodeChange, error) {
	return o.change("undrain", node)
}

func (o *fakeOperator) RemoveNode(_ context.Context, node string) (NodeChange, error) {
	return o.change("remove", node)
}

func (o *fakeOperator) ReplaceStore(_ context.Context, node string) (NodeChange, error) {
	return o.change("replace", node)
}

// memoryState is a shard's rows.
type memoryState map[string][]byte

func (m memoryState) Get(key []byte) ([]byte, bool) {
	value, ok := m[string(key)]
	return value, ok
}

func (m memoryState) Set(key, value []byte) { m[string(key)] = value }

func (m memoryState) Delete(key []byte) { delete(m, string(key)) }

func (m memoryState) DeleteRange(start, end []byte) {
	m.Scan(start, end, func(key, _ []byte) bool {
		m.Delete(key)
		return true
	})
}

func (m memoryState) Scan(start, end []byte, fn func(key, value []byte) bool) {
	var keys []string
	for key := range m {
		if key >= string(start) && (end == nil || key < string(end)) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if !fn([]byte(key), m[key]) {
			return
		}
	}
}

func (m memoryState) scan(kind byte) func(yield func(key, value []byte) bool) {
	return func(yield func(key, value []byte) bool) { m.Scan([]byte{kind}, []byte{kind + 1}, yield) }
}

func (m memoryState) rows(kind byte) (values [][]byte) {
	for _, value := range m.scan(kind) {
		values = append(values, value)
	}
	return values
}

// newTestServer is the handlers without a transport.
func newTestServer(t *testing.T, b *fakeBackend) *server {
	t.Helper()
	h, err := NewHandler(b, Options{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	return h.(*server)
}
