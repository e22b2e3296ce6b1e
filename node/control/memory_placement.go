package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
)

func (m *Memory) shardNow(id uint32) (Shard, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.shards[id]
	return s.clone(), ok
}

func (m *Memory) actualNow(id uint32) (Actual, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.actual[id]
	return a.clone(), ok
}

// vacateLocked ends the controller's term, if there is one.
func (m *Memory) vacateLocked() {
	if m.office == nil {
		return
	}
	m.office.end()
	m.office, m.officer = nil, nil
	close(m.vacated)
	m.vacated = make(chan struct{})
}

func (p *MemoryPlane) Stores(ctx context.Context) ([]StoreRecord, error) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return nil, fmt.Errorf("list stores: %w", err)
	}
	return m.storesLocked(), nil
}

func (m *Memory) storesLocked() (stores []StoreRecord) {
	for _, node := range m.nodes {
		node.Live = node.plane.lease != 0
		stores = append(stores, node.StoreRecord)
	}
	slices.SortFunc(stores, func(a, b StoreRecord) int { return cmp.Compare(a.NodeID, b.NodeID) })
	return stores
}

func (p *MemoryPlane) Placement(ctx context.Context) (View, error) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return View{}, fmt.Errorf("read placement: %w", err)
	}
	v := View{Actual: map[uint32]Actual{}, Leaders: map[uint32]string{}}
	for _, s := range m.storesLocked() {
		v.Stores = append(v.Stores, StoreView{StoreRecord: s})
	}
	for _, id := range slices.Sorted(maps.Keys(m.shards)) {
		v.Wanted = append(v.Wanted, m.shards[id].clone())
	}
	for id, a := range m.actual {
		v.Actual[id] = a.clone()
	}
	for id, l := range m.leaders {
		v.Leaders[id] = l.record.Store
	}
	return v, nil
}

func (p *MemoryPlane) WatchStores(ctx context.Context, fn func()) error {
	return p.m.watch(ctx, &memoryWatcher{stores: fn})
}

func (p *MemoryPlane) SetStoreState(ctx context.Context, term *Term, store string, state StoreState) error {
	if err := state.validate(); err != nil {
		return fmt.Errorf("set state of store %s: %w", store, err)
	}
	m := p.m
	m.mu.Lock()
	err := p.setStoreStateLocked(ctx, term, store, state)
	m.mu.Unlock()
	m.tell([]memoryEvent{{stores: true}})
	if err != nil {
		return fmt.Errorf("set state of store %s: %w", store, err)
	}
	return nil
}

func (p *MemoryPlane) setStoreStateLocked(ctx context.Context, term *Term, store string, state StoreState) error {
	m := p.m
	if err := p.enterLocked(ctx); err != nil {
		return err
	}
	node, ok := m.nodes[store]
	switch {
	case !ok:
		return ErrNoStore
	case term != nil && term != m.office:
		return ErrDeposed
	case node.State == StoreGone && state != StoreGone:
		return ErrStoreGone
	}
	node.State = state
	m.nodes[store] = node
	return m.changedLocked()
}

func (p *MemoryPlane) WatchShards(ctx context.Context, fn func(Shard)) error {
	return p.m.watch(ctx, &memoryWatcher{wanted: fn})
}

func (p *MemoryPlane) ChangeShard(ctx context.Context, term *Term, next Shard, by Basis) error {
	m := p.m
	m.mu.Lock()
	err := p.changeShardLocked(ctx, term, next.clone(), by)
	m.mu.Unlock()
	m.tell([]memoryEvent{{wanted: next.ID}})
	if err != nil {
		return fmt.Errorf("change shard %d: %w", next.ID, err)
	}
	return nil
}

func (p *MemoryPlane) changeShardLocked(ctx context.Context, term *Term, next Shard, by Basis) error {
	m := p.m
	if err := p.enterLocked(ctx); err != nil {
		return err
	}
	standing, ok := m.shards[next.ID]
	if !ok {
		return ErrNoShard
	}
	if done, err := successorShard(standing, m.actual[next.ID], next, by); done || err != nil {
		return err
	}
	if term == nil || term != m.office {
		return ErrDeposed
	}
	m.shards[next.ID] = next
	return m.changedLocked()
}

func (p *MemoryPlane) PublishShards(ctx context.Context, actuals []Actual) ([]bool, error) {
	m := p.m
	m.mu.Lock()
	if err := p.enterLocked(ctx); err != nil {
		m.mu.Unlock()
		return nil, fmt.Errorf("publish shards: %w", err)
	}
	stand := make([]bool, 0, len(actuals))
	var events []memoryEvent
	for _, a := range actuals {
		standing, ok := m.actual[a.Shard]
		stands := m.shards[a.Shard].Gen == a.Gen && (!ok || a.newerThan(standing))
		if stands {
			m.actual[a.Shard] = a.clone()
			events = append(events, memoryEvent{actual: a.Shard})
		}
		stand = append(stand, stands)
	}
	err := m.changedLocked()
	m.mu.Unlock()
	m.tell(events)
	if err != nil {
		return nil, fmt.Errorf("publish shards: %w", err)
	}
	return stand, nil
}

func (p *MemoryPlane) WatchActual(ctx context.Context, fn func(Actual)) error {
	return p.m.watch(ctx, &memoryWatcher{actual: fn})
}

func (p *MemoryPlane) Campaign(ctx context.Context) (*Term, error) {
	for {
		term, vacated, err := p.tryCampaign(ctx)
		if err != nil {
			return nil, fmt.Errorf("campaign for controller: %w", err)
		}
		if term != nil {
			return term, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("campaign for controller: %w", unavailable(ctx.Err()))
		case <-vacated:
		}
	}
}

// TryCampaign is Campaign for a simulation in one goroutine: it does not wait. A nil term: another store has it.
func (p *MemoryPlane) TryCampaign(ctx context.Context) (*Term, error) {
	term, _, err := p.tryCampaign(ctx)
	return term, err
}

// tryCampaign takes the office if it is free; otherwise vacated tells when it is worth another try.
func (p *MemoryPlane) tryCampaign(ctx context.Context) (term *Term, vacated <-chan struct{}, err error) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return nil, nil, err
	}
	if err := p.leaseLocked(); err != nil {
		return nil, nil, err
	}
	switch {
	case m.officer == p:
		return m.office, nil, nil
	case m.officer != nil && m.officer.store.UUID == p.store.UUID:
		m.vacateLocked() // of an earlier start of this store
	case m.officer != nil:
		return nil, m.vacated, nil
	}
	m.lastTerm++
	m.office, m.officer = newTerm(m.lastTerm), p
	return m.office, nil, m.changedLocked()
}

func (p *MemoryPlane) Resign(ctx context.Context, term *Term) error {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.enterLocked(ctx); err != nil {
		return fmt.Errorf("resign as controller: %w", err)
	}
	if m.office == term {
		m.vacateLocked()
	}
	return m.changedLocked()
}
