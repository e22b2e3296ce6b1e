package node

import (
	"cmp"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/node/dispatch"
)

const (
	// maxQueueMetrics bounds the queues that have figures of their own: queues are made by naming them, and what collects
	// the figures keeps each for good.
	maxQueueMetrics = 500
	// otherQueues stands for the rest; no queue can have this name.
	otherQueues = "~other"
)

// queueMetric is a queue's figures.
type queueMetric struct {
	name  string
	depth dispatch.QueueStats
}

// busiestQueues returns the queues that have figures of their own, the longest first, and the others together as the last.
func busiestQueues(all map[string]dispatch.QueueStats) []queueMetric {
	list := make([]queueMetric, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, queueMetric{name, all[name]})
	}
	slices.SortStableFunc(list, func(a, b queueMetric) int { return cmp.Compare(b.depth.Ready, a.depth.Ready) })
	if len(list) <= maxQueueMetrics {
		return list
	}
	rest := queueMetric{name: otherQueues}
	for _, q := range list[maxQueueMetrics:] {
		rest.depth.Ready += q.depth.Ready
		if at := q.depth.OldestNominalMS; q.depth.Ready > 0 && at > 0 && (rest.depth.OldestNominalMS == 0 || at < rest.depth.OldestNominalMS) {
			rest.depth.OldestNominalMS = at
		}
	}
	return append(list[:maxQueueMetrics:maxQueueMetrics], rest)
}

// collectQueues sends the figures of queues at the instant nowMS.
func collectQueues(out chan<- prometheus.Metric, all map[string]dispatch.QueueStats, nowMS int64) {
	for _, q := range busiestQueues(all) {
		out <- prometheus.MustNewConstMetric(descQueueReady, prometheus.GaugeValue, float64(q.depth.Ready), q.name)
		age := 0.0
		if q.depth.Ready > 0 && q.depth.OldestNominalMS > 0 {
			age = float64(max(nowMS-q.depth.OldestNominalMS, 0)) / 1000
		}
		out <- prometheus.MustNewConstMetric(descQueueOldest, prometheus.GaugeValue, age, q.name)
	}
}
