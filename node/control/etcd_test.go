package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

func TestAServerKeepsItsDataAndIgnoresLaterNames(t *testing.T) {
	dir := t.TempDir()
	first := startServer(t, ServerConfig{Dir: dir})
	must(t, openEtcd(t, first).Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 4, Stores: []string{"s"}}))
	first.Close()
	first.Close()

	second := startServer(t, ServerConfig{Dir: dir, Name: "renamed", Token: "another"})
	m, err := openEtcd(t, second).Map(t.Context())
	must(t, err)
	equal(t, len(m.Shards), 4)
}

func TestTwoServersOnOneMachineDoNotClash(t *testing.T) {
	a := openEtcd(t, startServer(t, ServerConfig{Dir: t.TempDir()}))
	b := openEtcd(t, startServer(t, ServerConfig{Dir: t.TempDir()}))
	must(t, a.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 4, Stores: []string{"s"}}))
	_, err := b.Map(t.Context())
	wantError(t, err, ErrNoMap)
}

func TestAServersRunEndsWithItsContextOrWithTheServer(t *testing.T) {
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, server.Run(ctx))
	server.Close()
	if err := server.Run(t.Context()); err == nil {
		t.Error("a server that stopped by itself is no error")
	}
	p := openEtcd(t, server)
	_, err := p.Map(t.Context())
	wantError(t, err, ErrUnavailable)
	equal(t, p.Health(t.Context()).Quorum, false)
}

func TestServerConfigIsValidated(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for field, cfg := range map[string]ServerConfig{
		"Dir":          {Name: "n", Token: "t", Logger: log},
		"Name":         {Dir: "d", Token: "t", Logger: log},
		"Token":        {Dir: "d", Name: "n", Logger: log},
		"Logger":       {Dir: "d", Name: "n", Token: "t"},
		"QuotaBytes":   {Dir: "d", Name: "n", Token: "t", Logger: log, QuotaBytes: -1},
		"ClientSocket": {Dir: "d", Name: "n", Token: "t", Logger: log, ClientSocket: "/" + strings.Repeat("x", 200)},
	} {
		if _, err := StartServer(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error for %s is %v", field, err)
		}
	}
}

func TestAClientSocketServesEtcdsOwnAPI(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "etcd.sock")
	server := startServer(t, ServerConfig{Dir: t.TempDir(), ClientSocket: socket})
	must(t, openEtcd(t, server).Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 4, Stores: []string{"s"}}))
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: 5 * time.Second})
	must(t, err)
	defer func() { must(t, client.Close()) }()
	response, err := client.Get(t.Context(), keyMap)
	must(t, err)
	equal(t, len(response.Kvs), 1)
}

func TestBootstrapFinishesWhatACrashLeftHalfDone(t *testing.T) {
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	half := clusterRecord{ID: "c", Shards: 150, Store: "s1"}
	_, err := server.Client().Put(t.Context(), keyCluster, encodeJSON(half))
	must(t, err)
	first := half.seed().firstMap().Shards[0]
	_, err = server.Client().Put(t.Context(), shardKey(keyShards, first.ID), encodeJSON(first.record()))
	must(t, err)
	p := openEtcd(t, server)
	_, err = p.Map(t.Context())
	wantError(t, err, ErrNoMap)

	// The first seed decides, whoever finishes.
	must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 16, Stores: []string{"s2"}}))
	m, err := p.Map(t.Context())
	must(t, err)
	equal(t, m, half.seed().firstMap())
}

