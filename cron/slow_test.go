package cron

import (
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What follows is cron said again, slowly: it walks over instants one step after the other, asks package time what clocks
// show, and compares that with the text of the pattern. It shares no code with what it checks.

// slowZones has zones of the embedded archive as package time sees them, each decoded once.
var slowZones = map[string]*time.Location{}

func slowZone(t fataler, name string) *time.Location {
	if slowZones[name] == nil {
		location, err := time.LoadLocationFromTZData(name, zoneBytes(t, name))
		if err != nil {
			t.Fatal(err)
		}
		slowZones[name] = location
	}
	return slowZones[name]
}

// fataler is a test, or one try of a property.
type fataler interface{ Fatal(args ...any) }

func zoneBytes(t fataler, name string) []byte {
	f, err := zoneFiles()[name].Open()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// slowPattern is the fields of a pattern, second to year.
type slowPattern []string

func newSlow(text string) slowPattern {
	text = strings.ToUpper(text)
	for name, fields := range map[string]string{"@HOURLY": "0 * * * *", "@DAILY": "0 0 * * *", "@WEEKLY": "0 0 * * 0"} {
		if text == name {
			text = fields
		}
	}
	w := strings.Fields(text)
	if len(w) == 5 {
		w = append([]string{"0"}, w...)
	}
	if len(w) == 6 {
		w = append(w, "*")
	}
	return w
}

func (p slowPattern) moving() bool {
	for item := range strings.SplitSeq(p[2], ",") {
		body, step, _ := strings.Cut(item, "/")
		if body == "*" || step != "" && step != "1" {
			return true
		}
	}
	hours := 0
	for h := range 24 {
		if slowField(p[2], h, 0, 23, 24) {
			hours++
		}
	}
	return hours == 24
}

// matches takes a wall clock's reading as a time in UTC.
func (p slowPattern) matches(c time.Time) bool {
	return slowField(p[0], c.Second(), 0, 59, 60) && slowField(p[1], c.Minute(), 0, 59, 60) && slowField(p[2], c.Hour(), 0, 23, 24) &&
		p.onDay(c)
}

func (p slowPattern) onDay(c time.Time) bool {
	if !slowField(p[4], int(c.Month()), 1, 12, 12) || !slowField(p[6], c.Year(), FirstYear, LastYear, 0) {
		return false
	}
	byDay, anyDay := slowDay(p[3], c)
	byWeekday, anyWeekday := slowWeekday(p[5], c)
	switch {
	case anyDay && anyWeekday:
		return true
	case anyDay:
		return byWeekday
	case anyWeekday:
		return byDay
	default:
		return byDay || byWeekday
	}
}

var slowNames = strings.Fields("SUN=0 MON=1 TUE=2 WED=3 THU=4 FRI=5 SAT=6 JAN=1 FEB=2 MAR=3 APR=4 MAY=5 JUN=6 JUL=7 AUG=8 SEP=9 OCT=10 NOV=11 DEC=12")

func slowNumber(text string) int {
	for _, pair := range slowNames {
		if name, number, _ := strings.Cut(pair, "="); name == text {
			text = number
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		panic("slow: " + text)
	}
	return n
}

// slowField says whether a list of numbers and ranges names v.
func slowField(list string, v, lowest, highest, cycle int) bool {
	for item := range strings.SplitSeq(list, ",") {
		body, stepText, hasStep := strings.Cut(item, "/")
		step, from, to := 1, lowest, highest
		if hasStep {
			step = slowNumber(stepText)
		}
		if body != "*" && body != "?" {
			first, last, isRange := strings.Cut(body, "-")
			from = slowNumber(first)
			switch {
			case isRange:
				to = slowNumber(last)
			case !hasStep:
				to = from
			}
			if to < from {
				to += cycle
			}
		}
		for n := from; n <= to; n += step {
			if n == v || n-cycle == v && cycle > 0 {
				return true
			}
		}
	}
	return false
}

func slowDay(list string, c time.Time) (matches, unrestricted bool) {
	last := time.Date(c.Year(), c.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
	workday := func(d int) bool {
		w := time.Date(c.Year(), c.Month(), d, 0, 0, 0, 0, time.UTC).Weekday()
		return w != time.Saturday && w != time.Sunday
	}
	for item := range strings.SplitSeq(list, ",") {
		number, isNearest := strings.CutSuffix(item, "W")
		switch {
		case item == "*" || item == "?" || item == "*/1":
			return true, true
		case item == "LW":
			d := last
			for !workday(d) {
				d--
			}
			matches = matches || c.Day() == d
		case isNearest:
			// Of all workdays of the month the nearest; Saturday and Sunday are never equally near to two.
			want, best := slowNumber(number), 0
			for d := 1; d <= last && want <= last; d++ {
				if workday(d) && (best == 0 || abs(d-want) < abs(best-want)) {
					best = d
				}
			}
			matches = matches || c.Day() == best
		case item == "L":
			matches = matches || c.Day() == last
		case strings.HasPrefix(item, "L-"):
			matches = matches || c.Day() == last-slowNumber(item[2:])
		default:
			matches = matches || slowField(item, c.Day(), 1, 31, 0)
		}
	}
	return matches, false
}

func slowWeekday(list string, c time.Time) (matches, unrestricted bool) {
	for item := range strings.SplitSeq(list, ",") {
		name, isLast := strings.CutSuffix(item, "L")
		day, nth, isNth := strings.Cut(item, "#")
		switch {
		case item == "*" || item == "?" || item == "*/1":
			return true, true
		case isNth:
			matches = matches || int(c.Weekday()) == slowNumber(day)%7 && (c.Day()-1)/7+1 == slowNumber(nth)
		case isLast:
			matches = matches || int(c.Weekday()) == slowNumber(name)%7 && c.AddDate(0, 0, 7).Month() != c.Month()
		case item == "7":
			matches = matches || c.Weekday() == time.Sunday
		default:
			matches = matches || slowField(item, int(c.Weekday()), 0, 6, 7)
		}
	}
	return matches, false
}

func abs(n int) int { return max(n, -n) }

// slowSchedule is one or more patterns in a zone.
type slowSchedule struct {
	patterns []slowPattern
	location *time.Location
	rules    Rules
	exclude  Exclusions
}

// matches says whether p names the time c and nothing excludes it.
func (s *slowSchedule) matches(p slowPattern, c time.Time) bool {
	if !p.matches(c) {
		return false
	}
	date := c.Format(time.DateOnly)
	for _, dates := range s.exclude.Dates {
		first, last, isRange := strings.Cut(dates, "..")
		if date == first || isRange && date > first && date <= last {
			return false
		}
	}
	if s.exclude.Weekdays != "" {
		if excluded, all := slowWeekday(strings.ToUpper(s.exclude.Weekdays), c); excluded || all {
			return false
		}
	}
	for _, line := range s.exclude.Lines {
		x := newSlow(line)
		if len(strings.Fields(line)) == 5 {
			x[0] = "*"
		}
		if x.matches(c) {
			return false
		}
	}
	return true
}

// wall is what clocks show at an instant, as a time in UTC.
func (s *slowSchedule) wall(at time.Time) time.Time {
	_, offset := at.In(s.location).Zone()
	return at.Add(time.Duration(offset) * time.Second)
}

// between lists the instants in (after, until], looked for at every step.
func (s *slowSchedule) between(after, until time.Time, step time.Duration) []time.Time {
	found := map[int64]bool{}
	for _, p := range s.patterns {
		// What a gap of up to a day moves may come a day after the gap.
		before := s.wall(after.Add(-26 * time.Hour).Truncate(step))
		for at := after.Add(-26 * time.Hour).Truncate(step).Add(step); !at.After(until); at = at.Add(step) {
			now := s.wall(at)
			for c := before.Add(step); c.Before(now); c = c.Add(step) {
				if moved, ok := s.moved(p, c, at, before, step); ok && s.matches(p, c) {
					found[moved.Unix()] = true
				}
			}
			before = now
			if s.matches(p, now) && s.wanted(p, at, now) {
				found[at.Unix()] = true
			}
		}
	}
	var out []time.Time
	for _, second := range slices.Sorted(maps.Keys(found)) {
		if at := time.Unix(second, 0).UTC(); at.After(after) && !at.After(until) {
			out = append(out, at)
		}
	}
	return out
}

// moved is where the time c fires that clocks leave out when they jump, at the instant at. One step before it they showed
// before.
func (s *slowSchedule) moved(p slowPattern, c, at, before time.Time, step time.Duration) (time.Time, bool) {
	if !p.moving() {
		return at, s.rules.Gap == GapShift
	}
	later := at.Add(c.Sub(before) - step)
	return later, p.onDay(s.wall(later))
}

// longestRepeat is beyond the longest jump back of any clock; TestZoneData checks that, and that all are whole minutes.
const longestRepeat = 8 * time.Hour

// wanted says whether the rule for repeats wants a fixed pattern to fire at the instant at, when clocks show now.
func (s *slowSchedule) wanted(p slowPattern, at, now time.Time) bool {
	if p.moving() || s.rules.Repeat == RepeatBoth {
		return true
	}
	for d := time.Minute; d <= longestRepeat; d += time.Minute {
		if s.rules.Repeat == RepeatFirst && s.wall(at.Add(-d)).Equal(now) || s.rules.Repeat == RepeatLast && s.wall(at.Add(d)).Equal(now) {
			return false
		}
	}
	return true
}
