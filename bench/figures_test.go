package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	if quantiles(nil) != nil {
		t.Error("quantiles of nothing")
	}
	hundred := make([]int32, 100)
	for i := range hundred {
		hundred[i] = int32(i+1) * 1000
	}
	rand.Shuffle(len(hundred), func(i, j int) { hundred[i], hundred[j] = hundred[j], hundred[i] })
	for _, tc := range []struct {
		samples []int32
		want    Quantiles
	}{
		{[]int32{1500}, Quantiles{1.5, 1.5, 1.5}},
		{[]int32{3000, 1000}, Quantiles{1, 3, 3}},
		{[]int32{-2000, 0, 5}, Quantiles{0, 0.005, 0.005}},
		{hundred, Quantiles{50, 99, 100}},
	} {
		if got := quantiles(slices.Clone(tc.samples)); *got != tc.want {
			t.Errorf("quantiles(%v) = %v, want %v", tc.samples, *got, tc.want)
		}
	}
}

func TestOvertaking(t *testing.T) {
	received := func(dues ...int64) (out []receipt) {
		for k, due := range dues { // the k-th at 1,000+k ms
			out = append(out, receipt{dueMS: due, latenessUS: int32(1000+int64(k)-due) * 1000})
		}
		return out
	}
	if got := overtaking(received(0, 1, 2, 3)); *got != (Quantiles{}) {
		t.Errorf("oldest first: %v", *got)
	}
	if got := overtaking(received(500, 0, 400, 100)); got.Max != 500 || got.P50 != 0 {
		t.Errorf("500 before 0, 400 before 100: %v", *got)
	}
	if got := overtaking(received(3, 2, 1, 0)); got.Max != 3 || got.P50 != 1 {
		t.Errorf("youngest first: %v", *got)
	}
}

func TestRecovery(t *testing.T) {
	at := func(second float64, latenessMS int32) receipt {
		return receipt{dueMS: 100_000 + int64(second*1000) - int64(latenessMS), latenessUS: latenessMS * 1000}
	}
	for _, tc := range []struct {
		name     string
		receipts []receipt
		want     float64
	}{
		{"never late", []receipt{at(0.5, 10), at(7, 20)}, 0},
		{"late before the end does not count", []receipt{at(-0.5, 5000), at(1, 20)}, 0},
		{"late for three seconds", []receipt{at(0.5, 5000), at(1.5, 10), at(2.5, 1001), at(3.5, 1000)}, 3},
	} {
		if got := recovery(tc.receipts, 100_000, 1_000_000); got != tc.want {
			t.Errorf("%s: %v s, want %v", tc.name, got, tc.want)
		}
	}
}

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics(strings.NewReader(`
# HELP carillon_store_gets_total Reads.
# TYPE carillon_store_gets_total counter
carillon_store_gets_total{shard="0"} 3
carillon_store_gets_total{shard="1",why="a } and \" and spaces"} 4 1700000000000
carillon_raft_entries_total 1.5e+06
carillon_up	1
`))
	if err != nil {
		t.Fatal(err)
	}
	want := samples{"carillon_store_gets_total": 7, "carillon_raft_entries_total": 1.5e6, "carillon_up": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []string{"name", "name{x=\"1\"", "name{x=\"}\"} ", "name one", "{} 1"} {
		if _, err := parseMetrics(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is taken for a sample", bad)
		}
	}
}

func TestParseStat(t *testing.T) {
	fields := "S 1 2 3 4 5 6 7 8 9 10 250 150 0 0 20 0 8 0 12345 1000000 2000 18446744073709551615 1"
	cpu, rss, err := parseStat("4711 (a) b) " + fields)
	if err != nil || cpu != 4*time.Second || rss%2000 != 0 || rss == 0 {
		t.Errorf("cpu %v, rss %d, error %v", cpu, rss, err)
	}
	for _, bad := range []string{"", "1 (x) S 1 2", "1 (x) " + strings.Replace(fields, "250", "x", 1)} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q is taken for a status", bad)
		}
	}
}

func TestPhaseCost(t *testing.T) {
	cpu := func(d time.Duration) *time.Duration { return &d }
	from := usage{serverCPU: cpu(time.Second), ownCPU: time.Second, metrics: samples{
		metricKeyWrites: 100, metricGets: 0, metricEntries: 10, metricCommands: 10}}
	to := usage{serverCPU: cpu(3 * time.Second), ownCPU: 2 * time.Second, metrics: samples{
		metricKeyWrites: 600, metricGets: 50, metricEntries: 20, metricCommands: 110}}
	c := phase{from, to}.cost(100)
	got := fmt.Sprint(*c.cpu, *c.serverCPU, *c.keys, *c.gets, *c.commandsPerEntry)
	if want := "30000 20000 5 0.5 10"; got != want {
		t.Errorf("cpu, server's, keys, gets, commands per entry: %s, want %s", got, want)
	}
	blind := phase{usage{metrics: samples{}}, usage{metrics: samples{}}}.cost(100)
	if blind != (costs{}) {
		t.Errorf("of a server that shows nothing: %+v", blind)
	}
}

func TestMedianCarriesTheWorstCheck(t *testing.T) {
	run := func(rate float64, lost int) Result { return Result{JobsPerSecond: &rate, Lost: lost} }
	got := median([]Result{run(30, 0), run(10, 1), run(20, 0)}, byRate)
	if *got.JobsPerSecond != 20 || got.Lost != 1 {
		t.Errorf("rate %v, lost %d", *got.JobsPerSecond, got.Lost)
	}
}

func TestLineHasEveryFieldOfTheContract(t *testing.T) {
	line, err := (&Result{Workload: "due", Settings: map[string]string{}}).line()
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"workload", "nodes", "n", "jobs_per_s", "lateness_ms", "duplicates", "lost", "early",
		"cpu_us_per_job", "keys_per_job", "gets_per_job", "commands_per_entry", "server_rss_mb", "disk_bytes_per_job",
		"restart_s", "settings"} {
		if !strings.Contains(string(line), `"`+field+`":`) {
			t.Errorf("no %s in %s", field, line)
		}
	}
	if strings.Count(string(line), "\n") != 1 {
		t.Errorf("not one line: %q", line)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.25: "0.25", 12: "12", 12.345: "12.35", 99.9: "99.9", 123.4: "123",
		16667.4: "16,667", 1_000_000: "1,000,000"} {
		if got := number(&x, ""); got != want {
			t.Errorf("number(%v) = %q, want %q", x, got, want)
		}
	}
}
