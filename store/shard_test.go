package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"pgregory.net/rapid"
)

// rowsOf returns the rows of a scan as "key=value", as they were when fn saw them.
func rowsOf(r fsm.Reader, start, end []byte) []string {
	var rows []string
	r.Scan(start, end, func(key, value []byte) bool {
		rows = append(rows, fmt.Sprintf("%s=%s", key, value))
		return true
	})
	return rows
}

// commit ends a shard's turn.
func commit(t rapid.TB, engine store.Engine, shards ...*store.Shard) {
	t.Helper()
	b := engine.NewBatch()
	for _, s := range shards {
		if err := s.Flush(b); err != nil {
			t.Fatal(err)
		}
	}
	wait, err := engine.Commit(b, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shards {
		s.Committed()
	}
}

func set(s *store.Shard, key, value string) { s.Set([]byte(key), []byte(value)) }

func TestAShardSeesItsOwnWritesBeforeTheyAreCommitted(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 7, store.NewCache(0))
	set(shard, "a1", "old")
	set(shard, "a2", "old")
	set(shard, "a3", "old")
	commit(t, engine, shard)
	set(shard, "a2", "new")
	shard.Delete([]byte("a3"))
	set(shard, "a0", "added")
	if got, want := rowsOf(shard, []byte("a"), []byte("b")), []string{"a0=added", "a1=old", "a2=new"}; !slices.Equal(got, want) {
		t.Errorf("scan: got %q, want %q", got, want)
	}
	if _, ok := shard.Get([]byte("a3")); ok {
		t.Error("deleted row found")
	}
	committed := store.NewReader(engine, 7)
	if got, want := rowsOf(committed, nil, nil), []string{"a1=old", "a2=old", "a3=old"}; !slices.Equal(got, want) {
		t.Errorf("others see: got %q, want %q", got, want)
	}
}

func TestARangeDeleteCoversWhatCameBeforeAndNotWhatComesAfter(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(1<<20))
	for _, key := range []string{"x1", "x2", "x3", "y1"} {
		set(shard, key, "committed")
	}
	commit(t, engine, shard)
	set(shard, "x4", "written before")
	shard.DeleteRange([]byte("x"), []byte("y"))
	set(shard, "x2", "written after")
	want := []string{"x2=written after", "y1=committed"}
	for _, when := range []string{"before", "after"} {
		if got := rowsOf(shard, nil, nil); !slices.Equal(got, want) {
			t.Errorf("scan %s the commit: got %q, want %q", when, got, want)
		}
		for _, key := range []string{"x1", "x3", "x4"} {
			if value, ok := shard.Get([]byte(key)); ok {
				t.Errorf("get %s the commit: %s = %q", when, key, value)
			}
		}
		if when == "before" {
			commit(t, engine, shard)
		}
	}
}

func TestAScanWalksTheRowsAsTheyStoodWhenItBegan(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(0))
	set(shard, "t1", "committed")
	set(shard, "t3", "committed")
	commit(t, engine, shard)
	set(shard, "t2", "written")
	var seen []string
	shard.Scan([]byte("t"), []byte("u"), func(key, value []byte) bool {
		seen = append(seen, string(key)+"="+string(value))
		shard.Delete(key)
		set(shard, "t2", "changed")
		set(shard, "t"+string(key[1:])+"+", "added")
		shard.DeleteRange([]byte("t3"), []byte("t4"))
		return true
	})
	if want := []string{"t1=committed", "t2=written", "t3=committed"}; !slices.Equal(seen, want) {
		t.Errorf("scan: got %q, want %q", seen, want)
	}
	// In the last round t2 is set again, t3+ is added and then covered by the range delete.
	if got, want := rowsOf(shard, nil, nil), []string{"t1+=added", "t2=changed", "t2+=added"}; !slices.Equal(got, want) {
		t.Errorf("afterwards: got %q, want %q", got, want)
	}
}

