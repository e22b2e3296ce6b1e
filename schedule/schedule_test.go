package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

func ms(t testing.TB, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

// show writes a horizon as one line: its instants, what it skips, and where it ends.
func show(h *storagev1.Horizon) string {
	var b strings.Builder
	at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z") }
	for _, next := range h.NextMs {
		fmt.Fprintf(&b, "%s ", at(next))
	}
	for _, v := range h.Skipped {
		fmt.Fprintf(&b, "%s:%d:%s..%s ", strings.TrimPrefix(v.Why, "skipped_"), v.Count, at(v.FromMs), at(v.ToMs))
	}
	fmt.Fprintf(&b, "to %s", at(h.ToMs))
	if h.Ended {
		b.WriteString(" ended")
	}
	return b.String()
}

func TestHorizon(t *testing.T) {
	const newYork = "America/New_York"
	for _, c := range []struct {
		name string
		cron *storagev1.Cron
		from string
		n    int
		want string
	}{
		{"T1, skip", &storagev1.Cron{Lines: []string{"30 2 * * *"}, Zone: newYork, Gap: 1}, "2026-03-08T00:00:00Z", 2,
			"2026-03-09T06:30:00Z 2026-03-10T06:30:00Z gap:1:2026-03-08T07:00:00Z..2026-03-08T07:00:00Z to 2026-03-10T06:30:00Z"},
		{"T1, shift", &storagev1.Cron{Lines: []string{"30 2 * * *"}, Zone: newYork}, "2026-03-08T00:00:00Z", 2,
			"2026-03-08T07:00:00Z 2026-03-09T06:30:00Z to 2026-03-09T06:30:00Z"},
		{"T2, both", &storagev1.Cron{Lines: []string{"30 1 * * *"}, Zone: newYork, Repeat: 2}, "2026-11-01T00:00:00Z", 3,
			"2026-11-01T05:30:00Z 2026-11-01T06:30:00Z 2026-11-02T06:30:00Z to 2026-11-02T06:30:00Z"},
		{"from is not included", &storagev1.Cron{Lines: []string{"0 0 * * *"}}, "2026-01-01T00:00:00Z", 1,
			"2026-01-02T00:00:00Z to 2026-01-02T00:00:00Z"},
		{"an end", &storagev1.Cron{Lines: []string{"0 0 * * *"}, EndMs: ms(t, "2026-01-03T12:00:00Z")}, "2026-01-01T00:00:00Z", 5,
			"2026-01-02T00:00:00Z 2026-01-03T00:00:00Z to 2026-01-03T12:00:00Z ended"},
		{"behind its end", &storagev1.Cron{Lines: []string{"0 0 * * *"}, EndMs: ms(t, "2026-01-03T12:00:00Z")}, "2026-02-01T00:00:00Z", 5,
			"to 2026-02-01T00:00:00Z ended"},
		{"excluded to the end", &storagev1.Cron{Lines: []string{"0 0 * * *"}, ExcludeDates: []string{"2026-01-03..2026-01-31"}, EndMs: ms(t, "2026-01-05T12:00:00Z")},
			"2026-01-01T00:00:00Z", 5,
			"2026-01-02T00:00:00Z excluded:3:2026-01-03T00:00:00Z..2026-01-05T00:00:00Z to 2026-01-05T12:00:00Z ended"},
		{"excluded before, between, and not after", &storagev1.Cron{Lines: []string{"0 0 * * *"}, ExcludeWeekdays: "SAT,SUN"}, "2026-01-03T00:00:00Z", 6,
			"2026-01-05T00:00:00Z 2026-01-06T00:00:00Z 2026-01-07T00:00:00Z 2026-01-08T00:00:00Z 2026-01-09T00:00:00Z 2026-01-12T00:00:00Z " +
				"excluded:1:2026-01-04T00:00:00Z..2026-01-04T00:00:00Z excluded:2:2026-01-10T00:00:00Z..2026-01-11T00:00:00Z to 2026-01-12T00:00:00Z"},
		{"gaps in a row", &storagev1.Cron{Lines: []string{"0 30 2 9 3 * 2025", "0 */20 2 8 3 * 2026", "0 12 1 1 *"}, Zone: newYork, Gap: 1, ExcludeDates: []string{"2026-01-01"}},
			"2025-02-01T00:00:00Z", 1,
			"2027-01-01T17:00:00Z gap:4:2025-03-09T07:00:00Z..2026-03-08T07:00:00Z excluded:1:2026-01-01T17:00:00Z..2026-01-01T17:00:00Z to 2027-01-01T17:00:00Z"},
		{"more excluded than are counted", &storagev1.Cron{Lines: []string{"* * * * * *"}, ExcludeLines: []string{"0-58 * * * * *", "59 1-59 * * * *", "59 0 1-23 * * *"}},
			"2026-01-01T00:00:59Z", 5,
			"2026-01-02T00:00:59Z excluded:10000:2026-01-01T00:01:00Z..2026-01-02T00:00:58Z to 2026-01-02T00:00:59Z"},
	} {
		h, err := Horizon(c.cron, ms(t, c.from), c.n)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := show(h); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		if h.ZoneVersion != cron.ZoneVersion() {
			t.Errorf("%s: zone data %q", c.name, h.ZoneVersion)
		}
	}
}

// TestHorizonInParts: horizons that continue each other are the same as a long one, and what they hold is bounded.
func TestHorizonInParts(t *testing.T) {
	for _, c := range []*storagev1.Cron{
		{Lines: []string{"30 2 * * *"}, Zone: "America/New_York", Gap: 1},
		{Lines: []string{"*/20 0 * * *"}, Zone: "America/Santiago", Gap: 1, ExcludeWeekdays: "MON"},
		{Lines: []string{"0 0 * * *"}, ExcludeLines: []string{"* * */2 * *"}},
		{Lines: []string{"0 1 * * *"}, EndMs: ms(t, "2026-05-01T00:00:00Z"), ExcludeDates: []string{"2026-03-01..2026-03-10"}},
	} {
		from := ms(t, "2026-01-01T00:00:00Z")
		whole, err := Horizon(c, from, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(whole.NextMs) > MaxHorizon || len(whole.Skipped) > MaxHorizon {
			t.Errorf("%v: %d instants, %d skipped", c, len(whole.NextMs), len(whole.Skipped))
		}
		parts := &storagev1.Horizon{}
		for at := from; at < whole.ToMs; {
			h, err := Horizon(c, at, 7)
			if err != nil || h.ToMs <= at {
				t.Fatalf("%v: %v %v", c, h, err)
			}
			at = h.ToMs
			parts.NextMs, parts.Skipped = append(parts.NextMs, h.NextMs...), append(parts.Skipped, h.Skipped...)
			parts.ToMs, parts.Ended = h.ToMs, h.Ended
		}
		// The last part may reach further.
		n := len(whole.NextMs)
		if len(parts.NextMs) < n || !slices.Equal(parts.NextMs[:n], whole.NextMs) {
			t.Errorf("%v:\n parts %s\n whole %s", c, show(parts), show(whole))
		}
		skipped := slices.DeleteFunc(parts.Skipped, func(v *storagev1.RangeVerdict) bool { return v.FromMs > whole.ToMs })
		if got, want := show(&storagev1.Horizon{Skipped: skipped}), show(&storagev1.Horizon{Skipped: whole.Skipped}); got != want {
			t.Errorf("%v:\n parts %s\n whole %s", c, got, want)
		}
	}
}

// TestHorizonSkipsMuch: what does not fit ends the horizon, it is never left out.
func TestHorizonSkipsMuch(t *testing.T) {
	// In each interval something is excluded.
	c := &storagev1.Cron{Lines: []string{"*/30 * * * *"}, ExcludeLines: []string{"30 * * * *"}}
	h, err := Horizon(c, ms(t, "2026-01-01T00:00:00Z"), 1000)
	if err != nil || len(h.NextMs) != MaxHorizon || len(h.Skipped) != MaxHorizon {
		t.Fatalf("%d instants, %d skipped, %v", len(h.NextMs), len(h.Skipped), err)
	}
	// Of gaps there is a range besides: after the 64th range no instant follows it.
	c = &storagev1.Cron{Lines: []string{"30 2 * * *", "0 12 * * *"}, Zone: "America/New_York", Gap: 1, ExcludeLines: []string{"0 12 * * *"}}
	h, err = Horizon(c, ms(t, "2026-01-05T08:00:00Z"), 1000)
	if err != nil || len(h.NextMs) != MaxHorizon-1 || len(h.Skipped) != MaxHorizon || h.ToMs != h.NextMs[len(h.NextMs)-1] || h.Ended {
		t.Fatalf("%s, %v", show(h), err)
	}
}

func TestPass(t *testing.T) {
	minutely := &storagev1.Cron{Lines: []string{"* * * * *"}}
	for _, c := range []struct {
		from, until string
		limit       int
		want        string
	}{
		{"2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", 10_000, "2026-01-01T00:01:00Z 2026-01-02T00:00:00Z 1440 false"},
		{"2026-01-01T00:00:00Z", "2026-01-01T23:59:59Z", 1439, "2026-01-01T00:01:00Z 2026-01-01T23:59:00Z 1439 false"},
		{"2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", 1439, "2026-01-01T00:01:00Z 2026-01-01T23:59:00Z 1439 true"},
		{"2026-01-01T00:00:00Z", "2026-01-01T00:00:59Z", 10, "1970-01-01T00:00:00Z 1970-01-01T00:00:00Z 0 false"},
	} {
		first, last, count, more, err := Pass(minutely, ms(t, c.from), ms(t, c.until), c.limit)
		got := fmt.Sprint(time.UnixMilli(first).UTC().Format(time.RFC3339), " ", time.UnixMilli(last).UTC().Format(time.RFC3339), " ", count, more)
		if err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		cron *storagev1.Cron
		want string
	}{
		{&storagev1.Cron{Lines: []string{"0 0 31 2 *"}}, "lines[0]: "},
		{&storagev1.Cron{Lines: []string{"0 0 * * *"}, Zone: "Mars/Olympus"}, "zone: "},
		{&storagev1.Cron{Lines: []string{"0 0 * * *"}, Gap: 256}, "rules: "},
		{&storagev1.Cron{Lines: []string{"0 0 * * *"}, Repeat: 3}, "rules: "},
	} {
		_, err := Horizon(c.cron, 0, 1)
		_, _, _, _, passErr := Pass(c.cron, 0, 1, 1)
		if err == nil || passErr == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v: %v, %v", c.cron, err, passErr)
		}
	}
}

// TestCache: equal content is one schedule, any difference is another, and the cache is bounded and keeps what is used.
func TestCache(t *testing.T) {
	one := func() *storagev1.Cron { return &storagev1.Cron{Lines: []string{"0 1 * * *", "0 2 * * *"}} }
	a, _ := Compile(one())
	other := one()
	other.MaxRuns = 3
	if b, _ := Compile(other); a != b {
		t.Error("max_runs makes another schedule")
	}
	for i, change := range []func(c *storagev1.Cron){
		func(c *storagev1.Cron) { c.Lines = c.Lines[:1] },
		func(c *storagev1.Cron) { c.Zone = "Europe/Berlin" },
		func(c *storagev1.Cron) { c.Gap = 1 },
		func(c *storagev1.Cron) { c.Repeat = 1 },
		func(c *storagev1.Cron) { c.ExcludeDates = []string{"2026-01-01"} },
		func(c *storagev1.Cron) { c.ExcludeWeekdays = "MON" },
		func(c *storagev1.Cron) { c.ExcludeLines = []string{"0 1 * * *"} },
		func(c *storagev1.Cron) { c.StartMs = 1000 },
		func(c *storagev1.Cron) { c.EndMs = ms(t, "2050-01-01T00:00:00Z") },
	} {
		changed := one()
		change(changed)
		if b, err := Compile(changed); err != nil || a == b {
			t.Errorf("change %d: the same schedule, %v", i, err)
		}
	}
	for i := range 3 * maxCached {
		c := &storagev1.Cron{Lines: []string{fmt.Sprintf("%d %d %d * *", i%60, i/60%24, 1+i/1440)}}
		if _, err := Compile(c); err != nil {
			t.Fatal(err)
		}
		if b, _ := Compile(one()); a != b {
			t.Fatalf("after %d others the schedule in use is gone", i)
		}
	}
	if n := len(compiled.young) + len(compiled.old); n > 2*maxCached {
		t.Errorf("%d schedules are cached", n)
	}
}

func BenchmarkHorizon(b *testing.B) {
	c := &storagev1.Cron{Lines: []string{"*/5 9-17 * * *"}, Zone: "America/New_York", ExcludeWeekdays: "SAT,SUN"}
	from := ms(b, "2026-01-01T00:00:00Z")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Horizon(c, from, 16); err != nil {
			b.Fatal(err)
		}
	}
}

