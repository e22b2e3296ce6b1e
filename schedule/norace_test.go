//go:build !race

package schedule

const slower = 1
