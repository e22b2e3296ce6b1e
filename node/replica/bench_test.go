package replica

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const benchShards = 64

// benchHost runs a Host of benchShards shards on Pebble in a temporary directory, fsync on.
func benchHost(b *testing.B) *Host {
	b.Helper()
	engine, err := store.OpenPebble(b.TempDir(), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	cfg := HostConfig{Config: benchConfig(), Now: func() int64 { return time.Now().UnixMilli() }}
	h, err := NewHost(cfg, engine, benchReplicas(b, engine))
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	for shard := uint32(1); shard <= benchShards; shard++ {
		for st, _ := h.StatusOf(shard); !st.Established; st, _ = h.StatusOf(shard) {
			time.Sleep(time.Millisecond)
		}
	}
	b.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		if err := engine.Close(); err != nil {
			b.Error(err)
		}
	})
	return h
}

// cpu is what the process has used so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHost keeps a number of commands in flight, spread over the shards; each writes a row of its own of about 200
// bytes and the shard's.
func BenchmarkHost(b *testing.B) {
	for _, inFlight := range []int{1, 64, 4096} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			h := benchHost(b)
			slots := make(chan struct{}, inFlight)
			var wg sync.WaitGroup
			pad := strings.Repeat("x", 150)
			before, used := h.Counters(), cpu(b)
			b.ResetTimer()
			for i := range b.N {
				slots <- struct{}{}
				wg.Add(1)
				h.Propose(uint32(i%benchShards)+1, request(fmt.Sprintf("%012d%s", i, pad)), func(_ fsm.Result, err error) {
					if err != nil {
						b.Error(err)
					}
					<-slots
					wg.Done()
				})
			}
			wg.Wait()
			b.StopTimer()
			after, n := h.Counters(), float64(b.N)
			b.ReportMetric(n/b.Elapsed().Seconds(), "commands/s")
			b.ReportMetric(float64((cpu(b)-used).Microseconds())/n, "cpu-µs/command")
			b.ReportMetric(n/float64(after.EntriesProposed-before.EntriesProposed), "commands/entry")
			b.ReportMetric(n/float64(after.Turns-before.Turns), "commands/turn")
		})
	}
}

// BenchmarkTurn is a turn in which each of 64 shards applies an entry of one command and appends the next, on Pebble
// without a disk.
func BenchmarkTurn(b *testing.B) {
	engine, err := store.OpenPebble("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := engine.Close(); err != nil {
			b.Error(err)
		}
	}()
	core, err := New(benchConfig(), engine, benchReplicas(b, engine))
	if err != nil {
		b.Fatal(err)
	}
	turn := func() {
		t, err := core.Turn(1)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range t.Events {
			if e.Kind == LeaseWanted {
				core.LeaseHeld(e.Shard, e.Term)
			}
		}
		if t.Wait != nil {
			if err := t.Wait(); err != nil {
				b.Fatal(err)
			}
			core.SyncDone(t.Seq)
		}
	}
	for core.HasWork() {
		turn()
	}
	done := func(fsm.Result, error) {}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		cmd := request(fmt.Sprint(i))
		for shard := uint32(1); shard <= benchShards; shard++ {
			core.Propose(Proposal{Shard: shard, Command: cmd, Done: done})
		}
		turn()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchShards, "ns/shard")
}

// writer is a state machine that writes a row per request and one per entry, and reads nothing.
type writer struct{}

func (writer) Apply(s fsm.State, _ uint64, e *storagev1.Entry) ([]fsm.Result, fsm.Effects) {
	for _, cmd := range e.Commands {
		s.Set(append([]byte{ledgerCount}, cmd.RequestId...), []byte(cmd.RequestId))
	}
	s.Set([]byte{ledgerMeta}, pair(e.Term, 0))
	return make([]fsm.Result, len(e.Commands)), fsm.Effects{}
}

func benchConfig() Config {
	cfg := testConfig("a")
	cfg.OpenMachine = func(uint32, fsm.Reader) Machine { return writer{} }
	return cfg
}

func benchReplicas(b *testing.B, engine store.Engine) []ReplicaState {
	b.Helper()
	var seeds []Seed
	for shard := range benchShards {
		seeds = append(seeds, Seed{Shard: uint32(shard + 1), ID: 1, Voters: []uint64{1}})
	}
	if err := Bootstrap(engine, seeds); err != nil {
		b.Fatal(err)
	}
	states, err := loadAll(engine, benchShards)
	if err != nil {
		b.Fatal(err)
	}
	return states
}
