package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fleet is a cluster of stores in memory whose shards do at once what is wanted of them, on fake time; every store runs a
// controller.
type fleet struct {
	t      *testing.T
	m      *Memory
	planes map[string]*MemoryPlane
	stops  map[string]func()
	// Controllers and the test count on these.
	epoch, transfers atomic.Int64
	members          fakeMembers
}

// fakeMembers are etcd's members in memory.
type fakeMembers struct {
	mu  sync.Mutex
	all []Member
}

func (f *fakeMembers) Members(context.Context) ([]Member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all), nil
}

func (f *fakeMembers) RemoveMember(_ context.Context, store string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = slices.DeleteFunc(f.all, func(m Member) bool { return strings.HasSuffix(m.Name, "-"+store) })
	return nil
}

func (f *fakeMembers) names() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.all {
		names = append(names, m.Name)
	}
	return names
}

func newFleet(t *testing.T, shards int, seed string, stores ...string) *fleet {
	f := &fleet{t: t, m: NewMemory(), planes: map[string]*MemoryPlane{}, stops: map[string]func(){}}
	for _, store := range stores {
		f.add(store, "node-"+store)
	}
	must(t, f.planes[stores[0]].Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: shards, Stores: strings.Split(seed, "")}))
	return f
}

func (f *fleet) add(uuid, name string) {
	p := f.m.Plane()
	one := store(uuid, 1)
	one.Name = name
	_, err := p.Register(f.t.Context(), one)
	must(f.t, err)
	f.planes[uuid] = p
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := NewController(ControllerConfig{
		Plane: p, Members: func() Membership { return &f.members }, Transfer: f.transfer, Logger: slog.New(slog.DiscardHandler),
	})
	go func() { done <- c.Run(ctx) }()
	f.stops[uuid] = func() {
		cancel()
		must(f.t, <-done)
	}
	f.t.Cleanup(func() { f.stop(uuid) })
}

// stop ends a store's process.
func (f *fleet) stop(uuid string) {
	if stop, ok := f.stops[uuid]; ok {
		delete(f.stops, uuid)
		stop()
		f.planes[uuid].Lapse()
	}
}

func (f *fleet) transfer(_ context.Context, x Transfer) error {
	f.transfers.Add(1)
	return f.lead(x.Shard, x.To)
}

func (f *fleet) lead(shard uint32, store string) error {
	_, err := f.planes[store].AcquireLeaders(context.Background(), []LeaderClaim{{shard, uint64(f.epoch.Add(1))}})
	return err
}

// pass lets time pass; each second shards elect leaders where there are none and come to what is wanted of them.
func (f *fleet) pass(d time.Duration) View {
	f.t.Helper()
	for range d / time.Second {
		synctest.Wait()
		v := f.view()
		for _, s := range v.Wanted {
			if v.Leaders[s.ID] == "" {
				for _, r := range s.Replicas {
					if _, runs := f.stops[r.Store]; runs {
						f.may(f.lead(s.ID, r.Store))
						break
					}
				}
			}
			actual := Actual{Shard: s.ID, Epoch: uint64(f.epoch.Load()), Gen: s.Gen, Voters: s.Replicas}
			_, err := f.m.Plane().PublishShards(f.t.Context(), []Actual{actual})
			f.may(err)
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
	return f.view()
}

// may is for what is done again anyway if its answer is lost.
func (f *fleet) may(err error) {
	f.t.Helper()
	if !errors.Is(err, ErrUnavailable) {
		must(f.t, err)
	}
}

func (f *fleet) view() View {
	v, err := f.m.Plane().Placement(f.t.Context())
	must(f.t, err)
	return v
}

// spread is how many replicas, and how many leaderships, each of the stores has.
func spread(v View, stores ...string) (replicas, leads []int) {
	for _, store := range stores {
		has, led := 0, 0
		for _, s := range v.Wanted {
			if s.on(store) {
				has++
			}
			if v.Leaders[s.ID] == store {
				led++
			}
		}
		replicas, leads = append(replicas, has), append(leads, led)
	}
	return replicas, leads
}

func wantEven(t *testing.T, leads []int) {
	t.Helper()
	if slices.Max(leads)-slices.Min(leads) > maxSkew {
		t.Fatalf("leaderships: %v", leads)
	}
}

func TestALoneStoresShardsAreSpreadOverThree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 64, "a", "a", "b", "c")
		f.pass(5 * time.Second)
		// Some are on their way, not all at once; nobody has been here for long enough to lead.
		v := f.pass(time.Second)
		if replicas, _ := spread(v, "b"); replicas[0] == 64 {
			t.Error("all shards were on their way at once")
		}
		equal(t, f.transfers.Load(), 0)

		v = f.pass(3 * time.Minute)
		replicas, leads := spread(v, "a", "b", "c")
		equal(t, replicas, []int{64, 64, 64})
		wantEven(t, leads)
		moved := f.transfers.Load()
		f.pass(5 * time.Minute)
		equal(t, f.transfers.Load(), moved)
	})
}

