package wheel_test

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/wheel"
	"pgregory.net/rapid"
)

type firing struct {
	at int64
	v  string
}

func advance(w *wheel.Wheel[string], now int64) []firing {
	var out []firing
	w.Advance(now, func(at int64, v string) { out = append(out, firing{at, v}) })
	return out
}

func expect(t *testing.T, what string, got, want []firing) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func TestFiresInTimeOrderAndTiesInInsertionOrder(t *testing.T) {
	w := wheel.New[string](1_000)
	w.Add(5_000, "late")
	w.Add(2_000, "first of two")
	w.Add(1_001, "early")
	expect(t, "before", advance(w, 1_000), nil)
	expect(t, "early", advance(w, 1_999), []firing{{1_001, "early"}})
	// The second of two is added when time is near, and so at a lower level than the first was.
	w.Add(2_000, "second of two")
	expect(t, "all", advance(w, 5_000), []firing{{2_000, "first of two"}, {2_000, "second of two"}, {5_000, "late"}})
	if w.Len() != 0 {
		t.Fatalf("len %d after all fired", w.Len())
	}
}

func TestThePastFiresAtOnceInItsOwnOrder(t *testing.T) {
	w := wheel.New[string](1_000)
	w.Add(1_000, "now")
	w.Add(900, "b")
	w.Add(math.MinInt64, "a")
	w.Add(900, "c")
	if at, ok := w.Next(); !ok || at != math.MinInt64 {
		t.Fatalf("next = %d, %t", at, ok)
	}
	expect(t, "past", advance(w, 1_000), []firing{{math.MinInt64, "a"}, {900, "b"}, {900, "c"}, {1_000, "now"}})
}

func TestNothingFiresEarlyWhenTheClockIsSetBack(t *testing.T) {
	w := wheel.New[string](0)
	w.Add(5_000, "five")
	expect(t, "jump", advance(w, 3_000), nil)
	w.Add(2_000, "two")
	w.Add(1_000, "one")
	expect(t, "back", advance(w, 1_500), []firing{{1_000, "one"}})
	if at, _ := w.Next(); at != 2_000 {
		t.Fatalf("next = %d, want 2000", at)
	}
	expect(t, "forth", advance(w, 5_000), []firing{{2_000, "two"}, {5_000, "five"}})
}

func TestAnyInstantHasAPlace(t *testing.T) {
	w := wheel.New[string](math.MinInt64)
	w.Add(math.MaxInt64, "end of time")
	w.Add(0, "zero")
	w.Add(-1, "minus one")
	expect(t, "all", advance(w, math.MaxInt64), []firing{{-1, "minus one"}, {0, "zero"}, {math.MaxInt64, "end of time"}})
}

func TestHandlesDieWithTheirEntry(t *testing.T) {
	var w wheel.Wheel[string]
	fired := w.Add(1, "fires")
	advance(&w, 1)
	cancelled := w.Add(2, "cancelled")
	if !w.Cancel(cancelled) {
		t.Fatal("cancel of a live entry refused")
	}
	reused := w.Add(3, "in the same place")
	for name, h := range map[string]wheel.Handle{"none": 0, "fired": fired, "cancelled": cancelled, "made up": 1 << 20} {
		if w.Cancel(h) || w.Move(h, 9) {
			t.Errorf("handle %q still works", name)
		}
	}
	if !w.Move(reused, 4) {
		t.Fatal("move of a live entry refused")
	}
	expect(t, "moved", advance(&w, 4), []firing{{4, "in the same place"}})
}

func TestTheCallbackMayAddCancelAndMove(t *testing.T) {
	w := wheel.New[string](0)
	victim := w.Add(20, "victim")
	mover := w.Add(20, "mover")
	w.Add(10, "trigger")
	var got []firing
	w.Advance(30, func(at int64, v string) {
		got = append(got, firing{at, v})
		if v == "trigger" {
			w.Cancel(victim)
			w.Move(mover, 40)
			w.Add(5, "added, overdue")
			w.Add(15, "added, due")
			w.Add(35, "added, not due")
		}
	})
	expect(t, "fired", got, []firing{{10, "trigger"}, {5, "added, overdue"}, {15, "added, due"}})
	expect(t, "rest", advance(w, 40), []firing{{35, "added, not due"}, {40, "mover"}})
}

// TestBehavesLikeASortedSlice compares random operations with the obvious implementation.
func TestBehavesLikeASortedSlice(t *testing.T) {
	type entry struct {
		at  int64
		seq int
		h   wheel.Handle
	}
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.Int64().Draw(t, "start")
		w := wheel.New[int](now)
		var model []entry
		seq, cancelled := 0, false
		instant := func() int64 {
			if rapid.Bool().Draw(t, "anywhere") {
				return rapid.Int64().Draw(t, "at")
			}
			// Wraps near the ends of time, which is as good an instant as any.
			return now + rapid.Int64Range(-100, 10_000).Draw(t, "offset")
		}
		pick := func() int { return rapid.IntRange(0, len(model)-1).Draw(t, "which") }
		byInstant := func(a, b entry) int { return cmp.Compare(a.at, b.at) }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				at := instant()
				model = append(model, entry{at, seq, w.Add(at, seq)})
				seq++
			},
			"cancel": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				i := pick()
				if !w.Cancel(model[i].h) {
					t.Fatalf("cancel of %v refused", model[i])
				}
				model = slices.Delete(model, i, i+1)
				cancelled = true
			},
			"move": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip("empty")
				}
				e := model[pick()]
				model = slices.DeleteFunc(model, func(o entry) bool { return o.h == e.h })
				e.at = instant()
				if !w.Move(e.h, e.at) {
					t.Fatalf("move of %v refused", e)
				}
				// At the end of the model: among equal instants what was moved last fires last.
				model = append(model, e)
				cancelled = true
			},
			"advance": func(t *rapid.T) {
				to := instant()
				var want []entry
				// model is in the order of insertions and moves, so a stable sort by instant is the specification.
				slices.SortStableFunc(model, byInstant)
				for len(model) > 0 && model[0].at <= to {
					want, model = append(want, model[0]), model[1:]
				}
				var got []entry
				n := w.Advance(to, func(at int64, v int) { got = append(got, entry{at: at, seq: v}) })
				if n != len(got) {
					t.Fatalf("advance returned %d, fired %d", n, len(got))
				}
				if !slices.EqualFunc(got, want, func(a, b entry) bool { return a.at == b.at && a.seq == b.seq }) {
					t.Fatalf("advance to %d: got %v, want %v", to, got, want)
				}
				if next, ok := w.Next(); ok && next <= to {
					t.Fatalf("next %d is not after %d", next, to)
				}
				now = max(now, to)
				cancelled = cancelled && len(model) > 0
			},
			"": func(t *rapid.T) {
				if w.Len() != len(model) {
					t.Fatalf("len %d, want %d", w.Len(), len(model))
				}
				next, ok := w.Next()
				if ok != (len(model) > 0) {
					t.Fatalf("next ok = %t with %d entries", ok, len(model))
				}
				if !ok {
					return
				}
				earliest := slices.MinFunc(model, byInstant).at
				if next > earliest || (!cancelled && next != earliest) {
					t.Fatalf("next %d, earliest %d, cancelled %t", next, earliest, cancelled)
				}
			},
		})
	})
}
