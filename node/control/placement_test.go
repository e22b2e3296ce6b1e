package control

import (
	"context"
	"errors"
	"testing"
)

func bootstrapped(t *testing.T, c cluster, stores ...string) Plane {
	t.Helper()
	p := openRegistered(t, c, stores[0])
	must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 4, Stores: stores}))
	return p
}

func controller(t *testing.T, p Plane) *Term {
	t.Helper()
	running(t, p.Run)
	term, err := p.Campaign(t.Context())
	must(t, err)
	return term
}

func shardOf(t *testing.T, p Plane, id uint32) Shard {
	t.Helper()
	m, err := p.Map(t.Context())
	must(t, err)
	return m.Shards[id-1]
}

func TestASeedOfSeveralStoresSpreadsReplicasAndLeaders(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := c.open(t)
		must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 6, Stores: []string{"a", "b", "c"}}))
		m, err := p.Map(t.Context())
		must(t, err)
		var got []string
		for _, s := range m.Shards {
			order := ""
			for i, r := range s.Replicas {
				equal(t, r.RID, uint64(i+1))
				order += r.Store
			}
			equal(t, s.NextRID, 4)
			got = append(got, order)
		}
		equal(t, got, []string{"abc", "bca", "cab", "acb", "bac", "cba"})
		// The first seed decides, also of what another one finds half done.
		must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 6, Stores: []string{"b"}}))
		again, err := c.open(t).Map(t.Context())
		must(t, err)
		equal(t, again, m)
	})
}

func TestASeedIsEvenForAnyNumberOfStores(t *testing.T) {
	for n := 1; n <= 7; n++ {
		var stores []string
		for i := range n {
			stores = append(stores, string(rune('a'+i)))
		}
		first, all, second := map[string]int{}, map[string]int{}, map[string]int{}
		for _, s := range (Seed{ClusterID: "c", Shards: 2 * 3 * n, Stores: stores}).firstMap().Shards {
			equal(t, len(s.Replicas), min(n, MaxReplicas))
			distinct := map[string]bool{}
			for _, r := range s.Replicas {
				all[r.Store]++
				distinct[r.Store] = true
			}
			equal(t, len(distinct), len(s.Replicas))
			first[s.Replicas[0].Store]++
			if len(s.Replicas) > 1 {
				second[s.Replicas[0].Store+s.Replicas[1].Store]++
			}
		}
		for _, store := range stores {
			equal(t, first[store], 6)
			equal(t, all[store], 6*min(n, MaxReplicas))
		}
		for pair, times := range second {
			if n > 2 && times != 3 {
				t.Errorf("%d stores: %s is the order of %d shards", n, pair, times)
			}
		}
	}
}

func TestStoresAreListedWithWhatIsWantedOfThem(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		a, b := openRegistered(t, c, "a"), openRegistered(t, c, "b")
		changed := make(chan struct{}, 100)
		running(t, func(ctx context.Context) error {
			return a.WatchStores(ctx, func() { changed <- struct{}{} })
		})
		// until stores are as wanted: the signal says only that they may be.
		wait := func(ok func([]StoreRecord) bool) {
			t.Helper()
			for {
				stores, err := a.Stores(t.Context())
				must(t, err)
				if ok(stores) {
					return
				}
				next(t, changed)
			}
		}
		next(t, changed)
		stores, err := a.Stores(t.Context())
		must(t, err)
		equal(t, stores, []StoreRecord{
			{UUID: "a", Name: "name-a", NodeID: 1, Addr: "a:7070", Boots: 1, BootID: "a-1", State: StoreUp, Live: true},
			{UUID: "b", Name: "name-b", NodeID: 2, Addr: "b:7070", Boots: 1, BootID: "b-1", State: StoreUp, Live: true},
		})
		must(t, a.SetStoreState(t.Context(), nil, "b", StoreDraining))
		wait(func(s []StoreRecord) bool { return s[1].State == StoreDraining })
		// A start does not undo what is wanted.
		_, err = b.Register(t.Context(), store("b", 2))
		must(t, err)
		wait(func(s []StoreRecord) bool { return s[1].Boots == 2 && s[1].State == StoreDraining })
		c.lapse(t, b)
		wait(func(s []StoreRecord) bool { return !s[1].Live })

		must(t, a.SetStoreState(t.Context(), nil, "b", StoreGone))
		_, err = b.Register(t.Context(), store("b", 3))
		wantError(t, err, ErrStoreGone)
		must(t, a.SetStoreState(t.Context(), nil, "b", StoreGone))
		for _, state := range []StoreState{StoreUp, StoreDraining} { // what was given up stays so
			wantError(t, a.SetStoreState(t.Context(), nil, "b", state), ErrStoreGone)
		}
		wantError(t, a.SetStoreState(t.Context(), nil, "x", StoreUp), ErrNoStore)
		if err := a.SetStoreState(t.Context(), nil, "b", "away"); err == nil {
			t.Error("an unknown state was accepted")
		}
	})
}

