package store

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options configure OpenPebble. The zero value of each field has a default.
type Options struct {
	// CacheBytes is Pebble's block cache, 128 MiB by default. It may use twice MemTableBytes more while memtables are small.
	CacheBytes int64
	// MemTableBytes is the size of one memtable, 48 MiB by default: log rows shall die before they are flushed. Up to three
	// of them may wait for their flush.
	MemTableBytes uint64
	// FS is the file system; the default is the machine's, watched for writes that hang.
	FS vfs.FS
	// Logger takes Pebble's own lines: its routine at debug, its complaints at warn. The default drops them.
	Logger *slog.Logger
	// OnFatal is called once, on any goroutine and perhaps inside Pebble's locks, when the engine fails with nobody to
	// return the error to: a flush, a compaction or a new log file that cannot be written, a checksum that does not match, a
	// disk that hangs. It must end the process (os.Exit: Pebble does not survive unwinding) and must not call the engine. If
	// it returns, everything after it fails, and Commit and Close may block or panic. The default panics.
	OnFatal func(error)
}

const (
	defaultCacheBytes    = 128 << 20
	defaultMemTableBytes = 48 << 20
	// minMemTableBytes is what Pebble itself starts with.
	minMemTableBytes = 64 << 10
	maxMemTableBytes = 1 << 30

	// formatVersion is pinned: a store is never upgraded by an upgrade of the library alone.
	formatVersion = pebble.FormatValueSeparation
	// memTablesWaiting is how many memtables may wait for their flush before writes stop. Pebble keeps one log file more
	// than that to use again: files of a memtable's size each, which count as disk.
	memTablesWaiting = 3
	bloomBitsPerKey  = 10
	maxOpenFiles     = 1000
	// l0Start sublevels start a compaction, l0Stop stop all writes. Pressure grows from l0Held on to l0Full, at which
	// node/replica takes in no new work any more.
	l0Start = 4
	l0Held  = 12
	l0Full  = 20
	l0Stop  = 24
	// lastMemTablePressure is the pressure when the memtable that fills is the last one before writes stop.
	lastMemTablePressure = 75
	// levelBaseBytes is how much the first level below L0 holds.
	levelBaseBytes = 256 << 20
	bytesPerSync   = 1 << 20
	// rangeDeleteDelay flushes a range delete, so that truncated log gives its space back.
	rangeDeleteDelay = 10 * time.Second
	// deletionRate in bytes per second: SSDs stall when many files go at once.
	deletionRate = 64 << 20
	// diskSlow is how long one disk operation may take before it is worth a warning.
	diskSlow = 5 * time.Second
	// diskHung is how long one disk operation may take before the node steps aside for others.
	diskHung = 15 * time.Second
	// diskReports is the longest that Pebble, awake, lets pass between two reports of a slow operation: it looks every 2 s.
	diskReports = 5 * time.Second
)

// complete sets the defaults and says which field is wrong.
func (o *Options) complete() error {
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = defaultMemTableBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnFatal == nil {
		o.OnFatal = func(err error) { panic(err) }
	}
	if o.CacheBytes < 0 {
		return fmt.Errorf("cache bytes: %d is negative", o.CacheBytes)
	}
	if o.MemTableBytes < minMemTableBytes || o.MemTableBytes > maxMemTableBytes {
		return fmt.Errorf("memtable bytes: %d is not within %d and %d", o.MemTableBytes, minMemTableBytes, maxMemTableBytes)
	}
	return nil
}

