package cron

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// jumpyZones are some in which much happens.
var jumpyZones = []string{
	"America/New_York", "America/Santiago", "America/Havana", "Asia/Beirut", "America/Asuncion", "America/Sao_Paulo", "Australia/Lord_Howe",
	"America/Caracas", "Asia/Pyongyang", "Pacific/Apia", "Pacific/Kwajalein", "Pacific/Kiritimati", "Europe/Dublin", "Europe/Moscow",
	"Asia/Tehran", "Asia/Gaza", "Asia/Kathmandu", "Asia/Singapore", "Asia/Dhaka", "Pacific/Chatham", "Pacific/Easter", "Africa/Casablanca",
	"Africa/Cairo", "America/St_Johns", "America/Nuuk", "Antarctica/Troll", "Antarctica/Casey", "Antarctica/Vostok", "UTC",
}

// drawInstant draws one near a jump of the zone's clock, as far as it has one from 1990 to 2030.
func drawInstant(t *rapid.T, z *Zone) time.Time {
	from := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	to := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	at := rapid.Int64Range(from, to).Draw(t, "at")
	if seg := z.segments[z.at(at)]; seg.end < to {
		at = seg.end + rapid.Int64Range(-30*3600, 26*3600).Draw(t, "from the jump")
	}
	return time.Unix(at, 0).UTC()
}

func drawRules(t *rapid.T) Rules {
	return Rules{
		Gap:    rapid.SampledFrom([]Gap{GapShift, GapSkip}).Draw(t, "gap"),
		Repeat: rapid.SampledFrom([]Repeat{RepeatFirst, RepeatLast, RepeatBoth}).Draw(t, "repeat"),
	}
}

// TestNextAgainstScan compares all instants of two days with those found minute by minute, or second by second.
func TestNextAgainstScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(jumpyZones).Draw(t, "zone")
		z, err := LoadZone(zone)
		if err != nil {
			t.Fatal(err)
		}
		rules := drawRules(t)
		after := drawInstant(t, z)
		slow := slowSchedule{rules: rules, location: slowZone(t, zone)}
		step := time.Minute
		var lines []string
		for range rapid.IntRange(1, 2).Draw(t, "lines") {
			text := drawPattern(t)
			if _, seconds, err := parse(text); err != nil {
				t.Skip()
			} else if seconds {
				step = time.Second
			}
			lines = append(lines, text)
			slow.patterns = append(slow.patterns, newSlow(text))
		}
		if rapid.Bool().Draw(t, "exclude") {
			slow.exclude = drawExclusions(t, after)
		}
		s, err := Compile(Spec{Lines: lines, Zone: zone, Rules: rules, Exclude: slow.exclude})
		if err != nil {
			t.Skip()
		}
		span := 48 * time.Hour
		if step == time.Second {
			span = 3 * time.Hour
		}
		until := after.Add(span)
		want := slow.between(after, until, step)
		var got []time.Time
		for o, ok := s.Next(after); ok && !o.At.After(until); o, ok = s.Next(o.At) {
			got = append(got, o.At)
			if len(got) > len(want)+5 {
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q in %s, %+v, without %+v, after %v\ngot     %v\na scan finds %v", lines, zone, rules, slow.exclude, after, got, want)
		}
	})
}

// drawExclusions draws some of each kind, the dates near an instant.
func drawExclusions(t *rapid.T, near time.Time) Exclusions {
	var x Exclusions
	if rapid.Bool().Draw(t, "exclude dates") {
		first := near.AddDate(0, 0, rapid.IntRange(-2, 3).Draw(t, "first day"))
		x.Dates = []string{first.Format(time.DateOnly) + ".." + first.AddDate(0, 0, rapid.IntRange(0, 2).Draw(t, "days")).Format(time.DateOnly)}
	}
	if rapid.Bool().Draw(t, "exclude weekdays") {
		x.Weekdays = drawWeekdays(t)
	}
	for range rapid.IntRange(0, 2).Draw(t, "excluding lines") {
		x.Lines = append(x.Lines, drawPattern(t))
	}
	return x
}

// TestNextOnlyGrows: next is later than what it was asked about, is what asking a second before it gives, and nothing
// lies in between.
func TestNextOnlyGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := ZoneNames()
		zone := rapid.SampledFrom(names).Draw(t, "zone")
		var lines []string
		for range rapid.IntRange(1, 3).Draw(t, "lines") {
			lines = append(lines, drawPattern(t))
		}
		spec := Spec{Lines: lines, Zone: zone, Rules: drawRules(t)}
		if rapid.Bool().Draw(t, "exclude") {
			spec.Exclude = drawExclusions(t, time.Date(2005, 6, 1, 0, 0, 0, 0, time.UTC))
		}
		s, err := Compile(spec)
		if err != nil {
			t.Skip()
		}
		after := drawInstant(t, s.zone)
		o, ok := s.Next(after)
		if !ok {
			return
		}
		if !o.At.After(after) {
			t.Fatalf("next of %v is %v", after, o.At)
		}
		if again, _ := s.Next(o.At.Add(-time.Nanosecond)); again != o {
			t.Fatalf("just before %+v next is %+v", o, again)
		}
		between := after.Add(time.Duration(rapid.Int64Range(0, int64(o.At.Sub(after))-1).Draw(t, "between")))
		if again, _ := s.Next(between); again != o {
			t.Fatalf("next of %v is %+v, next of %v is %+v", after, o, between, again)
		}
		if local, offset := s.zone.Local(o.At); local != o.Local || offset != o.OffsetSeconds || (o.Rule != Shifted) != (o.Named == o.Local) {
			t.Fatalf("%+v", o)
		}
	})
}

// TestWalkTellsTheSameStory: what Walk says that fires is what Next finds, and what is excluded is what fires without
// exclusions besides.
func TestWalkTellsTheSameStory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(jumpyZones).Draw(t, "zone")
		spec := Spec{Lines: []string{drawPattern(t), drawPattern(t)}, Zone: zone, Rules: drawRules(t)}
		all, err := Compile(spec)
		if err != nil {
			t.Skip()
		}
		after := drawInstant(t, all.zone)
		spec.Exclude = drawExclusions(t, after)
		s, err := Compile(spec)
		if err != nil {
			t.Skip()
		}
		at, without, n := after, after, 0
		for e := range s.Walk(after) {
			switch e.Verdict {
			case Fires:
				o, _ := s.Next(at)
				if o != e.Occurrence {
					t.Fatalf("Walk has %+v, Next %+v", e.Occurrence, o)
				}
				at = o.At
				if without, err = skipTo(all, without, e.At, 1); err != nil {
					t.Fatal(err)
				}
			case Excluded:
				if e.Open {
					return
				}
				if without, err = skipTo(all, without, e.LastAt, e.Count); err != nil {
					t.Fatal(err)
				}
			}
			if n++; n == 40 {
				return
			}
		}
	})
}

// skipTo goes over n occurrences, of which the last must be at to.
func skipTo(s *Schedule, after, to time.Time, n int) (time.Time, error) {
	for range n {
		o, ok := s.Next(after)
		if !ok || o.At.After(to) {
			return after, fmt.Errorf("after %v comes %v, beyond %v", after, o.At, to)
		}
		after = o.At
	}
	if !after.Equal(to) {
		return after, fmt.Errorf("%d occurrences end at %v, not at %v", n, after, to)
	}
	return after, nil
}
