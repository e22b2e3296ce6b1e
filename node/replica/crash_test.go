package replica

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const simShards = 3

// disk is an engine that can crash.
type disk interface {
	store.Engine
	// crashed returns what a restart finds; rng chooses how much of the unsynced writes survived.
	crashed(rng *rand.Rand) (disk, error)
}

// memoryDisk is a disk without Pebble.
type memoryDisk struct{ *store.Memory }

func (d memoryDisk) crashed(rng *rand.Rand) (disk, error) {
	return memoryDisk{d.Crash(rng.IntN(d.Unsynced() + 1))}, nil
}

// life is one store that runs, crashes and runs again, with what its callers were told.
type life struct {
	faults Faults
	engine disk
	core   *Core
	waits  []Turn
	stamp  int64
	next   int
	// acked are the requests whose callers got a result.
	acked map[string]uint32
	// established is the term each shard was last established at since the start.
	established map[uint32]uint64
	crashes     int
}

func newLife(engine disk, faults Faults) (*life, error) {
	l := &life{faults: faults, engine: engine, acked: map[string]uint32{}}
	var seeds []Seed
	for shard := uint32(1); shard <= simShards; shard++ {
		seeds = append(seeds, Seed{Shard: shard, ID: 1, Voters: []uint64{1}})
	}
	if err := Bootstrap(l.engine, seeds); err != nil {
		return nil, err
	}
	return l, l.start()
}

// start opens what the disk holds, after checking it.
func (l *life) start() error {
	states, err := loadAll(l.engine, simShards)
	if err != nil {
		return err
	}
	for _, s := range states {
		if err := checkReplay(l.engine, s, openLedger); err != nil {
			return err
		}
	}
	cfg := testConfig("a")
	cfg.Faults = l.faults
	l.waits, l.established = nil, map[uint32]uint64{}
	l.core, err = New(cfg, l.engine, states)
	return err
}

// crash loses the process and some of the unsynced writes.
func (l *life) crash(rng *rand.Rand) error {
	left, err := l.engine.crashed(rng)
	if err != nil {
		return err
	}
	return l.restart(left)
}

func (l *life) restart(left disk) error {
	l.crashes++
	l.engine = left
	return l.start()
}

// propose proposes a request. Nobody is told what comes of a relaxed one.
func (l *life) propose(shard uint32, relaxed bool) {
	l.next++
	id := fmt.Sprintf("%d-%d", l.crashes, l.next)
	l.core.Propose(Proposal{Shard: shard, Command: request(id), Relaxed: relaxed, Done: func(r fsm.Result, err error) {
		if err == nil && r.Refusal == nil && !relaxed {
			l.acked[id] = shard
		}
	}})
}

func (l *life) turn() error {
	l.stamp++
	turn, err := l.core.Turn(l.stamp)
	if err != nil {
		return err
	}
	for _, e := range turn.Events {
		switch e.Kind {
		case LeaseWanted:
			l.core.LeaseHeld(e.Shard, e.Term)
		case Established:
			if e.Term <= l.established[e.Shard] {
				return fmt.Errorf("shard %d established at term %d after %d", e.Shard, e.Term, l.established[e.Shard])
			}
			l.established[e.Shard] = e.Term
		}
	}
	for _, d := range turn.Results {
		d.Deliver()
	}
	if turn.Wait != nil {
		l.waits = append(l.waits, turn)
	}
	return nil
}

// sync lets the oldest turn that waits become durable.
func (l *life) sync() error {
	if len(l.waits) == 0 {
		return nil
	}
	turn := l.waits[0]
	l.waits = l.waits[1:]
	if err := turn.Wait(); err != nil {
		return err
	}
	l.core.SyncDone(turn.Seq)
	return nil
}

// settle runs until nothing is left to do.
func (l *life) settle() error {
	for l.core.HasWork() || len(l.waits) > 0 {
		if err := l.turn(); err != nil {
			return err
		}
		if err := l.sync(); err != nil {
			return err
		}
	}
	return nil
}

// check settles and looks for every acknowledged request: it must have been applied, and no request twice.
func (l *life) check() error {
	if err := l.settle(); err != nil {
		return err
	}
	for id, shard := range l.acked {
		if n := ledgerTimes(store.NewReader(l.engine, shard), id); n != 1 {
			return fmt.Errorf("acknowledged request %s of shard %d was applied %d times", id, shard, n)
		}
	}
	for shard := uint32(1); shard <= simShards; shard++ {
		if l.established[shard] == 0 {
			return fmt.Errorf("shard %d is not established", shard)
		}
	}
	return nil
}

