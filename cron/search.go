package cron

import "math/bits"

// search finds the civil times that a pattern names and nothing excludes. It lives on the stack of one call.
type search struct {
	p *Pattern
	// x is nil if there are no exclusions.
	x *exclusions
	// covered remembers sets of excluding lines, by their bits, that leave nothing of a day: no day is looked through
	// twice for the same reason, which bounds the search.
	covered [4]uint64
}

// from is the first civil time at or after c; ok is false if there is none up to the last year.
func (s *search) from(c Civil) (found Civil, ok bool) {
	day, second := c.split()
	i := monthOf(day)
	// Days of the first month that lie behind are left out.
	days := s.daysOf(i) &^ (1<<(day-int(months[i].first)+1) - 1)
	for {
		for ; days != 0; days &= days - 1 {
			d := bits.TrailingZeros32(days)
			at := int(months[i].first) + d - 1
			if at != day {
				second = 0
			}
			if t, ok := s.timeFrom(i, d, second); ok {
				return Civil(at)*daySeconds + Civil(t), true
			}
		}
		if i = s.p.monthFrom(i + 1); i < 0 {
			return 0, false
		}
		days = s.daysOf(i)
	}
}

func (s *search) daysOf(i int) uint32 {
	days := s.p.daysOf(i)
	if s.x != nil && days != 0 {
		days &^= s.x.daysOf(i)
	}
	return days
}

// timeFrom is the first time at or after second on the d-th of month i, a day that matches.
func (s *search) timeFrom(i, d, second int) (int, bool) {
	if s.x == nil || len(s.x.lines) == 0 {
		return s.p.timeFrom(second)
	}
	on := s.x.linesOn(i, d)
	if on == 0 {
		return s.p.timeFrom(second)
	}
	if s.covered[on/64]>>(on%64)&1 != 0 {
		return 0, false
	}
	for t := second; t < daySeconds; {
		var ok bool
		if t, ok = s.p.timeFrom(t); !ok {
			break
		}
		free := s.p.seconds &^ s.x.secondsAt(on, t/3600, t/60%60) >> (t % 60)
		if free != 0 {
			return t + bits.TrailingZeros64(free), true
		}
		t = (t/60 + 1) * 60
	}
	if second == 0 {
		s.covered[on/64] |= 1 << (on % 64)
	}
	return 0, false
}
