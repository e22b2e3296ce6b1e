package dispatch

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// loadChunk is how many rows are taken over under one lock.
	loadChunk = 1024
	// depthLimit bounds the ready rows of a shard that takeover counts.
	depthLimit = 65_536
	// longRun is how many loads of ready executions run before a load of timers gets its turn.
	longRun = 8
)

// jobs are what the loader is to read, each kind first come first served. Guarded by Dispatcher.mu.
type jobs struct {
	takeovers []*shard
	settings  []*shard
	bands     []*band
	timers    []*shard
	// run counts bands loaded in a row.
	run int
}

// runLoader reads rows until ctx ends.
func (d *Dispatcher) runLoader(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		job := d.nextJob()
		if job == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-d.wakeLoader:
				continue
			}
		}
		if err := job(ctx); err != nil {
			return err
		}
	}
}

// nextJob returns what to read next, nil if nothing.
func (d *Dispatcher) nextJob() func(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := &d.jobs
	switch {
	case len(j.takeovers) > 0:
		sh := shift(&j.takeovers)
		return func(ctx context.Context) error { return d.loadShard(ctx, sh) }
	case len(j.settings) > 0:
		sh := shift(&j.settings)
		return func(context.Context) error { return d.loadSettings(sh) }
	case len(j.timers) > 0 && (j.run >= longRun || len(j.bands) == 0 || d.full()):
		j.run = 0
		sh := shift(&j.timers)
		return func(context.Context) error { return d.loadTimers(sh) }
	case len(j.bands) > 0 && !d.full():
		j.run++
		b := shift(&j.bands)
		return func(context.Context) error { return d.loadBand(b) }
	default:
		return nil
	}
}

func shift[T any](list *[]T) T {
	var zero T
	first := (*list)[0]
	(*list)[0] = zero
	*list = (*list)[1:]
	return first
}

// loadShard does all that a takeover has to read.
func (d *Dispatcher) loadShard(ctx context.Context, sh *shard) error {
	began := time.Now()
	if d.isDropped(sh) {
		return nil
	}
	for _, load := range []func(*shard) error{d.loadSettings, d.loadLeases, d.loadTimers, d.discover} {
		if err := load(sh); err != nil {
			return err
		}
		if ctx.Err() != nil || d.isDropped(sh) {
			return nil
		}
	}
	if err := d.loadBands(ctx, sh); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if sh.dropped {
		return nil
	}
	sh.ready = true
	for _, sq := range sh.queues {
		d.news(sq.queue)
	}
	signal(d.wakePlanner)
	d.log.Debug("shard loaded", "shard", sh.id, "term", sh.term, "timers", sh.timers.wheel.Len(),
		"leases", sh.leases, "took", time.Since(began))
	return nil
}

func (d *Dispatcher) isDropped(sh *shard) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return sh.dropped
}

