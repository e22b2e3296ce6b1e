package cron

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustCompile(t testing.TB, spec Spec) *Schedule {
	t.Helper()
	s, err := Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// nexts are the next n instants.
func nexts(s *Schedule, after time.Time, n int) []string {
	var out []string
	for range n {
		o, ok := s.Next(after)
		if !ok {
			return append(out, "none")
		}
		if !o.At.After(after) {
			return append(out, "not after")
		}
		out = append(out, o.At.Format("2006-01-02T15:04:05Z"))
		after = o.At
	}
	return out
}

// TestCases are the cases T1 to T7, each with the instants that were written down for it.
func TestCases(t *testing.T) {
	for _, c := range []struct {
		id, line, zone string
		rules          Rules
		after          string
		want           string
	}{
		{"T1 skip", "30 2 * * *", "America/New_York", Rules{Gap: GapSkip}, "2026-03-07T12:00:00Z", "2026-03-09T06:30:00Z 2026-03-10T06:30:00Z"},
		{"T1 shift", "30 2 * * *", "America/New_York", Rules{Gap: GapShift}, "2026-03-07T12:00:00Z", "2026-03-08T07:00:00Z 2026-03-09T06:30:00Z"},
		{"T1 shift, just before", "30 2 * * *", "America/New_York", Rules{Gap: GapShift}, "2026-03-08T06:59:59.999Z", "2026-03-08T07:00:00Z"},
		{"T1 shift, at it", "30 2 * * *", "America/New_York", Rules{Gap: GapShift}, "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"},
		{"T2 first", "30 1 * * *", "America/New_York", Rules{Repeat: RepeatFirst}, "2026-11-01T00:00:00Z", "2026-11-01T05:30:00Z 2026-11-02T06:30:00Z"},
		{"T2 last", "30 1 * * *", "America/New_York", Rules{Repeat: RepeatLast}, "2026-11-01T00:00:00Z", "2026-11-01T06:30:00Z 2026-11-02T06:30:00Z"},
		{"T2 both", "30 1 * * *", "America/New_York", Rules{Repeat: RepeatBoth}, "2026-11-01T00:00:00Z", "2026-11-01T05:30:00Z 2026-11-01T06:30:00Z 2026-11-02T06:30:00Z"},
		{"T2 first, between", "30 1 * * *", "America/New_York", Rules{Repeat: RepeatFirst}, "2026-11-01T05:45:00Z", "2026-11-02T06:30:00Z"},
		{"T2 both, between", "30 1 * * *", "America/New_York", Rules{Repeat: RepeatBoth}, "2026-11-01T05:45:00Z", "2026-11-01T06:30:00Z"},
		{"T2 first, at the edge", "0 1 * * *", "America/New_York", Rules{Repeat: RepeatFirst}, "2026-11-01T00:00:00Z", "2026-11-01T05:00:00Z 2026-11-02T06:00:00Z"},
		{"T2 last, at the edge", "0 1 * * *", "America/New_York", Rules{Repeat: RepeatLast}, "2026-11-01T00:00:00Z", "2026-11-01T06:00:00Z 2026-11-02T06:00:00Z"},
		{"T2 last, after the edge", "0 2 * * *", "America/New_York", Rules{Repeat: RepeatLast}, "2026-11-01T00:00:00Z", "2026-11-01T07:00:00Z 2026-11-02T07:00:00Z"},
		{"T2 both, yearly, between", "30 1 1 11 *", "America/New_York", Rules{Repeat: RepeatBoth}, "2026-11-01T05:45:00Z", "2026-11-01T06:30:00Z 2027-11-01T05:30:00Z"},
		{"T2 last, yearly, between", "30 1 1 11 *", "America/New_York", Rules{Repeat: RepeatLast}, "2026-11-01T05:45:00Z", "2026-11-01T06:30:00Z 2027-11-01T05:30:00Z"},
		{"T2 both, one year, between", "0 30 1 1 11 * 2026", "America/New_York", Rules{Repeat: RepeatBoth}, "2026-11-01T05:45:00Z", "2026-11-01T06:30:00Z none"},
		{"T2 first, one year, between", "0 30 1 1 11 * 2026", "America/New_York", Rules{Repeat: RepeatFirst}, "2026-11-01T05:45:00Z", "none"},
		{"T3", "0 6 * * MON", "America/New_York", Rules{}, "2026-10-20T00:00:00Z", "2026-10-26T10:00:00Z 2026-11-02T11:00:00Z"},
		{"T4 shift", "0 0 * * *", "America/Santiago", Rules{Gap: GapShift}, "2026-09-05T12:00:00Z", "2026-09-06T04:00:00Z 2026-09-07T03:00:00Z"},
		{"T4 skip", "0 0 * * *", "America/Santiago", Rules{Gap: GapSkip}, "2026-09-05T12:00:00Z", "2026-09-07T03:00:00Z"},
		{"T6", "0 9 29 2 *", "UTC", Rules{}, "2024-02-29T09:00:00Z", "2028-02-29T09:00:00Z"},
		{"T6 far", "0 9 29 2 *", "UTC", Rules{}, "2096-02-29T09:00:00Z", "2104-02-29T09:00:00Z"},
		{"T6 on a Monday, next century", "0 9 * 2 MON#5", "UTC", Rules{}, "2072-03-01T00:00:00Z", "2112-02-29T09:00:00Z"},
		{"T7", "0 0 31 * *", "UTC", Rules{}, "2026-01-31T00:00:00Z",
			"2026-03-31T00:00:00Z 2026-05-31T00:00:00Z 2026-07-31T00:00:00Z 2026-08-31T00:00:00Z 2026-10-31T00:00:00Z 2026-12-31T00:00:00Z"},
		{"T9 alias", "0 9 * * *", "Europe/Kiev", Rules{}, "2026-06-01T00:00:00Z", "2026-06-01T06:00:00Z"},
		{"the last year", "0 0 1 1 *", "UTC", Rules{}, "2198-06-01T00:00:00Z", "2199-01-01T00:00:00Z none"},
		{"a year", "0 0 12 1 1 * 2030", "UTC", Rules{}, "2020-01-01T00:00:00Z", "2030-01-01T12:00:00Z none"},
		{"before 1970", "0 0 * * *", "UTC", Rules{}, "1815-06-18T12:00:00Z", "1970-01-01T00:00:00Z 1970-01-02T00:00:00Z"},
		{"after all", "0 0 * * *", "UTC", Rules{}, "9999-06-18T12:00:00Z", "none"},
		{"a fraction", "* * * * * *", "UTC", Rules{}, "2026-01-01T00:00:00.000000001Z", "2026-01-01T00:00:01Z"},
		// The clock goes from 1:59:59 to 3:00: what the night lacks is 2:00, which elapsed time puts at 3:00.
		{"every two hours, spring", "0 */2 * * *", "America/New_York", Rules{Gap: GapSkip}, "2026-03-08T04:00:00Z",
			"2026-03-08T05:00:00Z 2026-03-08T07:00:00Z 2026-03-08T08:00:00Z 2026-03-08T10:00:00Z"},
		{"every two hours, autumn", "0 1-23/2 * * *", "America/New_York", Rules{}, "2026-11-01T04:00:00Z",
			"2026-11-01T05:00:00Z 2026-11-01T06:00:00Z 2026-11-01T08:00:00Z"},
		// The tables of docs/schedules.md.
		{"hourly, spring", "0 * * * *", "America/New_York", Rules{}, "2026-03-08T05:59:00Z", "2026-03-08T06:00:00Z 2026-03-08T07:00:00Z 2026-03-08T08:00:00Z"},
		{"hourly, autumn", "0 * * * *", "America/New_York", Rules{}, "2026-11-01T04:59:00Z", "2026-11-01T05:00:00Z 2026-11-01T06:00:00Z 2026-11-01T07:00:00Z"},
		{"even hours, autumn", "0 */2 * * *", "America/New_York", Rules{}, "2026-11-01T03:59:00Z", "2026-11-01T04:00:00Z 2026-11-01T07:00:00Z 2026-11-01T09:00:00Z"},
		{"half past even hours, spring", "30 */2 * * *", "America/New_York", Rules{}, "2026-03-08T05:00:00Z",
			"2026-03-08T05:30:00Z 2026-03-08T07:30:00Z 2026-03-08T08:30:00Z 2026-03-08T10:30:00Z"},
		{"half past even hours, autumn", "30 */2 * * *", "America/New_York", Rules{}, "2026-11-01T04:00:00Z", "2026-11-01T04:30:00Z 2026-11-01T07:30:00Z 2026-11-01T09:30:00Z"},
		{"odd hours, spring", "0 1-23/2 * * *", "America/New_York", Rules{}, "2026-03-08T05:00:00Z", "2026-03-08T06:00:00Z 2026-03-08T07:00:00Z 2026-03-08T09:00:00Z"},
		{"every six hours, spring", "0 */6 * * *", "America/New_York", Rules{}, "2026-03-08T04:00:00Z", "2026-03-08T05:00:00Z 2026-03-08T10:00:00Z"},
		{"every six hours, autumn", "0 */6 * * *", "America/New_York", Rules{}, "2026-11-01T03:00:00Z", "2026-11-01T04:00:00Z 2026-11-01T11:00:00Z"},
		{"hourly where half an hour comes twice", "0 * * * *", "Australia/Lord_Howe", Rules{}, "2026-04-04T13:30:00Z",
			"2026-04-04T14:00:00Z 2026-04-04T15:30:00Z 2026-04-04T16:30:00Z"},
		{"a step of minutes in a fixed hour", "*/15 2 * * *", "America/New_York", Rules{}, "2026-03-08T00:00:00Z", "2026-03-08T07:00:00Z 2026-03-09T06:00:00Z"},
		{"the day that Apia left out", "0 9 30 * *", "Pacific/Apia", Rules{}, "2011-12-01T00:00:00Z", "2011-12-30T10:00:00Z 2012-01-29T19:00:00Z"},
		{"either day field", "0 0 13 * FRI", "UTC", Rules{}, "2026-02-01T00:00:00Z", "2026-02-06T00:00:00Z 2026-02-13T00:00:00Z 2026-02-20T00:00:00Z 2026-02-27T00:00:00Z 2026-03-06T00:00:00Z 2026-03-13T00:00:00Z"},
		{"a step restricts", "0 0 */2 * MON", "UTC", Rules{}, "2026-02-01T00:00:00Z", "2026-02-02T00:00:00Z 2026-02-03T00:00:00Z 2026-02-05T00:00:00Z 2026-02-07T00:00:00Z 2026-02-09T00:00:00Z"},
		{"hourly where half an hour is left out", "0 * * * *", "Australia/Lord_Howe", Rules{}, "2026-10-03T14:00:00Z",
			"2026-10-03T14:30:00Z 2026-10-03T15:30:00Z 2026-10-03T16:00:00Z 2026-10-03T17:00:00Z"},
		{"hourly on weekdays, where a Friday is left out", "0 */12 * * MON-FRI", "Pacific/Apia", Rules{}, "2011-12-29T12:00:00Z",
			"2011-12-29T22:00:00Z 2012-01-01T10:00:00Z"},
	} {
		s := mustCompile(t, Spec{Lines: []string{c.line}, Zone: c.zone, Rules: c.rules})
		want := strings.Fields(c.want)
		if got := nexts(s, instant(t, c.after), len(want)); !slices.Equal(got, want) {
			t.Errorf("%s: %q in %s after %s:\n got %v\nwant %v", c.id, c.line, c.zone, c.after, got, want)
		}
	}
}

// TestRefused are the cases that are refused: T5, and of T9 the zones in front of patterns and the unknown zone.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ id, line, zone string }{
		{"T5", "0 0 31 2 *", "UTC"},
		{"T9 a zone with nothing after it", "TZ=UTC", "UTC"},
		{"T9 a zone before an interval", "TZ=UTC @every 5m", "UTC"},
		{"T9 unknown zone", "0 9 * * *", "Europe/Atlantis"},
		{"T9 no zone", "0 9 * * *", ""},
	} {
		if s, err := Compile(Spec{Lines: []string{c.line}, Zone: c.zone}); err == nil || s != nil {
			t.Errorf("%s: accepted", c.id)
		}
	}
}

