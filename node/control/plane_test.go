package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is one control plane under test; open makes another process's view of it.
type cluster struct {
	open  func(t *testing.T) Plane
	plant func(t *testing.T, r LeaderRecord)
	// lapse makes the lease of a plane end, which was made to want beats.
	lapse func(t *testing.T, p Plane)
	// fill makes as many queues as there may be.
	fill func(t *testing.T)
}

// both runs a specification over both implementations.
func both(t *testing.T, spec func(t *testing.T, c cluster)) {
	t.Run("memory", func(t *testing.T) { spec(t, memoryCluster()) })
	t.Run("etcd", func(t *testing.T) {
		t.Parallel() // each waits for an election of its own
		spec(t, etcdCluster(t))
	})
}

// everywhere runs a specification over etcd once more as a node without a member has it.
func everywhere(t *testing.T, spec func(t *testing.T, c cluster)) {
	both(t, spec)
	t.Run("remote", func(t *testing.T) {
		t.Parallel()
		spec(t, remoteCluster(t))
	})
}

func memoryCluster() cluster {
	m := NewMemory()
	return cluster{
		open:  func(*testing.T) Plane { return m.Plane() },
		plant: func(_ *testing.T, r LeaderRecord) { m.PlantLeader(r) },
		lapse: func(_ *testing.T, p Plane) { p.(*MemoryPlane).Lapse() },
		fill: func(t *testing.T) {
			for i := range MaxSettings {
				_, err := m.Plane().PutSetting(t.Context(), queue(fmt.Sprintf("q%d", i), 0, ""), 0)
				must(t, err)
			}
		},
	}
}

func etcdCluster(t *testing.T) cluster {
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	return clusterOf(server, func(t *testing.T) Plane { return openEtcd(t, server) })
}

func remoteCluster(t *testing.T) cluster {
	n := newNode(t, "n1", "11111111-a")
	n.start("")
	return clusterOf(n.server, func(t *testing.T) Plane { return openRemote(t, n) })
}

func openRemote(t *testing.T, nodes ...*node) *Etcd {
	t.Helper()
	cfg := RemoteConfig{TLS: testTLS(), Logger: slog.New(slog.DiscardHandler)}
	for _, n := range nodes {
		cfg.Endpoints = append(cfg.Endpoints, n.url())
	}
	remote, err := OpenRemote(cfg)
	must(t, err)
	t.Cleanup(remote.Close)
	p, err := NewEtcd(EtcdConfig{Remote: remote, Logger: cfg.Logger})
	must(t, err)
	return p
}

func clusterOf(server *Server, open func(t *testing.T) Plane) cluster {
	return cluster{
		open: open,
		plant: func(t *testing.T, r LeaderRecord) {
			_, err := server.Client().Put(t.Context(), shardKey(keyLeaders, r.Shard), r.encode())
			must(t, err)
		},
		lapse: func(t *testing.T, p Plane) {
			_, err := server.Client().Revoke(t.Context(), p.(*Etcd).session.current())
			must(t, err)
		},
		fill: func(t *testing.T) {
			var ops []clientv3.Op
			for i := range MaxSettings {
				s := queue(fmt.Sprintf("q%d", i), 1, "")
				value, err := s.marshal()
				must(t, err)
				ops = append(ops, clientv3.OpPut(keyQueues+s.Name(), string(value)))
			}
			for chunk := range slices.Chunk(ops, 100) {
				_, err := server.Client().Txn(t.Context()).Then(chunk...).Commit()
				must(t, err)
			}
		},
	}
}

func startServer(t *testing.T, cfg ServerConfig) *Server {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name, cfg.Token = "n1", "cluster-1"
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	server, err := StartServer(t.Context(), cfg)
	must(t, err)
	t.Cleanup(server.Close)
	return server
}

// openEtcd opens a plane whose leases outlive any test that does not run it.
func openEtcd(t *testing.T, server *Server) *Etcd { return openEtcdTTL(t, server, DefaultLeaseTTL) }

