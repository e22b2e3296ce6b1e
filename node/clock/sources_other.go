//go:build !linux

package clock

func systemSources() Sources { return newMonotonic() }
