package cron

import (
	"math/bits"
	"strconv"
	"strings"
)

// String is the pattern in its canonical form: numbers in order, ranges and steps where they shorten it, and no field that
// says nothing. It parses to the same pattern.
func (p Pattern) String() string {
	parts := make([]string, 0, 7)
	years := p.years != everyYear
	if p.seconds != 1 || years {
		parts = append(parts, formatSet(values{bits: [4]uint64{p.seconds}}, &fields[0], true))
	}
	parts = append(parts,
		formatSet(values{bits: [4]uint64{p.minutes}}, &fields[1], true),
		p.formatHours(),
		p.days.formatDays(),
		formatSet(values{bits: [4]uint64{uint64(p.months >> 1)}}, &fields[4], true),
		p.days.formatWeekdays())
	if years {
		parts = append(parts, formatSet(values{bits: p.years}, &fields[6], true))
	}
	return strings.Join(parts, " ")
}

// formatExcluding is the canonical form of a pattern that excludes: there, no field for seconds stands for all of them.
func (p Pattern) formatExcluding() string {
	switch {
	case p.years != everyYear:
	case p.seconds == wholeMinute:
		p.seconds = 1
	case p.seconds == 1:
		return "0 " + p.String()
	}
	return p.String()
}

// formatHours keeps what the hours are and whether they move.
func (p *Pattern) formatHours() string {
	v := values{bits: [4]uint64{uint64(p.hours)}}
	text := formatSet(v, &fields[2], p.moving)
	if p.moving && !strings.ContainsAny(text, "*/") {
		// Hours from several steps that are no regular series: a step over the whole day says that they move.
		first := bits.TrailingZeros32(p.hours)
		v.bits[0] &^= 1 << first
		text = strconv.Itoa(first) + "/24"
		if v.bits[0] != 0 {
			text += "," + formatSet(v, &fields[2], false)
		}
	}
	return text
}

func (r *dayRule) formatDays() string {
	if r.anyDay {
		return "*"
	}
	var items []string
	if r.days != 0 {
		items = append(items, restricted(values{bits: [4]uint64{uint64(r.days >> 1)}}, dayField))
	}
	for rest := r.nearest; rest != 0; rest &= rest - 1 {
		items = append(items, strconv.Itoa(bits.TrailingZeros32(rest))+"W")
	}
	if r.lastWorkday {
		items = append(items, "LW")
	}
	for rest := r.fromLast; rest != 0; rest &= rest - 1 {
		if n := bits.TrailingZeros32(rest); n > 0 {
			items = append(items, "L-"+strconv.Itoa(n))
		} else {
			items = append(items, "L")
		}
	}
	return strings.Join(items, ",")
}

func (r *dayRule) formatWeekdays() string {
	if r.anyWeekday {
		return "*"
	}
	var items []string
	if r.weekdays != 0 {
		items = append(items, restricted(values{bits: [4]uint64{uint64(r.weekdays)}}, weekdayField))
	}
	for weekday, nth := range r.nth {
		for rest := nth &^ 1; rest != 0; rest &= rest - 1 {
			items = append(items, strconv.Itoa(weekday)+"#"+strconv.Itoa(bits.TrailingZeros8(rest)))
		}
		if nth&1 != 0 {
			items = append(items, strconv.Itoa(weekday)+"L")
		}
	}
	return strings.Join(items, ",")
}

// restricted never writes *: a day field that names all its values is still restricted.
func restricted(v values, f *field) string {
	if text := formatSet(v, f, true); text != "*" {
		return text
	}
	return strconv.Itoa(f.min) + "-" + strconv.Itoa(f.top())
}

// formatSet writes a set as *, as one series with a step if steps are allowed, or as a list of values and ranges.
func formatSet(v values, f *field, steps bool) string {
	var all []int
	for n := f.min; n <= f.top(); n++ {
		if i := n - f.min; v.bits[i/64]>>(i%64)&1 != 0 {
			all = append(all, n)
		}
	}
	if len(all) == f.top()-f.min+1 {
		return "*"
	}
	if text := formatSeries(all, f); steps && text != "" {
		return text
	}
	var items []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		if j-i < 2 {
			j = i
			items = append(items, strconv.Itoa(all[i]))
		} else {
			items = append(items, strconv.Itoa(all[i])+"-"+strconv.Itoa(all[j]))
		}
		i = j + 1
	}
	return strings.Join(items, ",")
}

// formatSeries writes equally distant values as a range with a step, or returns nothing.
func formatSeries(all []int, f *field) string {
	if len(all) < 2 || all[1]-all[0] == 1 {
		return ""
	}
	step := all[1] - all[0]
	for i := range all {
		if all[i] != all[0]+i*step {
			return ""
		}
	}
	last := all[len(all)-1]
	switch {
	case all[0] == f.min && last+step > f.top():
		return "*/" + strconv.Itoa(step)
	case len(all) > 2 || f == &fields[2]:
		return strconv.Itoa(all[0]) + "-" + strconv.Itoa(last) + "/" + strconv.Itoa(step)
	}
	return ""
}
