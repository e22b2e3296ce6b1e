// Package bench measures a Carillon server through its public API and checks every job while it does: the figures that
// docs/performance.md holds, and the budgets they stand against. It is the `carillon bench` command, which is its only
// caller. It knows nothing of the server's inside and takes no answer on trust: what was acknowledged, delivered and
// completed is written down in a ledger and compared. All goroutines end before Run returns.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is one call of the bench. The zero value of a field means the workload's default, where it has one.
type Config struct {
	// Workload is a name of Workloads, or All.
	Workload string
	// Nodes is how many nodes the bench starts: 1, or 3 to 9 of a cluster. With Target it counts those that it finds.
	Nodes int
	// Shards is how many the servers that the bench starts make; 0: their default.
	Shards int
	// N is how many jobs, 1 to MaxN. With All it caps the jobs of each row.
	N int
	// Rate is how many jobs a second fall due, in due, lateness and peak. Peak offers N jobs in all if both are given.
	Rate int
	// For is how long jobs fall due, or how long idle looks; at most 1 h.
	For time.Duration
	// Interval is how far apart a job's occurrences lie in recurring: whole seconds that divide a minute. For is a multiple.
	Interval time.Duration
	// Cron lets the jobs of recurring have a cron line and a spread instead of an interval.
	Cron bool
	// Target is the URL of a server that runs already, or of several nodes of one cluster, separated by commas; empty: a server is started and stopped.
	Target string
	// Binary is the carillon executable to start; empty: this process's own.
	Binary string
	// Repeat is how often each workload runs; the run in the middle is reported. 0: 1, with All 3.
	Repeat int
	// JSON prints one line of JSON for each result instead of a table.
	JSON bool
	// Log tells how the run goes on.
	Log *slog.Logger

	waits *waits // of tests; nil: the default
}

// All names the run of every workload that a budget stands for.
const All = "all"

// MaxN bounds the jobs of one run, and their occurrences: the ledger keeps 32 bytes for each that is to be delivered.
const MaxN = 1_000_000_000

// ErrViolated says that a job was lost, delivered twice or early, or that a wrong one was delivered.
var ErrViolated = errors.New("the server broke its contract")

// Validate names the field that is wrong.
func (c *Config) Validate() error {
	if c.Workload != All && findWorkload(c.Workload) == nil {
		return fmt.Errorf("workload: %q is none of %s, %s", c.Workload, strings.Join(Workloads(), ", "), All)
	}
	for _, f := range []struct {
		name     string
		value    int64
		min, max int64
	}{
		{"n", int64(c.N), 0, MaxN},
		{"shards", int64(c.Shards), 0, 1024},
		{"rate", int64(c.Rate), 0, 10_000_000},
		{"for", int64(c.For), 0, int64(time.Hour)},
		{"repeat", int64(c.Repeat), 0, 100},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s: %d is not from %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	if c.Nodes < 0 || c.Nodes == 2 || c.Nodes > 9 {
		return fmt.Errorf("nodes: %d is not 1, or 3 to 9", c.Nodes)
	}
	if c.Target != "" && c.Shards != 0 {
		return fmt.Errorf("shards: the server at the target has its own")
	}
	if c.Target != "" && (c.Workload == "store" || c.Workload == All) {
		return fmt.Errorf("target: %s kills and restarts its server, so it starts its own", c.Workload)
	}
	return c.validateRecurring()
}

// Run runs what c names, prints its results to out, and returns ErrViolated, wrapped, if any check failed.
func Run(ctx context.Context, c Config, out io.Writer) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Workload == All {
		return runAll(ctx, c, out)
	}
	results, err := repeat(ctx, c, findWorkload(c.Workload))
	if err != nil {
		return err
	}
	if err := printResults(out, c.JSON, results); err != nil {
		return err
	}
	return violated(results)
}

// violated is ErrViolated with the first examples, or nil.
func violated(results []Result) error {
	for i := range results {
		if r := &results[i]; r.Violations() > 0 {
			return fmt.Errorf("%s: %w: %d duplicates, %d lost, %d early, %d corrupt: %s", r.Workload, ErrViolated,
				r.Duplicates, r.Lost, r.Early, r.Corrupt, strings.Join(r.Examples, "; "))
		}
	}
	return nil
}