func TestADamagedMapIsNoMap(t *testing.T) {
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	p := openEtcd(t, server)
	must(t, p.Bootstrap(t.Context(), Seed{ClusterID: "c", Shards: 2, Stores: []string{"s"}}))
	shard := shardKey(keyShards, 2)
	for _, damage := range []clientv3.Op{
		clientv3.OpPut(keyMap, "{"),
		clientv3.OpPut(keyMap, "{}"),
		clientv3.OpPut(keyMap, `{"version":2,"runs":[{"first":0,"last":2047,"shard":1}]}`),
		clientv3.OpPut(keyMap, `{"version":2,"runs":[{"first":0,"last":4096,"shard":1}]}`),
		clientv3.OpPut(keyMap, `{"version":2,"runs":[{"first":0,"last":4095,"shard":3}]}`),
		clientv3.OpPut(shard, "[]"),
		clientv3.OpPut(keyShards+"two", "{}"),
		clientv3.OpPut(keyCluster, "{"),
		clientv3.OpDelete(shard),
		clientv3.OpDelete(keyMap),
		clientv3.OpDelete(keyCluster),
	} {
		before, err := server.Client().Get(t.Context(), string(damage.KeyBytes()))
		must(t, err)
		_, err = server.Client().Do(t.Context(), damage)
		must(t, err)
		_, err = p.Map(t.Context())
		wantError(t, err, ErrNoMap)

		repair := clientv3.OpDelete(string(damage.KeyBytes()))
		if len(before.Kvs) > 0 {
			repair = clientv3.OpPut(string(damage.KeyBytes()), string(before.Kvs[0].Value))
		}
		_, err = server.Client().Do(t.Context(), repair)
		must(t, err)
	}
	_, err := p.Map(t.Context())
	must(t, err)
}

// shortTTL is the shortest lease that etcd grants us.
const shortTTL = 2 * time.Second

func TestALeaseWithoutBeatsLapses(t *testing.T) {
	t.Parallel()
	p := openEtcdTTL(t, startServer(t, ServerConfig{Dir: t.TempDir()}), shortTTL)
	_, err := p.Register(t.Context(), store("a", 1))
	must(t, err)
	running(t, p.Run)
	told := make(chan LeaderRecord, 10)
	running(t, func(ctx context.Context) error {
		return p.WatchLeaders(ctx, func(r LeaderRecord) { told <- r })
	})
	_, err = p.AcquireLeaders(t.Context(), []LeaderClaim{{1, 6}})
	must(t, err)
	equal(t, next(t, told).Epoch, 6)
	equal(t, next(t, told), LeaderRecord{Shard: 1})
}

func TestALeaseWithBeatsOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	p := openEtcdTTL(t, server, 2*shortTTL)
	_, err := p.Register(t.Context(), store("a", 1))
	must(t, err)
	running(t, p.Run)
	lease := p.session.current()
	// A second store that nobody keeps alive tells the time, twice in a row.
	beat := time.NewTicker(p.session.ttl / 10)
	defer beat.Stop()
	for boot := range 2 {
		_, err := openEtcdTTL(t, server, shortTTL).Register(t.Context(), store("b", uint64(boot)+1))
		must(t, err)
		gone := server.Client().Watch(t.Context(), keyLive+"b", clientv3.WithFilterPut())
		for ended := false; !ended; {
			select {
			case <-gone:
				ended = true
			case <-beat.C:
				p.Beat()
			}
		}
	}
	_, err = p.AcquireLeaders(t.Context(), []LeaderClaim{{1, 6}})
	must(t, err)
	equal(t, p.session.current(), lease)
}

// brittle is a watcher whose watches end after their first answer, each in another way, and lose changes meanwhile.
type brittle struct {
	clientv3.Watcher
	watches atomic.Int64
}

func (b *brittle) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	ctx, cancel := context.WithCancel(ctx)
	from := b.Watcher.Watch(ctx, key, opts...)
	to := make(chan clientv3.WatchResponse)
	go func() {
		defer close(to)
		defer cancel()
		select {
		case <-ctx.Done():
			return
		case <-from:
		}
		end := []clientv3.WatchResponse{
			{CompactRevision: 1 << 40, Canceled: true},
			{Canceled: true},
		}
		if n := b.watches.Add(1) % 3; n < 2 {
			select {
			case <-ctx.Done():
			case to <- end[n]:
			}
		}
	}()
	return to
}

func TestAWatchThatBreaksMissesNothing(t *testing.T) {
	t.Parallel()
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	server.Client().Watcher = &brittle{Watcher: server.Client().Watcher}
	p := openEtcd(t, server)
	_, err := p.Register(t.Context(), store("a", 1))
	must(t, err)
	told := make(chan LeaderRecord, 100)
	running(t, func(ctx context.Context) error {
		return p.WatchLeaders(ctx, func(r LeaderRecord) { told <- r })
	})
	for epoch := uint64(6); epoch < 12; epoch++ {
		_, err := p.AcquireLeaders(t.Context(), []LeaderClaim{{1, epoch}})
		must(t, err)
		until(t, told, LeaderRecord{Shard: 1, Epoch: epoch, Store: "a", Addr: "a:7070"})
	}
	_, err = server.Client().Delete(t.Context(), shardKey(keyLeaders, 1))
	must(t, err)
	until(t, told, LeaderRecord{Shard: 1})
}

