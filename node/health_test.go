package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"golang.org/x/sync/errgroup"
)

// Whether a node is ready is looked at often in the first second, and seldom in the minutes that it may take.
func TestReadinessIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, began := 0, time.Now()
		err := awaitReady(t.Context(), func() bool {
			looks++
			return time.Since(began) >= time.Minute
		})
		if want := int(readySoon/readyEvery + (time.Minute-readySoon)/readyLater); err != nil || looks > want+2 || looks < want/2 {
			t.Errorf("%d looks in a minute, want %d: %v", looks, want, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := awaitReady(ctx, func() bool { return false }); err == nil {
			t.Error("it is not ready, and the node ends")
		}
	})
}

// ailing is a control plane that answers, and has something to say of itself.
type ailing struct {
	control.Plane
	alarms []string
	mapErr error
}

func (p *ailing) Health(context.Context) control.Health {
	return control.Health{Quorum: true, Alarms: p.alarms}
}

func (p *ailing) Map(ctx context.Context) (*control.Map, error) {
	if p.mapErr != nil {
		return nil, p.mapErr
	}
	return p.Plane.Map(ctx)
}

// What is wrong with the control plane is an alarm for as long as it lasts, whichever way it shows.
func TestControlPlaneIsLookedAt(t *testing.T) {
	memory := control.NewMemory().Plane()
	if err := memory.Bootstrap(t.Context(), control.Seed{ClusterID: "c", Shards: 2, Stores: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	m, err := memory.Map(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slots, err := newSlotMap(m)
	if err != nil {
		t.Fatal(err)
	}
	plane := &ailing{Plane: memory}
	n := &Node{plane: plane, slots: slots, alarms: &alarms{logger: slog.New(slog.DiscardHandler), now: func() int64 { return 1 }}}
	for _, c := range []struct {
		alarms []string
		mapErr error
		want   string
	}{
		{nil, nil, ""},
		{[]string{"alarm:NOSPACE"}, nil, "control-plane: alarm:NOSPACE; "},
		{nil, nil, ""},
		{nil, control.ErrUnavailable, "control-plane: " + control.ErrUnavailable.Error() + "; "},
		{nil, control.ErrNoMap, "slot-map: the control plane has lost the slot map; the node goes on with its own copy; "},
		{nil, nil, ""},
	} {
		plane.alarms, plane.mapErr = c.alarms, c.mapErr
		n.lookAtControl(t.Context())
		got := ""
		for _, a := range n.alarms.list() {
			got += fmt.Sprintf("%s: %s; ", a.Name, a.Message)
		}
		if got != c.want {
			t.Errorf("alarms are %q, want %q", got, c.want)
		}
	}
	slots.version++ // another map is there than this node works with
	n.lookAtControl(t.Context())
	if all := n.alarms.list(); len(all) != 1 || all[0].Name != "slot-map" {
		t.Errorf("alarms are %v", all)
	}
}

// Another node may ask how this one is while it registers.
func TestStatusIsToldDuringTheStart(t *testing.T) {
	dir, err := OpenDataDir(t.TempDir(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n := &Node{dir: dir, cfg: Config{Name: "n1"}, web: &web{listener: l}, plane: control.NewMemory().Plane()}
	var g errgroup.Group
	g.Go(func() error { return n.register(t.Context()) })
	g.Go(func() error {
		for {
			res, err := n.NodeStatus(t.Context(), nil)
			if err != nil || res.GetNode().GetId() != 0 {
				return err
			}
		}
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}
