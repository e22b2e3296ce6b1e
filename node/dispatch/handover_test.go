package dispatch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// TestLeasesThatAnotherCallOfTheClaimHasAreNotGivenBack: a first call that is gone when the leases come leaves them to
// its retry; only when both are gone are they given back, once.
func TestLeasesThatAnotherCallOfTheClaimHasAreNotGivenBack(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // what a call notices first, its end or the leases, is chance
		for _, retryGone := range []bool{false, true} {
			m := newModel(t, 1)
			req := PollRequest{ClaimID: "c", Worker: "w", Queues: []string{"q"}, Max: 1, Wait: time.Minute}
			var p *poll
			m.d.mu.Lock()
			for range 2 {
				var err error
				if p, err = m.d.enter(&req, 0, true); err != nil {
					t.Fatal(err)
				}
			}
			m.d.credit(p, 0, []*storagev1.Execution{{Tenant: "t", JobId: "a", ClaimId: "c", Fencing: 1}})
			m.d.mu.Unlock()
			if got, err := m.d.wait(gone, p, time.Minute); len(got) != 0 || !errors.Is(err, context.Canceled) {
				t.Fatalf("the call that is gone got %v, %v", got, err)
			}
			if n := len(m.sh.releases); n != 0 {
				t.Fatalf("%d leases were given back that the retry has", n)
			}
			ctx, leases, released := t.Context(), 1, 0
			if retryGone {
				ctx, leases, released = gone, 0, 1
			}
			got, err := m.d.wait(ctx, p, time.Minute)
			if len(got) != leases || !errors.Is(err, ctx.Err()) {
				t.Fatalf("the retry, gone %v, got %v, %v", retryGone, got, err)
			}
			if n := len(m.sh.releases); n != released {
				t.Fatalf("%d leases were given back, want %d", n, released)
			}
		}
	}
}

// TestACallCannotGiveBackWhatAnotherHas: a call that cannot deliver its leases gives them back, unless another call of
// the claim has been handed them, whether it waited along or came later.
func TestACallCannotGiveBackWhatAnotherHas(t *testing.T) {
	for name, c := range map[string]struct {
		joins, retries bool
		released       int
	}{
		"alone":         {released: 1},
		"waited along":  {joins: true},
		"retried later": {retries: true},
	} {
		m := newModel(t, 1)
		req := PollRequest{ClaimID: "c", Worker: "w", Queues: []string{"q"}, Max: 1, Wait: time.Minute}
		m.d.mu.Lock()
		p, err := m.d.enter(&req, 0, true)
		if err == nil && c.joins {
			p, err = m.d.enter(&req, 0, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.sh.addLease("c", 1)
		m.d.credit(p, 0, []*storagev1.Execution{{Tenant: "t", JobId: "a", ClaimId: "c", Fencing: 1}})
		m.d.mu.Unlock()
		got, err := m.d.wait(t.Context(), p, time.Minute)
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		if c.retries {
			m.d.mu.Lock()
			m.d.share("c")
			m.d.mu.Unlock()
		}
		m.d.Release(got)
		if n := len(m.sh.releases); n != c.released {
			t.Errorf("%s: %d leases given back, want %d", name, n, c.released)
		}
		m.d.mu.Lock()
		m.sh.endLease("c", 1)
		if len(m.sh.shared) != 0 {
			t.Errorf("%s: the claim is remembered beyond its leases", name)
		}
		m.d.mu.Unlock()
	}
}

// leasedRows is a model with rows of leases.
type leasedRows struct {
	*model
	rows map[string][]byte
}

func (l leasedRows) Rows(uint32) Rows { return l }

func (l leasedRows) Get(key []byte) ([]byte, bool) {
	value, ok := l.rows[string(key)]
	return value, ok
}

// TestATakeoverLeavesAWaitingPollWhatItHas: a poll has lease 1 and waits on for another shard's round, which may bring it
// one more, while the leadership of the first shard comes back. There stands lease 2 of its claim, too, of which it has not
// heard. It keeps the first, once, and the second is given to it if it may have it, else back.
func TestATakeoverLeavesAWaitingPollWhatItHas(t *testing.T) {
	for name, c := range map[string]struct {
		most          int
		got, released []uint64
	}{
		"it takes more":     {most: 3, got: []uint64{1, 2}},
		"it has all it may": {most: 2, got: []uint64{1}, released: []uint64{2}},
	} {
		m := newModel(t, 1)
		d := m.d
		l := leasedRows{m, map[string][]byte{}}
		d.host = l
		leases := []*storagev1.Execution{
			{Tenant: "t", JobId: "a", ClaimId: "c", Fencing: 1}, {Tenant: "t", JobId: "b", ClaimId: "c", Fencing: 2},
		}
		for _, e := range leases {
			value, err := e.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			l.rows[string(fsm.LeasedKey(e.Fencing))] = value
		}
		d.mu.Lock()
		p, err := d.enter(&PollRequest{ClaimID: "c", Worker: "w", Queues: []string{"q"}, Max: c.most, Wait: time.Minute}, 0, true)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			d.readyAdded(m.sh, m.newRef()) // so that it does not end with what it has
		}
		d.reserve(p, 1)
		d.credit(p, 0, leases[:1])
		d.mu.Unlock()
		d.StepDown(0)
		d.Takeover(0, 2)
		sh := d.shards[0]
		for _, e := range leases {
			sh.addLease(e.ClaimId, e.Fencing)
		}
		if err := d.adopt(sh); err != nil {
			t.Fatal(err)
		}
		var got, released []uint64
		for _, e := range p.got {
			got = append(got, e.Fencing)
		}
		for _, r := range sh.releases {
			released = append(released, r.Fencing)
		}
		if !slices.Equal(got, c.got) || !slices.Equal(released, c.released) {
			t.Errorf("%s: the poll has %v, given back are %v; want %v and %v", name, got, released, c.got, c.released)
		}
	}
}
