package cron

import "math/bits"

// dayRule is what the two day fields of a pattern say. It depends on the calendar alone.
type dayRule struct {
	// anyDay and anyWeekday say that the field is * or ?. If neither is, a day matches that satisfies either field.
	anyDay, anyWeekday bool

	// Of the day-of-month field: bit d for the d-th, bit n for n days before the last, bit d for dW; and LW.
	days, fromLast, nearest uint32
	lastWorkday             bool

	// Of the day-of-week field: bit d for each such weekday; nth has bit n for its n-th in the month, bit 0 for its last.
	weekdays uint8
	nth      [7]uint8
}

// mask has bit d set if the d-th of a month matches that has length days and begins with a firstWeekday.
func (r *dayRule) mask(length, firstWeekday int) uint32 {
	switch {
	case r.anyDay && r.anyWeekday:
		return allDays(length)
	case r.anyDay:
		return r.byWeekday(length, firstWeekday)
	case r.anyWeekday:
		return r.byDay(length, firstWeekday)
	default:
		return r.byDay(length, firstWeekday) | r.byWeekday(length, firstWeekday)
	}
}

func allDays(length int) uint32 { return 1<<(length+1) - 2 }

func (r *dayRule) byDay(length, firstWeekday int) uint32 {
	mask := r.days & allDays(length)
	for rest := r.fromLast; rest != 0; rest &= rest - 1 {
		if d := length - bits.TrailingZeros32(rest); d >= 1 {
			mask |= 1 << d
		}
	}
	// A day that the month lacks has no nearest workday: nothing is clamped.
	for rest := r.nearest & allDays(length); rest != 0; rest &= rest - 1 {
		mask |= 1 << nearestWorkday(bits.TrailingZeros32(rest), length, firstWeekday)
	}
	if r.lastWorkday {
		d := length
		for isWeekend(d, firstWeekday) {
			d--
		}
		mask |= 1 << d
	}
	return mask
}

func isWeekend(d, firstWeekday int) bool {
	weekday := (firstWeekday + d - 1) % 7
	return weekday == 0 || weekday == 6
}

// nearestWorkday is the Monday to Friday nearest to the d-th that lies in the same month.
func nearestWorkday(d, length, firstWeekday int) int {
	switch (firstWeekday + d - 1) % 7 {
	case 6:
		if d > 1 {
			return d - 1
		}
		return d + 2
	case 0:
		if d < length {
			return d + 1
		}
		return d - 2
	default:
		return d
	}
}

func (r *dayRule) byWeekday(length, firstWeekday int) uint32 {
	var mask uint32
	for weekday := range 7 {
		first := 1 + (weekday-firstWeekday+7)%7
		if r.weekdays>>weekday&1 != 0 {
			for d := first; d <= length; d += 7 {
				mask |= 1 << d
			}
		}
		for rest := r.nth[weekday]; rest != 0; rest &= rest - 1 {
			d := first + 7*(bits.TrailingZeros8(rest)-1)
			if rest&1 != 0 {
				d = first + (length-first)/7*7
			}
			if d <= length {
				mask |= 1 << d
			}
		}
	}
	return mask
}
