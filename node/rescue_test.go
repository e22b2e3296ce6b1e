package node

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lastOfThree is the data directory of n3, which has two shards with the stores of n1 and n2, as a start that was never done.
// change is called with the control plane and the rows.
func lastOfThree(t *testing.T, change func(ident Ident, plane control.Plane, engine store.Engine)) (path string) {
	t.Helper()
	path = t.TempDir()
	d, err := OpenDataDir(path, "n3")
	ok(t, err)
	ident, quiet := d.Ident(), slog.New(slog.DiscardHandler)
	server, err := control.StartServer(t.Context(), control.ServerConfig{
		Dir: d.EtcdDir(), Name: control.MemberName("n3", ident.StoreUUID), Token: ident.ClusterID, Logger: quiet,
	})
	ok(t, err)
	plane, err := control.NewEtcd(control.EtcdConfig{Server: server, Logger: quiet})
	ok(t, err)
	stores := []string{"a", "b", ident.StoreUUID}
	for i, uuid := range stores {
		_, err := plane.Register(t.Context(), control.Store{
			ClusterID: ident.ClusterID, UUID: uuid, Name: fmt.Sprint("n", i+1), Addr: "127.0.0.1:1", Boots: 1, BootID: ident.BootID,
			Level: fsm.MaxLevel,
		})
		ok(t, err)
	}
	ok(t, plane.Bootstrap(t.Context(), control.Seed{ClusterID: ident.ClusterID, Shards: 2, Stores: stores}))
	m, err := plane.Map(t.Context())
	ok(t, err)
	engine, err := store.OpenPebble(d.PebbleDir(), store.Options{Logger: quiet, OnFatal: func(err error) { panic(err) }})
	ok(t, err)
	n := &Node{dir: d, engine: engine}
	ok(t, n.makeReplicas(m))
	ok(t, d.MarkFormed())
	if change != nil {
		change(ident, plane, engine)
	}
	server.Close()
	ok(t, errors.Join(engine.Close(), d.Close()))
	return path
}

func openRescue(t *testing.T, path string) *Rescue {
	t.Helper()
	r, err := OpenRescue(t.Context(), path, slog.New(slog.DiscardHandler))
	ok(t, err)
	return r
}

// Wherever a rescue is interrupted, the node does not start, and the rescue that follows comes to the same: a cluster of its own.
func TestARescueIsFinishedFromWhereItWasInterrupted(t *testing.T) {
	for name, interrupted := range map[string]func(t *testing.T, r *Rescue){
		"before it began": nil,
		"when it began":   func(t *testing.T, r *Rescue) { ok(t, r.dir.beginRescue()) },
		"before the shards": func(t *testing.T, r *Rescue) {
			ok(t, r.dir.beginRescue())
			_, err := r.rescueControl(t.Context())
			ok(t, err)
		},
		"before its end": func(t *testing.T, r *Rescue) {
			ok(t, r.Run(t.Context(), false))
			ok(t, r.dir.beginRescue())
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := lastOfThree(t, nil)
			r := openRescue(t, path)
			if r.Found.Begun || r.Found.Refused != "" || len(r.Found.Others) != 2 || r.Found.Others[1].Node != "n2" ||
				len(r.Found.Shards) != 2 || len(r.Found.Shards[1].Voters) != 3 || r.Found.Shards[1].Applied == 0 {
				t.Errorf("%+v", r.Found)
			}
			if interrupted != nil {
				interrupted(t, r)
			}
			ok(t, r.Close())
			if interrupted != nil {
				refused(t, path, ErrRescueBegun, "carillon cluster rescue --data "+path)
			}
			r = openRescue(t, path)
			if r.Found.Begun != (interrupted != nil) || r.Found.Refused != "" {
				t.Errorf("%+v", r.Found)
			}
			ok(t, r.Run(t.Context(), false))
			ok(t, r.Close())
			isOfItsOwn(t, path)
		})
	}
}

// isOfItsOwn says that a directory was rescued: there is nothing more to do, and a node starts on it.
func isOfItsOwn(t *testing.T, path string) {
	t.Helper()
	r := openRescue(t, path)
	if err := r.Run(t.Context(), false); !errors.Is(err, ErrNoRescue) || !strings.Contains(r.Found.Refused, "cluster of its own") {
		t.Errorf("%v: %+v", err, r.Found)
	}
	for i, state := range r.replicas {
		shard := r.remains.View.Wanted[i]
		conf := state.Conf()
		if len(shard.Replicas) != 1 || shard.Replicas[0] != (control.Replica{RID: state.ID, Store: r.Found.Store}) ||
			shard.NextRID <= state.ID || shard.Gen < 2 || state.Gen() != shard.Gen || len(conf.Voters) != 1 || conf.Voters[0] != state.ID {
			t.Errorf("%+v is wanted as %+v", conf, shard)
		}
	}
	ok(t, r.Close())
	n := runNode(t, path, func(cfg *Config) { cfg.Name = "n3" })
	job := map[string]any{"id": "a", "schedule": map[string]any{"delay": "3600s"}}
	if code, body := n.call("POST", "/v1/jobs", job); code != 200 {
		t.Errorf("%d %v", code, body)
	}
	n.stop()
}

