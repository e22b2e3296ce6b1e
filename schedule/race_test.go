//go:build race

package schedule

// slower is by how much the race detector slows evaluation down, at most.
const slower = 20
