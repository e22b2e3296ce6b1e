package expand

import (
	"errors"
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// withZones is an evaluator whose zone data has another version, in which every zone has moved by some minutes.
func withZones(version string, minutes int64) Evaluator {
	move := minutes * 60_000
	return Evaluator{
		ZoneVersion: version,
		Horizon: func(c *storagev1.Cron, from int64, n int) (*storagev1.Horizon, error) {
			h, err := real.Horizon(c, from-move, n)
			if err != nil {
				return nil, err
			}
			h.ZoneVersion, h.ToMs = version, h.ToMs+move
			for i := range h.NextMs {
				h.NextMs[i] += move
			}
			return h, nil
		},
		Pass: func(c *storagev1.Cron, from, until int64, limit int) (first, last int64, n uint64, more bool, err error) {
			first, last, n, more, err = real.Pass(c, from-move, until-move, limit)
			return first + move, last + move, n, more, err
		},
	}
}

// walk lets zones work until they rest, and returns how often they proposed something.
func (w *world) walk(z *Zones) (commands int) {
	w.t.Helper()
	for range 1000 {
		cmd, again := z.Step(w.read(), w.queue, w.now)
		switch {
		case cmd != nil:
			commands++
			z.Told(w.now, w.apply(cmd)[0].Refusal == nil)
		case again > w.now+zonesPause:
			return commands
		case again > w.now:
			w.now = again
		case again == 0 && !w.expand():
			w.t.Fatal("zones wait for nothing")
		}
	}
	w.t.Fatal("zones come to no end")
	return 0
}

func (w *world) meta() *storagev1.Meta { return fsm.ReadMeta(w.read()) }

var daily = &storagev1.Cron{Lines: []string{"0 9 * * *"}}

// Newer zone data replaces the horizons that are older, and the jobs keep what has changed. Older data changes nothing.
func TestNewerZoneData(t *testing.T) {
	w := newWorld(t, start)
	w.eval = withZones("2026a", 0)
	z := NewZones(&w.eval)
	for i := range 1200 {
		w.create(fmt.Sprint("j", i), daily, nil)
	}
	w.create("paused", daily, func(item *storagev1.CreateJob) { item.Paused = true })
	w.settle()
	if n := w.walk(z); n != 2 || w.meta().ZoneVersion != "2026a" || w.counts.Expanded != 1200 {
		t.Fatalf("%d commands, %v, %+v", n, w.meta(), w.counts)
	}
	if n := w.walk(z); n != 0 {
		t.Fatalf("%d commands more", n)
	}
	w.runTo("2026-03-30T12:00:00Z")

	w.eval = withZones("2026b", 60)
	z = NewZones(&w.eval)
	if n := w.walk(z); n != 2 || w.meta().ZoneVersion != "2026b" || w.meta().ZoneTarget != "" {
		t.Fatalf("%d commands, %v", n, w.meta())
	}
	j := w.job("j7")
	want := &storagev1.ZoneChange{
		FromVersion: "2026a", ToVersion: "2026b", ChangedMs: j.ZoneChange.GetChangedMs(),
		OldNextMs: instant(t, "2026-03-31T09:00:00Z"), NewNextMs: instant(t, "2026-03-31T10:00:00Z"),
	}
	if j.ZoneChange.String() != want.String() || j.NextMs != want.NewNextMs || j.Horizon.ZoneVersion != "2026b" {
		t.Fatalf("%v", j)
	}
	var changed []string
	for cursor := []byte(nil); ; {
		page, next := fsm.ZoneChanges(w.read(), tenant, cursor, 500, 700)
		for _, v := range page {
			changed = append(changed, v.JobID)
		}
		if cursor = next; next == nil {
			break
		}
	}
	if len(changed) != 1200 {
		t.Errorf("%d jobs have changed", len(changed))
	}

	// A node with older data leads next.
	w.eval = withZones("2026a", 0)
	if n := w.walk(NewZones(&w.eval)); n != 0 {
		t.Fatalf("older data: %d commands", n)
	}
	w.queue.Add(w.now, ref("j7"))
	w.settle()
	if again := w.job("j7"); again.String() != j.String() {
		t.Fatalf("older data changed %v", again)
	}
	// What it appends counts as older: the promise is taken back, and newer data begins again.
	w.runTo("2026-04-12T12:00:00Z")
	if v := w.meta().ZoneVersion; v != "2026a" || w.job("j7").Horizon.ZoneVersion != "2026a" {
		t.Fatalf("the shard says %s, %v", v, w.job("j7"))
	}
	w.eval = withZones("2026b", 60)
	if n := w.walk(NewZones(&w.eval)); n != 2 || w.meta().ZoneVersion != "2026b" {
		t.Fatalf("%d commands, %v", n, w.meta())
	}
	fsm.Check(w.read(), func(v fsm.Violation) { t.Errorf("%s", v) })
}

// An older horizon that comes in while the walk is under way has its end refused, and it begins again later.
func TestOlderHorizonComesIn(t *testing.T) {
	w := newWorld(t, start)
	w.eval = withZones("2026b", 0)
	z := NewZones(&w.eval)
	cmd, _ := z.Step(w.read(), w.queue, w.now)
	z.Told(w.now, w.apply(cmd)[0].Refusal == nil)
	if again := z.nextAt; again > w.now {
		t.Fatal(again)
	}
	z.Step(w.read(), w.queue, w.now) // the shard is empty
	old := withZones("2026a", 0)
	h, err := old.Horizon(daily, w.now, 16)
	if err != nil {
		t.Fatal(err)
	}
	w.create("j", daily, func(item *storagev1.CreateJob) { item.Horizon, item.HorizonFromMs = h, w.now })
	w.walk(z)
	if w.meta().ZoneVersion != "" || z.nextAt != w.now+zonesAgain {
		t.Fatalf("%v, again in %d", w.meta(), z.nextAt-w.now)
	}
	w.now = z.nextAt
	if w.walk(z); w.meta().ZoneVersion != "2026b" || w.job("j").Horizon.ZoneVersion != "2026b" || w.job("j").ZoneChange != nil {
		t.Fatalf("%v, %v", w.meta(), w.job("j"))
	}
}

// A job that cannot be evaluated ends the walk without a promise, and nothing spins.
func TestZonesGiveUp(t *testing.T) {
	w := newWorld(t, start)
	w.eval = withZones("2026a", 0)
	w.create("j", daily, nil)
	w.create("k", daily, nil)
	w.settle()
	w.eval.ZoneVersion = "2026b"
	w.eval.Horizon = func(c *storagev1.Cron, from int64, n int) (*storagev1.Horizon, error) {
		return nil, errors.New("no such zone any more")
	}
	z := NewZones(&w.eval)
	failed := 0
	for range 50 {
		cmd, again := z.Step(w.read(), w.queue, w.now)
		if cmd != nil {
			z.Told(w.now, w.apply(cmd)[0].Refusal == nil)
		}
		if again == w.now+zonesAgain {
			break
		}
		if jobs, _ := w.queue.Take(w.now); len(jobs) > 0 {
			b := w.eval.Evaluate(w.read(), jobs, w.now, never)
			if b.Err() == nil || b.Command() != nil {
				t.Fatal(b)
			}
			failed += len(b.failed)
			w.queue.Evaluated(b)
		}
	}
	if failed != 2*zonesTries || w.meta().ZoneVersion != "" || w.counts.Failed != uint64(failed) || w.queue.Len() != 0 {
		t.Fatalf("%d failed, %v, %+v", failed, w.meta(), w.counts)
	}
}
