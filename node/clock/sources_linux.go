package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

func systemSources() Sources {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return newMonotonic() // some sandboxes have no boot clock
	}
	return bootClock{}
}

type bootClock struct{}

func (bootClock) Wall() int64 { return time.Now().UnixNano() }

func (bootClock) Boot() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		// It worked at the start, and nothing that can go wrong since depends on us.
		panic("clock: read boot clock: " + err.Error())
	}
	return now.Nano()
}
