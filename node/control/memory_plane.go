package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
)

// MemoryPlane is one process's view of a Memory; it implements Plane.
type MemoryPlane struct {
	m     *Memory
	beats atomic.Uint64
	// Guarded by m.mu: set by Register.
	store Store
	lease uint64
	// beatsAtLapse: the lease comes back with the first beat after.
	beatsAtLapse uint64
}

var _ Plane = (*MemoryPlane)(nil)

// Lapse ends the store's lease: its leader records go, and its term as the controller. The first AcquireLeaders or Campaign
// after the next beat gets a new one.
func (p *MemoryPlane) Lapse() {
	m := p.m
	m.mu.Lock()
	var events []memoryEvent
	for _, shard := range slices.Sorted(maps.Keys(m.leaders)) {
		if p.lease != 0 && m.leaders[shard].lease == p.lease {
			delete(m.leaders, shard)
			events = append(events, memoryEvent{leader: &LeaderRecord{Shard: shard}})
		}
	}
	p.lease, p.beatsAtLapse = 0, p.beats.Load()
	if m.officer == p {
		m.vacateLocked()
	}
	m.mu.Unlock()
	m.tell(append(events, memoryEvent{stores: true}))
}

// Beats counts the calls of Beat, for tests of the loop that must call it.
func (p *MemoryPlane) Beats() uint64 { return p.beats.Load() }

func (p *MemoryPlane) Beat() { p.beats.Add(1) }

// enterLocked checks what every request checks first.
func (p *MemoryPlane) enterLocked(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if p.m.unavailable {
		return ErrUnavailable
	}
	return nil
}

func (p *MemoryPlane) Bootstrap(ctx context.Context, seed Seed) error {
	if err := seed.validate(); err != nil {
		return err
	}
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return fmt.Errorf("bootstrap cluster: %w", err)
	}
	if m.seed == nil {
		m.seed = &seed
		for _, s := range seed.firstMap().Shards {
			m.shards[s.ID] = s
		}
		return m.changedLocked()
	}
	if m.seed.ClusterID != seed.ClusterID {
		return fmt.Errorf("bootstrap cluster %s: %w: %s", seed.ClusterID, ErrOtherCluster, m.seed.ClusterID)
	}
	return nil
}

func (p *MemoryPlane) Register(ctx context.Context, store Store) (Registration, error) {
	if err := store.validate(); err != nil {
		return Registration{}, err
	}
	m := p.m
	m.mu.Lock()
	registration, err := p.registerLocked(ctx, store)
	m.mu.Unlock()
	m.tell([]memoryEvent{{stores: true}})
	return registration, err
}

func (p *MemoryPlane) registerLocked(ctx context.Context, store Store) (Registration, error) {
	m := p.m
	if err := p.enterLocked(ctx); err != nil {
		return Registration{}, fmt.Errorf("register store %s: %w", store.UUID, err)
	}
	if m.seed != nil && m.seed.ClusterID != store.ClusterID {
		return Registration{}, fmt.Errorf("register store %s of cluster %s: %w: %s",
			store.UUID, store.ClusterID, ErrOtherCluster, m.seed.ClusterID)
	}
	node, known := m.nodes[store.UUID]
	before := node.Boots
	if known {
		if err := checkReturn(store, node.StoreRecord); err != nil {
			return Registration{}, fmt.Errorf("register store %s: %w", store.UUID, err)
		}
	} else {
		if err := checkLevel(store, m.storesLocked()); err != nil {
			return Registration{}, fmt.Errorf("register store %s: %w", store.UUID, err)
		}
		m.lastNode++
		node.NodeID, node.UUID, node.State = m.lastNode, store.UUID, StoreUp
	}
	node.Name, node.Addr, node.Boots, node.BootID, node.Level = store.Name, store.Addr, store.Boots, store.BootID, store.Level
	node.plane = p
	m.nodes[store.UUID] = node
	p.store = store
	p.grantLocked()
	return Registration{NodeID: node.NodeID, Boots: before}, m.changedLocked()
}

// checkReturn refuses a store that was declared gone, and one whose disk is not the newest that it has had.
func checkReturn(store Store, known StoreRecord) error {
	if known.State == StoreGone {
		return ErrStoreGone
	}
	return checkBoots(store, known.Boots, known.BootID)
}

// checkBoots refuses a store whose disk knows of fewer starts than were recorded. An equal number is the same start asking
// again, after an answer was lost, or else a copy of the disk.
func checkBoots(store Store, boots uint64, bootID string) error {
	if boots > store.Boots || boots == store.Boots && bootID != store.BootID {
		return fmt.Errorf("%w: its disk counts %d starts, the control plane knows of %d", ErrRolledBack, store.Boots, boots)
	}
	return nil
}

func (p *MemoryPlane) grantLocked() {
	p.m.lastLease++
	p.lease = p.m.lastLease
}

// leaseLocked says whether the store's lease is held, and grants it again if there was a beat since it lapsed.
func (p *MemoryPlane) leaseLocked() error {
	switch {
	case p.store.UUID == "":
		return ErrNotRegistered
	case p.lease != 0:
		return nil
	case p.beats.Load() == p.beatsAtLapse:
		return ErrLapsed
	}
	p.grantLocked()
	return nil
}

func (p *MemoryPlane) Map(ctx context.Context) (*Map, error) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return nil, fmt.Errorf("read slot map: %w", err)
	}
	if m.seed == nil {
		return nil, fmt.Errorf("read slot map: %w", ErrNoMap)
	}
	standing := m.seed.firstMap()
	for i, s := range standing.Shards {
		standing.Shards[i] = m.shards[s.ID].clone()
	}
	return standing, nil
}

