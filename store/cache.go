package store

import "unsafe"

// Cache holds rows that were written lately, of all shards of one loop, within a budget in bytes: what was just written is
// what is read next. A shard's writes keep it exact; it never holds a row that the engine does not. When it is full the
// oldest row goes, unless it was used since it last came up. It belongs to the loop's goroutine.
type Cache struct {
	budget, bytes int64
	kinds         [256]bool
	// oldest is the ring's head: its prev is the newest.
	oldest *cached
	len    int
}

// cached is a row in the cache, in its shard's map and in the ring.
type cached struct {
	owner      map[string]*cached
	key        string
	value      []byte
	prev, next *cached
	used       bool
}

// cachedOverhead is what a cached row costs beside its bytes: the struct, its map slot, rounding of allocations.
const cachedOverhead = 192

// NewCache returns a cache of at most budget bytes for rows of the given kinds (the first byte of a row's key), or of all
// if none is given. A budget of 0 caches nothing.
func NewCache(budget int64, kinds ...byte) *Cache {
	c := &Cache{budget: budget}
	for _, kind := range kinds {
		c.kinds[kind] = true
	}
	if len(kinds) == 0 {
		for kind := range c.kinds {
			c.kinds[kind] = true
		}
	}
	return c
}

// Len and Bytes say how much the cache holds.
func (c *Cache) Len() int     { return c.len }
func (c *Cache) Bytes() int64 { return c.bytes }

// get returns a shard's cached row.
func (c *Cache) get(owner map[string]*cached, key []byte) (value []byte, ok bool) {
	e, ok := owner[string(key)]
	if !ok {
		return nil, false
	}
	e.used = true
	return e.value, true
}

// put takes ownership of key and value.
func (c *Cache) put(owner map[string]*cached, key, value []byte) {
	if len(key) == 0 || !c.kinds[key[0]] {
		return
	}
	if e, ok := owner[string(key)]; ok {
		c.bytes += int64(len(value) - len(e.value))
		e.value, e.used = value, true
	} else {
		e := &cached{owner: owner, key: unsafe.String(unsafe.SliceData(key), len(key)), value: value}
		owner[e.key] = e
		c.bytes += e.size()
		c.len++
		c.pushNewest(e)
	}
	for c.bytes > c.budget {
		c.evict()
	}
}

func (c *Cache) drop(owner map[string]*cached, key []byte) {
	if e, ok := owner[string(key)]; ok {
		c.remove(e)
	}
}

// dropRange removes a shard's rows in [start, end); nil is the end of the shard.
func (c *Cache) dropRange(owner map[string]*cached, s span) {
	if len(owner) == 0 || !c.holdsAny(s) {
		return
	}
	for key, e := range owner {
		if s.contains(unsafe.Slice(unsafe.StringData(key), len(key))) {
			c.remove(e)
		}
	}
}

// forget removes all of a shard's rows.
func (c *Cache) forget(owner map[string]*cached) {
	for _, e := range owner {
		c.remove(e)
	}
}

// holdsAny says whether a span has kinds that are cached at all: most range deletes are of history, which is not.
func (c *Cache) holdsAny(s span) bool {
	first, last := 0, 255
	if len(s.start) > 0 {
		first = int(s.start[0])
	}
	if len(s.end) > 0 {
		last = int(s.end[0])
	}
	for kind := first; kind <= last; kind++ {
		if c.kinds[kind] {
			return true
		}
	}
	return false
}

// evict removes the oldest row that was not used since it last stood there.
func (c *Cache) evict() {
	for c.oldest.used {
		c.oldest.used = false
		c.oldest = c.oldest.next
	}
	c.remove(c.oldest)
}

func (c *Cache) remove(e *cached) {
	delete(e.owner, e.key)
	c.bytes -= e.size()
	c.len--
	if e.next == e {
		c.oldest = nil
		return
	}
	e.prev.next, e.next.prev = e.next, e.prev
	if c.oldest == e {
		c.oldest = e.next
	}
}

func (c *Cache) pushNewest(e *cached) {
	if c.oldest == nil {
		e.prev, e.next = e, e
		c.oldest = e
		return
	}
	e.prev, e.next = c.oldest.prev, c.oldest
	e.prev.next, e.next.prev = e, e
}

func (e *cached) size() int64 { return int64(len(e.key)+len(e.value)) + cachedOverhead }