func TestOneStoreAtATimeIsTheController(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		a, b := bootstrapped(t, c, "a"), openRegistered(t, c, "b")
		running(t, b.Run)
		first := controller(t, a)
		again, err := a.Campaign(t.Context())
		must(t, err)
		equal(t, again == first, true)

		won := make(chan *Term, 1)
		running(t, func(ctx context.Context) error {
			term, err := b.Campaign(ctx)
			won <- term
			return err
		})
		select {
		case <-won:
			t.Fatal("two stores are the controller")
		case <-first.Lost():
			t.Fatal("the term ended by itself")
		default:
		}
		must(t, a.Resign(t.Context(), first))
		next(t, first.Lost())
		second := next(t, won)

		// The lease of the controller ends, and with it the term; what it still wants to write is refused.
		c.lapse(t, b)
		next(t, second.Lost())
		third, err := a.Campaign(t.Context())
		must(t, err)
		change := shardOf(t, a, 1)
		change.Gen, change.NextRID = 2, 3
		change.Replicas = append(change.Replicas, Replica{RID: 2, Store: "b"})
		wantError(t, b.ChangeShard(t.Context(), second, change, 1), ErrDeposed)
		wantError(t, b.ChangeShard(t.Context(), nil, change, 1), ErrDeposed)
		wantError(t, b.SetStoreState(t.Context(), second, "a", StoreGone), ErrDeposed)
		must(t, a.ChangeShard(t.Context(), third, change, 1))
		equal(t, shardOf(t, b, 1), change)

		_, err = c.open(t).Campaign(t.Context())
		wantError(t, err, ErrNotRegistered)
	})
}

func TestAStoreWhoseLeaseLapsedIsNoController(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := bootstrapped(t, c, "a")
		term := controller(t, p)
		c.lapse(t, p)
		next(t, term.Lost())
		_, err := p.Campaign(t.Context())
		wantError(t, err, ErrLapsed)
		for errors.Is(err, ErrLapsed) {
			p.Beat()
			_, err = p.Campaign(t.Context())
		}
		must(t, err)
	})
}

func TestAControllerThatStartsAgainNeedNotWaitForItsFormerSelf(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		controller(t, bootstrapped(t, c, "a"))
		reborn := c.open(t)
		_, err := reborn.Register(t.Context(), store("a", 2))
		must(t, err)
		term := controller(t, reborn)
		must(t, reborn.SetStoreState(t.Context(), term, "a", StoreDraining))
	})
}

