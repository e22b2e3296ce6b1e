package cron

import (
	"errors"
	"fmt"
	"iter"
	"time"
)

// Bounds on a schedule. With them an answer takes at most about a millisecond.
const (
	MaxLines         = 16
	MaxExcludedLines = 4
	MaxExcludedDates = 400
)

// endOfYears is an instant after the last local year of every zone.
var endOfYears = int64(CivilOf(LastYear+1, 1, 2, 0, 0, 0))

// Gap says what becomes of a civil time that the zone's clock leaves out.
type Gap uint8

const (
	// GapShift fires at the first instant after the gap.
	GapShift Gap = iota
	// GapSkip does not fire.
	GapSkip
)

// Repeat says what becomes of a civil time that the zone's clock shows twice.
type Repeat uint8

const (
	// RepeatFirst fires the first time.
	RepeatFirst Repeat = iota
	// RepeatLast fires the second time.
	RepeatLast
	// RepeatBoth fires both times.
	RepeatBoth
)

// Rules are how a schedule's fixed patterns meet the jumps of the zone's clock. A pattern is fixed if its hour field has
// neither wildcard nor step. Moving patterns need no rules, they follow elapsed time: each instant at which the clock
// shows a named time fires, in both passes of a repeated hour; and a named time in a gap fires when it would have come
// had the clock not jumped, unless that lies on a day that the pattern does not name.
type Rules struct {
	Gap    Gap
	Repeat Repeat
}

// Spec describes a schedule.
type Spec struct {
	// Lines are patterns: the schedule fires when any of them does, once at one instant.
	Lines []string
	// Zone is a name that LoadZone takes.
	Zone    string
	Rules   Rules
	Exclude Exclusions
	// Start and End bound the instants, both included. Zero: no bound.
	Start, End time.Time
}

// Schedule is a compiled Spec.
type Schedule struct {
	lines      []Pattern
	zone       *Zone
	rules      Rules
	exclude    *exclusions
	start, end int64
}

