package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// startWithEtcd starts a server whose embedded etcd is served at a socket, and returns an operator's client of it.
func startWithEtcd(t *testing.T) (*server, *clientv3.Client) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "etcd.sock")
	s := startServer(t, "", "--shards", "4", "--etcd-socket", socket)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, etcd
}

// etcdGet reads a key that must be there.
func etcdGet(t *testing.T, etcd *clientv3.Client, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	res, err := etcd.Get(ctx, key)
	if err != nil || len(res.Kvs) != 1 {
		t.Fatalf("get %s: %v, %v", key, res, err)
	}
	return string(res.Kvs[0].Value)
}

func etcdDo(t *testing.T, etcd *clientv3.Client, op clientv3.Op) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if _, err := etcd.Do(ctx, op); err != nil {
		t.Fatal(err)
	}
}

func (s *server) shard(id uint32) *carillonv1.Shard {
	s.t.Helper()
	for _, shard := range call(s.t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{}).GetShards() {
		if shard.GetId() == id {
			return shard
		}
	}
	s.t.Fatalf("no shard %d", id)
	return nil
}

// The leader key of a shard is overwritten by a higher epoch, as a successor would: the shard stops within a second, comes
// back above that epoch, and every job that was due meanwhile is delivered exactly once.
func TestHigherEpochInEtcdStopsTheShard(t *testing.T) {
	t.Parallel()
	s, etcd := startWithEtcd(t)
	const n = 600
	begin := soon(time.Second)
	s.createMany(n, func(i int) *carillonv1.JobSpec {
		return &carillonv1.JobSpec{Id: fmt.Sprint("j", i), Schedule: at(begin.Add(time.Duration(i) * 5 * time.Millisecond))}
	})
	before := map[uint32]*carillonv1.Shard{}
	var id uint32
	for _, shard := range call(t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{}).GetShards() {
		before[shard.GetId()] = shard
		if shard.GetBacklog().GetWaiting() > before[id].GetBacklog().GetWaiting() {
			id = shard.GetId()
		}
	}
	if before[id].GetBacklog().GetWaiting() < 50 {
		t.Fatalf("no shard has enough jobs: %v", before)
	}
	key := fmt.Sprintf("/l/%08x", id)
	if got, want := etcdGet(t, etcd, key), fmt.Sprintf("%016x,", before[id].GetEpoch()); !strings.HasPrefix(got, want) {
		t.Fatalf("the leader key is %q; the shard's epoch is %d", got, before[id].GetEpoch())
	}
	pauseUntil(t, begin.Add(500*time.Millisecond))

	higher := before[id].GetEpoch() + 10
	etcdDo(t, etcd, clientv3.OpPut(key, fmt.Sprintf("%016x,%032x,127.0.0.1:1", higher, 7)))
	await(t, time.Second, "the old epoch no longer serves", func() bool {
		now := s.shard(id)
		return !now.GetEstablished() || now.GetEpoch() > before[id].GetEpoch()
	})
	await(t, 10*time.Second, "the shard is back above the epoch that overtook it", func() bool {
		now := s.shard(id)
		return now.GetEstablished() && now.GetEpoch() > higher
	})
	await(t, 10*time.Second, "its lease stands in etcd", func() bool {
		return strings.HasPrefix(etcdGet(t, etcd, key), fmt.Sprintf("%016x,", s.shard(id).GetEpoch()))
	})
	for other, was := range before {
		if now := s.shard(other); other != id && (now.GetEpoch() != was.GetEpoch() || !now.GetEstablished()) {
			t.Errorf("shard %d was disturbed: %v, before %v", other, now, was)
		}
	}
	times := map[string]int{}
	for _, l := range s.drain([]string{"default"}, n, succeed) {
		times[l.GetJobId()]++
		if l.GetAttempt() != 1 {
			t.Errorf("%s was delivered as attempt %d", l.GetJobId(), l.GetAttempt())
		}
	}
	for job, k := range times {
		if k != 1 {
			t.Errorf("%s was delivered %d times", job, k)
		}
	}
	if len(times) != n {
		t.Errorf("%d jobs were delivered; want %d", len(times), n)
	}
}

// The slot map vanishes from etcd: that is an alarm and not a default. The node goes on with its own copy, also after a
// restart; when the map is back the alarm goes.
func TestLostSlotMapIsAnAlarm(t *testing.T) {
	t.Parallel()
	s, etcd := startWithEtcd(t)
	alarmed := func() bool {
		for _, alarm := range call(t, s.cluster().GetCluster, &carillonv1.GetClusterRequest{}).GetAlarms() {
			if alarm.GetName() == "slot-map" {
				return true
			}
		}
		return false
	}
	work := func(id string) {
		t.Helper()
		s.create(&carillonv1.JobSpec{Id: id, Schedule: in(0)})
		lease := s.claimOne("w", "default")
		if lease.GetJobId() != id {
			t.Errorf("got %s; want %s", lease.GetJobId(), id)
		}
		s.complete(succeeded(lease, "w", ""), succeededState)
	}
	work("before")
	if alarmed() {
		t.Fatal("there is an alarm, and the map stands")
	}
	slotMap := etcdGet(t, etcd, "/map")
	etcdDo(t, etcd, clientv3.OpDelete("/map"))
	await(t, 20*time.Second, "the alarm is raised", alarmed)
	work("without-a-map")
	s.kill()
	s.start()
	work("restarted-without-a-map")
	await(t, 20*time.Second, "the alarm is raised again", alarmed)
	etcdDo(t, etcd, clientv3.OpPut("/map", slotMap))
	await(t, 20*time.Second, "the alarm has ended", func() bool { return !alarmed() })
	for _, id := range []string{"before", "without-a-map", "restarted-without-a-map"} {
		if got := s.onlyExecution(id).GetState(); got != succeededState {
			t.Errorf("%s is %v", id, got)
		}
	}
}
