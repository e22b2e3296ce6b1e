package store

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
)

// Memory is an Engine without a disk, the deterministic twin of Pebble for tests and simulation. It keeps the image of
// the rows after each commit that no sync has covered yet, so that Crash can return any of them. It has no goroutine. What its
// methods do is said at Engine.
type Memory struct {
	mu sync.Mutex
	// visible is the newest image, synced what surely survives, unsynced the images of the commits after it, oldest first.
	visible  *node
	synced   *node
	unsynced []*node
	// commits counts all commits; the image of commit n is unsynced[n-1-(commits-len(unsynced))].
	commits           uint64
	failed            error
	open              int
	gets              uint64
	iters             uint64
	imports, installs uint64
	replaced          replaced
}

// OpenMemory returns an empty engine.
func OpenMemory() *Memory { return &Memory{} }

// Crash returns an engine with the rows that a restart would find if the machine stopped now: those of the commits that
// were waited for, and of the first keep commits after them, 0 <= keep <= Unsynced(). The receiver is left as it is.
func (m *Memory) Crash(keep int) *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	image := m.synced
	if keep > 0 {
		image = m.unsynced[keep-1]
	}
	return &Memory{visible: image, synced: image}
}

// Unsynced returns how many commits a crash may lose.
func (m *Memory) Unsynced() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.unsynced)
}

// Fail makes the engine failed, as an I/O error does to Pebble: every later call, waits included, answers err.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = err
	}
}

func (m *Memory) Get(key []byte) (value []byte, ok bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	if m.failed != nil {
		return nil, false, fmt.Errorf("get row: %w", m.failed)
	}
	value, ok = m.visible.get(key)
	return bytes.Clone(value), ok, nil
}

func (m *Memory) NewIter(start, end []byte) (Iterator, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newIter(m.visible, start, end)
}

func (m *Memory) newIter(root *node, start, end []byte) (Iterator, error) {
	m.iters++
	if m.failed != nil {
		return nil, fmt.Errorf("open iterator: %w", m.failed)
	}
	m.open++
	return &memoryIter{treapIter{root: root, start: bytes.Clone(start), end: bytes.Clone(end)}, m}, nil
}

func (m *Memory) NewSnapshot() (Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return nil, fmt.Errorf("open snapshot: %w", m.failed)
	}
	m.open++
	return &memorySnapshot{m, m.visible, m.replaced.number.Load()}, nil
}

func (m *Memory) NewBatch() Batch { return &memoryBatch{} }

func (m *Memory) Commit(b Batch, sync bool) (wait func() error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return nil, fmt.Errorf("commit batch: %w", m.failed)
	}
	for _, w := range b.(*memoryBatch).writes {
		switch w.kind {
		case writeSet:
			m.visible = m.visible.set(w.key, w.value, priorityOf(w.key))
		case writeDelete:
			m.visible = m.visible.remove(w.key)
		case writeDeleteRange:
			m.visible = m.visible.removeRange(w.key, w.value)
		}
	}
	m.commits++
	m.unsynced = append(m.unsynced, m.visible)
	if !sync {
		return nil, nil
	}
	number := m.commits
	return func() error { return m.sync(number) }, nil
}

// sync makes the commits up to number durable.
func (m *Memory) sync(number uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return fmt.Errorf("sync batch: %w", m.failed)
	}
	first := m.commits - uint64(len(m.unsynced)) + 1
	if number < first {
		return nil
	}
	covered := number - first + 1
	m.synced = m.unsynced[covered-1]
	m.unsynced = append([]*node(nil), m.unsynced[covered:]...)
	return nil
}

func (m *Memory) Metrics() Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Metrics{Gets: m.gets, Iters: m.iters, Imports: m.imports, Installs: m.installs}
}

// Close ends the engine. Like Pebble's it reports iterators and snapshots that were left open.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(m.failed, ErrClosed) {
		return fmt.Errorf("close store: %w", ErrClosed)
	}
	if m.failed == nil {
		m.failed = ErrClosed
	}
	if m.open > 0 {
		return fmt.Errorf("close store: %d iterators or snapshots left open", m.open)
	}
	return nil
}

func (m *Memory) closed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	return nil
}

// memoryIter is a treapIter that its engine counts.
type memoryIter struct {
	treapIter
	engine *Memory
}

func (i *memoryIter) Error() error { return nil }
func (i *memoryIter) Close() error { return i.engine.closed() }

type memorySnapshot struct {
	engine *Memory
	root   *node
	// number is how many installs there were when it was made.
	number uint64
}

func (s *memorySnapshot) Get(key []byte) (value []byte, ok bool, err error) {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	s.engine.gets++
	if s.engine.failed != nil {
		return nil, false, fmt.Errorf("get row: %w", s.engine.failed)
	}
	if err := s.engine.replaced.check(s.number, key, append(bytes.Clone(key), 0)); err != nil {
		return nil, false, fmt.Errorf("get row: %w", err)
	}
	value, ok = s.root.get(key)
	return bytes.Clone(value), ok, nil
}

func (s *memorySnapshot) NewIter(start, end []byte) (Iterator, error) {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	if err := s.engine.replaced.check(s.number, start, end); err != nil {
		return nil, fmt.Errorf("open iterator: %w", err)
	}
	return s.engine.newIter(s.root, start, end)
}

func (s *memorySnapshot) Close() error { return s.engine.closed() }

type writeKind uint8

const (
	writeSet writeKind = iota
	writeDelete
	writeDeleteRange
)

// write is one write of a batch; value is the end of a range delete.
type write struct {
	kind       writeKind
	key, value []byte
}

type memoryBatch struct{ writes []write }

func (b *memoryBatch) Set(key, value []byte) {
	// Never nil: an empty value is a value.
	b.writes = append(b.writes, write{writeSet, bytes.Clone(key), append([]byte{}, value...)})
}

func (b *memoryBatch) Delete(key []byte) {
	b.writes = append(b.writes, write{writeDelete, bytes.Clone(key), nil})
}

func (b *memoryBatch) DeleteRange(start, end []byte) {
	if bytes.Compare(start, end) < 0 {
		b.writes = append(b.writes, write{writeDeleteRange, bytes.Clone(start), bytes.Clone(end)})
	}
}

func (b *memoryBatch) Len() int { return len(b.writes) }