func openEtcdTTL(t *testing.T, server *Server, ttl time.Duration) *Etcd {
	t.Helper()
	p, err := NewEtcd(EtcdConfig{Server: server, Logger: slog.New(slog.DiscardHandler), LeaseTTL: ttl})
	must(t, err)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error is %v, want %v", err, target)
	}
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func store(uuid string, boots uint64) Store {
	return Store{
		ClusterID: "c", UUID: uuid, Name: "name-" + uuid, Addr: uuid + ":7070",
		Boots: boots, BootID: fmt.Sprintf("%s-%d", uuid, boots),
	}
}

func openRegistered(t *testing.T, c cluster, uuid string) Plane {
	t.Helper()
	p := c.open(t)
	_, err := p.Register(t.Context(), store(uuid, 1))
	must(t, err)
	return p
}

// running keeps fn going until the test ends.
func running(t *testing.T, fn func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

func next[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was told")
		panic("unreachable")
	}
}

// until takes values until one is want; what is told twice or in between is allowed.
func until[T any](t *testing.T, ch <-chan T, want T) {
	t.Helper()
	for !reflect.DeepEqual(next(t, ch), want) {
	}
}

func TestMapIsMissingUntilBootstrap(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := c.open(t)
		_, err := p.Map(t.Context())
		wantError(t, err, ErrNoMap)

		must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 3, Stores: []string{"s1"}}))
		m, err := p.Map(t.Context())
		must(t, err)
		equal(t, m.ClusterID, "c")
		equal(t, m.Version, 1)
		equal(t, m.Shards, []Shard{
			{ID: 1, Gen: 1, Replicas: []Replica{{RID: 1, Store: "s1"}}, NextRID: 2},
			{ID: 2, Gen: 1, Replicas: []Replica{{RID: 1, Store: "s1"}}, NextRID: 2},
			{ID: 3, Gen: 1, Replicas: []Replica{{RID: 1, Store: "s1"}}, NextRID: 2},
		})
	})
}

func TestBootstrapHappensOnce(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		must(t, c.open(t).Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 64, Stores: []string{"s1"}}))
		before, err := c.open(t).Map(t.Context())
		must(t, err)

		must(t, c.open(t).Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 16, Stores: []string{"s2"}}))
		after, err := c.open(t).Map(t.Context())
		must(t, err)
		equal(t, after, before)

		err = c.open(t).Bootstrap(t.Context(), Seed{ClusterID: "other", Shards: 64, Stores: []string{"s1"}})
		wantError(t, err, ErrOtherCluster)
	})
}

func TestBootstrapRefusesNonsense(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		for _, seed := range []Seed{
			{Shards: 1, Stores: []string{"s"}},
			{ClusterID: "c", Shards: 1},
			{ClusterID: "c", Shards: 1, Stores: []string{"s", ""}},
			{ClusterID: "c", Shards: 1, Stores: []string{"s", "t", "s"}},
			{ClusterID: "c", Stores: []string{"s"}},
			{ClusterID: "c", Shards: MaxShards + 1, Stores: []string{"s"}},
		} {
			if err := c.open(t).Bootstrap(t.Context(), seed); err == nil {
				t.Errorf("%+v was accepted", seed)
			}
		}
	})
}

func TestSlotsAreSpreadEvenly(t *testing.T) {
	for _, shards := range []int{1, 3, 16, 64, 100, MaxShards} {
		m := Seed{ClusterID: "c", Shards: shards, Stores: []string{"s"}}.firstMap()
		slots := map[uint32]int{}
		for _, shard := range m.Slots {
			slots[shard]++
		}
		equal(t, len(slots), shards)
		for shard, n := range slots {
			if shard < 1 || shard > uint32(shards) || n < Slots/shards || n > Slots/shards+1 {
				t.Errorf("%d shards: shard %d has %d slots", shards, shard, n)
			}
		}
	}
}

func TestNodeIDsAreStableAndNeverShared(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		first, err := c.open(t).Register(t.Context(), store("s1", 1))
		must(t, err)
		equal(t, first, Registration{NodeID: 1, Boots: 0})
		other, err := c.open(t).Register(t.Context(), store("s2", 1))
		must(t, err)
		equal(t, other, Registration{NodeID: 2, Boots: 0})
		// Starts that never reached the control plane leave a gap in the count.
		again, err := c.open(t).Register(t.Context(), store("s1", 5))
		must(t, err)
		equal(t, again, Registration{NodeID: 1, Boots: 1})
	})
}

