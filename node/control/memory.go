package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Memory is a control plane in memory: the state that the processes of one simulated cluster share. Each process has its
// own view of it, made by Plane. It is synchronous, keeps no time and starts no goroutine: leases lapse when Lapse is
// called. Safe for concurrent use.
type Memory struct {
	mu sync.Mutex
	// Guarded by mu.
	seed    *Seed
	shards  map[uint32]Shard
	actual  map[uint32]Actual
	nodes   map[string]memoryNode
	leaders map[uint32]memoryLeader
	// office is the controller's term, nil: none, and whose it is; vacated is closed and made anew when a term ends.
	office      *Term
	officer     *MemoryPlane
	vacated     chan struct{}
	lastTerm    int64
	settings    map[SettingKind]map[string]Setting
	unavailable bool
	// loseAnswers is how many changes to apply and yet to answer with ErrUnavailable.
	loseAnswers int
	watchers    map[*memoryWatcher]struct{}
	lastNode    uint64
	lastLease   uint64
}

type memoryNode struct {
	StoreRecord
	// plane is that of its last registration: it is live while that has a lease.
	plane *MemoryPlane
}

type memoryLeader struct {
	record LeaderRecord
	// lease it is bound to; 0: planted, bound to none.
	lease uint64
}

// memoryWatcher is told of changes one at a time, under its own lock only.
// Lock order: memoryWatcher.mu, then Memory.mu.
type memoryWatcher struct {
	mu      sync.Mutex
	leader  func(LeaderRecord)
	setting func(Setting)
	wanted  func(Shard)
	actual  func(Actual)
	stores  func()
}

// NewMemory returns an empty control plane: no cluster, no stores.
func NewMemory() *Memory {
	return &Memory{
		shards:   map[uint32]Shard{},
		actual:   map[uint32]Actual{},
		nodes:    map[string]memoryNode{},
		vacated:  make(chan struct{}),
		leaders:  map[uint32]memoryLeader{},
		settings: map[SettingKind]map[string]Setting{Queue: {}, Tenant: {}, PauseRule: {}},
		watchers: map[*memoryWatcher]struct{}{},
	}
}

// SetUnavailable makes every call fail with ErrUnavailable, and watchers hear nothing, until it is set back; then they
// hear everything that stands.
func (m *Memory) SetUnavailable(unavailable bool) {
	m.mu.Lock()
	m.unavailable = unavailable
	events := m.everythingLocked()
	m.mu.Unlock()
	m.tell(events)
}

// LoseAnswers lets the next n changes happen and yet fail with ErrUnavailable, as when an answer is lost.
func (m *Memory) LoseAnswers(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loseAnswers = n
}

// PlantLeader overwrites a shard's leader record, whatever stands there.
func (m *Memory) PlantLeader(r LeaderRecord) {
	m.mu.Lock()
	m.leaders[r.Shard] = memoryLeader{record: r}
	m.mu.Unlock()
	m.tell([]memoryEvent{{leader: &r}})
}

// DropMap removes the cluster's identity, shards and map, as if the control plane had been wiped.
func (m *Memory) DropMap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seed = nil
	clear(m.shards)
}

// Plane is a process's view of m.
func (m *Memory) Plane() *MemoryPlane { return &MemoryPlane{m: m} }

// memoryEvent is one thing a watcher is told; one of them is set.
type memoryEvent struct {
	leader  *LeaderRecord
	setting *Setting
	// wanted and actual are the ids of shards; stores says that any store has changed.
	wanted uint32
	actual uint32
	stores bool
}

// everythingLocked is what a watcher hears when it starts, in a fixed order.
func (m *Memory) everythingLocked() []memoryEvent {
	var events []memoryEvent
	for _, shard := range slices.Sorted(maps.Keys(m.leaders)) {
		r := m.leaders[shard].record
		events = append(events, memoryEvent{leader: &r})
	}
	for _, kind := range SettingKinds {
		for _, name := range slices.Sorted(maps.Keys(m.settings[kind])) {
			s := m.settings[kind][name].clone()
			events = append(events, memoryEvent{setting: &s})
		}
	}
	for _, shard := range slices.Sorted(maps.Keys(m.shards)) {
		events = append(events, memoryEvent{wanted: shard})
	}
	for _, shard := range slices.Sorted(maps.Keys(m.actual)) {
		events = append(events, memoryEvent{actual: shard})
	}
	if len(m.nodes) > 0 {
		events = append(events, memoryEvent{stores: true})
	}
	return events
}

// tell calls the watchers, without m's lock. Concurrent changes may be told in either order, so that for each event what
// stands by then is told, as a watch that reads again would.
func (m *Memory) tell(events []memoryEvent) {
	m.mu.Lock()
	if m.unavailable {
		m.mu.Unlock()
		return
	}
	watchers := make([]*memoryWatcher, 0, len(m.watchers))
	for w := range m.watchers {
		watchers = append(watchers, w)
	}
	m.mu.Unlock()
	for _, w := range watchers {
		m.tellOne(w, events)
	}
}

func (m *Memory) tellOne(w *memoryWatcher, events []memoryEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		switch {
		case e.leader != nil && w.leader != nil:
			w.leader(m.leaderNow(e.leader.Shard))
		case e.setting != nil && w.setting != nil:
			if s, ok := m.settingNow(e.setting.Kind(), e.setting.Name()); ok {
				w.setting(s)
			}
		case e.wanted != 0 && w.wanted != nil:
			if s, ok := m.shardNow(e.wanted); ok {
				w.wanted(s)
			}
		case e.actual != 0 && w.actual != nil:
			if a, ok := m.actualNow(e.actual); ok {
				w.actual(a)
			}
		case e.stores && w.stores != nil:
			w.stores()
		}
	}
}

func (m *Memory) leaderNow(shard uint32) LeaderRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l, ok := m.leaders[shard]; ok {
		return l.record
	}
	return LeaderRecord{Shard: shard}
}

func (m *Memory) settingNow(kind SettingKind, name string) (Setting, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.settings[kind][name]
	return s.clone(), ok
}

// watch registers w, tells it everything and keeps it until ctx ends.
func (m *Memory) watch(ctx context.Context, w *memoryWatcher) error {
	m.mu.Lock()
	m.watchers[w] = struct{}{}
	events, silent := m.everythingLocked(), m.unavailable
	m.mu.Unlock()
	if !silent {
		m.tellOne(w, events)
	}
	<-ctx.Done()
	m.mu.Lock()
	delete(m.watchers, w)
	m.mu.Unlock()
	return ctx.Err()
}

// changedLocked ends a change: its error is the answer when that is to get lost.
func (m *Memory) changedLocked() error {
	if m.loseAnswers > 0 {
		m.loseAnswers--
		return fmt.Errorf("answer lost: %w", ErrUnavailable)
	}
	return nil
}
