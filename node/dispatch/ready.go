package dispatch

import (
	"bytes"
	"container/heap"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
)

const (
	priorities = 10
	// streamLimit bounds the keys of one stream in memory.
	streamLimit = 512
	// streamLow is when a stream with more in rows is worth a load.
	streamLow = 64
	// missedLimit bounds what is remembered of what became ready during a load.
	missedLimit = 8192
)

// shardQueue is a queue's ready executions in one shard. Guarded by Dispatcher.mu.
type shardQueue struct {
	shard *shard
	queue *queue
	// bands by urgency: band 0 is priority 9.
	bands [priorities]*band
	// mask has a bit for each band that has something to offer.
	mask uint16
	// offeredAt is its place in queue.offers, -1 if it is not there.
	offeredAt int
	// paused: nothing is held and nothing is offered.
	paused bool
}

// band is a shard's ready executions of one queue and priority. Each of its rows is either a key in memory, or belongs to
// a stream with more at or behind its from, or has a prefix at or behind unseenFrom of a stream that is not known, or its
// tenant is paused.
type band struct {
	sq     *shardQueue
	rank   int
	prefix []byte
	// streams by prefix; offers is a heap of those with a key, the oldest nominal first.
	streams map[string]*stream
	offers  streamHeap

	unseen     bool
	unseenFrom []byte
	// unseenSince is the first prefix that became unseen while the band was being read, nil if none did.
	unseenSince []byte
	// low counts streams that want a load.
	low int
	// sweepAt is where the next load goes on. queued: it waits for the loader. loading: it is being read.
	sweepAt []byte
	queued  bool
	loading bool
	resets  int
	// missed is what became ready while the band was being read and is not in memory.
	missed missedEntries
	// gone are keys that left while the band was being read, so that what was read of them is not taken in.
	gone map[string]bool

	// items and inflight count keys in memory and in claims under way; depth is all that is ready, exact once nothing
	// is left in rows only.
	items, inflight int
	depth           int64
}

// stream is a band's ready executions of one tenant and fairness key, in order of nominal time.
type stream struct {
	prefix string
	tenant string
	items  []item
	// at is its place in the heap, -1 if it is not there.
	at int
	// more: rows at or behind from are not in memory.
	more bool
	from []byte
	// changed: from moved while the band was being read.
	changed bool
	// low: counted in band.low.
	low bool
}

type item struct {
	key     []byte
	nominal int64
}

// entry is an item with what is needed to find its stream: the first prefix bytes of its key.
type entry struct {
	item
	prefix int
	tenant string
}

func (e *entry) stream() []byte { return e.key[:e.prefix] }

func entryOf(ref *fsm.ReadyRef) entry {
	return entry{item{ref.Key, ref.NominalMS}, streamLen(ref), ref.Tenant}
}

// missed remembers what became ready during a load, up to a bound.
type missed[T any] struct {
	list []T
	// over: the bound was reached; what the load concluded about completeness does not hold.
	over bool
}

type missedEntries = missed[entry]

func (m *missed[T]) add(v T) {
	if len(m.list) == missedLimit {
		m.over = true
		return
	}
	m.list = append(m.list, v)
}

// readyAdded takes in an execution that became ready. Locked.
func (d *Dispatcher) readyAdded(sh *shard, ref fsm.ReadyRef) {
	if !sh.discovered {
		sh.missed.add(ref)
		return
	}
	b := d.band(sh, ref.Queue, ref.Priority)
	b.depth++
	d.insert(b, entryOf(&ref))
}

// readyRemoved takes out one that went otherwise than through our claims. Locked.
func (d *Dispatcher) readyRemoved(sh *shard, key []byte) {
	ref, err := fsm.DecodeReady(key)
	if err != nil {
		d.log.Error("effects hold a malformed ready key", "shard", sh.id, "err", err)
		return
	}
	sq := sh.queues[ref.Queue]
	if sq == nil {
		return
	}
	b := sq.bands[rankOf(ref.Priority)]
	if b == nil {
		return
	}
	b.depth = max(0, b.depth-1)
	b.went(key)
	s := b.streams[string(key[:streamLen(&ref)])]
	if s == nil {
		return
	}
	if at, ok := s.find(key); ok {
		s.items = slices.Delete(s.items, at, at+1)
		d.account(b, -1)
		d.settleStream(b, s)
		d.settleBand(b)
	}
}