func TestRegisterRefusesADiskThatWasRolledBackOrCopied(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		_, err := c.open(t).Register(t.Context(), store("s1", 7))
		must(t, err)

		_, err = c.open(t).Register(t.Context(), store("s1", 6))
		wantError(t, err, ErrRolledBack)

		theCopy := store("s1", 7)
		theCopy.BootID = "somebody else's seventh start"
		_, err = c.open(t).Register(t.Context(), theCopy)
		wantError(t, err, ErrRolledBack)

		// The same start may ask again: its first answer may have been lost.
		again, err := c.open(t).Register(t.Context(), store("s1", 7))
		must(t, err)
		equal(t, again.NodeID, 1)
	})
}

func TestRegisterRefusesAnotherClustersDisk(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		must(t, c.open(t).Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 1, Stores: []string{"s1"}}))
		stranger := store("s1", 1)
		stranger.ClusterID = "d"
		_, err := c.open(t).Register(t.Context(), stranger)
		wantError(t, err, ErrOtherCluster)
	})
}

func TestLeaderEpochsOnlyGrow(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		a, b := openRegistered(t, c, "a"), openRegistered(t, c, "b")
		claim := func(p Plane, epoch uint64) LeaderGrant {
			t.Helper()
			grants, err := p.AcquireLeaders(t.Context(), []LeaderClaim{{Shard: 9, Epoch: epoch}})
			must(t, err)
			equal(t, len(grants), 1)
			equal(t, grants[0].LeaderClaim, LeaderClaim{Shard: 9, Epoch: epoch})
			return grants[0]
		}
		equal(t, claim(a, 6).Held, true)
		equal(t, claim(a, 6).Held, true)
		standing := LeaderRecord{Shard: 9, Epoch: 6, Store: "a", Addr: "a:7070"}
		equal(t, claim(b, 5), LeaderGrant{LeaderClaim: LeaderClaim{9, 5}, Standing: standing})
		equal(t, claim(b, 6), LeaderGrant{LeaderClaim: LeaderClaim{9, 6}, Standing: standing})
		equal(t, claim(b, 16).Held, true)
		standing = LeaderRecord{Shard: 9, Epoch: 16, Store: "b", Addr: "b:7070"}
		equal(t, claim(a, 7), LeaderGrant{LeaderClaim: LeaderClaim{9, 7}, Standing: standing})
		equal(t, claim(b, 15), LeaderGrant{LeaderClaim: LeaderClaim{9, 15}, Standing: standing})
	})
}

func TestManyLeadersAreAcquiredAtOnceInOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		p := openRegistered(t, c, "a")
		c.plant(t, LeaderRecord{Shard: 130, Epoch: 99, Store: "b", Addr: "b:1"})
		var claims []LeaderClaim
		for shard := uint32(200); shard > 0; shard-- {
			claims = append(claims, LeaderClaim{Shard: shard, Epoch: 6})
		}
		grants, err := p.AcquireLeaders(t.Context(), claims)
		must(t, err)
		equal(t, len(grants), len(claims))
		for i, g := range grants {
			equal(t, g.LeaderClaim, claims[i])
			equal(t, g.Held, g.Shard != 130)
		}
	})
}

func TestLeadersNeedARegisteredStore(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		_, err := c.open(t).AcquireLeaders(t.Context(), []LeaderClaim{{Shard: 1, Epoch: 6}})
		wantError(t, err, ErrNotRegistered)
	})
}

func TestWatchTellsWhatStandsAndThenEveryChange(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		a := openRegistered(t, c, "a")
		_, err := a.AcquireLeaders(t.Context(), []LeaderClaim{{Shard: 1, Epoch: 6}})
		must(t, err)
		told := make(chan LeaderRecord, 100)
		running(t, func(ctx context.Context) error {
			return a.WatchLeaders(ctx, func(r LeaderRecord) { told <- r })
		})
		until(t, told, LeaderRecord{Shard: 1, Epoch: 6, Store: "a", Addr: "a:7070"})
		_, err = a.AcquireLeaders(t.Context(), []LeaderClaim{{Shard: 2, Epoch: 7}})
		must(t, err)
		until(t, told, LeaderRecord{Shard: 2, Epoch: 7, Store: "a", Addr: "a:7070"})
		planted := LeaderRecord{Shard: 1, Epoch: 255, Store: "x", Addr: "x:1"}
		c.plant(t, planted)
		until(t, told, planted)
	})
}

func TestALapsedLeaseComesBackWithABeatOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		p := openRegistered(t, c, "a")
		running(t, p.Run)
		told := make(chan LeaderRecord, 100)
		running(t, func(ctx context.Context) error {
			return p.WatchLeaders(ctx, func(r LeaderRecord) { told <- r })
		})
		claims := []LeaderClaim{{Shard: 3, Epoch: 6}}
		_, err := p.AcquireLeaders(t.Context(), claims)
		must(t, err)
		until(t, told, LeaderRecord{Shard: 3, Epoch: 6, Store: "a", Addr: "a:7070"})

		c.lapse(t, p)
		until(t, told, LeaderRecord{Shard: 3})
		_, err = p.AcquireLeaders(t.Context(), claims)
		wantError(t, err, ErrLapsed)
		wantError(t, err, ErrUnavailable)
		equal(t, p.Health(t.Context()).LeaseLive, false)

		for err != nil {
			p.Beat()
			_, err = p.AcquireLeaders(t.Context(), claims)
			if err != nil {
				wantError(t, err, ErrLapsed)
			}
		}
		until(t, told, LeaderRecord{Shard: 3, Epoch: 6, Store: "a", Addr: "a:7070"})
		equal(t, p.Health(t.Context()).LeaseLive, true)
	})
}

func queue(name string, version uint64, reason string) Setting {
	return Setting{Queue: &storagev1.QueueSettings{Name: name, Version: version, PauseReason: reason}}
}

func tenant(name string, version uint64) Setting {
	return Setting{Tenant: &storagev1.TenantSettings{Name: name, Version: version}}
}

func rule(id string, version uint64) Setting {
	return Setting{Rule: &storagev1.PauseRule{Id: id, Version: version}}
}

func wantVersion(t *testing.T, err error, expected, current uint64) {
	t.Helper()
	var v *VersionError
	if !errors.As(err, &v) || v.Expected != expected || v.Current != current {
		t.Fatalf("error is %v, want version %d instead of %d", err, current, expected)
	}
}

func text(s Setting) string {
	if s.Queue != nil {
		return "queue " + s.Queue.String()
	}
	if s.Rule != nil {
		return "rule " + s.Rule.String()
	}
	return "tenant " + s.Tenant.String()
}

func wantSetting(t *testing.T, got, want Setting) {
	t.Helper()
	equal(t, text(got), text(want))
}

func TestSettingsAreChangedByVersion(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := c.open(t)
		put := func(s Setting, expected uint64) (Setting, error) { return p.PutSetting(t.Context(), s, expected) }

		created, err := put(queue("mail", 77, "first"), 0)
		must(t, err)
		wantSetting(t, created, queue("mail", 1, "first"))
		_, err = put(queue("mail", 0, "again"), 0)
		wantVersion(t, err, 0, 1)
		updated, err := put(queue("mail", 0, "second"), 1)
		must(t, err)
		wantSetting(t, updated, queue("mail", 2, "second"))
		_, err = put(queue("mail", 0, "late"), 1)
		wantVersion(t, err, 1, 2)
		_, err = put(queue("none", 0, ""), 3)
		wantVersion(t, err, 3, 0)

		got, ok, err := p.GetSetting(t.Context(), Queue, "mail")
		must(t, err)
		equal(t, ok, true)
		wantSetting(t, got, updated)
		_, ok, err = p.GetSetting(t.Context(), Tenant, "mail")
		must(t, err)
		equal(t, ok, false)
	})
}

func TestVersionsGrowAcrossDeletion(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := c.open(t)
		_, err := p.PutSetting(t.Context(), queue("q", 0, ""), 0)
		must(t, err)
		gone := queue("q", 0, "")
		gone.Queue.Deleted = true
		tombstone, err := p.PutSetting(t.Context(), gone, 1)
		must(t, err)
		equal(t, tombstone.Version(), 2)
		_, err = p.PutSetting(t.Context(), gone, 2)
		wantVersion(t, err, 2, 0)
		if _, err = p.PutSetting(t.Context(), gone, 0); err == nil {
			t.Error("what does not exist was deleted")
		}
		kept, ok, err := p.GetSetting(t.Context(), Queue, "q")
		must(t, err)
		equal(t, ok && kept.Deleted(), true)
		again, err := p.PutSetting(t.Context(), queue("q", 0, "new"), 0)
		must(t, err)
		equal(t, again.Version(), 3)
	})
}