// FieldError says which field of a Spec is at fault, and why.
type FieldError struct {
	// Field is one of lines, lines[n], zone, rules, end, exclude.dates, exclude.dates[n], exclude.weekdays, exclude.lines
	// and exclude.lines[n]. Of a schedule that never fires it is lines.
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

func fieldError(field string, err error) error { return &FieldError{field, err} }

func elementError(field string, i int, err error) error {
	return &FieldError{fmt.Sprintf("%s[%d]", field, i), err}
}

// Compile checks a Spec. Its errors are *FieldError. A schedule that never fires is an error.
func Compile(spec Spec) (*Schedule, error) {
	if len(spec.Lines) == 0 || len(spec.Lines) > MaxLines {
		return nil, fieldError("lines", fmt.Errorf("%d lines; allowed are 1 to %d", len(spec.Lines), MaxLines))
	}
	s := &Schedule{rules: spec.Rules, end: endOfYears}
	for i, text := range spec.Lines {
		p, err := Parse(text)
		if err != nil {
			return nil, elementError("lines", i, err)
		}
		s.lines = append(s.lines, p)
	}
	var err error
	if s.zone, err = LoadZone(spec.Zone); err != nil {
		return nil, fieldError("zone", err)
	}
	if spec.Rules.Gap > GapSkip || spec.Rules.Repeat > RepeatBoth {
		return nil, fieldError("rules", errors.New("unknown gap or repeat"))
	}
	if s.exclude, err = compileExclusions(spec.Exclude); err != nil {
		return nil, err
	}
	if !spec.Start.IsZero() {
		if s.start = spec.Start.Unix(); spec.Start.Nanosecond() > 0 {
			s.start++
		}
	}
	if !spec.End.IsZero() {
		s.end = min(spec.End.Unix(), endOfYears)
	}
	// Nothing fires before 1970.
	s.start = max(s.start, 0)
	if s.end < s.start {
		return nil, fieldError("end", errors.New("it lies before the start"))
	}
	if err := s.fires(); err != nil {
		return nil, fieldError("lines", err)
	}
	return s, nil
}

// fires is why the schedule never fires, or nil.
func (s *Schedule) fires() error {
	if _, ok := s.next(s.start-1, s.exclude); ok {
		return nil
	}
	if _, ok := s.next(s.start-1, nil); ok {
		return errors.New("it never fires: all its times are excluded")
	}
	unbounded := *s
	unbounded.end = endOfYears
	if h, ok := unbounded.next(s.start-1, nil); ok {
		return fmt.Errorf("it never fires between its start and its end: the first time after its start is %s",
			time.Unix(h.at, 0).UTC().Format(time.RFC3339))
	}
	unbounded.start = 0
	if _, ok := unbounded.next(-1, nil); ok {
		return errors.New("it never fires: all its times lie before its start")
	}
	return fmt.Errorf("it never fires: %s leaves all its times out and the rule for gaps is skip", s.zone.name)
}

// Zone is the schedule's zone.
func (s *Schedule) Zone() *Zone { return s.zone }

// Lines are the patterns in their canonical form.
func (s *Schedule) Lines() []string {
	texts := make([]string, len(s.lines))
	for i := range s.lines {
		texts[i] = s.lines[i].String()
	}
	return texts
}

// ExcludedLines are the excluding patterns in their canonical form; nil if there are none.
func (s *Schedule) ExcludedLines() []string {
	if s.exclude == nil {
		return nil
	}
	var texts []string
	for _, p := range s.exclude.lines {
		texts = append(texts, p.formatExcluding())
	}
	return texts
}

// End is an instant after which nothing fires: the Spec's, or one after LastYear.
func (s *Schedule) End() time.Time { return time.Unix(s.end, 0).UTC() }

// Rule says what the rules did to an occurrence.
type Rule uint8

const (
	// AsNamed: it fires at the time that the pattern names.
	AsNamed Rule = iota
	// Shifted: the zone's clock leaves the named time out.
	Shifted
	// Second: the zone's clock shows the named time twice, and this is the second.
	Second
)

func (r Rule) String() string { return [...]string{"as named", "shifted", "second of a repeat"}[r] }

// Occurrence is one firing.
type Occurrence struct {
	// At is the instant, in UTC.
	At time.Time
	// Local is what the zone's clock shows then, Named what the pattern asked for: another time only if Rule is Shifted.
	// Of several times that a gap shifts to one instant it is the first.
	Local, Named Civil
	// OffsetSeconds is the zone's offset from UTC.
	OffsetSeconds int
	Rule          Rule
}

// Next is the first occurrence after an instant; ok is false if there is none, up to LastYear. Its At is always later.
func (s *Schedule) Next(after time.Time) (o Occurrence, ok bool) {
	h, ok := s.next(after.Unix(), s.exclude)
	if !ok {
		return Occurrence{}, false
	}
	return s.occurrence(h), true
}

// All yields the occurrences after an instant in order, as Next finds them one after the other. It is the cheaper way to
// many of them: what lies far ahead is searched for once.
func (s *Schedule) All(after time.Time) iter.Seq[Occurrence] {
	return func(yield func(Occurrence) bool) {
		c := s.cursor(s.exclude)
		for h, ok := c.next(after.Unix()); ok && yield(s.occurrence(h)); {
			h, ok = c.next(h.at)
		}
	}
}

// hit is an occurrence before it is dressed up.
type hit struct {
	at    int64
	named Civil
	rule  Rule
}

func (s *Schedule) occurrence(h hit) Occurrence {
	at := time.Unix(h.at, 0).UTC()
	local, offset := s.zone.Local(at)
	return Occurrence{At: at, Local: local, Named: h.named, OffsetSeconds: offset, Rule: h.rule}
}

// next is the first hit of any line after a second; of several at one instant the one that is most as named.
func (s *Schedule) next(after int64, x *exclusions) (hit, bool) {
	if after = max(after, s.start-1); after >= s.end {
		return hit{}, false
	}
	var first earliest
	for i := range s.lines {
		l := s.line(i, x)
		first.offer(l.next(after))
	}
	return first.hit, first.found && first.at <= s.end
}

func (s *Schedule) line(i int, x *exclusions) line {
	return line{search{p: &s.lines[i], x: x}, s.zone, s.rules}
}

// earliest is the best of the hits of several lines.
type earliest struct {
	hit
	found bool
}

func (e *earliest) offer(h hit, ok bool) {
	if ok && (!e.found || h.at < e.at || h.at == e.at && h.rule == AsNamed) {
		e.hit, e.found = h, true
	}
}

// cursor finds hits one after the other. What its lines have found stays known, so that the far ahead is searched once. Not
// safe for concurrent use.
type cursor struct {
	s     *Schedule
	lines []line
	// ahead are the lines' last hits: the first after any second before them.
	ahead []earliest
	begun bool
}

func (s *Schedule) cursor(x *exclusions) *cursor {
	c := &cursor{s: s, lines: make([]line, len(s.lines)), ahead: make([]earliest, len(s.lines))}
	for i := range c.lines {
		c.lines[i] = s.line(i, x)
	}
	return c
}

// next is Schedule's. It must not be asked for earlier seconds than before.
func (c *cursor) next(after int64) (hit, bool) {
	if after = max(after, c.s.start-1); after >= c.s.end {
		return hit{}, false
	}
	var first earliest
	for i := range c.lines {
		if l := &c.ahead[i]; !c.begun || l.found && l.at <= after {
			l.hit, l.found = c.lines[i].next(after)
		}
		first.offer(c.ahead[i].hit, c.ahead[i].found)
	}
	c.begun = true
	return first.hit, first.found && first.at <= c.s.end
}