func TestAScanMayScan(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(0))
	for _, key := range []string{"a1", "a2", "b1", "b2"} {
		set(shard, key, "v")
	}
	// Twice: the second scan finds the space that the first one used.
	for range 2 {
		var seen []string
		shard.Scan([]byte("a"), []byte("b"), func(outer, _ []byte) bool {
			shard.Scan([]byte("b"), []byte("c"), func(inner, _ []byte) bool {
				seen = append(seen, string(outer)+string(inner))
				return true
			})
			return true
		})
		if want := []string{"a1b1", "a1b2", "a2b1", "a2b2"}; !slices.Equal(seen, want) {
			t.Fatalf("got %q, want %q", seen, want)
		}
	}
}

func TestALargeTurnLeavesNothingBehind(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(0))
	for i := range 5_000 {
		set(shard, fmt.Sprintf("k%d", i), "v")
	}
	commit(t, engine, shard)
	commit(t, engine, shard)
	if c := shard.Counters(); c.KeyWrites != 5_000 {
		t.Errorf("%d key writes", c.KeyWrites)
	}
	if n := len(rowsOf(shard, nil, nil)); n != 5_000 {
		t.Errorf("%d rows", n)
	}
}

func TestRowsHandedOutStayAsTheyWere(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(0))
	for i := range 200 {
		set(shard, fmt.Sprintf("k%03d", i), fmt.Sprintf("v%03d", i))
	}
	commit(t, engine, shard)
	var keys, values [][]byte
	shard.Scan(nil, nil, func(key, value []byte) bool {
		keys, values = append(keys, key), append(values, value)
		return true
	})
	for i := range keys {
		shard.Set(bytes.Clone(keys[i]), []byte("overwritten"))
	}
	commit(t, engine, shard)
	rowsOf(shard, nil, nil)
	for i := range keys {
		if string(keys[i]) != fmt.Sprintf("k%03d", i) || string(values[i]) != fmt.Sprintf("v%03d", i) {
			t.Fatalf("row %d became %s=%s", i, keys[i], values[i])
		}
	}
}

