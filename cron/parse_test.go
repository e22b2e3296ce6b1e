package cron

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ text, canonical string }{
		{"* * * * *", "* * * * *"},
		{"0 0 * * *", "0 0 * * *"},
		{"  */15\t*  * * * ", "*/15 * * * *"},
		{"0,15,30,45 * * * *", "*/15 * * * *"},
		{"5/15 * * * *", "5-50/15 * * * *"},
		{"0/60 */24 * * *", "0 0/24 * * *"},
		{"0-59 0-23 * * *", "* * * * *"},
		{"1,2,3,7,9-9 1 * * *", "1-3,7,9 1 * * *"},
		{"55-5 22-2 * * *", "0-5,55-59 0-2,22,23 * * *"},
		{"0 22-4/2 * * *", "0 0/24,2,4,22 * * *"},
		{"0 0 * nov-feb fri-mon", "0 0 * 1,2,11,12 0,1,5,6"},
		{"0 0 * * 5-7", "0 0 * * 0,5,6"},
		{"0 0 * * 7", "0 0 * * 0"},
		{"0 0 * * 7-2", "0 0 * * 0-2"},
		{"0 0 * * 0-7", "0 0 * * 0-6"},
		{"0 0 * * SUN-SAT", "0 0 * * 0-6"},
		{"0 0 * * 7/2", "0 0 * * */2"},
		{"0 0 1-31 * *", "0 0 1-31 * *"},
		{"0 0 */1 * */1", "0 0 * * *"},
		{"0 0 ? * MON", "0 0 * * 1"},
		{"0 0 1,? * *", "0 0 * * *"},
		{"0 0 */2 * *", "0 0 */2 * *"},
		{"0 0 L,15W,lw,L-3,2 * *", "0 0 2,15W,LW,L,L-3 * *"},
		{"0 0 * * mon#1,5L,SUN#5,7L,wed", "0 0 * * 3,0#5,0L,1#1,5L"},
		{"0 0 0 * * *", "0 0 * * *"},
		{"30 0 0 * * *", "30 0 0 * * *"},
		{"* 0 * * * *", "* 0 * * * *"},
		{"0 0 9 1 1 ? *", "0 9 1 1 *"},
		{"0 0 9 1 1 ? 2030", "0 0 9 1 1 * 2030"},
		{"0 0 9 1 1 ? 2030-2034/2,2041", "0 0 9 1 1 * 2030,2032,2034,2041"},
		{"0 */6,13 * * *", "0 0/24,6,12,13,18 * * *"},
		{"0 1-5/2 * * *", "0 1-5/2 * * *"},
		{"0 9-17/1 * * *", "0 9-17 * * *"},
		{"0 0,12 * * *", "0 0,12 * * *"},
		{"0 */12 * * *", "0 */12 * * *"},
		{"0 0 1 */6 *", "0 0 1 */6 *"},
		{"@hourly", "0 * * * *"},
		{"@daily", "0 0 * * *"},
		{"@MIDNIGHT", "0 0 * * *"},
		{"@weekly", "0 0 * * 0"},
		{"@monthly", "0 0 1 * *"},
		{"@yearly", "0 0 1 1 *"},
		{"@annually", "0 0 1 1 *"},
		{"0 0 29 2 *", "0 0 29 2 *"},
		{"0 0 * 2 MON#5", "0 0 * 2 1#5"},
	} {
		p, err := Parse(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if got := p.String(); got != c.canonical {
			t.Errorf("%q: canonical form %q, want %q", c.text, got, c.canonical)
		}
		if again, err := Parse(p.String()); err != nil || again != p {
			t.Errorf("%q: its canonical form %q is another pattern (%v)", c.text, p, err)
		}
	}
}