// pebbleOptions returns Pebble's settings for one log-and-state store on a small machine. Each that differs from Pebble's
// default does so for the load of a scheduler: few keys a command, rows that live briefly, one fsync a turn.
func (o *Options) pebbleOptions(p *Pebble) *pebble.Options {
	settings := &pebble.Options{
		FormatMajorVersion: formatVersion,
		// Pebble takes memtables off its cache: the one that fills and the one that is flushed must not starve reads.
		CacheSize:                   o.CacheBytes + 2*int64(o.MemTableBytes),
		MemTableSize:                o.MemTableBytes,
		MemTableStopWritesThreshold: memTablesWaiting,
		MaxOpenFiles:                maxOpenFiles,
		L0CompactionThreshold:       l0Start,
		L0StopWritesThreshold:       l0Stop,
		LBaseMaxBytes:               levelBaseBytes,
		BytesPerSync:                bytesPerSync,
		FlushDelayDeleteRange:       rangeDeleteDelay,
		TargetByteDeletionRate:      deletionRate,
		// One compaction by default, a second one under debt: the processors belong to the loop.
		CompactionConcurrencyRange: func() (lower, upper int) { return 1, 2 },
		// No delay between fsyncs: turns grow by themselves while one is under way.
		WALMinSyncInterval: func() time.Duration { return 0 },
		Logger:             &pebbleLogger{o.Logger, p},
		FS:                 o.FS,
	}
	settings.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionBalanced })
	for i := range settings.Levels {
		settings.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBitsPerKey)
	}
	settings.AddEventListener(o.listener(p))
	return settings
}

// listener turns what Pebble does in the background into log lines, and what it cannot do into a failed engine.
func (o *Options) listener(p *Pebble) pebble.EventListener {
	routine := pebble.MakeLoggingEventListener(&pebbleLogger{o.Logger, p})
	routine.BackgroundError = func(err error) {
		p.fatal(fmt.Errorf("maintain store: %w", err))
	}
	routine.DataCorruption = func(info pebble.DataCorruptionInfo) {
		p.fatal(fmt.Errorf("read store: %w: %s", pebble.ErrCorruption, info))
	}
	created := routine.WALCreated
	routine.WALCreated = func(info pebble.WALCreateInfo) {
		created(info)
		if info.Err != nil {
			p.fatal(fmt.Errorf("create log of store: %w", info.Err))
		}
	}
	var hang hangWatch
	routine.DiskSlow = func(info pebble.DiskSlowInfo) {
		if hang.reported(time.Now(), info.Duration) {
			p.fatal(fmt.Errorf("write store: %s", info))
			return
		}
		o.Logger.Warn("disk is slow", "operation", info.OpType.String(), "path", info.Path, "duration", info.Duration)
	}
	routine.WriteStallBegin = func(info pebble.WriteStallBeginInfo) {
		p.stalls.Add(1)
		o.Logger.Warn("store holds writes back", "reason", info.Reason)
	}
	routine.WriteStallEnd = func() { o.Logger.Info("store takes writes again") }
	return routine
}

// hangWatch tells a disk that hangs from a process that was stopped: to both an operation seems to take long, but only
// while the process runs are there reports on the way. The zero value is ready to use.
type hangWatch struct {
	mu sync.Mutex
	// first and last are the reports of the present series.
	first, last time.Time
}

// reported notes that an operation has taken that long, and says whether the disk hangs.
func (h *hangWatch) reported(now time.Time, took time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.last) > diskReports {
		h.first = now
	}
	h.last = now
	return took >= diskHung && now.Sub(h.first) >= diskHung-2*diskSlow
}

// pebbleLogger is Pebble's logger: slog, and an engine that fails where Pebble would end the process by itself.
type pebbleLogger struct {
	log    *slog.Logger
	engine *Pebble
}

func (l *pebbleLogger) Infof(format string, args ...any) { l.line(slog.LevelDebug, format, args) }

func (l *pebbleLogger) Errorf(format string, args ...any) { l.line(slog.LevelWarn, format, args) }

func (l *pebbleLogger) Fatalf(format string, args ...any) {
	l.engine.fatal(fmt.Errorf(format, args...))
}

func (l *pebbleLogger) line(level slog.Level, format string, args []any) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	l.log.Log(context.Background(), level, "pebble", "line", fmt.Sprintf(format, args...))
}
