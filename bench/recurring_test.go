package bench

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

func TestRecurringOfARightServer(t *testing.T) {
	for _, kind := range []string{"every", "cron"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			results, err := measure(t, Config{Workload: "recurring", Target: serveFake(t, newFake(faults{loseAnswers: true})),
				N: 200, Interval: time.Second, For: 3 * time.Second, Cron: kind == "cron"})
			if err != nil {
				t.Fatal(err)
			}
			r := results[0]
			if r.Variant != kind || r.N != 200 || *r.Occurrences != 600 || *r.JobsPerSecond < 150 || r.DiskBytesPerJob != nil {
				t.Errorf("%+v", r)
			}
			if r.FirstLatenessMS == nil || r.LastLatenessMS == nil || r.DriftMS == nil || r.LatenessMS.Max > 5000 {
				t.Errorf("lateness %+v, first %+v, last %+v, drift %v", r.LatenessMS, r.FirstLatenessMS, r.LastLatenessMS, r.DriftMS)
			}
			if (r.ExpansionsPerSecond != nil) != (kind == "cron") {
				t.Errorf("expansions/s: %v", r.ExpansionsPerSecond)
			}
		})
	}
}

func TestRecurringMeasuresMemoryOfItsServer(t *testing.T) {
	t.Parallel()
	results, err := measure(t, Config{Workload: "recurring", N: 200, Interval: time.Second, For: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; len(r.ServerRSSCourseMB) != memoryLooks || r.DiskBytesPerJob != nil {
		t.Errorf("memory %v, disk %v", r.ServerRSSCourseMB, r.DiskBytesPerJob)
	}
}

func TestDiskPerItemIsNoNoise(t *testing.T) {
	if got := diskPerItem(1<<30, 1<<30+diskNoise-1, 1000); got != nil {
		t.Errorf("%v bytes, of what may be noise", *got)
	}
	if got := diskPerItem(1<<30, 3<<30, 1<<20); got == nil || *got != 2048 {
		t.Errorf("%v bytes, want 2048", got)
	}
}

// The warm-up creates 10 jobs of 2 occurrences, so that the first of the workload's own is item 20 of the fake.
func TestRecurringCatchesAWrongServer(t *testing.T) {
	for _, tc := range []struct {
		name   string
		faults faults
		want   Result
		says   string
	}{
		{"loses an occurrence", faults{forget: one(101)}, Result{Lost: 1}, "occurrence 2 of 2: accepted, 0 attempts seen, not completed"},
		{"fires an occurrence twice", faults{repeat: one(100)}, Result{Duplicates: 2}, "occurrence 1 of 2: delivered twice"},
		{"fires before the spread is over", faults{early: one(101)}, Result{Early: 1}, "occurrence 2 of 2: received"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			results, err := measure(t, Config{Workload: "recurring", Target: serveFake(t, newFake(tc.faults)), N: 200,
				Interval: time.Second, For: 2 * time.Second, Cron: true})
			if !errors.Is(err, ErrViolated) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error: %v", err)
			}
			r := results[0]
			if r.Duplicates != tc.want.Duplicates || r.Lost != tc.want.Lost || r.Early != tc.want.Early || r.Corrupt != 0 {
				t.Errorf("duplicates %d, lost %d, early %d, corrupt %d, want %+v", r.Duplicates, r.Lost, r.Early, r.Corrupt, tc.want)
			}
		})
	}
}

func TestRecurringPlanKnowsItsOccurrences(t *testing.T) {
	for _, cron := range []bool{false, true} {
		r := recurrence{start: start.Truncate(time.Minute), interval: time.Minute, runs: 3, cron: cron}
		p := newRecurringPlan(rand.Uint64(), 100, "", r)
		payload := make([]byte, PayloadBytes)
		for item := range p.items() {
			job, run := p.job(item), int64(item/100)
			nominal, due := p.nominal(item), p.due(item)
			if from := r.start.UnixMilli() + run*60_000; nominal < from || due < nominal || due >= from+60_000 || cron != (nominal == from) && job != 0 {
				t.Fatalf("seed %d, cron %v: item %d has nominal %d and is due at %d", p.seed, cron, item, nominal, due)
			}
			p.payload(payload, job)
			lease := &carillonv1.Lease{Payload: payload, NominalTime: timestamppb.New(time.UnixMilli(nominal))}
			if got, why := p.item(lease); got != item || why != "" {
				t.Fatalf("seed %d, cron %v: item %d is taken for %d: %s", p.seed, cron, item, got, why)
			}
			for _, other := range []time.Duration{time.Millisecond, -3 * time.Minute, 3 * time.Minute} {
				lease.NominalTime = timestamppb.New(time.UnixMilli(nominal).Add(other))
				if got, why := p.item(lease); why == "" {
					t.Fatalf("seed %d, cron %v: what is %v off item %d is taken for %d", p.seed, cron, other, item, got)
				}
			}
		}
	}
}

// The values are those of docs/schedules.md's formula, which package cron's test has, too.
func TestSpreadIsTheServers(t *testing.T) {
	for id, want := range map[string]int64{"hello": 15_441, "hello2": 23_443} {
		if got := spreadOf(id, time.Minute); got != want {
			t.Errorf("job %s: %d ms, want %d", id, got, want)
		}
	}
}

func TestRecurringNamesTheWrongField(t *testing.T) {
	for _, tc := range []struct {
		c    Config
		says string
	}{
		{Config{Workload: "due", Cron: true}, "cron: "},
		{Config{Workload: All, Interval: time.Second}, "interval: "},
		{Config{Workload: "recurring", Rate: 5}, "rate: "},
		{Config{Workload: "recurring", Interval: 7 * time.Second}, "interval: 7s"},
		{Config{Workload: "recurring", Interval: 500 * time.Millisecond}, "interval: 500ms"},
		{Config{Workload: "recurring", Interval: 2 * time.Minute, For: 2 * time.Minute}, "interval: 2m0s"},
		{Config{Workload: "recurring", For: 90 * time.Second}, "for: 1m30s"},
		{Config{Workload: "recurring", N: MaxN}, "n: "},
	} {
		if err := tc.c.Validate(); err == nil || !strings.HasPrefix(err.Error(), tc.says) {
			t.Errorf("%+v: %v", tc.c, err)
		}
	}
	if err := (&Config{Workload: "recurring", Interval: 6 * time.Second, For: 30 * time.Second, Cron: true}).Validate(); err != nil {
		t.Error(err)
	}
}