// TestMoving says which patterns move through the hours and which are fixed.
func TestMoving(t *testing.T) {
	for text, want := range map[string]bool{
		"0 * * * *": true, "*/15 * * * *": true, "0 */2 * * *": true, "0 1/3 * * *": true, "0 9-17/2 * * *": true, "0 0-23 * * *": true,
		"0 */6,13 * * *": true, "0 2 * * *": false, "*/15 2 * * *": false, "* 1 * * *": false, "0 9-17 * * *": false, "0 9-17/1 * * *": false,
		"0 0,6,12,18 * * *": false,
	} {
		p, err := Parse(text)
		if err != nil || p.moving != want {
			t.Errorf("%q: moving %v, %v; want %v", text, p.moving, err, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		text   string
		column int
		field  string
		says   string
	}{
		{"", 0, "", "0 fields"},
		{"   ", 0, "", "0 fields"},
		{"* * * *", 0, "", "4 fields"},
		{"* * * * * * * *", 0, "", "8 fields"},
		{"60 * * * *", 1, "minute", `"60" is not allowed; allowed are 0 to 59`},
		{"* 24 * * *", 3, "hour", "0 to 23"},
		{"* * 0 * *", 5, "day of month", "1 to 31, L, L-n, LW and nW"},
		{"* * 32 * *", 5, "day of month", "1 to 31"},
		{"* * * 13 *", 7, "month", "1 to 12 and JAN to DEC"},
		{"* * * 0 *", 7, "month", "1 to 12"},
		{"* * * * 8", 9, "day of week", "0 to 7"},
		{"* * * * MONDAY", 9, "day of week", "SUN to SAT"},
		{"* * * FOO *", 7, "month", "JAN to DEC"},
		{"* * * MON *", 7, "month", "JAN to DEC"},
		{"60 * * * * *", 1, "second", "0 to 59"},
		{"* * * * * * 1969", 13, "year", "1970 to 2199"},
		{"0 0 0 1 1 * 2200", 13, "year", "1970 to 2199"},
		{"0 0 0 1 1 * 2030-2020", 13, "year", "runs backwards"},
		{"1,2,x * * * *", 5, "minute", `"X"`},
		{"1,,2 * * * *", 3, "minute", "empty"},
		{", * * * *", 1, "minute", "empty"},
		{"1-2-3 * * * *", 3, "minute", `"2-3"`},
		{"-5 * * * *", 1, "minute", `""`},
		{"+5 * * * *", 1, "minute", `"+5"`},
		{"5- * * * *", 3, "minute", `""`},
		{"*/0 * * * *", 3, "minute", "1 to 60"},
		{"*/61 * * * *", 3, "minute", "1 to 60"},
		{"*/90 * * * *", 3, "minute", "starts anew"},
		{"*/ * * * *", 3, "minute", `""`},
		{"*/+5 * * * *", 3, "minute", "no step"},
		{"*/5/5 * * * *", 3, "minute", "no step"},
		{"** * * * *", 1, "minute", `"**"`},
		{"? * * * *", 1, "minute", "write *"},
		{"0 0 ?/2 * *", 5, "day of month", "takes no step"},
		{"0 0 25-5 * *", 5, "day of month", "write 25-31,1-5"},
		{"0 0 L-31 * *", 5, "day of month", "1 to 30"},
		{"0 0 L-0 * *", 5, "day of month", "1 to 30"},
		{"0 0 L- * *", 5, "day of month", "1 to 30"},
		{"0 0 32W * *", 5, "day of month", "1 to 31"},
		{"0 0 W * *", 5, "day of month", "1 to 31"},
		{"0 0 LW/2 * *", 5, "day of month", "not allowed"},
		{"0 0 1-5W * *", 5, "day of month", "not allowed"},
		{"0 0 * * L", 9, "day of week", "5L or FRIL"},
		{"0 0 * * 1#6", 9, "day of week", "1 to 5"},
		{"0 0 * * 1#0", 9, "day of week", "1 to 5"},
		{"0 0 * * 1L#2", 9, "day of week", "1 to 5"},
		{"0 0 * * #2", 9, "day of week", "0 to 7"},
		{"0 0 * L *", 7, "month", "not allowed"},
		{"TZ=UTC", 1, "", "names no zone"},
		{"CRON_TZ=Europe/Berlin 0 0 * * *", 1, "", "names no zone"},
		{"tz=UTC @every 5m", 1, "", "names no zone"},
		{"@every 5m", 1, "", "use every"},
		{"@reboot", 1, "", "@reboot"},
		{"@sometimes", 1, "", "@hourly"},
		{"@daily 5", 8, "", "nothing may follow"},
		{"0 0 31 2 *", 0, "", "never fires"},
		{"0 0 30,31 2 *", 0, "", "never fires"},
		{"0 0 31 4,6,9,11 *", 0, "", "never fires"},
		{"0 0 31W 2 *", 0, "", "never fires"},
		{"0 0 L-30 4 *", 0, "", "never fires"},
		{"0 0 0 29 2 ? 2027", 0, "", "the first year that has is 1972"},
		{"0 0 0 29 2 ? 2100", 0, "", "never fires"},
		{"0 0 0 * 2 MON#5 2028", 0, "", "the first year that has is 1988"},
		{strings.Repeat("*", MaxTextBytes+1), 0, "", "longer than"},
		{"0" + strings.Repeat(",0", MaxItems) + " * * * *", 321, "minute", "more than 160"},
		{"\x00 * * * *", 1, "minute", "not allowed"},
		{"é * * * x", 1, "minute", "not allowed"},
		{"* * * * é,x", 9, "day of week", "not allowed"},
	} {
		p, err := Parse(c.text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%.60q: %v, want an error", c.text, p)
			continue
		}
		if syntax.Column != c.column || syntax.Field != c.field || !strings.Contains(syntax.Reason, c.says) {
			t.Errorf("%.60q: column %d, field %q: %q; want column %d, field %q: …%s…", c.text, syntax.Column, syntax.Field, syntax.Reason, c.column, c.field, c.says)
		}
		if (p != Pattern{}) {
			t.Errorf("%.60q: a pattern beside the error", c.text)
		}
	}
}

// TestDays compares the days of every shape of month with those found day by day.
func TestDays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawPattern(t)
		p, err := Parse(text)
		if err != nil {
			t.Skip()
		}
		slow := newSlow(text)
		first := CivilOf(rapid.IntRange(FirstYear, LastYear-2).Draw(t, "year"), 1, 1, 0, 0, 0)
		for d := range 366 {
			c := first + Civil(d*daySeconds)
			if got, want := p.onDay(c), slow.onDay(c.wall()); got != want {
				t.Fatalf("%q on %s: %v, want %v", text, c, got, want)
			}
		}
	})
}

