package cron

import "time"

const (
	// FirstYear and LastYear bound the local years in which patterns are looked for: a century more than the API lets
	// an instant lie ahead.
	FirstYear = 1970
	LastYear  = 2199

	daySeconds = 24 * 60 * 60
)

// Civil is what a clock with a calendar on a wall shows, as the seconds since it showed 1970-01-01 00:00:00. It is no
// instant: a zone maps it to none, one or two.
type Civil int64

// CivilOf is the reading with these parts. Parts out of range carry over, as in time.Date.
func CivilOf(year int, month time.Month, day, hour, minute, second int) Civil {
	return Civil(time.Date(year, month, day, hour, minute, second, 0, time.UTC).Unix())
}

// Date returns the calendar's part.
func (c Civil) Date() (year int, month time.Month, day int) { return c.wall().Date() }

// Clock returns the clock's part.
func (c Civil) Clock() (hour, minute, second int) { return c.wall().Clock() }

// Weekday returns the day of the week.
func (c Civil) Weekday() time.Weekday { return c.wall().Weekday() }

// String is the reading as 2006-01-02 15:04:05.
func (c Civil) String() string { return c.wall().Format(time.DateTime) }

// wall borrows UTC, which never jumps, to stand for a clock in no zone.
func (c Civil) wall() time.Time { return time.Unix(int64(c), 0).UTC() }

// day is the number of days since 1970-01-01, and second how far into that day.
func (c Civil) split() (day, second int) {
	day, second = int(c/daySeconds), int(c%daySeconds)
	if second < 0 {
		return day - 1, second + daySeconds
	}
	return day, second
}

// A month's shape is its length and the weekday of its first day. There are 28, and which days a pattern matches depends
// on nothing else.
const shapes = 4 * 7

func shapeOf(length, firstWeekday int) uint8 { return uint8((length-28)*7 + firstWeekday) }

type month struct {
	// first is the day number of its first day.
	first int32
	shape uint8
}

// tableYear is the year of months[0]: one before the first, because zones west of Greenwich are still in it at instant 0.
const tableYear = FirstYear - 1

// months are those of tableYear to LastYear and the one after, in order.
var months = tabulateMonths()

func tabulateMonths() []month {
	table := make([]month, 12*(LastYear-tableYear+1)+1)
	for i := range table {
		first := CivilOf(tableYear, time.Month(i+1), 1, 0, 0, 0)
		next := CivilOf(tableYear, time.Month(i+2), 1, 0, 0, 0)
		day, _ := first.split()
		table[i] = month{int32(day), shapeOf(int((next-first)/daySeconds), int(first.Weekday()))}
	}
	return table
}

// monthOf is the index of the month of a day. Days beyond the table belong to its first or last month.
func monthOf(day int) int {
	// 4800 months have 146097 days in the Gregorian calendar; the guess is off by one at most.
	i := min(max((day-int(months[0].first))*4800/146097, 0), len(months)-1)
	for i > 0 && int(months[i].first) > day {
		i--
	}
	for i+1 < len(months) && int(months[i+1].first) <= day {
		i++
	}
	return i
}
