package store_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// openOnDisk opens a store with default settings on the machine's disk.
func openOnDisk(b *testing.B) *store.Pebble {
	b.Helper()
	engine, err := store.OpenPebble(b.TempDir(), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { mustClose(b, engine) })
	return engine
}

func commitSynced(b *testing.B, engine store.Engine, batch store.Batch) {
	b.Helper()
	wait, err := engine.Commit(batch, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCommitOf200Puts is a turn's batch, waited for.
func BenchmarkCommitOf200Puts(b *testing.B) {
	engine := openOnDisk(b)
	random := rand.New(rand.NewPCG(1, 2))
	key, value := make([]byte, 40), make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		batch := engine.NewBatch()
		for range 200 {
			binary.BigEndian.PutUint64(key, random.Uint64())
			batch.Set(key, value)
		}
		commitSynced(b, engine, batch)
	}
}

// BenchmarkCommitPipelined has four turns in flight, as node/replica does.
func BenchmarkCommitPipelined(b *testing.B) {
	engine := openOnDisk(b)
	random := rand.New(rand.NewPCG(1, 2))
	key, value := make([]byte, 40), make([]byte, 200)
	var waits []func() error
	b.ReportAllocs()
	for b.Loop() {
		batch := engine.NewBatch()
		for range 200 {
			binary.BigEndian.PutUint64(key, random.Uint64())
			batch.Set(key, value)
		}
		wait, err := engine.Commit(batch, true)
		if err != nil {
			b.Fatal(err)
		}
		if waits = append(waits, wait); len(waits) == 4 {
			if err := waits[0](); err != nil {
				b.Fatal(err)
			}
			waits = waits[1:]
		}
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// loadMillion writes a million rows of shard 1, "t" and a number, and returns their engine.
func loadMillion(b *testing.B) *store.Pebble {
	b.Helper()
	engine := openOnDisk(b)
	value := make([]byte, 150)
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < 1_000_000; {
		batch := engine.NewBatch()
		for range 1_000 {
			binary.BigEndian.PutUint64(value, random.Uint64())
			batch.Set(store.AppendKey(nil, 1, timerKey(i)), value)
			i++
		}
		commitSynced(b, engine, batch)
	}
	return engine
}

func timerKey(i int) []byte {
	return fmt.Appendf(nil, "t%012d-a-job-of-some-name", i)
}

// BenchmarkReadMillion reads through the view of a shard with a million rows behind it.
func BenchmarkReadMillion(b *testing.B) {
	engine := loadMillion(b)
	shard := store.NewShard(engine, 1, store.NewCache(32<<20))
	random := rand.New(rand.NewPCG(3, 4))
	b.Run("get of a row", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := shard.Get(timerKey(random.IntN(1_000_000))); !ok {
				b.Fatal("row not found")
			}
		}
	})
	b.Run("get of no row", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := shard.Get(fmt.Appendf(nil, "t%012d-a-job-unknown", random.IntN(1_000_000))); ok {
				b.Fatal("row found")
			}
		}
	})
	for _, rows := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("scan of %d", rows), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				scan(b, shard, timerKey(random.IntN(999_000)), rows)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(rows), "ns/row")
		})
	}
	b.Run("scan of 1000 under 1000 writes", func(b *testing.B) {
		for i := range 500 {
			shard.Delete(timerKey(i))
			shard.Set(append(timerKey(i+500), '+'), make([]byte, 150))
		}
		b.ReportAllocs()
		for b.Loop() {
			scan(b, shard, timerKey(0), 1000)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/row")
	})
	if err := shard.Err(); err != nil {
		b.Fatal(err)
	}
}

func scan(b *testing.B, shard *store.Shard, from []byte, rows int) {
	b.Helper()
	n := 0
	shard.Scan(from, []byte("u"), func(_, _ []byte) bool {
		n++
		return n < rows
	})
	if n != rows {
		b.Fatalf("%d rows of %d", n, rows)
	}
}