// live does a random life of one store and returns the first thing that is wrong with it.
func live(seed uint64, engine disk, faults Faults) (acked int, err error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	l, err := newLife(engine, faults)
	for step := 0; step < 400 && err == nil; step++ {
		switch n := rng.IntN(100); {
		case n < 45:
			l.propose(1+uint32(rng.IntN(simShards)), rng.IntN(3) == 0)
		case n < 75:
			if l.core.InFlight() < maxTurnsInFlight {
				err = l.turn()
			}
		case n < 97:
			err = l.sync()
		default:
			if err = l.crash(rng); err == nil && rng.IntN(2) == 0 {
				err = l.check()
			}
		}
	}
	if err == nil {
		err = l.crash(rng)
	}
	if err == nil {
		err = l.check()
	}
	return len(l.acked), errors.Join(err, l.engine.Close())
}

// Whatever a store was doing when it crashed, and whatever of the unsynced writes survived: what was acknowledged is
// there once, and the state is the replay of the log.
func TestRandomCrashesLoseNothingAcknowledged(t *testing.T) {
	acked := 0
	for seed := range uint64(150) {
		n, err := live(seed, memoryDisk{store.OpenMemory()}, Faults{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		acked += n
	}
	t.Logf("%d requests were acknowledged", acked)
	if acked < 1000 {
		t.Fatalf("only %d requests were acknowledged: the test shows nothing", acked)
	}
}

// One fixed run, crashed after each of its steps, with each choice of what survives.
func TestCrashAtEveryBoundary(t *testing.T) {
	const steps = 60
	for stop := range steps {
		for keep := 0; ; keep++ {
			engine := store.OpenMemory()
			l, err := newLife(memoryDisk{engine}, Faults{})
			for step := 0; step < stop && err == nil; step++ {
				err = fixedStep(l, step)
			}
			if err != nil {
				t.Fatalf("step %d: %v", stop, err)
			}
			if keep > engine.Unsynced() {
				break
			}
			if err = l.restart(memoryDisk{engine.Crash(keep)}); err == nil {
				err = l.check()
			}
			if err != nil {
				t.Fatalf("crash after step %d with %d unsynced commits kept: %v", stop, keep, err)
			}
		}
	}
}

// fixedStep fills the pipeline: two turns for each sync, so that several wait.
func fixedStep(l *life, step int) error {
	switch step % 5 {
	case 0, 2:
		for shard := uint32(1); shard <= simShards; shard++ {
			l.propose(shard, step%5 == 0 && shard != 2)
		}
		return nil
	case 1, 3:
		return l.turn()
	default:
		return l.sync()
	}
}

// A fault must be noticed by some seed, or the simulation proves nothing.
func faultIsCaught(t *testing.T, faults Faults) {
	t.Helper()
	for seed := range uint64(100) {
		if _, err := live(seed, memoryDisk{store.OpenMemory()}, faults); err != nil {
			t.Logf("seed %d: %v", seed, err)
			return
		}
	}
	t.Fatal("100 lives went by without a complaint")
}

// pebbleDisk is Pebble over a file system that forgets what was not synced.
type pebbleDisk struct {
	store.Engine
	fs *vfs.MemFS
}

func openPebbleDisk(fs *vfs.MemFS) (disk, error) {
	engine, err := store.OpenPebble("store", store.Options{FS: fs, CacheBytes: 1 << 20, MemTableBytes: 256 << 10})
	return pebbleDisk{engine, fs}, err
}

func (d pebbleDisk) crashed(rng *rand.Rand) (disk, error) {
	clone := d.fs.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: rng.IntN(101), RNG: rand.New(rand.NewPCG(rng.Uint64(), 0)),
	})
	if err := d.Close(); err != nil {
		return nil, err
	}
	return openPebbleDisk(clone)
}

// The same lives on Pebble, whose torn tails the file system makes up.
func TestRandomCrashesOnPebbleLoseNothingAcknowledged(t *testing.T) {
	for seed := range uint64(12) {
		engine, err := openPebbleDisk(vfs.NewCrashableMem())
		if err != nil {
			t.Fatal(err)
		}
		acked, err := live(seed, engine, Faults{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if acked == 0 {
			t.Fatalf("seed %d: nothing was acknowledged", seed)
		}
	}
}

func TestPlantedFaultReplyBeforeSyncIsCaught(t *testing.T) {
	faultIsCaught(t, Faults{ReplyBeforeSync: true})
}

func TestPlantedFaultAppliedIndexApartIsCaught(t *testing.T) {
	faultIsCaught(t, Faults{AppliedIndexApart: true})
}
