package fsm

import (
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func TestFirstDifference(t *testing.T) {
	horizon := func(to int64, ended bool, next ...int64) *storagev1.Horizon {
		return &storagev1.Horizon{NextMs: next, ToMs: to, Ended: ended}
	}
	for _, c := range []struct {
		name     string
		a, b     *storagev1.Horizon
		inA, inB int64
		differ   bool
	}{
		{"the same", horizon(30, false, 10, 20, 30), horizon(30, false, 10, 20, 30), 0, 0, false},
		{"one knows more", horizon(30, false, 10, 20, 30), horizon(50, false, 10, 20, 30, 40, 50), 0, 40, false},
		{"before it is decided", horizon(30, false, 3, 20, 30), horizon(30, false, 4, 5, 20, 30), 0, 0, false},
		{"moved", horizon(30, false, 10, 20, 30), horizon(35, false, 10, 25, 35), 20, 25, true},
		{"moved the other way", horizon(35, false, 10, 25, 35), horizon(30, false, 10, 20, 30), 25, 20, true},
		{"one more", horizon(30, false, 10, 30), horizon(30, false, 10, 20, 30), 30, 20, true},
		{"none any more", horizon(30, false, 10, 20, 30), horizon(99, true, 10), 20, 0, true},
		{"ended, too", horizon(30, true, 10, 20), horizon(99, true, 10, 20), 0, 0, false},
		{"one ended and says more", horizon(20, false, 10, 20), horizon(99, true, 10, 20, 30), 0, 30, false},
		{"none for long", horizon(99, true), horizon(40, false, 40), 0, 40, true},
	} {
		inA, inB, differ := firstDifference(c.a, c.b, 5)
		if differ != c.differ || differ && (inA != c.inA || inB != c.inB) {
			t.Errorf("%s: %d, %d, %v", c.name, inA, inB, differ)
		}
	}
}

// The promise of a shard about its zone data holds whatever comes in while the leader makes it true.
func TestZonePromise(t *testing.T) {
	r := recordLog(5, 30)
	set := func(version string, done bool) *Refusal {
		results, _ := r.m.Apply(r.s, 10_000, &storagev1.Entry{Term: r.term, StampMs: r.now, Commands: []*storagev1.Command{
			{SetZoneVersion: &storagev1.SetZoneVersion{Version: version, Done: done}},
		}})
		return results[0].Refusal
	}
	comesIn := func(h *storagev1.Horizon) { (&apply{m: r.m, meta: r.m.meta}).noteZone(h) }
	is := func(version, target string) {
		t.Helper()
		if m := r.m.Meta(); m.ZoneVersion != version || m.ZoneTarget != target {
			t.Fatalf("promised is %q, on the way to %q; want %q and %q", m.ZoneVersion, m.ZoneTarget, version, target)
		}
	}
	r.m.meta.ZoneVersion, r.m.meta.ZoneTarget = "", ""
	if set("", false).Code != InvalidArgument || set("a\x00", false).Code != InvalidArgument || set("2026b", true).Code != Aborted {
		t.Fatal("accepted what cannot be")
	}
	if set("2026b", false) != nil {
		t.Fatal("refused")
	}
	is("", "2026b")
	comesIn(&storagev1.Horizon{ToMs: 5}) // says nothing
	comesIn(&storagev1.Horizon{NextMs: []int64{7}, ToMs: 7, ZoneVersion: "2026b"})
	is("", "2026b")
	if set("2026b", true) != nil || set("2026a", false) != nil || set("2026a", true) != nil {
		t.Fatal("refused")
	}
	is("2026b", "")
	if set("2026c", false) != nil {
		t.Fatal("refused")
	}
	comesIn(&storagev1.Horizon{NextMs: []int64{7}, ToMs: 7, ZoneVersion: "2026a"})
	is("2026a", "")
	if refusal := set("2026c", true); refusal == nil || refusal.Code != Aborted {
		t.Fatalf("an end that does not hold: %v", refusal)
	}
}

// TestCutHorizon: a horizon that two have been put into ends where it is as long as one may be, and not within a range.
func TestCutHorizon(t *testing.T) {
	list := func(n, step int64) (next []int64) {
		for i := range n {
			next = append(next, (i+1)*step)
		}
		return next
	}
	old := &storagev1.Horizon{NextMs: list(64, 10), ToMs: 640}
	h := &storagev1.Horizon{NextMs: list(64, 15), ToMs: 2000, Ended: true, Skipped: []*storagev1.RangeVerdict{
		{FromMs: 11, ToMs: 12, Count: 1, Why: whySkippedGap}, {FromMs: 470, ToMs: 500}, {FromMs: 490, ToMs: 490}, {FromMs: 700, ToMs: 700},
	}}
	keepDue(old, h, 640)
	if validHorizon(h, 0) != nil || len(h.Skipped) != 1 || h.ToMs != 469 || h.Ended || h.NextMs[len(h.NextMs)-1] != 465 {
		t.Fatalf("it ends at %d (%v) with %v and %v", h.ToMs, h.Ended, h.NextMs, h.Skipped)
	}
}
