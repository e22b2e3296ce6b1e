package replica

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
)

// benchCores are three stores with benchShards shards each, leaders spread evenly.
func benchCores(b *testing.B) []*Core {
	b.Helper()
	seedElections(b, 1)
	var cores []*Core
	for id := uint64(1); id <= 3; id++ {
		engine := store.OpenMemory()
		var seeds []Seed
		for shard := uint32(1); shard <= benchShards; shard++ {
			seeds = append(seeds, Seed{Shard: shard, ID: id, Voters: []uint64{1, 2, 3}})
		}
		if err := Bootstrap(engine, seeds); err != nil {
			b.Fatal(err)
		}
		states, err := LoadAll(engine)
		if err != nil {
			b.Fatal(err)
		}
		core, err := New(testConfig(storeName(int(id))), engine, states)
		if err != nil {
			b.Fatal(err)
		}
		cores = append(cores, core)
	}
	for shard := uint32(1); shard <= benchShards; shard++ {
		w := Wanted{Gen: 1}
		for i := range uint32(3) {
			id := uint64((shard+i)%3 + 1)
			w.Replicas = append(w.Replicas, Placed{id, storeName(int(id))})
		}
		for _, core := range cores {
			core.Want(shard, w)
		}
	}
	for range 50 {
		tickAll(b, cores)
	}
	return cores
}

// BenchmarkIdleTick is a tick, a tenth of a second, of three stores with benchShards idle shards each: heartbeats, their
// frames and answers. cpu-%/store is what that is of a core.
func BenchmarkIdleTick(b *testing.B) {
	cores := benchCores(b)
	before, turns := cpu(b), cores[0].Counters().Turns
	b.ResetTimer()
	for range b.N {
		tickAll(b, cores)
	}
	b.StopTimer()
	perTick := (cpu(b) - before).Seconds() / float64(b.N) / float64(len(cores))
	b.ReportMetric(perTick/TickInterval.Seconds()*100, "cpu-%/store")
	b.ReportMetric(float64(cores[0].Counters().Turns-turns)/float64(b.N), "turns/store")
}

// BenchmarkReplicate is a command of 200 bytes on its way through all three stores: entry, frames, log, apply, on engines in
// memory. An operation is a command; so many go into an entry.
func BenchmarkReplicate(b *testing.B) {
	for _, size := range []int{1, 32} {
		b.Run(fmt.Sprintf("commands=%d", size), func(b *testing.B) {
			cores := benchCores(b)
			pad := strings.Repeat("x", 200)
			done, before := 0, cpu(b)
			b.ResetTimer()
			for n := 0; n < b.N; {
				for shard := uint32(1); shard <= 16; shard++ {
					for range size {
						n++
						cores[shard%3].Propose(Proposal{Shard: shard, Command: request(pad), Done: func(_ fsm.Result, err error) {
							if err == nil {
								done++
							}
						}})
					}
				}
				rest(b, cores)
			}
			b.StopTimer()
			if done < b.N {
				b.Fatalf("%d of %d commands were applied", done, b.N)
			}
			b.ReportMetric((cpu(b)-before).Seconds()/float64(done)*1e6, "cpu-µs/command")
		})
	}
}

// tickAll lets a tick pass and everything that comes of it happen.
func tickAll(b *testing.B, cores []*Core) {
	for _, core := range cores {
		core.Tick()
	}
	rest(b, cores)
}

// rest lets everything happen that can.
func rest(b *testing.B, cores []*Core) {
	for busy := true; busy; {
		busy = false
		for _, core := range cores {
			if !core.HasWork() {
				continue
			}
			busy = true
			turn, err := core.Turn(1)
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range turn.Events {
				if e.Kind == LeaseWanted {
					core.LeaseHeld(e.Shard, e.Term)
				}
			}
			if turn.Wait != nil {
				if err := turn.Wait(); err != nil {
					b.Fatal(err)
				}
				core.SyncDone(turn.Seq)
			}
			for _, f := range turn.Frames {
				pass(b, cores, f)
			}
			for _, d := range turn.Results {
				d.Deliver()
			}
		}
	}
}

func pass(b *testing.B, cores []*Core, f Frame) {
	decoded, err := DecodeFrame(AppendFrame(nil, f))
	if err != nil {
		b.Fatal(err)
	}
	for _, core := range cores {
		if core.cfg.Store != decoded.To {
			continue
		}
		for _, m := range decoded.Messages {
			core.Step(decoded.From, m)
		}
	}
}
