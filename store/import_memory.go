package store

import (
	"bytes"
	"errors"
	"fmt"
)

// memoryImport keeps its rows as the tree that will be merged in.
type memoryImport struct {
	engine *Memory
	order  importOrder
	rows   *node
	// err is the first error, for good; errImportOver after the end.
	err error
}

// NewImport begins an import of the rows in [start, end), both of which are given.
func (m *Memory) NewImport(start, end []byte) (Import, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return nil, fmt.Errorf("begin import: %w", m.failed)
	}
	order, err := newImportOrder(start, end)
	if err != nil {
		return nil, fmt.Errorf("begin import: %w", err)
	}
	m.imports++
	return &memoryImport{engine: m, order: order}, nil
}

func (i *memoryImport) Set(key, value []byte) error {
	if i.err == nil {
		i.err = i.set(key, value)
	}
	if i.err != nil {
		return fmt.Errorf("import row: %w", i.err)
	}
	return nil
}

func (i *memoryImport) set(key, value []byte) error {
	if err := i.engine.failure(); err != nil {
		return err
	}
	if err := i.order.next(key); err != nil {
		return err
	}
	key = bytes.Clone(key)
	i.rows = i.rows.set(key, append([]byte{}, value...), priorityOf(key))
	return nil
}

func (i *memoryImport) Abort() error {
	if !errors.Is(i.err, errImportOver) {
		i.rows, i.err = nil, errImportOver
	}
	return nil
}

// Install puts the import's rows in the place of the span's, and makes it and all commits before it durable.
func (m *Memory) Install(im Import) error {
	i := im.(*memoryImport)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed != nil {
		return fmt.Errorf("install rows: %w", m.failed)
	}
	if i.err != nil {
		return fmt.Errorf("install rows: %w", i.err)
	}
	i.err = errImportOver
	span := m.replaced.begin(i.order.start, i.order.end)
	defer m.replaced.ended(span)
	before, rest := m.visible.split(i.order.start)
	_, after := rest.split(i.order.end)
	m.visible = merge(merge(before, i.rows), after)
	i.rows = nil
	m.commits++
	m.synced, m.unsynced = m.visible, nil
	m.installs++
	return nil
}

// failure returns the engine's error, if it has one.
func (m *Memory) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}
