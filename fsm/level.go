//go:build !carillon_next_level

package fsm

// MaxLevel is the highest level this binary knows; level 1 is the first.
const MaxLevel = 1
