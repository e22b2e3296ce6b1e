package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
)

// recording is a Listener and a LeaseKeeper that writes down what it is told.
type recording struct {
	mu    sync.Mutex
	lines []string
}

func (r *recording) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *recording) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

func (r *recording) OnEstablished(shard uint32, term uint64) {
	r.note("established %d at %d", shard, term)
}
func (r *recording) OnStepDown(shard uint32)           { r.note("stepped down from %d", shard) }
func (r *recording) Acquire(shard uint32, term uint64) { r.note("acquire %d at %d", shard, term) }
func (r *recording) Release(shard uint32)              { r.note("release %d", shard) }
func (r *recording) OnApplied(shard uint32, e *fsm.Effects) {
	r.note("applied %d stamped %d", shard, e.LatenessMS[0])
}

// hostRig is a running Host of one store whose replicas are their groups' only ones.
type hostRig struct {
	t      *testing.T
	engine *store.Memory
	host   *Host
	stop   context.CancelFunc
	ended  chan error
}

func startHost(t *testing.T, shards int, change func(*HostConfig)) *hostRig {
	t.Helper()
	engine := store.OpenMemory()
	rig := &hostRig{t: t, engine: engine, host: newHost(t, engine, shards, change)}
	rig.run()
	return rig
}

// newHost is a Host that does not run yet.
func newHost(t *testing.T, engine store.Engine, shards int, change func(*HostConfig)) *Host {
	t.Helper()
	var seeds []Seed
	for shard := range shards {
		seeds = append(seeds, Seed{Shard: uint32(shard + 1), ID: 1, Voters: []uint64{1}})
	}
	if err := Bootstrap(engine, seeds); err != nil {
		t.Fatal(err)
	}
	states, err := loadAll(engine, shards)
	if err != nil {
		t.Fatal(err)
	}
	cfg := HostConfig{Config: testConfig("a"), Now: func() int64 { return 7 }}
	if change != nil {
		change(&cfg)
	}
	host, err := NewHost(cfg, engine, states)
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// run runs the host and returns when it has nothing to do.
func (rig *hostRig) run() {
	ctx, stop := context.WithCancel(rig.t.Context())
	rig.stop, rig.ended = stop, make(chan error, 1)
	go func() { rig.ended <- rig.host.Run(ctx) }()
	synctest.Wait()
}

// stopped stops the host and returns Run's error.
func (rig *hostRig) stopped() error {
	rig.stop()
	return <-rig.ended
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("told %q, must be %q", got, want)
	}
}

func TestHostDoesAndReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recording{}
		rig := startHost(t, 1, func(c *HostConfig) { c.Listener = rec })
		wantLines(t, rec.take(), "established 1 at 6")
		got, err := rig.host.Do(t.Context(), 1, request("a"))
		if err != nil || got.Fired != 1 {
			t.Fatalf("got %+v, %v", got, err)
		}
		wantLines(t, rec.take(), "applied 1 stamped 7")
		if err := rig.host.Read(t.Context(), 1, false); err != nil {
			t.Fatal(err)
		}
		if n := ledgerTimes(store.NewReader(rig.engine, 1), "a"); n != 1 {
			t.Fatalf("the request stands %d times", n)
		}
		if err := rig.host.Read(t.Context(), 9, true); !errors.Is(err, ErrNoReplica) {
			t.Fatalf("read of a shard that is elsewhere: %v", err)
		}
		if st, ok := rig.host.StatusOf(1); !ok || !st.Established || st.Term != 6 || st.LeaderStore != "a" || st.Applied != st.LogLast {
			t.Fatalf("status is %+v", st)
		}
		if err := rig.stopped(); err != nil {
			t.Fatal(err)
		}
		if _, err := rig.host.Do(t.Context(), 1, request("b")); !errors.Is(err, ErrStopped) {
			t.Fatalf("after the stop: %v", err)
		}
		if err := rig.host.Alive(t.Context()); !errors.Is(err, ErrStopped) {
			t.Fatalf("alive after the stop: %v", err)
		}
	})
}

func TestHostKeepsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recording{}
		rig := startHost(t, 1, func(c *HostConfig) { c.Listener, c.Keeper = rec, rec })
		wantLines(t, rec.take(), "acquire 1 at 6")
		rig.host.LeaseHeld(1, 6)
		synctest.Wait()
		wantLines(t, rec.take(), "established 1 at 6")
		rig.host.HigherEpoch(1, 8)
		synctest.Wait()
		wantLines(t, rec.take(), "release 1", "stepped down from 1")
		time.Sleep(time.Second)
		synctest.Wait()
		// The control plane says nothing, so the leader went on without it.
		wantLines(t, rec.take(), "acquire 1 at 9", "established 1 at 9")
		if err := rig.stopped(); err != nil {
			t.Fatal(err)
		}
	})
}

// An idle store does nothing at all: no tick, no turn.
func TestIdleHostSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := startHost(t, 64, nil)
		before := rig.host.Counters()
		time.Sleep(time.Hour)
		synctest.Wait()
		if after := rig.host.Counters(); after != before || after.LeadershipsGained != 64 {
			t.Fatalf("in an idle hour the counters went from %+v to %+v", before, after)
		}
		if err := rig.host.Alive(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := rig.stopped(); err != nil {
			t.Fatal(err)
		}
	})
}

// slowDisk is an engine whose syncs last until they are let go.
type slowDisk struct {
	store.Engine
	letGo chan struct{}
}

func (d *slowDisk) Commit(b store.Batch, sync bool) (func() error, error) {
	wait, err := d.Engine.Commit(b, sync)
	if wait == nil || err != nil {
		return wait, err
	}
	return func() error {
		<-d.letGo
		return wait()
	}, nil
}

// A stop finishes what is in flight if the disk lets it, and refuses what was only queued.
func TestHostStopsGracefully(t *testing.T) {
	for _, diskAnswers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			rig := startHost(t, 1, nil)
			disk := &slowDisk{Engine: rig.engine, letGo: make(chan struct{})}
			rig.host.core.engine = disk // the loop sleeps: nobody else looks
			var outcomes recording
			note := func(id string) func(fsm.Result, error) {
				return func(r fsm.Result, err error) { outcomes.note("%s: %d %v", id, r.Fired, err) }
			}
			rig.host.Propose(1, request("flying"), note("flying"))
			synctest.Wait()
			rig.host.Propose(1, request("queued"), note("queued"))
			synctest.Wait()
			rig.stop()
			synctest.Wait()
			wantLines(t, outcomes.take(), "queued: 0 "+ErrStopped.Error())
			if diskAnswers {
				close(disk.letGo)
				if err := <-rig.ended; err != nil {
					t.Fatal(err)
				}
				wantLines(t, outcomes.take(), "flying: 1 <nil>")
				return
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			wantLines(t, outcomes.take(), "flying: 0 "+ErrAmbiguous.Error())
			close(disk.letGo)
			if err := <-rig.ended; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestHostEndsWhenTheDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := startHost(t, 1, nil)
		rig.engine.Fail(errors.New("input/output error"))
		_, err := rig.host.Do(t.Context(), 1, request("a"))
		if !errors.Is(err, ErrAmbiguous) && !errors.Is(err, ErrStopped) {
			t.Fatalf("got %v", err)
		}
		if err := <-rig.ended; err == nil {
			t.Fatal("Run ended as if all were well")
		}
		rig.stop()
	})
}

// The pipeline has room for four turns: with a disk that does not answer, the loop stops taking more.
func TestHostBoundsItsPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := startHost(t, 8, nil)
		disk := &slowDisk{Engine: rig.engine, letGo: make(chan struct{})}
		rig.host.core.engine = disk
		answers := 0
		for shard := uint32(1); shard <= 8; shard++ {
			rig.host.Propose(shard, request("x"), func(_ fsm.Result, err error) {
				if err == nil {
					answers++
				}
			})
			synctest.Wait()
		}
		if n := rig.host.core.InFlight(); n != maxTurnsInFlight {
			t.Fatalf("%d turns in flight", n)
		}
		close(disk.letGo)
		synctest.Wait()
		if answers != 8 {
			t.Fatalf("%d of 8 answered", answers)
		}
		if err := rig.stopped(); err != nil {
			t.Fatal(err)
		}
	})
}