func TestACompactedWatchIsAnError(t *testing.T) {
	for _, response := range []clientv3.WatchResponse{{CompactRevision: 7, Canceled: true}, {Canceled: true}} {
		if response.Err() == nil {
			t.Errorf("%+v counts as well", response)
		}
	}
	wantError(t, (&clientv3.WatchResponse{CompactRevision: 7}).Err(), rpctypes.ErrCompacted)
}

func TestARecordThatIsNotUnderstoodDoesNotEndAWatch(t *testing.T) {
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	p := openEtcd(t, server)
	_, err := p.Register(t.Context(), store("a", 1))
	must(t, err)
	told := make(chan LeaderRecord, 100)
	running(t, func(ctx context.Context) error {
		return p.WatchLeaders(ctx, func(r LeaderRecord) { told <- r })
	})
	_, err = server.Client().Put(t.Context(), shardKey(keyLeaders, 1), "nonsense")
	must(t, err)
	if _, err = p.AcquireLeaders(t.Context(), []LeaderClaim{{1, 6}}); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("error is %v", err)
	}
	_, err = p.AcquireLeaders(t.Context(), []LeaderClaim{{2, 6}})
	must(t, err)
	equal(t, next(t, told), LeaderRecord{Shard: 2, Epoch: 6, Store: "a", Addr: "a:7070"})
}

func TestAPlantedEpochReachesTheKeeperWithinASecond(t *testing.T) {
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	p := openEtcd(t, server)
	_, err := p.Register(t.Context(), store("a", 1))
	must(t, err)
	granted, superseded := make(chan uint64, 10), make(chan LeaderRecord, 10)
	k := NewKeeper(KeeperConfig{
		Plane:      p,
		Granted:    func(_ uint32, epoch uint64) { granted <- epoch },
		Superseded: func(_ uint32, r LeaderRecord) { superseded <- r },
		Logger:     slog.New(slog.DiscardHandler),
	})
	running(t, k.Run)
	k.Acquire(5, 6)
	equal(t, next(t, granted), 6)
	theirs := LeaderRecord{Shard: 5, Epoch: 0xff, Store: "x", Addr: "x:1"}
	planted := time.Now()
	_, err = server.Client().Put(t.Context(), shardKey(keyLeaders, 5), theirs.encode())
	must(t, err)
	equal(t, next(t, superseded), theirs)
	if took := time.Since(planted); took > time.Second {
		t.Errorf("took %s", took)
	}
}

// A restarted member applies its log and lets go of entries before its raft hears of it; to campaign in between is a
// panic. It is asked without a pause here, and with a log of any length, so that it would meet that moment.
func TestAMemberElectsItselfWhateverItsLog(t *testing.T) {
	dir := t.TempDir()
	for start := range 40 {
		cfg := ServerConfig{Dir: dir, Name: "n1", Token: "cluster-1", Logger: slog.New(slog.DiscardHandler)}
		etcdConfig, err := cfg.embedded()
		must(t, err)
		etcd, err := embed.StartEtcd(etcdConfig)
		must(t, err)
		for ready := false; !ready; {
			must(t, electSelf(t.Context(), etcd.Server))
			select {
			case <-etcd.Server.ReadyNotify():
				ready = true
			default:
			}
		}
		server := newServer(cfg, etcd)
		response, err := server.Client().Get(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		must(t, err)
		equal(t, response.Count, int64(10*start))
		for i := range 10 {
			_, err := server.Client().Put(t.Context(), fmt.Sprintf("/%d/%d", start, i), "")
			must(t, err)
		}
		server.Close()
	}
}

func TestATermIsLostAlsoIfAnotherHasFollowedAlready(t *testing.T) {
	server := startServer(t, ServerConfig{Dir: t.TempDir()})
	p := bootstrapped(t, clusterOf(server, func(t *testing.T) Plane { return openEtcd(t, server) }), "a")
	term := controller(t, p)
	_, err := server.Client().Delete(t.Context(), keyTerm)
	must(t, err)
	_, err = server.Client().Put(t.Context(), keyTerm, encodeJSON(termRecord{Store: "b", BootID: "b-1"}))
	must(t, err)
	next(t, term.Lost())
}
