package dispatch

import (
	"bytes"
	"slices"
)

const (
	// streamMost and streamLeast bound the keys of one stream in memory: see streamLimit. More at least would fill memory with
	// some thousand streams, and then each key that is taken costs a look at all of them for the next.
	streamMost  = 512
	streamLeast = 2
	// streamLow is when a stream with more in rows is worth a load, at the latest.
	streamLow = 64
)

// streamLimit bounds the keys of one stream in memory: the more streams there are the fewer, so that all have something to
// offer, and have their turns. Locked.
func (d *Dispatcher) streamLimit() int {
	limit := min(streamMost, max(streamLeast, d.cfg.MaxReady/2/max(1, d.streams)))
	d.shrunkTo = max(d.shrunkTo, limit)
	return limit
}

// makeRoom leaves to the rows what streams have beyond the limit, if that has fallen to half since this was done. It says
// whether there is room then for another stream. Locked.
func (d *Dispatcher) makeRoom() bool {
	limit := d.streamLimit()
	if 2*limit > d.shrunkTo {
		return false
	}
	d.shrunkTo = limit
	for _, sh := range d.led {
		for _, sq := range sh.queues {
			for _, b := range sq.bands {
				d.trim(b, limit)
			}
		}
	}
	return !d.crowded()
}

// trim leaves all but limit keys of each of a band's streams to the rows; b may be nil. Locked.
func (d *Dispatcher) trim(b *band, limit int) {
	if b == nil {
		return
	}
	for _, s := range b.streams {
		if len(s.items) > limit {
			d.evict(b, s, limit)
			d.settleStream(b, s)
		}
	}
}

// stream is a band's ready executions of one tenant and fairness key, in order of nominal time.
type stream struct {
	prefix string
	tenant *tenantStreams
	// key is the account of the fairness key.
	key   *account
	items []item
	// place is its own among the tenant's offers.
	place
	// more: rows at or behind from are not in memory.
	more bool
	from []byte
	// changed: from moved while the band was being read.
	changed bool
	// low: counted in band.low.
	low bool
}

// newStream adds an empty stream of which nothing is left in rows. Locked.
func (d *Dispatcher) newStream(b *band, tenant, prefix string) *stream {
	t := b.tenants[tenant]
	if t == nil {
		t = &tenantStreams{name: tenant, turns: b.sq.queue.classes[b.rank].child(tenant, d.weights[tenant]), place: place{at: -1}}
		b.tenants[tenant] = t
	}
	t.streams++
	key := prefix[len(b.prefix)+len(tenant)+1 : len(prefix)-1]
	s := &stream{prefix: prefix, tenant: t, key: t.turns.child(key, 1), place: place{at: -1}}
	b.streams[prefix] = s
	d.memory++
	d.streams++
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

// settleStream puts the stream where it belongs after its keys or bounds changed. Locked.
func (d *Dispatcher) settleStream(b *band, s *stream) {
	s.tenant.offers.settle(s, len(s.items) == 0)
	b.offers.settle(s.tenant, len(s.tenant.offers) == 0)
	low := s.more && len(s.items) <= min(streamLow, d.streamLimit()/2)
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
	d.setMask(b.sq, mask)
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
	b.unlink(s)
	d.memory--
	d.streams--
}

// unlink gives a stream's accounts back, and its tenant's with its last one. Locked.
func (b *band) unlink(s *stream) {
	t := s.tenant
	s.key.unrefer()
	if t.streams--; t.streams == 0 {
		delete(b.tenants, t.name)
		t.turns.unrefer()
	}
}

// unlinkAll takes all streams out of the accounts. Locked.
func (b *band) unlinkAll() {
	for _, s := range b.streams {
		s.tenant.offers.settle(s, true)
		b.offers.settle(s.tenant, len(s.tenant.offers) == 0)
		b.unlink(s)
	}
}

// find returns the place of key among the stream's keys, or where it would be.
func (s *stream) find(key []byte) (at int, ok bool) {
	if n := len(s.items); n > 0 && bytes.Compare(s.items[n-1].key, key) < 0 {
		return n, false
	}
	return slices.BinarySearchFunc(s.items, key, func(i item, key []byte) int { return bytes.Compare(i.key, key) })
}
