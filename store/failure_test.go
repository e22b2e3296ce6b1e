package store_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// fault makes chosen disk operations fail while it is on.
type fault struct {
	on    atomic.Bool
	err   error
	match func(errorfs.Op) bool
}

func (f *fault) MaybeError(op errorfs.Op) error {
	if f.on.Load() && f.match(op) {
		return f.err
	}
	return nil
}

func (f *fault) String() string { return "fault" }

func isSync(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		return true
	}
	return false
}

func isLog(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".log") }

func isTable(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".sst") }

func TestAFailedLogWriteOrSyncIsFinal(t *testing.T) {
	for name, f := range map[string]*fault{
		"sync":      {err: syscall.EIO, match: func(op errorfs.Op) bool { return isLog(op) && isSync(op) }},
		"write":     {err: syscall.EIO, match: func(op errorfs.Op) bool { return isLog(op) && op.Kind == errorfs.OpFileWrite }},
		"disk full": {err: syscall.ENOSPC, match: func(op errorfs.Op) bool { return isLog(op) && op.Kind == errorfs.OpFileWrite }},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			engine := openPebble(t, errorfs.Wrap(fs, f), nil)
			h := newHistory(engine)
			h.commit(t, true, randomOp{kind: "set", key: "zz", value: "acknowledged"})
			h.wait(t)
			f.on.Store(true)
			h.commit(t, true, randomOp{kind: "set", key: "zz", value: "lost"})
			if err := h.waits[0](); !errors.Is(err, f.err) {
				t.Fatalf("wait: %v, want %v", err, f.err)
			}
			// The disk is well again, but nobody knows what it kept.
			f.on.Store(false)
			b := engine.NewBatch()
			b.Set([]byte("zz"), []byte("later"))
			if _, err := engine.Commit(b, true); !errors.Is(err, f.err) {
				t.Errorf("commit after the failure: %v", err)
			}
			if _, _, err := engine.Get([]byte("zz")); !errors.Is(err, f.err) {
				t.Errorf("get after the failure: %v", err)
			}
			if _, err := engine.NewIter(nil, nil); !errors.Is(err, f.err) {
				t.Errorf("iterator after the failure: %v", err)
			}
			restarted := openPebble(t, fs.CrashClone(vfs.CrashCloneCfg{}), nil)
			h.judge(t, restarted, h.durable)
			mustClose(t, restarted)
			_ = engine.Close() // Its files are broken; what matters is that it returns.
		})
	}
}

func TestAFailureInTheBackgroundFailsTheEngineAndTellsItsOwner(t *testing.T) {
	for name, f := range map[string]*fault{
		"table": {err: syscall.ENOSPC, match: func(op errorfs.Op) bool { return isTable(op) && op.Kind == errorfs.OpCreate }},
		// Pebble would end the process here by itself.
		"manifest": {err: syscall.ENOSPC, match: func(op errorfs.Op) bool {
			return strings.Contains(op.Path, "MANIFEST") && isSync(op)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan error, 10)
			engine := openPebble(t, errorfs.Wrap(vfs.NewMem(), f), func(err error) { told <- err })
			f.on.Store(true)
			fillOneMemTable(t, engine, []byte(strings.Repeat("x", 1_000)))
			cause := <-told
			if !strings.Contains(cause.Error(), syscall.ENOSPC.Error()) {
				t.Fatalf("told %v", cause)
			}
			f.on.Store(false)
			if _, _, err := engine.Get([]byte("row")); !errors.Is(err, cause) {
				t.Errorf("get after the failure: %v", err)
			}
			_ = engine.Close() // The engine has failed; Close only has to return.
			if len(told) > 0 {
				t.Errorf("told again: %v", <-told)
			}
		})
	}
}

// fillOneMemTable commits just over one memtable, so that the first is flushed; the engine may fail meanwhile.
func fillOneMemTable(t *testing.T, engine store.Engine, value []byte) {
	t.Helper()
	for i := range smallMemTable/len(value) + 2 {
		b := engine.NewBatch()
		b.Set(fmt.Appendf(nil, "row%06d", i), value)
		if _, err := engine.Commit(b, false); err != nil {
			if !strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
				t.Fatal(err)
			}
			return
		}
	}
}

