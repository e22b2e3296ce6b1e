package store_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"pgregory.net/rapid"
)

// history drives an engine with commits and remembers the rows after each, so that what a crash left can be judged.
type history struct {
	engine store.Engine
	// states[n] are the rows after n commits.
	states []map[string]string
	// waits of synced commits that are still out, oldest first, and the number of the commit each makes durable.
	waits   []func() error
	numbers []int

	mu sync.Mutex
	// durable is the number of commits that a crash must not lose.
	durable int
}

func newHistory(engine store.Engine) *history {
	return &history{engine: engine, states: []map[string]string{{}}}
}

func (h *history) commit(t rapid.TB, sync bool, writes ...randomOp) {
	t.Helper()
	rows := map[string]string{}
	for k, v := range h.states[len(h.states)-1] {
		rows[k] = v
	}
	b := h.engine.NewBatch()
	for _, w := range writes {
		w.apply(b, rows)
	}
	h.states = append(h.states, rows)
	wait, err := h.engine.Commit(b, sync)
	if err != nil {
		t.Fatal(err)
	}
	if (wait != nil) != sync {
		t.Fatalf("sync %t, wait given %t", sync, wait != nil)
	}
	if sync {
		h.waits, h.numbers = append(h.waits, wait), append(h.numbers, len(h.states)-1)
	}
}

// wait waits for the oldest sync that is out.
func (h *history) wait(t rapid.TB) {
	t.Helper()
	if err := h.waits[0](); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.durable = max(h.durable, h.numbers[0])
	h.mu.Unlock()
	h.waits, h.numbers = h.waits[1:], h.numbers[1:]
}

// waitAll waits for the syncs that are out.
func (h *history) waitAll(t rapid.TB) {
	t.Helper()
	for len(h.waits) > 0 {
		h.wait(t)
	}
}

// install replaces the rows from row to rox by n others: a commit that is durable when it returns, as are those before it.
func (h *history) install(t rapid.TB, n int, value string) {
	t.Helper()
	rows := map[string]string{}
	for k, v := range h.states[len(h.states)-1] {
		if k < "row" || k >= "rox" {
			rows[k] = v
		}
	}
	var list []string
	for i := range n {
		key := fmt.Sprintf("row%03d", i*2)
		rows[key] = value
		list = append(list, key+"="+value)
	}
	im := importOf(t, h.engine, "row", "rox", list...)
	h.states = append(h.states, rows)
	if err := h.engine.Install(im); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.durable = len(h.states) - 1
	h.mu.Unlock()
}

func (h *history) mustSurvive() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.durable
}

// judge checks that the engine holds the rows of a prefix of the commits with at least the first durable ones. Rows may
// be the same after several commits, so each batch of these tests changes one that tells.
func (h *history) judge(t rapid.TB, engine store.Engine, durable int) {
	t.Helper()
	got := contents(t, engine, nil, nil)
	for n := durable; n < len(h.states); n++ {
		if slices.Equal(got, listing(h.states[n])) {
			return
		}
	}
	t.Fatalf("after the crash: %q; want the rows after %d to %d commits", got, durable, len(h.states)-1)
}

func listing(rows map[string]string) (list []string) {
	for k, v := range rows {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// randomBatch draws writes, and a row that tells which commit it was.
func (h *history) randomBatch(t *rapid.T) []randomOp {
	writes := []randomOp{{kind: "set", key: "zz", value: fmt.Sprint(len(h.states))}}
	for i := range rapid.IntRange(0, 4).Draw(t, "writes") {
		writes = append(writes, randomWrite(t, len(h.states)*10+i))
	}
	return writes
}

// crashable opens an engine, and returns what a restart after a crash now would open.
type crashable func(t *rapid.T) (engine store.Engine, crash func(t *rapid.T) store.Engine)

// TestACrashLeavesAPrefixWithAllThatWasSynced crashes both engines at random points of random commits and waits.
func TestACrashLeavesAPrefixWithAllThatWasSynced(t *testing.T) {
	engines := map[string]crashable{
		"memory": func(*rapid.T) (store.Engine, func(*rapid.T) store.Engine) {
			m := store.OpenMemory()
			return m, func(t *rapid.T) store.Engine { return m.Crash(rapid.IntRange(0, m.Unsynced()).Draw(t, "keep")) }
		},
		"pebble": func(t *rapid.T) (store.Engine, func(*rapid.T) store.Engine) {
			fs := vfs.NewCrashableMem()
			return openPebble(t, fs, nil), func(t *rapid.T) store.Engine {
				percent := rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "percent of unsynced data that survives")
				seed := rapid.Uint64().Draw(t, "seed")
				rng := rand.New(rand.NewPCG(seed, seed))
				return openPebble(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), nil)
			}
		},
	}
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { crashAtRandom(t, open) })
		})
	}
}

