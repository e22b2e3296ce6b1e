package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// importDir is where imports' files stand until they are installed, in the database's directory: they are linked from
	// there, not copied. What a crash leaves in it goes when the engine is opened.
	importDir = "import"
	// importFileBytes is about the size of one file of an import.
	importFileBytes = 64 << 20
)

// pebbleImport writes its rows to tables like those of the database's lowest level, which is where they go.
type pebbleImport struct {
	engine *Pebble
	order  importOrder
	// table is what is being written, nil if nothing is; paths are all tables, that one included.
	table *sstable.Writer
	paths []string
	// err is the first error, for good; errImportOver after the end.
	err error
}

// NewImport begins an import of the rows in [start, end), both of which are given.
func (p *Pebble) NewImport(start, end []byte) (Import, error) {
	if err := p.failed(); err != nil {
		return nil, fmt.Errorf("begin import: %w", err)
	}
	order, err := newImportOrder(start, end)
	if err != nil {
		return nil, fmt.Errorf("begin import: %w", err)
	}
	p.imports.Add(1)
	return &pebbleImport{engine: p, order: order}, nil
}

func (i *pebbleImport) Set(key, value []byte) error {
	if i.err == nil {
		i.err = i.set(key, value)
	}
	if i.err != nil {
		return fmt.Errorf("import row: %w", i.err)
	}
	return nil
}

func (i *pebbleImport) set(key, value []byte) error {
	if err := i.engine.failed(); err != nil {
		return err
	}
	if err := i.order.next(key); err != nil {
		return err
	}
	if i.table == nil {
		if err := i.create(); err != nil {
			return err
		}
	}
	if err := i.table.Set(key, value); err != nil {
		return err
	}
	if i.table.Raw().EstimatedSize() >= i.engine.importFileBytes {
		return i.closeTable()
	}
	return nil
}

// create begins the next table.
func (i *pebbleImport) create() error {
	fs, dir := i.engine.fs, i.engine.importDir
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := fs.PathJoin(dir, fmt.Sprintf("%06d.sst", i.engine.importFiles.Add(1)))
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// The disk gets the file as it grows: one large sync at its end would hold up those of the log.
	file = vfs.NewSyncingFile(file, vfs.SyncingFileOptions{BytesPerSync: bytesPerSync})
	i.paths = append(i.paths, path)
	i.table = sstable.NewWriter(objstorageprovider.NewFileWritable(file), i.engine.importOptions)
	return nil
}

// closeTable completes the table that is being written and syncs it.
func (i *pebbleImport) closeTable() error {
	if i.table == nil {
		return nil
	}
	table := i.table
	i.table = nil
	return table.Close()
}

func (i *pebbleImport) Abort() error {
	if errors.Is(i.err, errImportOver) {
		return nil
	}
	i.err = errImportOver
	// The table's own error is of no matter: it goes.
	_ = i.closeTable()
	var errs []error
	for _, path := range i.paths {
		errs = append(errs, i.engine.fs.Remove(path))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("abort import: %w", err)
	}
	return nil
}

// Install cuts the old rows out of the tables that hold them and takes the new tables in, as one edit of the database.
// Commits that come meanwhile wait: for a sync of the manifest; where memtables hold rows of the span, for two changes of
// the log file instead, as Pebble then queues the edit behind them in a log file of its own; and where as many memtables
// wait as may, for their flush. Iterators that are open keep the old rows, snapshots lose them: see replaced.
func (p *Pebble) Install(im Import) error {
	i := im.(*pebbleImport)
	if err := p.failed(); err != nil {
		return fmt.Errorf("install rows: %w", err)
	}
	if i.err == nil {
		i.err = i.closeTable()
	}
	if i.err != nil {
		return fmt.Errorf("install rows: %w", i.err)
	}
	i.err = errImportOver
	if err := p.install(i); err != nil {
		return fmt.Errorf("install rows: %w", p.fail(err))
	}
	// An error that Pebble reported to its logger only.
	if err := p.failed(); err != nil {
		return fmt.Errorf("install rows: %w", err)
	}
	p.installs.Add(1)
	return nil
}

func (p *Pebble) install(i *pebbleImport) error {
	// The edit is durable by itself: without this sync it might be so before commits that came first.
	if err := p.db.LogData([]byte{0}, pebble.Sync); err != nil {
		return err
	}
	span := p.replaced.begin(i.order.start, i.order.end)
	defer p.replaced.ended(span)
	_, err := p.db.IngestAndExcise(context.Background(), i.paths, nil, nil,
		pebble.KeyRange{Start: i.order.start, End: i.order.end})
	return err
}
