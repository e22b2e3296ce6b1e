package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrInUse is what OpenPebble answers when another engine, of this process or of another, has the directory.
var ErrInUse = errors.New("directory is in use by another process")

// Pebble is the Engine on disk: log and state of all shards of a node in one Pebble, one write-ahead log, one fsync. What its
// methods do is said at Engine.
type Pebble struct {
	db *pebble.DB
	// held is closed after db: the directory's lock, and the watch over a file system of the machine.
	held []io.Closer
	// failure is the first error, for good. It is ErrClosed after Close.
	failure atomic.Pointer[error]
	onFatal func(error)
	// memTableBytes is the size of a memtable that has come to its full size.
	memTableBytes uint64

	gets, iters, stalls, imports, installs atomic.Uint64

	// fs and importDir are where imports write their files, with importOptions, each of about importFileBytes; importFiles
	// numbers them.
	fs              vfs.FS
	importDir       string
	importOptions   sstable.WriterOptions
	importFileBytes uint64
	importFiles     atomic.Uint64
	replaced        replaced
}

// OpenPebble opens or creates the engine in dir, which it locks. The error of a directory in use is ErrInUse.
func OpenPebble(dir string, options Options) (*Pebble, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	p := &Pebble{onFatal: options.OnFatal, memTableBytes: options.MemTableBytes, importFileBytes: importFileBytes}
	if err := p.open(dir, options.pebbleOptions(p)); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", dir, err), p.release())
	}
	return p, nil
}

func (p *Pebble) open(dir string, settings *pebble.Options) error {
	if settings.FS == nil {
		watched, watch := vfs.WithDiskHealthChecks(vfs.Default, diskSlow, nil, settings.EventListener.DiskSlow)
		settings.FS, p.held = watched, append(p.held, watch)
	}
	if err := settings.FS.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, settings.FS)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("lock directory: %w", err)
	}
	if err != nil {
		return fmt.Errorf("lock directory: %w (%w)", ErrInUse, err)
	}
	settings.Lock = lock
	p.held = append([]io.Closer{lock}, p.held...)
	if err := p.openImports(dir, settings); err != nil {
		return fmt.Errorf("remove what imports left: %w", err)
	}
	if p.db, err = pebble.Open(dir, settings); err != nil {
		return err
	}
	if err := p.failed(); err != nil {
		return errors.Join(err, p.db.Close())
	}
	return nil
}

// openImports removes what a crash has left of imports, and sets how tables of imports are written: as the database's own.
func (p *Pebble) openImports(dir string, settings *pebble.Options) error {
	p.fs, p.importDir = settings.FS, settings.FS.PathJoin(dir, importDir)
	complete := settings.Clone()
	complete.EnsureDefaults()
	lowest := len(complete.Levels) - 1
	p.importOptions = complete.MakeWriterOptions(lowest, formatVersion.MaxTableFormat())
	return p.fs.RemoveAll(p.importDir)
}

// release gives up what the engine holds beside its database.
func (p *Pebble) release() error {
	var errs []error
	for _, closer := range p.held {
		errs = append(errs, closer.Close())
	}
	return errors.Join(errs...)
}

func (p *Pebble) Get(key []byte) (value []byte, ok bool, err error) {
	if err := p.failed(); err != nil {
		return nil, false, fmt.Errorf("get row: %w", err)
	}
	p.gets.Add(1)
	return p.get(p.db, key)
}

// get asks through an iterator, because Pebble's own Get never looks at the bloom filters of the lowest level, where most
// keys are: the check that a new job's id is free would read a block there each time. See docs/performance.md.
func (p *Pebble) get(from pebble.Reader, key []byte) (value []byte, ok bool, err error) {
	it, err := from.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return nil, false, fmt.Errorf("get row: %w", p.fail(err))
	}
	if it.SeekPrefixGE(key) {
		borrowed, valueErr := it.ValueAndErr()
		value, ok, err = append([]byte{}, borrowed...), true, valueErr
	}
	if err = errors.Join(err, it.Close()); err != nil { // Close has the seek's error too
		return nil, false, fmt.Errorf("get row: %w", p.fail(err))
	}
	return value, ok, nil
}