func TestSettingsListByKindInOrder(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := c.open(t)
		for _, s := range []Setting{queue("b", 0, ""), tenant("t/b", 0), queue("a/x", 0, ""), queue("a", 0, ""), tenant("t", 0), rule("r", 0)} {
			_, err := p.PutSetting(t.Context(), s, 0)
			must(t, err)
		}
		names := func(kind SettingKind) (names []string) {
			list, err := p.ListSettings(t.Context(), kind)
			must(t, err)
			for _, s := range list {
				equal(t, s.Kind(), kind)
				names = append(names, s.Name())
			}
			return names
		}
		equal(t, names(Queue), []string{"a", "a/x", "b"})
		equal(t, names(Tenant), []string{"t", "t/b"})
		equal(t, names(PauseRule), []string{"r"})
	})
}

func TestSettingsRefuseNonsense(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		for _, s := range []Setting{{}, queue("", 0, ""), {Queue: queue("q", 0, "").Queue, Tenant: tenant("q", 0).Tenant}, rule("", 0),
			{Tenant: tenant("q", 0).Tenant, Rule: rule("q", 0).Rule}} {
			if _, err := c.open(t).PutSetting(t.Context(), s, 0); err == nil {
				t.Errorf("%v was accepted", s)
			}
		}
	})
}

func TestTheNumberOfSettingsIsBounded(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		c.fill(t)
		p := c.open(t)
		_, err := p.PutSetting(t.Context(), queue("one too many", 0, ""), 0)
		wantError(t, err, ErrTooMany)
		_, err = p.PutSetting(t.Context(), queue("q7", 0, "still changes"), 1)
		must(t, err)
		_, err = p.PutSetting(t.Context(), tenant("counts apart", 0), 0)
		must(t, err)
	})
}

func TestSettingsAreWatched(t *testing.T) {
	both(t, func(t *testing.T, c cluster) {
		p := c.open(t)
		_, err := p.PutSetting(t.Context(), queue("q", 0, "one"), 0)
		must(t, err)
		told := make(chan string, 100)
		running(t, func(ctx context.Context) error {
			return p.WatchSettings(ctx, func(s Setting) { told <- text(s) })
		})
		until(t, told, text(queue("q", 1, "one")))
		_, err = c.open(t).PutSetting(t.Context(), tenant("t", 0), 0)
		must(t, err)
		until(t, told, text(tenant("t", 1)))
		_, err = c.open(t).PutSetting(t.Context(), rule("r", 0), 0)
		must(t, err)
		until(t, told, text(rule("r", 1)))
		_, err = c.open(t).PutSetting(t.Context(), queue("q", 0, "two"), 1)
		must(t, err)
		until(t, told, text(queue("q", 2, "two")))
	})
}

func TestHealthOfAWorkingPlane(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		p := c.open(t)
		h := p.Health(t.Context())
		equal(t, h.Quorum, true)
		equal(t, h.LeaseLive, false)
		equal(t, h.Leader != "", true)
		equal(t, len(h.Alarms), 0)
		_, err := p.Register(t.Context(), store("a", 1))
		must(t, err)
		equal(t, p.Health(t.Context()).LeaseLive, true)
	})
}

func TestARequestEndsWithItsContext(t *testing.T) {
	everywhere(t, func(t *testing.T, c cluster) {
		p := openRegistered(t, c, "a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.Map(ctx)
		wantError(t, err, ErrUnavailable)
		_, err = p.AcquireLeaders(ctx, []LeaderClaim{{Shard: 1, Epoch: 6}})
		wantError(t, err, ErrUnavailable)
		_, err = p.PutSetting(ctx, queue("q", 0, ""), 0)
		wantError(t, err, ErrUnavailable)
		equal(t, p.Health(ctx).Quorum, false)
	})
}