// BenchmarkShardTurn is what the view adds to a turn of 200 writes: overlay, order, batch and cache; no disk.
func BenchmarkShardTurn(b *testing.B) {
	engine := openOnDisk(b)
	shard := store.NewShard(engine, 1, store.NewCache(32<<20))
	random := rand.New(rand.NewPCG(1, 2))
	value := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		for range 200 {
			key := make([]byte, 40)
			binary.BigEndian.PutUint64(key, random.Uint64())
			shard.Set(key, value)
		}
		batch := engine.NewBatch()
		if err := shard.Flush(batch); err != nil {
			b.Fatal(err)
		}
		shard.Committed()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/200, "ns/write")
}

func BenchmarkCacheHit(b *testing.B) {
	engine := store.OpenMemory()
	shard := store.NewShard(engine, 1, store.NewCache(64<<20))
	keys := make([][]byte, 50_000)
	for i := range keys {
		keys[i] = timerKey(i)
		shard.Set(timerKey(i), make([]byte, 200))
	}
	commit(b, engine, shard)
	random := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := shard.Get(keys[random.IntN(len(keys))]); !ok {
			b.Fatal("row not found")
		}
	}
}

// BenchmarkImport imports a million rows of 200 bytes and installs them over as many old ones, which stand in tables, or
// also in memtables, while another goroutine commits, synced, to another span. It reports how long the longest of those
// commits took in the midst of an install, and the longest without one.
func BenchmarkImport(b *testing.B) {
	for _, inMemory := range []bool{false, true} {
		b.Run(fmt.Sprintf("memtable=%t", inMemory), func(b *testing.B) {
			engine := openOnDisk(b)
			if err := engine.Install(millionRows(b, engine)); err != nil {
				b.Fatal(err)
			}
			var imported, installed, calm, blocked time.Duration
			for b.Loop() {
				if inMemory {
					batch := engine.NewBatch()
					batch.Set(store.AppendKey(nil, 2, []byte("newer")), make([]byte, 200))
					commitSynced(b, engine, batch)
				}
				began := time.Now()
				im := millionRows(b, engine)
				imported += time.Since(began)
				calm = max(calm, slowestCommit(b, engine, 500, func() {}))
				blocked = max(blocked, slowestCommit(b, engine, 500, func() {
					began := time.Now()
					if err := engine.Install(im); err != nil {
						b.Error(err)
					}
					installed += time.Since(began)
				}))
			}
			n := float64(b.N)
			b.ReportMetric(n*1e6/imported.Seconds(), "rows/s")
			b.ReportMetric(installed.Seconds()*1000/n, "ms/install")
			b.ReportMetric(calm.Seconds()*1000, "calm-ms")
			b.ReportMetric(blocked.Seconds()*1000, "blocked-ms")
		})
	}
}

// millionRows returns an import of a million rows of 200 bytes, half of each random.
func millionRows(b *testing.B, engine store.Engine) store.Import {
	b.Helper()
	start, end := store.Span(2)
	im, err := engine.NewImport(start, end)
	if err != nil {
		b.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{1})
	key, value := store.AppendKey(nil, 2, make([]byte, 30)), make([]byte, 166)
	for i := range uint64(1e6) {
		binary.BigEndian.PutUint64(key[4:], i)
		_, _ = random.Read(value[:100]) // it never fails
		if err := im.Set(key, value); err != nil {
			b.Fatal(err)
		}
	}
	return im
}

// slowestCommit makes n synced commits, and more until fn, which runs meanwhile, returns. It returns how long the slowest took.
func slowestCommit(b *testing.B, engine store.Engine, n int, fn func()) (slowest time.Duration) {
	b.Helper()
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer close(done)
		fn()
	})
	defer group.Wait()
	for i := 0; ; i++ {
		select {
		case <-done:
			if i >= n {
				return slowest
			}
		default:
		}
		began := time.Now()
		batch := engine.NewBatch()
		batch.Set(store.AppendKey(nil, 1, fmt.Append(nil, i)), make([]byte, 200))
		commitSynced(b, engine, batch)
		slowest = max(slowest, time.Since(began))
	}
}
