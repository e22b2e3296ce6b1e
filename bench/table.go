package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// printResults writes results as JSON lines or as a table.
func printResults(out io.Writer, asJSON bool, results []Result) error {
	if !asJSON {
		return printTable(out, results)
	}
	for i := range results {
		line, err := results[i].line()
		if err != nil {
			return err
		}
		if _, err := out.Write(line); err != nil {
			return fmt.Errorf("write result: %w", err)
		}
	}
	return nil
}

// printTable writes each result as a list of what it measured.
func printTable(out io.Writer, results []Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := range results {
		r := &results[i]
		if i > 0 {
			fmt.Fprintln(w)
		}
		for _, row := range r.rows() {
			fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// rows are the measured figures by name.
func (r *Result) rows() [][2]string {
	name := r.Workload
	if r.Variant != "" {
		name += ", " + r.Variant
	}
	per := "job"
	if r.Occurrences != nil {
		per = "occurrence"
	}
	rows := [][2]string{{"workload", name}, {"nodes", strconv.Itoa(r.Nodes)}, {"jobs", strconv.Itoa(r.N)}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, [2]string{name, value})
		}
	}
	add("occurrences", count(r.Occurrences))
	add(per+"s/s", number(r.JobsPerSecond, ""))
	add("lateness", spread(r.LatenessMS))
	add("lateness of the first occurrences", spread(r.FirstLatenessMS))
	add("lateness of the last occurrences", spread(r.LastLatenessMS))
	add("drift", number(r.DriftMS, " ms"))
	add("duplicates, lost, early, corrupt", fmt.Sprintf("%d, %d, %d, %d", r.Duplicates, r.Lost, r.Early, r.Corrupt))
	add("CPU per "+per+", all processes", number(r.CPUMicrosPerJob, " µs"))
	add("CPU per "+per+", server", number(r.ServerCPUMicrosPerJob, " µs"))
	add("key writes per "+per, number(r.KeysPerJob, ""))
	add("gets per "+per, number(r.GetsPerJob, ""))
	add("commands per entry", number(r.CommandsPerEntry, ""))
	add("created before: jobs/s", number(r.CreateJobsPerSecond, ""))
	add("created before: CPU per job", number(r.CreateCPUMicrosPerJob, " µs"))
	add("created before: key writes per job", number(r.CreateKeysPerJob, ""))
	add("younger than the oldest to come by", spread(r.OvertakenMS))
	add("other calls", spread(r.OtherCallsMS))
	add("other calls failed", count(r.OtherCallsFailed))
	add("shed, of them without a hint", strings.Trim(count(r.Shed)+", "+count(r.ShedWithoutHint), ", "))
	add("not offered in time", count(r.Unsent))
	add("recovery", number(r.RecoverySeconds, " s"))
	add("expansions/s", number(r.ExpansionsPerSecond, ""))
	add("server memory, from start to end", course(r.ServerRSSCourseMB))
	add("server memory", number(r.ServerRSSMB, " MB"))
	add("disk per "+per, number(r.DiskBytesPerJob, " bytes"))
	add("restart after kill -9, to firing", number(r.RestartSeconds, " s"))
	for i := range r.Shares {
		add("share of "+r.Shares[i].Of, r.Shares[i].words())
	}
	add("worst miss of a declared share", number(r.UnfairPercent, " %"))
	add("server CPU", number(r.CPUPercent, " % of a core"))
	for _, words := range r.Examples {
		add("!", words)
	}
	return rows
}

// number is x with as many digits as are worth reading; empty if it was not measured.
func number(x *float64, unit string) string {
	switch {
	case x == nil:
		return ""
	case *x >= 1000:
		return thousands(int64(*x+0.5)) + unit
	case *x >= 100:
		return strconv.FormatFloat(*x, 'f', 0, 64) + unit
	default:
		return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(*x, 'f', 2, 64), "0"), ".") + unit
	}
}

func thousands(n int64) string {
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return thousands(n/1000) + fmt.Sprintf(",%03d", n%1000)
}

func count(n *int) string {
	if n == nil {
		return ""
	}
	return thousands(int64(*n))
}

func spread(q *Quantiles) string {
	if q == nil {
		return ""
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s ms", number(&q.P50, ""), number(&q.P99, ""), number(&q.Max, ""))
}

// course is a row of megabytes.
func course(megabytes []float64) string {
	var words []string
	for _, mb := range megabytes {
		words = append(words, number(&mb, ""))
	}
	if words == nil {
		return ""
	}
	return strings.Join(words, ", ") + " MB"
}
