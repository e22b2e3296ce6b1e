package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// fleet is running Hosts that send each other frames and snapshots directly.
type fleet struct {
	t     *testing.T
	mu    sync.Mutex
	hosts map[string]*fleetHost
	// streams is how many snapshots were sent.
	streams int
	changed map[string]Conf
	work    sync.WaitGroup
}

type fleetHost struct {
	*Host
	engine store.Engine
	stop   context.CancelFunc
	ended  chan error
}

func (f *fleet) host(name string) *fleetHost {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hosts[name]
}

// start runs a store's Host with the replicas that stand on it.
func (f *fleet) start(name string, engine store.Engine) *fleetHost {
	f.t.Helper()
	states, err := LoadAll(engine)
	if err != nil {
		f.t.Fatal(err)
	}
	cfg := HostConfig{Config: testConfig(name), Now: func() int64 { return time.Now().UnixMilli() }}
	cfg.Send = func(frame Frame) {
		if to := f.host(frame.To); to != nil {
			decoded, err := DecodeFrame(AppendFrame(nil, frame))
			if err != nil {
				f.t.Error(err)
			}
			to.Receive(decoded)
		}
	}
	cfg.OnChanged = func(shard uint32, _, gen uint64, conf Conf) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.changed[fmt.Sprintf("%d/%d", shard, gen)] = conf
	}
	h := &fleetHost{engine: engine, ended: make(chan error, 1)}
	cfg.SendSnapshot = func(req SnapshotRequest, source store.Snapshot) {
		f.work.Go(func() { h.SnapshotSent(req, f.stream(req, source)) })
	}
	if h.Host, err = NewHost(cfg, engine, states); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	f.hosts[name] = h
	f.mu.Unlock()
	ctx, stop := context.WithCancel(f.t.Context())
	h.stop = stop
	f.work.Go(func() { h.ended <- h.Run(ctx) })
	return h
}

func (f *fleet) stream(req SnapshotRequest, source store.Snapshot) error {
	f.mu.Lock()
	f.streams++
	f.mu.Unlock()
	to := f.host(req.Store)
	if to == nil {
		return errors.Join(errors.New("no such store"), source.Close())
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	f.work.Go(func() {
		err := WriteSnapshot(w, source, req)
		written <- errors.Join(err, w.CloseWithError(err))
	})
	got, err := ReadSnapshot(r, to.engine, to.ReplicaID)
	if err == nil {
		err = to.ReceiveSnapshot(got)
	}
	return errors.Join(err, r.CloseWithError(err), <-written, source.Close())
}

// end stops a host and forgets it.
func (f *fleet) end(name string) {
	f.t.Helper()
	h := f.host(name)
	f.mu.Lock()
	delete(f.hosts, name)
	f.mu.Unlock()
	h.stop()
	if err := <-h.ended; err != nil {
		f.t.Error(err)
	}
	if err := h.engine.Close(); err != nil {
		f.t.Error(err)
	}
}

// leader waits for a shard's established leader other than one.
func (f *fleet) leader(shard uint32, not string) string {
	f.t.Helper()
	for range 400 {
		f.mu.Lock()
		for name, h := range f.hosts {
			if st, ok := h.StatusOf(shard); ok && st.Established && name != not {
				f.mu.Unlock()
				return name
			}
		}
		f.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	f.t.Fatalf("shard %d has no leader", shard)
	return ""
}

func (f *fleet) do(store string, n int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	for i := range n {
		r, err := f.host(store).Do(ctx, 1, request(fmt.Sprintf("%s-%d", store, i)))
		if err != nil || r.Refusal != nil {
			f.t.Fatalf("request %d at %s: %+v, %v", i, store, r, err)
		}
	}
}

// Three running stores, in virtual time: they elect the preferred leader at once, lose it and go on, replace it by an empty
// store over a snapshot, answer reads at followers, and hand over before they stop.
func TestHostsLiveThroughALostStore(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		liveThroughALostStore(t, func() store.Engine { return store.OpenMemory() })
	})
	t.Run("pebble", func(t *testing.T) {
		liveThroughALostStore(t, func() store.Engine {
			engine, err := store.OpenPebble("store", store.Options{FS: vfs.NewMem(), CacheBytes: 1 << 20, MemTableBytes: 256 << 10})
			if err != nil {
				t.Fatal(err)
			}
			return engine
		})
	})
}

func liveThroughALostStore(t *testing.T, open func() store.Engine) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, hosts: map[string]*fleetHost{}, changed: map[string]Conf{}}
		wanted := Wanted{Gen: 1, Replicas: []Placed{{1, "store-1"}, {2, "store-2"}, {3, "store-3"}}}
		for _, p := range wanted.Replicas {
			engine := open()
			if err := Bootstrap(engine, []Seed{{Shard: 1, ID: p.ID, Voters: []uint64{1, 2, 3}}}); err != nil {
				t.Fatal(err)
			}
			f.start(p.Store, engine)
		}
		began := time.Now()
		for _, p := range wanted.Replicas[1:] {
			f.host(p.Store).Want(1, wanted)
		}
		synctest.Wait()
		f.host("store-1").Want(1, wanted)
		if first := f.leader(1, ""); first != "store-1" || time.Since(began) > 50*time.Millisecond {
			t.Fatalf("%s leads after %v", first, time.Since(began))
		}
		f.do("store-1", 20)
		f.end("store-1")
		lost := time.Now()
		f.host("store-2").Suspect("store-1", true)
		f.host("store-3").Suspect("store-1", true)
		second := f.leader(1, "")
		if gap := time.Since(lost); gap > 100*time.Millisecond {
			t.Fatalf("it took %v to elect another", gap)
		}
		f.do(second, 20)

		fourth := f.start("store-4", open())
		wanted = Wanted{Gen: 2, Replicas: []Placed{{4, "store-4"}, {2, "store-2"}, {3, "store-3"}}}
		if err := CreateLearner(fourth.engine, 1, 4, wanted.Gen); err != nil {
			t.Fatal(err)
		}
		s, _, err := Load(fourth.engine, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := fourth.Add(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		for _, p := range wanted.Replicas {
			f.host(p.Store).Want(1, wanted)
		}
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		conf, streams := f.changed["1/2"], f.streams
		f.mu.Unlock()
		if !sameIDs(conf.Voters, []uint64{2, 3, 4}) || len(conf.Learners) > 0 || streams != 1 {
			t.Fatalf("changed to %+v with %d snapshots", conf, streams)
		}
		if err := fourth.Read(t.Context(), 1, false); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if n := ledgerTimes(store.NewReader(fourth.engine, 1), fmt.Sprintf("store-1-%d", i)); n != 1 {
				t.Fatalf("request %d stands %d times on the new store", i, n)
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.host(second).TransferAll(ctx); err != nil {
			t.Fatal(err)
		}
		f.do(f.leader(1, second), 1)
		f.end(second)
		if err := fourth.Remove(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if _, ok := fourth.StatusOf(1); ok || len(fourth.Status()) != 0 {
			t.Fatal("a removed replica is still shown")
		}
		if _, err := fourth.Do(t.Context(), 1, request("x")); !errors.Is(err, ErrNoReplica) {
			t.Fatalf("removed replica: %v", err)
		}
		for _, name := range []string{"store-2", "store-3", "store-4"} {
			if name != second {
				f.end(name)
			}
		}
		f.work.Wait()
	})
}
