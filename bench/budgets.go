package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// budget is one row of the table that `carillon bench all` prints.
type budget struct {
	what           string
	must, moonshot string
	// from names the run that the row is read off.
	from string
	// variant picks one of the run's results.
	variant string
	// show is the measured figure in words; meets says which budgets it keeps.
	show  func(r *Result) string
	meets func(r *Result) (must, moonshot bool)
}

// plannedRun is one run of `carillon bench all`: a workload and the sizes that a budget names.
type plannedRun struct {
	name     string
	workload string
	rate     int
	span     time.Duration
	// n, interval and cron are of recurring jobs; a cap on n is a lower rate, as each keeps its interval.
	n        int
	interval time.Duration
	cron     bool
	// shards is how many; 0: the default, or what was asked for.
	shards int
}

// plannedRuns are those for one node, clusterRuns those for three and more.
var plannedRuns = []plannedRun{
	{name: "due", workload: "due"},
	{name: "due fast", workload: "due", rate: 40_000, span: time.Minute},
	{name: "burst", workload: "burst"},
	{name: "accept", workload: "accept"},
	{name: "accept-one", workload: "accept-one"},
	{name: "lateness", workload: "lateness"},
	{name: "every", workload: recurringWorkload, n: 100_000, interval: 6 * time.Second, span: time.Minute},
	// Two minutes: a horizon of 16 instants wants more after the twelfth.
	{name: "cron", workload: recurringWorkload, n: 100_000, interval: 6 * time.Second, span: 2 * time.Minute, cron: true},
	{name: "store", workload: "store"},
	{name: "peak", workload: "peak"},
	{name: "idle", workload: "idle"},
}

var clusterRuns = []plannedRun{
	{name: "due", workload: "due", rate: 10_000, span: 30 * time.Second},
	{name: "due fast", workload: "due", rate: 16_667, span: 30 * time.Second},
	{name: "accept", workload: "accept"},
	{name: "lateness", workload: "lateness"},
	{name: "idle", workload: "idle", shards: 64},
}

// clusterBudgets are those for three nodes. How long firing stands still when one is lost is measured by the drills of
// package integration.
var clusterBudgets = []budget{
	{what: "due and run, 300,000 over 30 s", must: "10,000/s, p99 ≤ 1 s", from: "due", show: rateAndLateness,
		meets: func(r *Result) (bool, bool) { return kept(r, 10_000), false }},
	{what: "due and run, 500,000 over 30 s", moonshot: "16,667/s, p99 ≤ 1 s", from: "due fast", show: rateAndLateness,
		meets: func(r *Result) (bool, bool) { return false, kept(r, 16_667) }},
	{what: "accepted in batches", must: "25,000/s", moonshot: "50,000/s", from: "accept",
		show:  func(r *Result) string { return number(r.JobsPerSecond, "/s") },
		meets: func(r *Result) (bool, bool) { return atLeast(r.JobsPerSecond, 25_000, 50_000) }},
	{what: "lateness at 1,000 due/s", must: "p99 ≤ 100 ms", moonshot: "p99 ≤ 30 ms", from: "lateness",
		show: func(r *Result) string { return spread(r.LatenessMS) },
		meets: func(r *Result) (bool, bool) {
			q := r.LatenessMS
			return q != nil && q.P99 <= 100, q != nil && q.P99 <= 30
		}},
	{what: "CPU per due job, everything", must: "≤ 200 µs", moonshot: "≤ 120 µs", from: "due",
		show:  func(r *Result) string { return number(r.CPUMicrosPerJob, " µs") },
		meets: func(r *Result) (bool, bool) { return atMost(r.CPUMicrosPerJob, 200, 120) }},
	{what: "idle, 64 shards, per node: CPU", must: "≤ 2 % of a core", moonshot: "≤ 1 %", from: "idle",
		show:  func(r *Result) string { return number(r.CPUPercent, " %") },
		meets: func(r *Result) (bool, bool) { return atMost(r.CPUPercent, 2, 1) }},
	{what: "idle, 64 shards, per node: memory", must: "≤ 120 MB", moonshot: "≤ 80 MB", from: "idle",
		show:  func(r *Result) string { return number(r.ServerRSSMB, " MB") },
		meets: func(r *Result) (bool, bool) { return atMost(r.ServerRSSMB, 120, 80) }},
}

