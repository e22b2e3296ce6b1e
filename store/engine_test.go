package store_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// smallMemTable makes Pebble flush and rotate its log often.
const smallMemTable = 64 << 10

// forEachEngine runs a test over both implementations. What open returns is the test's to close.
func forEachEngine(t *testing.T, test func(t *testing.T, open func(rapid.TB) store.Engine)) {
	t.Run("memory", func(t *testing.T) {
		test(t, func(rapid.TB) store.Engine { return store.OpenMemory() })
	})
	t.Run("pebble", func(t *testing.T) {
		test(t, func(t rapid.TB) store.Engine { return openPebble(t, vfs.NewMem(), nil) })
	})
}

// openPebble opens a store on a file system in memory. Without onFatal a failure in the background fails the test.
func openPebble(t rapid.TB, fs vfs.FS, onFatal func(error)) *store.Pebble {
	t.Helper()
	if onFatal == nil {
		onFatal = func(err error) { t.Errorf("engine failed: %v", err) }
	}
	engine, err := store.OpenPebble("data", store.Options{
		CacheBytes: 1 << 20, MemTableBytes: smallMemTable, FS: fs, OnFatal: onFatal,
	})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// write commits without waiting for a sync.
func write(t rapid.TB, engine store.Engine, fill func(store.Batch)) {
	t.Helper()
	b := engine.NewBatch()
	fill(b)
	if _, err := engine.Commit(b, false); err != nil {
		t.Fatal(err)
	}
}

// contents returns all rows of a source as "key=value".
func contents(t rapid.TB, source store.Source, start, end []byte) []string {
	t.Helper()
	it, err := source.NewIter(start, end)
	if err != nil {
		t.Fatal(err)
	}
	return drain(t, it)
}

func drain(t rapid.TB, it store.Iterator) (rows []string) {
	t.Helper()
	for ok := it.First(); ok; ok = it.Next() {
		rows = append(rows, fmt.Sprintf("%s=%s", it.Key(), it.Value()))
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		t.Fatal(err)
	}
	return rows
}

func mustClose(t rapid.TB, closer interface{ Close() error }) {
	t.Helper()
	if err := closer.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestABatchAppliesWholeAndInItsOrder(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		defer mustClose(t, engine)
		b := engine.NewBatch()
		key, value := []byte("k1"), []byte("v1")
		b.Set(key, value)
		b.Set([]byte("k2"), []byte("v2"))
		b.DeleteRange([]byte("k2"), []byte("k3"))
		b.DeleteRange([]byte("k9"), []byte("k0"))
		b.Set([]byte("k3"), nil)
		b.Set([]byte("k4"), []byte("v4"))
		b.Delete([]byte("k4"))
		copy(key, "!!")
		copy(value, "!!")
		if b.Len() != 6 {
			t.Errorf("len %d, want 6: the empty range is no write", b.Len())
		}
		if rows := contents(t, engine, nil, nil); rows != nil {
			t.Errorf("before the commit: %q", rows)
		}
		if _, err := engine.Commit(b, false); err != nil {
			t.Fatal(err)
		}
		if rows, want := contents(t, engine, nil, nil), []string{"k1=v1", "k3="}; !slices.Equal(rows, want) {
			t.Errorf("got %q, want %q", rows, want)
		}
		if value, ok, err := engine.Get([]byte("k3")); err != nil || !ok || value == nil || len(value) > 0 {
			t.Errorf("an empty value came back as %v, %t, %v", value, ok, err)
		}
		if _, ok, err := engine.Get([]byte("k2")); err != nil || ok {
			t.Errorf("a row never written came back: %t, %v", ok, err)
		}
	})
}

