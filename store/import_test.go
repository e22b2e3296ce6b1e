package store_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"
)

// install replaces the rows in [start, end) by those given as "key=value", in order.
func install(t rapid.TB, engine store.Engine, start, end string, rows ...string) {
	t.Helper()
	if err := engine.Install(importOf(t, engine, start, end, rows...)); err != nil {
		t.Fatal(err)
	}
}

// importOf returns an import that holds rows.
func importOf(t rapid.TB, engine store.Engine, start, end string, rows ...string) store.Import {
	t.Helper()
	im, err := engine.NewImport([]byte(start), []byte(end))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		key, value, _ := strings.Cut(row, "=")
		if err := im.Set([]byte(key), []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	return im
}

// inMemory and onDisk are places where old rows may stand when an install comes.
const (
	inMemory = "in memory"
	onDisk   = "on disk"
	both     = "both"
)

// oldRows writes a, b1 to b3 and c, and leaves them in memtables, in tables, or half and half.
func oldRows(t rapid.TB, engine store.Engine, where string) {
	t.Helper()
	put := func(keys ...string) {
		write(t, engine, func(b store.Batch) {
			for _, key := range keys {
				b.Set([]byte(key), []byte("old"))
			}
		})
	}
	if where != inMemory {
		put("a", "b1", "b2", "c")
		// What fills more than one memtable gets the rows before it flushed.
		for i := range 100 {
			write(t, engine, func(b store.Batch) { b.Set(fmt.Appendf(nil, "z%03d", i), make([]byte, 2_000)) })
		}
		write(t, engine, func(b store.Batch) { b.DeleteRange([]byte("z"), []byte("zz")) })
	}
	if where == inMemory {
		put("a", "b1", "b2", "c")
	}
	if where != onDisk {
		put("b3")
	}
}

func TestAnInstallReplacesItsSpanAndNothingElse(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		for _, where := range []string{inMemory, onDisk, both} {
			for name, rows := range map[string][]string{
				"rows": {"b=least", "b2=new", "b4=new", "bzz="},
				"none": nil,
			} {
				t.Run(name+" over "+where, func(t *testing.T) {
					engine := open(t)
					defer mustClose(t, engine)
					oldRows(t, engine, where)
					install(t, engine, "b", "c", rows...)
					want := append(append([]string{"a=old"}, rows...), "c=old")
					if got := contents(t, engine, nil, nil); !slices.Equal(got, want) {
						t.Errorf("got %q, want %q", got, want)
					}
					if value, ok, err := engine.Get([]byte("b1")); ok || err != nil {
						t.Errorf("an old row came back: %q, %v", value, err)
					}
					if m := engine.Metrics(); m.Imports != 1 || m.Installs != 1 {
						t.Errorf("%d imports, %d installs", m.Imports, m.Installs)
					}
					write(t, engine, func(b store.Batch) { b.Set([]byte("b2"), []byte("newer")) })
					if value, _, err := engine.Get([]byte("b2")); string(value) != "newer" || err != nil {
						t.Errorf("written after the install: %q, %v", value, err)
					}
				})
			}
		}
	})
}

func TestAnImportOfManyFilesIsOneStep(t *testing.T) {
	engine := openPebble(t, vfs.NewMem(), nil)
	defer mustClose(t, engine)
	engine.SetImportFileBytes(10_000)
	oldRows(t, engine, both)
	var rows []string
	for i := range 1_000 {
		rows = append(rows, fmt.Sprintf("b%04d=%050d", i, i*i*i))
	}
	install(t, engine, "b", "c", rows...)
	if got := contents(t, engine, []byte("b"), []byte("c")); !slices.Equal(got, rows) {
		t.Errorf("%d rows came back of %d", len(got), len(rows))
	}
}

