package cron

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// Exclusions are civil times at which a schedule does not fire. They look at the time that a pattern names, also where a
// gap shifts it.
type Exclusions struct {
	// Dates are days like 2026-12-24 and ranges like 2026-12-24..2027-01-06, both ends included.
	Dates []string
	// Weekdays is a day-of-week field like SAT,SUN, or empty.
	Weekdays string
	// Lines are patterns. Without a field for seconds they stand for whole minutes.
	Lines []string
}

// wholeMinute has all seconds.
const wholeMinute = 1<<60 - 1

// dayRange is a range of days since 1970, both ends included.
type dayRange struct{ from, to int }

// exclusions are compiled: what excludes whole days, and patterns.
type exclusions struct {
	// ranges are in order and do not touch.
	ranges   []dayRange
	weekdays [shapes]uint32
	lines    []Pattern
	// inMonth has bit n if lines[n] names that month of the year; ofYears if it does not name all years.
	inMonth [12]uint8
	ofYears uint8
}

func compileExclusions(e Exclusions) (*exclusions, error) {
	if len(e.Dates) == 0 && e.Weekdays == "" && len(e.Lines) == 0 {
		return nil, nil
	}
	var x exclusions
	if len(e.Dates) > MaxExcludedDates {
		return nil, fieldError("exclude.dates", fmt.Errorf("%d of them; at most %d are allowed", len(e.Dates), MaxExcludedDates))
	}
	for i, text := range e.Dates {
		r, err := parseDates(text)
		if err != nil {
			return nil, elementError("exclude.dates", i, err)
		}
		x.ranges = append(x.ranges, r)
	}
	x.ranges = merge(x.ranges)
	if e.Weekdays != "" {
		if strings.ContainsAny(e.Weekdays, " \t") {
			return nil, fieldError("exclude.weekdays", fmt.Errorf("%.32q is not one field; allowed are weekdays like SAT,SUN or MON#1", e.Weekdays))
		}
		p, err := Parse("* * * * " + e.Weekdays)
		if err != nil {
			return nil, fieldError("exclude.weekdays", err)
		}
		x.weekdays = p.table
	}
	if len(e.Lines) > MaxExcludedLines {
		return nil, fieldError("exclude.lines", fmt.Errorf("%d lines; at most %d are allowed", len(e.Lines), MaxExcludedLines))
	}
	for i, text := range e.Lines {
		p, seconds, err := parse(text)
		if err != nil {
			return nil, elementError("exclude.lines", i, err)
		}
		if !seconds {
			p.seconds = wholeMinute
		}
		x.add(p)
	}
	return &x, nil
}

func (x *exclusions) add(p Pattern) {
	bit := uint8(1) << len(x.lines)
	x.lines = append(x.lines, p)
	for month := range x.inMonth {
		if p.months>>(month+1)&1 != 0 {
			x.inMonth[month] |= bit
		}
	}
	if p.years != everyYear {
		x.ofYears |= bit
	}
}

func parseDates(text string) (dayRange, error) {
	first, last, isRange := strings.Cut(text, "..")
	from, err := parseDate(first)
	if err != nil || !isRange {
		return dayRange{from, from}, err
	}
	to, err := parseDate(last)
	if err != nil {
		return dayRange{}, err
	}
	if to < from {
		return dayRange{}, fmt.Errorf("%q runs backwards", text)
	}
	return dayRange{from, to}, nil
}

func parseDate(text string) (int, error) {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil || t.Year() < FirstYear || t.Year() > LastYear {
		return 0, fmt.Errorf("%.32q is no date; allowed are dates like 2026-12-24 and ranges like 2026-12-24..2027-01-06, years %d to %d", text, FirstYear, LastYear)
	}
	day, _ := Civil(t.Unix()).split()
	return day, nil
}

func merge(ranges []dayRange) []dayRange {
	slices.SortFunc(ranges, func(a, b dayRange) int { return cmp.Compare(a.from, b.from) })
	var out []dayRange
	for _, r := range ranges {
		if n := len(out); n > 0 && r.from <= out[n-1].to+1 {
			out[n-1].to = max(out[n-1].to, r.to)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// daysOf are the days of month i that are excluded whole, bit d for the d-th.
func (x *exclusions) daysOf(i int) uint32 {
	mask := x.weekdays[months[i].shape]
	if len(x.ranges) == 0 {
		return mask
	}
	first := int(months[i].first)
	at, _ := slices.BinarySearchFunc(x.ranges, first, func(r dayRange, day int) int { return cmp.Compare(r.to, day) })
	for _, r := range x.ranges[at:] {
		from, to := r.from-first+1, min(r.to-first+1, 31)
		if from > 31 {
			break
		}
		mask |= allDays(to) &^ (1<<max(from, 1) - 1)
	}
	return mask
}

// linesIn are the excluding patterns whose month and year fields name month i, bit n for lines[n].
func (x *exclusions) linesIn(i int) uint8 {
	lines := x.inMonth[i%12]
	for rest := lines & x.ofYears; rest != 0; rest &= rest - 1 {
		if n := bits.TrailingZeros8(rest); !x.lines[n].years.has(tableYear + i/12) {
			lines &^= 1 << n
		}
	}
	return lines
}

// linesOn are the excluding patterns of which some time lies on the d-th of month i, bit n for lines[n].
func (x *exclusions) linesOn(i, d int) uint8 {
	var on uint8
	for n := range x.lines {
		if x.lines[n].daysOf(i)>>d&1 != 0 {
			on |= 1 << n
		}
	}
	return on
}

// atHour are those of the patterns in lines that name an hour.
func (x *exclusions) atHour(lines uint8, hour int) uint8 {
	for rest := lines; rest != 0; rest &= rest - 1 {
		if n := bits.TrailingZeros8(rest); x.lines[n].hours>>hour&1 == 0 {
			lines &^= 1 << n
		}
	}
	return lines
}

// secondsAt are the seconds of a minute that the patterns in lines exclude, all of which name the hour.
func (x *exclusions) secondsAt(lines uint8, minute int) uint64 {
	var mask uint64
	for ; lines != 0; lines &= lines - 1 {
		if p := &x.lines[bits.TrailingZeros8(lines)]; p.minutes>>minute&1 != 0 {
			mask |= p.seconds
		}
	}
	return mask
}