// TestLongestCanonicalForm: what is longest in canonical form, values in pairs, still parses.
func TestLongestCanonicalForm(t *testing.T) {
	pairs := func(f *field) string {
		var items []string
		for n := f.min; n <= f.top(); n++ {
			if n%3 != 2 {
				items = append(items, fmt.Sprint(n))
			}
		}
		return strings.Join(items, ",")
	}
	days := dayRule{days: 0b0110_1101_1011_0110_1101_1011_0110_1100, fromLast: 1<<31 - 1, nearest: 1<<32 - 2, lastWorkday: true}
	for weekday := range days.nth {
		days.nth[weekday] = 1<<6 - 1
	}
	text := strings.Join([]string{pairs(&fields[0]), pairs(&fields[1]), pairs(&fields[2]), days.formatDays(), pairs(&fields[4]), days.formatWeekdays(), pairs(&fields[6])}, " ")
	longest, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Parse(longest.String()); err != nil || again != longest {
		t.Fatal(len(longest.String()), err)
	}
}

// TestNearestWorkday stays in its month.
func TestNearestWorkday(t *testing.T) {
	for _, c := range []struct {
		text, from, want string
	}{
		// 2026-08-01 is a Saturday, 2026-11-01 a Sunday.
		{"0 0 1W 8 *", "2026-01-01", "2026-08-03"},
		{"0 0 1W 11 *", "2026-01-01", "2026-11-02"},
		// 2026-05-31 is a Sunday, 2026-10-31 a Saturday, 2026-02-28 a Saturday.
		{"0 0 31W 5 *", "2026-01-01", "2026-05-29"},
		{"0 0 31W 10 *", "2026-01-01", "2026-10-30"},
		{"0 0 28W 2 *", "2026-01-01", "2026-02-27"},
		{"0 0 15W * *", "2026-03-01", "2026-03-16"},
		{"0 0 15W * *", "2026-08-01", "2026-08-14"},
		{"0 0 15W * *", "2026-04-01", "2026-04-15"},
		{"0 0 LW * *", "2026-05-01", "2026-05-29"},
		{"0 0 LW * *", "2026-10-01", "2026-10-30"},
		{"0 0 31W * *", "2026-02-01", "2026-03-31"},
	} {
		s := mustCompile(t, Spec{Lines: []string{c.text}, Zone: "UTC"})
		o, _ := s.Next(instant(t, c.from+"T00:00:00Z"))
		if got := o.Local.String()[:10]; got != c.want {
			t.Errorf("%q from %s: %s, want %s", c.text, c.from, got, c.want)
		}
	}
}

// TestCanonicalForm: whatever parses has a canonical form, and that is the same pattern.
func TestCanonicalForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawPattern(t)
		p, err := Parse(text)
		if err != nil {
			t.Skip()
		}
		again, err := Parse(p.String())
		if err != nil || again != p || again.String() != p.String() {
			t.Fatalf("%q: canonical form %q: %v", text, p, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"* * * * *", "0 0 0 L-3,15W * 5L,MON#1 2030-2040/2", "@daily", "TZ= @every", "59-1/7 22-4/2 */2 NOV-FEB 5-7", "0 */6,13 LW ? ?"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			if _, ok := err.(*SyntaxError); !ok || len(err.Error()) > 2000 {
				t.Fatalf("error %T of %d bytes", err, len(err.Error()))
			}
			return
		}
		if again, err := Parse(p.String()); err != nil || again != p {
			t.Fatalf("%q: canonical form %q: %v", text, p, err)
		}
		s := search{p: &p}
		if _, ok := s.from(0); !ok {
			t.Fatalf("%q never fires", text)
		}
	})
}
