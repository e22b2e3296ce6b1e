package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// hasty are waits for servers that answer at once.
var hasty = waits{lead: time.Second, stall: 3 * time.Second, settle: 50 * time.Millisecond,
	calm: 10 * time.Millisecond, firing: 3 * time.Second, idle: 10 * time.Millisecond, peakUnit: 50 * time.Millisecond}

// measure runs c and returns its results; the error is that of Run.
func measure(t *testing.T, c Config) ([]Result, error) {
	t.Helper()
	c.JSON, c.waits = true, &hasty
	var out bytes.Buffer
	err := Run(context.Background(), c, &out)
	var results []Result
	for d := json.NewDecoder(&out); d.More(); {
		var r Result
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	return results, err
}

// one is the n-th job created, and no other. The warm-up comes before the workload's own: 25 jobs of 500.
func one(n int) func(int) bool { return func(k int) bool { return k == n } }

func TestDueOfARightServer(t *testing.T) {
	t.Parallel()
	results, err := measure(t, Config{Workload: "due", Target: serveFake(t, newFake(faults{})), N: 500, For: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	if r.Nodes != 3 || r.N != 500 || r.LatenessMS == nil || r.LatenessMS.P50 > r.LatenessMS.P99 || *r.JobsPerSecond < 100 {
		t.Errorf("%+v", r)
	}
	if *r.CreateKeysPerJob != 2 || *r.KeysPerJob != 0 || r.CommandsPerEntry != nil {
		t.Errorf("counters: %v, %v, %v", *r.CreateKeysPerJob, *r.KeysPerJob, r.CommandsPerEntry)
	}
	if r.Settings["n"] != "500" || r.Settings["for"] != "500ms" || r.Settings["target"] == "" {
		t.Errorf("settings %v", r.Settings)
	}
}

func TestDueIsRightWhenAnswersAreLost(t *testing.T) {
	t.Parallel()
	f := newFake(faults{loseAnswers: true, shed: func(n int) bool { return n%7 == 0 }})
	if _, err := measure(t, Config{Workload: "due", Target: serveFake(t, f), N: 500, For: 500 * time.Millisecond}); err != nil {
		t.Error(err)
	}
}

func TestDueCatchesAWrongServer(t *testing.T) {
	for _, tc := range []struct {
		name   string
		faults faults
		want   Result
		says   string
	}{
		{"loses a job", faults{forget: one(100)}, Result{Lost: 1}, "not completed"},
		{"delivers a job twice", faults{repeat: one(100)}, Result{Duplicates: 2}, "delivered twice"},
		{"runs a completed job again", faults{rewake: one(100)}, Result{Duplicates: 2}, "delivered again after"},
		{"delivers a job early", faults{early: one(100)}, Result{Early: 1}, "before its time"},
		{"changes a payload", faults{corrupt: one(100)}, Result{Corrupt: 1, Lost: 1}, "belongs to no job"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			results, err := measure(t, Config{Workload: "due", Target: serveFake(t, newFake(tc.faults)), N: 500,
				For: 300 * time.Millisecond})
			if !errors.Is(err, ErrViolated) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error: %v", err)
			}
			if len(results) != 1 {
				t.Fatalf("%d results", len(results))
			}
			r := results[0]
			if r.Duplicates != tc.want.Duplicates || r.Lost != tc.want.Lost || r.Early != tc.want.Early || r.Corrupt != tc.want.Corrupt {
				t.Errorf("duplicates %d, lost %d, early %d, corrupt %d, want %+v", r.Duplicates, r.Lost, r.Early, r.Corrupt, tc.want)
			}
		})
	}
}

func TestAcceptCatchesAMissingJob(t *testing.T) {
	t.Parallel()
	results, err := measure(t, Config{Workload: "accept", Target: serveFake(t, newFake(faults{unlisted: one(1500)})), N: 3000})
	if !errors.Is(err, ErrViolated) || results[0].Lost != 1 {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestAcceptOneHasTwoLines(t *testing.T) {
	t.Parallel()
	results, err := measure(t, Config{Workload: "accept-one", Target: serveFake(t, newFake(faults{})), N: 1000})
	if err != nil || len(results) != 2 || results[0].Variant != "raw" || results[1].Variant != "merged" {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestBurstProbesOtherCalls(t *testing.T) {
	t.Parallel()
	results, err := measure(t, Config{Workload: "burst", Target: serveFake(t, newFake(faults{})), N: 2000, Repeat: 2})
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.OtherCallsMS == nil || *r.OtherCallsFailed != 0 || r.OvertakenMS == nil || r.OvertakenMS.P50 > 500 {
		t.Errorf("%+v", r)
	}
}

func TestPeakCountsWhatIsShed(t *testing.T) {
	t.Parallel()
	f := newFake(faults{shed: func(n int) bool { return n%10 == 0 }, forget: func(n int) bool { return n%10 == 0 }})
	results, err := measure(t, Config{Workload: "peak", Target: serveFake(t, f), Rate: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; *r.Shed < r.N/20 || *r.ShedWithoutHint != 0 || *r.RecoverySeconds != 0 {
		t.Errorf("shed %d of %d, without a hint %d, recovery %v s", *r.Shed, r.N, *r.ShedWithoutHint, *r.RecoverySeconds)
	}
}

func TestStoreKillsAndRestarts(t *testing.T) {
	results, err := measure(t, Config{Workload: "store", Binary: os.Args[0], N: 2000})
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.RestartSeconds == nil || *r.RestartSeconds > 5 || r.DiskBytesPerJob == nil || *r.DiskBytesPerJob < 100 {
		t.Errorf("%+v", r)
	}
}

func TestStoreCatchesAServerThatForgets(t *testing.T) {
	t.Setenv("FAKE_AMNESIA", "1")
	results, err := measure(t, Config{Workload: "store", Binary: os.Args[0], N: 2000})
	if !errors.Is(err, ErrViolated) || results[0].Lost < 2000 {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestIdleStartsAndStopsItsServer(t *testing.T) {
	results, err := measure(t, Config{Workload: "idle", Binary: os.Args[0], For: time.Second})
	if err != nil || results[0].CPUPercent == nil || results[0].ServerRSSMB == nil {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestServerThatDoesNotStartIsReportedWithItsOutput(t *testing.T) {
	_, err := measure(t, Config{Workload: "idle", Binary: "/bin/ls"})
	if err == nil || !strings.Contains(err.Error(), "start server: it ended") {
		t.Errorf("error: %v", err)
	}
}

func TestConfigNamesTheWrongField(t *testing.T) {
	for _, tc := range []struct {
		c    Config
		says string
	}{
		{Config{Workload: "none"}, "workload: "},
		{Config{Workload: "due", N: -1}, "n: -1"},
		{Config{Workload: "due", For: 2 * time.Hour}, "for: "},
		{Config{Workload: "due", Nodes: 2}, "nodes: "},
		{Config{Workload: "due", Shards: 1025}, "shards: 1025"},
		{Config{Workload: "due", Shards: 4, Target: "http://x"}, "shards: "},
		{Config{Workload: "store", Target: "http://x"}, "target: "},
	} {
		if err := tc.c.Validate(); err == nil || !strings.HasPrefix(err.Error(), tc.says) {
			t.Errorf("%+v: %v", tc.c, err)
		}
	}
}

func TestAllCapsItsRunsAndKeepsTheirRates(t *testing.T) {
	for _, p := range slices.Concat(plannedRuns, clusterRuns) {
		c := p.config(Config{Workload: All, N: 20_000})
		s := newSession(c, findWorkload(p.workload))
		if s.n > 20_000 {
			t.Errorf("%s: %d jobs", p.name, s.n)
		}
		want := newSession(p.config(Config{Workload: All}), findWorkload(p.workload))
		if s.span > 0 && s.n > 0 {
			got, planned := float64(s.n)/s.span.Seconds(), float64(want.n)/want.span.Seconds()
			if p.workload != "burst" && p.interval == 0 && (got < 0.9*planned || got > 1.1*planned) {
				t.Errorf("%s: %v jobs/s, planned are %v", p.name, got, planned)
			}
		}
	}
}
