package node

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/rpc"
	"github.com/carillon-scheduler/carillon/store"
	"golang.org/x/sync/errgroup"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// A change that somebody makes is brought to each shard by the node that leads it, and by no other.
func TestSettingsAreBroughtByWhoLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane, engine := control.NewMemory().Plane(), store.OpenMemory()
		var mu sync.Mutex
		var brought []uint32
		s := &settings{
			plane: plane, shards: []uint32{1, 2, 3}, logger: slog.New(slog.DiscardHandler), now: func() int64 { return 1 },
			wake: newWake(), led: map[uint32]bool{}, behind: map[uint32]bool{},
			view: func(shard uint32, fn func(fsm.Reader) error) error { return fn(store.NewReader(engine, shard)) },
			doAll: func(_ context.Context, cmds []rpc.ShardCommand) []rpc.Outcome {
				mu.Lock()
				defer mu.Unlock()
				for _, c := range cmds {
					brought = append(brought, c.Shard)
				}
				return make([]rpc.Outcome, len(cmds))
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return s.run(ctx) })
		expect := func(when string, want ...uint32) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(brought, want) {
				t.Errorf("%s: brought to %v, want %v", when, brought, want)
			}
			brought = nil
		}
		change := func(name string) {
			t.Helper()
			if _, err := plane.PutSetting(ctx, control.Setting{Queue: &storagev1.QueueSettings{Name: name}}, 0); err != nil {
				t.Fatal(err)
			}
		}
		change("a")
		expect("nothing is led")
		s.established(2)
		expect("a leadership begins", 2)
		change("b")
		expect("a change", 2, 2) // the rows here stay as they are, so that all of it is lacking each time
		s.mayLack([]uint32{1, 3})
		expect("others lag")
		s.steppedDown(2)
		change("c")
		expect("a leadership has ended")
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}
