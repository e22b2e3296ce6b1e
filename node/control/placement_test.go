package control

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
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
		wantError(t, b.ChangeShard(t.Context(), second, change, Basis{Wanted: 1}), ErrDeposed)
		wantError(t, b.ChangeShard(t.Context(), nil, change, Basis{Wanted: 1}), ErrDeposed)
		wantError(t, b.SetStoreState(t.Context(), second, "a", StoreGone), ErrDeposed)
		must(t, a.ChangeShard(t.Context(), third, change, Basis{Wanted: 1}))
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
		must(t, p.ChangeShard(t.Context(), term, next, Basis{Wanted: 1}))
		until(t, told, next)
		must(t, p.ChangeShard(t.Context(), term, next, Basis{Wanted: 1})) // the answer was lost
		equal(t, shardOf(t, p, 1), next)

		err := p.ChangeShard(t.Context(), term, Shard{ID: 1, Gen: 2, NextRID: 5, Replicas: []Replica{{2, "b"}}}, Basis{Wanted: 1})
		wantGen(t, err, &GenError{Shard: 1, Expected: 1, Current: 2})
		wantError(t, p.ChangeShard(t.Context(), term, Shard{ID: 99, Gen: 2}, Basis{Wanted: 1}), ErrNoShard)
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
			if err := p.ChangeShard(t.Context(), term, refused, Basis{Wanted: 2}); err == nil {
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
		p := openRegistered(t, c, "a")
		must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 150, Stores: []string{"a"}}))
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
		equal(t, publish(at(9, 1, one)), []bool{true})
		until(t, told, at(9, 1, one))
		equal(t, publish(at(9, 1, one, two)), []bool{true}) // learners have caught up, say
		until(t, told, at(9, 1, one, two))
		equal(t, publish(at(8, 1)), []bool{false})
		equal(t, publish(at(16, 1, two)), []bool{true})
		equal(t, publish(at(9, 1)), []bool{false})
		until(t, told, at(16, 1, two))

		var many []Actual
		for shard := uint32(1); shard <= 151; shard++ {
			many = append(many, Actual{Shard: shard, Epoch: 10, Gen: 1, Voters: []Replica{one}})
		}
		for i, stands := range publish(many...) {
			equal(t, stands, many[i].Shard != 7 && many[i].Shard != 151) // 151 is none
		}
		until(t, told, many[149])
		equal(t, publish(), []bool{})
	})
}

func TestOnlyWhatIsWantedIsTold(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		p := bootstrapped(t, c, "a")
		term := controller(t, p)
		publish := func(epoch, gen uint64) bool {
			t.Helper()
			stand, err := p.PublishShards(t.Context(), []Actual{{Shard: 1, Epoch: epoch, Gen: gen, Voters: []Replica{{1, "a"}}}})
			must(t, err)
			return stand[0]
		}
		next := shardOf(t, p, 1)
		for next.Gen < 11 {
			equal(t, publish(8, next.Gen), true)
			by := Basis{Wanted: next.Gen, Told: next.Gen}
			next.Gen++
			must(t, p.ChangeShard(t.Context(), term, next, by))
			equal(t, publish(9, next.Gen-1), false)
		}
		equal(t, publish(9, 1), false)
		equal(t, publish(9, 12), false)
		equal(t, publish(7, 11), false)
		equal(t, publish(8, 11), true)
		next.Gen = 12
		wantError(t, p.ChangeShard(t.Context(), term, next, Basis{Wanted: 11, Told: 10}), ErrMoved)
		equal(t, shardOf(t, p, 1).Gen, 11)
	})
}

// A shard of three of four stores: one is silent for long, the fourth is lost while it takes over, the first comes back.
type takeover struct {
	t    *testing.T
	p    Plane
	term *Term
}

func newTakeover(t *testing.T, c cluster) takeover {
	p := openRegistered(t, c, "a")
	must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 1, Stores: []string{"a", "b", "c"}}))
	for _, other := range []string{"b", "c", "d"} {
		openRegistered(t, c, other)
	}
	x := takeover{t, p, controller(t, p)}
	equal(t, x.tell(6, Actual{Gen: 1, Voters: []Replica{{1, "a"}, {2, "b"}, {3, "c"}}}), true)
	return x
}