// budgets are those for one node.
var budgets = []budget{
	{what: "due and run, 1M over 60 s", must: "16,667/s, p99 ≤ 1 s", from: "due", show: rateAndLateness,
		meets: func(r *Result) (bool, bool) { return kept(r, 16_667), false }},
	{what: "due and run, 2.4M over 60 s", moonshot: "40,000/s, p99 ≤ 1 s", from: "due fast", show: rateAndLateness,
		meets: func(r *Result) (bool, bool) { return false, kept(r, 40_000) }},
	{what: "200,000 due at one second: drain rate", must: "20,000/s", moonshot: "40,000/s", from: "burst",
		show:  func(r *Result) string { return number(r.JobsPerSecond, "/s") },
		meets: func(r *Result) (bool, bool) { return atLeast(r.JobsPerSecond, 20_000, 40_000) }},
	{what: "  oldest first: younger than the oldest to come, p99", must: "≤ 500 ms", from: "burst",
		show:  func(r *Result) string { return spread(r.OvertakenMS) },
		meets: func(r *Result) (bool, bool) { return r.OvertakenMS != nil && r.OvertakenMS.P99 <= 500, false }},
	{what: "  other calls meanwhile, p99", must: "≤ 1 s", from: "burst",
		show: func(r *Result) string { return spread(r.OtherCallsMS) + ", failed " + count(r.OtherCallsFailed) },
		meets: func(r *Result) (bool, bool) {
			return r.OtherCallsMS != nil && r.OtherCallsMS.P99 <= 1000 && *r.OtherCallsFailed == 0, false
		}},
	{what: "accepted in batches", must: "65,000/s", moonshot: "120,000/s", from: "accept",
		show:  func(r *Result) string { return number(r.JobsPerSecond, "/s") },
		meets: func(r *Result) (bool, bool) { return atLeast(r.JobsPerSecond, 65_000, 120_000) }},
	{what: "accepted one by one, raw calls", must: "8,000/s", moonshot: "11,000/s", from: "accept-one", variant: "raw",
		show:  func(r *Result) string { return number(r.JobsPerSecond, "/s") },
		meets: func(r *Result) (bool, bool) { return atLeast(r.JobsPerSecond, 8_000, 11_000) }},
	{what: "accepted one by one, through the client", must: "20,000/s", moonshot: "50,000/s", from: "accept-one",
		variant: "merged",
		show:    func(r *Result) string { return number(r.JobsPerSecond, "/s") },
		meets:   func(r *Result) (bool, bool) { return atLeast(r.JobsPerSecond, 20_000, 50_000) }},
	{what: "lateness at 1,000 due/s", must: "p50 ≤ 10, p99 ≤ 50 ms", moonshot: "p99 ≤ 15 ms", from: "lateness",
		show: func(r *Result) string { return spread(r.LatenessMS) },
		meets: func(r *Result) (bool, bool) {
			q := r.LatenessMS
			return q != nil && q.P50 <= 10 && q.P99 <= 50, q != nil && q.P99 <= 15
		}},
	{what: "recurring: 100,000 jobs, each every 6 s", must: "16,667/s, p99 ≤ 1 s", from: "every", variant: "every",
		show: rateAndLateness, meets: func(r *Result) (bool, bool) { return kept(r, 16_667), false }},
	{what: "  the same by cron lines", must: "16,667/s, p99 ≤ 1 s", from: "cron", variant: "cron",
		show: rateAndLateness, meets: func(r *Result) (bool, bool) { return kept(r, 16_667), false }},
	{what: "CPU per due job, everything", must: "≤ 120 µs", moonshot: "≤ 50 µs", from: "due",
		show:  func(r *Result) string { return number(r.CPUMicrosPerJob, " µs") },
		meets: func(r *Result) (bool, bool) { return atMost(r.CPUMicrosPerJob, 120, 50) }},
	{what: "memory with 10M far-future jobs", must: "≤ 600 MB", moonshot: "the same at 100M", from: "store",
		show: func(r *Result) string { return number(r.ServerRSSMB, " MB") },
		meets: func(r *Result) (bool, bool) {
			must, _ := atMost(r.ServerRSSMB, 600, 600)
			return must && r.N >= 10_000_000, must && r.N >= 100_000_000
		}},
	{what: "disk per pending job", must: "≤ 260 bytes", moonshot: "≤ 200 bytes", from: "store",
		show:  func(r *Result) string { return number(r.DiskBytesPerJob, " bytes") },
		meets: func(r *Result) (bool, bool) { return atMost(r.DiskBytesPerJob, 260, 200) }},
	{what: "restart after kill -9, to firing", must: "≤ 3 s", moonshot: "≤ 1 s", from: "store",
		show:  func(r *Result) string { return number(r.RestartSeconds, " s") },
		meets: func(r *Result) (bool, bool) { return atMost(r.RestartSeconds, 3, 1) }},
	{what: "ten times the rate for 10 s: p99 ≤ 1 s again within", must: "30 s, hints", moonshot: "10 s", from: "peak",
		show: func(r *Result) string {
			return number(r.RecoverySeconds, " s") + ", shed " + count(r.Shed) + ", without a hint " + count(r.ShedWithoutHint)
		},
		meets: func(r *Result) (bool, bool) {
			must, moonshot := atMost(r.RecoverySeconds, 30, 10)
			hinted := r.ShedWithoutHint != nil && *r.ShedWithoutHint == 0
			return must && hinted, moonshot && hinted
		}},
	{what: "idle: CPU", must: "≤ 2 % of a core", moonshot: "≤ 1 %", from: "idle",
		show:  func(r *Result) string { return number(r.CPUPercent, " %") },
		meets: func(r *Result) (bool, bool) { return atMost(r.CPUPercent, 2, 1) }},
	{what: "idle: memory", must: "≤ 120 MB", moonshot: "≤ 80 MB", from: "idle",
		show:  func(r *Result) string { return number(r.ServerRSSMB, " MB") },
		meets: func(r *Result) (bool, bool) { return atMost(r.ServerRSSMB, 120, 80) }},
}