// TestElapsedTime: a pattern of minutes fires every 15 elapsed minutes through every jump that is a multiple of them.
func TestElapsedTime(t *testing.T) {
	for _, zone := range []string{"America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "Africa/Casablanca", "Antarctica/Troll", "Pacific/Apia"} {
		s := mustCompile(t, Spec{Lines: []string{"*/15 * * * *"}, Zone: zone, Rules: Rules{Gap: GapSkip}})
		for _, from := range []string{"2011-12-28T00:00:00Z", "2026-01-01T00:00:00Z"} {
			at := instant(t, from)
			for end := at.AddDate(1, 0, 0); at.Before(end); {
				o, _ := s.Next(at)
				if o.At.Sub(at) != 15*time.Minute {
					t.Fatalf("%s: %v after %v", zone, o.At, at)
				}
				at = o.At
			}
		}
	}
}

// TestSkippedIsShown (case T4): what a gap takes is an event, not an absence.
func TestSkippedIsShown(t *testing.T) {
	s := mustCompile(t, Spec{Lines: []string{"0 0 * * *", "*/20 0 * * *"}, Zone: "America/Santiago", Rules: Rules{Gap: GapSkip}})
	var got []string
	for e := range s.Walk(instant(t, "2026-09-05T12:00:00Z")) {
		if got = append(got, describe(e)); len(got) == 2 {
			break
		}
	}
	want := []string{
		"2026-09-06T04:00:00Z  2026-09-06 01:00:00 -03:00  in gap: 2026-09-06 00:00:00 to 2026-09-06 00:40:00, 3 times",
		"2026-09-07T03:00:00Z  2026-09-07 00:00:00 -03:00",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNamedTimesOfOneInstantAreOneOccurrence, and it is as named if any of them is.
func TestNamedTimesOfOneInstantAreOneOccurrence(t *testing.T) {
	s := mustCompile(t, Spec{Lines: []string{"10,20 2 * * *", "0 2 * * *", "0 3 * * *", "0 3 * * SUN"}, Zone: "Europe/Berlin"})
	o, _ := s.Next(instant(t, "2026-03-29T00:00:00Z"))
	if o.At.Format(time.RFC3339) != "2026-03-29T01:00:00Z" || o.Rule != AsNamed || o.Named != o.Local {
		t.Errorf("%+v", o)
	}
	s = mustCompile(t, Spec{Lines: []string{"10,20 2 * * *", "5 2 * * *"}, Zone: "Europe/Berlin"})
	if got := nexts(s, instant(t, "2026-03-29T00:00:00Z"), 2); !slices.Equal(got, []string{"2026-03-29T01:00:00Z", "2026-03-30T00:05:00Z"}) {
		t.Error(got)
	}
}

func TestStartAndEnd(t *testing.T) {
	start, end := instant(t, "2026-05-01T00:00:00Z"), instant(t, "2026-05-03T00:00:00Z")
	s := mustCompile(t, Spec{Lines: []string{"0 0 * * *"}, Zone: "UTC", Start: start, End: end})
	want := []string{"2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z", "2026-05-03T00:00:00Z", "none"}
	if got := nexts(s, time.Time{}, 4); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	s = mustCompile(t, Spec{Lines: []string{"0 0 * * *"}, Zone: "UTC", Start: start.Add(1), End: end.Add(-1)})
	if got := nexts(s, time.Time{}, 2); !slices.Equal(got, []string{"2026-05-02T00:00:00Z", "none"}) {
		t.Error(got)
	}
}

func TestExclusions(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
		want []string
	}{
		{"dates", Spec{Lines: []string{"0 9 * * *"}, Exclude: Exclusions{Dates: []string{"2026-12-24..2026-12-26", "2026-12-31..2027-01-01", "2026-12-23"}}},
			[]string{"2026-12-22T09:00:00Z", "2026-12-27T09:00:00Z", "2026-12-28T09:00:00Z", "2026-12-29T09:00:00Z", "2026-12-30T09:00:00Z", "2027-01-02T09:00:00Z"}},
		{"weekdays", Spec{Lines: []string{"0 9 * * *"}, Exclude: Exclusions{Weekdays: "SAT,SUN"}},
			[]string{"2026-12-22T09:00:00Z", "2026-12-23T09:00:00Z", "2026-12-24T09:00:00Z", "2026-12-25T09:00:00Z", "2026-12-28T09:00:00Z"}},
		{"lines", Spec{Lines: []string{"*/30 * * * *"}, Exclude: Exclusions{Lines: []string{"* 0-8,17-23 * * *", "* * * * SAT,SUN", "30 12 * * *", "* * 25 12 *"}}},
			[]string{"2026-12-22T09:00:00Z", "2026-12-22T09:30:00Z", "2026-12-22T10:00:00Z"}},
		{"whole minutes", Spec{Lines: []string{"*/20 * 9 * * *"}, Exclude: Exclusions{Lines: []string{"0-58 9 * * *"}}},
			[]string{"2026-12-22T09:59:00Z", "2026-12-22T09:59:20Z", "2026-12-22T09:59:40Z", "2026-12-23T09:59:00Z"}},
		{"seconds", Spec{Lines: []string{"*/20 0 9 * * *"}, Exclude: Exclusions{Lines: []string{"0 0 9 * * *"}}},
			[]string{"2026-12-22T09:00:20Z", "2026-12-22T09:00:40Z", "2026-12-23T09:00:20Z"}},
		{"decades", Spec{Lines: []string{"* * * * * *"}, Exclude: Exclusions{Dates: []string{"2026-01-01..2199-12-30"}}}, []string{"2199-12-31T00:00:00Z"}},
		// January and October 2026 have the same shape; what covers the one leaves the other.
		{"months of one shape", Spec{Lines: []string{"0 0 * 1,10 *"}, Exclude: Exclusions{Lines: []string{"* * * 1 *", "* * 31 * *"}}, Start: instant(t, "2026-01-01T00:00:00Z")},
			[]string{"2027-10-01T00:00:00Z"}},
		{"decades of covered days", Spec{Lines: []string{"* * * * * *"}, Exclude: Exclusions{Lines: []string{"* 0-11 * * *", "* 12-23 * * *", "* * * 2 *"}}}, []string{"none"}},
	} {
		c.spec.Zone = "UTC"
		s, err := Compile(c.spec)
		if err != nil {
			if !slices.Equal(c.want, []string{"none"}) || !strings.Contains(err.Error(), "all its times are excluded") {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if got := nexts(s, instant(t, "2026-12-22T00:00:00Z"), len(c.want)); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %v\nwant %v", c.name, got, c.want)
		}
	}
}

// TestExcludedIsShown, folded, and bounded.
func TestExcludedIsShown(t *testing.T) {
	s := mustCompile(t, Spec{Lines: []string{"0 */6 * * *"}, Zone: "UTC", Exclude: Exclusions{Weekdays: "SAT,SUN"}, End: instant(t, "2026-12-28T00:00:00Z")})
	var got []string
	for e := range s.Walk(instant(t, "2026-12-25T12:00:00Z")) {
		got = append(got, describe(e))
	}
	want := []string{
		"2026-12-25T18:00:00Z  2026-12-25 18:00:00 +00:00",
		"2026-12-26T00:00:00Z  2026-12-26 00:00:00 +00:00  excluded to 2026-12-27 18:00:00, 8 times",
		"2026-12-28T00:00:00Z  2026-12-28 00:00:00 +00:00",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	s = mustCompile(t, Spec{Lines: []string{"* * * * *"}, Zone: "UTC", Exclude: Exclusions{Dates: []string{"2026-01-01..2027-12-31"}}})
	for e := range s.Walk(instant(t, "2026-12-25T12:00:00Z")) {
		if e.Verdict != Excluded || e.Count != maxFold || !e.Open {
			t.Errorf("%+v", e)
		}
		break
	}
}

func TestCompileErrors(t *testing.T) {
	day := []string{"0 0 * * *"}
	for _, c := range []struct {
		spec Spec
		says string
	}{
		{Spec{Zone: "UTC"}, "0 lines"},
		{Spec{Lines: make([]string, MaxLines+1), Zone: "UTC"}, "1 to 16"},
		{Spec{Lines: []string{"0 0 * * *", "0 0 31 2 *"}, Zone: "UTC"}, "lines[1]: "},
		{Spec{Lines: day}, `zone "" is unknown`},
		{Spec{Lines: day, Zone: "Mars/Olympus"}, "unknown"},
		{Spec{Lines: day, Zone: "UTC", Rules: Rules{Gap: 7}}, "rules"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Dates: []string{"2026-02-29"}}}, "exclude.dates[0]"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Dates: []string{"2026-02-28..2026-02-27"}}}, "backwards"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Dates: []string{"1066-10-14"}}}, "years 1970 to 2199"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Dates: make([]string, MaxExcludedDates+1)}}, "at most 400"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Weekdays: "XYZ"}}, "exclude.weekdays"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Weekdays: "1 2"}}, "not one field"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Lines: []string{"* * * *"}}}, "exclude.lines[0]"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Lines: make([]string, MaxExcludedLines+1)}}, "at most 4"},
		{Spec{Lines: day, Zone: "UTC", Exclude: Exclusions{Weekdays: "0-6"}}, "all its times are excluded"},
		{Spec{Lines: day, Zone: "UTC", Start: instant(t, "2026-01-02T00:00:00Z"), End: instant(t, "2026-01-01T00:00:00Z")}, "before the start"},
		{Spec{Lines: day, Zone: "UTC", Start: instant(t, "2026-01-01T01:00:00Z"), End: instant(t, "2026-01-01T23:00:00Z")}, "between its start and its end"},
		{Spec{Lines: []string{"0 30 2 8 3 * 2026"}, Zone: "America/New_York", Rules: Rules{Gap: GapSkip}}, "leaves all its times out"},
		{Spec{Lines: []string{"30 2 * 3 SUN#2"}, Zone: "America/New_York", Rules: Rules{Gap: GapSkip}, Start: instant(t, "2010-01-01T00:00:00Z")}, "before its start"},
	} {
		if s, err := Compile(c.spec); err == nil || s != nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v; want …%s…", c.spec, err, c.says)
		} else if at := (*FieldError)(nil); !errors.As(err, &at) {
			t.Errorf("%+v: %v names no field", c.spec, err)
		}
	}
}