// view is what stands, with stores that have been silent for long.
func (x takeover) view(silent ...string) View {
	x.t.Helper()
	v, err := x.p.Placement(x.t.Context())
	must(x.t, err)
	for i := range v.Stores {
		v.Stores[i].Live, v.Stores[i].For = !slices.Contains(silent, v.Stores[i].UUID), time.Hour
	}
	return v
}

// carryOut does what a controller decides by a view, which has to be about that one shard.
func (x takeover) carryOut(v View) (Shard, error) {
	x.t.Helper()
	plan := Place(v)
	equal(x.t, len(plan.Changes), 1)
	return plan.Changes[0], x.p.ChangeShard(x.t.Context(), x.term, plan.Changes[0], v.BasisOf(plan.Changes[0]))
}

func (x takeover) tell(epoch uint64, a Actual) bool {
	x.t.Helper()
	a.Shard, a.Epoch = 1, epoch
	stand, err := x.p.PublishShards(x.t.Context(), []Actual{a})
	must(x.t, err)
	return stand[0]
}

func TestAShardGoesBackToWhatItsGroupHas(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		x := newTakeover(t, c)
		onD, err := x.carryOut(x.view("c"))
		must(t, err)
		equal(t, onD.Replicas, []Replica{{1, "a"}, {2, "b"}, {4, "d"}})
		equal(t, len(Place(x.view("c", "d")).Changes), 0)
		back, err := x.carryOut(x.view("d"))
		must(t, err)
		equal(t, back, Shard{ID: 1, Gen: 3, NextRID: 5, Replicas: []Replica{{1, "a"}, {2, "b"}, {3, "c"}}, Dropped: []Replica{{4, "d"}}})
		must(t, x.p.ChangeShard(t.Context(), x.term, back, Basis{Wanted: 2, Told: 1})) // the answer was lost

		// The group had come to d after all, and only that it has was not yet told: now it must not be, by no leader, or c
		// would destroy what is wanted of it.
		came := Actual{Gen: 2, Voters: onD.Replicas}
		equal(t, x.tell(6, came), false)
		equal(t, x.tell(7, came), false)
		is := x.view().Actual[1]
		for _, heard := range []Shard{onD, back} {
			equal(t, DutyOf(heard, is, "c", 3, 1).Remove, false)
			equal(t, DutyOf(heard, is, "c", 3, 2).Remove, false)
		}
		equal(t, DutyOf(back, is, "d", 4, 2).Remove, false) // it may have a vote

		equal(t, x.tell(7, Actual{Gen: 3, Voters: back.Replicas}), true)
		is = x.view().Actual[1]
		equal(t, DutyOf(onD, is, "c", 3, 2).Remove, false)
		equal(t, DutyOf(back, is, "d", 4, 2), Duty{Remove: true}) // d comes back late
		again := back
		again.Gen, again.Replicas = 4, onD.Replicas
		if err := x.p.ChangeShard(t.Context(), x.term, again, Basis{Wanted: 3, Told: 3}); err == nil {
			t.Error("a replica that may be destroyed is wanted again")
		}
	})
}

func TestAGroupThatHasComeFurtherDoesNotGoBack(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		x := newTakeover(t, c)
		onD, err := x.carryOut(x.view("c"))
		must(t, err)
		// The controller decides, the leader tells, and the controller acts: c may have destroyed its replica by then.
		decided := x.view("d")
		equal(t, x.tell(6, Actual{Gen: 2, Voters: onD.Replicas}), true)
		equal(t, DutyOf(onD, x.view().Actual[1], "c", 3, 1).Remove, true)
		_, err = x.carryOut(decided)
		wantError(t, err, ErrMoved)
		onC, err := x.carryOut(x.view("d"))
		must(t, err)
		equal(t, onC, Shard{ID: 1, Gen: 3, NextRID: 6, Replicas: []Replica{{1, "a"}, {2, "b"}, {5, "c"}}})

		// And back to d, which was given up: its replica is none that c could have destroyed.
		onD, err = x.carryOut(x.view("c"))
		must(t, err)
		equal(t, onD, Shard{ID: 1, Gen: 4, NextRID: 6, Replicas: []Replica{{1, "a"}, {2, "b"}, {4, "d"}}, Dropped: []Replica{{5, "c"}}})
		equal(t, x.tell(6, Actual{Gen: 3, Voters: onC.Replicas}), false)
		equal(t, x.tell(6, Actual{Gen: 4, Voters: onD.Replicas}), true)
	})
}