func TestShardsDoNotSeeEachOther(t *testing.T) {
	engine := store.OpenMemory()
	cache := store.NewCache(1 << 20)
	one, two := store.NewShard(engine, 1, cache), store.NewShard(engine, 2, cache)
	last := store.NewShard(engine, store.MaxShard, cache)
	for _, s := range []*store.Shard{one, two, last} {
		set(s, "k", "v")
		set(s, "\xff\xff", "last")
	}
	commit(t, engine, one, two, last)
	one.DeleteRange(nil, nil)
	last.DeleteRange([]byte("l"), nil)
	commit(t, engine, one, two, last)
	for _, c := range []struct {
		shard *store.Shard
		want  []string
	}{{one, nil}, {two, []string{"k=v", "\xff\xff=last"}}, {last, []string{"k=v"}}} {
		if got := rowsOf(c.shard, nil, nil); !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestJustWrittenRowsAreReadWithoutTheEngine(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(1<<20, 'l'))
	set(shard, "l1", "lease")
	set(shard, "e1", "event")
	commit(t, engine, shard)
	if value, ok := shard.Get([]byte("l1")); !ok || string(value) != "lease" {
		t.Fatalf("get l1 = %q, %t", value, ok)
	}
	if c := shard.Counters(); c.Gets != 0 || c.CacheHits != 1 || c.KeyWrites != 2 {
		t.Errorf("counters after a hit: %+v", c)
	}
	shard.Get([]byte("e1"))
	if c := shard.Counters(); c.Gets != 1 || c.CacheHits != 1 {
		t.Errorf("counters after reading a kind that is not cached: %+v", c)
	}
	shard.Delete([]byte("l1"))
	commit(t, engine, shard)
	if _, ok := shard.Get([]byte("l1")); ok {
		t.Error("a deleted row came from the cache")
	}
}

func TestTheCacheKeepsItsBudgetAndWhatIsUsed(t *testing.T) {
	engine := store.OpenMemory()
	const budget = 100_000
	cache := store.NewCache(budget)
	shard := store.NewShard(engine, 1, cache)
	set(shard, "favourite", "value")
	commit(t, engine, shard)
	for i := range 10_000 {
		set(shard, fmt.Sprintf("row%d", i), "0123456789")
		commit(t, engine, shard)
		shard.Get([]byte("favourite"))
		if cache.Bytes() > budget {
			t.Fatalf("%d bytes cached, budget %d", cache.Bytes(), budget)
		}
	}
	if c := shard.Counters(); c.Gets != 0 || c.CacheHits != 10_000 {
		t.Errorf("a row in use was evicted: %+v", c)
	}
	if cache.Len() < budget/300 {
		t.Errorf("only %d rows cached", cache.Len())
	}
}

// A shard that goes leaves the cache to the others, whatever its turn has come to.
func TestAReleasedShardLeavesTheCache(t *testing.T) {
	engine, cache := store.OpenMemory(), store.NewCache(1<<20)
	stays, goes := store.NewShard(engine, 7, cache), store.NewShard(engine, 8, cache)
	set(stays, "a", "kept")
	set(goes, "a", "dropped")
	commit(t, engine, stays, goes)
	set(goes, "b", "never committed")
	if err := goes.Flush(engine.NewBatch()); err != nil {
		t.Fatal(err)
	}
	goes.Release()
	if cache.Len() != 1 {
		t.Errorf("the cache holds %d rows", cache.Len())
	}
	if value, ok := stays.Get([]byte("a")); !ok || string(value) != "kept" || stays.Counters().CacheHits != 1 {
		t.Errorf("got %q, %v, %+v", value, ok, stays.Counters())
	}
}

func TestAReadErrorVoidsTheTurn(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(0))
	set(shard, "k", "v")
	commit(t, engine, shard)
	broken := errors.New("input/output error")
	engine.Fail(broken)
	if _, ok := shard.Get([]byte("k")); ok {
		t.Error("get found a row in a failed engine")
	}
	shard.Scan(nil, nil, func(key, _ []byte) bool { t.Errorf("scan found %s in a failed engine", key); return true })
	if err := shard.Flush(engine.NewBatch()); !errors.Is(err, broken) {
		t.Errorf("flush: %v", err)
	}
	if err := shard.Err(); !errors.Is(err, broken) {
		t.Errorf("err: %v", err)
	}
}

func TestWritingBetweenFlushAndCommittedIsABug(t *testing.T) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(0))
	set(shard, "k", "v")
	if err := shard.Flush(engine.NewBatch()); err != nil {
		t.Fatal(err)
	}
	for name, fn := range map[string]func(){
		"set":         func() { set(shard, "k", "w") },
		"delete":      func() { shard.Delete([]byte("k")) },
		"deleteRange": func() { shard.DeleteRange(nil, nil) },
		"flush":       func() { _ = shard.Flush(engine.NewBatch()) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s after flush did not panic", name)
				}
			}()
			fn()
		}()
	}
}

// TestAShardBehavesLikeAMap compares overlay, cache and engine under random turns with plain maps.
func TestAShardBehavesLikeAMap(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		rapid.Check(t, func(t *rapid.T) { compareShardsWithMaps(t, open(t)) })
	})
}