// Canonical forms of a schedule are the schedule again.
func TestCanonicalLines(t *testing.T) {
	s := mustCompile(t, Spec{Zone: "UTC", Lines: []string{"@daily", "0,15,30,45 9-17 ? * mon-fri"}, Exclude: Exclusions{
		Lines: []string{"0-59 0-7 * * *", "0 0 12 * * *", "*/10 0 12 * * *", "0 0 12 * * * 2027"},
	}})
	lines, excluded := s.Lines(), s.ExcludedLines()
	if want := []string{"0 0 * * *", "*/15 9-17 * * 1-5"}; !slices.Equal(lines, want) {
		t.Errorf("lines %q, want %q", lines, want)
	}
	if want := []string{"* 0-7 * * *", "0 0 12 * * *", "*/10 0 12 * * *", "0 0 12 * * * 2027"}; !slices.Equal(excluded, want) {
		t.Errorf("excluded %q, want %q", excluded, want)
	}
	again := mustCompile(t, Spec{Zone: "UTC", Lines: lines, Exclude: Exclusions{Lines: excluded}})
	if !slices.Equal(s.lines, again.lines) || !slices.Equal(s.exclude.lines, again.exclude.lines) {
		t.Errorf("%v is not %v", again, s)
	}
	if got := mustCompile(t, Spec{Zone: "UTC", Lines: lines}).ExcludedLines(); got != nil {
		t.Errorf("without exclusions: %q", got)
	}
}

