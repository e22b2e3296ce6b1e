package route

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/rpc"
)

// fullPeer is a peer to which all calls that may be are under way.
func fullPeer() *peer {
	p := newPeer("b", "b:1", nil, &counters{})
	for range maxCallsPerPeer {
		p.places <- struct{}{}
	}
	return p
}

func notCalled(context.Context) error { return errors.New("the call was made") }

// Calls that wait for a place at a peer that becomes suspect may go elsewhere at once, all of them.
func TestCallsThatWaitForAPlaceEndAsUnavailableWhenTheirPeerIsSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fullPeer()
		var calls sync.WaitGroup
		for range 200 {
			calls.Go(func() {
				var unavailable *rpc.Unavailable
				if err := p.call(t.Context(), notCalled); !errors.As(err, &unavailable) || unavailable.Ambiguous {
					t.Errorf("%v", err)
				}
			})
		}
		synctest.Wait()
		p.suspect(true)
		calls.Wait()
	})
}

func TestACallThatFindsNoPlaceSaysWhoseTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fullPeer()
		for patience, callersOwn := range map[time.Duration]bool{100 * time.Millisecond: true, time.Minute: false} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			began := time.Now()
			err := p.call(ctx, notCalled)
			var overloaded *rpc.Overloaded
			if !errors.As(err, &overloaded) || strings.Contains(overloaded.Reason, "deadline") != callersOwn {
				t.Errorf("%v: %v", patience, err)
			}
			if took := time.Since(began); took != min(patience, attemptTimeout) {
				t.Errorf("%v: took %v", patience, took)
			}
			cancel()
		}
	})
}
