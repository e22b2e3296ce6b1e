//go:build carillon_next_level

package fsm

// MaxLevel of a build that stands for the next version in tests of an upgrade. What it does at the higher level is the same.
const MaxLevel = 2
