package cron

// line maps the civil times of one pattern to instants. It lives on the stack of one call, or in a cursor.
type line struct {
	search
	zone  *Zone
	rules Rules
}

// next is the first instant after a second at which the pattern fires.
//
// It goes through the zone's segments. Within one, clocks do not jump, so that the first named time at or after what
// they show is the answer, as long as the segment lasts. Segments in which nothing can lie are leapt over: what was
// found to be the first named time from lo on is also the first in all that follows, except where clocks go back behind
// lo. That happens at most once, because segments are long.
func (l *line) next(after int64) (hit, bool) {
	from := after + 1
	for i := l.zone.at(from); i < len(l.zone.segments); {
		seg := &l.zone.segments[i]
		from = max(from, seg.start)
		shifted, isShifted := l.swallowed(i, from)

		start, end := l.window(i)
		lo := max(Civil(from+seg.offset), start)
		c, ok := l.from(lo)
		if ok && c < end {
			h := hit{int64(c) - seg.offset, c, AsNamed}
			if i > 0 && c < l.zone.segments[i-1].civilEnd() {
				h.rule = Second
			}
			if isShifted && shifted.at < h.at {
				return shifted, true
			}
			return h, true
		}
		if isShifted {
			return shifted, true
		}

		if i++; i == len(l.zone.segments) {
			break
		}
		if start, _ := l.window(i); lo > start {
			// Clocks go back behind lo: look again.
			continue
		}
		if !ok {
			return hit{}, false
		}
		if i, ok = l.zone.reaching(c, i); !ok {
			break
		}
	}
	return hit{}, false
}

// window is which civil times of segment i the pattern may fire at. A moving pattern fires at all of them, a fixed one
// leaves out the pass of a repeated hour that its rule does not want.
func (l *line) window(i int) (start, end Civil) {
	seg := &l.zone.segments[i]
	start, end = seg.civilStart(), seg.civilEnd()
	if l.p.moving {
		return start, end
	}
	if i > 0 && l.rules.Repeat == RepeatFirst {
		start = max(start, l.zone.segments[i-1].civilEnd())
	}
	if i+1 < len(l.zone.segments) && l.rules.Repeat == RepeatLast {
		end = min(end, l.zone.segments[i+1].civilStart())
	}
	return start, end
}

// swallowed is the first hit at or after from, an instant of segment i, that is due to a named time in the gap before
// that segment.
func (l *line) swallowed(i int, from int64) (hit, bool) {
	lo, hi := l.zone.gap(i)
	if lo >= hi {
		return hit{}, false
	}
	seg := &l.zone.segments[i]
	if !l.p.moving {
		if from > seg.start || l.rules.Gap == GapSkip {
			return hit{}, false
		}
		c, ok := l.from(lo)
		return hit{seg.start, c, Shifted}, ok && c < hi
	}
	// Had the clock not jumped, it would have shown c at this instant, when it shows c + jump.
	jump := hi - lo
	for lo = max(lo, Civil(from+seg.offset)-jump); lo < hi; {
		c, ok := l.from(lo)
		if !ok || c >= hi {
			break
		}
		if l.p.onDay(c + jump) {
			return hit{int64(c+jump) - seg.offset, c, Shifted}, true
		}
		lo = nextDay(c+jump) - jump
	}
	return hit{}, false
}

func nextDay(c Civil) Civil {
	day, _ := c.split()
	return Civil(day+1) * daySeconds
}

// gap is what clocks leave out before segment i: [lo, hi), empty if they do not jump ahead there.
func (z *Zone) gap(i int) (lo, hi Civil) {
	if i == 0 {
		return 0, 0
	}
	return z.segments[i-1].civilEnd(), z.segments[i].civilStart()
}
