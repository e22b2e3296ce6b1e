package clock

import "time"

// Sources are the two clocks a guard compares.
type Sources interface {
	// Wall is the time of day that the operating system believes, in nanoseconds since 1970 UTC. It may jump.
	Wall() int64
	// Boot is the time elapsed since some instant in nanoseconds, sleep included. It never jumps.
	Boot() int64
}

// SystemSources are this machine's clocks.
func SystemSources() Sources {
	if stepFile != "" {
		return stepped{systemSources()}
	}
	return systemSources()
}

// monotonic stands in for a boot clock where there is none. It may not count sleep: a suspension then looks like a step
// forward, which is held and then believed.
type monotonic struct{ start time.Time }

func newMonotonic() monotonic { return monotonic{start: time.Now()} }

func (monotonic) Wall() int64 { return time.Now().UnixNano() }

func (m monotonic) Boot() int64 { return int64(time.Since(m.start)) }
