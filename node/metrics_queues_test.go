package node

import (
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/node/dispatch"
)

// However many queues there are, the figures are few, and they add up.
func TestFewQueuesHaveFiguresOfTheirOwn(t *testing.T) {
	all := map[string]dispatch.QueueStats{"idle": {}, "short": {Ready: 1, OldestNominalMS: 9}, "long": {Ready: 3, OldestNominalMS: 5}}
	if got := busiestQueues(all); len(got) != 3 || got[0].name != "long" || got[1].name != "short" || got[2].name != "idle" {
		t.Errorf("few: %+v", got)
	}
	total := int64(0)
	for i := range 3 * maxQueueMetrics {
		all[fmt.Sprintf("q%04d", i)] = dispatch.QueueStats{Ready: int64(10 + i), OldestNominalMS: int64(100 + i)}
	}
	for _, q := range all {
		total += q.Ready
	}
	got := busiestQueues(all)
	last, sum := got[len(got)-1], int64(0)
	for _, q := range got {
		sum += q.depth.Ready
	}
	if len(got) != maxQueueMetrics+1 || sum != total || last.name != otherQueues || last.depth.OldestNominalMS != 5 {
		t.Errorf("many: %d, %d of %d ready, the last %+v", len(got), sum, total, last)
	}
	if got[0].name != fmt.Sprintf("q%04d", 3*maxQueueMetrics-1) {
		t.Errorf("the longest is %+v", got[0])
	}
}