// worst are schedules whose search looks through centuries and finds next to nothing, or finds much that is excluded.
func worst() map[string]*storagev1.Cron {
	many := func(line, last string) []string { return append(slices.Repeat([]string{line}, cron.MaxLines-1), last) }
	const newYork = "America/New_York"
	return map[string]*storagev1.Cron{
		"covered by seconds": {Lines: many("* * * */6,4 * *", "0 0 0 2 12 ? 2199"), Zone: newYork,
			ExcludeLines: []string{"0-29 * * */2 * *", "30-59 * * */2 * *", "0-29 * * */3 * *", "30-59 * * */3 * *"}},
		"covered by years": {Lines: many("* * */6,4 * *", "0 0 12 2 12 ? 2199"), Zone: newYork,
			ExcludeLines: []string{"* * 0-11 * * *", "* 6-11 * * *", "* * 12-23 * * * */2", "* * 9-23 * * * 1971-2197/2"}},
		"covered by minutes": {Lines: many("* * */6,4 * *", "0 0 0 2 12 ? 2199"), Zone: newYork,
			ExcludeLines: []string{"* 0-11 */2 * *", "* 12-23 */2 * *", "* 0-11 */3 * *", "* 12-23 */3 * *"}},
		"excluded decades": {Lines: many("* * * * * *", "* * * * * *"), Zone: newYork, ExcludeDates: []string{"2026-01-01..2199-12-30"}},
		"always in a gap":  {Lines: many("30 2 * 3 SUN#2", "0 0 1 1 *"), Zone: newYork, Gap: 1},
	}
}

// TestHorizonIsBounded: what is evaluated of the worst schedule when its job is created takes milliseconds. The limit is far
// above that, because tests run on busy machines.
func TestHorizonIsBounded(t *testing.T) {
	from := ms(t, "2026-01-15T12:00:00Z")
	for name, c := range worst() {
		best := time.Hour
		for range 5 {
			start := time.Now()
			if _, err := Horizon(c, from, 16); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		if best > slower*100*time.Millisecond {
			t.Errorf("%s took %v", name, best)
		}
	}
}

func BenchmarkHorizonWorst(b *testing.B) {
	from := ms(b, "2026-01-15T12:00:00Z")
	for name, c := range worst() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Horizon(c, from, 16); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
