package cron

import (
	"strings"
	"testing"
	"time"
)

// ordinary and worst are the two budgets of Next: 5 µs without allocation, and 1 ms.
var ordinary = []struct {
	name string
	spec Spec
}{
	{"minutely", Spec{Lines: []string{"* * * * *"}, Zone: "UTC"}},
	{"quarter", Spec{Lines: []string{"*/15 * * * *"}, Zone: "America/New_York"}},
	{"daily", Spec{Lines: []string{"30 2 * * *"}, Zone: "America/New_York"}},
	{"weekdays", Spec{Lines: []string{"0 9 * * MON-FRI"}, Zone: "Europe/Berlin"}},
	{"last-workday", Spec{Lines: []string{"0 18 LW * *"}, Zone: "Europe/Berlin"}},
	{"yearly", Spec{Lines: []string{"0 0 1 1 *"}, Zone: "Australia/Lord_Howe"}},
	{"leap-day", Spec{Lines: []string{"0 9 29 2 *"}, Zone: "America/Santiago"}},
	{"business", Spec{Lines: []string{"*/5 9-17 * * *"}, Zone: "Europe/London",
		Exclude: Exclusions{Weekdays: "SAT,SUN", Dates: []string{"2026-12-24..2027-01-03"}}}},
}

func worst(t testing.TB) map[string]Spec {
	t.Helper()
	lines := func(n int, text string) []string {
		return strings.Split(strings.TrimSuffix(strings.Repeat(text+"\n", n), "\n"), "\n")
	}
	// Every day for ever looked at and found covered, by other lines on each kind of day.
	covering := []string{"* 0-11 */2 * *", "* 12-23 */2 * *", "* 0-11 */3 * *", "* 12-23 */3 * *"}
	bySeconds := []string{"0-29 * * */2 * *", "30-59 * * */2 * *", "0-29 * * */3 * *", "30-59 * * */3 * *"}
	byYears := []string{"* * 0-11 * * *", "* 6-11 * * *", "* * 12-23 * * * */2", "* * 9-23 * * * 1971-2197/2"}
	return map[string]Spec{
		"leap-monday":      {Lines: lines(MaxLines, "0 0 * 2 MON#5"), Zone: "America/New_York"},
		"always-in-gap":    {Lines: lines(MaxLines, "30 2 * 3 SUN#2"), Zone: "America/New_York", Rules: Rules{Gap: GapSkip}},
		"past":             {Lines: lines(MaxLines, "* * * * * * 1970-2000"), Zone: "America/New_York"},
		"excluded-decades": {Lines: lines(MaxLines, "* * * * * *"), Zone: "America/New_York", Exclude: Exclusions{Dates: []string{"2026-01-01..2199-12-30"}}},
		"covered-days": {Lines: append(lines(MaxLines-1, "* * * 1-11 * *"), "0 0 1 12 *"), Zone: "America/New_York",
			Exclude: Exclusions{Lines: []string{"* * * 1-11 *"}}},
		"covered-minutes":  {Lines: append(lines(MaxLines-1, "* * */6,4 * *"), "0 0 0 2 12 ? 2199"), Zone: "America/New_York", Exclude: Exclusions{Lines: covering}},
		"covered-seconds":  {Lines: append(lines(MaxLines-1, "* * * */6,4 * *"), "0 0 0 2 12 ? 2199"), Zone: "America/New_York", Exclude: Exclusions{Lines: bySeconds}},
		"covered-by-years": {Lines: append(lines(MaxLines-1, "* * */6,4 * *"), "0 0 12 2 12 ? 2199"), Zone: "America/New_York", Exclude: Exclusions{Lines: byYears}},
		"last-year":        {Lines: lines(MaxLines, "0 0 31 12 *"), Zone: "America/New_York", Exclude: Exclusions{Lines: []string{"* * * * * * 1971-2198"}}},
	}
}

func BenchmarkNext(b *testing.B) {
	for _, c := range ordinary {
		b.Run(c.name, func(b *testing.B) { benchmarkNext(b, c.spec) })
	}
}

func BenchmarkNextWorst(b *testing.B) {
	for name, spec := range worst(b) {
		b.Run(name, func(b *testing.B) { benchmarkNext(b, spec) })
	}
}

// benchmarkNext asks from occurrence to occurrence, over and over from 2026 on.
func benchmarkNext(b *testing.B, spec Spec) {
	s := mustCompile(b, spec)
	start := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	at := start
	b.ReportAllocs()
	for b.Loop() {
		o, ok := s.Next(at)
		if at = o.At; !ok || at.Year() > 2100 {
			at = start
		}
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("0 */15 9-17 ? JAN-NOV MON-FRI"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mustCompile(b, ordinary[len(ordinary)-1].spec)
	}
}

func BenchmarkLoadZone(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		zones.Delete("America/New_York")
		if _, err := LoadZone("America/New_York"); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNextDoesNotAllocate in the ordinary case.
func TestNextDoesNotAllocate(t *testing.T) {
	for _, c := range ordinary {
		s := mustCompile(t, c.spec)
		at := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
		if n := testing.AllocsPerRun(100, func() {
			o, _ := s.Next(at)
			at = o.At
		}); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

// TestNextIsBounded: even the worst specs that compile are answered soon. The limit is far above the budget of 1 ms, which
// BenchmarkNextWorst measures, because tests run on busy machines, and under the race detector twenty times as long.
func TestNextIsBounded(t *testing.T) {
	for name, spec := range worst(t) {
		s := mustCompile(t, spec)
		at := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
		best := time.Hour
		for range 20 {
			start := time.Now()
			s.Next(at)
			best = min(best, time.Since(start))
		}
		if best > 100*time.Millisecond {
			t.Errorf("%s took %v", name, best)
		}
	}
}