// rateTolerance is how far below its nominal rate a load at a fixed rate may end: the last jobs, too, have their lateness.
const rateTolerance = 0.98

// kept is true of a load at a fixed rate that was run with a p99 lateness of at most 1 s.
func kept(r *Result, rate float64) bool {
	return value(r.JobsPerSecond) >= rateTolerance*rate && r.LatenessMS != nil && r.LatenessMS.P99 <= 1000
}

func atLeast(x *float64, must, moonshot float64) (bool, bool) {
	return value(x) >= must, value(x) >= moonshot
}

func atMost(x *float64, must, moonshot float64) (bool, bool) {
	return x != nil && *x <= must, x != nil && *x <= moonshot
}

func rateAndLateness(r *Result) string {
	return number(r.JobsPerSecond, "/s") + ", " + spread(r.LatenessMS)
}

// runAll makes every planned run and prints the table of budgets, or every result as a line of JSON.
func runAll(ctx context.Context, c Config, out io.Writer) error {
	if c.Repeat == 0 {
		c.Repeat = 3
	}
	runs, rows := plannedRuns, budgets
	if c.Nodes > 1 {
		runs, rows = clusterRuns, clusterBudgets
	}
	byRun := map[string][]Result{}
	var all []Result
	for _, p := range runs {
		results, err := repeat(ctx, p.config(c), findWorkload(p.workload))
		if err != nil {
			return err
		}
		byRun[p.name] = results
		all = append(all, results...)
		if c.JSON { // as they come: all together take long
			if err := printResults(out, true, results); err != nil {
				return err
			}
		}
	}
	if !c.JSON {
		if err := printBudgets(out, rows, byRun); err != nil {
			return err
		}
	}
	return violated(all)
}

// config is c with the sizes of p. A cap on the number of jobs keeps the rate: the load lasts less long.
func (p plannedRun) config(c Config) Config {
	w := findWorkload(p.workload)
	one := Config{Workload: p.workload, Nodes: c.Nodes, Binary: c.Binary, Repeat: c.Repeat, Log: c.Log,
		Rate: p.rate, For: p.span, N: p.n, Interval: p.interval, Cron: p.cron, Shards: cmp.Or(p.shards, c.Shards)}
	n := cmp.Or(p.n, w.n)
	switch {
	case p.rate != 0:
		n = int(float64(p.rate) * p.span.Seconds())
	case w.name == "peak":
		n = w.rate * rateUnits
	case w.rate != 0:
		n = int(float64(w.rate) * w.span.Seconds())
	}
	switch {
	case c.N == 0 || n <= c.N:
		return one
	case p.rate != 0:
		one.For = time.Duration(float64(c.N) / float64(p.rate) * float64(time.Second))
	case p.workload == "due":
		one.N, one.For = c.N, time.Duration(float64(w.span)*float64(c.N)/float64(w.n))
	default:
		one.N = c.N
	}
	return one
}

// printBudgets writes the table. A row that was not met says so.
func printBudgets(out io.Writer, rows []budget, byRun map[string][]Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tMUST\tMOONSHOT\tMEASURED\tMEETS")
	for _, b := range rows {
		for _, r := range byRun[b.from] {
			if r.Variant != b.variant {
				continue
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", b.what, dash(b.must), dash(b.moonshot), b.show(&r), b.verdict(&r))
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// verdict is the best budget that r keeps.
func (b *budget) verdict(r *Result) string {
	must, moonshot := b.meets(r)
	switch {
	case r.Violations() > 0:
		return "VIOLATED"
	case moonshot && b.moonshot != "":
		return "moonshot"
	case must && b.must != "":
		return "must"
	}
	return "no"
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
