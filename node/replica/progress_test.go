package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// A leader knows how far each replica of its group is: those that answer have everything, the one that is gone lacks what came
// since. A follower knows nothing, and a host that has ended says so.
func TestALeaderTellsHowFarReplicasAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, hosts: map[string]*fleetHost{}, changed: map[string]Conf{}}
		wanted := Wanted{Gen: 1, Replicas: []Placed{{1, "store-1"}, {2, "store-2"}, {3, "store-3"}}}
		for _, p := range wanted.Replicas {
			engine := store.OpenMemory()
			if err := Bootstrap(engine, []Seed{{Shard: 1, ID: p.ID, Voters: []uint64{1, 2, 3}}}); err != nil {
				t.Fatal(err)
			}
			f.start(p.Store, engine).Want(1, wanted)
		}
		leader := f.leader(1, "")
		f.do(leader, 3)
		lost := "store-3"
		if leader == lost {
			lost = "store-2"
		}
		f.end(lost)
		f.do(leader, 5)
		time.Sleep(5 * time.Second) // virtual: the leader notices who does not answer
		last, _ := f.host(leader).StatusOf(1)
		var got []string
		for _, p := range progressOf(t, f.host(leader), 1) {
			got = append(got, fmt.Sprintf("%s lacks %v, active %v", f.storeOf(p.ReplicaID), p.Lag > 0, p.Active))
			if p.Learner || p.Snapshot || p.Match+p.Lag != last.LogLast && p.Lag > 0 {
				t.Errorf("%+v with %d entries in the log", p, last.LogLast)
			}
		}
		slices.Sort(got)
		want := []string{}
		for _, p := range wanted.Replicas {
			want = append(want, fmt.Sprintf("%s lacks %v, active %v", p.Store, p.Store == lost, p.Store != lost))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, must be %q", got, want)
		}
		for _, p := range wanted.Replicas {
			if p.Store != leader && p.Store != lost {
				if all := progressOf(t, f.host(p.Store), 1); len(all) > 0 {
					t.Errorf("a follower says %+v", all)
				}
			}
		}
		ended := f.host(leader)
		for _, name := range []string{"store-1", "store-2", "store-3"} {
			if name != lost {
				f.end(name)
			}
		}
		if _, err := ended.Progress(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("ended: %v", err)
		}
		f.work.Wait()
	})
}

func progressOf(t *testing.T, h *fleetHost, shard uint32) []Progress {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	all, err := h.Progress(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return all[shard]
}

// storeOf is the store of a replica of the first configuration.
func (f *fleet) storeOf(id uint64) string { return fmt.Sprintf("store-%d", id) }
