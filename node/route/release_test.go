package route

import (
	"context"
	"errors"
	"fmt"
	"testing"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// slowRelease is a node that gives leases back when it is told to.
type slowRelease struct {
	*node
	entered, goOn chan struct{}
}

func (s slowRelease) Release(leases []*storagev1.Execution) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.goOn
	s.node.Release(leases)
}

// What is on its way back when a node stops goes on as what comes later does.
func TestLeasesUnderWayWhenTheStopBeginsAreGivenBack(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(2, "b")
	a, b := c.nodes["a"], c.nodes["b"]
	slow := slowRelease{b, make(chan struct{}, 1), make(chan struct{})}
	b.mu.Lock()
	b.local = slow
	b.mu.Unlock()
	p := NewPoller(a.router, PollerConfig{Leaders: func() []string { return []string{"b"} }, ShardOf: shardOf})
	const leases = 2*maxReleasesPerCall + 1
	var list []*storagev1.Execution
	for i := range leases {
		list = append(list, &storagev1.Execution{Tenant: "t", JobId: fmt.Sprint("2:", i), ClaimId: "c", Fencing: uint64(i)})
	}
	p.Release(list)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	<-slow.entered
	cancel()
	close(slow.goOn)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	b.work.mu.Lock()
	defer b.work.mu.Unlock()
	if n := len(b.work.released); n != leases || a.router.Counters().ReleasesDropped != 0 {
		t.Errorf("%d of %d leases were given back, %d were dropped", n, leases, a.router.Counters().ReleasesDropped)
	}
}