func TestALostDiskIsReplacedByItsNodesNewStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 12, "abc", "a", "b", "c")
		f.pass(2 * time.Minute)
		f.stop("b")
		v := f.pass(30 * time.Second)
		replicas, leads := spread(v, "a", "b", "c")
		equal(t, replicas, []int{12, 12, 12})
		equal(t, leads[1], 0)
		f.add("x", "node-b")
		v = f.pass(3 * time.Minute)
		equal(t, v.Stores[1].State, StoreGone)
		replicas, leads = spread(v, "a", "b", "c", "x")
		equal(t, replicas, []int{12, 0, 12, 12})
		wantEven(t, slices.Delete(leads, 1, 2))
	})
}

func TestADrainedStoreIsEmptiedAndAFifthGetsItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 20, "abc", "a", "b", "c", "d", "e")
		v := f.pass(10 * time.Minute)
		replicas, leads := spread(v, "a", "b", "c", "d", "e")
		equal(t, replicas, []int{12, 12, 12, 12, 12})
		wantEven(t, leads)
		must(t, f.planes["a"].SetStoreState(t.Context(), nil, "c", StoreDraining))
		v = f.pass(10 * time.Minute)
		replicas, leads = spread(v, "c", "a", "b", "d", "e")
		equal(t, replicas, []int{0, 15, 15, 15, 15})
		equal(t, leads[0], 0)
		wantEven(t, leads[1:])
	})
}

func TestAnotherStoreTakesOverAsTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, "a", "a", "b", "c", "d")
		synctest.Wait()
		first := f.m.officer
		for uuid, p := range f.planes {
			if p == first {
				f.stop(uuid)
			}
		}
		synctest.Wait()
		if f.m.officer == nil || f.m.officer == first {
			t.Fatal("nobody took over")
		}
		// One whose lease lapses and comes back may be it again, or another is: somebody acts.
		f.m.officer.Lapse()
		for _, p := range f.planes {
			p.Beat()
		}
		v := f.pass(time.Minute)
		for _, s := range v.Wanted {
			equal(t, len(s.Replicas), MaxReplicas)
		}
	})
}

func TestTheControllerOutlivesAnAbsenceOfThePlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, "a", "a", "b", "c")
		f.m.SetUnavailable(true)
		time.Sleep(time.Minute)
		f.m.SetUnavailable(false)
		f.m.LoseAnswers(20)
		v := f.pass(time.Minute)
		for _, s := range v.Wanted {
			equal(t, len(s.Replicas), MaxReplicas)
		}
	})
}

func TestATransferThatFailsIsTriedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		tried := 0
		c := NewController(ControllerConfig{
			Plane: m.Plane(), Logger: slog.New(slog.DiscardHandler),
			Transfer: func(context.Context, Transfer) error { tried++; return errors.New("no") },
		})
		v := viewFrom("a b c", strings.Repeat("Abc ", 9))
		start := time.Now()
		for at := time.Duration(0); at <= 2*balanceEvery; at += time.Second {
			c.balance(t.Context(), v, start.Add(at))
		}
		equal(t, tried, 3)
	})
}

// The member of a store that is lost for good goes when a node without one is there to take its place, and not before.
func TestALostVoterIsRetired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, "abc", "a", "b", "c")
		for i, name := range []string{"node-a-a", "node-b-b", "node-c-c"} {
			f.members.all = append(f.members.all, Member{ID: uint64(i) + 1, Name: name, Started: true})
		}
		f.stop("c")
		time.Sleep(2 * lostAfter)
		equal(t, len(f.members.names()), 3)
		f.add("d", "node-d")
		time.Sleep(time.Minute)
		equal(t, f.members.names(), []string{"node-a-a", "node-b-b"})
	})
}