func crashAtRandom(t *rapid.T, open crashable) {
	engine, crash := open(t)
	defer mustClose(t, engine)
	h := newHistory(engine)
	t.Repeat(map[string]func(*rapid.T){
		"commit": func(t *rapid.T) { h.commit(t, rapid.Bool().Draw(t, "sync"), h.randomBatch(t)...) },
		"commit nothing, synced": func(t *rapid.T) {
			h.commit(t, true)
		},
		"install": func(t *rapid.T) {
			h.install(t, rapid.IntRange(0, 3).Draw(t, "rows"), fmt.Sprint("new", len(h.states)))
		},
		"wait": func(t *rapid.T) {
			if len(h.waits) == 0 {
				t.Skip("nothing to wait for")
			}
			h.wait(t)
		},
		"crash": func(t *rapid.T) {
			restarted := crash(t)
			defer mustClose(t, restarted)
			h.judge(t, restarted, h.durable)
		},
	})
	h.waitAll(t)
}

func TestTheMemoryTwinLosesExactlyWhatItIsToldTo(t *testing.T) {
	engine := store.OpenMemory()
	h := newHistory(engine)
	for i := range 4 {
		h.commit(t, i == 1, randomOp{kind: "set", key: "zz", value: fmt.Sprint(i)})
	}
	h.wait(t)
	if n := engine.Unsynced(); n != 2 {
		t.Fatalf("%d commits unsynced, want 2", n)
	}
	for keep := range 3 {
		want := []string{fmt.Sprintf("zz=%d", 1+keep)}
		if got := contents(t, engine.Crash(keep), nil, nil); !slices.Equal(got, want) {
			t.Errorf("keeping %d: got %q, want %q", keep, got, want)
		}
	}
	if got, want := contents(t, engine, nil, nil), []string{"zz=3"}; !slices.Equal(got, want) {
		t.Errorf("the engine that went on: got %q, want %q", got, want)
	}
}

// cloneable keeps what changes directories apart from CrashClone: the file system takes its locks in one order for these
// and in another for the rest, so that with a clone's write lock in between they wait for one another for ever.
type cloneable struct {
	*vfs.MemFS
	cloning *sync.Mutex
}

func (c *cloneable) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return c.MemFS.Create(name, category)
}

func (c *cloneable) Link(oldname, newname string) error {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return c.MemFS.Link(oldname, newname)
}

func (c *cloneable) Remove(name string) error {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return c.MemFS.Remove(name)
}

func (c *cloneable) RemoveAll(name string) error {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return c.MemFS.RemoveAll(name)
}

func (c *cloneable) Rename(oldname, newname string) error {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return c.MemFS.Rename(oldname, newname)
}

func (c *cloneable) MkdirAll(name string, perm os.FileMode) error {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return c.MemFS.MkdirAll(name, perm)
}

func (c *cloneable) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	c.cloning.Lock()
	defer c.cloning.Unlock()
	return c.MemFS.ReuseForWrite(oldname, newname, category)
}

// image is what a disk would hold after a crash before op, when the history's first durable commits must survive.
type image struct {
	fs      *vfs.MemFS
	durable int
	op      string
}

// filmedDisk takes an image before each write and sync, log, tables and manifest alike, once it has a history.
type filmedDisk struct {
	vfs.FS
	mu      sync.Mutex
	images  []image
	history *history
}

