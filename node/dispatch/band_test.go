package dispatch

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// TestEveryReadyRowIsAccountedFor changes ready rows at random, also while they are being read, and checks after each
// change that every row is a key in memory, in a claim under way, or where a load will find it.
func TestEveryReadyRowIsAccountedFor(t *testing.T) {
	for seed := range uint64(300) {
		m := newModel(t, seed)
		for range 150 {
			m.change()
			m.loadSome()
		}
		m.drain()
	}
}

// model holds the rows of one shard; it is the dispatcher's host.
type model struct {
	t        testing.TB
	seed     uint64
	d        *Dispatcher
	sh       *shard
	random   *rand.Rand
	rows     map[string]bool
	flying   [][]taken
	next     int64
	scanning bool
	// quiet: rows do not change while they are read.
	quiet bool
}

func newModel(t testing.TB, seed uint64) *model {
	m := &model{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 3)), rows: map[string]bool{}}
	d, err := New(Config{MaxReady: 64 + int(seed%4)*16}, m)
	if err != nil {
		t.Fatal(err)
	}
	m.d = d
	d.Takeover(0, 1)
	m.sh = d.shards[0]
	d.jobs.takeovers = nil
	m.sh.discovered, m.sh.ready = true, true
	return m
}

func (m *model) ProposeAll([]Proposal)         {}
func (m *model) ShardOf(string, string) uint32 { return 0 }
func (m *model) Now() int64                    { return 0 }
func (m *model) MayFire() bool                 { return true }
func (m *model) Rows(uint32) Rows              { return m }
func (m *model) Err() error                    { return nil }
func (m *model) Get([]byte) ([]byte, bool)     { return nil, false }

// Scan shows the rows as they stand when it begins, and changes them while it shows them.
func (m *model) Scan(start, end []byte, fn func(key, value []byte) bool) {
	m.scanning = true
	defer func() { m.scanning = false }()
	for _, key := range slices.Sorted(maps.Keys(m.rows)) {
		if key < string(start) || end != nil && key >= string(end) {
			continue
		}
		if !m.quiet && m.random.IntN(4) == 0 {
			m.change()
		}
		if !fn([]byte(key), nil) {
			return
		}
		if !m.quiet && m.random.IntN(4) == 0 {
			m.change()
		}
	}
}

// loadSome lets the loader work.
func (m *model) loadSome() {
	for range m.random.IntN(4) {
		job := m.d.nextJob()
		if job == nil {
			return
		}
		if err := job(m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
		m.check("a load")
	}
}

// drain leases everything: nothing may stay behind, in the rows or in memory.
func (m *model) drain() {
	m.d.setSettings(m.sh, settings{})
	m.quiet = true
	for round := 0; len(m.rows) > 0 || len(m.sh.queues) > 0 || len(m.flying) > 0; round++ {
		if round == 2000 {
			m.t.Fatalf("seed %d: %d rows are left, %d in memory, %v", m.seed, len(m.rows), m.d.memory, m.sh.queues)
		}
		m.loadSome()
		m.d.mu.Lock()
		for _, sq := range m.sh.queues {
			if sq.mask != 0 {
				m.flying = append(m.flying, m.take(sq, 20))
			}
		}
		for len(m.flying) > 0 {
			m.land()
		}
		m.d.mu.Unlock()
		m.check("draining")
	}
	if m.d.memory != 0 || len(m.d.queues) != 0 {
		m.t.Fatalf("seed %d: drained, and yet %d in memory, queues %v", m.seed, m.d.memory, m.d.queues)
	}
}

// take takes up to n turns of a shard's queue. Locked.
func (m *model) take(sq *shardQueue, n int) (list []taken) {
	for ; n > 0 && sq.mask != 0; n-- {
		list = append(list, m.d.takeFirst(sq.bands[sq.queue.next(sq.mask)]))
	}
	return list
}

// change does one thing that an entry, a claim or an operator may do.
func (m *model) change() {
	d := m.d
	d.mu.Lock()
	what := ""
	switch n := m.random.IntN(20); {
	case n < 9:
		what = "an addition"
		ref := m.newRef()
		m.rows[string(ref.Key)] = true
		d.readyAdded(m.sh, ref)
	case n < 13:
		what = "a claim"
		for _, sq := range m.sh.queues {
			if sq.mask != 0 {
				m.flying = append(m.flying, m.take(sq, 1+m.random.IntN(12)))
			}
		}
	case n < 17 && len(m.flying) > 0:
		what = "a claim's result"
		m.land()
	case n < 19 && len(m.rows) > 0:
		what = "a removal"
		keys := slices.Sorted(maps.Keys(m.rows))
		key := keys[m.random.IntN(len(keys))]
		delete(m.rows, key)
		d.readyRemoved(m.sh, []byte(key))
	case n == 19 && (m.scanning || m.random.IntN(4) == 0):
		what = "a pause or its end"
		p := settings{queues: map[string]bool{"q": m.random.IntN(3) == 0}, tenants: map[string]bool{}}
		if m.random.IntN(2) == 0 {
			p.tenants["t1"] = true
		}
		d.setSettings(m.sh, p)
	}
	d.mu.Unlock()
	m.check(what)
}

func (m *model) newRef() fsm.ReadyRef {
	m.next++
	nominal := m.next
	if m.random.IntN(4) == 0 {
		nominal = m.random.Int64N(m.next)
	}
	fairness := m.random.IntN(6)
	if m.random.IntN(3) == 0 {
		fairness = m.random.IntN(100)
	}
	ref, err := fsm.DecodeReady(fsm.ReadyKey(&storagev1.Execution{
		Tenant: fmt.Sprint("t", m.random.IntN(2)), JobId: fmt.Sprint(m.next), Incarnation: 1, NominalMs: nominal,
		Kind: storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE,
		Template: &storagev1.Template{
			Queue: "q", Priority: uint32(m.random.IntN(2)), FairnessKey: fmt.Sprint(fairness),
		},
	}))
	if err != nil {
		m.t.Fatal(err)
	}
	return ref
}

// land gives a claim a result: all leased, refused, or some passed over, whose rows may be gone or not. Locked.
func (m *model) land() {
	c := &claim{taken: m.flying[0]}
	m.flying = m.flying[1:]
	if m.random.IntN(4) == 0 {
		m.d.putBack(c)
		return
	}
	var leased []*storagev1.Execution
	for i := range c.taken {
		key := c.taken[i].key
		switch m.random.IntN(12) {
		case 0: // passed over, the row stays
		case 1: // passed over, gone
			delete(m.rows, string(key))
		default:
			if m.rows[string(key)] {
				leased = append(leased, executionAt(m.t, key))
			}
			delete(m.rows, string(key))
		}
	}
	m.d.claimed(c, leased)
}

// executionAt is an execution whose ready key is key.
func executionAt(t testing.TB, key []byte) *storagev1.Execution {
	ref, err := fsm.DecodeReady(key)
	if err != nil {
		t.Fatal(err)
	}
	rest := key[streamLen(&ref)+8:]
	return &storagev1.Execution{
		Tenant: ref.Tenant, JobId: string(rest[:bytes.IndexByte(rest, 0)]), Incarnation: 1, NominalMs: ref.NominalMS,
		Kind:     storagev1.ExecutionKind_EXECUTION_KIND_SCHEDULE,
		Template: &storagev1.Template{Queue: ref.Queue, Priority: ref.Priority, FairnessKey: ref.FairnessKey},
	}
}

func (m *model) check(after string) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	flying := map[string]bool{}
	for _, list := range m.flying {
		for i := range list {
			flying[string(list[i].key)] = true
		}
	}
	for key := range m.rows {
		if where := m.d.whereIs(m.sh, []byte(key)); where == "" && !flying[key] {
			m.t.Fatalf("seed %d, after %s: %q is nowhere", m.seed, after, key)
		}
	}
	memory := 0
	for name, sq := range m.sh.queues {
		heads := 0
		for _, b := range sq.bands {
			if b != nil {
				memory += 1 + len(b.streams) + b.items
				heads += b.items
				m.checkBand(after, b)
			}
		}
		if q := sq.queue; q.name != name || q.heads != heads || (sq.mask != 0) != slices.Contains(q.offers, sq) {
			m.t.Fatalf("seed %d, after %s: queue %s counts %d keys, holds %d; offers %b", m.seed, after, name, q.heads, heads, sq.mask)
		}
	}
	if memory != m.d.memory || memory > m.d.cfg.MaxReady+8 {
		m.t.Fatalf("seed %d, after %s: %d in memory, counted %d, bound %d", m.seed, after, memory, m.d.memory, m.d.cfg.MaxReady)
	}
}