// firstMap spreads the slots over the shards in runs of equal length, and the replicas over the stores: each shard begins at
// another store, and every other round goes backwards, so that the shards of a store that is lost do not all go to one.
func (s Seed) firstMap() *Map {
	m := &Map{ClusterID: s.ClusterID, Version: 1}
	for slot := range m.Slots {
		m.Slots[slot] = uint32(slot*s.Shards/Slots) + 1
	}
	n := len(s.Stores)
	copies := min(n, MaxReplicas)
	for i := range s.Shards {
		shard := Shard{ID: uint32(i) + 1, Gen: 1, NextRID: uint64(copies) + 1}
		for k := range copies {
			at := (i + k) % n
			if i/n%2 == 1 {
				at = (i - k + n) % n
			}
			shard.Replicas = append(shard.Replicas, Replica{RID: uint64(k) + 1, Store: s.Stores[at]})
		}
		m.Shards = append(m.Shards, shard)
	}
	return m
}

func (p *MemoryPlane) AcquireLeaders(ctx context.Context, claims []LeaderClaim) ([]LeaderGrant, error) {
	m := p.m
	m.mu.Lock()
	if err := p.enterLocked(ctx); err != nil {
		m.mu.Unlock()
		return nil, fmt.Errorf("acquire leader leases: %w", err)
	}
	if err := p.leaseLocked(); err != nil {
		m.mu.Unlock()
		return nil, fmt.Errorf("acquire leader leases: %w", err)
	}
	grants := make([]LeaderGrant, 0, len(claims))
	var events []memoryEvent
	for _, c := range claims {
		g, changed := p.acquireLocked(c)
		grants = append(grants, g)
		if changed {
			events = append(events, memoryEvent{leader: &LeaderRecord{Shard: c.Shard}})
		}
	}
	err := m.changedLocked()
	m.mu.Unlock()
	m.tell(events)
	if err != nil {
		return nil, fmt.Errorf("acquire leader leases: %w", err)
	}
	return grants, nil
}

func (p *MemoryPlane) acquireLocked(c LeaderClaim) (g LeaderGrant, changed bool) {
	own := LeaderRecord{Shard: c.Shard, Epoch: c.Epoch, Store: p.store.UUID, Addr: p.store.Addr}
	standing := p.m.leaders[c.Shard].record
	ours := standing.Epoch == c.Epoch && standing.Store == own.Store
	if standing.Epoch >= c.Epoch && !ours {
		return LeaderGrant{LeaderClaim: c, Standing: standing}, false
	}
	p.m.leaders[c.Shard] = memoryLeader{record: own, lease: p.lease}
	return LeaderGrant{LeaderClaim: c, Held: true}, standing != own
}

func (p *MemoryPlane) WatchLeaders(ctx context.Context, fn func(LeaderRecord)) error {
	return p.m.watch(ctx, &memoryWatcher{leader: fn})
}

func (p *MemoryPlane) PutSetting(ctx context.Context, s Setting, expected uint64) (Setting, error) {
	if err := s.validate(); err != nil {
		return Setting{}, err
	}
	m := p.m
	m.mu.Lock()
	next, err := p.putLocked(ctx, s, expected)
	if err != nil {
		m.mu.Unlock()
		return Setting{}, fmt.Errorf("put %s %q: %w", s.Kind(), s.Name(), err)
	}
	err = m.changedLocked()
	m.mu.Unlock()
	m.tell([]memoryEvent{{setting: &next}})
	if err != nil {
		return Setting{}, fmt.Errorf("put %s %q: %w", s.Kind(), s.Name(), err)
	}
	return next.clone(), nil
}

func (p *MemoryPlane) putLocked(ctx context.Context, s Setting, expected uint64) (Setting, error) {
	if err := p.enterLocked(ctx); err != nil {
		return Setting{}, err
	}
	all := p.m.settings[s.Kind()]
	standing, ok := all[s.Name()]
	next, err := successor(standing, ok, s, expected)
	if err != nil {
		return Setting{}, err
	}
	if !ok && len(all) >= MaxSettings {
		return Setting{}, fmt.Errorf("%w: %d", ErrTooMany, len(all))
	}
	all[s.Name()] = next
	return next, nil
}

func (p *MemoryPlane) GetSetting(ctx context.Context, kind SettingKind, name string) (Setting, bool, error) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return Setting{}, false, fmt.Errorf("get %s %q: %w", kind, name, err)
	}
	s, ok := m.settings[kind][name]
	return s.clone(), ok, nil
}

func (p *MemoryPlane) ListSettings(ctx context.Context, kind SettingKind) ([]Setting, error) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return nil, fmt.Errorf("list settings of kind %s: %w", kind, err)
	}
	var list []Setting
	for _, name := range slices.Sorted(maps.Keys(m.settings[kind])) {
		list = append(list, m.settings[kind][name].clone())
	}
	return list, nil
}

func (p *MemoryPlane) WatchSettings(ctx context.Context, fn func(Setting)) error {
	return p.m.watch(ctx, &memoryWatcher{setting: fn})
}

func (p *MemoryPlane) Health(ctx context.Context) Health {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.enterLocked(ctx) != nil {
		return Health{}
	}
	return Health{Quorum: true, Leader: "memory", LeaseLive: p.lease != 0}
}

// Run only waits: leases in memory lapse when Lapse says so.
func (p *MemoryPlane) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
