package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/dispatch"
)

func TestHeldFindsLeasesAndTakesNone(t *testing.T) {
	inWorld(t, 4, dispatch.Config{}, func(t *testing.T, w *world) {
		w.create(numbered(10, job{})...)
		time.Sleep(time.Second)
		got := w.poll("c", 4, time.Second)
		if len(got) != 4 {
			t.Fatalf("%d leases", len(got))
		}
		held, err := w.d.Held("c")
		if err != nil || !slices.Equal(ids(held), ids(got)) {
			t.Errorf("held %v, %v; leased %v", ids(held), err, ids(got))
		}
		if held, err := w.d.Held("another"); err != nil || len(held) != 0 {
			t.Errorf("another claim holds %v, %v", ids(held), err)
		}
		// The retry has them now: the first call cannot give them back.
		w.d.Release(got)
		time.Sleep(time.Second)
		if n := w.rowsOf(fsm.KindLeased); n != 4 {
			t.Errorf("%d leased after the first call gave back what its retry has", n)
		}
	})
}