// Three hosts with peers are more of the same: frames instead of nothing.
func TestThreeHostsServeOneShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores := map[uint64]string{1: "a", 2: "b", 3: "c"}
		hosts := map[string]*Host{}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, len(stores))
		for id, name := range stores {
			engine := store.OpenMemory()
			if err := Bootstrap(engine, []Seed{{Shard: 1, ID: id, Voters: []uint64{1, 2, 3}}}); err != nil {
				t.Fatal(err)
			}
			states, err := loadAll(engine, 1)
			if err != nil {
				t.Fatal(err)
			}
			states[0].Stores = stores
			cfg := HostConfig{Config: testConfig(name), Now: func() int64 { return 1 }}
			cfg.Send = func(f Frame) { hosts[f.To].Receive(f) }
			if hosts[name], err = NewHost(cfg, engine, states); err != nil {
				t.Fatal(err)
			}
		}
		for _, h := range hosts {
			go func() { ended <- h.Run(ctx) }()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		served := 0
		for name, h := range hosts {
			_, err := h.Do(ctx, 1, request(name))
			var elsewhere *NotLeaderError
			switch {
			case err == nil:
				served++
				err = h.Read(ctx, 1, false)
			case errors.As(err, &elsewhere):
				_, err = hosts[elsewhere.Store].Do(ctx, 1, request("for "+name))
			}
			if err != nil {
				t.Errorf("store %s: %v", name, err)
			}
		}
		if served != 1 {
			t.Errorf("%d of 3 stores serve the shard", served)
		}
		stop()
		for range hosts {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// A loop that stands still is not piled up with what waits for it: who comes when there is enough of it hears so at once.
func TestStalledLoopRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost(t, store.OpenMemory(), 1, nil)
		gone, leave := context.WithCancel(t.Context())
		leave()
		for n := range maxMailReads {
			if err := host.Read(gone, 1, false); !errors.Is(err, context.Canceled) {
				t.Fatalf("read %d: %v", n, err)
			}
		}
		if err := host.Read(gone, 1, false); !errors.Is(err, ErrOverloaded) {
			t.Errorf("one read too many: %v", err)
		}
		host.mail.bytes = maxMailBytes
		var outcomes recording
		host.Propose(1, request("a"), func(_ fsm.Result, err error) { outcomes.note("%v", err) })
		wantLines(t, outcomes.take(), ErrOverloaded.Error())

		rig := &hostRig{t: t, host: host}
		rig.run()
		if err := host.Read(t.Context(), 1, false); err != nil {
			t.Errorf("once the loop goes on: %v", err)
		}
		if _, err := host.Do(t.Context(), 1, request("a")); err != nil {
			t.Errorf("once the loop goes on: %v", err)
		}
		if c := host.Counters(); c.Shed != 1 || c.Refused != 1 {
			t.Errorf("%d shed, %d refused", c.Shed, c.Refused)
		}
		if err := rig.stopped(); err != nil {
			t.Error(err)
		}
		if asked := host.core.readSeq; asked != 1 {
			t.Errorf("%d questions were asked for one caller who waited", asked)
		}
	})
}

// pressedEngine is one that does not keep up.
type pressedEngine struct {
	store.Engine
	percent, asked atomic.Int64
}

func (e *pressedEngine) Metrics() store.Metrics {
	e.asked.Add(1)
	return store.Metrics{Pressure: int(e.percent.Load())}
}

// The host asks the engine how it keeps up, as long as there is work that hangs on the answer.
func TestHostHeedsTheEnginesPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &pressedEngine{Engine: store.OpenMemory()}
		engine.percent.Store(100)
		rig := &hostRig{t: t, host: newHost(t, engine, 1, func(c *HostConfig) { newWork(&c.Config) })}
		rig.run()
		var outcomes recording
		rig.host.Propose(1, request("new"), func(_ fsm.Result, err error) { outcomes.note("new: %v", err) })
		rig.host.Propose(1, request("old"), func(_ fsm.Result, err error) { outcomes.note("old: %v", err) })
		time.Sleep(20 * pressureInterval)
		synctest.Wait()
		wantLines(t, outcomes.take(), "old: <nil>")
		engine.percent.Store(0)
		time.Sleep(pressureInterval)
		synctest.Wait()
		wantLines(t, outcomes.take(), "new: <nil>")
		time.Sleep(2 * pressureInterval)
		before := engine.asked.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if after := engine.asked.Load(); after != before {
			t.Errorf("asked %d times in an idle hour", after-before)
		}
		if err := rig.stopped(); err != nil {
			t.Error(err)
		}
	})
}