// band returns a shard's band of a queue and priority, made if need be. Locked.
func (d *Dispatcher) band(sh *shard, name string, priority uint32) *band {
	sq := sh.queues[name]
	if sq == nil {
		sq = &shardQueue{shard: sh, queue: d.refer(name), offeredAt: -1, paused: sh.paused.queues[name]}
		sh.queues[name] = sq
	}
	rank := rankOf(priority)
	if sq.bands[rank] == nil {
		prefix := fsm.ReadyPriorityPrefix(name, priority)
		sq.bands[rank] = &band{sq: sq, rank: rank, prefix: prefix, sweepAt: prefix, streams: map[string]*stream{}}
		d.memory++
	}
	return sq.bands[rank]
}

func rankOf(priority uint32) int { return priorities - 1 - int(min(priority, priorities-1)) }

// streamLen is the length of a ready key's stream prefix: kind, queue, priority, tenant, fairness key.
func streamLen(ref *fsm.ReadyRef) int {
	return 1 + len(ref.Queue) + 1 + 1 + len(ref.Tenant) + 1 + len(ref.FairnessKey) + 1
}

// insert takes a key into memory, or leaves it to be found by a load. It may be called again for a key that is there.
// Locked.
func (d *Dispatcher) insert(b *band, e entry) {
	if b.pauses(e.tenant) {
		return
	}
	s := b.streams[string(e.stream())]
	switch {
	case s == nil && b.hides(e.stream()):
		b.leave(e)
		return
	case s == nil && (b.sq.paused || d.crowded()):
		b.unsee(e.stream())
		b.leave(e)
		d.wantLoad(b)
		return
	case s == nil:
		s = d.newStream(b, e.tenant, string(e.stream()))
	}
	if s.more && bytes.Compare(e.key, s.from) >= 0 {
		b.leave(e)
		return
	}
	at, found := s.find(e.key)
	if found {
		return
	}
	s.items = slices.Insert(s.items, at, e.item)
	d.account(b, 1)
	if len(s.items) > streamLimit || d.crowded() {
		d.evict(b, s, len(s.items)-1)
	}
	d.settleStream(b, s)
}

// newStream adds an empty stream of which nothing is left in rows. Locked.
func (d *Dispatcher) newStream(b *band, tenant, prefix string) *stream {
	s := &stream{prefix: prefix, tenant: tenant, at: -1}
	b.streams[prefix] = s
	d.memory++
	return s
}

// evict leaves the stream's keys from place n on to the rows. Locked.
func (d *Dispatcher) evict(b *band, s *stream, n int) {
	if n < len(s.items) {
		d.account(b, n-len(s.items))
		s.from = s.items[n].key
		clear(s.items[n:])
		s.items = s.items[:n]
		s.more, s.changed = true, true
	}
}

// distrust leaves the keys of e's stream from e on to the rows, whether or not anything is there. Locked.
func (d *Dispatcher) distrust(b *band, e entry) {
	s := b.streams[string(e.stream())]
	if s == nil {
		if b.hides(e.stream()) || b.pauses(e.tenant) {
			return
		}
		s = d.newStream(b, e.tenant, string(e.stream()))
	}
	if s.more && bytes.Compare(s.from, e.key) <= 0 {
		return
	}
	at, _ := s.find(e.key)
	d.evict(b, s, at)
	s.more, s.from, s.changed = true, e.key, true
	d.settleStream(b, s)
}

// hides says whether a stream that is not known may have rows. Locked.
func (b *band) hides(prefix []byte) bool { return b.unseen && bytes.Compare(prefix, b.unseenFrom) >= 0 }

// pauses says whether a tenant's executions are left out. Locked.
func (b *band) pauses(tenant string) bool { return b.sq.shard.paused.tenants[tenant] }

// unsee notes that streams at or behind prefix may be unknown. Locked.
func (b *band) unsee(prefix []byte) {
	if !b.unseen || bytes.Compare(prefix, b.unseenFrom) < 0 {
		b.unseen, b.unseenFrom = true, bytes.Clone(prefix)
	}
	if b.loading && (b.unseenSince == nil || bytes.Compare(prefix, b.unseenSince) < 0) {
		b.unseenSince = bytes.Clone(prefix)
	}
}

// leave remembers a key that is not taken into memory, for a load that may have passed it already. Locked.
func (b *band) leave(e entry) {
	if b.loading {
		b.missed.add(e)
	}
}

// went notes that a key's row is gone. Locked.
func (b *band) went(key []byte) {
	if b.loading {
		b.gone[string(key)] = true
	}
}

