package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/node/expand"
	"github.com/carillon-scheduler/carillon/node/replica"
)

const (
	// alarmsEvery is how often the conditions are looked at that nothing reports by itself.
	alarmsEvery = time.Second
	// silentAlarm is for how long nothing must have been heard of a node.
	silentAlarm = 10 * time.Second
	// lagAlarm is how many entries a replica must lack, lagFor for how many looks in a row.
	lagAlarm = 10_000
	lagFor   = 10
	// diskFreeBytes and diskFreePart: less free space than either is an alarm. A full disk ends the process.
	diskFreeBytes = 1 << 30
	diskFreePart  = 0.05
	// expanderAlarm is for how long a cron job must wait for its next instants, and how long one that cannot be evaluated is
	// remembered.
	expanderAlarm = 30 * time.Second
	// maxNamed bounds the shards that a message names.
	maxNamed = 10
)

// watchAlarms raises and ends the alarms about disk, peers and replicas until ctx ends.
func (n *Node) watchAlarms(ctx context.Context) error {
	var lag lagWatch
	var expander expanderWatch
	for pause(ctx, alarmsEvery) == nil {
		n.watchDisk()
		stuck := expander.look(n.expander.Stats(), time.Now())
		n.alarms.set("expander", stuck != "", stuck)
		if n.inner == nil {
			continue
		}
		n.watchPeers()
		n.watchVoters()
		progress, err := n.host.Progress(ctx)
		if err != nil {
			continue // the node stops
		}
		behind := lag.look(n.host.Status(), progress, func(s replica.Status, id uint64) string {
			return n.inner.name(n.replicaStores(s)[id])
		})
		n.alarms.set("store-lag", len(behind) > 0, "replicas are far behind their leaders: "+named(behind))
	}
	return nil
}

// watchDisk looks at the free space of the data directory's file system.
func (n *Node) watchDisk() {
	free, total, err := diskSpace(n.cfg.DataDir)
	if err != nil {
		n.logger.Debug("free space not read", "error", err)
		return
	}
	n.alarms.set("disk", diskNearlyFull(free, total), fmt.Sprintf("%d MiB of %d MiB are free where %s is", free>>20, total>>20, n.cfg.DataDir))
}

// expanderWatch remembers when cron jobs last failed to be evaluated.
type expanderWatch struct {
	failed   uint64
	failedAt time.Time
}

// look says what is wrong with the expander, if anything is: jobs that have used up what they know of their instants wait, and
// fire late, or cannot be evaluated, and do not fire.
func (w *expanderWatch) look(s expand.Stats, now time.Time) string {
	if s.Failed > w.failed {
		w.failed, w.failedAt = s.Failed, now
	}
	switch {
	case s.Oldest >= expanderAlarm:
		return fmt.Sprintf("%d cron jobs wait for their next instants, the first for %v", s.Waiting, s.Oldest.Round(time.Second))
	case !w.failedAt.IsZero() && now.Sub(w.failedAt) < expanderAlarm:
		return "cron jobs cannot be evaluated, and do not fire: the log names one"
	}
	return ""
}

// diskNearlyFull says whether so many free bytes of all are too few. Where nothing is known, total is 0.
func diskNearlyFull(free, total uint64) bool {
	return total > 0 && (free < diskFreeBytes || float64(free) < diskFreePart*float64(total))
}

// watchPeers looks for nodes that are silent and clocks that are far from this one's.
func (n *Node) watchPeers() {
	limit := n.cfg.ClockStepLimit / 2
	var silent, off []string
	for _, p := range n.inner.transport.Peers() {
		name := n.inner.name(p.Store)
		switch offset := p.Clock.ClockOffset; {
		case p.SilentFor >= silentAlarm:
			silent = append(silent, fmt.Sprintf("%s for %v", name, p.SilentFor.Round(time.Second)))
		case p.Clock.Known && offset.Abs() > limit:
			off = append(off, fmt.Sprintf("%s by %v", name, offset))
		}
	}
	n.alarms.set("node-silent", len(silent) > 0, "nothing is heard of "+named(silent))
	n.alarms.set("clock-offset", len(off) > 0, fmt.Sprintf("clocks differ from this node's by more than %v: %s", limit, named(off)))
}

// watchVoters looks for shards led here that the loss of one node more would stop.
func (n *Node) watchVoters() {
	gone := map[string]bool{}
	for _, s := range n.inner.records() {
		gone[s.UUID] = s.State == control.StoreGone
	}
	var few []string
	for _, s := range n.host.Status() {
		if !s.Established {
			continue
		}
		stores := n.replicaStores(s)
		lasting := func(ids []uint64) (voters int) {
			for _, id := range ids {
				if !gone[stores[id]] {
					voters++
				}
			}
			return voters
		}
		if lasting(s.Conf.Voters) < control.MaxReplicas || len(s.Conf.Outgoing) > 0 && lasting(s.Conf.Outgoing) < control.MaxReplicas {
			few = append(few, fmt.Sprint(s.Shard))
		}
	}
	// A cluster of one node that was told of no others is as it should be.
	wantsThree := len(gone) > 1 || len(n.cfg.Peers) > 1
	n.alarms.set("two-voters", wantsThree && len(few) > 0,
		"fewer than three voters: the loss of one node more may stop shard "+named(few))
}

// lagWatch counts for how many looks replicas have been far behind.
type lagWatch struct {
	looks map[laggard]int
}

type laggard struct {
	shard uint32
	id    uint64
}

// look takes in how far replicas are and describes those that have been far behind for long.
func (w *lagWatch) look(
	all []replica.Status, progress map[uint32][]replica.Progress, name func(replica.Status, uint64) string,
) (behind []string) {
	looks := map[laggard]int{}
	for _, s := range all {
		for _, p := range progress[s.Shard] {
			if p.Lag < lagAlarm {
				continue
			}
			who := laggard{s.Shard, p.ReplicaID}
			looks[who] = w.looks[who] + 1
			if looks[who] >= lagFor {
				behind = append(behind, fmt.Sprintf("%s lacks %d entries of shard %d", name(s, p.ReplicaID), p.Lag, s.Shard))
			}
		}
	}
	w.looks = looks
	return behind
}

// named lists names, not too many.
func named(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}