func TestIteratorsAndSnapshotsStandStill(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		defer mustClose(t, engine)
		write(t, engine, func(b store.Batch) { b.Set([]byte("k"), []byte("then")) })
		it, err := engine.NewIter(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		snapshot, err := engine.NewSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		defer mustClose(t, snapshot)
		write(t, engine, func(b store.Batch) {
			b.Set([]byte("k"), []byte("now"))
			b.Set([]byte("l"), []byte("now"))
		})
		if rows, want := drain(t, it), []string{"k=then"}; !slices.Equal(rows, want) {
			t.Errorf("iterator: got %q, want %q", rows, want)
		}
		if rows, want := contents(t, snapshot, nil, nil), []string{"k=then"}; !slices.Equal(rows, want) {
			t.Errorf("snapshot: got %q, want %q", rows, want)
		}
		if value, ok, err := snapshot.Get([]byte("k")); err != nil || !ok || string(value) != "then" {
			t.Errorf("snapshot's get: %q, %t, %v", value, ok, err)
		}
		if rows, want := contents(t, engine, nil, nil), []string{"k=now", "l=now"}; !slices.Equal(rows, want) {
			t.Errorf("engine: got %q, want %q", rows, want)
		}
	})
}

// TestReadersSeeWholeBatches reads on other goroutines while batches that belong together are committed.
func TestReadersSeeWholeBatches(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		defer mustClose(t, engine)
		var group errgroup.Group
		for range 2 {
			group.Go(func() error {
				for range 500 {
					if err := readBoth(engine); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for i := range 500 {
			write(t, engine, func(b store.Batch) {
				b.Set(store.AppendKey(nil, 1, []byte("from")), fmt.Append(nil, i))
				b.Set(store.AppendKey(nil, 1, []byte("to")), fmt.Append(nil, i))
			})
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func readBoth(engine store.Engine) error {
	snapshot, err := engine.NewSnapshot()
	if err != nil {
		return err
	}
	r := store.NewReader(snapshot, 1)
	from, _ := r.Get([]byte("from"))
	to, _ := r.Get([]byte("to"))
	if string(from) != string(to) {
		err = fmt.Errorf("half a batch: from=%s to=%s", from, to)
	}
	return errors.Join(err, r.Err(), snapshot.Close())
}

func TestAClosedEngineSaysSo(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		b := engine.NewBatch()
		mustClose(t, engine)
		_, _, getErr := engine.Get([]byte("k"))
		_, iterErr := engine.NewIter(nil, nil)
		_, snapshotErr := engine.NewSnapshot()
		_, commitErr := engine.Commit(b, true)
		for name, err := range map[string]error{
			"get": getErr, "iter": iterErr, "snapshot": snapshotErr, "commit": commitErr, "close": engine.Close(),
		} {
			if !errors.Is(err, store.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestEnginesCountTheirReads(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		defer mustClose(t, engine)
		write(t, engine, func(b store.Batch) { b.Set([]byte("k"), []byte("v")) })
		for range 3 {
			if _, _, err := engine.Get([]byte("k")); err != nil {
				t.Fatal(err)
			}
		}
		contents(t, engine, nil, nil)
		if m := engine.Metrics(); m.Gets != 3 || m.Iters != 1 {
			t.Errorf("%d gets, %d iterators; want 3 and 1", m.Gets, m.Iters)
		}
	})
}

func TestCloseReportsAnIteratorLeftOpen(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		it, err := engine.NewIter(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := engine.Close(); err == nil {
			t.Error("close said nothing")
		}
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAScanThatPanicsLeavesNoIteratorOpen(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		write(t, engine, func(b store.Batch) { b.Set(store.AppendKey(nil, 1, []byte("a")), nil) })
		written := store.NewShard(engine, 1, store.NewCache(0))
		set(written, "b", "")
		for _, r := range []fsm.Reader{store.NewReader(engine, 1), store.NewShard(engine, 1, store.NewCache(0)), written} {
			func() {
				defer func() {
					if recover() == nil {
						t.Error("nothing was scanned")
					}
				}()
				r.Scan(nil, nil, func(_, _ []byte) bool { panic("corrupt") })
			}()
		}
		mustClose(t, engine)
	})
}

// TestEnginesBehaveLikeAMap compares random batches, gets and walks with a plain map.
func TestEnginesBehaveLikeAMap(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		rapid.Check(t, func(t *rapid.T) {
			engine := open(t)
			defer mustClose(t, engine)
			model := map[string]string{}
			n := 0
			t.Repeat(map[string]func(*rapid.T){
				"commit": func(t *rapid.T) {
					b := engine.NewBatch()
					for range rapid.IntRange(0, 10).Draw(t, "writes") {
						n++
						randomWrite(t, n).apply(b, model)
					}
					if _, err := engine.Commit(b, false); err != nil {
						t.Fatal(err)
					}
				},
				"get": func(t *rapid.T) {
					k := anyKey.Draw(t, "key")
					got, ok, err := engine.Get([]byte(k))
					if want, exists := model[k]; err != nil || ok != exists || string(got) != want {
						t.Fatalf("get %q = %q, %t, %v; want %q, %t", k, got, ok, err, want, exists)
					}
				},
				"install": func(t *rapid.T) { n = randomInstall(t, engine, model, n) },
				"walk":    func(t *rapid.T) { compareWalk(t, engine, model) },
			})
		})
	})
}

// randomInstall replaces a random span by random rows, numbered from n on.
func randomInstall(t *rapid.T, engine store.Engine, model map[string]string, n int) int {
	from, to := anyKey.Draw(t, "from"), anyKey.Draw(t, "to")
	if from >= to {
		t.Skip("an empty span")
	}
	maps.DeleteFunc(model, func(k, _ string) bool { return k >= from && k < to })
	keys := rapid.SliceOfDistinct(anyKey, rapid.ID).Draw(t, "keys")
	var rows []string
	for _, k := range slices.Sorted(slices.Values(keys)) {
		if k >= from && k < to {
			n++
			model[k] = fmt.Sprint(n)
			rows = append(rows, k+"="+model[k])
		}
	}
	install(t, engine, from, to, rows...)
	return n
}

// compareWalk opens an iterator with random bounds and walks, again from the beginning if it likes.
func compareWalk(t *rapid.T, engine store.Engine, model map[string]string) {
	from, to := anyKey.Draw(t, "from"), anyKey.Draw(t, "to")
	it, err := engine.NewIter([]byte(from), []byte(to))
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, it)
	var want []string
	for _, k := range slices.Sorted(maps.Keys(model)) {
		if k >= from && k < to {
			want = append(want, k+"="+model[k])
		}
	}
	for range rapid.IntRange(1, 2).Draw(t, "walks") {
		var got []string
		for ok := it.First(); ok; ok = it.Next() {
			if !it.Valid() {
				t.Fatal("moved to a row that is not valid")
			}
			got = append(got, fmt.Sprintf("%s=%s", it.Key(), it.Value()))
		}
		if it.Valid() || !slices.Equal(got, want) {
			t.Fatalf("[%q, %q): got %q, want %q", from, to, got, want)
		}
	}
}

var anyKey = rapid.StringMatching(`[a-c]{1,3}`)

// randomOp is one write, of a batch and of a map alike.
type randomOp struct {
	kind            string
	key, end, value string
}

func randomWrite(t *rapid.T, n int) randomOp {
	return randomOp{
		kind:  rapid.SampledFrom([]string{"set", "set", "set", "delete", "deleteRange"}).Draw(t, "kind"),
		key:   anyKey.Draw(t, "key"),
		end:   anyKey.Draw(t, "end"),
		value: fmt.Sprint(n),
	}
}

func (o randomOp) apply(b store.Batch, model map[string]string) {
	switch o.kind {
	case "set":
		b.Set([]byte(o.key), []byte(o.value))
		model[o.key] = o.value
	case "delete":
		b.Delete([]byte(o.key))
		delete(model, o.key)
	case "deleteRange":
		b.DeleteRange([]byte(o.key), []byte(o.end))
		maps.DeleteFunc(model, func(k, _ string) bool { return k >= o.key && k < o.end })
	}
}
