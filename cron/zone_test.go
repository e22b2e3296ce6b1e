package cron

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestZoneData checks of the embedded data what the code takes for granted, so that new data cannot break it unseen.
func TestZoneData(t *testing.T) {
	version, sum, _ := strings.Cut(strings.TrimSpace(zoneVersion), " ")
	if got := fmt.Sprintf("%x", sha256.Sum256(zoneArchive)); got != sum {
		t.Errorf("zoneinfo.version belongs to other data: run go generate ./cron")
	}
	if ZoneVersion() != version || len(version) != 5 {
		t.Errorf("version %q", ZoneVersion())
	}
	names := ZoneNames()
	if len(names) < 590 {
		t.Errorf("only %d zones", len(names))
	}
	for _, name := range names {
		z, err := LoadZone(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range z.segments {
			seg := &z.segments[i]
			if seg.end <= seg.start {
				t.Errorf("%s: segment %d is empty", name, i)
			}
			if i == 0 {
				continue
			}
			before := &z.segments[i-1]
			if before.end != seg.start || before.offset == seg.offset {
				t.Errorf("%s: segment %d does not follow the one before", name, i)
			}
			if back := time.Duration(before.offset-seg.offset) * time.Second; back > longestRepeat || back > 0 && back%time.Minute != 0 {
				t.Errorf("%s: clocks jump back by %v", name, back)
			}
			jumps := abs(int(seg.offset - before.offset))
			if i+1 < len(z.segments) {
				jumps += abs(int(z.segments[i+1].offset - seg.offset))
			}
			if seg.end-seg.start <= int64(jumps) {
				t.Errorf("%s: segment %d from %v is shorter than the jumps around it", name, i, time.Unix(seg.start, 0).UTC())
			}
		}
	}
}

// TestZonesAgreeWithPackageTime at every transition and in between.
func TestZonesAgreeWithPackageTime(t *testing.T) {
	for _, name := range ZoneNames() {
		z, _ := LoadZone(name)
		location := slowZone(t, name)
		for _, seg := range z.segments {
			for _, second := range []int64{seg.start, seg.start + 1, (seg.start + seg.end) / 2, seg.end - 1} {
				at := time.Unix(second, 0)
				_, want := at.In(location).Zone()
				if local, got := z.Local(at); got != want || int64(local) != second+int64(want) {
					t.Fatalf("%s at %v: offset %d, want %d", name, at.UTC(), got, want)
				}
			}
		}
	}
}

// TestNoJumpIsMissed looks at every six hours of some zones.
func TestNoJumpIsMissed(t *testing.T) {
	for _, name := range jumpyZones {
		z, _ := LoadZone(name)
		location := slowZone(t, name)
		end := time.Date(2060, 1, 1, 0, 0, 0, 0, time.UTC)
		for at := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC); at.Before(end); at = at.Add(6 * time.Hour) {
			_, want := at.In(location).Zone()
			if _, got := z.Local(at); got != want {
				t.Fatalf("%s at %v: offset %d, want %d", name, at, got, want)
			}
		}
	}
}

// TestTheMachinesZonesHaveNoInfluence (case T9): neither its zone, nor its files, nor what ZONEINFO names.
func TestTheMachinesZonesHaveNoInfluence(t *testing.T) {
	// A directory in which every city lies in Tokyo.
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "Pacific"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Pacific", "Honolulu"), zoneBytes(t, "Asia/Tokyo"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ZONEINFO", dir)
	t.Setenv("TZ", "Asia/Tokyo")
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	time.Local = time.FixedZone("machine", 5*3600)

	zones.Delete("Pacific/Honolulu")
	s := mustCompile(t, Spec{Lines: []string{"0 9 * * *"}, Zone: "Pacific/Honolulu"})
	o, _ := s.Next(instant(t, "2026-06-01T00:00:00Z"))
	if got := o.At.Format(time.RFC3339); got != "2026-06-01T19:00:00Z" || o.Local.String() != "2026-06-01 09:00:00" {
		t.Errorf("next is %s, local %v", got, o.Local)
	}
}

