// Package cron says when a cron pattern fires: it parses patterns, finds the civil times they name, and maps those to
// instants in a time zone by explicit rules for the hours that a zone leaves out or has twice.
//
// A Pattern is text turned into bit sets; a Zone is the offsets of a named zone from data that is built into the program;
// a Schedule is patterns, exclusions, a zone and its rules. All three are immutable and safe for concurrent use. The same
// schedule asked about the same instant gives the same answer on every machine: nothing here reads a clock, the
// environment or a file, and there are no goroutines. The only state is a cache of zones already decoded.
//
// It is not a timer and knows nothing of jobs, catch-up or overlap. The leader's expander and previews call it; the fsm
// does not, because it must give one answer for ever and zone data changes (docs/schedules.md explains the model).
package cron

import "math/bits"

// Pattern is a parsed cron pattern. Patterns that name the same times by the same rules are equal by ==. The zero Pattern
// names no time.
type Pattern struct {
	// Bit n stands for second, minute, hour and month n, and for year FirstYear+n.
	seconds, minutes uint64
	hours            uint32
	months           uint16
	years            yearSet

	// moving says that the hour field has a wildcard or a step: see Rules.
	moving bool

	days dayRule
	// table holds the days that match by a month's shape, bit d for the d-th.
	table [shapes]uint32
}

type yearSet [4]uint64

func (s *yearSet) has(year int) bool {
	n := year - FirstYear
	return n >= 0 && year <= LastYear && s[n/64]>>(n%64)&1 != 0
}

// from is the first year of the set at or after year, or LastYear+1.
func (s *yearSet) from(year int) int {
	n := max(year-FirstYear, 0)
	for i := n / 64; i < len(s); i++ {
		word := s[i]
		if i == n/64 {
			word &= ^uint64(0) << (n % 64)
		}
		if word != 0 {
			return FirstYear + i*64 + bits.TrailingZeros64(word)
		}
	}
	return LastYear + 1
}

// tabulate computes what the search looks up.
func (p *Pattern) tabulate() {
	for length := 28; length <= 31; length++ {
		for weekday := range 7 {
			p.table[shapeOf(length, weekday)] = p.days.mask(length, weekday)
		}
	}
}

// daysOf are the days of month i that match, bit d for the d-th.
func (p *Pattern) daysOf(i int) uint32 {
	if p.months>>(i%12+1)&1 == 0 || !p.years.has(tableYear+i/12) {
		return 0
	}
	return p.table[months[i].shape]
}

// monthFrom is the first month at or after month i of which the pattern's month and year fields allow, or -1.
func (p *Pattern) monthFrom(i int) int {
	for {
		year := tableYear + i/12
		if next := p.years.from(year); next != year {
			year, i = next, (next-tableYear)*12
		}
		if year > LastYear {
			return -1
		}
		if rest := p.months >> (i%12 + 1); rest != 0 {
			return i + bits.TrailingZeros16(rest)
		}
		i = (year + 1 - tableYear) * 12
	}
}

// timeFrom is the first time of day at or after second that the pattern names.
func (p *Pattern) timeFrom(second int) (int, bool) {
	h, m, s := second/3600, second/60%60, second%60
	if p.hours>>h&1 != 0 {
		if p.minutes>>m&1 != 0 {
			if rest := p.seconds >> s; rest != 0 {
				return second + bits.TrailingZeros64(rest), true
			}
		}
		if rest := p.minutes >> (m + 1); rest != 0 {
			m += 1 + bits.TrailingZeros64(rest)
			return h*3600 + m*60 + bits.TrailingZeros64(p.seconds), true
		}
	}
	rest := p.hours >> (h + 1)
	if rest == 0 {
		return 0, false
	}
	h += 1 + bits.TrailingZeros32(rest)
	return h*3600 + bits.TrailingZeros64(p.minutes)*60 + bits.TrailingZeros64(p.seconds), true
}

// onDay says whether some time of the day of c is named.
func (p *Pattern) onDay(c Civil) bool {
	day, _ := c.split()
	i := monthOf(day)
	return p.daysOf(i)>>(day-int(months[i].first)+1)&1 != 0
}

// perDay is how many times a day that matches has.
func (p *Pattern) perDay() int {
	return bits.OnesCount32(p.hours) * bits.OnesCount64(p.minutes) * bits.OnesCount64(p.seconds)
}
