package route

import (
	"fmt"
	"testing"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// Leaderships are handed over by the node that has them: each has an answer of its own, and a node that is not the one meant
// refuses.
func TestLeadershipsAreHandedOver(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.lead(1, "b")
	handovers := []*clusterv1.Handover{{Shard: 1, ToStore: "a"}, {Shard: 2, ToStore: "a"}}
	reasons, err := c.nodes["a"].router.Transfer(t.Context(), "b", handovers)
	if err != nil || fmt.Sprintf("%q", reasons) != `["" "it does not lead"]` {
		t.Errorf("%q %v", reasons, err)
	}
	tooMany := make([]*clusterv1.Handover, maxHandovers+1)
	for i := range tooMany {
		tooMany[i] = handovers[0]
	}
	if _, err := c.nodes["a"].router.Transfer(t.Context(), "b", tooMany); err == nil {
		t.Error("more than it may take are taken")
	}
	if _, err := c.nodes["a"].router.Transfer(t.Context(), "nobody", handovers); err == nil {
		t.Error("a store that is not known answers")
	}
}
