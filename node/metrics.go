package node

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/replica"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// metrics are what is observed as it happens; everything that stands somewhere already is read when somebody scrapes, by
// collector.
type metrics struct {
	lateness prometheus.Histogram
	turn     prometheus.Histogram
	fsync    prometheus.Histogram
	commands prometheus.Histogram
	calls    *prometheus.HistogramVec
}

func newMetrics() *metrics {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	return &metrics{
		lateness: histogram("carillon_lateness_seconds", "Start minus nominal time of first attempts.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}),
		turn: histogram("carillon_turn_seconds", "Length of a turn of the replicas' loop, without its sync.",
			prometheus.ExponentialBuckets(.00005, 2, 14)),
		fsync: histogram("carillon_fsync_seconds", "Wait until a turn's batch was durable.",
			prometheus.ExponentialBuckets(.0001, 2, 15)),
		commands: histogram("carillon_commands_per_entry", "Commands in a proposed log entry.",
			prometheus.ExponentialBuckets(1, 2, 10)),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "carillon_rpc_seconds", Help: "Calls by procedure and code; a Claim includes its wait.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60},
		}, []string{"procedure", "code"}),
	}
}

func (m *metrics) hooks() replica.Hooks {
	return replica.Hooks{
		Turn:  func(d time.Duration) { m.turn.Observe(d.Seconds()) },
		Sync:  func(d time.Duration) { m.fsync.Observe(d.Seconds()) },
		Entry: func(commands, _ int) { m.commands.Observe(float64(commands)) },
	}
}

func (m *metrics) applied(effects *fsm.Effects) {
	for _, ms := range effects.LatenessMS {
		m.lateness.Observe(float64(ms) / 1000)
	}
}

// Called implements rpc.Metrics.
func (m *metrics) Called(procedure, code string, took time.Duration) {
	m.calls.WithLabelValues(procedure, code).Observe(took.Seconds())
}

// register makes the registry that /metrics serves.
func (m *metrics) register(n *Node) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(m.lateness, m.turn, m.fsync, m.commands, m.calls, collector{n},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// collector reads the node's parts when somebody scrapes.
type collector struct{ n *Node }

// metaCounters are sums over the shards' own rows: they count accepted operations and survive restarts.
var metaCounters = append([]metaMetric{
	counterOf("carillon_jobs_accepted_total", "Jobs accepted.", (*storagev1.Meta).GetAcceptedTotal),
	counterOf("carillon_fired_total", "Occurrences that became executions.", (*storagev1.Meta).GetFiredTotal),
	counterOf("carillon_claimed_total", "Leases granted.", (*storagev1.Meta).GetFencing),
	counterOf("carillon_succeeded_total", "Executions that succeeded.", (*storagev1.Meta).GetSucceededTotal),
	counterOf("carillon_failed_total", "Attempts that failed.", (*storagev1.Meta).GetFailedTotal),
	counterOf("carillon_retried_total", "Attempts that were followed by another one.", (*storagev1.Meta).GetRetriedTotal),
	counterOf("carillon_dead_total", "Executions that became dead letters.", (*storagev1.Meta).GetDeadTotal),
	counterOf("carillon_late_total", "Occurrences that were missed and became executions by the catch-up rule.", (*storagev1.Meta).GetLateTotal),
	counterOf("carillon_jobs_auto_paused_total", "Jobs paused after failures in a row.", (*storagev1.Meta).GetAutoPausedTotal),
	counterOf("carillon_leases_lost_total", "Leases that ended without a word.", (*storagev1.Meta).GetLostTotal),
	counterOf("carillon_stale_tokens_total", "Heartbeats and completions refused because their lease was over.", (*storagev1.Meta).GetStaleTotal),
	counterOf("carillon_conflicts_total", "Requests refused because their identity was used with another body.", (*storagev1.Meta).GetConflictsTotal),
	counterOf("carillon_duplicates_suppressed_total", "Retries answered with the first answer.", (*storagev1.Meta).GetDuplicatesTotal),
	gaugeOf("carillon_jobs", "Jobs that exist.", (*storagev1.Meta).GetJobs),
	gaugeOf("carillon_executions_waiting", "One-shots before their time.", (*storagev1.Meta).GetWaiting),
	gaugeOf("carillon_executions_ready", "Executions waiting for a worker.", (*storagev1.Meta).GetReady),
	gaugeOf("carillon_executions_leased", "Executions that workers hold.", (*storagev1.Meta).GetLeased),
	gaugeOf("carillon_executions_retrying", "Executions waiting for their next attempt.", (*storagev1.Meta).GetRetrying),
	gaugeOf("carillon_executions_held", "Executions that could start and wait for a pause of their job to end.", (*storagev1.Meta).GetHeld),
	gaugeOf("carillon_jobs_parked", "Recurring jobs that are due and wait for a pause to end.", (*storagev1.Meta).GetParked),
	gaugeOf("carillon_dead_letters", "Dead letters kept.", (*storagev1.Meta).GetDead),
}, skippedCounters()...)

// skippedCounters are a counter for each reason why an occurrence gets no execution.
func skippedCounters() []metaMetric {
	var counters []metaMetric
	for i, why := range fsm.Whys {
		counters = append(counters, metaMetric{
			prometheus.NewDesc("carillon_skipped_total", "Occurrences that got no execution.", nil, prometheus.Labels{"why": why}),
			prometheus.CounterValue,
			func(m *storagev1.Meta) uint64 {
				if i >= len(m.SkippedBy) {
					return 0
				}
				return m.SkippedBy[i]
			},
		})
	}
	return counters
}

type metaMetric = struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*storagev1.Meta) uint64
}