// TestZonesAreSafeForConcurrentUse is for the race detector.
func TestZonesAreSafeForConcurrentUse(t *testing.T) {
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for _, name := range jumpyZones {
				zones.Delete(name)
				s, err := Compile(Spec{Lines: []string{"30 2 * * *"}, Zone: name})
				if err != nil {
					t.Error(err)
					return
				}
				s.Next(time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC))
			}
		})
	}
	wait.Wait()
}

func TestUnknownZones(t *testing.T) {
	for _, name := range []string{"", "Local", "local", "Mars/Olympus", "europe/berlin", "+02:00", "../etc/passwd", "Europe", "Europe/", strings.Repeat("x", 10_000)} {
		z, err := LoadZone(name)
		if err == nil {
			t.Errorf("LoadZone(%q) = %v", name, z.Name())
		} else if len(err.Error()) > 250 {
			t.Errorf("LoadZone(%.20q): the error has %d bytes", name, len(err.Error()))
		}
	}
	if _, err := LoadZone("europe/berlin"); !strings.Contains(err.Error(), "Europe/Berlin") {
		t.Errorf("no hint at the right spelling: %v", err)
	}
	for _, name := range []string{"UTC", "Europe/Kiev", "US/Pacific", "Asia/Calcutta", "Etc/GMT-14"} {
		if _, err := LoadZone(name); err != nil {
			t.Error(err)
		}
	}
}

// TestPure: the package asks no clock, no environment, no file, and starts nothing.
func TestPure(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	forbidden := map[string][]string{
		"time": {"Now", "Since", "Until", "Local", "LoadLocation", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"},
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "gen.go" {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			if path := strings.Trim(spec.Path.Value, `"`); slices.Contains([]string{"os", "net", "context", "log", "log/slog", "math/rand", "math/rand/v2", "time/tzdata", "io/fs"}, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.ChanType:
				t.Errorf("%s has something concurrent", name)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(forbidden[x.Name], n.Sel.Name) {
					t.Errorf("%s uses %s.%s", name, x.Name, n.Sel.Name)
				}
			}
			return true
		})
	}
}

// The instants of a civil time are those at which the zone shows it, looked for by going through the day; of what it leaves out, it
// is where the clock jumps.
func TestInstantsAreWhereTheClockShowsThem(t *testing.T) {
	for _, name := range []string{"UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/Havana", "Africa/Monrovia"} {
		zone, err := LoadZone(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, day := range []Civil{
			CivilOf(2026, 3, 8, 0, 0, 0), CivilOf(2026, 4, 5, 0, 0, 0), CivilOf(2026, 10, 4, 0, 0, 0), CivilOf(2026, 11, 1, 0, 0, 0),
			CivilOf(2011, 12, 30, 0, 0, 0), CivilOf(1972, 1, 7, 0, 0, 0), CivilOf(1970, 1, 2, 0, 0, 0),
		} {
			for c := day; c < day+daySeconds; c += 10 * 60 {
				checkInstants(t, zone, c)
			}
		}
	}
}

func checkInstants(t *testing.T, zone *Zone, c Civil) {
	t.Helper()
	first, last := zone.Instants(c)
	a, _ := zone.Local(first)
	b, _ := zone.Local(last)
	before, _ := zone.Local(first.Add(-time.Second))
	switch {
	case a == c && b == c && !last.Before(first):
		// No other instant shows it within what clocks jump by.
		for _, around := range []time.Duration{30 * time.Minute, time.Hour} {
			x, _ := zone.Local(first.Add(-around))
			y, _ := zone.Local(last.Add(around))
			if x == c || y == c {
				t.Errorf("%s shows %s before %s or after %s", zone.Name(), c, first, last)
			}
		}
	case a > c && before < c && first.Equal(last): // left out
	default:
		t.Errorf("%s at %s shows %s, at %s %s; asked for was %s", zone.Name(), first, a, last, b, c)
	}
}