func TestAnImportRefusesRowsOutOfPlace(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		for name, keys := range map[string][]string{
			"twice":           {"b1", "b1"},
			"backwards":       {"b2", "b1"},
			"before the span": {"a"},
			"at its end":      {"b1", "c"},
		} {
			t.Run(name, func(t *testing.T) {
				engine := open(t)
				defer mustClose(t, engine)
				oldRows(t, engine, inMemory)
				im := importOf(t, engine, "b", "c", keys[:len(keys)-1]...)
				if err := im.Set([]byte(keys[len(keys)-1]), nil); err == nil {
					t.Fatal("no error")
				}
				if err := im.Set([]byte("b9"), nil); err == nil {
					t.Error("it goes on after an error")
				}
				if err := engine.Install(im); err == nil {
					t.Error("installed after an error")
				}
				mustAbort(t, im)
				if got := contents(t, engine, nil, nil); len(got) != 5 {
					t.Errorf("rows: %q", got)
				}
			})
		}
		t.Run("no span", func(t *testing.T) {
			engine := open(t)
			defer mustClose(t, engine)
			for _, span := range [][2]string{{"b", "b"}, {"c", "b"}, {"", "b"}, {"b", ""}} {
				if _, err := engine.NewImport([]byte(span[0]), []byte(span[1])); err == nil {
					t.Errorf("%q: no error", span)
				}
			}
		})
	})
}

func mustAbort(t rapid.TB, im store.Import) {
	t.Helper()
	if err := im.Abort(); err != nil {
		t.Errorf("abort: %v", err)
	}
}

func TestAnImportEndsOnce(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		engine := open(t)
		oldRows(t, engine, inMemory)
		before := contents(t, engine, nil, nil)
		im := importOf(t, engine, "b", "c", "b=new")
		mustAbort(t, im)
		mustAbort(t, im)
		if err := im.Set([]byte("b1"), nil); err == nil {
			t.Error("a row after the end")
		}
		if err := engine.Install(im); err == nil {
			t.Error("installed after the end")
		}
		if got := contents(t, engine, nil, nil); !slices.Equal(got, before) {
			t.Errorf("got %q, want %q", got, before)
		}
		im = importOf(t, engine, "b", "c", "b=new")
		if err := engine.Install(im); err != nil {
			t.Fatal(err)
		}
		if err := engine.Install(im); err == nil {
			t.Error("installed twice")
		}
		mustAbort(t, im)
		if value, _, err := engine.Get([]byte("b")); string(value) != "new" || err != nil {
			t.Errorf("after an abort that came too late: %q, %v", value, err)
		}
		im = importOf(t, engine, "b", "c")
		mustClose(t, engine)
		if _, err := engine.NewImport([]byte("b"), []byte("c")); !errors.Is(err, store.ErrClosed) {
			t.Errorf("import of a closed engine: %v", err)
		}
		if err := im.Set([]byte("b"), nil); !errors.Is(err, store.ErrClosed) {
			t.Errorf("set of a closed engine: %v", err)
		}
		if err := engine.Install(im); !errors.Is(err, store.ErrClosed) {
			t.Errorf("install of a closed engine: %v", err)
		}
	})
}

func TestAnEndedImportLeavesNoFile(t *testing.T) {
	fs := vfs.NewMem()
	engine := openPebble(t, fs, nil)
	defer mustClose(t, engine)
	engine.SetImportFileBytes(1)
	mustAbort(t, importOf(t, engine, "b", "c", "b1=new", "b2=new"))
	install(t, engine, "b", "c", "b1=new", "b2=new")
	if files := importFiles(t, fs); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
}

func importFiles(t rapid.TB, fs vfs.FS) []string {
	t.Helper()
	files, err := fs.List(fs.PathJoin("data", store.ImportDir))
	if err != nil && !strings.Contains(err.Error(), "not exist") {
		t.Fatal(err)
	}
	return files
}

