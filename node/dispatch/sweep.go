package dispatch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"

	"github.com/carillon-scheduler/carillon/fsm"
)

const (
	// sweepReads bounds the rows one sweep reads, and sweepSkips those it passes over before it jumps: a jump costs about
	// as much as reading that many.
	sweepReads = 8192
	sweepSkips = 16
)

// sweep is one step of reading a band: from where the last one ended, over as many streams as there is room for.
type sweep struct {
	d    *Dispatcher
	band *band
	rows Rows
	// resets is the band's count of resets at the start: after one more, what was read is of no use.
	resets int
	// start is where reading began, resume where it ended, nil if at the band's end.
	start, resume []byte
	room          int
	reads, skips  int
	runs          []run
	// jump is where to go on after an interrupted scan.
	jump []byte
	err  error
}

// run is what a sweep found of one stream.
type run struct {
	prefix, end []byte
	tenant      string
	// wanted: keys at or behind from are to be taken, at most room.
	wanted bool
	from   []byte
	room   int
	keys   []item
	// cut: there may be more behind the keys.
	cut bool
}

// loadBand sweeps a band once.
func (d *Dispatcher) loadBand(b *band) error {
	s, ok := d.beginSweep(b)
	if !ok {
		return nil
	}
	s.rows = d.host.Rows(b.sq.shard.id)
	s.read()
	if s.err == nil {
		s.err = s.rows.Err()
	}
	if s.err != nil {
		return fmt.Errorf("load ready executions of shard %d: %w", b.sq.shard.id, s.err)
	}
	d.endSweep(s)
	return nil
}

func (d *Dispatcher) beginSweep(b *band) (*sweep, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.queued = false
	if d.crowded() {
		d.makeRoom()
	}
	if b.sq.shard.dropped || b.sq.paused || !b.unseen && b.low == 0 {
		d.settleBand(b)
		return nil, false
	}
	b.loading, b.unseenSince, b.gone = true, nil, map[string]bool{}
	for _, s := range b.streams {
		s.changed = false
	}
	return &sweep{d: d, band: b, resets: b.resets, start: b.sweepAt, room: max(1, min(loadChunk, d.cfg.MaxReady-d.memory))}, true
}

// read walks the rows.
func (s *sweep) read() {
	end := fsm.PrefixEnd(s.band.prefix)
	for at := s.start; at != nil && s.err == nil; at = s.jump {
		s.jump = nil
		s.rows.Scan(at, end, s.row)
		if s.resume != nil {
			return
		}
	}
}

// row takes or passes over one row; it returns false to interrupt the scan.
func (s *sweep) row(key, _ []byte) bool {
	s.reads++
	r := s.run(key)
	if r == nil {
		return false
	}
	switch {
	case !r.wanted:
		s.skips++
		s.jump = r.end
	case bytes.Compare(key, r.from) < 0:
		s.skips++
		s.jump = r.from
	case len(r.keys) == r.room || s.room <= 0:
		r.cut = true
		s.jump = r.end
		s.skips = sweepSkips
	default:
		r.keys = append(r.keys, item{bytes.Clone(key), nominalOf(key, len(r.prefix))})
		s.room--
		s.skips = 0
	}
	if s.room <= 0 || s.reads >= sweepReads {
		r.cut = r.wanted
		s.resume = r.end
		return false
	}
	if s.skips >= sweepSkips {
		return false
	}
	s.jump = nil
	return true
}

// run returns the run that key belongs to, a new one if key is the first of its stream; nil if there is no room for that
// stream, or key is malformed.
func (s *sweep) run(key []byte) *run {
	if n := len(s.runs); n > 0 && bytes.HasPrefix(key, s.runs[n-1].prefix) {
		return &s.runs[n-1]
	}
	ref, err := fsm.DecodeReady(key)
	if err != nil {
		s.err = err
		return nil
	}
	s.skips = 0
	r, known := s.d.wanted(s.band, ref.Tenant, bytes.Clone(key[:streamLen(&ref)]))
	if !known {
		if s.room < 2 {
			s.resume = r.prefix
			return nil
		}
		s.room--
	}
	s.runs = append(s.runs, r)
	return &s.runs[len(s.runs)-1]
}

// wanted says what of a stream is to be taken, and whether the stream is known: one that is not takes room of its own.
func (d *Dispatcher) wanted(b *band, tenant string, prefix []byte) (r run, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r = run{prefix: prefix, end: fsm.PrefixEnd(prefix), tenant: tenant}
	s := b.streams[string(prefix)]
	switch {
	case b.pauses(tenant):
		return r, true
	case s == nil && b.hides(prefix):
		r.from, r.room, r.wanted = prefix, d.streamLimit(), true
		return r, false
	case s != nil && s.more:
		r.from, r.room = s.from, d.streamLimit()-len(s.items)
		r.wanted = r.room > 0
	}
	return r, true
}

func nominalOf(key []byte, prefix int) int64 {
	return int64(binary.BigEndian.Uint64(key[prefix:]) ^ 1<<63)
}

