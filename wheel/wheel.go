// Package wheel is a hierarchical timing wheel: it says which of many values are due at an instant, and when to ask again.
//
// It follows scheme 7 of G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels: Data Structures for the
// Efficient Implementation of a Timer Facility" (SOSP 1987): a hierarchy of arrays, each turning 64 times slower than the
// one below, so that adding, cancelling and moving cost O(1) and an entry is touched at most once per level on its way
// to its instant. Eleven levels span all of int64; a bitmap per level lets time jump over what is empty.
//
// It is not a clock and owns no goroutine: time is an argument, in milliseconds (any unit would do), and its owner sleeps
// until Next and then calls Advance. It holds no durable truth: package node/dispatch rebuilds it from rows at takeover.
// A Wheel is not safe for concurrent use.
package wheel

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

const (
	digitBits = 6
	slotCount = 1 << digitBits
	// levelCount digits of six bits cover 66 bits, so that no instant is out of range.
	levelCount = 11
	// overdueSlot holds what was added with an instant before the wheel's own time.
	overdueSlot = levelCount * slotCount

	chunkBits = 10
	chunkSize = 1 << chunkBits
)

// Handle names an entry from Add until it fires or is cancelled. The zero Handle names none.
type Handle uint64

// Wheel holds values of type T, each until its instant. The zero Wheel is empty and stands at instant 0; New saves the
// entries of a wheel that starts later the way down from the top level.
type Wheel[T any] struct {
	// now is the last instant reached. Each entry with at >= now lies at the level of the highest digit in which it
	// differs from now, so that all entries of one instant share a slot, in the order of insertion.
	now      int64
	len      int
	occupied [levelCount]uint64
	slots    [overdueSlot + 1]slot
	// unsorted says that the overdue slot is not in time order.
	unsorted bool

	// Entries live in chunks that never move and are reused: 24 bytes each and the value.
	chunks  []*[chunkSize]entry[T]
	free    uint32
	scratch []uint32
}

// slot is a list of entries. earliest is never later than their first instant, and exact unless entries left it early.
type slot struct {
	head, tail uint32
	earliest   int64
}

// entry is a link of its slot's list, or of the free list. Its number is its place in chunks plus one; 0 is none.
type entry[T any] struct {
	at         int64
	prev, next uint32
	// generation tells a handle of this entry from those of earlier ones in the same place.
	generation uint32
	slot       uint16
	live       bool
	value      T
}

// New returns an empty wheel that stands at now.
func New[T any](now int64) *Wheel[T] { return &Wheel[T]{now: now} }

// Len returns the number of entries.
func (w *Wheel[T]) Len() int { return w.len }

// Add puts v in to be fired at the instant at. What is due already is fired by the next Advance.
func (w *Wheel[T]) Add(at int64, v T) Handle {
	id := w.allocate()
	e := w.entry(id)
	e.at, e.value, e.live = at, v, true
	w.link(id, e)
	w.len++
	return Handle(uint64(e.generation)<<32 | uint64(id))
}

// Cancel removes an entry. It returns false if it has fired or was cancelled.
func (w *Wheel[T]) Cancel(h Handle) bool {
	id, e := w.find(h)
	if e == nil {
		return false
	}
	w.unlink(e)
	w.release(id, e)
	return true
}

// Move gives an entry another instant; among those of that instant it is the last. It returns false if the entry has
// fired or was cancelled.
func (w *Wheel[T]) Move(h Handle, at int64) bool {
	id, e := w.find(h)
	if e == nil {
		return false
	}
	w.unlink(e)
	e.at = at
	w.link(id, e)
	return true
}

// Next returns an instant no later than the earliest entry's; ok is false if there is none. It is exact unless the entry
// that was the earliest of its coarse slot has been cancelled or moved since. It is always later than the last Advance's
// now as far as nothing was added since, so that an owner that sleeps until Next never spins.
func (w *Wheel[T]) Next() (at int64, ok bool) {
	if w.slots[overdueSlot].head != 0 {
		return w.slots[overdueSlot].earliest, true
	}
	level, digit, ok := w.first()
	if !ok {
		return 0, false
	}
	return w.slots[level*slotCount+digit].earliest, true
}

// Advance calls fn for every entry with at <= now, in order of time and, at one instant, of insertion. It returns how
// many it fired. fn may add, cancel and move; what it adds that is due is fired by this same call. A now before an
// earlier call's fires only what is due by then: time in the wheel does not go back, and nothing fires early.
func (w *Wheel[T]) Advance(now int64, fn func(at int64, v T)) int {
	fired := 0
	for {
		if w.slots[overdueSlot].head != 0 {
			fired += w.fireOverdue(now, fn)
		}
		level, digit, ok := w.first()
		if !ok {
			break
		}
		start := w.start(level, digit)
		if start > now {
			break
		}
		w.now = start
		if level > 0 {
			w.cascade(level, digit)
			continue
		}
		id := w.slots[digit].head
		w.fire(id, w.entry(id), fn)
		fired++
	}
	// No slot begins in (w.now, now]: every entry keeps its level when time jumps there.
	w.now = max(w.now, now)
	return fired
}

// fireOverdue fires the entries of the overdue slot up to now, in time order.
func (w *Wheel[T]) fireOverdue(now int64, fn func(at int64, v T)) int {
	s := &w.slots[overdueSlot]
	fired := 0
	for s.head != 0 {
		if w.unsorted {
			w.sortOverdue()
		}
		id := s.head
		e := w.entry(id)
		s.earliest = e.at
		if e.at > now {
			break
		}
		w.fire(id, e, fn)
		fired++
	}
	return fired
}