func TestWhatACrashLeavesOfAnImportGoesAtTheNextOpen(t *testing.T) {
	fs := vfs.NewCrashableMem()
	engine := openPebble(t, fs, nil)
	engine.SetImportFileBytes(1)
	oldRows(t, engine, inMemory)
	wait, err := engine.Commit(engine.NewBatch(), true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	before := contents(t, engine, nil, nil)
	im := importOf(t, engine, "b", "c", "b1=new", "b2=new")
	crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	mustAbort(t, im)
	mustClose(t, engine)
	if files := importFiles(t, crashed); len(files) < 2 {
		t.Fatalf("the crash left %q: nothing to see here", files)
	}
	restarted := openPebble(t, crashed, nil)
	defer mustClose(t, restarted)
	if files := importFiles(t, crashed); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
	if got := contents(t, restarted, nil, nil); !slices.Equal(got, before) {
		t.Errorf("got %q, want %q", got, before)
	}
}

// An import that cannot be written is nobody's loss but its own.
func TestADiskTooFullForAnImportLeavesTheEngineWell(t *testing.T) {
	f := &fault{err: syscall.ENOSPC, match: func(op errorfs.Op) bool {
		return strings.Contains(op.Path, store.ImportDir) && op.Kind == errorfs.OpFileWrite
	}}
	fs := vfs.NewMem()
	engine := openPebble(t, errorfs.Wrap(fs, f), nil)
	defer mustClose(t, engine)
	oldRows(t, engine, inMemory)
	before := contents(t, engine, nil, nil)
	f.on.Store(true)
	im := importOf(t, engine, "b", "c", "b1=new")
	if err := engine.Install(im); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("install: %v", err)
	}
	f.on.Store(false)
	mustAbort(t, im)
	if files := importFiles(t, fs); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
	if got := contents(t, engine, nil, nil); !slices.Equal(got, before) {
		t.Errorf("got %q, want %q", got, before)
	}
	install(t, engine, "b", "c", "b1=new")
}

func TestReadersOverAnInstall(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		for _, where := range []string{inMemory, onDisk, both} {
			t.Run("old rows "+where, func(t *testing.T) {
				engine := open(t)
				defer mustClose(t, engine)
				oldRows(t, engine, where)
				before := contents(t, engine, nil, []byte("y"))
				snapshot, err := engine.NewSnapshot()
				if err != nil {
					t.Fatal(err)
				}
				defer mustClose(t, snapshot)
				it, err := snapshot.NewIter(nil, []byte("y"))
				if err != nil {
					t.Fatal(err)
				}
				install(t, engine, "b", "c", "b1=new")
				if got := drain(t, it); !slices.Equal(got, before) {
					t.Errorf("an iterator that was open: got %q, want %q", got, before)
				}
				if got := contents(t, snapshot, []byte("c"), []byte("d")); !slices.Equal(got, []string{"c=old"}) {
					t.Errorf("the snapshot's other rows: %q", got)
				}
				if _, _, err := snapshot.Get([]byte("a")); err != nil {
					t.Errorf("a row of another span: %v", err)
				}
				if _, _, err := snapshot.Get([]byte("b1")); !errors.Is(err, store.ErrReplaced) {
					t.Errorf("a row of the span: %v", err)
				}
				for _, span := range [][2][]byte{{nil, nil}, {[]byte("a"), []byte("b1")}, {[]byte("b9"), nil}} {
					if _, err := snapshot.NewIter(span[0], span[1]); !errors.Is(err, store.ErrReplaced) {
						t.Errorf("a walk of %q: %v", span, err)
					}
				}
				later, err := engine.NewSnapshot()
				if err != nil {
					t.Fatal(err)
				}
				defer mustClose(t, later)
				if value, _, err := later.Get([]byte("b1")); string(value) != "new" || err != nil {
					t.Errorf("a new snapshot: %q, %v", value, err)
				}
			})
		}
	})
}

