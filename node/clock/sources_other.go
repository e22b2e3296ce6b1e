//go:build !linux

package clock

// SystemSources are this machine's clocks.
func SystemSources() Sources { return newMonotonic() }
