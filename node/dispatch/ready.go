package dispatch

import (
	"bytes"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
)

const (
	priorities = 10
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
	// streams by prefix, and by tenant; offers is a heap of the tenants with a key.
	streams map[string]*stream
	tenants map[string]*tenantStreams
	offers  turnHeap[*tenantStreams]

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
		sq = &shardQueue{shard: sh, queue: d.refer(name), offeredAt: -1, paused: sh.settings.queues[name]}
		sh.queues[name] = sq
	}
	rank := rankOf(priority)
	if sq.bands[rank] == nil {
		prefix := fsm.ReadyPriorityPrefix(name, priority)
		sq.bands[rank] = &band{sq: sq, rank: rank, prefix: prefix, sweepAt: prefix, streams: map[string]*stream{}, tenants: map[string]*tenantStreams{}}
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
	case s == nil && (b.sq.paused || d.crowded() && !d.makeRoom()):
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
	if len(s.items) > d.streamLimit() || d.crowded() {
		d.evict(b, s, len(s.items)-1)
	}
	d.settleStream(b, s)
}

// hides says whether a stream that is not known may have rows. Locked.
func (b *band) hides(prefix []byte) bool { return b.unseen && bytes.Compare(prefix, b.unseenFrom) >= 0 }

// pauses says whether a tenant's executions are left out. Locked.
func (b *band) pauses(tenant string) bool { return b.sq.shard.settings.tenants[tenant] }

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

// settleBand drops a band, and its shard's queue, of which nothing is left. Locked.
func (d *Dispatcher) settleBand(b *band) {
	sq := b.sq
	if b.unseen || len(b.streams) > 0 || b.inflight > 0 || b.loading || b.queued || len(sq.shard.settings.tenants) > 0 {
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

// takeFirst removes the key whose turn it is; there must be one. Locked.
func (d *Dispatcher) takeFirst(b *band) taken {
	s := b.offers.first().offers.first()
	b.charge(s)
	t := takenKey(b, s)
	s.items = s.items[1:]
	d.account(b, -1)
	b.inflight++
	d.settleStream(b, s)
	return t
}

// taken is a key in a claim under way.
type taken struct {
	band *band
	entry
}

func takenKey(b *band, s *stream) taken {
	return taken{b, entry{s.items[0], len(s.prefix), s.tenant.name}}
}
