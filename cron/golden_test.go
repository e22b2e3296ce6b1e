package cron

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var record = flag.Bool("record", false, "write testdata/golden.txt anew")

const goldenPath = "testdata/golden.txt"

// goldenCase is a line of the golden table: zone | patterns, apart by ; | gap repeat | after | how many events.
type goldenCase struct {
	zone     string
	lines    []string
	rules    Rules
	after    time.Time
	count    int
	expected []string
}

// TestGolden compares what Walk yields around the jumps of clocks in some sixty zones with the table, and its instants
// with those that a scan finds.
func TestGolden(t *testing.T) {
	data, err := os.ReadFile(goldenPath)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	zones := map[string]bool{}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for n := 0; n < len(lines); {
		text := lines[n]
		fmt.Fprintln(&out, text)
		n++
		if !strings.Contains(text, " | ") || strings.HasPrefix(text, "#") {
			continue
		}
		c := parseGolden(t, n, text)
		for ; n < len(lines) && strings.HasPrefix(lines[n], "\t"); n++ {
			c.expected = append(c.expected, lines[n])
		}
		zones[c.zone] = true
		for _, line := range c.run(t, n, text) {
			fmt.Fprintln(&out, line)
		}
	}
	if len(zones) < 40 {
		t.Errorf("%d zones, want at least 40", len(zones))
	}
	if *record {
		if err := os.WriteFile(goldenPath, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func parseGolden(t *testing.T, n int, text string) goldenCase {
	t.Helper()
	parts := strings.Split(text, " | ")
	if len(parts) != 5 {
		t.Fatalf("%s:%d: %d parts", goldenPath, n, len(parts))
	}
	gapText, repeatText, _ := strings.Cut(parts[2], " ")
	gap, err1 := ParseGap(gapText)
	repeat, err2 := ParseRepeat(repeatText)
	after, err3 := time.Parse(time.RFC3339, parts[3])
	count, err4 := strconv.Atoi(parts[4])
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Fatalf("%s:%d: %v", goldenPath, n, err)
		}
	}
	return goldenCase{zone: parts[0], lines: strings.Split(parts[1], " ; "), rules: Rules{gap, repeat}, after: after, count: count}
}

func (c *goldenCase) run(t *testing.T, n int, text string) []string {
	t.Helper()
	s, err := Compile(Spec{Lines: c.lines, Zone: c.zone, Rules: c.rules})
	if err != nil {
		t.Fatalf("%s:%d: %v", goldenPath, n, err)
	}
	var got []string
	var fires []time.Time
	for e := range s.Walk(c.after) {
		got = append(got, "\t"+describe(e))
		if e.Verdict == Fires {
			fires = append(fires, e.At)
		}
		if len(got) == c.count {
			break
		}
	}
	if want := strings.Join(c.expected, "\n"); !*record && strings.Join(got, "\n") != want {
		t.Errorf("%s:%d: %s\ngot\n%s\nwant\n%s", goldenPath, n, text, strings.Join(got, "\n"), want)
	}
	c.scan(t, n, text, fires)
	return got
}

// scan looks for the instants up to the last of fires in the slow way.
func (c *goldenCase) scan(t *testing.T, n int, text string, fires []time.Time) {
	t.Helper()
	if len(fires) == 0 || fires[len(fires)-1].Sub(c.after) > 45*24*time.Hour {
		return
	}
	slow := slowSchedule{location: slowZone(t, c.zone), rules: c.rules}
	step := time.Minute
	for _, line := range c.lines {
		slow.patterns = append(slow.patterns, newSlow(line))
		if len(strings.Fields(line)) > 5 || c.zone == "Africa/Monrovia" {
			step = time.Second
		}
	}
	want := slow.between(c.after, fires[len(fires)-1], step)
	if fmt.Sprint(fires) != fmt.Sprint(want) {
		t.Errorf("%s:%d: %s\ngot     %v\na scan finds %v", goldenPath, n, text, fires, want)
	}
}

// describe is an event as a line of the table.
func describe(e Event) string {
	text := fmt.Sprintf("%s  %s %s", e.At.Format(time.RFC3339), e.Local, offsetText(e.OffsetSeconds))
	switch {
	case e.Verdict == InGap:
		text += fmt.Sprintf("  in gap: %s", e.Named)
	case e.Rule == Shifted:
		text += fmt.Sprintf("  shifted: %s", e.Named)
	case e.Rule == Second:
		text += "  second"
	}
	if e.Verdict == Excluded {
		text += "  excluded"
	}
	if e.Count > 1 {
		text += fmt.Sprintf(" to %s, %d times", e.LastNamed, e.Count)
	}
	return text
}

func offsetText(seconds int) string {
	sign := '+'
	if seconds < 0 {
		sign, seconds = '-', -seconds
	}
	text := fmt.Sprintf("%c%02d:%02d", sign, seconds/3600, seconds/60%60)
	if seconds%60 != 0 {
		text += fmt.Sprintf(":%02d", seconds%60)
	}
	return text
}