func TestPerDay(t *testing.T) {
	from := instant(t, "2026-01-01T00:00:00Z")
	for _, c := range []struct {
		spec Spec
		want Rate
	}{
		{Spec{Lines: []string{"0 0 * * *"}}, Rate{1, 365}},
		// Case T8: meant as daily.
		{Spec{Lines: []string{"* 0 * * *"}}, Rate{60, 60 * 365}},
		{Spec{Lines: []string{"* 0 0 * * *"}}, Rate{60, 60 * 365}},
		{Spec{Lines: []string{"* * * * * *"}}, Rate{86400, 86400 * 365}},
		{Spec{Lines: []string{"0 0 29 2 *"}}, Rate{0, 0}},
		{Spec{Lines: []string{"0 0 1 * *", "0 0 1 * *", "0 12 * * *"}}, Rate{2, 377}},
		{Spec{Lines: []string{"0 * * * *"}, Exclude: Exclusions{Dates: []string{"2026-01-01..2026-06-30"}}}, Rate{24, 184 * 24}},
		{Spec{Lines: []string{"*/30 * * * *"}, Exclude: Exclusions{Lines: []string{"* 8-23 * * *"}}}, Rate{16, 16 * 365}},
	} {
		c.spec.Zone = "UTC"
		if most := mustCompile(t, c.spec).MostPerDay(); most < c.want.BusiestDay {
			t.Errorf("%v: at most %d a day, but %v", c.spec, most, c.want)
		}
		if got := mustCompile(t, c.spec).PerDay(from); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.spec, got, c.want)
		}
	}
}

