package cron

import (
	"errors"
	"fmt"
	"strings"
)

// Bounds on a pattern's text.
const (
	// MaxTextBytes is the longest pattern, and MaxItems the longest list in a field. The canonical form of what fits does.
	MaxTextBytes = 2048
	MaxItems     = 160

	// shownBytes is how much of a text an error shows.
	shownBytes = 200
)

// SyntaxError says what is wrong with a pattern, and where.
type SyntaxError struct {
	// Text is the pattern as given.
	Text string
	// Column counts bytes from 1; 0 means the whole text. Field is a field's name, or empty.
	Column int
	Field  string
	// Reason says what is wrong and what is allowed.
	Reason string
}

func (e *SyntaxError) Error() string {
	text := e.Text
	if len(text) > shownBytes {
		text = text[:shownBytes] + "…"
	}
	switch {
	case e.Column == 0:
		return fmt.Sprintf("cron pattern %q: %s", text, e.Reason)
	case e.Field == "":
		return fmt.Sprintf("cron pattern %q, column %d: %s", text, e.Column, e.Reason)
	default:
		return fmt.Sprintf("cron pattern %q, column %d, %s: %s", text, e.Column, e.Field, e.Reason)
	}
}

// macros are the names for common patterns.
var macros = map[string]string{
	"@YEARLY":   "0 0 1 1 *",
	"@ANNUALLY": "0 0 1 1 *",
	"@MONTHLY":  "0 0 1 * *",
	"@WEEKLY":   "0 0 * * 0",
	"@DAILY":    "0 0 * * *",
	"@MIDNIGHT": "0 0 * * *",
	"@HOURLY":   "0 * * * *",
}

// Parse reads a pattern of five fields (minute, hour, day of month, month, day of week), six (second first), seven (year
// last), or one of the names @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually. A pattern that names no
// time of the years FirstYear to LastYear is an error. All errors are *SyntaxError.
func Parse(text string) (Pattern, error) {
	p, _, err := parse(text)
	return p, err
}

// parse says besides whether the text has a field for seconds.
func parse(text string) (p Pattern, seconds bool, err error) {
	if len(text) > MaxTextBytes {
		return Pattern{}, false, &SyntaxError{Text: text, Reason: fmt.Sprintf("longer than %d bytes", MaxTextBytes)}
	}
	words := split(text)
	if len(words) > 0 {
		if words, err = expand(text, words); err != nil {
			return Pattern{}, false, err
		}
	}
	if len(words) < 5 || len(words) > 7 {
		return Pattern{}, false, &SyntaxError{Text: text, Reason: fmt.Sprintf("it has %d fields; a pattern has 5 (minute, hour, "+
			"day of month, month, day of week), 6 (second first) or 7 (year last)", len(words))}
	}
	if seconds = len(words) > 5; !seconds {
		words = append([]word{{"0", 0}}, words...)
	}
	if len(words) < 7 {
		words = append(words, word{"*", len(text)})
	}
	if p, err = build(words); err == nil {
		p.tabulate()
		err = p.possible()
	}
	if syntax := (*SyntaxError)(nil); errors.As(err, &syntax) {
		syntax.Text = text
		return Pattern{}, false, syntax
	}
	return p, seconds, nil
}

// word is a part of the pattern in upper case, and where it stands, from 0.
type word struct {
	text string
	at   int
}

func split(text string) []word {
	var words []word
	for i := 0; i < len(text); {
		if text[i] == ' ' || text[i] == '\t' {
			i++
			continue
		}
		start := i
		for i < len(text) && text[i] != ' ' && text[i] != '\t' {
			i++
		}
		words = append(words, word{upper(text[start:i]), start})
	}
	return words
}

// upper maps ASCII letters only, so that columns stay what they were.
func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

// expand replaces a name like @daily by its fields and refuses what other schedulers allow before or instead of them.
func expand(text string, words []word) ([]word, error) {
	first := words[0]
	wrong := func(reason string) ([]word, error) {
		return nil, &SyntaxError{Text: text, Column: first.at + 1, Reason: reason}
	}
	switch {
	case strings.HasPrefix(first.text, "TZ=") || strings.HasPrefix(first.text, "CRON_TZ="):
		return wrong("a pattern names no zone: the schedule has a field for it")
	case first.text == "@EVERY":
		return wrong("an interval is a schedule of its own kind: use every, not cron")
	case first.text == "@REBOOT":
		return wrong("@reboot is not supported: a scheduler that restarts fires nothing twice")
	case first.text[0] != '@':
		return words, nil
	}
	fields, known := macros[first.text]
	switch {
	case !known:
		return wrong("not a name; allowed are @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually")
	case len(words) > 1:
		first = words[1]
		return wrong("nothing may follow a name")
	}
	words = split(fields)
	for i := range words {
		words[i].at = first.at
	}
	return words, nil
}

// build reads the seven fields.
func build(words []word) (Pattern, error) {
	var p Pattern
	var sets [7]values
	for i := range fields {
		f := &fields[i]
		var special func(item word) (bool, error)
		switch f {
		case dayField:
			special = p.days.specialDay
		case weekdayField:
			special = p.days.specialWeekday
		}
		var err error
		if sets[i], err = f.parse(words[i], special); err != nil {
			return Pattern{}, err
		}
	}
	p.seconds, p.minutes, p.hours = sets[0].bits[0], sets[1].bits[0], uint32(sets[2].bits[0])
	p.moving = sets[2].all || sets[2].steps || p.hours == 1<<24-1
	p.months, p.years = uint16(sets[4].bits[0])<<1, yearSet(sets[6].bits)
	if p.days.anyDay = sets[3].all; !p.days.anyDay {
		p.days.days = uint32(sets[3].bits[0]) << 1
	} else {
		p.days.fromLast, p.days.nearest, p.days.lastWorkday = 0, 0, false
	}
	if p.days.anyWeekday = sets[5].all; !p.days.anyWeekday {
		p.days.weekdays = uint8(sets[5].bits[0]&0x7f | sets[5].bits[0]>>7)
	} else {
		p.days.nth = [7]uint8{}
	}
	return p, nil
}

// possible refuses a pattern that names no time at all.
func (p *Pattern) possible() error {
	if p.monthWithDay(0) >= 0 {
		return nil
	}
	anyYear := *p
	anyYear.years = everyYear
	i := anyYear.monthWithDay(0)
	if i < 0 {
		return &SyntaxError{Reason: "it never fires: no month that it names has such a day in any year"}
	}
	return &SyntaxError{Reason: fmt.Sprintf("it never fires: none of its years has such a day; the first year that has is %d", tableYear+i/12)}
}

// monthWithDay is the first month at or after month i that has a day that matches, or -1.
func (p *Pattern) monthWithDay(i int) int {
	for i = p.monthFrom(i); i >= 0 && p.daysOf(i) == 0; {
		i = p.monthFrom(i + 1)
	}
	return i
}