// workload is one thing to measure.
type workload struct {
	name  string
	about string
	// The defaults. A rate decides n where both rate and span are set.
	n    int
	rate int
	span time.Duration
	// run measures once; a workload may have several results, always the same number in the same order.
	run func(ctx context.Context, s *session) ([]Result, error)
	// headline is the figure by which the median of several runs is taken.
	headline func(r *Result) float64
}

// workloads in the order of the documentation.
var workloads = []*workload{
	{name: "accept", about: "jobs accepted in batches", n: 1_000_000, run: runAccept, headline: byRate},
	{name: "accept-one", about: "jobs accepted one by one: raw calls, then merged by the client", n: 200_000,
		run: runAcceptOne, headline: byRate},
	{name: "due", about: "jobs due evenly over --for, run by workers that do nothing", n: 1_000_000, span: time.Minute,
		run: runDue, headline: byLateness},
	{name: "lateness", about: "a steady --rate of jobs due", rate: 1000, span: 30 * time.Second,
		run: runLateness, headline: byLateness},
	{name: "burst", about: "jobs due within one second: how fast they drain, in what order, what others feel", n: 200_000,
		span: time.Second, run: runBurst, headline: byRate},
	{name: "peak", about: "ten times the --rate for ten seconds: sheds, and recovers", rate: 16_667,
		run: runPeak, headline: byRecovery},
	{name: recurringWorkload, about: "jobs that recur each --interval, by intervals or --cron lines: rate, drift, flat memory",
		n: 1_000_000, span: recurringSpan, run: runRecurring, headline: byLateness},
	{name: "fair", about: "a flooding tenant, nine ordinary ones and all priorities in one queue: the share and the wait of each",
		n: 200_000, run: runFair, headline: byUnfairness},
	{name: "store", about: "jobs far in the future: memory, disk, restart after a crash", n: 10_000_000,
		run: runStore, headline: byRestart},
	{name: "idle", about: "a server with nothing to do", span: time.Minute, run: runIdle, headline: byCPUPercent},
}

// Workloads names all workloads.
func Workloads() []string {
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return names
}

// Describe is a workload in a few words; empty if there is none of that name.
func Describe(name string) string {
	if w := findWorkload(name); w != nil {
		return w.about
	}
	return ""
}

func findWorkload(name string) *workload {
	if k := slices.IndexFunc(workloads, func(w *workload) bool { return w.name == name }); k >= 0 {
		return workloads[k]
	}
	return nil
}

func value(x *float64) float64 {
	if x == nil {
		return 0
	}
	return *x
}

func byRate(r *Result) float64       { return value(r.JobsPerSecond) }
func byRecovery(r *Result) float64   { return value(r.RecoverySeconds) }
func byRestart(r *Result) float64    { return value(r.RestartSeconds) }
func byCPUPercent(r *Result) float64 { return value(r.CPUPercent) }
func byLateness(r *Result) float64 {
	if r.LatenessMS == nil {
		return 0
	}
	return r.LatenessMS.P99
}

// repeat runs w as often as asked, each time on a fresh server, and takes the median of each of its results.
func repeat(ctx context.Context, c Config, w *workload) ([]Result, error) {
	var runs [][]Result
	for k := range max(1, c.Repeat) {
		c.Log.Info("workload starts", "workload", w.name, "run", k+1, "of", max(1, c.Repeat))
		results, err := runOnce(ctx, c, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		runs = append(runs, results)
	}
	var out []Result
	for k := range runs[0] {
		var column []Result
		for _, r := range runs {
			column = append(column, r[k])
		}
		out = append(out, median(column, w.headline))
	}
	return out, nil
}

// settings names what of c and of the environment is not the default.
func settings(c *Config) map[string]string {
	s := map[string]string{}
	if c.N != 0 {
		s["n"] = strconv.Itoa(c.N)
	}
	if c.Shards != 0 {
		s["shards"] = strconv.Itoa(c.Shards)
	}
	if c.Rate != 0 {
		s["rate"] = strconv.Itoa(c.Rate)
	}
	if c.For != 0 {
		s["for"] = c.For.String()
	}
	if c.Interval != 0 {
		s["interval"] = c.Interval.String()
	}
	if c.Cron {
		s["cron"] = "true"
	}
	if c.Target != "" {
		s["target"] = c.Target
	}
	for _, variable := range os.Environ() {
		name, v, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "CARILLON_") || name == "GOMAXPROCS" || name == "GOGC" || name == "GOMEMLIMIT" {
			s[name] = v
		}
	}
	return s
}