// endSweep takes over what was read.
func (d *Dispatcher) endSweep(s *sweep) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := s.band
	missed := b.missed
	b.missed = missedEntries{}
	b.sq.shard.round.each(b, func(t *taken) { b.gone[string(t.key)] = true })
	if !b.sq.shard.dropped && !b.sq.paused && b.resets == s.resets {
		for i := range s.runs {
			d.takeRun(b, &s.runs[i], missed.over)
		}
		if !missed.over {
			d.concludeSweep(b, s)
		}
		b.sweepAt = s.resume
		if b.sweepAt == nil {
			b.sweepAt = b.prefix
		}
	}
	b.loading, b.gone = false, nil
	if b.sq.shard.dropped {
		return
	}
	for _, e := range missed.list {
		d.insert(b, e)
	}
	d.recount(b)
	d.wantLoad(b)
	d.settleBand(b)
	signal(d.wakePlanner)
}

// takeRun takes over the keys of one stream, unless it changed since. Locked.
func (d *Dispatcher) takeRun(b *band, r *run, incomplete bool) {
	s := b.streams[string(r.prefix)]
	if s == nil {
		if !b.hides(r.prefix) || b.pauses(r.tenant) {
			return
		}
		s = d.newStream(b, r.tenant, string(r.prefix))
		s.more, s.from = true, r.prefix
	}
	defer d.settleStream(b, s)
	if !r.wanted || !s.more || s.changed || !bytes.Equal(s.from, r.from) {
		return
	}
	had := len(s.items)
	for _, it := range r.keys {
		if !b.gone[string(it.key)] {
			s.items = append(s.items, it)
		}
	}
	d.account(b, len(s.items)-had)
	switch {
	case r.cut || incomplete:
		if n := len(r.keys); n > 0 {
			s.from = append(bytes.Clone(r.keys[n-1].key), 0)
		}
	default:
		s.more, s.from = false, nil
	}
}

// concludeSweep notes what the sweep showed not to be there: rows of streams that it passed without finding any, and
// streams that were not known. Locked.
func (d *Dispatcher) concludeSweep(b *band, s *sweep) {
	found := make(map[string]bool, len(s.runs))
	for i := range s.runs {
		found[string(s.runs[i].prefix)] = true
	}
	for prefix, st := range b.streams {
		passed := prefix >= string(s.start) && (s.resume == nil || prefix < string(s.resume))
		if passed && st.more && !st.changed && !found[prefix] {
			st.more, st.from = false, nil
			d.settleStream(b, st)
		}
	}
	switch {
	case !b.unseen || bytes.Compare(b.unseenFrom, s.start) < 0:
	case s.resume == nil:
		b.unseen, b.unseenFrom = false, nil
	case bytes.Compare(b.unseenFrom, s.resume) < 0:
		b.unseenFrom = s.resume
	}
	if b.unseenSince != nil {
		b.unsee(b.unseenSince)
	}
}

// recount makes the depth exact if all of the band is in memory. Locked.
func (d *Dispatcher) recount(b *band) {
	if b.unseen || len(b.sq.shard.settings.tenants) > 0 {
		return
	}
	for _, s := range b.streams {
		if s.more {
			return
		}
	}
	b.depth = int64(b.items + b.inflight)
}

// wantLoad queues the band for a load if rows hold what memory should. Locked.
func (d *Dispatcher) wantLoad(b *band) {
	if b.queued || b.loading || b.sq.paused || !b.sq.shard.discovered || !b.unseen && b.low == 0 {
		return
	}
	b.queued = true
	d.jobs.bands = append(d.jobs.bands, b)
	if !d.full() {
		signal(d.wakeLoader)
	}
}

// setSettings puts a shard's settings into force: what is paused leaves memory, what is no longer is loaded. Of shares, which
// are the node's, the last shard's that was read count: all get the same. Locked.
func (d *Dispatcher) setSettings(sh *shard, p settings) {
	before := sh.settings
	sh.settings = p
	d.shareTurns(p.shares, p.weights)
	tenants := !maps.Equal(before.tenants, p.tenants)
	for name, sq := range sh.queues {
		queue := p.queues[name] != sq.paused
		sq.paused = p.queues[name]
		if !tenants && !queue {
			continue
		}
		for _, b := range sq.bands {
			if b != nil {
				d.resetBand(b)
			}
		}
	}
}

// resetBand leaves all of a band to the rows, to be read again. Locked.
func (d *Dispatcher) resetBand(b *band) {
	d.memory -= len(b.streams)
	d.streams -= len(b.streams)
	d.account(b, -b.items)
	b.unlinkAll()
	b.streams, b.low = map[string]*stream{}, 0
	b.unsee(b.prefix)
	b.resets++
	d.setMask(b.sq, b.sq.mask&^(1<<b.rank))
	d.wantLoad(b)
}

// forgetQueue drops a shard's queue. Locked.
func (d *Dispatcher) forgetQueue(sq *shardQueue) {
	for _, b := range sq.bands {
		if b != nil {
			d.memory -= len(b.streams) + 1
			d.streams -= len(b.streams)
			d.account(b, -b.items)
			b.unlinkAll()
		}
	}
	d.setMask(sq, 0)
	d.unrefer(sq.queue, 1)
}