func TestShardsAreChangedByGenerationAndReplicaIDsAreNeverReused(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := bootstrapped(t, c, "a", "b", "c")
		term := controller(t, p)
		told := make(chan Shard, 100)
		running(t, func(ctx context.Context) error {
			return p.WatchShards(ctx, func(s Shard) { told <- s })
		})
		until(t, told, shardOf(t, p, 2))
		next := Shard{ID: 1, Gen: 2, NextRID: 5, Replicas: []Replica{{2, "b"}, {3, "c"}, {4, "d"}}}
		must(t, p.ChangeShard(t.Context(), term, next, 1))
		until(t, told, next)
		must(t, p.ChangeShard(t.Context(), term, next, 1)) // the answer was lost
		equal(t, shardOf(t, p, 1), next)

		err := p.ChangeShard(t.Context(), term, Shard{ID: 1, Gen: 2, NextRID: 5, Replicas: []Replica{{2, "b"}}}, 1)
		wantGen(t, err, &GenError{Shard: 1, Expected: 1, Current: 2})
		wantError(t, p.ChangeShard(t.Context(), term, Shard{ID: 99, Gen: 2}, 1), ErrNoShard)
		for name, refused := range map[string]Shard{
			"an id that is used":          {ID: 1, Gen: 3, NextRID: 5, Replicas: []Replica{{2, "b"}, {1, "a"}}},
			"an id that was not given":    {ID: 1, Gen: 3, NextRID: 5, Replicas: []Replica{{2, "b"}, {5, "a"}}},
			"an id on another store":      {ID: 1, Gen: 3, NextRID: 5, Replicas: []Replica{{2, "a"}}},
			"two replicas of one store":   {ID: 1, Gen: 3, NextRID: 6, Replicas: []Replica{{2, "b"}, {5, "b"}}},
			"one replica twice":           {ID: 1, Gen: 3, NextRID: 5, Replicas: []Replica{{2, "b"}, {2, "b"}}},
			"no replica":                  {ID: 1, Gen: 3, NextRID: 5},
			"ids that go back":            {ID: 1, Gen: 3, NextRID: 4, Replicas: []Replica{{2, "b"}}},
			"a generation that is beyond": {ID: 1, Gen: 4, NextRID: 5, Replicas: []Replica{{2, "b"}}},
		} {
			if err := p.ChangeShard(t.Context(), term, refused, 2); err == nil {
				t.Errorf("%s was accepted", name)
			}
		}
		equal(t, shardOf(t, p, 1), next)
	})
}

func wantGen(t *testing.T, err error, want *GenError) {
	t.Helper()
	var got *GenError
	if !errors.As(err, &got) || *got != *want {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

func TestPlacementIsReadAtOnce(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := bootstrapped(t, c, "a", "b", "c")
		openRegistered(t, c, "b")
		_, err := p.AcquireLeaders(t.Context(), []LeaderClaim{{2, 6}})
		must(t, err)
		actual := Actual{Shard: 2, Epoch: 6, Gen: 1, Voters: []Replica{{1, "b"}}}
		_, err = p.PublishShards(t.Context(), []Actual{actual})
		must(t, err)
		m, err := p.Map(t.Context())
		must(t, err)
		stores, err := p.Stores(t.Context())
		must(t, err)
		v, err := p.Placement(t.Context())
		must(t, err)
		equal(t, v, View{
			Stores: []StoreView{{StoreRecord: stores[0]}, {StoreRecord: stores[1]}}, Wanted: m.Shards,
			Actual: map[uint32]Actual{2: actual}, Leaders: map[uint32]string{2: "a"},
		})
	})
}

func TestAnOlderEpochNeverOverwritesWhatANewerOneTold(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		p := bootstrapped(t, c, "a")
		told := make(chan Actual, 1000)
		running(t, func(ctx context.Context) error {
			return p.WatchActual(ctx, func(a Actual) { told <- a })
		})
		publish := func(actuals ...Actual) []bool {
			t.Helper()
			stand, err := p.PublishShards(t.Context(), actuals)
			must(t, err)
			return stand
		}
		at := func(epoch, gen uint64, voters ...Replica) Actual {
			return Actual{Shard: 7, Epoch: epoch, Gen: gen, Voters: voters, Learners: []Replica{{9, "x"}}}
		}
		one, two := Replica{1, "a"}, Replica{2, "b"}
		equal(t, publish(at(9, 2, one)), []bool{true})
		until(t, told, at(9, 2, one))
		equal(t, publish(at(9, 2, one, two)), []bool{true}) // learners have caught up, say
		until(t, told, at(9, 2, one, two))
		equal(t, publish(at(9, 1)), []bool{false})
		equal(t, publish(at(8, 3)), []bool{false})
		equal(t, publish(at(16, 1, two)), []bool{true})
		equal(t, publish(at(9, 9)), []bool{false})
		until(t, told, at(16, 1, two))

		var many []Actual
		for shard := uint32(1); shard <= 150; shard++ {
			many = append(many, Actual{Shard: shard, Epoch: 10, Gen: 1, Voters: []Replica{one}})
		}
		for i, stands := range publish(many...) {
			equal(t, stands, many[i].Shard != 7)
		}
		until(t, told, many[149])
		equal(t, publish(), []bool{})
	})
}