func (p *Pebble) NewIter(start, end []byte) (Iterator, error) {
	if err := p.failed(); err != nil {
		return nil, fmt.Errorf("open iterator: %w", err)
	}
	return p.iter(p.db, start, end)
}

func (p *Pebble) iter(from pebble.Reader, start, end []byte) (Iterator, error) {
	p.iters.Add(1)
	if end != nil && bytes.Compare(start, end) > 0 {
		// Pebble wants bounds in order.
		end = start
	}
	it, err := from.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: end})
	if err != nil {
		return nil, fmt.Errorf("open iterator: %w", p.fail(err))
	}
	return &pebbleIter{it, p}, nil
}

func (p *Pebble) NewSnapshot() (Snapshot, error) {
	if err := p.failed(); err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	number := p.replaced.number.Load()
	return &pebbleSnapshot{p.db.NewSnapshot(), p, number}, nil
}

// DiskBytes estimates how much of the disk the rows in [start, end) take; what is still in memtables is left out.
func (p *Pebble) DiskBytes(start, end []byte) (uint64, error) {
	if err := p.failed(); err != nil {
		return 0, fmt.Errorf("estimate disk bytes: %w", err)
	}
	n, err := p.db.EstimateDiskUsage(start, end)
	if err != nil {
		return 0, fmt.Errorf("estimate disk bytes: %w", err)
	}
	return n, nil
}

func (p *Pebble) NewBatch() Batch { return &pebbleBatch{batch: p.db.NewBatch()} }

func (p *Pebble) Commit(b Batch, sync bool) (wait func() error, err error) {
	if err := p.failed(); err != nil {
		return nil, fmt.Errorf("commit batch: %w", err)
	}
	batch := b.(*pebbleBatch)
	if err := p.apply(batch, sync); err != nil {
		return nil, fmt.Errorf("commit batch: %w", p.fail(err))
	}
	// An error that Pebble reported to its logger only.
	if err := p.failed(); err != nil {
		return nil, fmt.Errorf("commit batch: %w", err)
	}
	if sync {
		return func() error { return p.syncWait(batch.batch) }, nil
	}
	if err := batch.batch.Close(); err != nil {
		return nil, fmt.Errorf("commit batch: %w", p.fail(err))
	}
	return nil, nil
}

// apply commits a batch. Where Pebble cannot go on with its log it panics, past all recovery; OnFatal has been told before.
func (p *Pebble) apply(b *pebbleBatch, sync bool) error {
	if b.err != nil {
		return b.err
	}
	if !sync {
		return p.db.Apply(b.batch, pebble.NoSync)
	}
	if b.batch.Empty() {
		// Pebble skips an empty batch, and with it the sync of the commits before.
		if err := b.batch.LogData([]byte{0}, nil); err != nil {
			return err
		}
	}
	return p.db.ApplyNoSyncWait(b.batch, pebble.Sync)
}

// syncWait waits until a batch is durable. An fsync that failed is never tried again: what it covered may be lost.
func (p *Pebble) syncWait(b *pebble.Batch) error {
	if err := b.SyncWait(); err != nil {
		return fmt.Errorf("sync batch: %w", p.fail(err))
	}
	if err := p.failed(); err != nil {
		return fmt.Errorf("sync batch: %w", err)
	}
	if err := b.Close(); err != nil {
		return fmt.Errorf("sync batch: %w", p.fail(err))
	}
	return nil
}

func (p *Pebble) Metrics() Metrics {
	m := p.db.Metrics()
	return Metrics{
		DiskBytes:      m.DiskSpaceUsage(),
		WALBytes:       m.WAL.Size,
		Gets:           p.gets.Load(),
		Iters:          p.iters.Load(),
		L0Sublevels:    int(m.Levels[0].Sublevels),
		CompactionDebt: m.Compact.EstimatedDebt,
		MemTableBytes:  m.MemTable.Size,
		Pressure:       pressure(int(m.Levels[0].Sublevels), m.MemTable.Size, p.memTableBytes),
		CacheBytes:     m.BlockCache.Size,
		WriteStalls:    p.stalls.Load(),
		Imports:        p.imports.Load(),
		Installs:       p.installs.Load(),
	}
}