// crowded: only loads may add keys; they bring what has waited longest. Locked.
func (d *Dispatcher) crowded() bool { return d.memory > d.cfg.MaxReady/4*3 }

// full: no load begins, as there is no room for a stream and a key. Locked.
func (d *Dispatcher) full() bool { return d.memory > d.cfg.MaxReady-2 }

// account adds n keys to the counts. Locked.
func (d *Dispatcher) account(b *band, n int) {
	d.memory += n
	b.items += n
	b.sq.queue.heads += n
	if n > 0 {
		d.news(b.sq.queue)
	}
	if n < 0 && len(d.jobs.bands) > 0 && !d.full() {
		signal(d.wakeLoader)
	}
}

// settleStream puts the stream where it belongs after its keys or bounds changed. Locked.
func (d *Dispatcher) settleStream(b *band, s *stream) {
	switch {
	case len(s.items) == 0 && s.at >= 0:
		heap.Remove(&b.offers, s.at)
	case len(s.items) > 0 && s.at < 0:
		heap.Push(&b.offers, s)
	case len(s.items) > 0:
		heap.Fix(&b.offers, s.at)
	}
	low := s.more && len(s.items) <= streamLow
	if low != s.low {
		s.low = low
		if low {
			b.low++
		} else {
			b.low--
		}
	}
	if len(s.items) == 0 && (!s.more || d.crowded()) {
		d.forgetStream(b, s)
	}
	mask := b.sq.mask &^ (1 << b.rank)
	if len(b.offers) > 0 {
		mask |= 1 << b.rank
	}
	b.sq.mask = mask
	d.offer(b.sq)
	d.wantLoad(b)
}

// forgetStream drops a stream without keys. What it has in rows is found again with the unseen ones: memory is for
// streams that have something to offer. Locked.
func (d *Dispatcher) forgetStream(b *band, s *stream) {
	if s.more {
		b.unsee([]byte(s.prefix))
	}
	if s.low {
		b.low--
	}
	delete(b.streams, s.prefix)
	d.memory--
}

// settleBand drops a band, and its shard's queue, of which nothing is left. Locked.
func (d *Dispatcher) settleBand(b *band) {
	sq := b.sq
	if b.unseen || len(b.streams) > 0 || b.inflight > 0 || b.loading || b.queued || len(sq.shard.paused.tenants) > 0 {
		return
	}
	if sq.bands[b.rank] != b {
		return
	}
	sq.bands[b.rank] = nil
	d.memory--
	if sq.bands == [priorities]*band{} {
		delete(sq.shard.queues, sq.queue.name)
		d.unrefer(sq.queue, 1)
	}
}

// empty says whether neither memory nor rows hold anything to offer, as far as is known. Locked.
func (b *band) empty() bool { return b.items == 0 && b.low == 0 && !b.unseen }

// empty says so of all bands. Locked.
func (sq *shardQueue) empty() bool {
	for _, b := range sq.bands {
		if b != nil && !b.empty() {
			return false
		}
	}
	return true
}

// take removes up to n keys from the band, the oldest of the streams' first keys first. Locked.
func (d *Dispatcher) take(b *band, n int, taken []taken) []taken {
	for ; n > 0 && len(b.offers) > 0; n-- {
		s := b.offers[0]
		taken = append(taken, takenKey(b, s))
		s.items = s.items[1:]
		d.account(b, -1)
		b.inflight++
		d.settleStream(b, s)
	}
	return taken
}

// taken is a key in a claim under way.
type taken struct {
	band *band
	entry
}

func takenKey(b *band, s *stream) taken {
	return taken{b, entry{s.items[0], len(s.prefix), s.tenant}}
}

// find returns the place of key among the stream's keys, or where it would be.
func (s *stream) find(key []byte) (at int, ok bool) {
	if n := len(s.items); n > 0 && bytes.Compare(s.items[n-1].key, key) < 0 {
		return n, false
	}
	return slices.BinarySearchFunc(s.items, key, func(i item, key []byte) int { return bytes.Compare(i.key, key) })
}

// streamHeap orders streams by the nominal time of their first key, then by prefix.
type streamHeap []*stream

func (h streamHeap) Len() int { return len(h) }
func (h streamHeap) Less(i, j int) bool {
	a, b := h[i].items[0].nominal, h[j].items[0].nominal
	return a < b || a == b && h[i].prefix < h[j].prefix
}
func (h streamHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *streamHeap) Push(x any) {
	s := x.(*stream)
	s.at = len(*h)
	*h = append(*h, s)
}
func (h *streamHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.at = -1
	return s
}