func (m *model) checkBand(after string, b *band) {
	streams, offering := 0, 0
	for name, t := range b.tenants {
		streams += t.streams
		if (t.at >= 0) != (len(t.offers) > 0) || t.at >= 0 && b.offers[t.at] != t || t.turns.name != name || t.streams == 0 {
			m.t.Fatalf("seed %d, after %s: tenant %s is out of order", m.seed, after, name)
		}
		if t.at >= 0 {
			offering++
		}
	}
	if class := &b.sq.queue.classes[b.rank]; streams != len(b.streams) || class.active != min(1, offering) || class.refs != 0 {
		m.t.Fatalf("seed %d, after %s: %d streams of tenants, %d of the band; class active %d", m.seed, after, streams, len(b.streams), class.active)
	}
	items, low := 0, 0
	for prefix, s := range b.streams {
		items += len(s.items)
		if s.low {
			low++
		}
		sorted := slices.IsSortedFunc(s.items, func(x, y item) int { return bytes.Compare(x.key, y.key) })
		if prefix != s.prefix || !sorted || (s.at >= 0) != (len(s.items) > 0) || s.at >= 0 && s.tenant.offers[s.at] != s {
			m.t.Fatalf("seed %d, after %s: stream %q is out of order", m.seed, after, prefix)
		}
		if n := len(s.items); s.more && n > 0 && bytes.Compare(s.items[n-1].key, s.from) >= 0 {
			m.t.Fatalf("seed %d, after %s: stream %q holds keys behind %q", m.seed, after, prefix, s.from)
		}
	}
	waits := b.queued || b.loading || b.sq.paused
	if items != b.items || low != b.low || (b.unseen || b.low > 0) && !waits {
		m.t.Fatalf("seed %d, after %s: band of %d items counts %d, %d low counts %d, unseen %v, waits %v",
			m.seed, after, items, b.items, low, b.low, b.unseen, waits)
	}
}

// whereIs says how a row would be found, "" if it would not. Locked.
func (d *Dispatcher) whereIs(sh *shard, key []byte) string {
	ref, err := fsm.DecodeReady(key)
	if err != nil {
		return ""
	}
	sq := sh.queues[ref.Queue]
	if sq == nil || sq.bands[rankOf(ref.Priority)] == nil {
		return ""
	}
	b := sq.bands[rankOf(ref.Priority)]
	e := entryOf(&ref)
	s := b.streams[string(e.stream())]
	switch {
	case b.pauses(ref.Tenant):
		return "paused"
	case s == nil && b.hides(e.stream()):
		return "unseen"
	case s == nil:
		return ""
	case s.more && bytes.Compare(key, s.from) >= 0:
		return "more"
	}
	if _, ok := s.find(key); ok {
		return "memory"
	}
	return ""
}
