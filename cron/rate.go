package cron

import (
	"math/bits"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Rate is how often a schedule fires.
type Rate struct {
	// BusiestDay is the most on one day, and Year what fires in 365 days.
	BusiestDay, Year int
}

// PerDay estimates the rate over the 365 days from an instant's day on, for previews and limits. It goes by the calendar:
// start, end and jumps of the clock do not count.
func (s *Schedule) PerDay(from time.Time) Rate {
	var r Rate
	local, _ := s.zone.Local(from)
	day, _ := local.split()
	// Days on which the same lines are active have the same count.
	known := map[[3]uint8]int{}
	for d := day; d < day+365; d++ {
		i := monthOf(d)
		dom := d - int(months[i].first) + 1
		var lines uint16
		var on uint8
		for n := range s.lines {
			if s.lines[n].daysOf(i)>>dom&1 != 0 {
				lines |= 1 << n
			}
		}
		if s.exclude != nil {
			if s.exclude.daysOf(i)>>dom&1 != 0 {
				continue
			}
			on = s.exclude.linesOn(i, dom)
		}
		key := [3]uint8{uint8(lines), uint8(lines >> 8), on}
		count, ok := known[key]
		if !ok {
			count = s.countDay(lines, on)
			known[key] = count
		}
		r.BusiestDay = max(r.BusiestDay, count)
		r.Year += count
	}
	return r
}

// MostPerDay is at least the BusiestDay of any year, and cheap: what the lines would fire if all of them did on one day, at
// different times, and nothing was excluded.
func (s *Schedule) MostPerDay() int {
	most := 0
	for i := range s.lines {
		most += s.lines[i].perDay()
	}
	return most
}

// countDay is how many seconds of a day some of the lines name and none of the excluding ones.
func (s *Schedule) countDay(lines uint16, on uint8) int {
	if on == 0 && lines&(lines-1) == 0 {
		if lines == 0 {
			return 0
		}
		return s.lines[bits.TrailingZeros16(lines)].perDay()
	}
	count := 0
	for h := range 24 {
		var inHour uint8
		if on != 0 {
			inHour = s.exclude.atHour(on, h)
		}
		for m := range 60 {
			var seconds uint64
			for rest := lines; rest != 0; rest &= rest - 1 {
				if p := &s.lines[bits.TrailingZeros16(rest)]; p.hours>>h&1 != 0 && p.minutes>>m&1 != 0 {
					seconds |= p.seconds
				}
			}
			if seconds != 0 && inHour != 0 {
				seconds &^= s.exclude.secondsAt(inHour, m)
			}
			count += bits.OnesCount64(seconds)
		}
	}
	return count
}

// Spread is how long after each of its nominal times a job starts, so that jobs of one schedule do not start at once: in
// [0, window), in whole milliseconds, the same for ever. It is xxHash64 with seed 0 of "spread", a zero byte and the id,
// as a fraction of 2^64, times the window. Golden vectors pin it.
func Spread(id string, window time.Duration) time.Duration {
	ms := window.Milliseconds()
	if ms <= 0 {
		return 0
	}
	var buf [256]byte
	hash := xxhash.Sum64(append(append(buf[:0], "spread\x00"...), id...))
	share, _ := bits.Mul64(hash, uint64(ms))
	return time.Duration(share) * time.Millisecond
}
