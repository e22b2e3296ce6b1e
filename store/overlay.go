package store

import (
	"bytes"
	"slices"
	"unsafe"
)

// overlay is a shard's writes that are not committed yet. Points stand in a map for Get, and in key order as far as a
// scan or the flush has asked for it.
type overlay struct {
	rows []pending
	// index maps keys to rows; it shares the keys' memory.
	index map[string]int32
	// order lists rows by key; the first sorted of them are in order, the others in order of arrival.
	order  []int32
	sorted int
	spare  []int32
	// spans are the range deletes. They shadow the committed rows; rows written before them are absent instead.
	spans []span
}

// pending is a written row. A state of absent is as if the row had not been written: a later range delete covers it.
type pending struct {
	key, value []byte
	state      rowState
}

type rowState uint8

const (
	absent rowState = iota
	present
	deleted
)

// span is a range of a shard's keys, [start, end); a nil end is the end of the shard.
type span struct{ start, end []byte }

func (s span) contains(key []byte) bool {
	return bytes.Compare(key, s.start) >= 0 && (s.end == nil || bytes.Compare(key, s.end) < 0)
}

// overlayKept is how many rows' space an overlay keeps from turn to turn.
const overlayKept = 4096

func (o *overlay) empty() bool { return len(o.rows) == 0 && len(o.spans) == 0 }

// write records a row's new state and takes ownership of key and value.
func (o *overlay) write(key, value []byte, state rowState) {
	if i, ok := o.index[string(key)]; ok {
		o.rows[i].value, o.rows[i].state = value, state
		return
	}
	if o.index == nil {
		o.index = make(map[string]int32)
	}
	i := int32(len(o.rows))
	o.rows = append(o.rows, pending{key, value, state})
	o.order = append(o.order, i)
	o.index[unsafe.String(unsafe.SliceData(key), len(key))] = i
}

// deleteRange removes the rows written so far in the span and shadows the committed ones.
func (o *overlay) deleteRange(s span) {
	o.sort()
	first, last := o.bounds(s)
	for _, i := range o.order[first:last] {
		o.rows[i].value, o.rows[i].state = nil, absent
	}
	o.spans = append(o.spans, s)
}

// get returns what the overlay says of a row: present, deleted, or absent if it says nothing.
func (o *overlay) get(key []byte) (value []byte, state rowState) {
	if i, ok := o.index[string(key)]; ok && o.rows[i].state != absent {
		return o.rows[i].value, o.rows[i].state
	}
	if shadowed(o.spans, key) {
		return nil, deleted
	}
	return nil, absent
}

// appendRows appends the rows in the span to dst, in key order: a copy that later writes leave alone.
func (o *overlay) appendRows(dst []pending, s span) []pending {
	o.sort()
	first, last := o.bounds(s)
	for _, i := range o.order[first:last] {
		if o.rows[i].state != absent {
			dst = append(dst, o.rows[i])
		}
	}
	return dst
}

// reset forgets all writes.
func (o *overlay) reset() {
	if len(o.rows) > overlayKept {
		*o = overlay{}
		return
	}
	clear(o.rows)
	clear(o.index)
	clear(o.spans)
	o.rows, o.order, o.sorted, o.spans = o.rows[:0], o.order[:0], 0, o.spans[:0]
}

// bounds returns the part of order that lies in the span. Order must be sorted.
func (o *overlay) bounds(s span) (first, last int) {
	first = o.search(s.start)
	if s.end == nil {
		return first, len(o.order)
	}
	return first, max(first, o.search(s.end))
}

// search returns the place of the first row at or after key.
func (o *overlay) search(key []byte) int {
	i, _ := slices.BinarySearchFunc(o.order, key, func(i int32, key []byte) int { return bytes.Compare(o.rows[i].key, key) })
	return i
}

// sort brings order up to date: what arrived since is sorted by itself and merged in.
func (o *overlay) sort() {
	if o.sorted == len(o.order) {
		return
	}
	arrived := o.order[o.sorted:]
	slices.SortFunc(arrived, func(a, b int32) int { return bytes.Compare(o.rows[a].key, o.rows[b].key) })
	if o.sorted > 0 && o.less(arrived[0], o.order[o.sorted-1]) {
		o.merge(arrived)
	}
	o.sorted = len(o.order)
}

// merge merges the arrived tail of order into its sorted head, from the back.
func (o *overlay) merge(arrived []int32) {
	o.spare = append(o.spare[:0], arrived...)
	head, tail := o.sorted-1, len(o.spare)-1
	for to := len(o.order) - 1; tail >= 0; to-- {
		if head >= 0 && o.less(o.spare[tail], o.order[head]) {
			o.order[to] = o.order[head]
			head--
			continue
		}
		o.order[to] = o.spare[tail]
		tail--
	}
}

func (o *overlay) less(a, b int32) bool { return bytes.Compare(o.rows[a].key, o.rows[b].key) < 0 }

func shadowed(spans []span, key []byte) bool {
	for _, s := range spans {
		if s.contains(key) {
			return true
		}
	}
	return false
}
