package control

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// keeperRig is a keeper over a plane in memory, on fake time; what it calls back is written down.
type keeperRig struct {
	m          *Memory
	p          *MemoryPlane
	k          *Keeper
	granted    chan LeaderClaim
	superseded chan LeaderRecord
}

func newKeeperRig(t *testing.T) *keeperRig {
	m := NewMemory()
	r := &keeperRig{
		m: m, p: m.Plane(), granted: make(chan LeaderClaim, 1000), superseded: make(chan LeaderRecord, 1000),
	}
	_, err := r.p.Register(t.Context(), store("a", 1))
	must(t, err)
	r.k = NewKeeper(KeeperConfig{
		Plane:      r.p,
		Granted:    func(shard uint32, epoch uint64) { r.granted <- LeaderClaim{shard, epoch} },
		Superseded: func(_ uint32, standing LeaderRecord) { r.superseded <- standing },
		Logger:     slog.New(slog.DiscardHandler),
	})
	running(t, r.k.Run)
	synctest.Wait()
	return r
}

// heard is what was called back by now.
func heard[T any](ch chan T) (all []T) {
	synctest.Wait()
	for len(ch) > 0 {
		all = append(all, <-ch)
	}
	return all
}

func wantHeard[T any](t *testing.T, ch chan T, want ...T) {
	t.Helper()
	equal(t, heard(ch), want)
}

func TestKeeperAcquires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		r.k.Acquire(2, 6)
		wantHeard(t, r.granted, LeaderClaim{2, 6})
		r.k.Acquire(2, 8)
		wantHeard(t, r.granted, LeaderClaim{2, 8})
		wantHeard(t, r.superseded)
	})
}

func TestKeeperTellsWhoStandsInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		theirs := LeaderRecord{Shard: 2, Epoch: 6, Store: "b", Addr: "b:1"}
		r.m.PlantLeader(theirs)
		r.k.Acquire(2, 6)
		wantHeard(t, r.granted)
		wantHeard(t, r.superseded, theirs)
		r.k.Acquire(2, 7)
		wantHeard(t, r.granted, LeaderClaim{2, 7})
	})
}

func TestKeeperTellsOfAHigherEpochAtOnceAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		r.k.Acquire(2, 6)
		wantHeard(t, r.granted, LeaderClaim{2, 6})
		theirs := LeaderRecord{Shard: 2, Epoch: 255, Store: "b", Addr: "b:1"}
		r.m.PlantLeader(theirs)
		r.m.PlantLeader(theirs)
		wantHeard(t, r.superseded, theirs)
		wantHeard(t, r.granted)
	})
}

func TestKeeperSaysNothingOfShardsItDoesNotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		r.k.Acquire(2, 6)
		wantHeard(t, r.granted, LeaderClaim{2, 6})
		r.k.Release(2)
		r.m.PlantLeader(LeaderRecord{Shard: 2, Epoch: 255, Store: "b"})
		r.m.PlantLeader(LeaderRecord{Shard: 3, Epoch: 255, Store: "b"})
		wantHeard(t, r.superseded)
	})
}

func TestKeeperAsksAgainUntilThePlaneIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		r.m.SetUnavailable(true)
		r.k.Acquire(1, 6)
		r.k.Acquire(2, 6)
		time.Sleep(time.Minute)
		wantHeard(t, r.granted)
		// A leadership that ended meanwhile is not asked for.
		r.k.Release(1)
		r.m.SetUnavailable(false)
		time.Sleep(keeperRetryMax)
		wantHeard(t, r.granted, LeaderClaim{2, 6})
	})
}

func TestKeeperSurvivesALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		r.m.LoseAnswers(1)
		r.k.Acquire(1, 6)
		time.Sleep(keeperRetry)
		wantHeard(t, r.granted, LeaderClaim{1, 6})
		wantHeard(t, r.superseded)
	})
}

func TestKeeperTakesALapsedLeaseAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		r.k.Acquire(1, 6)
		wantHeard(t, r.granted, LeaderClaim{1, 6})

		r.p.Lapse()
		time.Sleep(time.Minute)
		// Its working loop is stuck: no beat, no lease.
		wantHeard(t, r.granted)

		r.p.Beat()
		time.Sleep(keeperRetryMax)
		wantHeard(t, r.granted, LeaderClaim{1, 6})
		equal(t, r.m.leaderNow(1).Epoch, 6)
	})
}

func TestKeeperGivesWayIfAHigherEpochTookTheLapsedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		r.k.Acquire(1, 6)
		wantHeard(t, r.granted, LeaderClaim{1, 6})
		r.p.Lapse()
		b := r.m.Plane()
		_, err := b.Register(t.Context(), store("b", 1))
		must(t, err)
		_, err = b.AcquireLeaders(t.Context(), []LeaderClaim{{1, 7}})
		must(t, err)
		r.p.Beat()
		time.Sleep(keeperRetryMax)
		wantHeard(t, r.superseded, LeaderRecord{Shard: 1, Epoch: 7, Store: "b", Addr: "b:7070"})
		wantHeard(t, r.granted)
	})
}

// counting counts the requests for leader leases.
type counting struct {
	*MemoryPlane
	requests int
}

func (c *counting) AcquireLeaders(ctx context.Context, claims []LeaderClaim) ([]LeaderGrant, error) {
	c.requests++
	return c.MemoryPlane.AcquireLeaders(ctx, claims)
}

func TestKeeperAsksForManyInOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t)
		plane := &counting{MemoryPlane: r.p}
		r.k.cfg.Plane = plane
		r.m.SetUnavailable(true)
		r.k.Acquire(1, 6)
		synctest.Wait()
		equal(t, plane.requests, 1)
		var want []LeaderClaim
		for shard := uint32(1); shard <= 64; shard++ {
			r.k.Acquire(shard, 6)
			want = append(want, LeaderClaim{shard, 6})
		}
		r.m.SetUnavailable(false)
		time.Sleep(keeperRetryMax)
		wantHeard(t, r.granted, want...)
		equal(t, plane.requests, 2)
	})
}