func newFilmedDisk(seed uint64) *filmedDisk {
	rng := rand.New(rand.NewPCG(seed, seed))
	fs := vfs.NewCrashableMem()
	d := &filmedDisk{}
	d.FS = errorfs.Wrap(&cloneable{fs, &d.mu}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.history == nil || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		durable := d.history.mustSurvive()
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * rng.IntN(3), RNG: rng})
		d.images = append(d.images, image{clone, durable, fmt.Sprintf("%v %s", op.Kind, op.Path)})
		return nil
	}))
	return d
}

// film begins to take images.
func (d *filmedDisk) film(h *history) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.history = h
}

// judge opens every image; there must be at least so many.
func (d *filmedDisk) judge(t *testing.T, atLeast int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	tables := slices.ContainsFunc(d.images, func(i image) bool { return strings.HasSuffix(i.op, ".sst") })
	if len(d.images) < atLeast || !tables {
		t.Fatalf("%d disk operations seen, tables among them: %t", len(d.images), tables)
	}
	for _, image := range d.images {
		restarted := openPebble(t, image.fs, nil)
		d.history.judge(t, restarted, image.durable)
		mustClose(t, restarted)
		if t.Failed() {
			t.Fatalf("the crash was before %s", image.op)
		}
	}
}

// TestACrashAtEveryDiskOperation crashes while commits with and without sync run and memtables rotate.
func TestACrashAtEveryDiskOperation(t *testing.T) {
	disk := newFilmedDisk(7)
	engine := openPebble(t, disk, nil)
	h := newHistory(engine)
	disk.film(h)
	value := strings.Repeat("x", 2_000)
	for i := range 1_000 {
		h.commit(t, i%3 > 0,
			randomOp{kind: "set", key: fmt.Sprintf("row%03d", i), value: value},
			randomOp{kind: "delete", key: fmt.Sprintf("row%03d", i-2)},
			randomOp{kind: "set", key: "zz", value: fmt.Sprint(i)})
		for len(h.waits) > i%4 {
			h.wait(t)
		}
	}
	h.waitAll(t)
	mustClose(t, engine)
	disk.judge(t, 200)
}

// TestACrashAtEveryDiskOperationOfAnInstall crashes around installs: of several files and of none, over rows in memtables, in
// tables and in both, with commits before them that nothing has synced. Before is all old rows, after is only new ones,
// and never an install without the commits that came first.
func TestACrashAtEveryDiskOperationOfAnInstall(t *testing.T) {
	for _, rows := range []int{60, 0} {
		for _, where := range []string{inMemory, onDisk, both} {
			t.Run(fmt.Sprintf("%d rows over rows %s", rows, where), func(t *testing.T) {
				disk := newFilmedDisk(7)
				engine := openPebble(t, disk, nil)
				engine.SetImportFileBytes(5_000)
				h := newHistory(engine)
				disk.film(h)
				value := strings.Repeat("x", 500)
				for round := range 3 {
					old := func(from, to int) {
						for i := from; i < to; i++ {
							h.commit(t, false, randomOp{kind: "set", key: fmt.Sprintf("row%03d", i), value: fmt.Sprint("old", round)},
								randomOp{kind: "set", key: "zz", value: fmt.Sprint(len(h.states))})
						}
					}
					if where != inMemory {
						old(0, 10)
						for i := range 200 { // until the memtable with the rows is flushed
							h.commit(t, i%10 == 0, randomOp{kind: "set", key: "filler", value: value + fmt.Sprint(len(h.states))})
						}
					}
					if where != onDisk {
						old(10, 20)
					}
					h.commit(t, false, randomOp{kind: "set", key: "zz", value: fmt.Sprint(len(h.states))})
					h.install(t, rows, fmt.Sprint("new", round)+value)
					h.commit(t, true, randomOp{kind: "set", key: "row05x", value: fmt.Sprint("newer", round)})
				}
				h.waitAll(t)
				mustClose(t, engine)
				disk.judge(t, 50)
			})
		}
	}
}
