package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
)

// Result is one line of the bench: what a workload measured and what its check of every job found. The fields down to
// Settings stand in every line; null: this workload does not measure it, or the server cannot be seen.
type Result struct {
	Workload string `json:"workload"`
	Nodes    int    `json:"nodes"`
	// N is how many jobs were offered.
	N             int        `json:"n"`
	JobsPerSecond *float64   `json:"jobs_per_s"`
	LatenessMS    *Quantiles `json:"lateness_ms"`
	// Duplicates are deliveries that were not the next attempt after an ended lease, and second accepted completions.
	Duplicates int `json:"duplicates"`
	// Lost are jobs that were acknowledged and not found, or not completed before the run gave up; of recurring jobs it
	// counts occurrences.
	Lost int `json:"lost"`
	// Early are jobs received before their nominal time.
	Early int `json:"early"`
	// The figures per job are those of the measured phase. CPU counts all processes, the bench among them.
	CPUMicrosPerJob  *float64 `json:"cpu_us_per_job"`
	KeysPerJob       *float64 `json:"keys_per_job"`
	GetsPerJob       *float64 `json:"gets_per_job"`
	CommandsPerEntry *float64 `json:"commands_per_entry"`
	ServerRSSMB      *float64 `json:"server_rss_mb"`
	DiskBytesPerJob  *float64 `json:"disk_bytes_per_job"`
	RestartSeconds   *float64 `json:"restart_s"`
	// Settings names every setting that is not the default, of the workload or of the server.
	Settings map[string]string `json:"settings"`

	// Variant tells the two lines of accept-one apart, raw or merged, and the kinds of recurring jobs, every or cron.
	Variant string `json:"variant,omitempty"`
	// Corrupt are deliveries whose payload, tenant, queue or nominal time was not the job's.
	Corrupt int `json:"corrupt"`
	// Redelivered are further attempts after a lease had ended; right, but not expected of workers that do nothing.
	Redelivered           int      `json:"redelivered,omitempty"`
	ServerCPUMicrosPerJob *float64 `json:"server_cpu_us_per_job,omitempty"`
	// CreateJobsPerSecond and CreateCPUMicrosPerJob are those of the phase before the measured one.
	CreateJobsPerSecond   *float64 `json:"create_jobs_per_s,omitempty"`
	CreateCPUMicrosPerJob *float64 `json:"create_cpu_us_per_job,omitempty"`
	CreateKeysPerJob      *float64 `json:"create_keys_per_job,omitempty"`
	// OvertakenMS says how far from oldest-first the order was: by how much younger each job was than the oldest to come.
	OvertakenMS *Quantiles `json:"overtaken_ms,omitempty"`
	// OtherCallsMS is the latency of GetJob and CreateJob meanwhile.
	OtherCallsMS     *Quantiles `json:"other_calls_ms,omitempty"`
	OtherCallsFailed *int       `json:"other_calls_failed,omitempty"`
	// Of peak: what the bench could not offer in time, what was refused, and refusals that gave no time to wait.
	Unsent          *int     `json:"unsent,omitempty"`
	Shed            *int     `json:"shed,omitempty"`
	ShedWithoutHint *int     `json:"shed_without_hint,omitempty"`
	RecoverySeconds *float64 `json:"recovery_s,omitempty"`
	// Of recurring, whose figures per job are per occurrence: how many of these there are, the lateness of the first and of
	// the last of all jobs, the difference of these two's p50, the server's memory at equal distances from the start to the end.
	Occurrences       *int       `json:"occurrences,omitempty"`
	FirstLatenessMS   *Quantiles `json:"first_lateness_ms,omitempty"`
	LastLatenessMS    *Quantiles `json:"last_lateness_ms,omitempty"`
	DriftMS           *float64   `json:"drift_ms,omitempty"`
	ServerRSSCourseMB []float64  `json:"server_rss_course_mb,omitempty"`
	// ExpansionsPerSecond is how many cron jobs a second were given more of their instants.
	ExpansionsPerSecond *float64 `json:"expansions_per_s,omitempty"`
	// Shares are those of fair, of priorities and of tenants, over the stretch in which all of them had something ready.
	Shares []Share `json:"shares,omitempty"`
	// UnfairPercent is by how much the worst of them missed what was declared, in percent of that.
	UnfairPercent *float64 `json:"unfair_percent,omitempty"`
	// CPUPercent is the server's, of one core.
	CPUPercent *float64 `json:"cpu_percent,omitempty"`
	// Examples are the first violations in words.
	Examples []string `json:"examples,omitempty"`
}

