package cron

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// maxFold bounds how many excluded occurrences one event counts, and so the time that an event takes.
const maxFold = 10_000

// Verdict is what becomes of the occurrences of an Event.
type Verdict uint8

const (
	// Fires: the one occurrence happens.
	Fires Verdict = iota
	// Excluded: the exclusions take them.
	Excluded
	// InGap: they have no instant, because the zone's clock leaves out the times that they name.
	InGap
)

func (v Verdict) String() string { return [...]string{"fires", "excluded", "in gap"}[v] }

// Event is an occurrence, or several in a row that do not fire for the same reason.
type Event struct {
	Verdict Verdict
	// Occurrence is the first. Of occurrences in a gap, At is the first instant after it.
	Occurrence
	// LastAt and LastNamed belong to the last, Count says how many there are. Open says that counting stopped.
	LastAt    time.Time
	LastNamed Civil
	Count     int
	Open      bool
}

// Walk yields what happens after an instant, in order: each occurrence, and what does not fire before and after it. It
// ends with the schedule; without an end of its own a schedule goes on to LastYear.
func (s *Schedule) Walk(after time.Time) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		at := max(after.Unix(), s.start-1)
		fires, named := s.cursor(s.exclude), s.cursor(nil)
		for {
			h, ok := fires.next(at)
			until := h.at
			if !ok {
				until = s.end
			}
			for _, e := range s.silent(fires, named, at, until, ok) {
				if !yield(e) {
					return
				}
			}
			if !ok {
				return
			}
			o := s.occurrence(h)
			if !yield(Event{Verdict: Fires, Occurrence: o, LastAt: o.At, LastNamed: o.Named, Count: 1}) {
				return
			}
			at = h.at
		}
	}
}

// silent is what does not fire in (after, until], by cursors with and without exclusions. firesAt says that something does
// at until.
func (s *Schedule) silent(fires, named *cursor, after, until int64, firesAt bool) []Event {
	var events []Event
	for i := s.zone.at(after) + 1; i < len(s.zone.segments) && s.zone.segments[i].start <= until; i++ {
		if e, ok := s.lost(fires, i); ok {
			events = append(events, e)
		}
	}
	if s.exclude == nil {
		return events
	}
	last := until
	if firesAt {
		last--
	}
	var e Event
	for h, ok := named.next(after); ok && h.at <= last; h, ok = named.next(h.at) {
		if e.Count == maxFold {
			e.Open = true
			break
		}
		if e.Count == 0 {
			e.Verdict, e.Occurrence = Excluded, s.occurrence(h)
		}
		e.Count++
		e.LastAt, e.LastNamed = time.Unix(h.at, 0).UTC(), h.named
	}
	if e.Count > 0 {
		events = append(events, e)
		slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At.Unix(), b.At.Unix()) })
	}
	return events
}

// lost are the named times in the gap before segment i that fire nowhere.
func (s *Schedule) lost(fires *cursor, i int) (Event, bool) {
	lo, hi := s.zone.gap(i)
	jump := hi - lo
	at := time.Unix(s.zone.segments[i].start, 0).UTC()
	e := Event{Verdict: InGap, Occurrence: Occurrence{At: at, Local: hi, OffsetSeconds: int(s.zone.segments[i].offset)}, LastAt: at}
	for c := lo; ; c++ {
		next, isShifted := hi, false
		for n := range fires.lines {
			l := &fires.lines[n]
			named, ok := l.from(c)
			if !ok || named > next || named >= hi {
				continue
			}
			if named < next {
				next, isShifted = named, false
			}
			isShifted = isShifted || l.p.moving && l.p.onDay(named+jump) || !l.p.moving && s.rules.Gap == GapShift
		}
		if next == hi {
			return e, e.Count > 0
		}
		if c = next; isShifted {
			continue
		}
		if e.Count == 0 {
			e.Named = c
		}
		e.Count++
		e.LastNamed = c
	}
}