func counterOf(name, help string, value func(*storagev1.Meta) uint64) metaMetric {
	return metaMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, value}
}

func gaugeOf(name, help string, value func(*storagev1.Meta) uint64) metaMetric {
	return metaMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value}
}

var (
	descQueueReady  = prometheus.NewDesc("carillon_queue_ready", "Ready executions by queue; of many queues the longest, the others as ~other.", []string{"queue"}, nil)
	descQueueOldest = prometheus.NewDesc("carillon_queue_oldest_waiting_seconds", "Age of the oldest ready execution by queue.", []string{"queue"}, nil)
)

// Describe sends nothing: what there is depends on the queues, so the collector is an unchecked one.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends everything.
func (c collector) Collect(out chan<- prometheus.Metric) {
	c.collectMeta(out)
	c.collectReplicas(out)
	c.collectDispatcher(out)
	c.collectExpander(out)
	if c.n.inner != nil {
		c.collectCluster(out)
	}
	counter(out, "carillon_verify_runs_total", "Verifications of a shard that this node asked for.", float64(c.n.verdicts.runs.Load()))
	counter(out, "carillon_verify_violations_total", "What they found wrong.", float64(c.n.verdicts.violations.Load()))
	m := c.n.engine.Metrics()
	gauge(out, "carillon_store_disk_bytes", "Bytes of the store on disk.", float64(m.DiskBytes))
	gauge(out, "carillon_store_wal_bytes", "Bytes of the store's write-ahead log.", float64(m.WALBytes))
	gauge(out, "carillon_store_memtable_bytes", "Bytes of memtables.", float64(m.MemTableBytes))
	gauge(out, "carillon_store_cache_bytes", "Bytes of the block cache.", float64(m.CacheBytes))
	gauge(out, "carillon_store_l0_sublevels", "Sublevels of level 0: high values slow reads and writes.", float64(m.L0Sublevels))
	gauge(out, "carillon_store_compaction_debt_bytes", "Bytes that compactions still have to move.", float64(m.CompactionDebt))
	counter(out, "carillon_store_write_stalls_total", "Times that writes were held back.", float64(m.WriteStalls))
	gauge(out, "carillon_clock_held", "1 while the clock guard holds firing.", boolean(!c.n.guard.MayFire()))
	gauge(out, "carillon_clock_virtual", "1 if time stands still until it is advanced: a development server.", boolean(c.n.advancer != nil))
	gauge(out, "carillon_clock_seconds", "The time that jobs go by, since 1970.", float64(c.n.guard.Now())/1000)
	gauge(out, "carillon_alarms", "Alarms that are raised.", float64(len(c.n.alarms.list())))
	h := c.n.plane.Health(context.Background())
	gauge(out, "carillon_control_quorum", "1 while the control plane answers.", boolean(h.Quorum))
	gauge(out, "carillon_control_db_bytes", "Bytes of the control plane's database.", float64(h.DBBytes))
}

func (c collector) collectMeta(out chan<- prometheus.Metric) {
	sums := make([]uint64, len(metaCounters))
	level := uint32(fsm.MaxLevel)
	for _, shard := range c.n.slots.shards {
		r := store.NewReader(c.n.engine, shard)
		meta := fsm.ReadMeta(r)
		if r.Err() != nil {
			return // no figure rather than one that is too low: counters must not fall
		}
		for i, m := range metaCounters {
			sums[i] += m.value(meta)
		}
		if _, here := c.n.host.StatusOf(shard); here {
			level = min(level, meta.GetLevel())
		}
	}
	gauge(out, "carillon_level", "Lowest level of the state machine among the replicas here.", float64(level))
	for i, m := range metaCounters {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(sums[i]))
	}
}

