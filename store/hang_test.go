package store

import (
	"testing"
	"time"
)

// A disk hangs when an operation is reported as slow again and again, not when the process was stopped in its midst: then
// the first report already says that it took long.
func TestHangsAreToldFromStops(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	type report struct{ at, took time.Duration }
	const s = time.Second
	for name, c := range map[string]struct {
		reports []report
		hangs   bool
	}{
		"hang":                     {[]report{{6 * s, 6 * s}, {8 * s, 8 * s}, {10 * s, 10 * s}, {12 * s, 12 * s}, {14 * s, 14 * s}, {16 * s, 16 * s}}, true},
		"slow":                     {[]report{{6 * s, 6 * s}, {8 * s, 8 * s}, {10 * s, 10 * s}, {12 * s, 12 * s}, {14 * s, 14 * s}}, false},
		"stopped":                  {[]report{{20 * s, 20 * s}}, false},
		"stopped, two operations":  {[]report{{20 * s, 20 * s}, {20 * s, 19 * s}}, false},
		"stopped while slow":       {[]report{{6 * s, 6 * s}, {8 * s, 8 * s}, {40 * s, 40 * s}}, false},
		"stopped, then it hangs":   {[]report{{20 * s, 20 * s}, {22 * s, 22 * s}, {24 * s, 24 * s}, {26 * s, 26 * s}}, true},
		"stopped, later stopped":   {[]report{{20 * s, 20 * s}, {90 * s, 20 * s}}, false},
		"slow again after a while": {[]report{{6 * s, 6 * s}, {60 * s, 6 * s}, {62 * s, 8 * s}}, false},
	} {
		var h hangWatch
		hangs := false
		for _, r := range c.reports {
			hangs = h.reported(start.Add(r.at), r.took)
		}
		if hangs != c.hangs {
			t.Errorf("%s: hangs is %v", name, hangs)
		}
	}
}
