package dispatch

// Counters only grow.
type Counters struct {
	// Plans that the planner made, Rounds that came of them, and proposals that were Refused.
	Plans, Rounds, Refused uint64
	// TimerRowsRead from the timer index by takeovers and horizon loads.
	TimerRowsRead uint64
	// Fired timers, LeasesGranted to polls, PassedOver picks that were not leased.
	Fired, LeasesGranted, PassedOver uint64
	// LeasesReleased without having been delivered; ReleasesDropped were left to end by their deadline.
	LeasesReleased, ReleasesDropped uint64
	// Hints is how many queues other nodes were told of.
	Hints uint64
}

// QueueStats describes what waits in a queue, over all shards that are led here.
type QueueStats struct {
	// Ready is how many executions are ready. After a takeover with a deep backlog it may be too low until memory has
	// caught up.
	Ready int64
	// OldestNominalMS is the nominal time of the oldest that is in memory, 0 if there is none.
	OldestNominalMS int64
	// Due timers that are about to fire.
	Due int
	// Polls that wait for it.
	Polls int
}

// Stats is a picture of the dispatcher.
type Stats struct {
	Counters
	Queues map[string]QueueStats
	// Shards led here, and those of them that are loaded.
	Shards, ShardsReady int
	// Timers in memory, ReadyInMemory how many ready keys, streams and bands.
	Timers, ReadyInMemory int
	// PollsWaiting, Leases that are live.
	PollsWaiting, Leases int
}

// Stats returns a picture of now. It costs time in proportion to the queues and shards, not to what waits in them.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Stats{
		Counters: d.counts, Queues: make(map[string]QueueStats, len(d.queues)),
		Shards: len(d.led), ReadyInMemory: d.memory, PollsWaiting: len(d.polls),
	}
	for name, q := range d.queues {
		if q.refs == len(q.interests) {
			continue // nothing of it is here
		}
		s.Queues[name] = QueueStats{Due: q.due}
	}
	for _, sh := range d.led {
		if sh.ready {
			s.ShardsReady++
		}
		s.Timers += sh.timers.wheel.Len()
		s.Leases += sh.leases
		for name, sq := range sh.queues {
			s.Queues[name] = sq.addTo(s.Queues[name])
		}
	}
	for _, p := range d.polls {
		for _, q := range p.queues {
			qs := s.Queues[q.name]
			qs.Polls++
			s.Queues[q.name] = qs
		}
	}
	return s
}

// addTo adds a shard's part of a queue. Locked.
func (sq *shardQueue) addTo(s QueueStats) QueueStats {
	for _, b := range sq.bands {
		if b != nil {
			s.Ready += b.depth
		}
	}
	if oldest := sq.oldest(); oldest != 0 && (s.OldestNominalMS == 0 || oldest < s.OldestNominalMS) {
		s.OldestNominalMS = oldest
	}
	return s
}

// oldest is the earliest nominal time of the keys in memory, 0 if there are none. Locked.
func (sq *shardQueue) oldest() (ms int64) {
	for _, b := range sq.bands {
		if b == nil {
			continue
		}
		for _, t := range b.offers {
			for _, s := range t.offers {
				if nominal := s.items[0].nominal; ms == 0 || nominal < ms {
					ms = nominal
				}
			}
		}
	}
	return ms
}

// OldestWaiting returns, by shard, the nominal time of the oldest ready execution in memory; shards without one are left
// out.
func (d *Dispatcher) OldestWaiting() map[uint32]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest := map[uint32]int64{}
	for _, sh := range d.led {
		for _, sq := range sh.queues {
			if ms := sq.oldest(); ms != 0 && (oldest[sh.id] == 0 || ms < oldest[sh.id]) {
				oldest[sh.id] = ms
			}
		}
	}
	return oldest
}