// TestAFullDiskWhenTheLogRotatesEndsTheProcessWithTheReason runs itself as a process of its own, as Pebble leaves it no
// other way out.
func TestAFullDiskWhenTheLogRotatesEndsTheProcessWithTheReason(t *testing.T) {
	const child = "CARILLON_TEST_FULL_DISK"
	if os.Getenv(child) == "" {
		self := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		self.Env = append(os.Environ(), child+"=1")
		out, err := self.CombinedOutput()
		if want := "fatal: create log of store: no space left on device\n"; string(out) != want || self.ProcessState.ExitCode() != 3 {
			t.Errorf("got %q, %v; want %q and exit code 3", out, err, want)
		}
		return
	}
	f := &fault{err: syscall.ENOSPC, match: func(op errorfs.Op) bool {
		return isLog(op) && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite)
	}}
	engine := openPebble(t, errorfs.Wrap(vfs.NewMem(), f), func(err error) {
		fmt.Printf("fatal: %v\n", err)
		os.Exit(3)
	})
	f.on.Store(true)
	fillOneMemTable(t, engine, make([]byte, 1_000))
}

func TestAReadErrorFailsTheEngine(t *testing.T) {
	fs := vfs.NewMem()
	engine := openPebble(t, fs, nil)
	for i := range 500 {
		write(t, engine, func(b store.Batch) { b.Set(fmt.Appendf(nil, "row%06d", i), make([]byte, 1_000)) })
	}
	mustClose(t, engine)
	for name, read := range map[string]func(store.Engine) error{
		"get": func(e store.Engine) error {
			_, _, err := e.Get([]byte("row000001"))
			return err
		},
		"scan": func(e store.Engine) error {
			r := store.NewReader(e, 0)
			r.Scan(nil, nil, func(_, _ []byte) bool { return true })
			it, err := e.NewIter(nil, nil)
			if err != nil {
				return err
			}
			for ok := it.First(); ok; {
				ok = it.Next()
			}
			return it.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fault{err: syscall.EIO, match: func(op errorfs.Op) bool {
				return isTable(op) && op.Kind == errorfs.OpFileReadAt
			}}
			engine := openPebble(t, errorfs.Wrap(fs, f), func(error) {})
			f.on.Store(true)
			if err := read(engine); !errors.Is(err, syscall.EIO) {
				t.Errorf("read: %v", err)
			}
			f.on.Store(false)
			if _, _, err := engine.Get([]byte("absent")); !errors.Is(err, syscall.EIO) {
				t.Errorf("a later read: %v", err)
			}
			_ = engine.Close() // The engine has failed; Close only has to return.
		})
	}
}

func TestADirectoryHasOneEngine(t *testing.T) {
	dir := t.TempDir()
	engine, err := store.OpenPebble(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.OpenPebble(dir, store.Options{})
	if !errors.Is(err, store.ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second open: %v", err)
	}
	mustClose(t, engine)
	again, err := store.OpenPebble(dir, store.Options{})
	if err != nil {
		t.Fatalf("open after close: %v", err)
	}
	mustClose(t, again)
}

func TestRowsOutliveTheProcessOnARealDisk(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		engine, err := store.OpenPebble(dir, store.Options{MemTableBytes: smallMemTable})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(contents(t, engine, nil, nil)); n != i {
			t.Errorf("start %d: %d rows", i, n)
		}
		b := engine.NewBatch()
		b.Set(fmt.Appendf(nil, "row%d", i), []byte("v"))
		wait, err := engine.Commit(b, true)
		if err == nil {
			err = wait()
		}
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, engine)
	}
}

func TestOptionsNameTheFieldAtFault(t *testing.T) {
	for field, options := range map[string]store.Options{
		"memtable bytes": {MemTableBytes: 1},
		"cache bytes":    {CacheBytes: -1},
	} {
		if _, err := store.OpenPebble(t.TempDir(), options); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestPebbleIsQuiet opens, flushes and closes a store: its routine is not a user's business.
func TestPebbleIsQuiet(t *testing.T) {
	var lines strings.Builder
	for level, want := range map[slog.Level]bool{slog.LevelInfo: false, slog.LevelDebug: true} {
		lines.Reset()
		log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: level}))
		engine, err := store.OpenPebble("data", store.Options{FS: vfs.NewMem(), MemTableBytes: smallMemTable, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		fillOneMemTable(t, engine, make([]byte, 1_000))
		mustClose(t, engine)
		if got := lines.Len() > 0; got != want {
			t.Errorf("at level %v: lines %t, want %t: %s", level, got, want, lines.String())
		}
	}
}