func (c collector) collectReplicas(out chan<- prometheus.Metric) {
	var rows store.Counters
	var logBytes uint64
	established, degraded := 0, 0
	for _, s := range c.n.host.Status() {
		rows.Gets += s.Rows.Gets
		rows.CacheHits += s.Rows.CacheHits
		rows.KeyWrites += s.Rows.KeyWrites
		rows.Scans += s.Rows.Scans
		rows.ScannedRows += s.Rows.ScannedRows
		logBytes += s.LogBytes
		if s.Established {
			established++
		}
		if s.Degraded {
			degraded++
		}
	}
	counter(out, "carillon_store_key_writes_total", "Rows set and deleted by the state machines.", float64(rows.KeyWrites))
	counter(out, "carillon_store_gets_total", "Rows that state machines read from the store.", float64(rows.Gets))
	counter(out, "carillon_store_cache_hits_total", "Rows that state machines found in the row cache.", float64(rows.CacheHits))
	counter(out, "carillon_store_scans_total", "Scans of the state machines.", float64(rows.Scans))
	counter(out, "carillon_store_scanned_rows_total", "Rows that scans of the state machines walked.", float64(rows.ScannedRows))
	gauge(out, "carillon_raft_log_bytes", "Bytes of raft logs kept.", float64(logBytes))
	gauge(out, "carillon_shards_led", "Shards with an established leader here.", float64(established))
	gauge(out, "carillon_shards_degraded", "Shards led without a lease in the control plane.", float64(degraded))
	n := c.n.host.Counters()
	counter(out, "carillon_raft_entries_total", "Log entries proposed.", float64(n.EntriesProposed))
	counter(out, "carillon_raft_commands_total", "Commands proposed.", float64(n.CommandsProposed))
	counter(out, "carillon_raft_bytes_total", "Bytes of log entries proposed.", float64(n.BytesProposed))
	counter(out, "carillon_raft_turns_total", "Turns of the replicas' loop.", float64(n.Turns))
	counter(out, "carillon_raft_syncs_total", "Turns that waited for a sync.", float64(n.Syncs))
	counter(out, "carillon_raft_shed_total", "Commands refused because their shard's queue was full, or too long for new work.", float64(n.Shed))
	counter(out, "carillon_raft_refused_total", "Commands refused before they were proposed.", float64(n.Refused))
	counter(out, "carillon_raft_ambiguous_total", "Commands whose outcome was lost with a leadership.", float64(n.Ambiguous))
}

func (c collector) collectDispatcher(out chan<- prometheus.Metric) {
	s := c.n.dispatcher.Stats()
	gauge(out, "carillon_wheel_timers", "Timers in the wheel.", float64(s.Timers))
	gauge(out, "carillon_polls_waiting", "Claims that wait for work.", float64(s.PollsWaiting))
	counter(out, "carillon_timer_rows_read_total", "Timer rows read into the wheel.", float64(s.TimerRowsRead))
	counter(out, "carillon_dispatched_total", "Leases handed to polls.", float64(s.LeasesGranted))
	collectQueues(out, s.Queues, c.n.guard.Now())
}

func (c collector) collectExpander(out chan<- prometheus.Metric) {
	s := c.n.expander.Stats()
	counter(out, "carillon_expansions_total", "Cron jobs that were given more of their instants.", float64(s.Expanded))
	counter(out, "carillon_expansions_refused_total", "Expansions that were out of date or lost, and tried again.", float64(s.Refused))
	counter(out, "carillon_expansions_failed_total", "Cron jobs that could not be evaluated.", float64(s.Failed))
	counter(out, "carillon_expansions_wait_seconds_total", "Time from when expanded jobs asked until they had it, summed up.", float64(s.WaitedMS)/1000)
	counter(out, "carillon_expansions_passed_total", "Missed instants that the expander passed over.", float64(s.Passed))
	counter(out, "carillon_expander_busy_seconds_total", "Time that the expander worked.", s.Busy.Seconds())
	gauge(out, "carillon_expander_waiting", "Cron jobs that wait for an expansion.", float64(s.Waiting))
	gauge(out, "carillon_expander_oldest_seconds", "How long the first of them waits.", s.Oldest.Seconds())
}

func gauge(out chan<- prometheus.Metric, name, help string, v float64) {
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, v)
}

func counter(out chan<- prometheus.Metric, name, help string, v float64) {
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, v)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