// What cannot be rescued is refused for a reason, and nothing is changed.
func TestWhatIsNotRescued(t *testing.T) {
	for says, change := range map[string]func(Ident, control.Plane, store.Engine){
		"it has nothing of shards 2 to go on with": func(_ Ident, _ control.Plane, engine store.Engine) { loseShard(t, engine) },
		"its store was declared gone": func(ident Ident, plane control.Plane, _ store.Engine) {
			ok(t, plane.SetStoreState(t.Context(), nil, ident.StoreUUID, control.StoreGone))
		},
		"it has no shards": func(_ Ident, _ control.Plane, engine store.Engine) {
			b := engine.NewBatch()
			b.Delete(mapKey)
			_, err := engine.Commit(b, false)
			ok(t, err)
		},
	} {
		path := lastOfThree(t, change)
		wantRefused(t, path, says)
		if says == "it has no shards" {
			continue
		}
		ok(t, os.RemoveAll(filepath.Join(path, etcdDir)))
		wantRefused(t, path, "it has no member of the control plane")
	}
}

// loseShard leaves a learner of shard 2 that was never filled.
func loseShard(t *testing.T, engine store.Engine) {
	t.Helper()
	b := engine.NewBatch()
	b.DeleteRange(store.Span(2))
	_, err := engine.Commit(b, false)
	ok(t, err)
	ok(t, replica.CreateLearner(engine, 2, 4, 2))
}

// A shard of which nothing is left begins anew if that is accepted, above the numbers that any shard has given.
func TestALostShardBeginsAnew(t *testing.T) {
	path := lastOfThree(t, func(_ Ident, _ control.Plane, engine store.Engine) {
		loseShard(t, engine)
		row, err := (&storagev1.Meta{Level: 1, Fencing: 70, Incarnation: 80}).MarshalVT()
		ok(t, err)
		b := engine.NewBatch()
		b.Set(store.AppendKey(nil, 1, fsm.MetaKey()), row)
		_, err = engine.Commit(b, false)
		ok(t, err)
	})
	r := openRescue(t, path)
	if r.Found.Shards[0].Lost != "" || !strings.Contains(r.Found.Shards[1].Lost, "never filled") {
		t.Errorf("%+v", r.Found)
	}
	ok(t, r.Run(t.Context(), true))
	for shard, want := range map[uint32]uint64{1: 70, 2: 70 + rescueNumbers} {
		if got := fsm.ReadMeta(store.NewReader(r.engine, shard)).GetFencing(); got != want {
			t.Errorf("fencing numbers of shard %d go on after %d, must after %d", shard, got, want)
		}
	}
	ok(t, r.Close())
	isOfItsOwn(t, path)
}

func wantRefused(t *testing.T, path, says string) {
	t.Helper()
	before, err := os.ReadFile(filepath.Join(path, identFile))
	ok(t, err)
	r := openRescue(t, path)
	if err := r.Run(t.Context(), false); !errors.Is(err, ErrNoRescue) || !strings.Contains(err.Error(), says) {
		t.Errorf("error is %v, must say %q", err, says)
	}
	if r.dir.rescueBegun() {
		t.Errorf("%s: it has begun", says)
	}
	ok(t, r.Close())
	if after, err := os.ReadFile(filepath.Join(path, identFile)); err != nil || string(after) != string(before) {
		t.Errorf("%s: the identity is %s, was %s (%v)", says, after, before, err)
	}
}

// A directory that is in use, or that no node has run on, is left as it is.
func TestWhereNothingIsRescued(t *testing.T) {
	path := t.TempDir()
	_, err := OpenRescue(t.Context(), path, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "no node has run on it") {
		t.Errorf("an empty directory: %v", err)
	}
	if files, err := os.ReadDir(path); err != nil || len(files) > 0 {
		t.Errorf("it has left %v, %v", files, err)
	}
	openDir(t, path)
	if _, err := OpenRescue(t.Context(), path, slog.New(slog.DiscardHandler)); !errors.Is(err, ErrDataDirInUse) {
		t.Errorf("a directory in use: %v", err)
	}
}