// TestSpread pins the hash: another one would move every spread job.
func TestSpread(t *testing.T) {
	for _, c := range []struct {
		id     string
		window time.Duration
		want   time.Duration
	}{
		{"hello", 0, 0},
		{"hello", time.Microsecond, 0},
		{"hello", -time.Hour, 0},
		{"hello", time.Minute, 15_441 * time.Millisecond},
		{"hello2", time.Minute, 23_443 * time.Millisecond},
		{"hello", 24 * time.Hour, 22_236_318 * time.Millisecond},
		{"", time.Hour, 1_387_367 * time.Millisecond},
	} {
		if got := Spread(c.id, c.window); got != c.want {
			t.Errorf("Spread(%q, %v) = %v, want %v", c.id, c.window, got, c.want)
		}
	}
	var buckets [10]int
	for i := range 10_000 {
		got := Spread(fmt.Sprint("job-", i), 10*time.Second)
		if got < 0 || got >= 10*time.Second || got%time.Millisecond != 0 {
			t.Fatal(got)
		}
		buckets[got/time.Second]++
	}
	if slices.Min(buckets[:]) < 900 || slices.Max(buckets[:]) > 1100 {
		t.Errorf("uneven: %v", buckets)
	}
}

// All is Next again and again, also where lines are far ahead.
func TestAllIsNextAgainAndAgain(t *testing.T) {
	specs := worst(t)
	for _, c := range ordinary {
		specs[c.name] = c.spec
	}
	for name, spec := range specs {
		s := mustCompile(t, spec)
		start := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
		at, n := start, 0
		for o := range s.All(start) {
			want, ok := s.Next(at)
			if !ok || o != want {
				t.Fatalf("%s: after %v All has %+v, Next %+v", name, at, o, want)
			}
			if at, n = o.At, n+1; n == 500 {
				break
			}
		}
		if _, more := s.Next(at); more && n < 500 {
			t.Errorf("%s: All ended after %d", name, n)
		}
	}
}
