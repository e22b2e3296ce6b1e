package cron

import "math/bits"

// search finds the civil times that a pattern names and nothing excludes. It lives on the stack of one call, or in a cursor.
type search struct {
	p *Pattern
	// x is nil if there are no exclusions.
	x *exclusions

	// found is the answer of the last look, which began at looked: it is that of any other that begins between the two.
	looked, found Civil
	// hasLooked says that there was one, none that it found nothing.
	hasLooked, none bool

	// What follows bounds the search where excluding lines leave nothing of many days: no day is looked through twice for
	// the same reason. covered has bit n if the set n of lines (by their bits) is known to leave nothing of a day,
	// coveredHours the same of an hour that they name, and skip what that means for months of a shape.
	covered, coveredHours uint16
	skip                  [shapes][2]skip
	// masks are the days of the excluding lines in the month looked at.
	masks [MaxExcludedLines]uint32
}

// skip is days of a month of some shape of which nothing is left if lines, and maybe more, are in force in that month.
type skip struct {
	lines uint8
	days  uint32
}

// from is the first civil time at or after c; ok is false if there is none up to the last year.
func (s *search) from(c Civil) (found Civil, ok bool) {
	if !s.hasLooked || c < s.looked || !s.none && c > s.found {
		found, ok = s.look(c)
		s.hasLooked, s.looked, s.found, s.none = true, c, found, !ok
	}
	return s.found, !s.none
}

// look is from without memory of the last answer.
func (s *search) look(c Civil) (found Civil, ok bool) {
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

// daysOf are the days of month i that match and are not known to be excluded whole.
func (s *search) daysOf(i int) uint32 {
	days := s.p.daysOf(i)
	if s.x == nil || days == 0 {
		return days
	}
	if days &^= s.x.daysOf(i); len(s.x.lines) == 0 {
		return days
	}
	lines := s.x.linesIn(i)
	if lines == 0 {
		s.masks = [MaxExcludedLines]uint32{}
		return days
	}
	known := &s.skip[months[i].shape]
	for _, k := range known {
		if k.lines&^lines == 0 {
			days &^= k.days
		}
	}
	if days == 0 {
		return 0
	}
	if known[0].lines != lines {
		// What is learnt from here on goes to the first; the one before it is kept.
		known[0], known[1] = skip{lines: lines}, known[0]
	}
	for n := range s.x.lines {
		s.masks[n] = s.x.lines[n].daysOf(i)
	}
	return days
}

// timeFrom is the first time at or after second on the d-th of month i, a day that matches.
func (s *search) timeFrom(i, d, second int) (int, bool) {
	if s.x == nil {
		return s.p.timeFrom(second)
	}
	var lines uint8
	for n := range s.x.lines {
		lines |= uint8(s.masks[n]>>d&1) << n
	}
	if lines == 0 {
		return s.p.timeFrom(second)
	}
	if s.covered>>lines&1 == 0 {
		if t, ok := s.freeFrom(lines, second); ok || second > 0 {
			return t, ok
		}
		s.covered |= 1 << lines
	}
	s.skip[months[i].shape][0].days |= 1 << d
	return 0, false
}

// freeFrom is the first time of day at or after second that the excluding lines leave.
func (s *search) freeFrom(lines uint8, second int) (int, bool) {
	for h := second / 3600; h < 24; h++ {
		if s.p.hours>>h&1 == 0 {
			continue
		}
		inHour := s.x.atHour(lines, h)
		if s.coveredHours>>inHour&1 != 0 {
			continue
		}
		from := max(second-h*3600, 0)
		if t, ok := s.freeInHour(inHour, from); ok {
			return h*3600 + t, true
		}
		if from == 0 {
			s.coveredHours |= 1 << inHour
		}
	}
	return 0, false
}

// freeInHour is the first second of an hour at or after second that lines, which all name the hour, leave.
func (s *search) freeInHour(lines uint8, second int) (int, bool) {
	for m := second / 60; m < 60; m++ {
		if s.p.minutes>>m&1 == 0 {
			continue
		}
		free := s.p.seconds &^ s.x.secondsAt(lines, m)
		if m == second/60 {
			free &^= 1<<(second%60) - 1
		}
		if free != 0 {
			return m*60 + bits.TrailingZeros64(free), true
		}
	}
	return 0, false
}
