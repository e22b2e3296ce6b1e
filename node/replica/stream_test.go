package replica

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

// written is a snapshot of shard 1 with some rows, for replica 2, and the engine it is of.
func written(t testing.TB, rows int) (source *store.Memory, stream []byte) {
	t.Helper()
	source = store.OpenMemory()
	if err := Bootstrap(source, []Seed{{Shard: 1, ID: 1, Voters: []uint64{1, 2}}, {Shard: 2, ID: 1, Voters: []uint64{1}}}); err != nil {
		t.Fatal(err)
	}
	b := source.NewBatch()
	for i := range rows {
		b.Set(store.AppendKey(nil, 1, fmt.Appendf(nil, "j%06d", i)), bytes.Repeat([]byte{byte(i)}, i%3000))
	}
	b.Set(logKey(1, 11), encodeLogRow(newEntry(0, 5, 11, []byte("x"))))
	b.Set(store.AppendKey(nil, 2, []byte("m")), []byte("neighbour"))
	if _, err := source.Commit(b, false); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := WriteSnapshot(&out, source, SnapshotRequest{Shard: 1, To: 2, from: 1, term: 5}); err != nil {
		t.Fatal(err)
	}
	return source, out.Bytes()
}

func replicaTwo(uint32) (uint64, bool) { return 2, true }