// Violations sums what must be zero.
func (r *Result) Violations() int { return r.Duplicates + r.Lost + r.Early + r.Corrupt }

// judge takes over what a ledger found. Several ledgers of one run add up.
func (r *Result) judge(t tally) {
	r.Duplicates += t.duplicates
	r.Lost += t.lost
	r.Early += t.early
	r.Corrupt += t.corrupt
	r.Redelivered += t.redelivered
	r.Examples = append(r.Examples, t.examples...)
}

// cost fills in what a phase cost for each of jobs.
func (r *Result) cost(p phase, jobs int) {
	c := p.cost(jobs)
	r.CPUMicrosPerJob, r.ServerCPUMicrosPerJob = c.cpu, c.serverCPU
	r.KeysPerJob, r.GetsPerJob, r.CommandsPerEntry = c.keys, c.gets, c.commandsPerEntry
	r.ServerRSSMB = megabytes(p.to.rssBytes)
}

// phase is what was used before and after a part of a run.
type phase struct{ from, to usage }

// grown is by how much a counter of the server grew; ok is false if it has none of that name.
func (p phase) grown(name string) (by float64, ok bool) {
	after, ok := p.to.metrics[name]
	return after - p.from.metrics[name], ok
}

// costs are those of one phase, per job; nil where the server could not be seen.
type costs struct {
	cpu, serverCPU, keys, gets, commandsPerEntry *float64
}

func (p phase) cost(jobs int) (c costs) {
	if jobs == 0 {
		return c
	}
	micros := func(d time.Duration) *float64 { return ratio(float64(d.Microseconds()), float64(jobs)) }
	if p.from.serverCPU != nil && p.to.serverCPU != nil {
		server := *p.to.serverCPU - *p.from.serverCPU
		c.serverCPU, c.cpu = micros(server), micros(server+p.to.ownCPU-p.from.ownCPU)
	}
	if keys, ok := p.grown(metricKeyWrites); ok {
		c.keys = ratio(keys, float64(jobs))
	}
	if gets, ok := p.grown(metricGets); ok {
		c.gets = ratio(gets, float64(jobs))
	}
	commands, ok := p.grown(metricCommands)
	entries, ok2 := p.grown(metricEntries)
	if ok && ok2 {
		c.commandsPerEntry = ratio(commands, entries)
	}
	return c
}

// ratio is a/b to three decimals; nil if b is 0.
func ratio(a, b float64) *float64 {
	if b == 0 {
		return nil
	}
	return rounded(a / b)
}

func rounded(x float64) *float64 {
	x = math.Round(x*1000) / 1000
	return &x
}

func perSecond(n int, d time.Duration) *float64 { return ratio(float64(n), d.Seconds()) }

func megabytes(b int64) *float64 {
	if b == 0 {
		return nil
	}
	return rounded(float64(b) / 1e6)
}

// line is the result as one line of JSON.
func (r *Result) line() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode result of %s: %w", r.Workload, err)
	}
	return append(b, '\n'), nil
}

// median picks the run in the middle by its headline figure, and lets it carry the worst check of all runs: a violation
// in any of them counts.
func median(runs []Result, headline func(*Result) float64) Result {
	sorted := slices.Clone(runs)
	slices.SortStableFunc(sorted, func(a, b Result) int { return cmp.Compare(headline(&a), headline(&b)) })
	mid := sorted[(len(sorted)-1)/2]
	for i := range runs {
		if r := &runs[i]; r.Violations() > mid.Violations() {
			mid.Duplicates, mid.Lost, mid.Early, mid.Corrupt = r.Duplicates, r.Lost, r.Early, r.Corrupt
			mid.Examples = r.Examples
		}
	}
	return mid
}