// sortOverdue relinks the overdue slot in time order; entries of one instant stay in the order of insertion.
func (w *Wheel[T]) sortOverdue() {
	s := &w.slots[overdueSlot]
	ids := w.scratch[:0]
	for id := s.head; id != 0; id = w.entry(id).next {
		ids = append(ids, id)
	}
	slices.SortStableFunc(ids, func(a, b uint32) int { return cmp.Compare(w.entry(a).at, w.entry(b).at) })
	*s = slot{}
	w.unsorted = false
	for _, id := range ids {
		w.append(overdueSlot, id, w.entry(id))
	}
	w.scratch = ids
	if cap(ids) > chunkSize {
		w.scratch = nil
	}
}

// fire removes an entry and hands it to fn. The wheel is consistent before fn runs.
func (w *Wheel[T]) fire(id uint32, e *entry[T], fn func(at int64, v T)) {
	at, v := e.at, e.value
	w.unlink(e)
	w.release(id, e)
	fn(at, v)
}

// cascade moves a slot's entries to lower levels, in their order, when time has reached the slot's start.
func (w *Wheel[T]) cascade(level, digit int) {
	s := &w.slots[level*slotCount+digit]
	id := s.head
	*s = slot{}
	w.occupied[level] &^= 1 << digit
	for id != 0 {
		e := w.entry(id)
		next := e.next
		w.link(id, e)
		id = next
	}
}

// first returns the occupied slot with the earliest entries: at the lowest occupied level all digits are ahead of now's,
// and whatever is higher lies beyond.
func (w *Wheel[T]) first() (level, digit int, ok bool) {
	for level, occupied := range w.occupied {
		if occupied != 0 {
			return level, bits.TrailingZeros64(occupied), true
		}
	}
	return 0, 0, false
}

// start returns the first instant of a slot ahead of now.
func (w *Wheel[T]) start(level, digit int) int64 {
	shift := uint(level * digitBits)
	// A shift of 64 and more gives 0 in Go: at the top level no digits of now are above the slot's.
	above := ordered(w.now) >> shift >> digitBits << digitBits << shift
	return unordered(above | uint64(digit)<<shift)
}

// link puts an entry last into the slot of its instant.
func (w *Wheel[T]) link(id uint32, e *entry[T]) {
	if e.at < w.now {
		if tail := w.slots[overdueSlot].tail; tail != 0 && e.at < w.entry(tail).at {
			w.unsorted = true
		}
		w.append(overdueSlot, id, e)
		return
	}
	at := ordered(e.at)
	differs := at ^ ordered(w.now)
	level := (bits.Len64(differs|(slotCount-1)) - 1) / digitBits
	digit := int(at>>uint(level*digitBits)) & (slotCount - 1)
	w.occupied[level] |= 1 << digit
	w.append(level*slotCount+digit, id, e)
}

func (w *Wheel[T]) append(index int, id uint32, e *entry[T]) {
	s := &w.slots[index]
	e.slot, e.prev, e.next = uint16(index), s.tail, 0
	if s.tail == 0 {
		s.head, s.earliest = id, e.at
	} else {
		w.entry(s.tail).next = id
		s.earliest = min(s.earliest, e.at)
	}
	s.tail = id
}

func (w *Wheel[T]) unlink(e *entry[T]) {
	s := &w.slots[e.slot]
	if e.prev == 0 {
		s.head = e.next
	} else {
		w.entry(e.prev).next = e.next
	}
	if e.next == 0 {
		s.tail = e.prev
	} else {
		w.entry(e.next).prev = e.prev
	}
	if s.head != 0 {
		return
	}
	if e.slot == overdueSlot {
		w.unsorted = false
		return
	}
	w.occupied[e.slot/slotCount] &^= 1 << (e.slot % slotCount)
}

func (w *Wheel[T]) find(h Handle) (uint32, *entry[T]) {
	id := uint32(h)
	if id == 0 || int64(id) > int64(len(w.chunks))*chunkSize {
		return 0, nil
	}
	e := w.entry(id)
	if !e.live || e.generation != uint32(h>>32) {
		return 0, nil
	}
	return id, e
}

func (w *Wheel[T]) entry(id uint32) *entry[T] {
	return &w.chunks[(id-1)>>chunkBits][(id-1)&(chunkSize-1)]
}

// allocate takes an entry off the free list and grows it by a chunk when it is empty.
func (w *Wheel[T]) allocate() uint32 {
	if w.free == 0 {
		base := uint64(len(w.chunks)) * chunkSize
		if base+chunkSize > math.MaxUint32 {
			panic("wheel: more than 4 billion entries")
		}
		chunk := new([chunkSize]entry[T])
		for i := range chunk {
			chunk[i].next = uint32(base) + uint32(i) + 2
		}
		chunk[chunkSize-1].next = 0
		w.chunks = append(w.chunks, chunk)
		w.free = uint32(base) + 1
	}
	id := w.free
	w.free = w.entry(id).next
	return id
}

func (w *Wheel[T]) release(id uint32, e *entry[T]) {
	var none T
	e.value, e.live = none, false
	e.generation++
	e.prev, e.next = 0, w.free
	w.free = id
	w.len--
}

// ordered maps instants to unsigned numbers of the same order; unordered is its inverse.
func ordered(at int64) uint64 { return uint64(at) ^ 1<<63 }

func unordered(at uint64) int64 { return int64(at ^ 1<<63) }