func TestSnapshotsComeThroughWhole(t *testing.T) {
	pebbleEngine, err := store.OpenPebble("store", store.Options{FS: vfs.NewMem(), CacheBytes: 1 << 20, MemTableBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for name, engine := range map[string]store.Engine{"memory": store.OpenMemory(), "pebble": pebbleEngine} {
		for _, rows := range []int{0, 1, 700} {
			source, stream := written(t, rows)
			if err := Bootstrap(engine, []Seed{{Shard: 9 + uint32(rows), ID: 1, Voters: []uint64{1}}}); err != nil {
				t.Fatal(err)
			}
			got, err := ReadSnapshot(bytes.NewReader(stream), engine, replicaTwo)
			if err != nil {
				t.Fatalf("%s, %d rows: %v", name, rows, err)
			}
			if err := engine.Install(got.rows); err != nil {
				t.Fatal(err)
			}
			if dump(engine, 1) != dump(source, 1) {
				t.Fatalf("%s: rows differ", name)
			}
			if row, ok, err := engine.Get(store.AppendKey(nil, 2, []byte("m"))); ok || err != nil {
				t.Fatalf("%s: a neighbour's row came along: %q, %v", name, row, err)
			}
			b := engine.NewBatch()
			b.Set(rowKey(1, 'A'), encodeHardState(hardState{term: 5}))
			if _, err := engine.Commit(b, false); err != nil {
				t.Fatal(err)
			}
			s, ok, err := Load(engine, 1)
			if err != nil || !ok || s.ID != 2 || s.applied.position != groupStart || s.log.last != 10 || got.Applied() != 10 {
				t.Fatalf("%s: loaded %+v, %v, %v", name, s, ok, err)
			}
		}
		if err := engine.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A stream that is cut anywhere, or has a bit flipped anywhere, is refused, and nothing is left of it.
func TestDamagedSnapshotsAreRefused(t *testing.T) {
	_, stream := written(t, 20)
	engine := store.OpenMemory()
	for at := range stream {
		if _, err := ReadSnapshot(bytes.NewReader(stream[:at]), engine, replicaTwo); err == nil {
			t.Fatalf("cut at %d of %d: accepted", at, len(stream))
		}
		bad := bytes.Clone(stream)
		bad[at] ^= 0x10
		if _, err := ReadSnapshot(bytes.NewReader(bad), engine, replicaTwo); err == nil {
			t.Fatalf("bit flipped at %d of %d: accepted", at, len(stream))
		}
	}
	if engine.Unsynced() != 0 || dump(engine, 1) != "" {
		t.Fatal("something was left behind")
	}
	if _, err := ReadSnapshot(bytes.NewReader(stream), engine, func(uint32) (uint64, bool) { return 3, true }); !errors.Is(err, ErrNoReplica) {
		t.Fatalf("for another replica: %v", err)
	}
}

// What would be refused at the next start is refused now.
func TestSnapshotWithoutVotersIsRefused(t *testing.T) {
	var stream bytes.Buffer
	header := encodeSnapshotHeader(SnapshotRequest{Shard: 1, To: 2, from: 1, term: 5},
		appliedState{position: groupStart}, identity{id: 1, conf: &raftpb.ConfState{Learners: []uint64{2}}})
	if err := writeBlock(&stream, header); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSnapshot(&stream, store.OpenMemory(), replicaTwo); err == nil || !strings.Contains(err.Error(), "no voters") {
		t.Errorf("got %v", err)
	}
}

func FuzzReadSnapshot(f *testing.F) {
	_, stream := written(f, 20)
	f.Add(stream)
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ReadSnapshot(bytes.NewReader(b), store.OpenMemory(), replicaTwo)
		if err == nil {
			if err := got.Abort(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Without what the engine could not install, nothing goes on.
func TestFailedInstallEndsTheCore(t *testing.T) {
	engine := store.OpenMemory()
	if err := CreateLearner(engine, 1, 2, 1); err != nil {
		t.Fatal(err)
	}
	states, err := LoadAll(engine)
	if err != nil {
		t.Fatal(err)
	}
	core, err := New(testConfig("b"), engine, states)
	if err != nil {
		t.Fatal(err)
	}
	_, stream := written(t, 3)
	got, err := ReadSnapshot(bytes.NewReader(stream), engine, replicaTwo)
	if err != nil {
		t.Fatal(err)
	}
	core.StepSnapshot(got)
	turn, err := core.Turn(1)
	if err != nil || turn.Wait == nil || len(turn.Installs) != 0 {
		t.Fatalf("turn %+v, %v: the hard state goes first", turn, err)
	}
	if err := turn.Wait(); err != nil {
		t.Fatal(err)
	}
	core.SyncDone(turn.Seq)
	if turn, err = core.Turn(2); err != nil || len(turn.Installs) != 1 {
		t.Fatalf("turn %+v, %v", turn, err)
	}
	broken := errors.New("disk is gone")
	core.Installed(1, broken)
	if _, err := core.Turn(3); !errors.Is(err, broken) {
		t.Fatalf("turn after a failed install: %v", err)
	}
}

// A crash between the hard state that goes before a snapshot and the snapshot itself finds the old log, whose end was never
// committed, whatever index the snapshot has.
func TestCrashBeforeAnInstallCommitsNothing(t *testing.T) {
	source, _ := written(t, 3)
	b := source.NewBatch()
	b.Set(rowKey(1, fsm.KindApplied), encodeApplied(appliedState{position: position{index: 20, term: 6}}))
	commitNow(t, source, b)
	var stream bytes.Buffer
	if err := WriteSnapshot(&stream, source, SnapshotRequest{Shard: 1, To: 2, from: 1, term: 6}); err != nil {
		t.Fatal(err)
	}
	engine := store.OpenMemory()
	if err := Bootstrap(engine, []Seed{{Shard: 1, ID: 2, Voters: []uint64{1, 2}}}); err != nil {
		t.Fatal(err)
	}
	b = engine.NewBatch()
	b.Set(logKey(1, 11), encodeLogRow(newEntry(raftpb.EntryNormal, 5, 11, nil)))
	commitNow(t, engine, b)
	states, err := LoadAll(engine)
	if err != nil {
		t.Fatal(err)
	}
	core, err := New(testConfig("b"), engine, states)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadSnapshot(&stream, engine, replicaTwo)
	if err != nil {
		t.Fatal(err)
	}
	core.StepSnapshot(got)
	turn, err := core.Turn(1)
	if err != nil || turn.Wait == nil {
		t.Fatalf("turn %+v, %v: the hard state goes first", turn, err)
	}
	if err := turn.Wait(); err != nil {
		t.Fatal(err)
	}
	s, _, err := Load(engine.Crash(0), 1)
	if err != nil || s.hard.term != 6 || s.hard.commit != 10 || s.log.last != 11 {
		t.Errorf("after a crash: hard state %+v, log to %d, %v", s.hard, s.log.last, err)
	}
	core.SyncDone(turn.Seq)
	if turn, err = core.Turn(2); err != nil || len(turn.Installs) != 1 {
		t.Fatalf("turn %+v, %v", turn, err)
	}
	core.Installed(1, engine.Install(turn.Installs[0].Rows))
	if at, _ := core.Inspect(1); at.Commit != 20 || at.Applied != 20 {
		t.Errorf("after the install: %+v", at)
	}
}

// A snapshot whose sender has lost its leadership on the way is as good as it was.
func TestSnapshotOutlivesItsSendersLeadership(t *testing.T) {
	c := calmCluster(t, 22, 1)
	leader, followers := c.followers()
	c.replace(1, followers[0].name, storeName(4))
	fresh := c.member(storeName(4))
	c.holdParcels = true
	c.until(t, 100, true, func() bool {
		if err := c.place(); err != nil {
			t.Fatal(err)
		}
		return c.happened[snapshotSent] > 0
	})
	leader.core.TransferLeader(1, followers[1].core.byID[1].id)
	c.until(t, 100, true, func() bool { return c.leader(1) == followers[1] && fresh.core.byID[1].soft.Lead != 0 })
	c.parcels = c.parcels[:1] // the new leader's own is lost
	c.deliverSnapshot()
	c.until(t, 10, false, func() bool { return c.happened[snapshotInstalled] == 1 })
	c.holdParcels = false
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	if c.happened[snapshotInstalled] != 1 {
		t.Fatalf("%d snapshots were installed", c.happened[snapshotInstalled])
	}
}

// A snapshot that comes when it is not needed any more is dropped.
func TestStaleSnapshotIsDropped(t *testing.T) {
	c := calmCluster(t, 21, 0)
	leader, followers := c.followers()
	source, err := leader.engine.NewSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	from, to := leader.core.byID[1], followers[0].core.byID[1]
	var b bytes.Buffer
	req := SnapshotRequest{Shard: 1, To: to.id, from: from.id, term: from.hard.term}
	if err := errors.Join(WriteSnapshot(&b, source, req), source.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := c.receive(followers[0], b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	followers[0].core.StepSnapshot(got)
	for range 5 {
		c.round()
	}
	if n := followers[0].core.Counters().SnapshotsRefused; n != 1 || c.happened[snapshotInstalled] != 0 {
		t.Fatalf("%d snapshots dropped, %d installed", n, c.happened[snapshotInstalled])
	}
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
}
