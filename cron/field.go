package cron

import (
	"fmt"
	"strconv"
	"strings"
)

// field is one of a pattern's columns.
type field struct {
	name     string
	min, max int
	// cycle is how many values there are until they begin again, for fields whose ranges may run over the end; else 0.
	cycle int
	// names stand for min, min+1 and so on.
	names []string
	// allowed says in words what a value may be.
	allowed string
}

// fields in their order in the text.
var fields = [7]field{
	{name: "second", max: 59, cycle: 60, allowed: "0 to 59"},
	{name: "minute", max: 59, cycle: 60, allowed: "0 to 59"},
	{name: "hour", max: 23, cycle: 24, allowed: "0 to 23"},
	{name: "day of month", min: 1, max: 31, allowed: "1 to 31, L, L-n, LW and nW"},
	{name: "month", min: 1, max: 12, cycle: 12, allowed: "1 to 12 and JAN to DEC",
		names: []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{name: "day of week", max: 7, cycle: 7, allowed: "0 to 7 (0 and 7 are Sunday), SUN to SAT, d#n and dL",
		names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
	{name: "year", min: FirstYear, max: LastYear, allowed: fmt.Sprintf("%d to %d", FirstYear, LastYear)},
}

var (
	dayField, weekdayField = &fields[3], &fields[5]

	everyYear = func() yearSet {
		years, _ := fields[6].parse(word{"*", 0}, nil)
		return yearSet(years.bits)
	}()
)

// values is what a field names: bit n for min+n.
type values struct {
	bits [4]uint64
	// all says that a part of the list is * or ?, which makes the field unrestricted. steps says that one has a step.
	all, steps bool
}

func (v *values) add(n int) { v.bits[n/64] |= 1 << (n % 64) }

// wrong is an error at a part of the field.
func (f *field) wrong(at int, format string, args ...any) error {
	return &SyntaxError{Column: at + 1, Field: f.name, Reason: fmt.Sprintf(format, args...)}
}

// parse reads a list. What special takes is left to it.
func (f *field) parse(w word, special func(item word) (bool, error)) (values, error) {
	var v values
	at, rest, more := w.at, w.text, true
	for n := 1; more; n++ {
		if n > MaxItems {
			return v, f.wrong(at, "more than %d items in a list", MaxItems)
		}
		var text string
		text, rest, more = strings.Cut(rest, ",")
		item := word{text, at}
		at += len(text) + 1
		if text == "" {
			return v, f.wrong(item.at, "an item of the list is empty")
		}
		if special != nil {
			if taken, err := special(item); err != nil {
				return v, err
			} else if taken {
				continue
			}
		}
		if err := f.parseItem(item, &v); err != nil {
			return v, err
		}
	}
	return v, nil
}

// parseItem reads one of: *, ?, a, a-b, and these with a step.
func (f *field) parseItem(item word, v *values) error {
	body, stepText, hasStep := strings.Cut(item.text, "/")
	step := 1
	if hasStep {
		var err error
		if step, err = f.step(word{stepText, item.at + len(body) + 1}); err != nil {
			return err
		}
	}
	from, to := f.min, f.top()
	switch {
	case body == "?" && f != dayField && f != weekdayField:
		return f.wrong(item.at, "? is for day of month and day of week; write *")
	case body == "?" && hasStep:
		return f.wrong(item.at, "? takes no step")
	case body == "*" || body == "?":
		v.all = v.all || step == 1
	default:
		var err error
		if from, to, err = f.bounds(word{body, item.at}, hasStep); err != nil {
			return err
		}
	}
	v.steps = v.steps || step > 1
	for n := from; n <= to; n += step {
		if f.cycle > 0 {
			v.add((n - f.min) % f.cycle)
		} else {
			v.add(n - f.min)
		}
	}
	return nil
}

// top is the last value that * stands for.
func (f *field) top() int {
	if f == weekdayField {
		return 6
	}
	return f.max
}

// step reads what stands behind the slash. A step longer than the field is a mistake: it would not carry into the next
// hour or month.
func (f *field) step(w word) (int, error) {
	most := f.top() - f.min + 1
	n, err := strconv.Atoi(w.text)
	if err != nil || w.text[0] == '+' || n < 1 || n > most {
		return 0, f.wrong(w.at, "%.40q is no step; allowed are 1 to %d, and a step starts anew with each cycle of the field", w.text, most)
	}
	return n, nil
}

// bounds reads a or a-b. A range that runs over the end of its cycle comes back with to beyond max.
func (f *field) bounds(w word, hasStep bool) (from, to int, err error) {
	first, last, isRange := strings.Cut(w.text, "-")
	if from, err = f.value(word{first, w.at}); err != nil {
		return 0, 0, err
	}
	if !isRange {
		if !hasStep {
			return from, from, nil
		}
		if f == weekdayField {
			from %= 7
		}
		return from, f.top(), nil
	}
	if to, err = f.value(word{last, w.at + len(first) + 1}); err != nil {
		return 0, 0, err
	}
	if f == weekdayField && from == 7 {
		from, to = 0, to%7
	}
	if from <= to {
		return from, to, nil
	}
	if f.cycle == 0 {
		return 0, 0, f.wrong(w.at, "the range %.40s runs backwards; write %s-%d,%d-%s", w.text, first, f.max, f.min, last)
	}
	return from, to + f.cycle, nil
}

// value reads a number or a name.
func (f *field) value(w word) (int, error) {
	for i, name := range f.names {
		if w.text == name {
			return f.min + i, nil
		}
	}
	n, err := strconv.Atoi(w.text)
	// Atoi takes signs; a pattern has none.
	if err != nil || w.text[0] == '+' || w.text[0] == '-' || n < f.min || n > f.max {
		return 0, f.wrong(w.at, "%.40q is not allowed; allowed are %s", w.text, f.allowed)
	}
	return n, nil
}

// specialDay takes L, L-n, LW and nW.
func (r *dayRule) specialDay(item word) (bool, error) {
	f := dayField
	switch text := item.text; {
	case text == "L":
		r.fromLast |= 1
	case text == "LW":
		r.lastWorkday = true
	case strings.HasPrefix(text, "L-"):
		n, err := strconv.Atoi(text[2:])
		if err != nil || text[2] == '+' || n < 1 || n > 30 {
			return true, f.wrong(item.at, "%.40q is not allowed; L-n is n days before the last, with n from 1 to 30", text)
		}
		r.fromLast |= 1 << n
	case strings.HasSuffix(text, "W"):
		d, err := strconv.Atoi(text[:len(text)-1])
		if err != nil || text[0] == '+' || d < 1 || d > 31 {
			return true, f.wrong(item.at, "%.40q is not allowed; nW is the workday nearest to day n, with n from 1 to 31", text)
		}
		r.nearest |= 1 << d
	default:
		return false, nil
	}
	return true, nil
}

// specialWeekday takes d#n and dL.
func (r *dayRule) specialWeekday(item word) (bool, error) {
	f := weekdayField
	if item.text == "L" {
		return true, f.wrong(item.at, `"L" needs a weekday here, as in 5L or FRIL; the last day of the week is SAT`)
	}
	name, nth, isNth := strings.Cut(item.text, "#")
	name, isLast := strings.CutSuffix(name, "L")
	if !isNth && !isLast {
		return false, nil
	}
	weekday, err := f.value(word{name, item.at})
	if err != nil {
		return true, err
	}
	n := 0
	if isNth {
		n, err = strconv.Atoi(nth)
		if err != nil || nth[0] == '+' || isLast || n < 1 || n > 5 {
			return true, f.wrong(item.at, "%.40q is not allowed; d#n is the n-th such weekday of the month, with n from 1 to 5", item.text)
		}
	}
	r.nth[weekday%7] |= 1 << n
	return true, nil
}
