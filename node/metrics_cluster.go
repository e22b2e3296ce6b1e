package node

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	clusterv1 "github.com/carillon-scheduler/carillon/proto/carillon/cluster/v1"
)

// progressTimeout is how long a scrape waits for the replicas' loop.
const progressTimeout = time.Second

// traffic counts what this node sends to others and gets from them, where nothing else counts it.
type traffic struct {
	hintsSent, snapshotsSent, snapshotBytesSent, snapshotsReceived, snapshotBytesReceived atomic.Uint64
}

// collectCluster sends what only a node that is one of several has.
func (c collector) collectCluster(out chan<- prometheus.Metric) {
	n := c.n
	suspect, silent, open := 0, 0, 0
	for _, p := range n.inner.transport.Peers() {
		if p.Suspect {
			suspect++
		}
		if p.SilentFor >= silentAlarm {
			silent++
		}
		if n.router.Open(p.Store) {
			open++
		}
	}
	gauge(out, "carillon_peers", "Other nodes that are known.", float64(len(n.inner.others())))
	gauge(out, "carillon_peers_suspect", "Other nodes that are taken for dead or stuck.", float64(suspect))
	gauge(out, "carillon_peers_silent", "Other nodes of which nothing was heard for ten seconds.", float64(silent))
	gauge(out, "carillon_peers_breaker_open", "Other nodes to which calls fail at once for now.", float64(open))
	c.collectTraffic(out)
	c.collectLag(out)
	var control clusterv1.NodeStatus
	n.describeControl(&control)
	gauge(out, "carillon_control_voter", "1 if this node votes in the control plane.", boolean(control.GetEtcdVoter()))
	gauge(out, "carillon_control_learner", "1 while this node has a copy of the control plane and no vote yet.", boolean(control.GetEtcdLearner()))
	gauge(out, "carillon_controller", "1 on the node that places replicas.", boolean(control.GetController()))
}

func (c collector) collectTraffic(out chan<- prometheus.Metric) {
	sent := c.n.inner.transport.Counters()
	counter(out, "carillon_peer_frames_sent_total", "Frames sent to other nodes.", float64(sent.FramesSent))
	counter(out, "carillon_peer_frames_received_total", "Frames received from other nodes.", float64(sent.FramesReceived))
	counter(out, "carillon_peer_bytes_sent_total", "Bytes sent to other nodes, without snapshots and calls.", float64(sent.BytesSent))
	counter(out, "carillon_peer_bytes_received_total", "Bytes received from other nodes, without snapshots and calls.", float64(sent.BytesReceived))
	counter(out, "carillon_peer_dropped_total", "Frames and messages for other nodes that were not sent.", float64(sent.Dropped))
	calls := c.n.router.Counters()
	counter(out, "carillon_forwarded_calls_total", "Calls to other nodes.", float64(calls.Calls))
	counter(out, "carillon_forwarded_calls_failed_total", "Calls to other nodes that had no answer.", float64(calls.CallsFailed))
	counter(out, "carillon_forwarded_commands_total", "Commands passed to the nodes that lead their shards.", float64(calls.Commands))
	counter(out, "carillon_forwarded_polls_total", "Claims passed to other leaders.", float64(calls.Polls))
	counter(out, "carillon_relayed_polls_total", "Those of them that went through a third node, as this one does not hear the leader.", float64(calls.Relayed))
	counter(out, "carillon_forwarded_leases_total", "Leases that those brought.", float64(calls.Leases))
	counter(out, "carillon_hints_received_total", "Queues in which others said to have work.", float64(calls.Hints))
	counter(out, "carillon_hints_sent_total", "Queues in which this node told others to have work.", float64(c.n.traffic.hintsSent.Load()))
	t := &c.n.traffic
	counter(out, "carillon_snapshots_sent_total", "Snapshots of shards sent whole.", float64(t.snapshotsSent.Load()))
	counter(out, "carillon_snapshots_received_total", "Snapshots of shards received whole.", float64(t.snapshotsReceived.Load()))
	counter(out, "carillon_snapshot_bytes_sent_total", "Bytes of snapshots sent.", float64(t.snapshotBytesSent.Load()))
	counter(out, "carillon_snapshot_bytes_received_total", "Bytes of snapshots received.", float64(t.snapshotBytesReceived.Load()))
	m := c.n.engine.Metrics()
	counter(out, "carillon_store_imports_total", "Imports of shards' rows begun.", float64(m.Imports))
	counter(out, "carillon_store_installs_total", "Imports put in the place of a shard's rows.", float64(m.Installs))
}

// collectLag sends how far the replicas of the shards led here are; nothing if the loop does not answer in time.
func (c collector) collectLag(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), progressTimeout)
	defer cancel()
	progress, err := c.n.host.Progress(ctx)
	if err != nil {
		return
	}
	lag, learners := uint64(0), 0
	for _, all := range progress {
		for _, p := range all {
			lag = max(lag, p.Lag)
			if p.Learner {
				learners++
			}
		}
	}
	gauge(out, "carillon_replication_lag_entries", "Log entries that the replica furthest behind lacks, of the shards led here.", float64(lag))
	gauge(out, "carillon_learners", "Replicas without a vote yet, of the shards led here.", float64(learners))
}