func compareShardsWithMaps(t *rapid.T, engine store.Engine) {
	defer func() {
		if err := engine.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	cache := store.NewCache(rapid.SampledFrom([]int64{0, 1_000, 1 << 20}).Draw(t, "budget"), 'a', 'b')
	shards := []*store.Shard{store.NewShard(engine, 1, cache), store.NewShard(engine, 2, cache)}
	models := []map[string]string{{}, {}}
	key := rapid.StringMatching(`[abc][0-9]{0,2}`)
	bound := rapid.OneOf(key, rapid.Just(""))
	draw := func() (*store.Shard, map[string]string) {
		i := rapid.IntRange(0, 1).Draw(t, "shard")
		return shards[i], models[i]
	}
	// span draws a range; an empty end is the end of the shard.
	span := func() (start, end []byte, in func(string) bool) {
		from, to := bound.Draw(t, "start"), bound.Draw(t, "end")
		start = []byte(from)
		if to != "" {
			end = []byte(to)
		}
		return start, end, func(k string) bool { return k >= from && (to == "" || k < to) }
	}
	expected := func(model map[string]string, in func(string) bool) (rows []string) {
		for _, k := range slices.Sorted(maps.Keys(model)) {
			if in(k) {
				rows = append(rows, k+"="+model[k])
			}
		}
		return rows
	}
	n := 0
	t.Repeat(map[string]func(*rapid.T){
		"set": func(t *rapid.T) {
			shard, model := draw()
			for range rapid.IntRange(1, 5).Draw(t, "rows") {
				k := key.Draw(t, "key")
				n++
				model[k] = fmt.Sprint(n)
				set(shard, k, model[k])
			}
		},
		"delete": func(t *rapid.T) {
			shard, model := draw()
			k := key.Draw(t, "key")
			delete(model, k)
			buf := []byte(k)
			shard.Delete(buf)
			buf[0] = '!'
		},
		"deleteRange": func(t *rapid.T) {
			shard, model := draw()
			start, end, in := span()
			maps.DeleteFunc(model, func(k, _ string) bool { return in(k) })
			shard.DeleteRange(start, end)
			clear(start)
			clear(end)
		},
		"get": func(t *rapid.T) {
			shard, model := draw()
			k := key.Draw(t, "key")
			got, ok := shard.Get([]byte(k))
			if want, exists := model[k]; ok != exists || string(got) != want {
				t.Fatalf("get %s = %q, %t; want %q, %t", k, got, ok, want, exists)
			}
		},
		"scan": func(t *rapid.T) {
			shard, model := draw()
			start, end, in := span()
			want := expected(model, in)
			if limit := rapid.IntRange(1, 20).Draw(t, "limit"); len(want) > limit {
				want = want[:limit]
			}
			var got []string
			shard.Scan(start, end, func(k, v []byte) bool {
				got = append(got, fmt.Sprintf("%s=%s", k, v))
				return len(got) < len(want)
			})
			if !slices.Equal(got, want) {
				t.Fatalf("scan [%s, %s): got %q, want %q", start, end, got, want)
			}
		},
		"commit": func(t *rapid.T) {
			commit(t, engine, shards...)
			for i, model := range models {
				all := func(string) bool { return true }
				r := store.NewReader(engine, uint32(i+1))
				if got, want := rowsOf(r, nil, nil), expected(model, all); !slices.Equal(got, want) {
					t.Fatalf("committed rows of shard %d: got %q, want %q", i+1, got, want)
				}
			}
		},
		"": func(t *rapid.T) {
			for _, shard := range shards {
				if err := shard.Err(); err != nil {
					t.Fatal(err)
				}
			}
		},
	})
}

func TestKeysOnDiskStayAsTheyAre(t *testing.T) {
	if got, want := store.AppendKey([]byte("dst"), 0x01020304, []byte("j\x00")), "dst\x01\x02\x03\x04j\x00"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if start, end := store.Span(0xff); string(start) != "\x00\x00\x00\xff" || string(end) != "\x00\x00\x01\x00" {
		t.Errorf("span %x to %x", start, end)
	}
}

func FuzzKeysSplitAsTheyWereMade(f *testing.F) {
	f.Add([]byte{0, 0, 0, 7, 'j'})
	f.Add([]byte{1, 2})
	f.Fuzz(func(t *testing.T, key []byte) {
		shard, row, ok := store.SplitKey(key)
		if ok != (len(key) >= 4) {
			t.Fatalf("split of %x: ok = %t", key, ok)
		}
		if !ok {
			return
		}
		if again := store.AppendKey(nil, shard, row); !bytes.Equal(again, key) {
			t.Fatalf("%x became %x", key, again)
		}
		if shard > store.MaxShard {
			return
		}
		if start, end := store.Span(shard); bytes.Compare(key, start) < 0 || bytes.Compare(key, end) >= 0 {
			t.Fatalf("%x is not within [%x, %x)", key, start, end)
		}
	})
}