// TestInstallsAmongCommitsAndReads commits to one shard, synced, while another one is installed again and again and read:
// neither loses a row, and no reader sees a mixture.
func TestInstallsAmongCommitsAndReads(t *testing.T) {
	forEachEngine(t, func(t *testing.T, open func(rapid.TB) store.Engine) {
		const installs, rows = 30, 20
		engine := open(t)
		defer mustClose(t, engine)
		done := make(chan struct{})
		var group errgroup.Group
		commits := 0
		group.Go(func() error {
			for ; ; commits++ {
				select {
				case <-done:
					return nil
				default:
				}
				b := engine.NewBatch()
				b.Set(store.AppendKey(nil, 1, fmt.Appendf(nil, "%06d", commits)), make([]byte, 500))
				wait, err := engine.Commit(b, true)
				if err == nil {
					err = wait()
				}
				if err != nil {
					return err
				}
			}
		})
		group.Go(func() error {
			for {
				select {
				case <-done:
					return nil
				default:
				}
				if err := readGeneration(engine, rows); err != nil {
					return err
				}
			}
		})
		start, end := store.Span(2)
		for generation := range installs {
			// The span has rows in memtables half of the time.
			if generation%2 == 1 {
				write(t, engine, func(b store.Batch) { b.Set(store.AppendKey(nil, 2, []byte("0000")), fmt.Append(nil, generation-1)) })
			}
			im, err := engine.NewImport(start, end)
			if err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				if err := im.Set(store.AppendKey(nil, 2, fmt.Appendf(nil, "%04d", i)), fmt.Append(nil, generation)); err != nil {
					t.Fatal(err)
				}
			}
			if err := engine.Install(im); err != nil {
				t.Fatal(err)
			}
		}
		close(done)
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		first, last := store.Span(1)
		if got := contents(t, engine, first, last); len(got) != commits {
			t.Errorf("%d rows of %d commits", len(got), commits)
		}
	})
}

// readGeneration reads a shard's rows one by one from a snapshot: they are of one generation, or replaced meanwhile.
func readGeneration(engine store.Engine, rows int) error {
	snapshot, err := engine.NewSnapshot()
	if err != nil {
		return err
	}
	found := map[string]int{}
	for i := range rows {
		value, ok, getErr := snapshot.Get(store.AppendKey(nil, 2, fmt.Appendf(nil, "%04d", i)))
		if getErr != nil {
			if !errors.Is(getErr, store.ErrReplaced) {
				err = getErr
			}
			return errors.Join(err, snapshot.Close())
		}
		if ok {
			found[string(value)]++
		}
	}
	if len(found) > 1 || len(found) == 1 && found[slices.Collect(maps.Keys(found))[0]] != rows {
		err = fmt.Errorf("a mixture of generations: %v", found)
	}
	return errors.Join(err, snapshot.Close())
}

func TestAShardForgetsWhatAnInstallReplaced(t *testing.T) {
	engine := store.OpenMemory()
	cache := store.NewCache(1 << 20)
	shard, other := store.NewShard(engine, 2, cache), store.NewShard(engine, 3, cache)
	set(shard, "k", "old")
	set(shard, "l", "old")
	set(other, "k", "other")
	commit(t, engine, shard, other)
	set(shard, "m", "never flushed")
	start, end := store.Span(2)
	im, err := engine.NewImport(start, end)
	if err == nil {
		err = errors.Join(im.Set(store.AppendKey(nil, 2, []byte("k")), []byte("new")), engine.Install(im))
	}
	if err != nil {
		t.Fatal(err)
	}
	shard.Forget()
	if value, _ := shard.Get([]byte("k")); string(value) != "new" {
		t.Errorf("k is %q", value)
	}
	if got, want := rowsOf(shard, nil, nil), []string{"k=new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, ok := shard.Get([]byte("l")); ok {
		t.Error("a row that was replaced is still cached")
	}
	if cache.Len() != 1 {
		t.Errorf("%d rows cached, want the other shard's one", cache.Len())
	}
	set(shard, "n", "next")
	commit(t, engine, shard)
	if got, want := rowsOf(store.NewReader(engine, 2), nil, nil), []string{"k=new", "n=next"}; !slices.Equal(got, want) {
		t.Errorf("after the next turn: got %q, want %q", got, want)
	}
}
