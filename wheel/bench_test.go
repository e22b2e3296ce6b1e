package wheel_test

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/carillon-scheduler/carillon/wheel"
)

// BenchmarkAddAndFire has a million entries spread over a minute in the wheel: the horizon of a busy node.
func BenchmarkAddAndFire(b *testing.B) {
	const live, horizon = 1_000_000, 60_000
	random := rand.New(rand.NewPCG(1, 2))
	w := wheel.New[uint64](0)
	for i := range live {
		w.Add(random.Int64N(horizon), uint64(i))
	}
	b.ReportAllocs()
	var now int64
	fired := 0
	for b.Loop() {
		for fired == 0 {
			now++
			fired = w.Advance(now, func(_ int64, v uint64) { w.Add(now+1+random.Int64N(horizon), v) })
		}
		fired--
	}
}

func BenchmarkAddAndCancel(b *testing.B) {
	w := wheel.New[uint64](0)
	random := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	for b.Loop() {
		w.Cancel(w.Add(random.Int64N(3_600_000), 1))
	}
}

// BenchmarkMemoryOfTenMillion reports what an entry with an eight-byte value costs in memory.
func BenchmarkMemoryOfTenMillion(b *testing.B) {
	const n = 10_000_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		w := wheel.New[uint64](0)
		random := rand.New(rand.NewPCG(1, 2))
		for i := range n {
			w.Add(random.Int64N(86_400_000), uint64(i))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/entry")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/add")
		runtime.KeepAlive(w)
	}
}