// loadSettings reads what is said of queues and tenants.
func (d *Dispatcher) loadSettings(sh *shard) error {
	rows := d.host.Rows(sh.id)
	said := settings{queues: map[string]bool{}, tenants: map[string]bool{}, shares: map[string]Shares{}, weights: map[string]uint32{}}
	var err error
	scanSettings(rows, fsm.QueueKey(""), func(value []byte) {
		var s storagev1.QueueSettings
		if e := s.UnmarshalVT(value); e != nil {
			err = e
			return
		}
		if fsm.QueuePaused(&s) {
			said.queues[s.Name] = true
		}
		if shares, ok := sharesFrom(s.Shares); ok && !s.Deleted {
			said.shares[s.Name] = shares
		}
	})
	scanSettings(rows, fsm.TenantKey(""), func(value []byte) {
		var s storagev1.TenantSettings
		if e := s.UnmarshalVT(value); e != nil {
			err = e
			return
		}
		if fsm.TenantPaused(&s) {
			said.tenants[s.Name] = true
		}
		if s.Weight > 1 && !s.Deleted {
			said.weights[s.Name] = s.Weight
		}
	})
	if err == nil {
		err = rows.Err()
	}
	if err != nil {
		return fmt.Errorf("load settings of shard %d: %w", sh.id, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !sh.dropped {
		d.setSettings(sh, said)
		signal(d.wakePlanner)
	}
	return nil
}

// scanSettings walks the settings rows of one kind; unnamed is the key of the empty name.
func scanSettings(rows fsm.Reader, unnamed []byte, fn func(value []byte)) {
	prefix := unnamed[:len(unnamed)-1]
	rows.Scan(prefix, fsm.PrefixEnd(prefix), func(_, value []byte) bool {
		fn(value)
		return true
	})
}

// loadTimers reads the timers from where memory ends up to the horizon, or as far as there is room.
func (d *Dispatcher) loadTimers(sh *shard) error {
	now := d.host.Now()
	d.mu.Lock()
	t := &sh.timers
	from, until := t.loadedUntil+1, now+d.cfg.Horizon.Milliseconds()
	first := !sh.ready
	room := max(loadChunk/16, d.timerLimit()*3/4-t.wheel.Len()-t.total)
	// From here on what is added up to until is taken in at once; the load may find it a second time.
	t.loadedUntil, t.cut, t.loading = max(until, t.loadedUntil), false, true
	until = t.loadedUntil
	d.mu.Unlock()

	rows := d.host.Rows(sh.id)
	if first {
		from = lowWater(rows)
		if d.cfg.Faults.DueTimersLost {
			from = now + 1
		}
	}
	read, last, err := d.scanTimers(sh, rows, from, until, room)
	if err != nil {
		return fmt.Errorf("load timers of shard %d: %w", sh.id, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts.TimerRowsRead += uint64(read)
	t.loading = false
	t.reloadAt = until - d.cfg.Horizon.Milliseconds()/2
	if read >= room {
		t.cut, t.loadedUntil = true, min(t.loadedUntil, last)
	}
	signal(d.wakePlanner)
	return nil
}

// lowWater is an instant below which no timer stands.
func lowWater(rows fsm.Reader) int64 {
	var meta storagev1.Meta
	value, ok := rows.Get(fsm.MetaKey())
	if !ok || meta.UnmarshalVT(value) != nil {
		return math.MinInt64
	}
	return meta.LowWaterMs
}

// scanTimers adds the timers of [from, until] to the wheel, at most limit rows. last is the instant of the last one.
func (d *Dispatcher) scanTimers(sh *shard, rows Rows, from, until int64, limit int) (read int, last int64, err error) {
	chunk := make([]fsm.TimerRef, 0, loadChunk)
	rows.Scan(timerKey(from), timerKey(until+1), func(key, value []byte) bool {
		ref, e := fsm.DecodeTimer(key, value)
		if e != nil {
			err = e
			return false
		}
		chunk = append(chunk, ref)
		read, last = read+1, ref.AtMS
		if len(chunk) == loadChunk {
			d.addLoaded(sh, chunk)
			chunk = chunk[:0]
		}
		return read < limit
	})
	d.addLoaded(sh, chunk)
	if err == nil {
		err = rows.Err()
	}
	return read, last, err
}

// addLoaded puts timers that were read into the wheel.
func (d *Dispatcher) addLoaded(sh *shard, refs []fsm.TimerRef) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !sh.dropped {
		d.addTimers(sh, refs)
	}
}

// timerKey is where the timers of an instant begin.
func timerKey(ms int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{fsm.KindTimer}, uint64(ms)^1<<63)
}

// loadLeases rebuilds the index of live leases by claim, and gives a waiting poll what its claim got before.
func (d *Dispatcher) loadLeases(sh *shard) error {
	type lease struct {
		claimID string
		fencing uint64
	}
	var leases []lease
	var err error
	rows := d.host.Rows(sh.id)
	rows.Scan([]byte{fsm.KindLeased}, []byte{fsm.KindLeased + 1}, func(_, value []byte) bool {
		var e storagev1.Execution
		if err = e.UnmarshalVT(value); err != nil {
			return false
		}
		leases = append(leases, lease{e.ClaimId, e.Fencing})
		return true
	})
	if err == nil {
		err = rows.Err()
	}
	if err != nil {
		return fmt.Errorf("load leases of shard %d: %w", sh.id, err)
	}
	for len(leases) > 0 {
		n := min(len(leases), loadChunk)
		d.mu.Lock()
		for _, l := range leases[:n] {
			if _, ended := sh.loadingLeases[l.fencing]; !ended {
				sh.addLease(l.claimID, l.fencing)
			}
		}
		d.mu.Unlock()
		leases = leases[n:]
	}
	d.mu.Lock()
	sh.loadingLeases = nil
	d.mu.Unlock()
	return d.adopt(sh)
}

// discover finds the bands that have rows, skipping from one to the next.
func (d *Dispatcher) discover(sh *shard) error {
	for done := false; !done; {
		rows := d.host.Rows(sh.id)
		found, err := scanBands(rows)
		if err != nil {
			return fmt.Errorf("discover ready executions of shard %d: %w", sh.id, err)
		}
		d.mu.Lock()
		done = sh.dropped || d.discovered(sh, found)
		d.mu.Unlock()
	}
	return nil
}

// scanBands returns one ready key of each band.
func scanBands(rows Rows) (found []fsm.ReadyRef, err error) {
	end := []byte{fsm.KindReady + 1}
	for at := []byte{fsm.KindReady}; at != nil; {
		start := at
		at = nil
		rows.Scan(start, end, func(key, _ []byte) bool {
			var ref fsm.ReadyRef
			if ref, err = fsm.DecodeReady(key); err == nil {
				found = append(found, ref)
				at = fsm.PrefixEnd(fsm.ReadyPriorityPrefix(ref.Queue, ref.Priority))
			}
			return false
		})
	}
	if err == nil {
		err = rows.Err()
	}
	return found, err
}

// discovered makes the bands that were found. It returns false if too much became ready meanwhile. Locked.
func (d *Dispatcher) discovered(sh *shard, found []fsm.ReadyRef) bool {
	for i := range found {
		b := d.band(sh, found[i].Queue, found[i].Priority)
		b.unsee(b.prefix)
	}
	missed := sh.missed
	sh.missed.list, sh.missed.over = nil, false
	if missed.over {
		return false
	}
	sh.discovered = true
	for i := range missed.list {
		d.readyAdded(sh, missed.list[i])
	}
	return true
}

// loadBands counts and reads what is ready, until all is seen or memory is full.
func (d *Dispatcher) loadBands(ctx context.Context, sh *shard) error {
	d.mu.Lock()
	var bands []*band
	for _, sq := range sh.queues {
		for _, b := range sq.bands {
			if b != nil && b.unseen {
				bands = append(bands, b)
			}
		}
	}
	d.mu.Unlock()
	budget := depthLimit
	for _, b := range bands {
		n, err := d.countBand(b, budget)
		if err != nil {
			return err
		}
		budget -= n
		for more := true; more; {
			if ctx.Err() != nil {
				return nil
			}
			if err := d.loadBand(b); err != nil {
				return err
			}
			d.mu.Lock()
			more = !sh.dropped && !b.sq.paused && b.unseen && !d.full()
			d.mu.Unlock()
		}
	}
	return nil
}

// countBand counts a band's rows, up to limit.
func (d *Dispatcher) countBand(b *band, limit int) (n int, err error) {
	rows := d.host.Rows(b.sq.shard.id)
	if limit > 0 {
		rows.Scan(b.prefix, fsm.PrefixEnd(b.prefix), func(_, _ []byte) bool {
			n++
			return n < limit
		})
	}
	if err := rows.Err(); err != nil {
		return n, fmt.Errorf("count ready executions of shard %d: %w", b.sq.shard.id, err)
	}
	d.mu.Lock()
	b.depth += int64(n)
	d.mu.Unlock()
	return n, nil
}