// pressure is Metrics.Pressure. A memtable is filled while another one is flushed as a matter of course.
func pressure(sublevels int, unflushed, memTableBytes uint64) int {
	behind := 0
	if unflushed >= memTablesWaiting*memTableBytes {
		behind = lastMemTablePressure
	}
	return min(100, max(behind, (sublevels-l0Held)*100/(l0Full-l0Held)))
}

// Close ends the engine; nothing may use it, or is using it. It reports iterators that were left open.
func (p *Pebble) Close() error {
	closed := error(ErrClosed)
	if before := p.failure.Swap(&closed); before != nil && errors.Is(*before, ErrClosed) {
		return fmt.Errorf("close store: %w", ErrClosed)
	}
	if err := errors.Join(p.db.Close(), p.release()); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// failed returns the engine's error, if it has one.
func (p *Pebble) failed() error {
	if err := p.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail makes the engine failed and returns its first error.
func (p *Pebble) fail(err error) error {
	p.failure.CompareAndSwap(nil, &err)
	return *p.failure.Load()
}

// fatal makes the engine failed because of an error that no caller is told, and tells the owner of the first one.
func (p *Pebble) fatal(err error) {
	if p.failure.CompareAndSwap(nil, &err) {
		p.onFatal(err)
	}
}

// pebbleIter is Pebble's iterator; its error is the engine's.
type pebbleIter struct {
	*pebble.Iterator
	engine *Pebble
}

func (i *pebbleIter) Close() error {
	if err := i.Iterator.Close(); err != nil {
		return fmt.Errorf("close iterator: %w", i.engine.fail(err))
	}
	return nil
}

type pebbleSnapshot struct {
	snapshot *pebble.Snapshot
	engine   *Pebble
	// number is how many installs had ended when it was made, or fewer.
	number uint64
}

func (s *pebbleSnapshot) Get(key []byte) (value []byte, ok bool, err error) {
	if err := s.engine.failed(); err != nil {
		return nil, false, fmt.Errorf("get row: %w", err)
	}
	s.engine.gets.Add(1)
	if value, ok, err = s.engine.get(s.snapshot, key); err != nil {
		return nil, false, err
	}
	if err := s.engine.replaced.check(s.number, key, append(bytes.Clone(key), 0)); err != nil {
		return nil, false, fmt.Errorf("get row: %w", err)
	}
	return value, ok, nil
}

func (s *pebbleSnapshot) NewIter(start, end []byte) (Iterator, error) {
	if err := s.engine.failed(); err != nil {
		return nil, fmt.Errorf("open iterator: %w", err)
	}
	it, err := s.engine.iter(s.snapshot, start, end)
	if err != nil {
		return nil, err
	}
	if err := s.engine.replaced.check(s.number, start, end); err != nil {
		return nil, fmt.Errorf("open iterator: %w", errors.Join(err, it.Close()))
	}
	return it, nil
}

func (s *pebbleSnapshot) Close() error {
	if err := s.snapshot.Close(); err != nil {
		return fmt.Errorf("close snapshot: %w", err)
	}
	return nil
}

// pebbleBatch is Pebble's batch; err is the first write it refused, and fails the commit.
type pebbleBatch struct {
	batch *pebble.Batch
	err   error
}

func (b *pebbleBatch) Set(key, value []byte) { b.note(b.batch.Set(key, value, nil)) }

func (b *pebbleBatch) Delete(key []byte) { b.note(b.batch.Delete(key, nil)) }

func (b *pebbleBatch) DeleteRange(start, end []byte) {
	if bytes.Compare(start, end) < 0 {
		b.note(b.batch.DeleteRange(start, end, nil))
	}
}

func (b *pebbleBatch) Len() int { return int(b.batch.Count()) }

func (b *pebbleBatch) note(err error) {
	if b.err == nil {
		b.err = err
	}
}
